"""What a gradient keeps of the steps of a scan, and when a step is computed again instead."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from malleable import compat, stage
from malleable.rewriting.residuals import LONG, SLOW, is_better_again, is_heavy
from tests.rules import prims
from tests.scans import pushed

WIDE = jnp.ones((40, 10_000))


def view(step, carry, length=200):
    """The scan of a step that stacks its new carry."""
    both = lambda c, _: (lambda new: (new, new))(step(c))
    program = stage(lambda c: lax.scan(both, c, None, length=length))(carry).jaxpr
    (eqn,) = (e for e in program.eqns if e.primitive.name == "scan")
    found: Any = compat.view(eqn)
    return found


STEPS = {
    "elements": (lambda c: jnp.sin(c) * jnp.cos(c), True),
    "little": (lambda c: jnp.sin(c) * jnp.cos(c), False),
    "linear": (lambda c: c + 0.1 * (jnp.roll(c, 1, 0) - c), False),
    "numbers are drawn": (
        lambda c: jnp.sin(c) * jnp.cos(c) + jax.random.normal(jax.random.key(0), c.shape),
        False,
    ),
    "a system inside": (
        lambda c: jnp.sin(c) * jnp.cos(c) + jnp.linalg.solve(jnp.eye(2), c[:2, :2]).sum(),
        False,
    ),
    "a branch in the way": (
        lambda c: lax.cond(c[0, 0] > 0, jnp.sin, lambda c: jnp.exp(c) * jnp.cos(c), c) * jnp.cos(c),
        True,
    ),
    "no gradient": (lambda c: jnp.sin(c) * custom(c), False),
}


@jax.custom_vjp
def custom(c):
    return jnp.cos(c)


def refuse(c):
    raise TypeError("it has no gradient")


custom.defvjp(refuse, refuse)


@pytest.mark.parametrize("name", STEPS)
def test_a_step_is_computed_again_where_that_keeps_less(name):
    step, again = STEPS[name]
    start = WIDE[:4, :100] if name == "little" else WIDE
    assert is_better_again(view(step, start), [0], 1) is again


def test_a_chunk_keeps_one_carry_for_all_its_steps():
    stepwise = view(lambda c: c + 0.1 * jnp.sin(c), WIDE)
    assert is_better_again(stepwise, [], 8) and not is_better_again(stepwise, [], 1)


def test_the_gradient_of_a_linear_step_does_not_compute_it_again():
    def loss(c):
        wave = lambda c, _: (lambda new: (new, new))(c + 0.1 * (jnp.roll(c, 1, 0) - c))
        return jnp.abs(lax.scan(wave, c, None, length=200)[1]).max()

    backward = stage(jax.grad(lambda c: pushed_loss(loss, c)))(WIDE).jaxpr
    assert prims(backward).count("remat2") + prims(backward).count("checkpoint") <= 1


def pushed_loss(loss, c):
    (out,) = compat.replay(pushed(loss, c, threshold=None), [c])
    return out


def test_what_takes_long_is_heavy():
    key = jax.random.key(0)
    slow = stage(lambda x: lax.cond(x > 0, lambda: jax.random.normal(key), lambda: x))(1.0).jaxpr
    product = stage(lambda x: x @ x)(jnp.eye(2)).jaxpr
    assert is_heavy(slow) and is_heavy(slow, SLOW)
    assert is_heavy(product, LONG) and not is_heavy(product, SLOW)
    assert not is_heavy(stage(lambda x: jnp.sin(x).sum())(1.0).jaxpr)
