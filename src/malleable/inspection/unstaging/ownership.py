"""Ownership of a function: user code, or a library's with no user code in it."""

import functools
import sys
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from malleable import compat
from malleable.inspection.places import is_own
from malleable.python_source.source import closed_over

_LIBRARIES = ("jax", "jaxlib", "numpy", "malleable", "builtins", "functools", "operator")


def is_users(*things: Any) -> bool:
    """Whether a function of the user's is among some things, or held by one of them.

    >>> import jax
    >>> is_users(jax.numpy.sin), is_users(lambda x: x), is_users(functools.partial(jax.vmap(len)))
    (False, True, False)
    """
    return any(_holds(x, set(), 12, compat.is_users, _LIBRARIES) for x in things)


def is_installed(fun: Any) -> bool:
    """Whether a function, called where we are now, runs code of installed packages alone.

    Both the caller and all that the function holds are theirs: a layer of a library that maps an
    activation over its units. Examples of it show the user nothing.
    """
    here = compat.calling_file()
    if not here or not _is_package(here):
        return False
    return not _holds(fun, set(), 12, lambda file: not _is_package(file), _packages())


def _is_package(file: str) -> bool:
    """Whether a file belongs to an installed package, or is JAX's, NumPy's or ours."""
    return not (is_own(file) and compat.is_users(file))


def _packages() -> tuple[str, ...]:
    """The modules of installed packages that are loaded."""
    files = ((name, getattr(module, "__file__", None)) for name, module in [*sys.modules.items()])
    return (*_LIBRARIES, *(n for n, file in files if "." not in n and file and _is_package(file)))


def _holds(x: Any, seen: set, depth: int, is_mine: Callable[[str], bool], libraries) -> bool:
    if id(x) in seen or not depth:
        return False
    if isinstance(x, list | tuple | set | frozenset | Mapping):
        seen.add(id(x))
        parts = x.values() if isinstance(x, Mapping) else x
        return any(_holds(part, seen, depth - 1, is_mine, libraries) for part in parts)
    traced = hasattr(x, "transforms") and hasattr(x, "f")  # a function wrapped by JAX for tracing
    if not callable(x) and not traced:
        return False
    seen.add(id(x))
    inner = lambda *parts: any(_holds(part, seen, depth - 1, is_mine, libraries) for part in parts)  # noqa: E731
    if isinstance(x, weakref.ref):
        return inner(x())
    if isinstance(x, functools.partial):
        return inner(x.func, x.args, x.keywords)
    if isinstance(x, type):
        return not _is_library(x, libraries)
    if traced:
        return inner(x.f, [part for _, args in x.transforms for part in args])
    if hasattr(x, "__self__") and hasattr(x, "__func__"):
        return inner(x.__func__, x.__self__) or not _is_library(type(x.__self__), libraries)
    if hasattr(x, "__wrapped__"):
        return inner(x.__wrapped__, *closed_over(x).values())
    if hasattr(x, "__code__"):
        return is_mine(x.__code__.co_filename) or inner(*closed_over(x).values())
    return not _is_library(type(x), libraries) or inner(
        *vars(x).values() if hasattr(x, "__dict__") else ()
    )


def _is_library(x, libraries) -> bool:
    module = getattr(x, "__module__", None) or ""
    return module.partition(".")[0] in libraries
