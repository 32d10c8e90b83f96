"""A region in reach of a library's handler does what the handler is to hear, in each call."""

import jax
import jax.numpy as jnp
import pytest

from malleable import jit
from malleable.execution.common.listeners import is_heard

numpyro = pytest.importorskip("numpyro")
hk = pytest.importorskip("haiku")
dist, handlers = numpyro.distributions, numpyro.handlers

KEY, X = jax.random.key(0), jnp.ones((4, 3))


def model(x):
    w = numpyro.sample("w", dist.Normal(jnp.zeros(3), 1.0).to_event(1))
    return numpyro.sample("y", dist.Normal(x @ w, 1.0))


def draws(key, x):
    with handlers.seed(rng_seed=key), handlers.trace() as sites:
        model(x)
    return {name: site["value"] for name, site in sites.items()}


def test_nobody_hears_outside_of_handlers():
    assert not is_heard()
    with handlers.trace():
        assert is_heard()


def test_sites_are_there_at_each_call():
    made = jit(draws)
    for _ in range(3):
        out, wanted = made(KEY, X), draws(KEY, X)
        assert out.keys() == wanted.keys() == {"w", "y"}
        assert all(jnp.allclose(out[name], wanted[name]) for name in out)


def test_a_function_compiled_before_is_heard_in_a_handler():
    made = jit(lambda x: numpyro.sample("w", dist.Normal(x, 1.0), obs=x * 2) + 1)
    assert made(1.0) == made(1.0) == 3
    with handlers.trace() as sites:
        assert made(1.0) == 3
    assert set(sites) == {"w"}


def test_parameters_of_haiku_are_asked_for_at_each_call():
    net = hk.without_apply_rng(
        hk.transform(jit(lambda x: x @ hk.get_parameter("w", (3,), init=jnp.ones)))
    )
    params = net.init(None, X)
    for k in (1.0, 2.0):
        scaled = jax.tree.map(lambda w, k=k: k * w, params)
        assert jnp.allclose(net.apply(scaled, X), 3 * k)
