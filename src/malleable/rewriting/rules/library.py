# ruff: noqa: F722, F821  # dims are named in annotations
"""The rules we ship: rewrites that XLA does not do by itself.

    optimize(model, rewrite(*LIBRARY))                   # what only rounds differently
    optimize(model, rewrite(*LIBRARY, level="fast"))     # and what is right for tame numbers only
    optimize(model, rewrite(*library.ACCURATE))          # what keeps digits, for some time

The last figure of each is its gain: time of the pattern over time of the replacement, compiled, for
matrices of 512 x 512 in float32 on 2 CPU cores; `python -m tests.rewriting.rules.test_library`
measures again. Where a pattern gives NaN or an infinity (0 * inf in a product) a replacement may
not. In float16, which overflows at 65504, no rule sums or multiplies in another order.
"""

import functools
from typing import Any, TypeVar

import jax
from jax import numpy as jnp

from malleable.rewriting.rules import rules
from malleable.rewriting.rules.rules import NoMatch, alone
from malleable.rewriting.rules.wildcards import Arr, Static

# One dtype for all; no integers, whose sums in JAX are wider than their products.
NUMBER = TypeVar("NUMBER", bound=jnp.inexact)
_WIDE: Any = jnp.bfloat16, jnp.float32, jnp.float64, jnp.complex64, jnp.complex128
WIDE = TypeVar("WIDE", *_WIDE)  # pyright: ignore
FLOAT = TypeVar("FLOAT", bound=jnp.floating)
rule = functools.partial(rules.rule, tried=False)  # the tests try them; an import need not

# ---------------------------------------------------------------- products that need not be made


@rule(where=alone)
def sum_of_product(a: Arr[WIDE], b: Arr[WIDE]):
    """sum(A @ B) needs two sums and a dot. 12x."""
    if not a.size or not b.size:
        return NoMatch("empty")
    product = jnp.sum(a @ b)
    if b.ndim == 2 and a.ndim >= 2:
        return product, jnp.sum(a, tuple(range(a.ndim - 1))) @ jnp.sum(b, 1)
    if a.ndim == b.ndim > 2 and a.shape[:-2] == b.shape[:-2]:
        return product, jnp.sum(jnp.sum(a, -2) * jnp.sum(b, -1))
    return NoMatch("not a product of matrices")


@rule(where=alone)
def column_sums_of_product(a: Arr["m k", WIDE], b: Arr["k n", WIDE]):
    """sum(A @ B, 0) needs a product with one vector. 17x."""
    if not a.size:
        return NoMatch("empty")
    return jnp.sum(a @ b, 0), jnp.sum(a, 0) @ b


@rule(where=alone)
def row_sums_of_product(a: Arr[WIDE], b: Arr["k n", WIDE]):
    """sum(A @ B, -1) needs a product with one vector. 18x."""
    if a.ndim < 2 or not b.size:
        return NoMatch("not a product of matrices")
    return jnp.sum(a @ b, -1), a @ jnp.sum(b, -1)


@rule(where=alone)
def trace_of_product(a: Arr["m k", WIDE], b: Arr["k m", WIDE]):
    """trace(A @ B) needs the diagonal only. 7x."""
    return jnp.trace(a @ b), jnp.sum(a * b.T)


@rule(where=alone)
def diagonal_of_product(a: Arr["m k", WIDE], b: Arr["k m", WIDE]):
    """diagonal(A @ B) needs one dot per element. 7x."""
    return jnp.diagonal(a @ b), jnp.sum(a * b.T, 1)


@rule(where=alone)
def product_on_vector(a: Arr["m k", WIDE], b: Arr["k n", WIDE], v: Arr["n", WIDE]):
    """(A @ B) @ v is two products with a vector. 28x."""
    return (a @ b) @ v, a @ (b @ v)


@rule(where=alone)
def outer_on_vector(u: Arr["m", WIDE], v: Arr["n", WIDE], w: Arr["n", WIDE]):
    """outer(u, v) @ w is a dot and a scaling. 2.7x."""
    if not v.size:
        return NoMatch("empty")
    return jnp.outer(u, v) @ w, u * (v @ w)


@rule(where=alone)
def kron_on_vector(a: Arr["m n", WIDE], b: Arr["p q", WIDE], v: Arr["n*q", WIDE]):
    """kron(A, B) @ v is two small products. 1000x."""
    small = a @ v.reshape(a.shape[1], b.shape[1]) @ b.T
    return jnp.kron(a, b) @ v, small.reshape(a.shape[0] * b.shape[0])


@rule(where=alone)
def diagonal_times_matrix(v: Arr["m", NUMBER], a: Arr["m n", NUMBER]):
    """diag(v) @ A scales the rows. 20x."""
    return jnp.diag(v) @ a, v[:, None] * a


@rule(where=alone)
def matrix_times_diagonal(a: Arr[NUMBER], v: Arr["n", NUMBER]):
    """A @ diag(v) scales the columns. 20x."""
    return a @ jnp.diag(v), a * v


@rule
def matrix_times_identity(a: Arr[NUMBER]):
    """A @ eye(n) is A. 44x."""
    return a @ jnp.eye(a.shape[-1], dtype=a.dtype), a


@rule
def identity_times_matrix(a: Arr["m n", NUMBER]):
    """eye(n) @ A is A. 44x."""
    return jnp.eye(a.shape[0], dtype=a.dtype) @ a, a


@rule(where=alone)
def one_hot_on_table(i: Arr[jnp.integer], table: Arr["n d"]):
    """one_hot(i) @ table looks rows up; out of range they are zero. 19x."""
    if jnp.iinfo(i.dtype).max < table.shape[0]:
        return NoMatch("the numbers of the classes wrap around in one_hot")
    rows = table.at[i].get(mode="fill", fill_value=0, wrap_negative_indices=False)
    return jax.nn.one_hot(i, table.shape[0], dtype=table.dtype) @ table, rows


