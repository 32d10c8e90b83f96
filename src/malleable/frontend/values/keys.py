"""What a dict or set with traced keys holds, and a list or deque whose length is traced."""

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable
from typing import Any

from malleable import compat
from malleable.arrays import journal
from malleable.arrays.box import Box
from malleable.arrays.journal import Place
from malleable.errors import TransformError
from malleable.frontend.common.session import session
from malleable.frontend.values.trees import ORDER, Ragged, number_leaf

KEY: Any = type("Key", (), {"__repr__": lambda self: "keys known at run time"})()


class Table:
    """What a dict holds under KEY, its only one, once a traced key was put in; a set holds it.

    The keys, and what is under them, in order. A table keeps its lists, which a journal knows. See
    `malleable.frontend.operators.tables`.
    """

    def __init__(self, keys: list, values: list):
        self.keys, self.values = keys, values


KEYED = frozenset((dict, set, Counter, OrderedDict, defaultdict))


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


def tabled(x) -> Table:
    """The table of a dict or set, which from now on, and before the blocks around us, holds one.

    To them it means what it meant, so they know no change, but the lists as they were then.
    """
    held = contents_of(x)
    table, key = Table([*held], [*held.values()]), Place(kind_of_place(x), x).key
    for book in reversed(journal.all_open()):
        if book.places.pop(key, None) is not None:
            held = contents_of(book.before.pop(key))
        for xs, before in ((table.keys, held), (table.values, held.values())):
            place = Place("list", xs)
            book.places[place.key], book.before[place.key] = place, list(before)
    session().keyed.append((x, held, compat.where()))
    Place(kind_of_place(x), x).write({table} if type(x) is set else {KEY: table})
    return table


def kind_of_place(x) -> str:
    return "set" if type(x) is set else "dict"


def contents_of(x) -> dict:
    return dict.fromkeys(x) if type(x) is set else dict(x)


class OtherMembers(TransformError):
    """A set has other members after one path than after the other, or a dict a table after one."""

    def __init__(self, x: dict | set, trees: Iterable, where: str):
        self.members, self.options = x, trees
        kind = type(x).__name__
        what = f"a {kind} has other members after one branch of this `if` than after the other"
        hint = "keep a bool for each that it may have: seen[k] = True"
        super().__init__(what, where=where, hint=hint)

    def settled(self) -> bool:
        """Whether its members are numbers, or tuples of them: then it has a table from now on."""
        numbers = all(is_of_numbers(x) for o in self.options for x in getattr(o, "value", ()))
        return numbers and (table_of(self.members) or tabled(self.members)) is not None


def is_of_numbers(x) -> bool:
    return all(map(is_of_numbers, x)) if type(x) is tuple else number_leaf(x) is not None


def is_unordered(d: dict) -> bool:
    """Whether the order of its keys hangs on a traced value."""
    thing, key, _ = session().uncertain.get(id(d), (None, None, ""))
    return thing is d and key is ORDER
