"""Programs through NumPy: the sizes and places that generated code knows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from malleable.execution.common.sizes import trace_symbolic
from malleable.execution.numpy.code import numpy_function


@pytest.mark.parametrize(
    "fun",
    [
        lambda x: x[1:],
        lambda x: x[:-1],
        lambda x: x[2],
        lambda x: x[:, 1],
        lambda x: x[1:, :2],
        lambda x: x[-1],
        lambda x: x[1:, 1] * x[:-1, 2],
    ],
)
def test_places_that_are_known_are_slices_at_any_size(fun):
    x = np.arange(15, dtype="f").reshape(5, 3)
    symbolic = trace_symbolic(fun, [jax.typeof(jnp.asarray(x))], {(0, 0): "n"})
    function = numpy_function(symbolic.jaxpr)
    for rows in (3, 5):
        np.testing.assert_array_equal(function(x[:rows])[0], fun(jnp.asarray(x[:rows])))


def test_a_stack_of_many_numbers_is_written_once():
    def gathered(x, *places):
        return x[jnp.array(places)]

    places = [np.int32(i) for i in (3, 0, 2, 1, 4, 4, 0, -1, 2, 3)]
    function = numpy_function(jax.make_jaxpr(gathered)(jnp.arange(5.0), *places))
    assert function.source.count("np.concatenate") == 1
    expected = gathered(jnp.arange(5.0), *places)
    np.testing.assert_array_equal(function(np.arange(5, dtype="f"), *places)[0], expected)
