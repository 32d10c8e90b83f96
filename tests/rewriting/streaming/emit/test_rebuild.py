"""Loops of all kinds, with a tail in their bodies."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from malleable import compat
from malleable.rewriting.passes.passes import optimize
from malleable.rewriting.streaming.emit import rebuild
from tests.scans import X, push, pushed, rollout, same_everywhere, turned, waves


def of_batches(each, size, tail):
    return lambda x: tail(lax.map(each, x, batch_size=size), x)


LOOPS = {
    "batches": of_batches(lambda a: jnp.sin(a) * 2, 4, lambda y, x: y.sum(0)),
    "batches of two results": of_batches(
        lambda a: (jnp.sin(a) * 2, a.sum()),
        4,
        lambda y, x: ((y[0] - x) ** 2).mean() + y[1].max(),
    ),
    "batches, normalised": of_batches(
        lambda a: a * a, 3, lambda y, x: jax.nn.logsumexp(y, 0) + jnp.cumsum(y, 0).max(0)
    ),
    "batches that divide": of_batches(lambda a: a * a, 5, lambda y, x: y.sum(0)),
    "vmap in the middle": jax.vmap(lambda x: waves(x).mean(0).max()),
    "two scans, nested": lambda x: lax.scan(lambda c, _: (c * 0.5, waves(c)), x, length=4)[
        1
    ].mean(),
    "a tail in a body": lambda x: lax.scan(lambda c, _: (c * 0.5, waves(c).sum(0)), x, length=4)[
        1
    ].max(0),
    "two scans, joined": lambda x: jnp.concatenate(
        [waves(x), jnp.cos(waves(x, reverse=True))], -1
    ).mean((0, 1)),
    "unrolled": lambda x: waves(x, unroll=4).mean(0),
    "in a cond": lambda x: lax.cond(x[0, 0] > 0, lambda: waves(x).mean(), lambda: 0.0),
    "the final carry beside it": lambda x: (lambda c, y: c * y.mean())(
        *lax.scan(turned, x, length=6)
    ),
    "under checkpoint": jax.checkpoint(lambda x: waves(x).mean(0)),
    "gradient inside": jax.grad(lambda x: waves(x).mean() + jax.nn.logsumexp(waves(x))),
}


@pytest.mark.in_turns
@pytest.mark.parametrize("options", [{"chunk": 1}, {"chunk": 2, "remat": "body"}], ids=str)
@pytest.mark.parametrize("name", LOOPS)
def test_loops_of_all_kinds_give_what_they_gave(name, options):
    fun, x = LOOPS[name], jnp.linspace(0.2, 1.0, 20).reshape(10, 2)
    same_everywhere(optimize(fun, push(**options)), fun, x)


def test_the_derivatives_of_a_user_stay_theirs():
    @jax.custom_vjp
    def clipped(x):
        return jnp.sin(x)

    clipped.defvjp(lambda x: (clipped(x), x), lambda x, ct: (5 * ct,))
    fun = lambda x: clipped(rollout(x)).sum(0)
    same_everywhere(optimize(fun, push), fun, X)


def test_a_sum_of_wide_carries_is_taken_one_step_behind():
    x = jnp.linspace(0.0, 3.0, 1024)
    fun = lambda x: [waves(x, reverse=reverse).sum(0) for reverse in (False, True)]
    scans = [e for e in pushed(fun, x, chunk=1).eqns if e.primitive.name == "scan"]
    assert [e.params["length"] for e in scans] == [5, 5]
    same_everywhere(optimize(fun, push(chunk=1)), fun, x)


def inside(jaxpr):
    """The bodies in a program, and those in these."""
    for eqn in jaxpr.eqns:
        for body in compat.bodies(eqn.params):
            yield body
            yield from inside(body)


@pytest.mark.parametrize("options", [{"chunk": 1}, {"chunk": 2, "remat": "body"}], ids=str)
@pytest.mark.parametrize("name", LOOPS)
def test_every_body_that_is_made_here_is_stamped(name, options):
    """Else it would be taken for the user's, and pushed into again."""
    jaxpr = pushed(LOOPS[name], jnp.linspace(0.2, 1.0, 20).reshape(10, 2), **options)
    mine = [b for b in inside(jaxpr) if rebuild.__file__ in b.jaxpr.debug_info.func_src_info]
    assert mine or name == "gradient inside"  # nothing is pushed there
    assert all(rebuild.is_ours(body) for body in mine)
