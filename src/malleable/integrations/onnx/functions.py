"""Functions of a number for ONNX that it lacks, or has not exactly: near 0, far out, at ends.

jax2onnx writes expm1(x) as exp(x) - 1, erfc(x) as 1 - erf(x), and so on, which leaves nothing of a
small result. The sign of a zero comes by products: onnxruntime's Where loses it.
"""

import functools

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from malleable.integrations.onnx.lowering import rule

WIDE = (np.dtype("float32"), np.dtype("float64"))  # others are computed in float32: `elsewhere`


def function(name: str, *types):
    """A decorator: a function of arrays of these types (of `WIDE`), in place of a primitive."""

    def keep(fun):
        def made(eqn):
            return fun if eqn.outvars[0].aval.dtype in (types or WIDE) else None

        rule(name, once=True)(made)
        return fun

    return keep


def polynomial(x, *coefficients):
    """The first coefficient is that of the highest power. Horner's rule."""
    total = np.asarray(coefficients[0], x.dtype)
    for c in coefficients[1:]:
        total = total * x + np.asarray(c, x.dtype)
    return total


def is_negative(x):
    """-0 is."""
    return (x < 0) | (1 / x < 0)


@function("expm1")
def expm1(x):
    """As tanh(x/2) (e^x + 1), neither of which cancels."""
    return jnp.tanh(x * np.asarray(0.5, x.dtype)) * (jnp.exp(x) + 1)


@function("log1p")
def log1p(x):
    """log(u) x / (u - 1), u being 1 + x as it is rounded. Kahan; Goldberg, 1991, theorem 4."""
    u = 1 + x
    d = u - 1
    most = np.asarray(jnp.finfo(x.dtype).max, x.dtype)
    return x * jnp.where(d == 0, np.asarray(1, x.dtype), jnp.log(u) / jnp.minimum(d, most))


@function("logistic")
def logistic(x):
    """By exp: Sigmoid is 0 from -18 on, where its logarithm still is a number."""
    return 1 / (jnp.exp(-x) + 1)


@function("erfc", WIDE[0])
def erfc(x):
    """t exp(-x^2 + P(t)), t = 1 / (1 + |x|/2). Numerical Recipes in C, 1992, erfcc; to 1.2e-7."""
    size = abs(x)
    t = 1 / (1 + size / 2)
    p = polynomial(
        t, 0.17087277, -0.82215223, 1.48851587, -1.13520398, 0.27886807, -0.18628806,
        0.09678418, 0.37409196, 1.00002368, -1.26551223,
    )  # fmt: skip
    out = t * jnp.exp(p - x * x)
    return jnp.where(x < 0, 2 - out, out)


@function("erf_inv", WIDE[0])
def erf_inv(x):
    """Giles, "Approximating the erfinv function", GPU Computing Gems 2, 2011."""
    w = -jnp.log1p(-x * x)
    middle = polynomial(
        w - 2.5, 2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087,
        -0.00125372503, -0.00417768164, 0.246640727, 1.50140941,
    )  # fmt: skip
    tail = polynomial(
        jnp.sqrt(w) - 3, -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844,
        0.00573950773, -0.0076224613, 0.00943887047, 1.00167406, 2.83297682,
    )  # fmt: skip
    p = jnp.where(w < 5, middle, tail)
    return x * jnp.where(abs(x) == 1, np.asarray(np.inf, x.dtype), p)


@function("sinh", WIDE[1])
def sinh(x):
    """Without a difference of two numbers near 1; onnxruntime has one of float32 only."""
    return (jnp.expm1(x) - jnp.expm1(-x)) * np.asarray(0.5, x.dtype)


def arctan(x):
    """Of numbers from 0 to 1; of float64, which onnxruntime has none of: a guess and the rest."""
    if x.dtype != np.float64:
        return jnp.arctan(x)
    guess = x * (1.0584 - 0.273 * x)  # to 0.004
    sin, cos = jnp.sin(guess), jnp.cos(guess)
    rest = (x * cos - sin) / (x * sin + cos)  # the tangent of what is left
    return guess + rest * (1 - rest * rest * (1 / 3 - rest * rest / 5))


