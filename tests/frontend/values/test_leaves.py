"""Rows put together: values, lanes and derivatives of every order."""

import jax
import jax.numpy as jnp
import numpy as np

from malleable.frontend.values.leaves import stack

ROWS = [jnp.arange(3.0) + i for i in range(5)]


def loss(*rows):
    return (stack(rows) ** 3).sum()


def plain(*rows):
    return (jnp.stack(rows) ** 3).sum()


def same(one, other):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), one, other)


def test_it_is_jnp_stack():
    assert stack(ROWS).tolist() == jnp.stack(ROWS).tolist()


def test_its_derivatives_are_those_of_jnp_stack():
    same(jax.grad(loss, argnums=(0, 3))(*ROWS), jax.grad(plain, argnums=(0, 3))(*ROWS))
    same(jax.jvp(loss, ROWS, ROWS), jax.jvp(plain, ROWS, ROWS))
    same(jax.hessian(loss)(*ROWS), jax.hessian(plain)(*ROWS))


def test_some_of_its_rows_may_have_lanes():
    lanes = jnp.stack([ROWS[0], ROWS[1]])
    for transformed in (jax.vmap, lambda f, axes: jax.vmap(jax.grad(f), axes)):
        axes = (0, None, None, None, None)
        got = transformed(loss, axes)(lanes, *ROWS[1:])
        same(got, transformed(plain, axes)(lanes, *ROWS[1:]))
