"""Writes to NumPy arrays among the arguments of a function that is traced: said or refused."""

import ast
import inspect
from collections.abc import Callable, Iterator

import jax
import numpy as np

from malleable import compat
from malleable.errors import TransformError
from malleable.notes import note
from malleable.python_source.source import NoSource, find

_WAY_OUT = "make a new array and return it: `x = jnp.asarray(x).at[i].set(y)`, or `x = x + y`"


def look_for_writes(fun: Callable, args: tuple, kwargs: dict) -> None:
    """Say at which line `fun` would write to an array of NumPy, and writes to a tracer instead.

    `x += 1` makes a new array of a tracer: a note. `x.sort()` gives one that nobody takes.
    Raises TransformError for the latter.
    """
    if not any(isinstance(x, np.ndarray) for x in (*args, *kwargs.values())):
        return
    inner = inspect.unwrap(fun)
    code = getattr(inner, "__code__", None)
    if code is None or not compat.is_users(code.co_filename):
        return
    try:
        names = inspect.signature(inner).bind(*args, **kwargs).arguments.items()
        tree = find(code, getattr(inner, "__globals__", None)).node
    except (NoSource, TypeError, ValueError):  # no source, or arguments for another function
        return
    given = {name for name, x in names if isinstance(x, np.ndarray)}
    for name, line, method in _writes(tree, given):
        where = f"{code.co_filename}:{line} in {code.co_name}"
        if method:
            what = f"`{name}.{method}()` writes to an array of NumPy, and `{name}` is traced here"
            raise TransformError(what, where=where, hint=f"write `{name} = np.sort({name})`")
        why = f"`{name}` is traced, so a new array is made; the caller's stays as it is"
        note(f"`{name}` is not written to in place", where, why)


def _writes(tree: ast.AST, names: set[str]) -> Iterator[tuple[str, int, str]]:
    """(name, line, method or "") where an argument is written to and was not bound anew before."""
    bound: dict[str, int] = {}
    changed, own = [], set()
    for node in ast.walk(tree):  # a statement before the names in it
        match node:
            case ast.AugAssign(target=ast.Name(id=name) as target):
                changed.append((name, node.lineno, ""))
                own.add(target)
            case ast.Expr(ast.Call(func=ast.Attribute(ast.Name(id=name), "sort"))):
                changed.append((name, node.lineno, "sort"))
            case ast.Name(id=name, ctx=ast.Store()) if node not in own:
                bound[name] = min(node.lineno, bound.get(name, node.lineno))
    for name, line, method in sorted(changed, key=lambda found: found[1]):
        if name in names and bound.get(name, line + 1) > line:
            yield name, line, method


def refuse_write(error: BaseException, given: tuple) -> None:
    """Raise TransformError for JAX's error on `x[i] = y`, where NumPy would have written to x."""
    if "immutable" not in str(error) or not isinstance(error, TypeError):
        return
    if any(isinstance(x, np.ndarray) for x in jax.tree.leaves(given)):
        where = next(iter(compat.lines_of(error)), "")
        what = "an array is written to in place, and is traced here"
        raise TransformError(what, where=where, hint=_WAY_OUT) from error
