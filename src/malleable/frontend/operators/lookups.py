"""Dicts with whole numbers as keys, asked for a traced one."""

from typing import Any

from jax import numpy as jnp

from malleable import compat
from malleable.arrays.box import Box, is_traced, unbox
from malleable.arrays.content import refused_key
from malleable.frontend.counterparts.builtins import pick
from malleable.frontend.values.conditions import if_
from malleable.frontend.values.values import is_number


def hits(table, key) -> list:
    """For each key of a dict whether it is the traced one."""
    if not (is_traced(key) and is_number(key)):
        raise refused_key()
    at = unbox(key)
    if at.ndim or at.dtype.kind not in "iub" or not all(isinstance(k, int) for k in table):
        raise refused_key()
    return [at == k for k in table]


def look_up(table: dict, key) -> Any:
    """table[key]; where the key is not there, a KeyError: as any `raise` under a traced test."""
    found, error = hits(table, key), KeyError(repr(key))
    if not found:
        raise_here(error)
    present = jnp.stack(found)
    if_(Box(~jnp.any(present), True), lambda: raise_here(error), None, None)
    return pick(list(table.values()), Box(jnp.argmax(present), True))


def raise_here(error: Exception):
    """Raise as the user's code would, by a `raise` of its own."""
    error.__malleable_raised__ = True  # type: ignore[attr-defined]
    error.__malleable_where__ = compat.where()  # type: ignore[attr-defined]
    raise error


def get(table: dict, key, default=None) -> Any:
    """table.get(key, default)"""
    found = hits(table, key)
    none = ~jnp.any(jnp.stack(found)) if found else jnp.asarray(True)
    return pick([*table.values(), default], Box(jnp.argmax(jnp.stack([*found, none])), True))


def contains(table, key) -> Box:
    """key in table"""
    found = hits(table, key)
    return Box(jnp.any(jnp.stack(found)) if found else jnp.asarray(False), True)
