"""Selections that are empty raise as they do in eager JAX, in handlers too."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import malleable as mal


def handled(x):
    before = 1.0
    try:
        before = x.sum() * 2
        least = x[x > 100].min() + before
    except ValueError:
        least = before
    return before, least


def in_a_loop(x):
    total = 0.0
    for i in range(3):
        total = total + x[x > i].max()
    return total


def in_a_compiled_loop(x):
    n = 0
    while n < 5:
        x = x[x < 1.5].max() + x - 2
        n = n + 1
    return x


def in_a_branch(x):
    mask = x > 100
    return x[mask].max() if mask.any() else x.sum()


def helper(x, mask):
    return x[mask].min()


def all_lowest(x):
    y, mask = jnp.where(x > 0, -jnp.inf, x), x > 0
    return y[mask].argmax(), y[mask].max()


PROGRAMS = [
    lambda x: x[x > 100].max(),
    lambda x: jnp.max(x[x > 100]),
    lambda x: jnp.max(x[x > 100], initial=-1.0),
    lambda x: x[x > 100].argmax(),
    lambda x: jnp.argmin(x[x > 100]),
    lambda x: x[x > 100][0],
    lambda x: x[x > 100][-1],
    lambda x: (x[x > 1][5], x[x > 1][-9]),
    lambda x: jnp.arange(7)[x > 100].max(),
    lambda x: jnp.ptp(x[x > 100]),
    lambda x: jnp.median(x[x > 100]),
    lambda x: (x[x > 100].sum(), x[x > 100].mean(), x[x > 100].any(), x[x > 100].prod()),
    lambda x: jnp.sort(x[x > 100])[-1],
    lambda x: jnp.nonzero(x > 100)[0][0],
    lambda x: helper(x, x > 100) + 1,
    lambda x: {"doubled": x * 2, "most": (x * 2)[x > 100].max()},
    handled,
    in_a_loop,
    in_a_compiled_loop,
    in_a_branch,
    all_lowest,
]


def seen(fun, x):
    try:
        return str(jax.tree.map(np.asarray, fun(x)))
    except (ValueError, IndexError, TypeError) as e:
        return f"{type(e).__name__}: {e}"


@pytest.mark.in_turns
@pytest.mark.parametrize("control_flow", ["auto", "host"])
@pytest.mark.parametrize("fun", PROGRAMS)
def test_an_empty_selection_raises_as_in_eager_jax(fun, control_flow):
    jitted, x = mal.jit(fun, control_flow=control_flow), jnp.linspace(-1.0, 2.0, 7)
    for scale in (1, 200, 1):
        assert seen(jitted, x * scale) == seen(fun, x * scale)


def test_what_a_mask_selects_is_reduced_without_a_break():
    report = mal.explain(lambda x: x[x > 0].max() + x[x > 0].argmin())(jnp.arange(3.0))
    assert report.breaks == []