@rule(where=alone)
def common_left_factor(a: Arr[WIDE], b: Arr[WIDE], c: Arr[WIDE]):
    """A @ B + A @ C is one product. 1.9x."""
    if b.shape != c.shape:
        return NoMatch("the other factors differ in shape")
    return a @ b + a @ c, a @ (b + c)


@rule(where=alone)
def common_right_factor(a: Arr[WIDE], b: Arr[WIDE], c: Arr[WIDE]):
    """A @ C + B @ C is one product. 1.9x."""
    if a.shape != b.shape:
        return NoMatch("the other factors differ in shape")
    return a @ c + b @ c, (a + b) @ c


# ---------------------------------------------------------------- linear algebra


@rule(where=alone)
def inverse_on_right_side(a: Arr[WIDE], b: Arr[WIDE]):
    """inv(A) @ b solves one system. 1.5x."""
    if b.ndim != a.ndim and (a.ndim, b.ndim) != (2, 1):
        return NoMatch("a stack of systems with one right side")
    return jnp.linalg.inv(a) @ b, jnp.linalg.solve(a, b)


@rule(where=alone)
def log_of_determinant(a: Arr[jnp.float32, jnp.float64]):
    """log(det(A)) may overflow on its way. 1.0x."""
    sign, logarithm = jnp.linalg.slogdet(a)
    return jnp.log(jnp.linalg.det(a)), jnp.where(sign < 0, jnp.nan, logarithm)


@rule
def inverse_fft_of_fft(x):
    """ifft(fft(x)) is x. 8x."""
    there = jnp.fft.fft(x)
    return jnp.fft.ifft(there), x.astype(there.dtype)


@rule
def inverse_rfft_of_rfft(x: Arr[jnp.floating]):
    """irfft(rfft(x), n) is x. 18x."""
    return jnp.fft.irfft(jnp.fft.rfft(x), x.shape[-1]), x


# ---------------------------------------------------------------- fewer steps to the same


@rule(where=alone)
def log_of_softmax(x: Arr[jnp.floating], axis: Static):
    """log(softmax(x)) takes a logarithm per element, and is -inf where softmax is 0. 1.5x."""
    return jnp.log(jax.nn.softmax(x, axis)), jax.nn.log_softmax(x, axis)


@rule(level="fast")
def least_of_sorted(x):
    """sort(x)[0] is the least number; equal ones share the derivative. 360x."""
    return jnp.sort(x)[..., 0], jnp.nanmin(x, -1)


@rule(level="fast")
def greatest_of_sorted(x):
    """sort(x)[-1] is the greatest, or NaN; equal ones share the derivative. 1200x."""
    return jnp.sort(x)[..., -1], jnp.max(x, -1)


@rule(where=alone)
def log_one_plus(x):
    """log(1 + x) loses the digits of a small x. 0.7x."""
    return jnp.log(1 + x), jnp.log1p(x)


@rule(where=alone)
def exp_minus_one(x):
    """exp(x) - 1 loses the digits of a small x. 0.7x."""
    return jnp.exp(x) - 1, jnp.expm1(x)


@rule(where=alone)
def quotient_of_exponentials(x):
    """(e^x - e^-x) / (e^x + e^-x) is NaN for a large x. 3x."""
    up, down = jnp.exp(x), jnp.exp(-x)
    return (up - down) / (up + down), jnp.tanh(x)


@rule(where=alone)
def common_factor(a: Arr[WIDE], b: Arr[WIDE], c: Arr[WIDE]):
    """a * b + a * c is one multiplication less. 1.0x: it is memory that takes the time."""
    if b.shape != c.shape:
        return NoMatch("the other factors differ in shape")
    return a * b + a * c, a * (b + c)


@rule(where=alone)
def sum_of_multiple(x: Arr[WIDE], c: Arr["", WIDE], axis: Static):
    """sum(x * c), where c is one number, multiplies once. 1.2x."""
    return jnp.sum(x * c, axis), jnp.sum(x, axis) * c


@rule(level="fast")
def exp_of_log(x: Arr[jnp.inexact]):
    """exp(log(x)) is x; NaN is lost for a negative x. 9x."""
    return jnp.exp(jnp.log(x)), x


@rule(where=alone, level="fast")
def sum_of_logs(a: Arr[FLOAT], b: Arr[FLOAT]):
    """log(a) + log(b) is one logarithm; the product may overflow. 1.7x."""
    return jnp.log(a) + jnp.log(b), jnp.log(a * b)


@rule(level="fast")
def argmax_of_softmax(x: Arr[jnp.floating], axis: Static):
    """argmax(softmax(x)) needs no softmax; which of nearly equal ones is first may change. 1.1x."""
    return jnp.argmax(jax.nn.softmax(x, axis), axis), jnp.argmax(x, axis)


LIBRARY = (
    sum_of_product,
    column_sums_of_product,
    row_sums_of_product,
    trace_of_product,
    diagonal_of_product,
    product_on_vector,
    outer_on_vector,
    kron_on_vector,
    diagonal_times_matrix,
    matrix_times_diagonal,
    matrix_times_identity,
    identity_times_matrix,
    one_hot_on_table,
    common_left_factor,
    common_right_factor,
    inverse_on_right_side,
    inverse_fft_of_fft,
    inverse_rfft_of_rfft,
    log_of_softmax,
    least_of_sorted,
    greatest_of_sorted,
    quotient_of_exponentials,
    common_factor,
    sum_of_multiple,
    exp_of_log,
    sum_of_logs,
    argmax_of_softmax,
)

ACCURATE = (log_one_plus, exp_minus_one, log_of_determinant)
