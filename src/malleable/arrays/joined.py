"""An array that may be another one: after `if c: x = y`, who writes into x writes into y, if c."""

import contextlib
import contextvars
import weakref
from collections.abc import Iterable, Iterator

from jax import numpy as jnp

from malleable import compat
from malleable.arrays import journal
from malleable.arrays.content import Box
from malleable.arrays.places import to_jax
from malleable.errors import TransformError

MOST = 1024  # selects that one write may need: among n arrays that may be one another they are 2**n

_selects: contextvars.ContextVar[list | None] = contextvars.ContextVar("selects", default=None)


def roots(box: Box) -> list:
    """The arrays whose content a box shows: several, if it shows one of these `items`."""
    root = box.root
    return [r for x in root.items for r in roots(x)] if hasattr(type(root), "items") else [root]


class Joined(Box):
    """A value of its own, which hands on what is written to it.

    links: (reference to a box, condition, whether the condition is to hold); shared: the boxes
    that another of these may be, too: what is written to one reaches the other through them.
    """

    __slots__ = ("links", "shared", "telling")

    def __init__(self, value, links: list):
        super().__init__(value, False)
        self.links, self.telling, self.shared = links, False, []
        me = Follower(self)
        for ref, _ in links:
            box = ref()
            for other in journal.followers_of(box):
                found = other.joined() if isinstance(other, Follower) else None
                if found is not None and any(ref() is box for ref, _ in found.links):
                    self.shared, found.shared = [*self.shared, box], [*found.shared, box]
            for root in roots(box):
                journal.follow(root, me)

    def heed(self, changed: Box) -> None:
        """An array that this may be, or a part of which, has another content."""
        if self.telling or self._value is None:  # a copy that is outdated
            return
        for ref, condition in self.links:
            box = ref()
            if box is not None and any(root is changed for root in roots(box)):
                with counting_selects():
                    count_select()
                    now = jnp.asarray(to_jax(box.value), self._value.dtype)
                    Box.write(self, jnp.where(condition, now, self._value))

    def write(self, new):
        with counting_selects():
            super().write(new)
            self.telling = True
            try:
                self.hand_on()
            finally:
                self.telling = False

    def hand_on(self) -> None:
        for ref, condition in self.links:
            box = ref()
            if box is not None:
                count_select()
                old = to_jax(box.value)
                box.write(jnp.where(condition, jnp.asarray(self._value, old.dtype), old))

    def conditions(self) -> list:
        """(box, condition) for each box that it may be, as far as somebody knows that."""
        known = ((box, test) for ref, test in self.links if (box := ref()) is not None)
        rows = ([x] if isinstance(x[0], Joined) else reached(*x) for x in known)  # see `linked`
        return each_once(x for row in rows for x in row)


def reached(box: Box, test) -> Iterator:
    """(box, test), and the same of each that it may be in its turn."""
    further = box.conditions() if hasattr(type(box), "links") else ()
    yield box, test
    for x, inner in further:
        yield x, jnp.logical_and(test, inner)


def each_once(tests: Iterable) -> list:
    """(box, condition) for each box, where any of its tests holds."""
    found: dict = {}
    for box, test in tests:
        before = found.get(id(box))
        found[id(box)] = box, test if before is None else jnp.logical_or(before[1], test)
    return [*found.values()]


@contextlib.contextmanager
def counting_selects():
    """One write, and all that follows from it."""
    if _selects.get() is not None:
        yield
        return
    with compat.setting(_selects, [0]):
        yield


def count_select() -> None:
    count = _selects.get() or [0]
    count[0] += 1
    if count[0] > MOST:
        raise TransformError(
            "too many arrays may be the one that is written to here",
            where=compat.where(),
            hint="give each name an array of its own: b = a.copy()",
        )


class Follower:
    """Tells an array, as long as there is one, of what changes in another."""

    def __init__(self, joined: Joined):
        self.joined = weakref.ref(joined)

    def __call__(self, changed: Box) -> None:
        joined = self.joined()
        if joined is not None:
            joined.heed(changed)


def linked(box: Box, others: list) -> Box:
    """`box`, which may be each of the others: (array, condition, whether it is to hold).

    What these may be in their turn is linked to as well, for they go when nobody else knows them.
    """
    tests = [(x, c if holds else jnp.logical_not(c)) for x, c, holds in others if not x.scalar]
    found = each_once(
        pair
        for x, test in tests
        for pair in (reached(x, test) if isinstance(x, Joined) else [(x, test)])
    )
    if not found:
        return box
    joined = Joined(box._value, [(reference(x), test) for x, test in found])
    joined.immutable = box.immutable
    return joined


def added_to(box: Box, value, changed: Box, alone: bool) -> Box:
    """What `x += value` leaves where x is a number or an array of JAX on some paths.

    changed: what it leaves where x is an array of NumPy, which then is x itself. A number and an
    array give an array. alone: x has no other name, so that nobody sees what becomes of it.
    """
    new = Box(changed.value, False)
    array = isinstance(value, Box) and not value.scalar
    new.immutable = value.immutable if array else box.immutable
    old = to_jax(box.value)
    box.write(jnp.where(box.immutable, old, to_jax(new.value)))
    if not alone or box._base is not None:  # a view is known to what it shows a part of
        return linked(new, [(box, box.immutable, False)])
    others = box.conditions() if hasattr(type(box), "links") else []
    return linked(new, [(x, test, True) for x, test in others])


def reference(box: Box):
    """As long as somebody else knows the box; what shows another array stands for that."""
    shows = box._base is not None or hasattr(type(box), "items")
    return (lambda: box) if shows else weakref.ref(box)
