"""`unstage` of layers of a library: its own maps of its own functions are not taken apart."""

import equinox as eqx
import jax
import jax.numpy as jnp

from malleable.inspection.unstaging import unstage as module
from malleable.inspection.unstaging.unstage import unstage


def test_a_vmap_that_a_library_makes_of_its_own_functions_runs_as_a_whole(monkeypatch):
    taken_apart, run = [], module.unless_refused
    monkeypatch.setattr(module, "unless_refused", lambda *a: taken_apart.append(a[1]) or run(*a))
    model = eqx.nn.MLP(2, 1, 8, 2, key=jax.random.key(0))
    seen = []

    def norm(x):
        seen.append(x)
        return model(x)

    xs = jnp.ones((3, 2))
    out = unstage(jax.vmap(norm))(xs)
    assert jnp.allclose(out, jax.vmap(model)(xs), atol=1e-6)
    assert len(seen) == 3  # the user's own vmap: an example at a time
    assert taken_apart == ["vmap"]


def test_an_activation_of_the_users_is_called_for_each_unit_of_a_layer():
    seen = []

    def steep(x):
        seen.append(float(x))
        return jnp.tanh(2 * x)

    model = eqx.nn.MLP(2, 1, 8, 1, activation=steep, key=jax.random.key(0))
    unstage(model)(jnp.ones(2))
    assert len(seen) == 8
