"""Tuples and lists of traced values in order: the first items that differ decide."""

import operator
import types
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from malleable import compat
from malleable.arrays.box import Box, any_traced, unbox
from malleable.errors import TransformError
from malleable.frontend.common.session import session
from malleable.frontend.counterparts.scalars import python_scalar
from malleable.frontend.values.conditions import truth
from malleable.frontend.values.values import is_thing

MOST = 24  # objects that are compared by their own methods, each with each
SIGNS: dict[str, Callable] = {
    **{"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge},
    **{"==": operator.eq, "!=": operator.ne},
}


def are_rows(a, b) -> bool:
    """Whether two values are tuples, or two lists, with something traced in them."""
    kinds = (type(a), type(b))
    alike = any(all(issubclass(kind, one) for kind in kinds) for one in (tuple, list))
    return alike and any_traced((a, b))


def compared_sequences(sign: str, a: Sequence, b: Sequence, compare: Callable | None = None) -> Any:
    """`a < b` and its like. compare(sign, x, y): of two items.

    Two that are equal do not decide, though they may be of a type that has no order.
    """
    answer: Any = SIGNS[sign](len(a), len(b))
    open_: list = []
    for x, y in zip(a, b, strict=False):
        same = x is y or answered(compare, "==", x, y)
        if same is True:
            continue
        decides = sign == "!=" if sign in ("==", "!=") else answered(compare, sign, x, y)
        if same is False:
            answer = decides
            break
        open_.append((same, decides))
    for same, decides in reversed(open_):
        answer = jnp.where(same, answer, decides)
    return python_scalar(answer, bool) if isinstance(answer, jax.Array) else answer


def answered(compare: Callable | None, sign: str, x, y):
    """A bool, or a traced one."""
    if are_rows(x, y):
        return truth(compared_sequences(sign, x, y, compare))
    return truth(SIGNS[sign](x, y) if compare is None else compare(sign, x, y))


def ranked(keys: Sequence) -> Sequence:
    """For objects whose class says in Python which is less: how many are less than each."""
    if keys and all(type(k) is tuple and len(k) == len(keys[0]) for k in keys):
        every = list(zip(*keys, strict=True))
        ranks = [ranked(column) for column in every]
        return keys if all(map(operator.is_, every, ranks)) else list(zip(*ranks, strict=True))
    known = (k for k in keys if is_thing(k) or not issubclass(type(k), Box))
    methods = (getattr(k.__class__, "__lt__", 0) for k in known)
    if not any(isinstance(method, types.FunctionType) for method in methods):
        return keys
    if len(keys) + sum(len(k.options) for k in keys if is_thing(k)) > MOST:
        raise TransformError(
            f"{len(keys)} objects are compared by code of their class, each with each",
            where=compat.where(),
            hint="sort by numbers: `key=lambda x: x.size`",
        )
    ranks = []
    for k in keys:
        less = [truth(session().call(operator.lt, x, k)) for x in keys if x is not k]
        traced = any(isinstance(test, compat.Tracer) for test in less)
        ranks.append(Box(jnp.stack(less).sum(), True) if traced else sum(less))
    return ranks


def columns(keys: Sequence) -> list | None:
    """Rows of one shape as arrays, to be sorted by the first, then the next; None for others.

    What is not traced may be anything that Python sorts: its rank stands for it.
    """
    keys = ranked(keys)
    if all(isinstance(k, tuple | list) for k in keys):
        if len({(type(k), len(k)) for k in keys}) != 1:
            return None
        parts = [columns(column) for column in zip(*keys, strict=True)]
        found = [part for part in parts if part is not None]
        return [c for part in found for c in part] if len(found) == len(parts) else None
    if not any_traced(list(keys)):
        ranks = sorted(set(keys))
        return [np.asarray([ranks.index(k) for k in keys])]
    numbers = [unbox(k) for k in keys]
    if any(isinstance(x, str | tuple | list) or np.ndim(x) for x in numbers):
        return None
    return [jnp.stack([jnp.asarray(x) for x in numbers])]


def in_order(x: jax.Array, reverse: bool) -> jax.Array:
    """The numbers sorted; equal ones stay as they are, which a gradient tells."""
    return jnp.sort(x[::-1])[::-1] if reverse else jnp.sort(x)


def order(keys: Sequence, reverse: bool) -> jax.Array:
    """Which item comes first, second and so on; equal ones stay as they are."""
    arrays = columns(keys)
    if arrays is None:
        raise TransformError(
            "sorting compares traced values that are no single numbers, nor rows of as many",
            where=compat.where(),
            hint="sort by one number: `key=lambda item: item[0]`, or use np.argsort and np.lexsort",
        )
    found: Any = None
    for array in reversed(arrays):
        column = jnp.asarray(array)
        column = column if found is None else column[found]
        by_this = jnp.argsort(column, stable=True, descending=reverse)
        found = by_this if found is None else found[by_this]
    return jnp.arange(len(keys)) if found is None else found
