"""Forms in which programs hide which rows they need: steps give the rows of the function."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from malleable import TransformError, as_scan

T, D = 12, 4
CAUSAL = np.tri(T, dtype=bool)
X = jnp.asarray(np.random.default_rng(0).normal(size=(T, D)), jnp.float32)


def assert_right(f, xs=X, widths=(1, 3)):
    for width in widths:
        carry, step = as_scan(f, xs, width=width, poison=True)
        rows = xs.reshape(-1, *([width] if width > 1 else []), *xs.shape[1:])
        ys = jax.jit(lambda c, r, step=step: lax.scan(step, c, r)[1])(carry, rows)
        wanted = jax.jit(f)(xs)
        np.testing.assert_allclose(ys.reshape(wanted.shape), wanted, 1e-4, 1e-5)


# ---------------------------------------------------------------- what is joined behind


def scores(v):
    return jnp.where(CAUSAL, v @ v.T, -jnp.inf)


BEHIND = {
    "a sink that each row knows": lambda v: (
        jax.nn.softmax(jnp.concatenate([scores(v), v[:, :1]], 1))[:, :-1] @ v
    ),
    "the weight of a sink": lambda v: jax.nn.softmax(
        jnp.concatenate([scores(v), jnp.ones((T, 1))], 1)
    )[:, T:],
    "a mask that leaves two sinks": lambda v: (
        jax.nn.softmax(
            jnp.where(
                np.pad(CAUSAL, ((0, 0), (0, 2)), constant_values=True),
                jnp.concatenate([v @ v.T, v[:, :2]], 1),
                -jnp.inf,
            )
        )[:, :T]
        @ v
    ),
    "a key and a value of no row": lambda v: (
        jax.nn.softmax(
            jnp.where(
                np.pad(CAUSAL, ((0, 0), (0, 1)), constant_values=True),
                v @ jnp.concatenate([v, jnp.ones((1, D))]).T,
                -jnp.inf,
            )
        )
        @ jnp.concatenate([v, jnp.ones((1, D))])
    ),
}


@pytest.mark.parametrize("name", BEHIND)
def test_what_is_joined_behind_is_no_later_row(name):
    assert_right(BEHIND[name])


@pytest.mark.parametrize(
    "f",
    [
        lambda v: jax.nn.softmax(jnp.concatenate([v @ v.T, v[:, :1]], 1))[:, :-1] @ v,
        lambda v: jax.nn.softmax(jnp.concatenate([scores(v), v[:, :1]], 1))[:, 1:] @ v,
        lambda v: (
            jax.nn.softmax(jnp.concatenate([scores(v), jnp.roll(v, -1, 0)[:, :1]], 1))[:, :-1] @ v
        ),
    ],
)
def test_what_is_joined_behind_does_not_make_later_rows_known(f):
    with pytest.raises(TransformError, match="not causal along the axis: "):
        as_scan(f, X)


# ---------------------------------------------------------------- states that begin with rows


def unrolled(v):
    """Each row needs two of before; the first two begin."""
    rows = [v[0], v[1] + v[0] / 2]
    for t in range(2, T):
        rows.append(jnp.tanh(v[t] + rows[t - 1] / 2 - rows[t - 2] / 4))
    return jnp.stack(rows)


def begins_with_three(v):
    step = lambda h, r: ((h[1], h[2], jnp.tanh(h[0] + r)), h[0] * r)
    rows = lax.scan(step, (v[0], v[1], v[0] * v[2]), v[3:])[1]
    return jnp.concatenate([v[:3], rows])


BEGUN = {
    "unrolled": unrolled,
    "rows that are written one by one": lambda v: functools.reduce(
        lambda y, t: y.at[t].set(v[t] + (y[t - 1] if t else 0) - (y[t - 2] if t > 1 else 0) / 3),
        range(T),
        jnp.zeros((T, D)),
    ),
    "three rows": begins_with_three,
    "a mean that begins with that of three": lambda v: jnp.concatenate(
        [v[:3], lax.scan(lambda h, r: (0.9 * h + r,) * 2, (v[0] + v[1] + v[2]) / 3, v[3:])[1]]
    ),
    "a row of its own input is where the loop begins": lambda v: lax.fori_loop(
        1, T, lambda t, y: y.at[t].set(v[t] + y[jnp.maximum(t - 1, 0)] / 2), v
    ),
    "rows that are stacked": lambda v: jnp.concatenate(
        [
            jnp.stack([v[0], v[1] + v[0]]),
            lax.scan(lambda h, r: ((h[1], h[0] / 2 + r),) * 2, (v[1], v[0]), v[2:])[1][0],
        ]
    ),
    "rows of two times": lambda v: jnp.concatenate(
        [
            v[:1],
            lax.scan(lambda h, r: (jnp.tanh(h + r[0] - r[1]),) * 2, v[0], (v[1:], v[:-1]))[1],
        ]
    ),
    "and attention to what comes of it": lambda v: jax.nn.softmax(scores(unrolled(v))) @ v,
}


@pytest.mark.parametrize("name", BEGUN)
def test_a_state_may_begin_with_a_few_rows(name):
    assert_right(BEGUN[name])


OTHERWISE_AT_FIRST = {
    "what it wrote, where it has written": lambda t, y, v: v[t] + jnp.where(t > 0, y[t - 1], 0) / 2,
    "two rows of before": lambda t, y, v: (
        v[t] + jnp.where(t >= 1, y[t - 1], 0) / 2 - jnp.where(t > 1, y[t - 2], 0) / 3
    ),
    "a place that is not below 0": lambda t, y, v: (
        v[t] * 2 + jnp.where(t > 0, y[jnp.maximum(t - 1, 0)], 1)
    ),
    "a slice that is moved into the array": lambda t, y, v: (
        v[t] + lax.dynamic_slice(y, (t - 1, 0), (1, D))[0] * (t > 0)
    ),
    "a branch": lambda t, y, v: (
        v[t] + lax.cond(t > 0, lambda: y[t - 1] / 2, lambda: jnp.ones_like(v[0]))
    ),
    "rows of the input": lambda t, y, v: v[t] - jnp.where(t > 0, v[t - 1], 0),
}


@pytest.mark.parametrize("name", OTHERWISE_AT_FIRST)
def test_a_loop_may_do_otherwise_at_its_first_steps(name):
    step = OTHERWISE_AT_FIRST[name]

    def by_fori(v):
        return lax.fori_loop(0, T, lambda t, y: y.at[t].set(step(t, y, v)), jnp.zeros_like(v))

    def by_scan(v):
        write = lambda y, t: (y.at[t].set(step(t, y, v)), t)
        return lax.scan(write, jnp.zeros_like(v), np.arange(T))[0]

    assert_right(by_fori)
    assert_right(by_scan)


def test_a_loop_that_looks_ahead_at_all_but_its_last_step_is_refused():
    def f(v):
        later = lambda t: jnp.where(t < T - 1, v[jnp.minimum(t + 1, T - 1)], 0)
        return lax.fori_loop(0, T, lambda t, y: y.at[t].set(v[t] + later(t)), jnp.zeros_like(v))

    with pytest.raises(TransformError, match="not causal along the axis: "):
        as_scan(f, X)


@pytest.mark.parametrize(
    "f",
    [
        lambda v: jnp.concatenate(
            [v[:1], lax.scan(lambda h, r: (h / 2 + r,) * 2, v[1] + v[2], v[1:])[1]]
        ),
        lambda v: jnp.concatenate([v[1:2], v[:1], v[2:]]),
        lambda v: v - (v[0] + v[1]) / 2,
        lambda v: lax.scan(lambda h, r: (h / 2 + r,) * 2, v[-1], v)[1],
    ],
)
def test_a_state_may_not_begin_with_later_rows(f):
    with pytest.raises(TransformError, match="not causal along the axis: "):
        as_scan(f, X)


# ---------------------------------------------------------------- what is not chosen, and groups


def chosen(v, lowest=0):
    at = lambda t: jnp.where(t > lowest, jnp.tanh(v[t - 1] * 2) + v[t], 0)
    return jax.vmap(at)(jnp.arange(T))


def routed(v):
    """Places in the buffers of two experts each, counted over tokens and choices in one."""
    weights, experts = lax.top_k(v, 2)
    hot = jax.nn.one_hot(experts, D)
    places = jnp.cumsum(hot.reshape(2 * T, D), 0).reshape(T, 2, D)
    return jnp.einsum("tkd,tk->td", hot * (places <= 4), weights)


@pytest.mark.parametrize("f", [chosen, lambda v: chosen(v[:, 0]), routed])
def test_rows_that_are_never_looked_at(f):
    assert_right(f)


@pytest.mark.parametrize("operation", [lax.cumsum, lax.cummax, lax.cumprod])
def test_a_cumulative_operation_over_groups_of_each_row(operation):
    assert_right(lambda v: operation(v.reshape(T * D), 0).reshape(T, D))


@pytest.mark.parametrize(
    "f",
    [
        lambda v: chosen(v, lowest=-1),
        lambda v: jnp.cumsum(v.T.reshape(-1)).reshape(D, T).T,
        lambda v: lax.cumsum(v.reshape(-1), reverse=True).reshape(T, D),
    ],
)
def test_later_rows_that_are_looked_at_are_refused(f):
    with pytest.raises(TransformError, match="not causal"):
        as_scan(f, X)
