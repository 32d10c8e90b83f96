"""Sums that are updated by differences, if one asks for it: what they cost, what they lose."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from malleable import cost, incremental, listen

N = 1000


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


SUMS = {
    "all": lambda v: jnp.exp(v).sum(),
    "rows": lambda v: (v * v).sum(0) + 1,
    "mean and deviation": lambda v: (v.mean(), v.std()),
    "product": lambda v: draw(3, N, seed=1) @ jnp.tanh(v),
    "product from the right": lambda v: jnp.tanh(v).T @ draw(N, 3, seed=1),
    "batch of products": lambda v: jnp.einsum("nd,dnk->dk", v, draw(4, N, 2, seed=2)),
    "sum of columns, then all": lambda v: jnp.tanh(v.sum(1) / 9).sum(),
    "both operands": lambda v: jnp.tanh(v).T @ jnp.sin(v),
}


@pytest.mark.parametrize("sizes", [(1, None), (3, 2), (1, 1)])
@pytest.mark.parametrize("name", SUMS)
def test_a_sum_follows_what_changes(name, sizes):
    f, v = SUMS[name], jnp.asarray(draw(N, 4))
    init, update = incremental(f, change={0: sizes}, sums="delta")
    y, state = init(v)
    shape, update = [k or n for k, n in zip(sizes, v.shape, strict=True)], jax.jit(update)
    for k, starts in enumerate([(0, 0), (N - 1, 3), (500, 1), (501, 0)]):
        block = draw(*shape, seed=k)
        v = lax.dynamic_update_slice(v, block, starts)
        y, state = update(state, {0: (block, starts)})
        for one, other in zip(jax.tree.leaves(y), jax.tree.leaves(f(v)), strict=True):
            np.testing.assert_allclose(one, other, 1e-4, 1e-4)


def test_the_cost_does_not_grow_with_the_length():
    def of(n, sums):
        init, update = incremental(lambda v: jnp.exp(v).sum(), change={0: (1,)}, sums=sums)
        _, state = init(jnp.zeros(n))
        return cost(lambda s: update(s, {0: (jnp.ones(1), (3,))})[0])(state).flops

    assert of(10_000, "delta") == of(1_000_000, "delta") < 10
    assert of(1_000_000, "parts") > 1000


def test_integers_are_exact():
    v = jnp.arange(N)
    init, update = incremental(lambda v: (v * v).sum(), change={0: (2,)}, sums="delta")
    _, state = init(v)
    for k in range(50):
        v = v.at[k * 7 : k * 7 + 2].set(k)
        y, state = update(state, {0: (jnp.full(2, k), (k * 7,))})
        assert int(y) == int((v * v).sum())


def test_a_difference_that_does_not_fit_into_its_type_is_not_taken():
    def f(v):
        return lax.dot(v, jnp.ones((N, 2), jnp.int8), preferred_element_type=jnp.int32)

    v = jnp.full((3, N), 127, jnp.int8)
    init, update = incremental(f, change={0: (1, 1)}, sums="delta")
    y, _ = update(init(v)[1], {0: (jnp.full((1, 1), -128, jnp.int8), (1, 7))})
    assert (y == f(v.at[1, 7].set(-128))).all()


def test_doubles_lose_a_rounding_for_each_update():
    with jax.enable_x64(True):
        v = jnp.asarray(np.random.default_rng(0).normal(size=N))
        f = lambda v: jnp.exp(v).sum()
        init, update = incremental(f, change={0: (1,)}, sums="delta")
        _, state = init(v)

        def move(state, k):
            y, state = update(state, {0: (jnp.sin(k)[None], (7 * k.astype(int) % N,))})
            return state, y

        _, ys = jax.jit(lambda s: lax.scan(move, s, jnp.arange(1000.0)))(state)
        for k in range(1000):
            v = v.at[7 * k % N].set(np.sin(k))
        np.testing.assert_allclose(ys[-1], f(v), 1e-12)


def test_what_was_huge_or_infinite_leaves_its_mark_and_a_note_says_so():
    def last(big, sums):
        v = jnp.ones(N).at[9].set(big)
        init, update = incremental(lambda v: v.sum(), change={0: (1,)}, sums=sums)
        _, state = init(v)
        return float(update(state, {0: (jnp.ones(1), (9,))})[0])

    assert last(1e9, "parts") == last(jnp.inf, "parts") == N
    assert last(1e9, "delta") != N and np.isnan(last(jnp.inf, "delta"))
    with listen() as heard:
        last(1.0, "delta")
    (said,) = [n for n in heard if "`reduce_sum` is updated by a difference" in n.what]
    assert "test_deltas.py" in said.where and "rounding" in said.why
    with listen() as heard:
        last(1.0, "parts")
    assert heard == []


def test_sums_are_of_two_kinds():
    with pytest.raises(ValueError, match='"parts" or "delta"'):
        incremental(jnp.sum, change={0: (1,)}, sums="exact")  # type: ignore[arg-type]
