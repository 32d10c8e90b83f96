"""Loops, branches and derivatives in NumPy equal XLA's."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax, nn

from tests.execution.numpy.numpy_against_xla import X, assert_same

CONTROL = {
    "cond": lambda x: lax.cond(x.sum() > 0, lambda x: x + 1, lambda x: x * 2, x),
    "switch": lambda x: lax.switch(jnp.int32(9), [jnp.sin, jnp.cos, jnp.tan], x),
    "while": lambda x: lax.while_loop(lambda c: c.sum() < 50, lambda c: abs(c) * 1.5, x),
    "stack of whiles": lambda x: jax.vmap(
        lambda r: lax.while_loop(lambda c: c.sum() < 50, lambda c: abs(c) * 1.5 + 0.1, r)
    )(x),
    "scan": lambda x: lax.scan(lambda c, y: ((c[1], c[0] + y), c[0]), (x[0], x[1]), x),
    "backwards": lambda x: lax.scan(lambda c, y: (c + y, c * y), x[0], x, reverse=True),
    "fori": lambda x: lax.fori_loop(0, 5, lambda i, c: c * 1.1 + i, x),
}


@pytest.mark.parametrize("name", CONTROL)
def test_control_flow_is_pythons(name):
    assert_same(CONTROL[name], X)


DERIVATIVES = {
    "grad": jax.grad(lambda x: jnp.tanh(x @ x.T).sum()),
    "jacfwd": jax.jacfwd(lambda x: nn.softmax(x[0])),
    "hessian": jax.hessian(lambda x: jnp.prod(jnp.sin(x[0]) + 2)),
    "of sort": jax.grad(lambda x: (jnp.sort(x) ** 3).sum()),
    "of scan": jax.grad(lambda x: lax.scan(lambda c, y: (jnp.sin(c) + y, c), x[0], x)[1].sum()),
    "of custom rules": jax.grad(lambda x: (nn.relu(x) + nn.silu(x)).sum()),
    "of checkpoint": jax.grad(lambda x: jax.checkpoint(lambda y: jnp.sin(jnp.sin(y)))(x).sum()),
}


@pytest.mark.parametrize("name", DERIVATIVES)
def test_derivatives(name):
    assert_same(DERIVATIVES[name], X)
