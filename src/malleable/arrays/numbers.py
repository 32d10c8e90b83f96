"""Python's numbers among traced scalars: what is weakly typed is a bool, an int or a float.

A comparison of Python's numbers is a bool of Python, which counts as an integer in arithmetic; one
of NumPy's numbers is a `bool_`, where `+` is a logical or.

And what NumPy makes of integers where jax.numpy makes something else: sums of small ones are wide,
a division by zero is zero, a number of Python's that does not fit is an OverflowError.
"""

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from malleable import compat
from malleable.notes import note

_LAX: dict[Any, Callable] = {
    operator.__and__: lax.bitwise_and,
    operator.__or__: lax.bitwise_or,
    operator.__xor__: lax.bitwise_xor,
}


def python_bool(x) -> jax.Array:
    """A boolean scalar as one of Python's."""
    return compat.convert(x, np.dtype(bool), True)


def is_python_bool(x) -> bool:
    """Whether an unboxed value is a bool of Python, traced or not."""
    if isinstance(x, jax.Array):
        return x.dtype == bool and x.ndim == 0 and bool(x.weak_type)
    return x is True or x is False


def is_python_int(x) -> bool:
    """Whether an unboxed value is an int of Python, traced or not; a bool is one."""
    if isinstance(x, jax.Array):
        return x.dtype.kind in "ib" and x.ndim == 0 and bool(x.weak_type)
    return isinstance(x, int)


def strong(x):
    """What a function of NumPy's gives, which takes no other's type as numbers of Python's do."""
    return compat.convert(x, x.dtype, False) if getattr(x, "weak_type", False) else x


def as_integer(x):
    """A bool as the integer it is in arithmetic; any other value as it is."""
    if not is_python_bool(x):
        return x
    return compat.convert(x, jnp.asarray(0).dtype, True) if isinstance(x, jax.Array) else int(x)


_BOOL = np.dtype(bool)


def arithmetic(fun: Callable) -> Callable:
    """`fun`, an operator of two numbers, where bools of Python count as integers."""
    checks = fun is not operator.__truediv__

    def run(a, b):
        if checks and (type(a) is int or type(b) is int):
            refuse_large(a, b)
        bools = [x for x in (a, b) if x is True or x is False or getattr(x, "dtype", 0) is _BOOL]
        if bools and all(map(is_python_bool, bools)):
            a, b = as_integer(a), as_integer(b)
        return fun(a, b)

    return run


def logical(fun: Callable) -> Callable:
    """`&`, `|` or `^`: of two bools of Python, one of them."""

    def run(a, b):
        if type(a) is int or type(b) is int:
            refuse_large(a, b)
        if is_python_bool(a) and is_python_bool(b):
            return _LAX[fun](jnp.asarray(a), jnp.asarray(b))
        return fun(a, b)

    return run


def unary(fun: Callable) -> Callable:
    """`-`, `+`, `~` or abs of one number."""
    return lambda a: fun(as_integer(a))


def power(x, y):
    """x ** y, for values of NumPy or JAX."""
    if not isinstance(x, jax.Array) and not isinstance(y, jax.Array):
        return x**y
    if isinstance(y, int) and y < 0 and is_python_int(x):
        x = compat.convert(x, jnp.asarray(0.0).dtype, True)
    if isinstance(y, jax.Array) and y.dtype.kind == "i" and jnp.result_type(x).kind in "iub":
        what = "an integer to a power that is known only at run time is an integer"
        note(
            what, compat.where(), "where the power may be negative, write x ** -n or float(x) ** n"
        )
    return x**y


def rounded(x, digits: int):
    """round(x, digits) of a Python float: the nearest decimal, where np.round scales and rounds.

    The product x * 10**digits is split in two (Dekker, Numer. Math. 18, 1971), so that a product
    that is rounded to a half is not taken for one: round(2.675, 2) is 2.67.
    """
    info = jnp.finfo(x.dtype)
    if not 0 < digits <= (22 if x.dtype == np.float64 else 10):  # where 10**digits is exact
        return jnp.round(x, digits)
    bits, scale = (info.nmant + 1) // 2, float(10**digits)
    mantissa, exponent = math.frexp(scale)
    scale_high = math.ldexp(round(math.ldexp(mantissa, bits)), exponent - bits)
    high = lax.reduce_precision(x, info.nexp, bits - 1)
    low, scale_low, product = x - high, scale - scale_high, x * scale
    rest = (high * scale_high - product) + high * scale_low + low * scale_high + low * scale_low
    below = jnp.floor(product)
    tie = (product - below == 0.5) & (rest != 0)
    whole = jnp.where(tie, jnp.where(rest > 0, below + 1, below), jnp.round(product))
    fits = jnp.abs(product) < 2.0**info.nmant
    unseen = lax.optimization_barrier(scale)  # XLA multiplies by the inverse of a known divisor
    return jnp.where(fits, whole / unseen, x)


# ---------------------------------------------------------------- integers of NumPy


