"""Windows, joins and single elements of what a scan stacks, each at hand at its own step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from malleable.rewriting.passes.passes import optimize
from tests.rules import assert_same
from tests.scans import W, X, both_ways, push, rollout, same_everywhere

WINDOWS = {
    "one behind the other": lambda y, x, w: ((y[:-1] - w[1:]) ** 2).mean(),
    "every third": lambda y, x, w: (y[::3] ** 2).sum(0),
    "the end": lambda y, x, w: jnp.sin(y[4:]).sum(0),
    "differences": lambda y, x, w: jnp.abs(jnp.diff(y, axis=0)).sum(),
    "second differences": lambda y, x, w: (jnp.diff(y, 2, axis=0) ** 2).sum(),
    "autocorrelation": lambda y, x, w: (y[:-2] * y[2:]).sum() + (y[:-1] * y[1:]).sum(),
    "with the start": lambda y, x, w: (jnp.concatenate([x[None], y]) ** 2).sum(0),
    "shifted": lambda y, x, w: ((jnp.concatenate([x[None], y[:-1]]) - w) ** 2).mean(),
    "shifted by itself": lambda y, x, w: (jnp.concatenate([x[None], y[:-1]]) * y).sum(),
    "shifted back by itself": lambda y, x, w: (jnp.concatenate([y[1:], x[None]]) * y).sum(),
    "shifted back by two": lambda y, x, w: (
        jnp.concatenate([y[2:], jnp.stack([x, 2 * x])]) * y
    ).sum(0),
    "shifted by two": lambda y, x, w: (jnp.concatenate([jnp.stack([x, 2 * x]), y[:-2]]) * y).var(0),
    "differences with both ends": lambda y, x, w: (
        jnp.diff(jnp.concatenate([x[None], y, 3 * x[None]]), axis=0) ** 2
    ).sum(),
    "running sum of the shifted": lambda y, x, w: (
        lax.cumsum(jnp.concatenate([x[None], y[:-1]]), 0, reverse=True) ** 2
    ).sum(),
    "running sum of the end": lambda y, x, w: (jnp.cumsum(y[2:], 0) ** 2).sum(),
    "running product of the end": lambda y, x, w: lax.cumprod(1 + y[2:], 0).sum(),
    "running maximum of the start": lambda y, x, w: (
        lax.cummax(y[:-2], 0, reverse=True) ** 2
    ).sum(),
    "running sum of every second": lambda y, x, w: (jnp.cumsum(y[::2], 0) ** 2).sum(),
    "running sum of the joined": lambda y, x, w: (
        jnp.cumsum(jnp.concatenate([y[1:], x[None]]), 0) ** 2
    ).sum(),
    "another first row": lambda y, x, w: (jnp.concatenate([x[None], y[1:]]) ** 2).sum(0),
    "other last rows": lambda y, x, w: (
        jnp.concatenate([y[:-2], x[None], x[None]]) * jnp.cos(w)
    ).sum(0),
    "minus the first": lambda y, x, w: ((y - y[0]) ** 2).mean(),
    "minus the last": lambda y, x, w: ((y - y[-1]) ** 2).mean(),
    "times the first row": lambda y, x, w: (y * y[0:1]).sum(),
    "minus the first row": lambda y, x, w: ((y - y[:1]) ** 2).sum(),
    "joined, minus what was joined": lambda y, x, w: (lambda full: ((full - full[0]) ** 2).sum())(
        jnp.concatenate([x[None], y])
    ),
    "joined, minus the second": lambda y, x, w: (lambda full: ((full - full[1]) ** 2).sum())(
        jnp.concatenate([x[None], y])
    ),
    "joined, minus the first of the scan": lambda y, x, w: (
        (jnp.concatenate([x[None], y]) - y[0]) ** 2
    ).sum(),
    "joined, minus the last of the scan": lambda y, x, w: (
        (jnp.concatenate([y, x[None]]) - y[-1]) ** 2
    ).sum(),
}


@pytest.mark.in_turns
@pytest.mark.parametrize("name", WINDOWS)
def test_windows_joins_and_single_rows_give_what_they_gave(name):
    fun = both_ways(WINDOWS[name])
    same_everywhere(optimize(fun, push), fun, X, W)


@pytest.mark.parametrize("index", [3, -2, 99])
def test_an_element_at_a_traced_place_is_that_element(index):
    fun = lambda x, i: [rollout(x, reverse)[i] for reverse in (False, True)]
    args = X, jnp.int32(index)
    assert_same(jax.jit(optimize(fun, push))(*args), fun(*args))


@pytest.mark.parametrize("index", [np.uint8(200), np.int8(100)])
def test_a_place_of_a_small_type_may_be_beyond_it(index):
    fun = lambda x, i: lax.dynamic_index_in_dim(rollout(x, length=300), i, 0, False)
    assert_same(jax.jit(optimize(fun, push))(X, jnp.asarray(index)), fun(X, jnp.asarray(index)))
