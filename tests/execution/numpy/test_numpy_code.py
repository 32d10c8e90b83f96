"""One function for every size, readable, or a reason why not."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax, nn

from malleable.execution.common.breaks import Unsupported
from malleable.execution.numpy.code import numpy_function
from malleable.execution.numpy.writer import number_text
from tests.execution.numpy.numpy_against_xla import X, assert_same

SYMBOLIC = {
    "mean": lambda x: x.sum(0) / x.shape[0],
    "reverse": lambda x: x[::-1],
    "flat": lambda x: x.reshape(-1) * 2,
    "joined": lambda x: jnp.concatenate([x, x], 0),
    "differences": lambda x: x[1:] - x[:-1],
    "counted": lambda x: jnp.arange(x.shape[0]) + jnp.zeros((2, x.shape[0])),
    "product": lambda x: x @ x.T,
    "sorted": lambda x: x[jnp.argsort(x[:, 0])],
    "quantile": lambda x: jnp.quantile(x, 0.3, axis=0),
    "identity": lambda x: jnp.eye(x.shape[0]),
    "scan": lambda x: lax.scan(lambda c, y: (c + y, c * y), x[0], x),
    "grad": jax.grad(lambda x: jnp.tanh(x @ x.T).sum()),
    "softmax": lambda x: nn.softmax(x, 0),
}


@pytest.mark.parametrize("name", SYMBOLIC)
def test_one_function_for_every_size(name):
    n, m = export.symbolic_shape("n, m")
    run = numpy_function(jax.make_jaxpr(SYMBOLIC[name])(jax.ShapeDtypeStruct((n, m), "float32")))
    for shape in ((4, 3), (1, 1)):
        x = np.ones(shape, "f") * np.arange(shape[0], dtype="f")[:, None]
        for out, due in zip(run(x), jax.tree.leaves(jax.jit(SYMBOLIC[name])(x))):
            assert (out.dtype, out.shape) == (due.dtype, due.shape)
            np.testing.assert_allclose(out, due, 1e-5, 1e-5)


def test_the_code_reads_as_one_would_write_it():
    run = assert_same(lambda x: ((x - x.mean(0)) ** 2).sum(1), X)
    assert "np.add.reduce(np.square(a - " in run.source
    assert "broadcast_to" not in run.source


def test_what_is_computed_twice_is_written_once():
    run = assert_same(lambda x: (x - x.mean(0)) / x.std(0), X)
    assert run.source.count("np.add.reduce(a, 0)") == 1


def test_names_are_deleted_after_their_branches():
    def branchy(x):
        y = jnp.sin(x) * jnp.cos(x).sum()
        z = lax.cond(y.sum() > 0, lambda y: y + y.sum(), lambda y: y * y.max(), y)
        return lax.fori_loop(0, 3, lambda i, c: c + z, z * 2).sum(0) + z.max()

    assert_same(branchy, X)


def test_keys_neither_go_in_nor_out():
    key = jax.random.key(0)
    with pytest.raises(Unsupported, match="keys"):
        numpy_function(jax.make_jaxpr(lambda k: jax.random.uniform(k, (3,)))(key))
    with pytest.raises(Unsupported, match="keys"):
        numpy_function(jax.make_jaxpr(jax.random.key)(0))


def test_what_runs_elsewhere_is_refused():
    def called_back(x):
        return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    with pytest.raises(Unsupported, match="pure_callback"):
        numpy_function(jax.make_jaxpr(called_back)(X))
    with pytest.raises(Unsupported, match="side effect"):
        numpy_function(jax.make_jaxpr(lambda x: jax.debug.print("{}", x))(X))


@pytest.mark.parametrize("value", [2.5, 0.0, 1e-4, -6e-8, 65504.0])
def test_a_number_of_a_small_type_is_written_without_a_warning(value):
    x = np.float16(value)
    with warnings.catch_warnings(action="error"):
        assert np.float16(eval(number_text(x))) == x
