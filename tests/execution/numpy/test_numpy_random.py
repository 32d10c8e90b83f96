"""Random numbers in NumPy are JAX's."""

import jax
import numpy as np
import pytest

from malleable.execution.common.breaks import Unsupported
from malleable.execution.numpy.code import numpy_function
from tests.execution.numpy.numpy_against_xla import assert_same

RANDOM = {
    "draws": lambda k: (jax.random.uniform(k, (3, 2)), jax.random.normal(k, (3,))),
    "integers": lambda k: (jax.random.randint(k, (3,), 0, 5), jax.random.permutation(k, 7)),
    "keys": lambda k: jax.random.key_data(jax.random.split(jax.random.wrap_key_data(k), 3)[1:]),
    "mapped": lambda k: jax.vmap(lambda q: jax.random.normal(q, (2,)))(jax.random.split(k, 3)),
    "folded": lambda k: jax.random.bits(jax.random.fold_in(k, 7), (3,), "uint8"),
}


@pytest.mark.parametrize("name", RANDOM)
def test_random_numbers_are_the_same(name):
    assert_same(RANDOM[name], np.array([3, 4], "u4"))


def test_a_key_that_the_program_brings_along_has_no_numpy_code():
    key = jax.random.key(3)
    program = jax.make_jaxpr(lambda x: x + jax.random.normal(key, (3,)))(1.0)
    with pytest.raises(Unsupported, match="random key"):
        numpy_function(program)
