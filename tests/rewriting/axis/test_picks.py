"""Single elements of the streamed axis, by an index each: hs[lengths - 1, arange(batch)]."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from malleable import optimize, push_up_reductions, stage
from malleable.rewriting.streaming.push import push_up_reductions as push
from tests.rules import assert_same

STEPS, BATCH, HIDDEN = 10, 4, 3
W = jnp.sin(jnp.arange(9.0)).reshape(3, 3)
X = jnp.cos(jnp.arange(120.0)).reshape(STEPS, BATCH, HIDDEN)
N = jnp.array([1, 10, 3, 7])
ROWS = jnp.arange(BATCH)


def states(w, x, reverse=False):
    def step(h, x):
        h = jnp.tanh(h @ w + x)
        return h, h

    return lax.scan(step, jnp.zeros(x.shape[1:]), x, reverse=reverse)[1]


def last_and_mean(w, x, n):
    h = states(w, x)
    live = jnp.arange(STEPS)[:, None] < n
    return h[n - 1, ROWS], (h * live[..., None]).sum(0) / n[:, None]


PICKS = {
    "of each row": lambda w, x, n: states(w, x)[n - 1, ROWS],
    "of each row, reverse": lambda w, x, n: states(w, x, True)[n - 1, ROWS],
    "of each row, by take_along_axis": lambda w, x, n: jnp.take_along_axis(
        states(w, x), (n - 1)[None, :, None], 0
    )[0],
    "of each row, by vmap": lambda w, x, n: jax.vmap(lambda x, n: states(w, x)[n - 1], (1, 0))(
        x, n
    ),
    "of each row and column": lambda w, x, n: states(w, x)[n - 1, ROWS, n % HIDDEN],
    "from the end": lambda w, x, n: states(w, x)[-n[:2]],
    "the axis in the middle": lambda w, x, n: states(w, x).swapaxes(0, 1)[ROWS, n - 1],
    "the axis last": lambda w, x, n: jnp.moveaxis(states(w, x), 0, -1)[ROWS, :, n - 1],
    "some slices, filled": lambda w, x, n: states(w, x).at[n[:2] + 5].get(mode="fill"),
    "some slices, filled with 7": lambda w, x, n: (
        states(w, x).at[n[:2] + 5].get(mode="fill", fill_value=7.0)
    ),
    "some slices, clipped": lambda w, x, n: states(w, x).at[n[:2] + 5].get(mode="clip"),
    "integers, filled": lambda w, x, n: (
        (9 * states(w, x)).astype(jnp.int16).at[n[:2] + 5].get(mode="fill")
    ),
    "small indices": lambda w, x, n: states(w, x)[n.astype(jnp.int8)[:2] - 1],
    "beside a mean": last_and_mean,
}


def loss(fun):
    def of(w, x):
        outs = [o for o in jax.tree.leaves(fun(w, x, N)) if o.dtype == jnp.float32]
        weights = [jnp.cos(jnp.arange(o.size)).reshape(o.shape) for o in outs]
        return sum(jnp.sum(jnp.where(jnp.isnan(o), 0, o) * c) for o, c in zip(outs, weights))

    return of


@pytest.mark.in_turns
@pytest.mark.parametrize("fun", PICKS.values(), ids=PICKS)
def test_elements_are_picked_while_the_scan_runs(fun):
    def everything(f, w, x, n):
        many = jax.vmap(f, (None, None, 0))(w, x, jnp.stack([n, n[::-1]]))
        if jax.tree.leaves(many)[0].dtype != jnp.float32:
            return f(w, x, n), many
        return f(w, x, n), many, jax.grad(loss(f), (0, 1))(w, x)

    ways = [optimize(fun, push_up_reductions(chunk=chunk, threshold=0)) for chunk in (1, 3)]
    want, *found = (jax.jit(functools.partial(everything, f))(W, X, N) for f in (fun, *ways))
    for got in found:
        assert_same(got, want)


@pytest.mark.parametrize("fun", PICKS.values(), ids=PICKS)
def test_nothing_is_stacked(fun):
    program = push(stage(fun)(W, X, N).jaxpr, threshold=0)
    (scan,) = [e for e in program.eqns if e.primitive.name == "scan"]
    assert max(v.aval.size for v in scan.outvars) < X.size


def test_as_many_as_there_are_stay_a_gather():
    fun = lambda w, x: states(w, x)[jnp.arange(STEPS)[::-1]]
    program = stage(fun)(W, X).jaxpr
    assert push(program, threshold=0) is program


@pytest.mark.parametrize("mode", [None, "clip", "fill", "promise_in_bounds"])
@pytest.mark.parametrize("reverse", [False, True])
def test_an_index_out_of_bounds_has_the_derivatives_it_has_in_jax(mode, reverse):
    at = jnp.array([STEPS + 6, 2, -3 * STEPS])
    picked = lambda x: states(W, x, reverse).at[at].get(mode=mode, fill_value=0.5).sum((1, 2))
    pushed = optimize(picked, push(threshold=0, chunk=3))

    def everything(f, x):
        tangents = jnp.broadcast_to(W[0], x.shape)
        return f(x), jax.vjp(f, x)[1](jnp.ones(3)), jax.jvp(f, (x,), (tangents,))

    ours, wanted = (jax.jit(functools.partial(everything, f))(X) for f in (pushed, picked))
    assert_same(ours, wanted)
