"""A sum of small slices stays one slice while the scan runs, and becomes smaller at its end."""

import jax
import jax.numpy as jnp
import pytest

from malleable import compat
from malleable.rewriting.machine import CPU
from malleable.rewriting.passes.passes import optimize
from tests.scans import X, push, pushed, rollout, same_everywhere, waves

SUMS = {
    "of all": lambda y: y.sum(),
    "of squares": lambda y: jnp.mean(y**2),
    "of two dims of three": lambda y: jnp.broadcast_to(y[..., None], (*y.shape, 2)).sum((0, 1)),
    "of a part": lambda y: y[1:].sum(),
    "with dims of one": lambda y: (y[:, None] ** 2).sum((0, 1, 2)),
    "that leaves dims of one": lambda y: (y[:, None, :, None] ** 2).sum((0, 2)),
    "and another one": lambda y: y.sum() + y.max(),
}


def summed_in_scans(jaxpr, inside=False):
    """How many sums of all that a slice has there are in scans."""
    sums = [e for e in jaxpr.eqns if e.primitive.name == "reduce_sum"]
    here = sum(e.outvars[0].aval.shape == () for e in sums if inside)
    bodies = [(e, body) for e in jaxpr.eqns for body in compat.bodies(e.params)]
    return here + sum(summed_in_scans(b, inside or e.primitive.name == "scan") for e, b in bodies)


def tops(jaxpr):
    """The shapes of the carries that its scan gives."""
    (scan,) = [e for e in jaxpr.eqns if e.primitive.name == "scan"]
    return [v.aval.shape for v in scan.outvars]


@pytest.mark.in_turns
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", SUMS)
def test_a_deferred_sum_is_what_the_sum_was(name, reverse):
    fun = lambda x: SUMS[name](rollout(x, reverse))
    same_everywhere(optimize(fun, push(chunk=1)), fun, X)


def test_a_long_deferred_sum_loses_no_digits():
    fun = lambda x: waves(x, length=5000).sum()
    assert jnp.allclose(optimize(fun, push(chunk=1))(X), fun(X), rtol=1e-6)


def test_no_step_reduces_a_small_slice():
    program = pushed(lambda x: rollout(x).sum(), X)
    assert summed_in_scans(program) == 0
    assert tops(program).count(X.shape) == 2


def test_what_a_step_adds_to_has_no_dims_of_one():
    """XLA:CPU takes half as long again to add where there are."""
    program = pushed(lambda x: (rollout(x)[:, None] ** 2).sum(), X)
    assert summed_in_scans(program) == 0
    assert tops(program).count(X.shape) == 2


@pytest.mark.parametrize(
    ("tail", "limit"),
    [(lambda y: y.sum(), CPU.short_slice - 1), (lambda y: (y**2).sum(), CPU.deferred_slice)],
)
def test_a_large_slice_is_reduced_at_each_step(tail, limit):
    x = jnp.ones(limit // 4 + 1)
    program = pushed(lambda x: tail(rollout(x)), x)
    assert summed_in_scans(program) == 1
    assert tops(program).count(x.shape) == 1


def test_a_sum_that_a_step_needs_is_not_deferred():
    fun = lambda x: jnp.var(rollout(x))
    assert tops(pushed(fun, X)).count(X.shape) == 1
    same_everywhere(optimize(fun, push(chunk=1)), fun, X)


def test_a_deferred_sum_under_jit_of_vmap_is_the_sum_of_each():
    fun = lambda x: rollout(x).sum()
    xs = jnp.stack([X, 2 * X])
    got = jax.jit(jax.vmap(optimize(fun, push(chunk=1))))(xs)
    assert jnp.allclose(got, jnp.stack([fun(x) for x in xs]), rtol=1e-6)
