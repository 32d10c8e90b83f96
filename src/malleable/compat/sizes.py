"""Symbolic sizes."""

import contextlib
import contextvars
import functools
import pathlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.core
import jax.export
import numpy as np

from malleable.compat.building import JAX_FOLDER

_HERE = str(pathlib.Path(__file__).parent)
SymbolicSize: Any = type(jax.export.symbolic_shape("n")[0])
_watched: contextvars.ContextVar[set | None] = contextvars.ContextVar("watched", default=None)


def symbols(names: Sequence[str], least: int) -> dict[str, Any]:
    """{name: a size that may be any number from `least` on}, of a scope of their own."""
    if not names:
        return {}
    limits = [f"{name} >= {least}" for name in names]
    return dict(
        zip(names, jax.export.symbolic_shape(", ".join(names), constraints=limits), strict=True)
    )


@contextlib.contextmanager
def told_apart() -> Iterator[set]:
    """Pairs of sizes, as text, that JAX or the user took as different while tracing inside.

    A symbolic size is never equal to a number for JAX: whoever runs the program has to look.
    """
    token = _watched.set(pairs := set())
    try:
        yield pairs
    finally:
        _watched.reset(token)


def _watch_equality(equal):
    def wrapped(self, other):
        same = equal(self, other)
        if same is False and (pairs := _watched.get()) is not None and _comparable(self, other):
            cached = "_create" in sys._getframe(1).f_code.co_names  # a cache of types looks around
            pairs.update(() if cached else [(str(self), str(other))])
        return same

    return wrapped


def _comparable(size, other) -> bool:
    """Sizes of another trace are met in JAX's caches only."""
    if isinstance(other, SymbolicSize):
        return size.scope is other.scope
    return isinstance(other, int | float | np.number)


def _watch_hash(make):
    """The user may not look a symbolic size up in a set or a dictionary: nothing is found there."""

    def wrapped(self):
        if _watched.get() is not None:
            frame = sys._getframe(1)
            if frame.f_code.co_filename == "<string>" and frame.f_back:  # made by dataclasses
                frame = frame.f_back
            if not frame.f_code.co_filename.startswith((JAX_FOLDER, _HERE, functools.__file__)):
                raise TypeError("a size is looked up in a set or a dictionary")
        return make(self)

    return wrapped


SymbolicSize.__eq__ = _watch_equality(SymbolicSize.__eq__)
SymbolicSize.__hash__ = _watch_hash(SymbolicSize.__hash__)
SymbolicSize.__bool__ = lambda self: self != 0
