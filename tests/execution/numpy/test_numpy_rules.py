"""Elementwise NumPy code equals XLA's, at the edges of the types too."""

import jax.numpy as jnp
import jax.scipy as jsp
import numpy as np
import pytest
from jax import lax, nn

from tests.execution.numpy.numpy_against_xla import EDGES, INTS, X, assert_same

ELEMENTWISE = {
    "chain": lambda x: jnp.tanh(x * 2 + 1) ** 2 - jnp.exp(-x) / 3,
    "logistic": lambda x: (nn.sigmoid(x), nn.relu(x), nn.gelu(x), nn.softplus(x)),
    "rounding": lambda x: (jnp.round(x), jnp.floor(x), jnp.ceil(x), lax.round(x), jnp.sign(x)),
    "conversions": lambda x: (x.astype(int), x.astype("int8"), x.astype("uint8"), x.astype(bool)),
    "powers": lambda x: (x**2, x**3, x**5, x**-1, x**-2, jnp.abs(x) ** 0.3),
    "select": lambda x: (jnp.where(x > 0, x, 0), jnp.clip(x, -1, 1), jnp.maximum(x, 0)),
    "special": lambda x: (jsp.special.erf(x), jsp.special.gammaln(x), jsp.special.digamma(x)),
    "narrow": lambda x: (x.astype(jnp.bfloat16) * 2 + 1, jnp.exp(x.astype("float16"))),
    "complex": lambda x: (jnp.exp(1j * x), jnp.abs(x + 2j), (x + 1j) / (x - 2j)),
    "remainders": lambda x: (x % 3, jnp.fmod(x, 2), x // 2),
}


@pytest.mark.parametrize("name", ELEMENTWISE)
@pytest.mark.parametrize("x", [X, EDGES, np.float32(0.3), X[:0]], ids=["array", "edges", "0d", "0"])
def test_elementwise_functions(name, x):
    assert_same(ELEMENTWISE[name], x)


def test_complex_constants_are_arrays_where_they_have_to_be():
    def fun(x):
        ones = jnp.ones((3, 3)).astype(jnp.complex64)
        return x.astype(jnp.complex64) @ ones, ones + x[:1], 2 * ones

    assert_same(fun, X)


def test_integers_divide_and_shift_as_in_xla():
    y = np.array([2, 0, -3, 2, -1, 40, -5, 0], "i")
    assert_same(lambda x, y: (lax.div(x, y), lax.rem(x, y), x // y, x % y), INTS, y)
    shifts = lax.shift_left, lax.shift_right_logical, lax.shift_right_arithmetic
    assert_same(lambda x, y: [s(x, y) for s in shifts], INTS, y)
    assert_same(lambda x: (lax.clz(x), lax.population_count(x), -x, abs(x), ~x, x * x), INTS)
    assert_same(lambda x: (x.astype("uint8") - 1, x.astype("uint32") >> 3), INTS)
