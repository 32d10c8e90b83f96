"""A value that is compared with one of its own elements is worked out once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from malleable import listen, optimize, push_up_reductions, stage, stream
from malleable.rewriting.graph.graph import Graph
from malleable.rewriting.streaming.comparisons import compared

PUSH = push_up_reductions(chunk=1, threshold=0)
SMALL = stream(threshold=1, block=3)


def normal(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape)


def margin(h, w, y):
    """How far the best of the wrong classes is; of samples h, classes w."""
    scores = h @ w.T
    right = jax.nn.one_hot(y, w.shape[0]) > 0
    return jnp.where(right, -jnp.inf, scores).max(-1).sum()


def chamfer(x, y):
    d = ((x[:, None] - y[None]) ** 2).sum(-1)
    return d.min(1).mean() + d.min(0).mean()


def hausdorff(x, y):
    d = jnp.sqrt(((x[:, None] - y[None]) ** 2).sum(-1))
    return jnp.maximum(d.min(1).max(), d.min(0).max())


@pytest.mark.parametrize("seed", range(4))
def test_the_gradient_of_a_maximum_finds_the_maximum_again(seed):
    y = jnp.asarray(np.random.default_rng(seed).integers(0, 5, 8))
    args = normal(seed, 8, 4), normal(seed + 9, 5, 4), y
    gradient = jax.grad(margin, (0, 1))
    found = jax.jit(optimize(gradient, SMALL))(*args)
    for a, b in zip(found, jax.jit(gradient)(*args), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("fun", [chamfer, hausdorff])
@pytest.mark.parametrize("passes", [[SMALL], [stream(threshold=1, block=1)], [PUSH, SMALL]])
def test_minima_along_both_axes(fun, passes):
    x, y = normal(0, 17, 3), normal(1, 13, 3)
    gradient = jax.grad(fun, (0, 1))
    for a, b in zip(
        jax.jit(optimize(gradient, *passes))(x, y), jax.jit(gradient)(x, y), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.fixture
def plain_code():
    """XLA leaves much as it is, so that what looks the same is rounded in several ways."""
    jax.config.update("jax_disable_most_optimizations", True)
    jax.clear_caches()
    yield
    jax.config.update("jax_disable_most_optimizations", False)
    jax.clear_caches()


def highest(x, a):
    """The highest score over time, by a running mean and a running variance."""

    def step(c, x):
        m, v = c
        d = x - m
        c = a * m + (1 - a) * x, a * v + (1 - a) * d * d
        return c, c

    z = jnp.zeros(x.shape[1])
    _, (m, v) = lax.scan(step, (z, z + 1), x)
    return jnp.abs((x - m) * lax.rsqrt(v + 1e-3)).max(0).sum()


@pytest.mark.parametrize("inside", [True, False], ids=["grad(optimize)", "optimize(grad)"])
def test_a_maximum_over_time_in_code_of_little_optimization(plain_code, inside):
    x, a = normal(3, 10, 3), jnp.float32(0.9)
    want = jax.jit(jax.grad(highest, (0, 1)))(x, a)
    push = lambda f: optimize(f, PUSH, SMALL)
    fun = jax.grad(push(highest), (0, 1)) if inside else push(jax.grad(highest, (0, 1)))
    for got, due in zip(jax.jit(fun)(x, a), want, strict=True):
        np.testing.assert_allclose(got, due, rtol=1e-3, atol=1e-4)


def test_what_was_found_outside_is_not_cut():
    """XLA would look for it once more in each piece, and round it there in another way."""

    def both_ways(x, y):
        d = (x**2).sum(1)[:, None] - 2 * x @ y.T + (y**2).sum(1)
        return d.min(1).mean() + d.min(0).mean() + d.reshape(-1) @ jnp.cos(jnp.arange(d.size))

    gradient = jax.grad(both_ways, (0, 1))
    with jax.enable_x64(True), listen() as heard:
        x, y = normal(0, 3, 1), normal(1, 2, 1)
        found = jax.jit(optimize(gradient, stream(threshold=0, block=2)))(x, y)
        for a, b in zip(found, jax.jit(gradient)(x, y), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9)
    assert "where it is equal to elements of its own is found outside" in {n.why for n in heard}


@pytest.mark.parametrize("lanes", [False, True])
def test_minima_of_a_few_columns_of_distances(plain_code, lanes):
    """Distances were written out as terms, and then in the minimum of each column once more."""
    nearest = lambda x, y: (((x[:, None] - y) ** 2).sum(2) / 27.0).min(0)
    fun = jax.vmap(nearest, (0, None)) if lanes else nearest
    total = lambda fun: jax.jit(jax.grad(lambda x, y: fun(x, y).sum(), (0, 1)))
    x, y = normal(0, *((4,) if lanes else ()), 5, 3), normal(1, 7, 3)
    got = total(optimize(fun, stream(threshold=0)))(x, y)
    for a, b in zip(got, total(fun)(x, y), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)


def test_minima_of_distances_that_are_used_as_a_whole_too():
    """A loop over the three coordinates, written out in full, was none any more."""

    def nearest(x, y, z):
        d = jax.vmap(lambda p: ((p - y) ** 2).sum(1))(x)
        moved = jnp.concatenate([z[None], (d / 27.0)[:-1]])
        skew = jnp.mean((moved - jnp.mean(moved, (0, 1), keepdims=True)) ** 3, (0, 1))
        return jnp.min(d / 27.0, 0), skew, moved * jnp.cos(z)

    optimized = optimize(nearest, stream(threshold=0))
    x, y, z = normal(0, 5, 3), normal(1, 7, 3), normal(2, 7)
    loops = [e for e in stage(optimized)(x, y, z).jaxpr.eqns if e.primitive.name == "scan"]
    assert [(e.params["length"], e.params["unroll"]) for e in loops] == [(3, 1)]
    total = lambda fun: lambda *args: sum(jnp.cos(value).sum() for value in fun(*args))
    grads = lambda fun: jax.jit(jax.grad(total(fun), (0, 1)))(x, y, z)
    for a, b in zip(grads(optimized), grads(nearest), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)


def test_what_is_compared_with_itself():
    def found(fun):
        return len(compared(Graph.of(stage(fun)(jnp.ones((4, 3))).jaxpr)).shared)

    assert found(lambda x: jnp.exp(x) == jnp.exp(x).max(1, keepdims=True)) == 1
    assert found(lambda x: jnp.exp(x) >= jnp.sort(jnp.exp(x), 1)[:, 1:2]) == 1
    assert found(lambda x: x == x.max(1, keepdims=True)) == 0  # given, not worked out
    assert found(lambda x: jnp.exp(x) > 0.5 * jnp.exp(x).max()) == 0
    assert found(lambda x: jnp.exp(x) == jnp.sin(x)) == 0
