"""An array that a traced index picks among several: writes to it are writes to that one."""

import contextlib
import functools
from collections.abc import Callable

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from malleable import compat
from malleable.arrays.content import Box
from malleable.arrays.joined import each_once, linked, reached
from malleable.arrays.places import cast, to_jax
from malleable.errors import TransformError
from malleable.frontend.common.session import session
from malleable.frontend.values.trees import is_immutable, note_types, number_leaf


class Picked(Box):
    """The one of several arrays that a traced index chooses: reads and writes are that one's."""

    __slots__ = ("index", "items", "known", "newest")
    born = 0  # its items may all be older

    def __init__(self, index, items: list):
        self.index, self.items, self.known = index, items, None
        self.newest = compat.is_inner(index)  # nothing that says who is whom was made further in
        self._base = self._index = None
        self.scalar = False
        kept = [k for k, x in enumerate(items) if x.immutable is True]
        self.immutable = len(kept) == len(items)
        if kept and not self.immutable:
            self.immutable = jnp.isin(index, jnp.asarray(kept))

    @property
    def _value(self):  # anew each time: the arrays may have changed
        return jnp.stack([to_jax(x.value) for x in self.items])[self.index]

    traced = True

    @property
    def shape(self):
        return self.items[0].shape

    @property
    def dtype(self):
        return jnp.result_type(*(x.dtype for x in self.items))

    @property
    def links(self) -> list:
        """As those of a `Joined`."""
        return [(lambda x=x: x, self.index == k) for k, x in enumerate(self.items)]

    def conditions(self) -> list:
        """As those of a `Joined`; computed once, where the index was made, if that is known."""
        if self.known is not None:
            return self.known
        with compat.where_made(self.index) if self.newest else contextlib.nullcontext():
            found = each_once(x for ref, test in self.links for x in reached(ref(), test))
        self.known = found if self.newest else None
        return found

    def write(self, new):
        for k, item in enumerate(self.items):
            old = to_jax(item.value)
            item.write(jnp.where(self.index == k, cast(to_jax(new), old.dtype), old))


def entry(table: list, index) -> jax.Array:
    """table[index], of numbers or booleans that are known."""
    kind = bool if isinstance(table[0], bool) else np.int32
    known = np.asarray(table, kind)
    return lax.dynamic_index_in_dim(known, index, keepdims=False, allow_negative_indices=False)


def one_of(content, values: list, test: Callable) -> Box:
    """The one of several numbers and arrays of a shape for whose index test(k) holds: `content`.

    It is linked to each array.
    """
    leaves = [leaf for leaf in map(number_leaf, values) if leaf is not None]
    note_types(values, content.dtype)
    new = Box(content, all(leaf.scalar for leaf in leaves))
    apart = [k for k, leaf in enumerate(leaves) if is_immutable(leaf)]
    if len(apart) == len(values):
        new.immutable = not new.scalar
        return new
    new.immutable = functools.reduce(jnp.logical_or, map(test, apart), False)
    return linked(new, [(x, test(k), True) for k, x in enumerate(values) if isinstance(x, Box)])


def refuse_mixed(numbers: list, known: bool = False) -> None:
    """Refuse a choice between a number of Python's and an array where both are to stay so.

    known: only a number that is known counts as Python's.
    """
    if session().options.exact and len({_is_pythons(x, known) for x in numbers}) > 1:
        raise TransformError(
            "a number of Python's or an array: which it is depends on a traced value",
            where=compat.where(),
            hint="give it one type on both paths",
        )


def _is_pythons(x, known: bool) -> bool:
    """Whether a number is one of Python's, and no array of JAX or NumPy."""
    content = x.value if isinstance(x, Box) else x
    if isinstance(content, compat.Tracer):
        return content.aval.weak_type and not known
    return isinstance(content, int | float | complex) and not isinstance(content, np.generic)
