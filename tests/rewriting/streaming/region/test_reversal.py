"""What a scan stacks, reversed on its way to a reduction."""

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

from malleable import optimize, push_up_reductions, stage
from tests.rewriting.axis.test_axes import numbers
from tests.rewriting.axis.test_scatters import PUSH, N, T, X, stacks, walk

W, G = jnp.linspace(1, 2, T), numbers(T, N)

TURNED = {
    "weights": lambda x: (walk(x)[::-1] * W[:, None]).sum(0),
    "a discount": lambda x: (jnp.flip(walk(x), 0) * 0.9 ** jnp.arange(T)[:, None]).sum(0),
    "targets as long": lambda x: ((walk(x)[::-1] - G) ** 2).mean(),
    "max": lambda x: jnp.flip(walk(x), 0).max(0),
    "product": lambda x: W @ jnp.flip(walk(x), 0),
    "one": lambda x: walk(x)[::-1][2],
    "a part": lambda x: walk(x)[::-1][2:].sum(0),
    "twice": lambda x: jnp.sin(walk(x)[::-1])[::-1][-1],
    "of a reverse scan": lambda x: (walk(x, True)[::-1] * W[:, None]).sum(0),
    "transposed": lambda x: (walk(x).T[:, ::-1] * W).sum(1),
    "all elements": lambda x: (walk(x)[::-1].ravel() * jnp.arange(T * N)).sum(),
    "under vmap": jax.vmap(lambda x: (walk(jnp.stack([x, -x]))[::-1] * W[:, None]).sum(0)),
    "a running sum": lambda x: jnp.cumsum(walk(x)[::-1][::-1], 0).max(0),
}


@pytest.mark.in_turns
@pytest.mark.parametrize("name", TURNED)
def test_what_is_reversed_is_reduced_in_the_scan(name):
    fun = TURNED[name]
    pushed = optimize(fun, PUSH)
    assert not stacks(pushed, T) or name in ("targets as long", "all elements")  # these are given
    np.testing.assert_allclose(jax.jit(pushed)(X), jax.jit(fun)(X), rtol=1e-4, atol=1e-4)
    loss = lambda f: jax.jit(jax.grad(lambda x: jnp.sum(jnp.sin(0.1 * f(x)))))
    np.testing.assert_allclose(loss(pushed)(X), loss(fun)(X), rtol=1e-3, atol=1e-3)
    assert str(stage(pushed)(X).jaxpr) == str(PUSH(stage(pushed)(X).jaxpr))


KEPT = {
    "used as it is": lambda x: walk(x)[::-1],
    "with itself": lambda x: (walk(x) * walk(x)[::-1]).sum(0),
    "its places": lambda x: jnp.argmax(walk(x)[::-1], 0),
    "every second": lambda x: walk(x)[::-1][::2].sum(0),
    "the last carry": lambda x: lax.scan(lambda c, t: (jnp.sin(c + t), None), x, W)[0][::-1] @ G.T,
    "something larger instead": lambda x: jnp.tile(W, (99, 1)) @ walk(x).sum(1)[::-1],
    "a scan of it": lambda x: lax.scan(lambda c, h: (0.5 * c + h, None), x, walk(x)[::-1])[0],
}


@pytest.mark.parametrize("name", KEPT)
def test_what_needs_the_order_stays(name):
    fun = KEPT[name]
    pushed = optimize(fun, PUSH)
    np.testing.assert_array_equal(jax.jit(pushed)(X), jax.jit(fun)(X))
    assert str(stage(pushed)(X).jaxpr) == str(PUSH(stage(pushed)(X).jaxpr))


def test_sums_in_their_old_order_stay():
    pushed = optimize(TURNED["weights"], push_up_reductions(threshold=0, level="exact"))
    assert jnp.array_equal(pushed(X), TURNED["weights"](X))
