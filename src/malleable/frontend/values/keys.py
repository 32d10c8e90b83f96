"""What a dict or set with traced keys holds, and a list or deque whose length is traced."""

from collections import Counter, defaultdict, deque
from typing import Any

from malleable import compat
from malleable.arrays.box import Box
from malleable.errors import TransformError
from malleable.frontend.values.trees import Ragged

KEY: Any = type("Key", (), {"__repr__": lambda self: "keys known at run time"})()


class Table:
    """What a dict holds under KEY, its only one, once a traced key was put in; a set holds it.

    The keys, and what is under them, in order. A table keeps its lists, which a journal knows. See
    `malleable.frontend.operators.tables`.
    """

    def __init__(self, keys: list, values: list):
        self.keys, self.values = keys, values


KEYED = frozenset((dict, set, Counter, defaultdict))


def table_of(x) -> Table | None:
    """The table of a dict or set with traced keys; None for any other value."""
    if type(x) not in KEYED or len(x) != 1:
        return None
    only = next(iter(x))
    return x[KEY] if only is KEY else only if type(only) is Table else None


class Bounded(Box):
    """What a list holds whose length is traced, as its only item: all items, stacked, and how many.

    Never changed: see `malleable.frontend.counterparts.bounded` for what lists do with it.
    """

    __slots__ = ("arrays", "length", "tree")

    def __init__(self, tree: Ragged, length, arrays: list):
        self.tree, self.length, self.arrays = tree, length, arrays
        self._base = self._index = None
        self.scalar = self.immutable = False

    traced = True

    @property
    def _value(self):
        return self.value

    @property
    def value(self):
        raise TransformError(
            "a list whose length is known only at run time is used as if it were known",
            where=compat.where(),
            hint="index it, take its len(), go over it in a `for`, or make an array of it",
        )


def bounded(xs) -> Bounded | None:
    """The content of a list or deque whose length is traced; None for any other value."""
    held = type(xs) is list or type(xs) is deque
    return xs[0] if held and len(xs) == 1 and type(xs[0]) is Bounded else None
