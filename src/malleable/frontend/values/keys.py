"""Dicts and sets with traced keys: see `malleable.frontend.operators.tables`."""

from collections import Counter, defaultdict
from typing import Any

KEY: Any = type("Key", (), {"__repr__": lambda self: "keys known at run time"})()


class Table:
    """What a dict holds under KEY, its only one, once a traced key was put in; a set holds it.

    The keys, and what is under them, in order. A table keeps its lists, which a journal knows.
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
