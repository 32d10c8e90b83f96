"""Which line of a program is told: one of the user's own rather than of a library."""

import equinox as eqx
import jax
import jax.numpy as jnp

from malleable import compat


def test_a_library_that_is_called_does_not_hide_the_users_line():
    layer = eqx.nn.Linear(3, 2, key=jax.random.key(0))
    program = compat.trace(lambda x: layer(x), jnp.ones(3))
    assert {compat.place(eqn)[0] for eqn in program.eqns} == {__file__}
