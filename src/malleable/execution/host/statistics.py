"""Norms, quantiles, comparisons of whole arrays, and other small functions in NumPy."""

import numpy as np
from jax import lax
from jax import numpy as jnp

from malleable.execution.common.breaks import Unsupported
from malleable.execution.common.host_values import FLOAT32, NUMBERS, own, raw, stable, with_kind
from malleable.execution.host.elementwise import common_kind
from malleable.execution.host.searches import _as_index


def _single(x) -> np.ndarray:
    """The values of an array of at least single precision: floats, real."""
    x = raw(x)
    if x.dtype.char not in "fd":
        raise Unsupported("not of single precision")
    return x


def norm(x, ord=None, axis=None, keepdims=False):
    """jnp.linalg.norm of vectors, or of all elements, in the Euclidean sense."""
    x = _single(x)
    if ord is not None and not (ord == 2 and (type(axis) is int or x.ndim == 1)):
        raise Unsupported("another norm")
    if axis is not None and type(axis) is not int:
        raise Unsupported("a norm of matrices")
    return own(np.sqrt(np.add.reduce(x * x, axis, keepdims=keepdims)))


def quantile(a, q, axis=None, *, keepdims=False):
    """jnp.quantile, between neighbours in proportion."""
    return _quantile(_single(a), q, 1.0, axis, keepdims)


def percentile(a, q, axis=None, *, keepdims=False):
    """jnp.percentile."""
    return _quantile(_single(a), q, 100.0, axis, keepdims)


def median(a, axis=None, *, keepdims=False):
    """jnp.median."""
    return _quantile(_single(a), 0.5, 1.0, axis, keepdims)


def _quantile(a, q, whole, axis, keepdims):
    """In the arithmetic of JAX: the two neighbours, weighted; NaN where there is one."""
    if axis is not None and type(axis) is not int:
        raise Unsupported("more than one axis")
    kind = a.dtype.type
    q, of = with_kind(q)
    if of is not float and of != a.dtype:
        raise Unsupported("fractions of another type")
    q = np.asarray(q, a.dtype) / kind(whole)
    if q.ndim > 1 or not a.size or keepdims:
        raise Unsupported("another arrangement")
    a = a.reshape(-1) if axis is None else np.moveaxis(a, axis, 0)
    n = len(a)
    ordered = np.sort(a, 0)
    where = q * kind(n - 1)
    low, high = np.floor(where), np.ceil(where)
    weight = where - low
    low, high = (np.clip(each, 0, n - 1).astype(int) for each in (low, high))
    trail = (...,) + (None,) * (a.ndim - 1)
    found = ordered[low] * (kind(1) - weight)[trail] + ordered[high] * weight[trail]
    lost = np.isnan(a).any(0)
    if lost.any() or np.isnan(q).any() or np.isinf(found).any() or np.isnan(found).any():
        raise Unsupported("NaN and infinities")
    return own(found)


def _without_nan(fun, fill, compute):
    def run(a, axis=None):
        a = _single(a)
        gone = np.isnan(a)
        if fill != 0 and (gone.all(axis).any() or not a.size):
            raise Unsupported("nothing but NaN")
        return own(compute(np.where(gone, a.dtype.type(fill), a), axis))

    return run


def nanmean(a, axis=None):
    """jnp.nanmean."""
    a = _single(a)
    there = ~np.isnan(a)
    total = np.add.reduce(np.where(there, a, a.dtype.type(0)), axis)
    return own(total / np.add.reduce(there, axis, a.dtype))


def isclose(a, b, rtol=1e-05, atol=1e-08, equal_nan=False):
    """jnp.isclose of floats."""
    return own(_close(a, b, rtol, atol, equal_nan))


def allclose(a, b, rtol=1e-05, atol=1e-08, equal_nan=False):
    """jnp.allclose of floats."""
    return own(_close(a, b, rtol, atol, equal_nan).all())


def _close(a, b, rtol, atol, equal_nan):
    (a, one), (b, other) = with_kind(a), with_kind(b)
    dtype = common_kind(one, other)[0]
    if dtype != FLOAT32:
        raise Unsupported("not of single precision")
    a, b = np.asarray(a, dtype), np.asarray(b, dtype)
    found = np.abs(a - b) <= dtype.type(atol) + dtype.type(rtol) * np.abs(b)
    finite = np.isfinite(a) & np.isfinite(b)
    found = np.where(finite, found, a == b)
    return found | (np.isnan(a) & np.isnan(b)) if equal_nan else found


def array_equal(a1, a2):
    """jnp.array_equal."""
    a, b = raw(a1), raw(a2)
    if a.dtype != b.dtype:
        raise Unsupported("two dtypes")
    return own(np.array(a.shape == b.shape and bool((a == b).all())))


def outer(a, b):
    """jnp.outer."""
    a, b = raw(a), raw(b)
    if a.dtype != b.dtype:
        raise Unsupported("two dtypes")
    return own(a.reshape(-1, 1) * b.reshape(-1))


def diag(v, k=0):
    """jnp.diag."""
    return own(np.diag(stable(v), k))


def ptp(a, axis=None):
    """jnp.ptp."""
    a = _single(a)
    return own(np.max(a, axis) - np.min(a, axis))


def trace(a):
    """jnp.trace of a matrix."""
    a = _single(a)
    if a.ndim != 2:
        raise Unsupported("more axes")
    return own(np.trace(a))


def tril_indices(n, k=0, m=None):
    """jnp.tril_indices."""
    return tuple([_as_index(each) for each in np.tril_indices(n, k, m)])


def triu_indices(n, k=0, m=None):
    """jnp.triu_indices."""
    return tuple([_as_index(each) for each in np.triu_indices(n, k, m)])


def top_k(operand, k):
    """lax.top_k of numbers without NaN: equal ones in their order."""
    a = raw(operand)
    k = k if type(k) is int else raw(k).__index__()
    if a.dtype.kind not in "fi" or not 0 <= k <= a.shape[-1]:
        raise Unsupported("another order")
    if a.dtype.kind == "i":
        order = np.argsort(~a, -1, kind="stable")[..., :k]
    elif np.isnan(a).any() or (a == 0).any():
        raise Unsupported("NaN and zeros of either sign")
    else:
        order = np.argsort(-a, -1, kind="stable")[..., :k]
    return [own(np.take_along_axis(a, order, -1)), own(order.astype("int32"))]


def size(a):
    """jnp.size."""
    return _shaped(a).size


def shape(a):
    """jnp.shape."""
    return _shaped(a).shape


def ndim(a):
    """jnp.ndim."""
    return _shaped(a).ndim


def _shaped(a):
    if type(a) in NUMBERS:
        raise Unsupported("no array")
    return raw(a)


STATISTICS = {
    jnp.linalg.norm: norm,
    jnp.quantile: quantile,
    jnp.percentile: percentile,
    jnp.median: median,
    jnp.nansum: _without_nan(jnp.nansum, 0, np.add.reduce),
    jnp.nanmax: _without_nan(jnp.nanmax, -np.inf, np.max),
    jnp.nanmin: _without_nan(jnp.nanmin, np.inf, np.min),
    jnp.nanmean: nanmean,
    jnp.isclose: isclose,
    jnp.allclose: allclose,
    jnp.array_equal: array_equal,
    jnp.outer: outer,
    jnp.diag: diag,
    jnp.ptp: ptp,
    jnp.trace: trace,
    jnp.tril_indices: tril_indices,
    jnp.triu_indices: triu_indices,
    lax.top_k: top_k,
    jnp.size: size,
    jnp.shape: shape,
    jnp.ndim: ndim,
}
