"""Sums by index over what a scan stacks, or over a large broadcast: histograms, segments."""

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

from malleable import notes, optimize, push_up_reductions, stage, stream
from tests.rewriting.axis.test_axes import numbers

T, N = 12, 5
X, IDS = numbers(N), jnp.arange(T) % 4
PUSH = push_up_reductions(threshold=0)


def walk(x, reverse=False):
    """(T, N): what a scan stacks."""
    step = lambda c, t: (jnp.sin(1.3 * c + t),) * 2
    return lax.scan(step, x, 0.1 * jnp.arange(float(T)), reverse=reverse)[1]


def bins(h):
    return jnp.clip(jnp.floor(4 * h + 4), 0, 7).astype(jnp.int32)


SUMS = {
    "segment_sum": lambda x: jax.ops.segment_sum(walk(x), IDS, 4),
    "of a reverse scan": lambda x: jax.ops.segment_sum(walk(x, True), IDS, 4),
    "sorted": lambda x: jax.ops.segment_sum(walk(x), jnp.sort(IDS), 4, indices_are_sorted=True),
    "index outside": lambda x: jnp.zeros((3, N)).at[IDS].add(walk(x), mode="drop"),
    "clipped": lambda x: jnp.zeros((3, N)).at[IDS].add(walk(x), mode="clip"),
    "of columns": lambda x: jnp.zeros((N, 4)).at[:, IDS].add(walk(x).T),
    "index by value": lambda x: jnp.zeros((8, N)).at[bins(walk(x)), jnp.arange(N)].add(walk(x)),
    "all elements": lambda x: jnp.zeros(8).at[bins(walk(x)).ravel()].add(walk(x).ravel()),
    "under vmap": jax.vmap(lambda x: jax.ops.segment_sum(walk(jnp.stack([x, -x])), IDS, 4)),
    "examples have an index": lambda x: jax.vmap(lambda h, i: jax.ops.segment_sum(h, i, 3), (1, 1))(
        walk(x), bins(walk(x)) // 3
    ),
    "halves": lambda x: jax.ops.segment_sum(walk(x).astype("bfloat16"), IDS, 4),
}
COUNTS = {
    "histogram": lambda x: jnp.histogram(walk(x), bins=6, range=(-1, 1))[0],
    "with weights": lambda x: jnp.histogram(walk(x), 6, (-1, 1), walk(x) ** 2)[0],
    "bincount": lambda x: jnp.bincount(bins(walk(x)).ravel(), length=8),
    "segment_max of integers": lambda x: jax.ops.segment_max(bins(walk(x)), IDS, 5),
    "segment_min of bytes": lambda x: jax.ops.segment_min(bins(walk(x)).astype("uint8"), IDS, 5),
}


def stacks(fun, rows):
    """Whether some value of a program is as long as the scan."""
    closed = stage(fun)(X).jaxpr
    return any(rows * N <= np.prod(v.aval.shape) for e in closed.eqns for v in e.outvars)


@pytest.mark.in_turns
@pytest.mark.parametrize("name", [*SUMS, *COUNTS])
def test_a_sum_by_index_is_in_the_scan(name):
    """For chunks of every kind, and so is its gradient; all are compiled at once."""
    fun = (SUMS | COUNTS)[name]
    passes = [push_up_reductions(threshold=0, chunk=chunk) for chunk in ("auto", 1, 5)]
    pushed = [optimize(fun, one) for one in passes]
    assert not any(stacks(f, T) for f in pushed)
    close = 2e-2 if name == "halves" else 1e-5
    loss = lambda f: lambda x: jnp.sum(jnp.sin(f(x)).astype("float32"))
    slope = lambda f, x: jax.grad(loss(f))(x) if name in SUMS else 0.0
    due, *got = jax.jit(lambda x: [(f(x), slope(f, x)) for f in (fun, *pushed)])(X)
    for out, slopes in got:
        one, other = (np.asarray(x, "float32") for x in (out, due[0]))
        np.testing.assert_allclose(one, other, rtol=close, atol=close)
        np.testing.assert_allclose(slopes, due[1], rtol=close, atol=10 * close)


def test_a_histogram_of_distances_streams():
    def pairs(x):
        d = jnp.abs(x[:, None] - x[None])
        return jnp.histogram(d, bins=10, range=(0, 2))[0]

    x = numbers(60)
    streamed = optimize(pairs, stream(threshold=1000, block=8))
    large = [v for e in stage(streamed)(x).jaxpr.eqns for v in e.outvars if v.aval.size >= 3600]
    assert not large and np.array_equal(jax.jit(streamed)(x), jax.jit(pairs)(x))


KEPT = {
    "holds something already": lambda x: jnp.ones((4, N)).at[IDS].add(walk(x)),
    "is the last depends": lambda x: jnp.zeros((4, N)).at[IDS].set(walk(x)),
    "of equal elements": lambda x: jax.ops.segment_max(walk(x), IDS, 4),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_stays_outside_says_why(name):
    fun = KEPT[name]
    with notes.listen() as found:
        assert stacks(optimize(fun, PUSH), T)
    assert any(name in str(note) for note in found)
    np.testing.assert_array_equal(optimize(fun, PUSH)(X), fun(X))
