"""Loops and branches in an update: parts where the turns and the branch stay, whole elsewhere."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from malleable import cost, incremental, listen

N, D = 200, 4


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


W, V = draw(D, D, seed=1), draw(D, D, seed=2)
KERNEL = draw(3, D, D, seed=3)


def smooth(v):
    numbers = ("NWC", "WIO", "NWC")
    return lax.conv_general_dilated(v[None], KERNEL, (1,), "SAME", dimension_numbers=numbers)[0]


def halved(v):
    """Turns until the lane is small."""
    return lax.while_loop(lambda c: (c**2).sum() > 0.1, lambda c: c / 2, v)


# functions of (number, rows, other), of which one row may change
PARTS = {
    "a cond": lambda p, v, o: lax.cond(p > 0, lambda v: jnp.tanh(v @ W), lambda v: v @ V, v),
    "a switch with a window": lambda p, v, o: lax.switch(
        jnp.int32(p), [jnp.sin, smooth, lambda v: v * 2], v
    ),
    "a cond with a costly part that stays": lambda p, v, o: lax.cond(
        p > 0, lambda v, o: v + (o @ o @ o).sum(), lambda v, o: v - o.sum(), v, o
    ),
    "a result of a cond that stays": lambda p, v, o: lax.cond(
        p > 0, lambda v, o: (v * 2, o @ o @ o), lambda v, o: (v, o), v, o
    )[0],
    "a cond of a cond": lambda p, v, o: lax.cond(
        p > 0,
        lambda v: lax.cond(p > 0.5, smooth, lambda v: v @ W, v),
        lambda v: v @ V,
        v,
    ),
    "a cond in a scan": lambda p, v, o: lax.scan(
        lambda h, i: (lax.cond(i % 2 == 0, smooth, lambda h: jnp.sin(h @ W), h), None),
        v,
        jnp.arange(4),
    )[0],
    "layers that widen a change": lambda p, v, o: lax.scan(
        lambda h, w: (h + jnp.tanh(smooth(h) @ w), None), v, jnp.stack([W, V] * 3)
    )[0],
    "a fori that widens a change": lambda p, v, o: lax.fori_loop(0, 9, lambda i, h: smooth(h), v),
    "a while": lambda p, v, o: lax.while_loop(
        lambda c: c[0] < 3, lambda c: (c[0] + p, jnp.tanh(c[1] @ W)), (0.0, v)
    )[1],
    "a while whose turns depend on others": lambda p, v, o: lax.while_loop(
        lambda c: (c[0] ** 2).sum() > 1, lambda c: (c[0] / 2, jnp.sin(c[1])), (o[0], v)
    )[1],
    "lanes that turn as often as they need": lambda p, v, o: jax.vmap(halved)(v),
}


def moved(v, block, at):
    return lax.dynamic_update_slice(jnp.asarray(v), jnp.asarray(block), (at, 0))


@pytest.mark.in_turns
@pytest.mark.parametrize("name", PARTS)
def test_a_row_moves_through_loops_and_branches(name):
    f, args = PARTS[name], [jnp.float32(1), jnp.asarray(draw(N, D)), draw(30, 30, seed=4) / 5]
    init, update = incremental(f, change={1: (1, None)})
    y, state = jax.jit(init)(*args)
    np.testing.assert_allclose(y, f(*args), 1e-5, 1e-5)
    for k, at in enumerate((0, N - 1, 77)):
        block = draw(1, D, seed=5 + k)
        y, state = jax.jit(update)(state, {1: (block, (at, 0))})
        args[1] = moved(args[1], block, at)
        np.testing.assert_allclose(y, f(*args), 1e-5, 1e-5)
    again = lambda state: update(state, {1: (block, (77, 0))})[0]
    assert cost(again)(state).flops < cost(f)(*args).flops / 2


@pytest.mark.parametrize("name", ["a cond", "a switch with a window", "a cond of a cond"])
def test_a_branch_that_is_taken_anew_starts(name):
    f, args = PARTS[name], [jnp.float32(1), jnp.asarray(draw(N, D)), None]
    with listen() as heard:
        init, update = incremental(lambda p, v: f(p, v, None), change={0: (), 1: (1, None)})
        _, state = init(*args[:2])
    assert any("`cond` is computed whole" in n.what for n in heard)
    update = jax.jit(update)
    for k, (p, at) in enumerate([(1, 7), (0, 8), (0, 9), (0.3, 8), (2, 0)]):
        block = draw(1, D, seed=k)
        y, state = update(state, {0: (jnp.float32(p), ()), 1: (block, (at, 0))})
        args = [jnp.float32(p), moved(args[1], block, at), None]
        np.testing.assert_allclose(y, f(*args), 1e-5, 1e-5)


@pytest.mark.parametrize(
    "f",
    [
        lambda v: lax.while_loop(lambda c: (c**2).sum() > 1, lambda c: c / 2, v),
        lambda v: lax.while_loop(lambda c: (c**2).sum() > 1, lambda c: c[::-1] / 2, v),
        lambda v: lax.fori_loop(0, jnp.int32(v[0, 0] > 0) + 3, lambda i, h: smooth(h), v),
    ],
)
def test_a_loop_that_may_turn_more_often_is_computed_whole(f):
    v, block = draw(N, D), np.full((1, D), 3, np.float32)
    with listen() as heard:
        init, update = incremental(f, change={0: (1, None)})
        _, state = init(v)
    assert any("`while` is computed whole" in n.what for n in heard)
    y, state = update(state, {0: (block, (0, 0))})
    np.testing.assert_allclose(y, f(moved(v, block, 0)), 1e-5, 1e-5)


@pytest.mark.parametrize("loop", ["a cond", "a while", "lanes that turn as often as they need"])
def test_what_does_not_change_is_left_alone(loop):
    f = lambda v, other: jnp.tanh(PARTS[loop](jnp.float32(1), v, None)).sum() * jnp.sin(other)
    init, update = incremental(f, change={1: (1,)})
    v, other = draw(N, D), jnp.ones(5)
    y, state = init(v, other)
    change = {1: (jnp.zeros(1), (2,))}
    y, _ = update(state, change)
    np.testing.assert_allclose(y, f(v, other.at[2].set(0)), 1e-5)
    program = jax.make_jaxpr(lambda s: update(s, change)[0])(state)
    assert {"cond", "while"}.isdisjoint(e.primitive.name for e in program.jaxpr.eqns)
