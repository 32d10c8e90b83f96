"""What a traced program depends on, and where its arguments lie."""

import contextvars
import types
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from malleable import compat
from malleable.execution.common.host_values import is_raw, own
from malleable.execution.common.leaves import DICTS, flat_leaves, flatten

ARRAY = compat.HostArray
ARRAYS = {ARRAY}
NUMBERS = frozenset([int, float, complex])
FIXED = frozenset([bool, str, type(None), types.ModuleType])  # part of the key as they are
HOLDS = DICTS | {list, tuple}  # where dicts may be
PLAIN = NUMBERS | FIXED  # without a dtype and dimensions
TOLD = PLAIN | {np.ndarray, *np.sctypeDict.values(), jnp.bfloat16.dtype.type}  # not of JAX
SHORT = 16  # a list that may be one of layers, each with a use of its own
CONCRETE = frozenset([ARRAY, np.ndarray, int, float, complex])


compiling: contextvars.ContextVar = contextvars.ContextVar("compiling", default=False)
"""Whether the residual program is being traced, and Python must not act."""


def exactly(value):
    """What a value that is compiled in is in a key: -0.0 == 0.0."""
    return repr(value) if type(value) in (float, complex) else value


def signature(leaf, may_be_raw=False) -> tuple:
    """What of a leaf a traced program depends on; a raw array is as one of JAX."""
    kind = type(leaf)
    if kind is ARRAY:
        return (leaf.shape, leaf.dtype, leaf.weak_type)
    if kind is np.ndarray:
        weak = False if may_be_raw and is_raw(leaf) else None
        return (leaf.shape, leaf.dtype, weak)
    if kind is int or kind is float or kind is complex:
        return (kind,)
    if isinstance(leaf, compat.Tracer | jax.Array):
        aval: Any = leaf.aval
        return (leaf.shape, leaf.dtype, aval.weak_type)
    if isinstance(leaf, np.generic):
        return ((), leaf.dtype)
    if kind is types.FunctionType and not (leaf.__closure__ or leaf.__defaults__):
        return (kind, leaf.__code__, id(leaf.__globals__))  # a lambda, made again for each call
    try:
        hash(leaf)
    except Exception:  # whatever its __hash__ raises: most often a TypeError
        return (kind, id(leaf))
    return (kind, leaf)


def kinds(args, kwargs) -> tuple:
    """What arguments are but for sizes and numbers: on these it depends how a function is cut.

    The length of a log is a size: a list that grows with each call is cut once.
    """
    found: list = [tuple(kwargs)]
    for value in (*args, *kwargs.values()):
        kind = type(value)
        if kind in NUMBERS or kind in FIXED:
            found.append(value if kind is bool else kind)
        elif kind is types.FunctionType:
            found.append(value.__code__)
        elif kind is ARRAY or kind is np.ndarray:
            found += (kind, value.dtype, value.ndim)
        elif is_log(value):
            arrays = type(value[0]) is ARRAY if value else False
            found += (
                list,
                frozenset([(x.dtype, x.ndim) if arrays else type(x) for x in ends(value)]),
            )
        else:
            leaves, tree = flatten(value)
            types_ = tuple(map(type, leaves))
            found += (tree, orders(value))
            if PLAIN.issuperset(types_):
                found.append(types_)
                continue
            for leaf in leaves:
                kind = ARRAY if isinstance(leaf, jax.Array) else type(leaf)
                is_array = kind is ARRAY or isinstance(leaf, np.ndarray)
                found += (kind, leaf.dtype, leaf.ndim) if is_array else (kind,)
    return tuple(found)


def ends(value: list) -> list:
    """The items of a list by which it is judged: a history of 10,000 losses is not gone over."""
    return value if len(value) <= SHORT else [value[0], value[-1]]


def is_log(value) -> bool:
    """Whether a value is a list of numbers or text, or a long one of arrays: it may grow."""
    if type(value) is not list:
        return False
    types_ = {*map(type, ends(value))}
    return types_ <= PLAIN or (len(value) > SHORT and types_ == {ARRAY})


def outer_kinds(args, kwargs) -> list:
    """`kinds` without a look into containers."""
    every = (*args, *kwargs.values())
    found: list = [(x.dtype, x.ndim) if type(x) is ARRAY else type(x) for x in every]
    return [*kwargs, *found]


def orders(value) -> tuple:
    """The keys of the dicts in lists, tuples and dicts, in order: JAX sorts them."""
    kind = type(value)
    if kind not in HOLDS:
        return ()
    items = value.values() if kind in DICTS else value
    if HOLDS.isdisjoint(map(type, items)):
        return (tuple(value),) if kind in DICTS else ()
    inner = [orders(x) for x in items if type(x) in HOLDS]
    return (tuple(value), *inner) if kind in DICTS else tuple(inner)


def shapes_of(args, kwargs) -> tuple:
    """The shapes of all arrays among arguments."""
    return tuple([shape_of(x) for v in (*args, *kwargs.values()) for x in flatten(v)[0]])


def leaf_kinds(value):
    """The types of all leaves, and the orders of dicts: what `plain_kinds` tells apart, and more.

    In a small part of the time that JAX needs to flatten: it sorts keys.
    """
    kind = type(value)
    if kind in DICTS:
        held, items = tuple(value), value.values()
    elif kind is list or kind is tuple:
        held, items = kind, value
    else:
        return kind if kind in TOLD else (kind, *map(type, flat_leaves(value)))
    if {*map(type, items)} == ARRAYS:
        return held
    return [held, *[ARRAY if type(x) is ARRAY else leaf_kinds(x) for x in items]]


def plain_kinds(args, kwargs) -> list:
    """What JAX does not tell apart: numbers and arrays of no dimensions, True and 1, orders."""
    found: list = []
    for value in (*args, *kwargs.values()) if kwargs else args:
        kind = type(value)
        if kind is ARRAY:
            found.append(None)
        elif kind in TOLD:
            found.append(kind)
        elif isinstance(value, jax.Array):
            found.append(None)
        else:
            leaves = flat_leaves(value)
            found.append(orders(value) if kind in HOLDS else ())
            if not TOLD.isdisjoint(map(type, leaves)):
                found.append([k if k in TOLD else None for k in map(type, leaves)])
    return found


def without_sizes(key: tuple) -> tuple:
    """A signature with ranks in the place of shapes."""
    is_shape = [type(part) is tuple and all(type(d) is int for d in part) for part in key]
    return tuple([len(part) if s else part for part, s in zip(key, is_shape, strict=True)])


def owned(outs, args) -> list:
    """Results of NumPy as ours; copied where they may share memory that the user can write to."""
    theirs = [x for x in args if type(x) is np.ndarray and x.flags.writeable]
    if theirs:
        outs = [np.array(x) if any(np.may_share_memory(x, y) for y in theirs) else x for x in outs]
    return list(map(own, outs))


def is_away(leaves) -> bool:
    """Whether an array lies elsewhere than where NumPy would leave it."""
    if jax.device_count() == 1:
        return False
    config: Any = jax.config
    home = config.jax_default_device
    arrays = [x for x in leaves if type(x) is ARRAY]
    return home is not None or any(x.devices() != {jax.devices()[0]} for x in arrays)


def shape_of(leaf) -> tuple:
    return leaf.shape if isinstance(leaf, np.ndarray | np.generic | jax.Array) else ()