def python_number(x: jax.Array) -> jax.Array:
    """A scalar of JAX as the number of Python that `item()` makes of it."""
    wide = jnp.result_type(type(x.dtype.type(0).item()))
    return compat.convert(x, wide, True) if x.dtype.kind == "u" or np.can_cast(x.dtype, wide) else x


def _is_integer(x) -> bool:
    """Whether this is of one of NumPy's types of integers, which has a smallest and a largest."""
    dtype = getattr(x, "dtype", None)
    return dtype is not None and dtype.kind in "iu" and not getattr(x, "weak_type", False)


def _fits(number: int, x) -> bool:
    info = np.iinfo(x.dtype)
    return info.min <= number <= info.max


def refuse_large(a, b) -> None:
    """Raise NumPy's OverflowError for an int of Python that the type of the other has not."""
    for x, number in ((a, b), (b, a)):
        if type(number) is int and _is_integer(x) and not _fits(number, x):
            raise OverflowError(f"Python integer {number} out of bounds for {x.dtype}")


def compared_by_value(fun: Callable) -> Callable:
    """A comparison, by value also with an int of Python that the other type has not."""

    @functools.wraps(fun)
    def compare(x, y):
        if _is_integer(x) and is_python_int(y):
            return _by_value(fun, x, y)
        if _is_integer(y) and is_python_int(x):
            return _by_value(lambda a, b: fun(b, a), y, x)
        return fun(x, y)

    return compare


def _by_value(fun: Callable, x, number):
    if not isinstance(number, int):
        wide = jnp.result_type(int)
        return fun(x.astype(wide) if x.dtype.itemsize < wide.itemsize else x, number)
    return (
        fun(x, number) if _fits(number, x) else jnp.full(x.shape, fun(0, 1 if number > 0 else -1))
    )


def _are_whole(*xs) -> bool:
    return all(jnp.result_type(x).kind in "iub" for x in xs)


def by_zero(fun: Callable) -> Callable:
    """`//` or a remainder: of NumPy's integers, by zero, it is zero."""

    def divide(a, b):
        known = not isinstance(b, jax.Array) and np.all(b)
        if not _are_whole(a, b) or (is_python_int(a) and is_python_int(b)):
            return fun(a, b)
        if jnp.result_type(a, b) == _BOOL:
            a, b = (jnp.asarray(x, np.int8) for x in (a, b))
        if known:
            return fun(a, b)
        zero = jnp.equal(b, 0)
        return jnp.where(zero, 0, fun(a, jnp.where(zero, 1, b)))

    return divide


def reciprocal(x):
    if not _are_whole(x):
        return jnp.reciprocal(x)
    x = jnp.asarray(x, np.int8) if x.dtype == bool else x
    least = np.iinfo(x.dtype).min if x.dtype.itemsize > 2 else 0
    return jnp.where(abs(x) == 1, x, jnp.where(x == 0, jnp.asarray(least, x.dtype), 0))


def float_power(x, y):
    return jnp.float_power(*(x * 1.0 if _are_whole(x) else x for x in map(jnp.asarray, (x, y))))


def widened(x):
    """The type in which NumPy adds up or multiplies: an integer is as wide as its own at least."""
    kind = jnp.result_type(x)
    wide = {"b": int, "i": int, "u": np.uint}.get(kind.kind)
    return jnp.promote_types(kind, jax.dtypes.canonicalize_dtype(wide)) if wide else kind


def _accumulated(fun: Callable) -> Callable:
    @functools.wraps(fun)
    def accumulate(a, axis=None, dtype=None, **rest):
        return fun(a, axis=axis, dtype=widened(a) if dtype is None else dtype, **rest)

    return accumulate


def rounded_whole(a, decimals=0, out=None):
    """np.round, of integers to tens too: halves go to the even one."""
    if not _are_whole(a):
        return jnp.round(a, decimals)
    if decimals >= 0:
        return a.astype(np.float16) if a.dtype == bool else a
    wide, tens = a.astype(widened(a)), 10**-decimals
    if not _fits(2 * tens, wide):
        return jnp.zeros_like(a)
    count, rest = wide // tens, 2 * (wide % tens)
    up = (rest > tens) | ((rest == tens) & (count % 2 == 1))
    return ((count + up) * tens).astype(a.dtype)


