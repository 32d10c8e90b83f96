"""Dicts asked for a traced key: a number, or a tuple with numbers and chosen strings in it.

And lists at a traced index, past the methods of their class.
"""

import collections
import functools
import itertools
from typing import Any

import numpy as np
from jax import lax
from jax import numpy as jnp

from malleable import compat
from malleable.arrays import journal
from malleable.arrays.box import Box, any_traced, is_traced, unbox
from malleable.arrays.content import refused_key
from malleable.arrays.journal import ABSENT
from malleable.arrays.specials import written_outside
from malleable.errors import TransformError
from malleable.frontend.common.session import session
from malleable.frontend.counterparts.builtins import if_else, pick
from malleable.frontend.counterparts.scalars import python_scalar
from malleable.frontend.values.conditions import if_, ifexp, not_, only
from malleable.frontend.values.raises import fail_where, raised, within
from malleable.frontend.values.values import Choice, entry, is_number, is_thing, lacks


def has_traced(index) -> bool:
    """Whether an index, a key or a tuple of them holds something traced."""
    if isinstance(index, tuple):
        return any(map(has_traced, index))
    if isinstance(index, slice):
        return has_traced((index.start, index.stop, index.step))
    return is_traced(index) or (isinstance(index, list) and any(map(has_traced, index)))


def hashed(key):
    """The key of a dict or set; TypeError, as in Python, where it or a part of it has no hash."""
    if isinstance(key, tuple):
        list(map(hashed, key))
    elif type(key).__hash__ is None or (isinstance(key, Box) and not key.scalar):
        hash(key)
    return key


def refuse_key(key) -> None:
    if has_traced(hashed(key)):
        raise refused_key()


def refuse_bound(x, index) -> None:
    if isinstance(index, slice) and has_traced(index):
        raise TransformError(
            f"a {type(x).__name__} is sliced with a traced bound, so its length would be traced",
            where=compat.where(),
            hint="keep the length: use np.roll, np.where with np.arange, or lax.dynamic_slice",
        )


def presence(fields, key):
    """Whether a key is there that was set on one path only: True, or traced."""
    value = dict.get(fields, key) if isinstance(fields, dict) else None
    if not lacks(value):
        return True
    hits = [x is not ABSENT for x in value.options]
    return python_scalar(entry(hits, value.index), bool)


def has_all(x, key: Choice) -> bool:
    """Whether this is a dict that has each key that the key may be, on all paths."""
    return type(x) is dict and all(k in x and presence(x, k) is True for k in key.options)


def get_uncertain(fields: dict, key, default=None):
    """fields.get(key, default) of a key that is there on one path only."""
    there = presence(fields, key)
    return ifexp(there, lambda: only(fields[key]), lambda: default, fields[key].where)


def hits(table, key) -> list:
    """For each key of a dict whether it is the traced one."""
    key = hashed(key)
    found = [agrees(key, k) for k in table]
    if found and all(hit is False for hit in found):
        raise refused_key()
    return found


def agrees(key, known):
    """Whether a key is one that a dict has: a bool, or traced."""
    if isinstance(key, tuple):
        if not (isinstance(known, tuple) and len(known) == len(key)):
            return False
        parts = [agrees(part, k) for part, k in zip(key, known, strict=True)]
        if any(part is False for part in parts):
            return False
        parts = [part for part in parts if part is not True]
        return functools.reduce(jnp.logical_and, parts) if parts else True
    if type(key) is Choice and key.number is None:
        return entry([bool(option == known) for option in key.options], key.index)
    if is_traced(known):
        if is_traced(key):
            return is_number(key) and is_number(known) and unbox(key) == unbox(known)
        return agrees(known, key)
    if not is_traced(key):
        return bool(key == known)
    at = unbox(key) if is_number(key) else None
    plain = isinstance(known, int | float | tuple | str | type(None))
    if at is None or at.ndim or at.dtype.kind not in "iubf" or not plain:
        raise refused_key()
    return isinstance(known, int | float) and at == known


def put_there(table: dict, key, value) -> None:
    """table[key] = value, of a key that is there: a compiled program adds none to a dict."""
    found = hits(table, key)
    if not found:
        raise refused_key()
    where = "a compiled program adds no key to a dict"
    fail_where(~jnp.any(every_hit(found)), KeyError(f"{key!r}: {where}"))
    journal.touch_dict(table)
    for hit, (known, old) in zip(found, list(table.items()), strict=True):
        if hit is not False:
            table[known] = if_else(jnp.asarray(hit), value, old)


def every_hit(found: list):
    return jnp.stack([jnp.asarray(hit) for hit in found])


