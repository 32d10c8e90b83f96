"""Searching, sorting and selecting in NumPy as jax.numpy does: mostly what makes new sizes."""

import operator

import numpy as np
from jax import numpy as jnp

from malleable import compat
from malleable.execution.common.breaks import Unsupported
from malleable.execution.common.host_values import INT32, own, raw, with_kind
from malleable.execution.host.elementwise import common_kind, where

_INT = np.dtype("int64")
_ORDERED = frozenset("fiub")


def _as_index(x) -> np.ndarray:
    """Places found by NumPy, as integers of JAX."""
    return own(np.asarray(x, INT32 if not compat.host_mode() else _INT))


def nonzero(a):
    """jnp.nonzero of any size."""
    return tuple([_as_index(place) for place in raw(a).nonzero()])


def where_(condition, x=None, y=None, /):
    """jnp.where, of one and of three arguments."""
    if x is None and y is None:
        return nonzero(condition)
    return where(condition, x, y)


def flatnonzero(a):
    """jnp.flatnonzero."""
    return _as_index(np.flatnonzero(raw(a)))


def argwhere(a):
    """jnp.argwhere."""
    return _as_index(np.argwhere(raw(a)))


def _sortable(a) -> np.ndarray:
    a = raw(a)
    if a.dtype.kind not in _ORDERED:
        raise Unsupported("an order that NumPy does not know")
    return a


def unique(ar, return_index=False, return_inverse=False, return_counts=False, axis=None):
    """jnp.unique of any size."""
    ar = _sortable(ar)
    if axis is not None and (ar.dtype.kind == "f" or ar.size == 0):
        raise Unsupported("slices that may hold NaN")
    found = np.unique(ar, return_index, return_inverse, return_counts, axis)
    if type(found) is not tuple:
        return own(found)
    return own(found[0]), *map(_as_index, found[1:])


def _along(a, axis) -> np.ndarray:
    """`a`, which has such an axis: NumPy lets scalars have one, JAX does not."""
    if axis is not None and not a.ndim:
        raise Unsupported("JAX refuses axes of a scalar")
    return a


def _promoted(one, other):
    """Two arrays in their common dtype."""
    (one, k1), (other, k2) = with_kind(one), with_kind(other)
    dtype, _ = common_kind(k1, k2)
    if dtype.kind not in _ORDERED:
        raise Unsupported("an order that NumPy does not know")
    return np.asarray(one, dtype), np.asarray(other, dtype)


def _of_sets(compute):
    def run(ar1, ar2):
        one, other = _sortable(ar1), _sortable(ar2)
        if one.dtype != other.dtype:
            raise Unsupported("two dtypes")
        if one.dtype.kind == "f" and (np.isnan(one).any() or np.isnan(other).any()):
            raise Unsupported("NaN in sets")
        return own(compute(one, other))

    return run


def isin(element, test_elements, assume_unique=False, invert=False):
    """jnp.isin."""
    one, other = _promoted(element, test_elements)
    return own(np.isin(one, other, invert=invert))


def compress(condition, a, axis=None):
    """jnp.compress."""
    condition = raw(condition)
    a = raw(a)
    size = a.size if axis is None else a.shape[axis]
    if condition.size > size:
        raise Unsupported("a condition that is too long")
    return own(np.compress(condition, a, axis))


def extract(condition, arr):
    """jnp.extract."""
    condition, arr = raw(condition), raw(arr)
    if condition.size > arr.size:
        raise Unsupported("a condition that is too long")
    return own(np.extract(condition, arr))


def repeat(a, repeats, axis=None):
    """jnp.repeat by an integer or by one for each element."""
    if type(repeats) is int:
        least = repeats
    else:
        repeats = raw(repeats)
        least = repeats.min() if repeats.size else 0
    if least < 0:
        raise Unsupported("less than nothing")
    return own(np.repeat(_along(raw(a), axis), repeats, axis))


def delete(arr, obj, axis=None):
    """jnp.delete."""
    obj = obj if type(obj) is int else raw(obj)
    return own(np.delete(raw(arr), obj, axis))


def insert(arr, obj, values, axis=None):
    """jnp.insert."""
    arr, (values, kind) = raw(arr), with_kind(values)
    if common_kind(arr.dtype, kind)[0] != arr.dtype or type(obj) is not int:
        raise Unsupported("an insertion that NumPy may see in another way")
    return own(np.insert(arr, obj, np.asarray(values, arr.dtype), axis))


def bincount(x, weights=None, minlength=0, *, length=None):
    """jnp.bincount without weights; negative numbers are left to JAX."""
    if weights is not None:
        raise Unsupported("sums in another order")
    if length is None:
        return _as_index(np.bincount(raw(x), minlength=int(minlength)))
    length = operator.index(length)
    return _as_index(np.bincount(raw(x), minlength=length)[:length])


def take(a, indices, axis=None):
    """jnp.take; places out of bounds are left to JAX."""
    a, places = raw(a), raw(np.asarray(indices) if type(indices) is int else indices)
    if places.dtype.kind not in "iu":
        raise Unsupported("no integers")
    return own(np.take(_along(a, axis), places, axis))


def take_along_axis(arr, indices, axis=-1):
    """jnp.take_along_axis; places out of bounds are left to JAX."""
    return own(np.take_along_axis(raw(arr), raw(indices), axis))


def sort(a, axis=-1):
    """jnp.sort; NaN last, zeros of either sign in their order."""
    a = _along(_sortable(a), axis)
    kind = None if a.dtype.kind != "f" else "stable"
    return own(np.sort(a, axis, kind=kind))


def argsort(a, axis=-1):
    """jnp.argsort, stable."""
    return _as_index(np.argsort(_along(_sortable(a), axis), axis, kind="stable"))


def lexsort(keys, axis=-1):
    """jnp.lexsort."""
    values = [_sortable(key) for key in keys] if type(keys) in (list, tuple) else _sortable(keys)
    return _as_index(np.lexsort(values, axis))


def searchsorted(a, v, side="left"):
    """jnp.searchsorted in one vector."""
    if side not in ("left", "right"):
        raise Unsupported("no such side")
    a, v = _promoted(a, v)
    if a.ndim != 1 or a.dtype.kind not in _ORDERED:
        raise Unsupported("more than a vector")
    return _as_index(np.searchsorted(a, v, side))


SEARCHES = {
    jnp.nonzero: nonzero,
    jnp.where: where_,
    jnp.flatnonzero: flatnonzero,
    jnp.argwhere: argwhere,
    jnp.unique: unique,
    jnp.intersect1d: _of_sets(np.intersect1d),
    jnp.union1d: _of_sets(np.union1d),
    jnp.setdiff1d: _of_sets(np.setdiff1d),
    jnp.setxor1d: _of_sets(np.setxor1d),
    jnp.isin: isin,
    jnp.compress: compress,
    jnp.extract: extract,
    jnp.repeat: repeat,
    jnp.delete: delete,
    jnp.insert: insert,
    jnp.bincount: bincount,
    jnp.take: take,
    jnp.take_along_axis: take_along_axis,
    jnp.sort: sort,
    jnp.argsort: argsort,
    jnp.lexsort: lexsort,
    jnp.searchsorted: searchsorted,
}
