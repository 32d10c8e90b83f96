"""Where a transformation was applied: `jax.vmap(...)`, `jax.jit(...)`, `f.defvjp(...)`."""

import ast
import contextlib
import os
import sys
import threading
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from malleable import compat
from malleable.compat import Place
from malleable.inspection.advice.evidence import sources
from malleable.inspection.advice.evidence.trouble import Trouble, place_of

_OPTIONS = {"in_axes", "out_axes", "argnums", "has_aux", "static_argnums", "static_argnames"}


@dataclass(frozen=True)
class Made:
    """One use of a transformation. funs: weak references to the functions it was given."""

    kind: str
    place: Place
    funs: tuple[Callable[[], Any], ...]
    result: Callable[[], Any]
    options: dict[str, Any]


_paused = threading.local()
_opened = 0
_lock = threading.Lock()
_made: deque[Made] = deque(maxlen=4096)


@contextlib.contextmanager
def recorded() -> Iterator[None]:
    """While a block is open, uses of JAX's transformations are remembered."""
    global _opened
    with _lock:
        _opened += 1
    try:
        with compat.creations_told(_record):
            yield
    finally:
        with _lock:
            _opened -= 1
            if not _opened:
                _made.clear()


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """While open, this thread's uses of JAX's transformations are not the user's."""
    _paused.now = True
    try:
        yield
    finally:
        _paused.now = False


def _record(kind: str, result: Any, args: tuple, kwargs: dict) -> None:
    frames = (frame for frame, _ in traceback.walk_stack(sys._getframe(1)))
    frame = next((f for f in frames if not (compat.is_hidden(f) or _is_of_nnx(f))), None)
    if frame is not None and not getattr(_paused, "now", False):
        place = place_of(frame.f_code, frame.f_lasti)
        funs = tuple(weak(fun) for fun in args if callable(fun))
        options = {name: kwargs[name] for name in _OPTIONS & kwargs.keys()}
        _made.append(Made(kind, place, funs, weak(result), options))


def _is_of_nnx(frame) -> bool:
    """Whether this is nnx.jit, nnx.vmap and so on, which call their namesakes of JAX."""
    return f"{os.sep}nnx{os.sep}transforms{os.sep}" in frame.f_code.co_filename


def weak(fun) -> Callable[[], Any]:
    """A reference to a function, where it can have one."""
    try:
        return weakref.ref(fun)  # a strong one would keep the tracers alive that it closes over
    except TypeError:
        return lambda: None


def of(kinds: tuple[str, ...], fun: Any, **options) -> Place | None:
    """Where one of these transformations was last applied to `fun`, with options that are these."""
    made = how(kinds, fun, **options)
    return made.place if made is not None else None


def how(kinds: tuple[str, ...], fun: Any, **options) -> Made | None:
    """How one of these transformations was last applied to `fun`."""
    for made in reversed(_made):
        known = made.kind in kinds and any(ref() is fun for ref in made.funs)
        if known and all(made.options.get(k, v) is v for k, v in options.items()):
            return made
    return None


def made_by(result: Any) -> Made | None:
    """How a transformed function was made."""
    return next((made for made in reversed(_made) if made.result() is result), None)


def owner(rule: Any) -> Any:
    """The custom_vjp or custom_jvp that a derivative rule was given to."""
    for made in reversed(_made):
        if made.kind.startswith("def") and any(ref() is rule for ref in made.funs[1:]):
            return made.funs[0]()
    return None


def find(kind: str, fun: Any, trouble: Trouble, **options) -> Place | None:
    """As `of`; where it was not seen, the one line in the user's files that looks like it."""
    if (seen := of((kind,), fun, **options)) is not None:
        return seen
    function = sources.plain(fun)
    files = [function.__code__.co_filename] if function else []
    files += [step.place.file for step in trouble.own]
    found = []
    for file in dict.fromkeys(files):
        tree = sources.module_of(file)
        for node in ast.walk(tree) if tree else ():
            if isinstance(node, ast.Call | ast.FunctionDef) and function is not None:
                found += _looks_like(node, kind, function, file)
    return found[0] if len(found) == 1 else None


def _looks_like(node: Any, kind: str, function, file: str) -> list[Place]:
    """The place of `jax.vmap(f)` for this f, or of a decorator of it that says so."""
    code = function.__code__
    if isinstance(node, ast.FunctionDef):
        lines = {d.lineno for d in node.decorator_list}
        if node.name != code.co_name or code.co_firstlineno not in lines:
            return []
        marks = [d for d in node.decorator_list if _mentions(d, kind)]
        return [sources.place(d, file, node.name) for d in marks]
    known = {n: v for n, v in function.__globals__.items() if getattr(v, "__name__", "") == kind}
    aliased = isinstance(node.func, ast.Name) and node.func.id in known
    if not aliased and not _mentions(node.func, kind):
        return []
    given = [n for arg in node.args for n in ast.walk(arg)]
    named = any(isinstance(n, ast.Name) and n.id == code.co_name for n in given)
    lambdas = any(isinstance(n, ast.Lambda) and n.lineno == code.co_firstlineno for n in given)
    around = sources.around(node, ast.FunctionDef)
    where = around.name if around is not None else "<module>"
    return [sources.place(node, file, where)] if named or lambdas else []


def _mentions(node: ast.AST, kind: str) -> bool:
    parts = ast.walk(node)
    return any(kind == getattr(n, "id", getattr(n, "attr", None)) for n in parts)


def assigned(place: Place | None, name: str) -> Place | None:
    """Where the variable is assigned that a keyword argument of the call at a place is made of."""
    call = sources.call_at(place) if place is not None else None
    scope = sources.around(call, ast.FunctionDef | ast.Module)
    given = sources.option(call, name)
    if place is None or scope is None or given is None:
        return None
    names, found = {n.id for n in ast.walk(given) if isinstance(n, ast.Name)}, None
    for node in sources.own_nodes(scope):
        targets = node.targets if isinstance(node, ast.Assign) and node.lineno <= place.line else ()
        if any(isinstance(t, ast.Name) and t.id in names for t in targets):
            found = sources.place(node, place.file, place.function)
    return found


def keyword(place: Place | None, name: str) -> Place | None:
    """The line of one keyword argument of the call at a place, which may be long."""
    given = sources.option(sources.call_at(place), name) if place is not None else None
    if place is None or given is None or given.lineno == place.line:
        return place
    return sources.place(given, place.file, place.function)