@function("atan2")
def atan2(y, x):
    """From the first octant, with the signs of zeros, of infinity, and NaN, as in IEEE 754."""
    low, high = jnp.minimum(abs(x), abs(y)), jnp.maximum(abs(x), abs(y))
    same = (high > 0).astype(x.dtype)  # 0 of zeros, 1 of infinities
    angle = arctan(jnp.where(low == high, same, low / high))
    angle = jnp.where(abs(y) > abs(x), np.asarray(np.pi / 2, x.dtype) - angle, angle)
    angle = jnp.where(is_negative(x), np.asarray(np.pi, x.dtype) - angle, angle)
    one = np.asarray(1, x.dtype)
    return angle * jnp.where(is_negative(y), -one, one)


# ---------------------------------------------------------------- gamma

# Lanczos, "A precision approximation of the gamma function", 1964; g = 7 and 9 terms, Godfrey, 2001
G, FIRST = 7.0, 0.99999999999980993
TERMS = (
    676.5203681218851, -1259.1392167224028, 771.32342877765313, -176.61502916214059,
    12.507343278686905, -0.13857109526572012, 9.9843695780195716e-6, 1.5056327351493116e-7,
)  # fmt: skip


def shifted(x):
    """z of x = z + 1 or of its reflection 1 - x, and log(z + g + 1/2) without rounding z away."""
    z = jnp.where(x < 0.5, -x, x - 1)
    small = jnp.log1p(z * np.asarray(1 / (G + 0.5), x.dtype))
    return z, small + np.asarray(np.log(G + 0.5), x.dtype)


def sine_of(x):
    """sin(pi x) up to its sign, by how far x is from the next whole number."""
    rest = abs(x) - jnp.floor(abs(x))
    return jnp.sin(np.asarray(np.pi, x.dtype) * jnp.minimum(rest, 1 - rest))


@function("lgamma")
def lgamma(x):
    """log |gamma(x)|; below 1/2 by Euler's reflection."""
    z, log_t = shifted(x)
    total = np.asarray(FIRST, x.dtype)
    for i, c in enumerate(TERMS):
        total = total + np.asarray(c, x.dtype) / (z + (i + 1))
    t = z + (G + 0.5)
    half_log = np.asarray(np.log(2 * np.pi) / 2, x.dtype)
    right = (z + 0.5 - t / log_t) * log_t + half_log + jnp.log(total)
    sine = sine_of(x)
    left = np.asarray(np.log(np.pi), x.dtype) - jnp.log(sine) - right
    infinite = np.asarray(np.inf, x.dtype)
    left = jnp.where((sine == 0) & (x < 0.5), infinite, left)  # a pole
    return jnp.where(abs(x) == infinite, infinite, jnp.where(x < 0.5, left, right))


@functools.cache
def infinite_at_zero() -> bool:
    """Whether digamma(0) is -inf in this JAX."""
    with jax.ensure_compile_time_eval():
        return bool(jnp.isinf(lax.digamma(np.float32(0))))


@function("digamma")
def digamma(x):
    """The derivative of lgamma; NaN at its poles, where newer JAX has the side of 0."""
    z, log_t = shifted(x)
    total, slope = np.asarray(FIRST, x.dtype), np.asarray(0, x.dtype)
    for i, c in enumerate(TERMS):
        part = np.asarray(c, x.dtype) / (z + (i + 1))
        total, slope = total + part, slope - part / (z + (i + 1))
    right = log_t + slope / total - np.asarray(G, x.dtype) / (z + (G + 0.5))
    angle = np.asarray(np.pi, x.dtype) * (x - jnp.floor(x + 0.5))
    left = right - np.asarray(np.pi, x.dtype) * jnp.cos(angle) / jnp.sin(angle)
    pole = jnp.full_like(x, np.nan)
    pole = jnp.where(x == 0, -1 / x, pole) if infinite_at_zero() else pole
    left = jnp.where(x == jnp.floor(x), pole, left)
    return jnp.where(x < 0.5, left, right)
