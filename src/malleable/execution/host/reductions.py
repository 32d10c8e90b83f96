"""Reductions and scans of JAX in NumPy."""

import operator

import numpy as np
from jax import numpy as jnp

from malleable import compat
from malleable.execution.common.breaks import Unsupported
from malleable.execution.common.host_values import FLOAT32, HALF, asked, example, own, raw

_types: dict = {}


def _result_dtype(fun, dtype) -> np.dtype:
    """The dtype of `fun` of an array of `dtype`."""
    key = (fun, dtype, compat.host_mode())
    out = _types.get(key)
    if out is None:
        out = _types[key] = asked(fun, example(dtype, (2,)))[0]
    return out


def _axes(a, axis):
    if axis is None:
        return None
    if not a.ndim:
        raise Unsupported("JAX refuses axes of a scalar")
    if type(axis) is int:
        return axis
    if type(axis) is tuple:
        return tuple(map(operator.index, axis))
    return operator.index(axis)


def _reduction(fun, compute):
    """sum and prod: in the dtype of the result, halves in single precision."""

    def run(a, axis=None, *, keepdims=False):
        a = raw(a)
        out = _result_dtype(fun, a.dtype)
        work = FLOAT32 if out in HALF else out
        found = compute(a, _axes(a, axis), work, keepdims=keepdims)
        return own(found if out is work else np.asarray(found, out))

    return run


def _extreme(compute):
    """max, min: of real numbers."""

    def run(a, axis=None, *, keepdims=False):
        a = raw(a)
        if a.dtype.kind == "c":
            raise Unsupported("complex numbers")
        return own(compute(a, _axes(a, axis), keepdims=keepdims))

    return run


def _test(compute):
    def run(a, axis=None, *, keepdims=False):
        a = raw(a)
        return own(compute(a, _axes(a, axis), keepdims=keepdims))

    return run


def _place_of_extreme(compute):
    """argmax, argmin: as integers of 32 bits."""

    def run(a, axis=None, *, keepdims=False):
        a = raw(a)
        if a.dtype.kind not in "fiub":
            raise Unsupported("an order that NumPy does not know")
        found = compute(a, axis=_axes(a, axis), keepdims=bool(keepdims))
        return own(np.asarray(found, _result_dtype(jnp.argmax, a.dtype)))

    return run


def _size_along(shape, axis) -> int:
    if axis is None:
        axis = range(len(shape))
    elif type(axis) is int:
        axis = (axis,)
    size = 1
    for place in axis:
        size *= shape[place]
    return size


def _mean_in(a, axis, out, keepdims):
    work = FLOAT32 if out in HALF else out
    total = np.add.reduce(a, axis, work, keepdims=keepdims)
    return np.divide(total, work.type(_size_along(a.shape, axis)))


def mean(a, axis=None, *, keepdims=False):
    """jnp.mean."""
    a = raw(a)
    out = _result_dtype(jnp.mean, a.dtype)
    return own(np.asarray(_mean_in(a, _axes(a, axis), out, keepdims), out))


def _spread(fun):
    """var, std: the mean of squares about the mean."""

    def run(a, axis=None, *, ddof=0, keepdims=False):
        a = raw(a)
        if a.dtype.kind == "c" or type(ddof) is not int:
            raise Unsupported("complex numbers")
        axis = _axes(a, axis)
        out = _result_dtype(fun, a.dtype)
        work = FLOAT32 if out in HALF else out
        about = np.asarray(a, work) - _mean_in(a, axis, work, True)
        total = np.add.reduce(about * about, axis, keepdims=keepdims)
        found = np.divide(total, work.type(_size_along(a.shape, axis) - ddof))
        if fun is jnp.std:
            found = np.sqrt(found)
        return own(np.asarray(found, out))

    return run


def _scan(fun, compute):
    """cumsum, cumprod: in the dtype of the result."""

    def run(a, axis=None):
        a = raw(a)
        out = _result_dtype(fun, a.dtype)
        if out in HALF:
            raise Unsupported("sums in half precision")
        return own(compute(a, axis=_axes(a, axis), dtype=out))

    return run


def count_nonzero(a, axis=None, keepdims=False):
    """jnp.count_nonzero."""
    a = raw(a)
    found = np.count_nonzero(a, axis=_axes(a, axis), keepdims=keepdims)
    return own(np.asarray(found, _result_dtype(jnp.count_nonzero, a.dtype)))


REDUCTIONS = {
    jnp.sum: _reduction(jnp.sum, np.add.reduce),
    jnp.prod: _reduction(jnp.prod, np.multiply.reduce),
    jnp.max: _extreme(np.max),
    jnp.min: _extreme(np.min),
    jnp.amax: _extreme(np.max),
    jnp.amin: _extreme(np.min),
    jnp.any: _test(np.any),
    jnp.all: _test(np.all),
    jnp.argmax: _place_of_extreme(np.argmax),
    jnp.argmin: _place_of_extreme(np.argmin),
    jnp.mean: mean,
    jnp.var: _spread(jnp.var),
    jnp.std: _spread(jnp.std),
    jnp.cumsum: _scan(jnp.cumsum, np.cumsum),
    jnp.cumprod: _scan(jnp.cumprod, np.cumprod),
    jnp.count_nonzero: count_nonzero,
}
