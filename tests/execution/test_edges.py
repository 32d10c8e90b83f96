"""NumPy and XLA differ by rounding alone: NaN, infinities, zeros, overflow, ties, denormals."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import malleable as mal
from malleable.execution.common.host_values import QUIET
from malleable.execution.numpy.code import numpy_function

SPECIAL = [0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 0.5, 2.5, -2.5, 3e9, -3e9, 1e20, 3e38, 100.0]
FLOATS = np.array(SPECIAL, "f")
INTS = np.array([0, 1, -1, 2, -7, 5, 31, 32, 33, -32, 2**31 - 1, -(2**31), 2**30], "i")
UNSIGNED = np.array([0, 1, 2, 31, 32, 33, 2**32 - 1, 2**31], "u4")
LOW = np.array([1e-40, -1e-40, 1e-45, 0, -0.0, 1.2e-38, -1e-38, 1e-20, -1e-20, 1, 3e38], "f")
TIES = np.array([1, np.nan, 3, 3, -0.0, 0.0, np.inf, -np.inf, np.nan, -1, 1], "f")
TYPES = ["int8", "int16", "int32", "uint8", "uint16", "uint32", "bool", "float16"]

UNARY = """neg abs sign floor ceil round exp expm1 log log1p sqrt rsqrt tanh sin cos acos atan sinh
asinh acosh atanh logistic erf erf_inv is_finite square"""
BINARY = "add sub mul div rem pow atan2 eq ne lt ge"
OF_INTS = """add sub mul div rem max min shift_left shift_right_logical shift_right_arithmetic
bitwise_and"""


def pairs(x):
    return np.repeat(x, len(x)), np.tile(x, len(x))


def functions(names):
    return [getattr(lax, name) for name in names.split()]


def of_ties(x):
    n = x.size
    places = jnp.array([0, 50, -1, -60])
    return (
        *(jnp.argmax(x), jnp.argmin(x), jnp.sort(x), jnp.argsort(x), lax.top_k(x, 3)),
        *(jnp.argsort(x, descending=True), jnp.max(x), jnp.min(x), lax.cummax(x), jnp.any(x)),
        *(jnp.searchsorted(jnp.sort(x), x), lax.sort((x, jnp.arange(n)[::-1]), num_keys=2)),
        *(x[places], x.at[places].set(x[1]), x.at[places].get(mode="fill"), jnp.lexsort((x, x))),
        *(
            jax.ops.segment_max(x, jnp.arange(n) % 3, 4),
            jnp.clip(x, -0.5, 1),
            jnp.where(x > 0, x, 0),
        ),
        *(lax.dynamic_slice(x, (i,), (2,)) for i in (np.int32(50), np.int32(-50))),
    )


def of_low(x):
    sums = jnp.cumsum(x) * 2, jnp.sum(x), jnp.prod(x), x @ x
    order = jnp.argsort(x), jnp.searchsorted(jnp.sort(x), x), x == 0, jnp.where(x > 0, x + 1, 2.0)
    computed = [f(x) for f in functions("sign sqrt rsqrt log ceil floor square exp")]
    return *sums, *order, *computed, jnp.exp(-x * 1e22) == 0, jnp.sqrt(x * 1e-19) > 0


CASES = {
    "functions": (lambda x: [f(x) for f in functions(UNARY)], FLOATS),
    "pairs": (lambda x, y: [f(x, y) for f in functions(BINARY)], *pairs(FLOATS)),
    "integers": (lambda x, y: [f(x, y) for f in functions(OF_INTS)], *pairs(INTS)),
    "unsigned": (lambda x, y: [f(x, y) for f in functions(OF_INTS)], *pairs(UNSIGNED)),
    "whole": (lambda x, y: (jnp.floor_divide(x, y), jnp.mod(x, y)), *pairs(INTS)),
    "modulo": (lambda x, y: (jnp.floor_divide(x, y), jnp.mod(x, y)), *pairs(FLOATS)),
    "casts": (lambda x: [x.astype(t) for t in TYPES], FLOATS),
    "casts of integers": (lambda x: [x.astype(t) for t in TYPES], INTS),
    "low": (of_low, LOW),
    "pairs of low": (
        lambda x, y: [f(x, y) for f in functions("add sub mul div lt ge")],
        *pairs(LOW),
    ),
    "powers": (lambda x: [lax.integer_pow(x, n) for n in (-2, -1, 0, 3)], FLOATS),
    "ties": (of_ties, TIES),
    "ties of integers": (of_ties, np.array([2, 2, 1, 1, 3, 3, -1, 2**31 - 1], "i")),
    "losses": (lambda x: (jax.nn.softmax(x), jax.nn.softplus(x), jax.nn.relu(x)), FLOATS),
}


@pytest.mark.parametrize("case", CASES)
def test_edge_values_are_those_of_xla(case):
    fun, *args = CASES[case]
    run = numpy_function(jax.make_jaxpr(fun)(*args))
    for out, due in zip(run(*args), map(np.asarray, jax.tree.leaves(jax.jit(fun)(*args)))):
        assert (out.dtype, out.shape) == (due.dtype, due.shape)
        if due.dtype.kind != "f":
            np.testing.assert_array_equal(out, due)
            continue
        np.testing.assert_allclose(out, due, rtol=2e-3 if due.dtype.itemsize == 2 else 2e-5)
        zero = (due == 0) & (np.asarray(out) == 0)
        np.testing.assert_array_equal(np.signbit(out)[zero], np.signbit(due)[zero])


def test_the_users_arithmetic_keeps_its_denormals():
    run = numpy_function(jax.make_jaxpr(lambda x: x * 2)(LOW))
    assert run(LOW)[0][0] == 0 and LOW[0] * 2 != 0

    def fails(x):
        assert x[0] * 2 == 0
        raise ValueError("in between")

    with pytest.raises(ValueError, match="in between"):
        QUIET.run(fails, LOW)
    assert LOW[0] * 2 != 0


def test_denormal_results_are_zero_as_in_xla():
    def tiny(x):
        kept = x[x > 0]
        print(end="")
        return kept * 1e-30, -kept * 1e-30, jnp.exp(-kept * 1e12)

    x = jnp.array([1e-10, -1.0, 1.0])
    for host in ("numpy", "jax"):
        found = mal.jit(tiny, host=host)(x)
        for out, due in zip(found, jax.tree.map(np.asarray, tiny(x)), strict=True):
            np.testing.assert_array_equal(np.asarray(out) == 0, due == 0)
            np.testing.assert_array_equal(np.signbit(out), np.signbit(due))


def test_a_defaultdict_whose_keys_have_no_order_is_an_object():
    def grouped(keys, x):
        groups = collections.defaultdict(list)
        for key, v in zip(keys, x, strict=True):
            groups[key].append(v * 2)
        return groups["none"], len(groups), groups[1]

    jitted = mal.jit(grouped)
    for _ in range(2):
        empty, count, (first,) = jitted((1, 2), jnp.arange(2.0))
        assert empty == [] and count == 3 and float(first) == 0.0
