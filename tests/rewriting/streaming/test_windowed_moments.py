"""Variances and other moments of a part of what a scan stacks, or of its differences."""

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

from malleable import optimize, push_up_reductions
from tests.rewriting.axis.test_axes import numbers
from tests.rewriting.axis.test_scatters import stacks
from tests.scans import in_turns

T, N = 40, 5
X = numbers(N)


def walk(x, reverse=False, level=0.0):
    step = lambda c, t: (jnp.sin(1.3 * c + t), level + jnp.sin(1.3 * c + t))
    return lax.scan(step, x, jnp.cos(jnp.arange(float(T))), reverse=reverse)[1]


def path(x, reverse=False, level=0.0):
    """As `walk`, where what is stacked is the carry."""
    step = lambda c, t: (level + jnp.sin(1.3 * (c - level) + t),) * 2
    return lax.scan(step, x + level, jnp.cos(jnp.arange(float(T))), reverse=reverse)[1]


def skewness(h):
    d = h - h.mean(0)
    return (d**3).mean(0) / (d**2).mean(0) ** 1.5


MOMENTS = {
    "after a burn-in": lambda h: h[10:].var(0),
    "the first half": lambda h: h[: T // 2].std(0),
    "every third": lambda h: h[4::3].var(0),
    "differences": lambda h: jnp.diff(h, axis=0).var(0),
    "log returns": lambda h: jnp.diff(jnp.log(2000 + h), axis=0).std(0),
    "sums of neighbours": lambda h: (h[1:] + h[:-1]).var(0),
    "two apart": lambda h: (h[2:] + h[:-2]).var(0),
    "skewness": lambda h: skewness(h[7:]),
    "all but the end": lambda h: jnp.var(h[:-5], axis=0, ddof=1),
    "of two windows": lambda h: h[: T // 2].var(0) / (1 + h[T // 2 :].var(0)),
    "with the start": lambda h: jnp.concatenate([jnp.full((1, N), 9.0), h]).var(0),
}


def reference(fun):
    """In float64: the value and the gradient."""
    with jax.enable_x64(True):
        x = jnp.asarray(np.asarray(X, "float64"))
        return jax.tree.map(np.asarray, value_and_slope(fun)(x))


def value_and_slope(fun):
    return jax.jit(lambda x: (fun(x), jax.grad(lambda x: fun(x).sum())(x)))


@pytest.mark.parametrize(
    ("name", "loop", "reverse", "level"),
    in_turns(
        [n for n in MOMENTS if n != "with the start"],
        [(walk, True, 1000.0), (path, False, 0.0)],
    ),
)
def test_moments_of_a_window_are_in_the_scan(name, loop, reverse, level):
    fun = lambda x: MOMENTS[name](loop(x, reverse, level))
    pushed = optimize(fun, push_up_reductions(threshold=0))
    assert not stacks(pushed, T - 20)
    due, slope = reference(fun)
    plain, got = value_and_slope(fun)(X), value_and_slope(pushed)(X)
    mean = reference(lambda x: loop(x, reverse, level).mean(0))[1]
    rounded = 0, np.finfo("float32").eps * level * abs(mean).max()  # a slope, by how a mean rounds
    for ours, theirs, right, more in zip(got, plain, (due, slope), rounded, strict=True):
        worst = abs(np.asarray(theirs) - right).max()  # as accurate as XLA is on the whole array
        limit = 8 * worst + 2e-5 * abs(right).max() + more
        assert abs(np.asarray(ours) - right).max() <= limit


def test_a_start_that_is_joined():
    fun = lambda x: MOMENTS["with the start"](walk(x))
    pushed = optimize(fun, push_up_reductions(threshold=0))
    assert not stacks(pushed, T - 20)
    np.testing.assert_allclose(jax.jit(pushed)(X), jax.jit(fun)(X), rtol=1e-4)
    slopes = [jax.jit(jax.grad(lambda x, f=f: f(x).sum()))(X) for f in (pushed, fun)]
    np.testing.assert_allclose(*slopes, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("start", [1e3, 1e8])
@pytest.mark.parametrize("part", [lambda h: h[40:].std(0), lambda h: (h[41:] + h[40:-1]).var(0)])
def test_what_comes_before_the_window_does_not_round_its_gradient(part, start):
    step = lambda x: lambda c, t: (0.5 * c + jnp.sin(3 * t + x),) * 2
    fun = lambda x: part(lax.scan(step(x), start + x, jnp.arange(60.0))[1]).sum()
    pushed = optimize(fun, push_up_reductions(threshold=0))
    due, got = (jax.jit(jax.grad(f))(X) for f in (fun, pushed))
    np.testing.assert_allclose(got, due, rtol=1e-3, atol=1e-3 * abs(due).max())


@pytest.mark.parametrize("chunk", [1, 4])
@pytest.mark.parametrize("part", [lambda h: h.var(0), lambda h: h[100:].var(0)])
def test_a_long_variance_is_as_exact_as_the_plain_one(part, chunk):
    def rows(x, level):
        step = lambda c, t: (jnp.sin(1.3 * c + t), level + jnp.sin(1.3 * c + t))
        return lax.scan(step, x, jnp.arange(20_000.0) % 100)[1]

    fun = lambda x: part(rows(x, 1000.0))
    got = jax.jit(optimize(fun, push_up_reductions(threshold=0, chunk=chunk)))(X)
    due = np.var(np.asarray(rows(X, 0.0), "float64")[100:], axis=0)
    np.testing.assert_allclose(got, due, rtol=2e-3)
    np.testing.assert_allclose(got, jax.jit(fun)(X), rtol=1e-5)
