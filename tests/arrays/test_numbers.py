"""Python's numbers on traced values: bools count as integers, round() knows decimals."""

import math
import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from malleable import autograph, listen

BOOLS = {
    "sum": lambda x, y: (x > 0) + (y > 0),
    "difference": lambda x, y: (x > 0) - (y < 9),
    "product": lambda x, y: (x > 0) * (y > 0),
    "negative": lambda x, y: -(x > 0),
    "inverse": lambda x, y: ~(x > 0) + ~(y > 9),
    "shift": lambda x, y: (x > 0) << 1,
    "and": lambda x, y: ((x > 0) & (y > 0)) + (x > 0),
    "not": lambda x, y: (not x > 9) + (not y > 9),
    "and_word": lambda x, y: (x > 0 and y > 0) + (x > 0),
    "chain": lambda x, y: (0 < x < 9) + (0 < y < 9),
    "any": lambda x, y: any([x > 0, y > 0]) + all([x > 0, y > 0]),
    "in": lambda x, y: (x in (1.0, 2.0)) + (y in (1.0, 2.0)),
    "literal": lambda x, y: (x > 0) + True,
    "floor": lambda x, y: (x > 0) // 1 + round(y > 0),
}


@pytest.mark.filterwarnings("ignore:Bitwise inversion")
@pytest.mark.parametrize("name", BOOLS)
def test_a_bool_of_python_is_an_integer(name):
    fun = BOOLS[name]
    out = jax.jit(autograph(fun))(1.0, 2.0)
    want = fun(1.0, 2.0)
    assert out == want and out.dtype.kind == np.asarray(want).dtype.kind


def test_a_bool_of_numpy_is_none():
    fun = autograph(lambda v: (v[0] > 0) + (v[1] > 0))
    assert jax.jit(fun)(np.ones(2)).dtype == bool


def test_a_bool_keeps_its_kind_through_loops_and_branches():
    @jax.jit
    @autograph
    def count(v, x):
        found = x > 0
        for y in v:
            if y > 1:
                found = x > 1
        return found + found

    assert count(np.array([1.0, 2.0]), 3.0) == 2


@pytest.mark.parametrize("n", [2, 0, -2])
def test_a_negated_power_is_a_float(n):
    fun = lambda n: (10**-n, 0.5 * 2 ** (-n))
    assert np.allclose(jax.jit(autograph(fun))(n), fun(n))


def test_a_power_whose_sign_is_unknown_leaves_a_note():
    with listen() as notes:
        assert jax.jit(autograph(lambda n: 2**n))(3) == 8
    assert "integer to a power" in notes[0].what and "x ** -n" in notes[0].why


def test_round_is_of_decimals():
    with jax.enable_x64(True):
        fun = lambda x: (round(x, 2), round(10 * x, 1), round(x))
        rounded = jax.jit(autograph(fun))
        for x in (2.675, 1.005, 0.125, -2.5, 69344.81):
            assert tuple(map(float, rounded(x))) == fun(x)


def test_min_skips_nan_as_comparisons_do():
    least = jax.jit(autograph(lambda v: (min(v), max(v))))
    for v in ([1.0, np.nan, 0.5], [np.nan, 1.0, 2.0]):
        assert np.array_equal(least(np.array(v)), [min(v), max(v)], equal_nan=True)


def _added(x, h):
    total = 0.0
    for one in x:
        total += one
    return total * h


LOOSE = {  # a float of Python's meets NumPy's integers, and the result a narrow float
    "array": lambda x, h: 0.5 * x * h,
    "number": lambda x, h: (1.5 + x[0]) * h,
    "bool": lambda x, h: (x > 5) * 0.7 * h,
    "sum": lambda x, h: x.sum() * 0.1 * h,
    "loop": _added,
    "divmod": lambda x, h: divmod(x, 1.5)[1] * h,
    "rdivmod": lambda x, h: divmod(7.5, x)[0] * h,
    "pow": lambda x, h: pow(x, 2.0) * h,
    "method": lambda x, h: x.__mul__(0.5) * h,
    "descriptor": lambda x, h: type(x).__rmul__(x, 0.5) * h,
    "prod": lambda x, h: math.prod(x, start=0.5) * h,
    "sumprod": lambda x, h: sum(map(operator.mul, x, [0.1, 0.2])) * h,
    "added": lambda x, h: sum(x, 0.5) * h,
}
WIDE = {
    "masked": lambda x, h: (0.1 * x[x > 5]).sum() * h,
    "ufunc": lambda x, h: np.multiply(x, 0.1) * h,
    "function": lambda x, h: np.where(x > 5, 0.1, 1) * h,
    "root": lambda x, h: np.sqrt(float(x[0])) * h,
}


@pytest.mark.parametrize("narrow", [np.float16, np.float32])
@pytest.mark.parametrize("name", LOOSE | WIDE)
def test_a_float_that_an_integer_of_numpy_met_is_as_wide_or_noted(name, narrow):
    fun, x, h = (LOOSE | WIDE)[name], np.array([200, 3], np.uint8), np.array([1.2, 0.3], narrow)
    with jax.enable_x64(True), listen() as notes:
        got, want = jax.jit(autograph(fun))(x, h), fun(x, h)
    assert np.allclose(got, want, rtol=1e-2)
    if name in WIDE:
        assert got.dtype == want.dtype and np.allclose(got, want, rtol=1e-15)
    assert any("takes the type of another float" in n.what for n in notes) is (name in LOOSE)


@pytest.mark.parametrize("name", LOOSE)
def test_a_float_that_an_integer_of_jax_met_is_jaxs(name):
    if name == "loop":
        fun = lambda x, h: sum(0.5 * jnp.arange(2, dtype="uint8")) * h
    else:
        fun = LOOSE[name]
    x, h = jnp.array([200, 3], "uint8"), jnp.ones(2, "bfloat16")
    with listen() as notes:
        got = jax.jit(autograph(fun))(x, h)
    assert got.dtype == fun(x, h).dtype == "bfloat16"
    assert not notes or name == "sum"


def test_nothing_is_said_of_a_float_and_an_integer_where_no_float_is_narrow():
    with listen() as notes:
        jax.jit(autograph(lambda x, h: 0.5 * x * h))(np.array([200, 3], np.uint8), np.ones(2))
    assert not notes
