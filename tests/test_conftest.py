"""The check for leaks sees a tracer that outlives its trace."""

import jax
import jax.numpy as jnp
import pytest

kept: list = []


@pytest.fixture
def forgotten():
    yield
    kept.clear()


@pytest.mark.leaks
@pytest.mark.parametrize("around", [jax.jit, jax.vmap])
def test_a_tracer_kept_in_a_list_is_a_leak(around, forgotten):
    def leaky(x):
        kept.append(x)
        return jnp.sin(x)

    with pytest.raises(Exception, match="Leaked"):
        around(leaky)(jnp.ones(2) if around is jax.vmap else 1.0)


@pytest.mark.caches  # as above, and nobody looks
def test_a_test_marked_caches_is_not_checked(forgotten):
    jax.jit(lambda x: kept.append(x))(1.0)
