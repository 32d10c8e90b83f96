"""What a gradient keeps of the steps of a scan, and when a step is computed again instead."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from malleable import compat, stage
from malleable.rewriting.streaming.schedule.residuals import LONG, SLOW, is_better_again, is_heavy
from tests.scans import pushed

WIDE = jnp.ones((40, 10_000))


def rolled(step, length=200):
    """A scan of steps that stacks each new carry: carry -> (last carry, stacked)."""
    both = lambda c, _: (lambda new: (new, new))(step(c))
    return lambda c: lax.scan(both, c, None, length=length)


def view(step, carry):
    """The scan of a step that stacks its new carry."""
    program = stage(rolled(step))(carry).jaxpr
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
    raise RuntimeError("it has no gradient")


custom.defvjp(refuse, refuse)


@pytest.mark.parametrize("name", STEPS)
def test_a_step_is_computed_again_where_that_keeps_less(name):
    step, again = STEPS[name]
    start = WIDE[:4, :100] if name == "little" else WIDE
    assert is_better_again(view(step, start), [0], 1) is again


def test_a_chunk_keeps_one_carry_for_all_its_steps():
    stepwise = view(lambda c: c + 0.1 * jnp.sin(c), WIDE)
    assert is_better_again(stepwise, [], 8) and not is_better_again(stepwise, [], 1)


def test_push_leaves_a_linear_step_as_it_is():
    wave = rolled(lambda c: c + 0.1 * (jnp.roll(c, 1, 0) - c))
    loss = lambda c: jnp.abs(wave(c)[1]).max()
    remats = lambda how: str(pushed(loss, WIDE, threshold=None, remat=how)).count(" remat2[")
    assert remats("auto") == remats("tail") < remats("body")


def test_what_takes_long_is_heavy():
    key = jax.random.key(0)
    slow = stage(lambda x: lax.cond(x > 0, lambda: jax.random.normal(key), lambda: x))(1.0).jaxpr
    product = stage(lambda x: x @ x)(jnp.eye(2)).jaxpr
    assert is_heavy(slow) and is_heavy(slow, SLOW)
    assert is_heavy(product, LONG) and not is_heavy(product, SLOW)
    assert not is_heavy(stage(lambda x: jnp.sin(x).sum())(1.0).jaxpr)


@pytest.mark.parametrize(
    ("step", "width", "scans"),
    [
        (lambda c: 0.9 * c + 0.1, 1024, 2),  # 4 KiB: a reduction takes as long as the step
        (lambda c: 0.9 * c + 0.1, 100_000, 1),
        (lambda c: 0.9 * (c.reshape(32, 32) @ jnp.eye(32)).reshape(1024), 1024, 1),
    ],
    ids=["short", "wide", "with a product"],
)
def test_short_steps_are_reduced_several_at_once(step, width, scans):
    fun = lambda c: jnp.abs(rolled(step, 2000)(c)[1]).max()
    done = pushed(fun, jnp.ones(width), threshold=None, chunk="auto")
    assert str(done).count(" scan[") == scans


@pytest.mark.parametrize(
    ("rows", "columns", "steps"),
    [(64, 128, 64), (64, 64, 1), (16, 4096, 16), (512, 1024, 1)],
)
def test_a_chunk_has_rows_enough_for_a_product(rows, columns, steps):
    """As many as make 2 MiB, or 256; one step where the matrix is small."""
    w = jnp.ones((128, columns))
    fun = lambda c: ((rolled(jnp.tanh, 512)(c)[1] @ w) ** 2).sum()
    done = pushed(fun, jnp.ones((rows, 128)), threshold=None, chunk="auto")
    (loop,) = (e for e in done.eqns if e.primitive.name == "scan")
    assert loop.params["length"] == 512 // steps


def test_blocks_of_narrow_steps_are_worth_a_loop():
    fun = lambda c: jnp.abs(rolled(lambda c: 0.9 * c + 0.1, 200_000)(c)[1]).max()
    done = pushed(fun, jnp.ones(32), threshold=None, chunk="auto")
    (loop,) = (e for e in done.eqns if e.primitive.name == "scan")
    assert 64 <= 200_000 / loop.params["length"] <= 512


# What a step is: adds, works out a sine, multiplies by a matrix.
ADDS, WAVES, TURNS = (
    lambda c: 0.9 * c + 0.1,
    lambda c: 0.9 * jnp.sin(c),
    lambda c: jnp.tanh(jnp.eye(c.size) @ c),
)


@pytest.mark.parametrize(
    ("step", "reduce", "width", "length", "rows"),
    [
        (ADDS, lambda y: jnp.abs(y).max(), 64, 10_240, 0),  # 2.5 MiB: the caches hold them
        (ADDS, lambda y: jnp.abs(y).max(), 64, 81_920, 128),
        (ADDS, lambda y: jnp.abs(y).max(), 500, 2_048, 0),
        (WAVES, lambda y: jnp.abs(y).max(), 500, 2_048, 16),
        (ADDS, lambda y: (y**2).sum(), 64, 10_240, 1),  # to add takes no time
        (ADDS, lambda y: jax.nn.relu(y).sum(), 64, 10_240, 1),
        (ADDS, lambda y: jax.nn.softplus(y).sum(), 64, 10_240, 0),  # in a call
        (ADDS, lambda y: jnp.log(1 + y**2).sum(), 64, 10_240, 0),
        (TURNS, lambda y: jnp.log(1 + y**2).sum(), 64, 10_240, 128),
        (TURNS, lambda y: jax.nn.logsumexp(y, 1).sum(), 64, 10_240, 128),
    ],
)
def test_where_slices_are_short(step, reduce, width, length, rows):
    fun = lambda c: reduce(rolled(step, length)(c)[1])
    done = pushed(fun, jnp.ones(width), threshold=None, chunk="auto")
    (loop,) = (e for e in done.eqns if e.primitive.name == "scan")
    is_pushed = all(v.aval.shape[:1] != (length,) for v in loop.outvars)
    assert (length // loop.params["length"] if is_pushed else 0) == rows
