"""An array that may be another one: after `if c: x = y`, who writes into x writes into y, if c."""

import weakref

from jax import numpy as jnp

from malleable.arrays import journal
from malleable.arrays.content import Box


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
                now = jnp.asarray(box.value, self._value.dtype)
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
                old = jnp.asarray(box.value)
                now = jnp.asarray(self._value, old.dtype)
                yes, no = (now, old) if holds else (old, now)
                box.write(jnp.where(condition, yes, no))

    def conditions(self) -> list:
        """(box, condition) for each box that it may be, as far as somebody knows that."""
        boxes = ((ref(), condition, holds) for ref, condition, holds in self.links)
        return [(b, c if holds else jnp.logical_not(c)) for b, c, holds in boxes if b is not None]

    def condition_of(self, box: Box):
        """The condition under which this is that box: traced, or False."""
        for ref, condition, holds in self.links:
            if ref() is box:
                return condition if holds else jnp.logical_not(condition)
        return False


def linked(box: Box, one, other, condition, more=()) -> Box:
    """`box`, which holds the value of `one` where the condition holds, and of `other` elsewhere.

    more: (box, condition) of others that it may be.
    """
    links = [
        (reference(origin), condition, holds)
        for origin, holds in ((one, True), (other, False))
        if isinstance(origin, Box) and not origin.scalar
    ]
    links += [(reference(origin), test, True) for origin, test in more]
    return Joined(box._value, links) if links else box


def reference(box: Box):
    """As long as somebody else knows the box; what shows another array stands for that."""
    shows = box._base is not None or isinstance(box, Joined) or hasattr(type(box), "items")
    return (lambda: box) if shows else weakref.ref(box)
