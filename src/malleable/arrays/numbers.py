"""Python's numbers among traced scalars: what is weakly typed is a bool, an int or a float.

A comparison of Python's numbers is a bool of Python, which counts as an integer in arithmetic; one
of NumPy's numbers is a `bool_`, where `+` is a logical or.
"""

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


def as_integer(x):
    """A bool as the integer it is in arithmetic; any other value as it is."""
    if not is_python_bool(x):
        return x
    if not isinstance(x, jax.Array):
        return int(x)
    return compat.convert(x, jnp.asarray(0).dtype, True)


_BOOL = np.dtype(bool)


def arithmetic(fun: Callable) -> Callable:
    """`fun`, an operator of two numbers, where bools of Python count as integers."""

    def run(a, b):
        bools = [x for x in (a, b) if x is True or x is False or getattr(x, "dtype", 0) is _BOOL]
        if bools and all(map(is_python_bool, bools)):
            a, b = as_integer(a), as_integer(b)
        return fun(a, b)

    return run


def logical(fun: Callable) -> Callable:
    """`&`, `|` or `^`: of two bools of Python, one of them."""

    def run(a, b):
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
    if isinstance(y, int) and y < 0 and np.issubdtype(x.dtype, np.integer):
        if not getattr(x, "weak_type", False):
            raise ValueError("Integers to negative integer powers are not allowed.")
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
