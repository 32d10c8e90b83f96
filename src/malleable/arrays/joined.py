"""An array that may be another one: after `if c: x = y`, who writes into x writes into y, if c."""

import weakref

from jax import numpy as jnp

from malleable.arrays import journal
from malleable.arrays.content import Box
from malleable.arrays.places import to_jax


def roots(box: Box) -> list:
    """The arrays whose content a box shows: several, if it shows one of these `items`."""
    root = box.root
    return [r for x in root.items for r in roots(x)] if hasattr(type(root), "items") else [root]


class Joined(Box):
    """A value of its own, which hands on what is written to it.

    links: (reference to a box, condition, whether the condition is to hold).
    """

    __slots__ = ("links", "telling")

    def __init__(self, value, links: list):
        super().__init__(value, False)
        self.links, self.telling = links, False
        me = weakref.ref(self)
        for ref, _, _ in links:
            for root in roots(ref()):
                journal.follow(root, lambda changed: me() is not None and me().heed(changed))

    def heed(self, changed: Box) -> None:
        """An array that this may be, or a part of which, has another content."""
        if self.telling:
            return
        for ref, condition, holds in self.links:
            box = ref()
            if box is not None and any(root is changed for root in roots(box)):
                now = jnp.asarray(to_jax(box.value), self._value.dtype)
                yes, no = (now, self._value) if holds else (self._value, now)
                Box.write(self, jnp.where(condition, yes, no))

    def write(self, new):
        super().write(new)
        self.telling = True
        try:
            self.hand_on()
        finally:
            self.telling = False

    def hand_on(self) -> None:
        for ref, condition, holds in self.links:
            box = ref()
            if box is not None:
                old = to_jax(box.value)
                now = jnp.asarray(self._value, old.dtype)
                yes, no = (now, old) if holds else (old, now)
                box.write(jnp.where(condition, yes, no))

    def conditions(self) -> list:
        """(box, condition) for each box that it may be, as far as somebody knows that."""
        found: dict = {}
        for ref, condition, holds in self.links:
            test, box = condition if holds else jnp.logical_not(condition), ref()
            more = box.conditions() if hasattr(type(box), "links") else []
            for x, inner in [(box, None), *more] if box is not None else []:
                here = test if inner is None else jnp.logical_and(test, inner)
                found[id(x)] = x, jnp.logical_or(found[id(x)][1], here) if id(x) in found else here
        return [*found.values()]


def linked(box: Box, others: list) -> Box:
    """`box`, which may be each of the others: (array, condition, whether it is to hold)."""
    links = [(reference(x), condition, holds) for x, condition, holds in others if not x.scalar]
    return Joined(box._value, links) if links else box


def reference(box: Box):
    """As long as somebody else knows the box; what shows another array stands for that."""
    shows = box._base is not None or isinstance(box, Joined) or hasattr(type(box), "items")
    return (lambda: box) if shows else weakref.ref(box)
