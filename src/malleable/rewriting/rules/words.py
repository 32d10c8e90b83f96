"""Pairs of spellings of one function: a pattern that has one of a pair also matches the other.

As rules, they return both: the same values, NaN and gradients, but for rounding if "reassoc".
"""

import functools
from collections.abc import Callable

import jax
from jax import lax
from jax import numpy as jnp

from malleable.rewriting.rules.wildcards import Arr, Lit, Static

AXIS = Static[-1, 0, 1]
FLOAT = Arr[jnp.floating]


def chosen(c: Arr[bool], a, b):
    return jnp.where(c, a, b), jnp.where(~c, b, a)


def inverse(a: FLOAT):
    return 1 / a, a**-1


def quotient(a: FLOAT, b: FLOAT):
    return a / b, a * (1 / b)


def scaled(a: FLOAT, c: Lit):
    return a / c, a * (1 / c)


def shrunk(a: FLOAT, c: Lit):
    return a * c, a / (1 / c)


def inverse_root(a: FLOAT):
    return lax.rsqrt(a), 1 / jnp.sqrt(a)


def over_root(a: FLOAT, b: FLOAT):
    return a / jnp.sqrt(b), a * lax.rsqrt(b)


def sigmoid(a: FLOAT):
    return jax.nn.sigmoid(a), 1 / (1 + jnp.exp(-a))


def softmax(a: FLOAT, axis: AXIS):
    e = jnp.exp(a - jnp.max(a, axis, keepdims=True))
    return jax.nn.softmax(a, axis), e / jnp.sum(e, axis, keepdims=True)


def log_softmax(a: FLOAT, axis: AXIS):
    return jax.nn.log_softmax(a, axis), a - jax.nn.logsumexp(a, axis, keepdims=True)


def variance(a: FLOAT, axis: AXIS):
    mean = jnp.mean(a, axis, keepdims=True)
    return jnp.var(a, axis), jnp.mean((a - mean) ** 2, axis)


def mean_kept(a: FLOAT, axis: AXIS):
    return jnp.mean(a, axis, keepdims=True), jnp.expand_dims(jnp.mean(a, axis), axis)


ROUNDED = (quotient, inverse, scaled, shrunk, inverse_root, over_root, sigmoid, variance)
PAIRS = {"exact": (chosen, mean_kept), "reassoc": (*ROUNDED, softmax, log_softmax), "fast": ()}


def turned(pair: Callable) -> Callable:
    """A pair with its sides in the other order, of the same wildcards."""
    return functools.wraps(pair)(lambda *xs: pair(*xs)[::-1])