def convolved(a, v, mode="full", **options):
    if not _are_whole(a, v):
        return jnp.convolve(a, v, mode=mode, **options)
    kind = jnp.result_type(a, v)
    a, v = (jnp.ravel(x).astype(np.int32 if kind == _BOOL else kind) for x in (a, v))
    a, v = (a, v) if len(a) >= len(v) else (v, a)
    n, m = len(a), len(v)
    padded = jnp.pad(a, m - 1)

    def add(total, step):
        at, factor = step
        return total + factor * lax.dynamic_slice(padded, (m - 1 - at,), total.shape), None

    whole, _ = lax.scan(add, jnp.zeros(n + m - 1, a.dtype), (jnp.arange(m), v))
    start, size = {"full": (0, n + m - 1), "same": ((m - 1) // 2, n), "valid": (m - 1, n - m + 1)}[
        mode
    ]
    return whole[start : start + size].astype(kind)


def correlate(a, v, mode="valid", **options):
    if not _are_whole(a, v):
        return jnp.correlate(a, v, mode=mode, **options)
    if len(a) < len(v):
        return correlate(v, a, mode)[::-1]
    return convolved(a, v[::-1], mode)


def trapezoid(y, x=None, dx=1.0, axis=-1):
    """By NumPy's formula, since sums and differences of integers may wrap around."""
    y = jnp.moveaxis(y, axis, -1)
    if x is not None:
        dx = jnp.diff(x if jnp.ndim(x) == 1 else jnp.moveaxis(x, axis, -1))
    return (dx * (y[..., 1:] + y[..., :-1]) / 2.0).sum(-1)


def vander(x, N=None, increasing=False):
    wide = jnp.promote_types(x.dtype, jnp.result_type(int)) if _are_whole(x) else x.dtype
    return jnp.vander(x.astype(wide), N, increasing=increasing)


def polyder(p, m=1):
    for _ in range(m if _are_whole(p) else 0):
        p = p[:-1] * jnp.arange(len(p) - 1, 0, -1)
    return p if _are_whole(p) else jnp.polyder(p, m)


def polymul(a1, a2, **options):
    return convolved(a1, a2) if _are_whole(a1, a2) else jnp.polymul(a1, a2, **options)


def unwrap(p, discont=None, axis=-1, period=2 * np.pi):
    """np.unwrap, in which the differences of small integers wrap around."""
    if not _are_whole(p):
        return jnp.unwrap(p, discont, axis, period)
    steps = jnp.diff(p, axis=axis, prepend=jnp.zeros_like(lax.slice_in_dim(p, 0, 1, axis=axis)))
    line = jnp.cumsum(steps, axis, widened(p))
    kind = jnp.result_type(p, period)
    return (p + (jnp.unwrap(line, discont, axis, period) - line)).astype(kind)


_SHIFTS: dict[str, Any] = dict.fromkeys(("averaged_inverted_cdf", "closest_observation"))
_SHIFTS |= {"interpolated_inverted_cdf": (0, 1), "hazen": (0.5, 0.5), "weibull": (0, 0)}
_SHIFTS |= {"median_unbiased": (1 / 3, 1 / 3), "normal_unbiased": (3 / 8, 3 / 8)}


def _quantile(fun: Callable, whole: int) -> Callable:
    """Of any shape of q, which is part of `whole`; by a linear one: Hyndman, Fan, Am. Stat. 50."""

    @functools.wraps(fun)
    def run(x, q, axis=None, method="linear", **options):
        many, q, shift = jnp.shape(q), jnp.ravel(q) if np.ndim(q) > 1 else q, _SHIFTS.get(method)
        if method in _SHIFTS and (shift is None or fun.__name__.startswith("nan")):
            raise NotImplementedError(f"JAX has no method {method!r}")
        if shift:
            n = math.prod(x.shape if axis is None else (x.shape[k] for k in np.atleast_1d(axis)))
            at = n * q + shift[0] * whole + q * (1 - sum(shift)) - whole
            q, method = jnp.clip(at / max(n - 1, 1), 0, whole), "linear"
        out = fun(x, q, axis, method=method, **options)
        return out.reshape(many + out.shape[1:]) if len(many) > 1 else out

    return run


def _triangle(fun: Callable) -> Callable:
    """np.tril or np.triu: of one axis, of a square of equal rows."""
    return lambda m, k=0: fun(jnp.broadcast_to(m, (len(m),) * 2) if jnp.ndim(m) == 1 else m, k)


_ACCUMULATED = "cumsum cumprod nancumsum nancumprod cumulative_sum cumulative_prod"
OWN: dict[str, Callable] = {  # by the names that jax.numpy has for them
    **{f.__name__: f for f in (reciprocal, float_power, correlate, trapezoid, vander)},
    **{name: _accumulated(getattr(jnp, name)) for name in _ACCUMULATED.split()},
    **{f.__name__: by_zero(f) for f in (jnp.floor_divide, jnp.remainder, jnp.fmod)},
    "divmod": lambda x, y: (OWN["floor_divide"](x, y), OWN["remainder"](x, y)),
    **{f.__name__: f for f in (polyder, polymul)},
    **{f.__name__: _triangle(f) for f in (jnp.tril, jnp.triu)},
    **{f.__name__: _quantile(f, 100) for f in (jnp.percentile, jnp.nanpercentile)},
    **{f.__name__: _quantile(f, 1) for f in (jnp.quantile, jnp.nanquantile)},
    "polyfit": lambda x, y, *args, **options: jnp.polyfit(x * 1.0, y * 1.0, *args, **options),
    "positive": lambda x: np.positive(np.zeros(0, bool)) if x.dtype == bool else jnp.positive(x),
    "unwrap": unwrap,
    "convolve": convolved,
    "power": power,
    "round": rounded_whole,
}
