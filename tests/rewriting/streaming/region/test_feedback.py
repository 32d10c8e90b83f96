"""Results of an axis that its own elements need: a softmax or a variance, in one pass over it."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from malleable import stage
from malleable.rewriting.passes.passes import optimize
from tests.scans import B, N, W, X, in_turns, push, reasons, rollout, stacked
from tests.scans import same_everywhere as same

NORMALISED = {
    "logsumexp": lambda y, x, w: jax.nn.logsumexp(y, 0),
    "logsumexp of all": lambda y, x, w: jax.nn.logsumexp(y),
    "logsumexp by hand": lambda y, x, w: (lambda top: jnp.log(jnp.exp(y - top).sum(0)) + top)(
        y.max(0)
    ),
    "far below": lambda y, x, w: jax.nn.logsumexp(100 * y - 1000, 0),
    "softmax": lambda y, x, w: (jax.nn.softmax(y, 0) * w).sum(0),
    "softmax of all": lambda y, x, w: (jax.nn.softmax(y, (0, 1)) * w).sum(),
    "attention": lambda y, x, w: jnp.einsum("tb,td->bd", jax.nn.softmax(y, 0), w),
    "variance": lambda y, x, w: jnp.var(y, 0),
    "variance of all": lambda y, x, w: jnp.var(y),
    "deviation": lambda y, x, w: y.std(0, ddof=1).mean(),
    "third moment": lambda y, x, w: ((y - y.mean(0)) ** 3).mean(0),
}

OTHERS = {  # of which some are declined
    "logsumexp of the end": lambda y, x, w: jax.nn.logsumexp(y[2:], 0),
    "masked softmax": lambda y, x, w: (jax.nn.softmax(y, 0, where=w > 0) * w).sum(0),
    "by the mean": lambda y, x, w: (y * y.mean(0, keepdims=True)).sum(0),
    "over the mean": lambda y, x, w: (w * (y / (2 + y.mean(0, keepdims=True)))).sum(0),
}


@pytest.mark.parametrize(
    ("name", "chunk", "reverse"), in_turns([*NORMALISED, *OTHERS], [(1, False), (4, True)])
)
def test_one_pass_gives_what_several_gave(name, chunk, reverse):
    fun = lambda x, w: (NORMALISED | OTHERS)[name](rollout(x, reverse), x, w)
    same(optimize(fun, push(chunk=chunk)), fun, X, W)


@pytest.mark.parametrize("name", NORMALISED)
def test_the_scan_stacks_nothing(name):
    fun = lambda x, w: NORMALISED[name](rollout(x), x, w)
    assert (N, B) not in stacked(push(chunk=1)(stage(fun)(X, W).jaxpr))


# ---------------------------------------------------------------- provisional results far off

ROWS = jnp.sin(1.3 * jnp.arange(24.0).reshape(6, 4))
LATE = jnp.arange(6)[:, None] > 2
FIRST_LOW = ROWS + jnp.where(jnp.arange(6) < 2, -3.0, 4.0)[:, None]
PADDED = jnp.where(LATE, 0.0, -jnp.inf)
WHICH = jnp.broadcast_to(jnp.array([0, 1, 2, 0, 1, 2])[:, None], (6, 4))


def handed_on(rows):
    return lax.scan(lambda c, x: (c, x * 1.0), 0.0, rows)[1]


def late_mean(y):
    on = LATE & (y > -9.0)
    return (y * on).sum(0) / on.sum(0)


FAR_OFF = {
    "softmax, padded left": (lambda y: (jax.nn.softmax(y + PADDED, 0) * ROWS).sum(0), ROWS),
    "logsumexp, padded left": (lambda y: jax.nn.logsumexp(y + PADDED, 0), ROWS),
    "logsumexp by hand, padded left": (
        lambda y: (lambda z: jnp.log(jnp.exp(z - z.max(0)).sum(0)) + z.max(0))(y + PADDED),
        ROWS,
    ),
    "a mean that is 0 / 0 at first": (lambda y: ((y - late_mean(y)) ** 2).sum(0), ROWS),
    "a logarithm that is not there at first": (
        lambda y: ((y - jnp.log(y.mean(0))) ** 2).mean(0),
        FIRST_LOW,
    ),
    "a root that is not there at first": (
        lambda y: jnp.exp(y - jnp.sqrt(y.sum(0))).sum(0),
        FIRST_LOW,
    ),
    "a mean that is far off at first": (
        lambda y: jnp.exp(y - y.mean(0)).sum(0),
        jnp.concatenate([jnp.full((1, 2), -1000.0), jnp.zeros((999, 2))]),
    ),
    "three cases": (
        lambda y: lax.select_n(WHICH, jnp.exp(y - y.max(0)), 0 * ROWS, 5 + 0 * ROWS).sum(0),
        ROWS,
    ),
    "a sum that is too large before it is divided": (
        lambda y: (y / y.max(keepdims=True)).sum(),
        jnp.full((20, 1), 1e38),
    ),
    "what is small in half precision once it is scaled": (
        lambda y: (y * (1 / y.max(keepdims=True))).astype(jnp.float16).sum(),
        jnp.full((20, 1), 1e6),
    ),
}


@pytest.mark.parametrize("name", FAR_OFF)
def test_a_result_far_off_on_the_way_does_no_harm(name):
    tail, rows = FAR_OFF[name]
    fun = lambda rows: tail(handed_on(rows))
    same(optimize(fun, push(chunk=2)), fun, rows)


# ---------------------------------------------------------------- what is not linear

NOT_LINEAR = {
    "median": lambda y: (y / jnp.median(y, 0, keepdims=True)).sum(0),
    "sine of a difference": lambda y: jnp.sin(y - y.mean(0)).sum(0),
    "sine of a quotient": lambda y: jnp.sin(y / y.max(0, keepdims=True)).sum(0),
    "whole softmax": lambda y: jax.nn.softmax(y, 0),
}


@pytest.mark.parametrize("name", NOT_LINEAR)
def test_what_is_not_linear_in_a_result_of_the_axis_stays_with_a_note(name):
    why = reasons(lambda x: NOT_LINEAR[name](rollout(x)), X)
    assert [w for w in why if w]
