"""The Python behind a function: what it wraps, its name, the source that equations come from."""

import ast
import functools
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

from malleable import compat
from malleable.inspection import places
from malleable.inspection.show.rows.outline import Body
from malleable.inspection.show.rows.renamed import rows_of
from malleable.inspection.show.shown import Sources
from malleable.python_source.files import File, read
from malleable.python_source.source import closed_over

_LONGEST = 400  # lines of a function that is shown whole around the lines that matter
_AROUND = 20  # lines before and after, of a longer one


def unwrapped(fun: Any) -> Iterator[Any]:
    """A callable, what it wraps, what that wraps, and so on to a function or a class.

    >>> import jax
    >>> def f(x): return x
    >>> list(unwrapped(functools.partial(jax.jit(f), 1)))[-1] is f
    True
    """
    seen: set[int] = set()
    owner = None
    while id(fun) not in seen:
        yield fun
        seen.add(id(fun))
        inner = _inside(fun)
        if isinstance(fun, types.MethodType):
            owner = fun.__self__
        elif not isinstance(fun, types.FunctionType) and inner is _called(fun):
            owner = fun
        if inner is fun and isinstance(fun, types.FunctionType) and owner is None:
            inner = fun if _is_own(fun) else _held(fun)
        fun = inner
    if owner is not None and not _is_own(fun) and _is_own(type(owner)):
        yield type(owner)  # the user's class, whose method is a library's


def _inside(fun: Any) -> Any:
    """What a callable wraps; itself, if nothing."""
    if isinstance(fun, functools.partial):
        return fun.func
    if isinstance(fun, types.MethodType):
        return fun.__func__
    if hasattr(fun, "__wrapped__"):
        return fun.__wrapped__
    if isinstance(fun, types.FunctionType | types.BuiltinFunctionType | type):
        return fun
    return _called(fun) or fun


def _called(fun: Any) -> types.FunctionType | None:
    """What Python runs where an object is called."""
    called = getattr(type(fun), "__call__", None)  # noqa: B004
    return called if isinstance(called, types.FunctionType) else None


def _held(fun: types.FunctionType) -> Any:
    """The one callable of the user's that a function of a library closes over; else itself."""
    found: dict[int, Any] = {}
    seen: set[int] = set()
    todo: list[Any] = [fun]
    while todo and len(seen) < 100:
        outer = todo.pop()
        if id(outer) in seen:
            continue
        seen.add(id(outer))
        inner = _inside(outer)
        if isinstance(inner, types.FunctionType) and _is_own(inner):
            found[id(inner)] = outer
        elif inner is not outer:
            todo.append(inner)
        todo += filter(callable, closed_over(inner).values())
    return next(iter(found.values())) if len(found) == 1 else fun


def _is_own(thing) -> bool:
    try:
        file = inspect.getfile(thing)
    except (TypeError, OSError):
        return False
    return places.is_own(file) and compat.is_users(file)


def heading_of(fun: Callable) -> str:
    """What to call a function in a heading."""
    name = getattr(list(unwrapped(fun))[-1], "__qualname__", type(fun).__name__)
    return name.rpartition("<locals>.")[2]


def sources(*bodies: Body) -> Sources:
    """{file: {line: text}} of the lines that equations come from, and the functions around them.

    >>> from malleable.core.stage import stage
    >>> from malleable.inspection.show.rows.outline import outline
    >>> def f(x):
    ...     return x + 1
    >>> (lines,) = sources(outline(stage(f)(1.0).jaxpr)).values()
    >>> list(lines.values())
    ['def f(x):', '    return x + 1']
    """
    wanted: dict[str, set[int]] = {}
    for row in (row for body in bodies for row in rows_of(body)):
        if row.place:
            wanted.setdefault(row.place.file, set()).add(row.place.line)
    return {file: text for file, at in wanted.items() if (text := _around(file, at))}


def _around(file: str, wanted: set[int]) -> dict[int, str]:
    source = read(file)
    texts = source.lines
    kept = {line for line in wanted if line <= len(texts)}
    spans = _functions(source)
    for line in list(kept):
        inside = [(start, end) for start, end in spans if start <= line <= end]
        if inside:
            start, end = max(inside)
            if end - start >= _LONGEST:
                start, end = max(start, line - _AROUND), min(end, line + _AROUND)
            kept.update(range(start, end + 1))
    return {line: texts[line - 1].rstrip("\n") for line in sorted(kept)}


def _functions(file: File) -> list[tuple[int, int]]:
    """First and last line of every function in a file."""
    return [
        (min([node.lineno, *(d.lineno for d in node.decorator_list)]), node.end_lineno or 0)
        for node in file.nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
