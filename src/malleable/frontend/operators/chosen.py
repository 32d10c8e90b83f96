"""What a traced index or a choice picks among lists, dicts and objects is a place.

A read gives what the chosen one holds, a write reaches that one: `places[k].n += 1` sets each `n`
to itself or one more. What may run code of the user's runs by case, as an `if` would.
"""

from typing import Any

from jax import numpy as jnp

from malleable.arrays import journal
from malleable.arrays.box import is_traced
from malleable.frontend.counterparts.builtins import if_else
from malleable.frontend.operators.lookups import has_traced
from malleable.frontend.values.raises import caught
from malleable.frontend.values.values import Choice, bounded, lacks, snapshot, walked

CONTAINERS = (list, tuple, dict)


def is_place(x) -> bool:
    """Whether this is one of several lists, dicts or objects: not one number, perhaps None."""
    return type(x) is Choice and x.number is None


def holds(x: Choice) -> bool:
    """Whether each option is a list, a tuple or a dict, whose operators are Python's own."""
    return all(type(o) in CONTAINERS and bounded(o) is None for o in x.options)


def is_plain_attribute(o, name: str) -> bool:
    """Whether an attribute is an entry of the object's dict on all paths, and nothing else."""
    kind, fields = type(o), journal.fields(o)
    own = getattr(kind, "__setattr__", None) is object.__setattr__ and name in fields
    return own and not (lacks(fields[name]) or hasattr(journal.member(kind, name), "__set__"))


def set_attribute(x: Choice, name: str, value) -> None:
    for k, o in enumerate(x.options):
        journal.touch_attr(o, name)
        vars(o)[name] = if_else(jnp.asarray(x.index) == k, value, vars(o)[name])


def has_item(o, i) -> bool:
    """Whether a list, tuple or dict has o[i] on all paths."""
    if type(o) is dict:
        return i in o and not lacks(o[i])
    return type(i) is int and -len(o) <= i < len(o)


def reads_plainly(x: Choice, i) -> bool:
    """Whether x[i] is no `raise` of one option, for which somebody may ask."""
    if not holds(x):
        return False
    known = not has_traced(i) and all(has_item(o, i) for o in x.options)
    return known or not (dict in map(type, x.options) or caught(IndexError()))


def is_plain_item(x: Choice, i) -> bool:
    """Whether x[i] = value only replaces what is there, in each of the options."""
    held = not is_traced(i) and holds(x)
    return held and all(type(o) is not tuple and has_item(o, i) for o in x.options)


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
