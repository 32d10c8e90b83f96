"""Symbolic sizes: for functions that are traced once for many.

Stands in front of how sizes compare, hash and are tested, to hear what was decided about them. A
class of ours would not do: JAX makes sizes out of sizes of its own class, in its rules for shapes.
"""

import contextlib
import functools
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.export
import numpy as np
from jax._src.export import shape_poly

from malleable.compat.building import JAX_FOLDER
from malleable.compat.hooks import Hook, caller

_HERE = str(pathlib.Path(__file__).parent.parent)
SymbolicSize: Any = shape_poly._DimExpr


def symbols(names: Sequence[str], least: int) -> dict[str, Any]:
    """{name: a size that may be any number from `least` on}, of a scope of their own."""
    if not names:
        return {}
    limits = [f"{name} >= {least}" for name in names]
    return dict(
        zip(names, jax.export.symbolic_shape(", ".join(names), constraints=limits), strict=True)
    )


@contextlib.contextmanager
def told_apart(sizes: Iterable) -> Iterator[set]:
    """Pairs of sizes, as text, that JAX or the user took as different while tracing inside.

    sizes: the symbols of this trace; those of others are met in JAX's caches only.
    A symbolic size is never equal to a number for JAX: whoever runs the program has to look.
    """
    scopes = [size.scope for size in sizes]
    with _HOOK.held((scopes, pairs := set())):
        yield pairs


def _watch_equality(equal, self, other):
    same = equal(self, other)
    scopes, pairs = _HOOK.opened()[-1]
    if same is False and self.scope in scopes and _comparable(self, other):
        cached = "_create" in caller().f_code.co_names  # a cache of types looks around
        pairs.update(() if cached else [(str(self), str(other))])
    return same


def _comparable(size, other) -> bool:
    if isinstance(other, SymbolicSize):
        return size.scope is other.scope
    return isinstance(other, int | float | np.number)


def _watch_hash(make, self):
    """The user may not look a symbolic size up in a set or a dictionary: nothing is found there."""
    frame = caller()
    if frame.f_code.co_filename == "<string>" and frame.f_back:  # made by dataclasses
        frame = frame.f_back
    if not frame.f_code.co_filename.startswith((JAX_FOLDER, _HERE, functools.__file__)):
        raise TypeError("a size is looked up in a set or a dictionary")
    return make(self)


_HOOK = Hook(
    (SymbolicSize, "__eq__", _watch_equality),
    (SymbolicSize, "__hash__", _watch_hash),
    (SymbolicSize, "__bool__", lambda _, self: self != 0),
)
