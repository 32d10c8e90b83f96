"""An array that a traced index picks among several: writes to it are writes to that one."""

from jax import numpy as jnp

from malleable.arrays.content import Box
from malleable.arrays.joined import Joined
from malleable.arrays.places import cast, to_jax


class Picked(Box):
    """The one of several arrays that a traced index chooses: reads and writes are that one's."""

    __slots__ = ("index", "items")

    def __init__(self, index, items: list):
        self.index, self.items = index, items
        self._base = self._index = None
        self.scalar = False

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
        return [(lambda x=x: x, self.index == k, True) for k, x in enumerate(self.items)]

    conditions = Joined.conditions

    def write(self, new):
        for k, item in enumerate(self.items):
            old = to_jax(item.value)
            item.write(jnp.where(self.index == k, cast(to_jax(new), old.dtype), old))
