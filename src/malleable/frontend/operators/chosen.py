"""What a traced index or a choice picks among lists, dicts and objects is a place.

A read gives what the chosen one holds, a write reaches that one: `places[k].n += 1` sets each `n`
to itself or one more. What may run code of the user's runs by case, as an `if` would.
"""

from typing import Any

from jax import numpy as jnp

from malleable.arrays import journal
from malleable.arrays.box import is_traced
from malleable.frontend.counterparts.builtins import if_else
from malleable.frontend.values.values import Choice, bounded, snapshot, walked

CONTAINERS = (list, tuple, dict)


def is_place(x) -> bool:
    """Whether this is one of several lists, dicts or objects: not one number, perhaps None."""
    return type(x) is Choice and x.number is None


def holds(x: Choice) -> bool:
    """Whether each option is a list, a tuple or a dict, whose operators are Python's own."""
    return all(type(o) in CONTAINERS and bounded(o) is None for o in x.options)


def is_plain_attribute(o, name: str) -> bool:
    """Whether an attribute is an entry of the object's dict, and nothing else."""
    kind = type(o)
    own = getattr(kind, "__setattr__", None) is object.__setattr__
    return own and name in journal.fields(o) and not hasattr(journal.member(kind, name), "__set__")


def set_attribute(x: Choice, name: str, value) -> None:
    for k, o in enumerate(x.options):
        journal.touch_attr(o, name)
        vars(o)[name] = if_else(jnp.asarray(x.index) == k, value, vars(o)[name])


def is_plain_item(x: Choice, i) -> bool:
    """Whether x[i] = value only replaces what is there, in each of the options."""
    if is_traced(i) or isinstance(i, slice) or not holds(x):
        return False
    for o in x.options:
        there = (
            i in o
            if type(o) is dict
            else type(o) is list and type(i) is int and -len(o) <= i < len(o)
        )
        if not there:
            return False
    return True


def set_item(x: Choice, i, value) -> None:
    for k, o in enumerate(x.options):
        (journal.touch_dict if type(o) is dict else journal.touch_list)(o)
        o[i] = if_else(jnp.asarray(x.index) == k, value, o[i])


def settled(x) -> Any:
    """A list, tuple or dict with what the chosen one holds; anything else as it is."""
    return snapshot(x) if _is_whole(x) else x


def gone_over(x) -> Any:
    """What to go over in its place, which sees what is written to it meanwhile."""
    return walked(x) if _is_whole(x) else x


def _is_whole(x) -> bool:
    return is_place(x) and (holds(x) or all(type(o) is list for o in x.options))