def key_id(key):
    """What tells a key from others in one trace."""
    if isinstance(key, tuple):
        return tuple(map(key_id, key))
    return id(key if type(key) is Choice else unbox(key))


def is_there(table: dict, key) -> bool:
    """Whether a key was looked up before: it is there, or there was a KeyError."""
    return (id(table), key_id(key)) in session().looked


def look_up(table: dict, key) -> Any:
    """table[key]; where the key is not there, a KeyError: as any `raise` under a traced test."""
    found = hits(table, key)
    raise_unless(bool(found) and jnp.any(every_hit(found)), KeyError(repr(key)))
    if not session().attempts:
        session().looked.add((id(table), key_id(key)))
    return pick(list(table.values()), Box(jnp.argmax(every_hit(found)), True))


def raise_unless(there, error: Exception) -> None:
    """Where something is not there, its error: as any `raise` under a traced test."""
    if_(not_(there), lambda: raise_here(error), None, None)


def raise_here(error: Exception):
    """Raise as the user's code would, by a `raise` of its own."""
    raise raised(error)


def get(table: dict, key, default=None) -> Any:
    """table.get(key, default)"""
    found = hits(table, key)
    none = ~jnp.any(every_hit(found)) if found else jnp.asarray(True)
    return pick([*table.values(), default], Box(jnp.argmax(every_hit([*found, none])), True))


def contains(table, key) -> Box:
    """key in table"""
    found = hits(table, key)
    return Box(jnp.any(every_hit(found)) if found else jnp.asarray(False), True)


def pick_index(i, length: int) -> Any:
    """A traced index into something of that length, wrapped as Python does and clipped."""
    at = unbox(i)
    at = jnp.where(at < 0, at + length, at)
    return Box(jnp.clip(at, 0, length - 1), True)


def take_out(xs: list, at) -> Any:
    """xs.pop(at) at a traced index."""
    within(xs, at)
    journal.touch_list(xs)  # once more: this is done only where nothing was raised
    out, at = pick(xs, at), unbox(pick_index(at, len(xs)))
    rest = [if_else(k < at, *pair) for k, pair in enumerate(itertools.pairwise(xs))]
    list.__setitem__(xs, slice(None), rest)
    return out


def insert(xs: list, at, value) -> None:
    """xs.insert(at, value) at a traced index."""
    at, n = pick_index(at, len(xs) + 1), len(xs)
    here, after = [*xs, *xs[-1:]], [*xs[:1], *xs]  # each item, if it stays, and if it moves
    kept = [if_else(unbox(at > k), here[k], after[k]) for k in range(n + 1 if n else 0)]
    xs[:] = [if_else(unbox(at == k), value, old) for k, old in enumerate(kept)] or [value]


def put_at(xs, at, value) -> None:
    """xs[at] = value at a traced index of a list or a deque, by no method of a subclass."""
    within(xs, at)
    (journal.touch_list if isinstance(xs, list) else journal.touch_object)(xs)
    replace_at(xs, unbox(pick_index(at, len(xs))), value)


def replace_at(xs, at, value) -> None:
    """The same at a place that is there, of what the journal knows already."""
    kind = list if isinstance(xs, list) else collections.deque
    for k, old in enumerate(list(xs)):
        kind.__setitem__(xs, k, if_else(lax.eq(at, np.asarray(k, at.dtype)), value, old))


def at_traced(xs, name: str, at, *value) -> Any:
    """`super().__getitem__(at)` and its like in a subclass of list or tuple, at a traced index."""
    if name == "__setitem__":
        return put_at(xs, at, *value)
    within(xs, at)
    return take_out(xs, at) if name == "__delitem__" else pick(xs, at)


def is_one_of_keys(x, key) -> bool:
    """Whether x is asked for one of several things: also for None or a number, if it has keys."""
    keyed = type(key) is Choice and isinstance(x, dict | set | frozenset)
    return is_thing(key) or (keyed and any(one is None for one in key.options))


def refuse_outside(x, value, traced_index: bool) -> None:
    """Refuse to write what is traced into an array of NumPy's from outside."""
    if not (traced_index or any_traced(value)):
        return
    kept = x if x.base is None else x.base  # a field of a structured array is a view of it
    if x.dtype == object or x.dtype.names or getattr(kept, "dtype", x.dtype).names:
        kind = "objects" if x.dtype == object else "records"
        raise TransformError(
            f"a traced value is written into an array of {kind}, which JAX has not",
            where=compat.where(),
            hint="keep an array for each field, in a dict or a class",
        )
    raise written_outside()
