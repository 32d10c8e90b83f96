"""Steps outside of a window run on zeros, or are skipped where zeros could do harm."""

import jax
import jax.numpy as jnp
import pytest

from malleable.rewriting.passes.passes import optimize
from malleable.rewriting.streaming.region.region import Window
from malleable.rewriting.streaming.schedule.masks import within
from tests.rules import assert_same, prims, prims_deep
from tests.scans import N, X, push, pushed, rollout, same_everywhere

PARTS = {
    "all but the first": (lambda y: (y[1:] ** 2).sum(0), False),
    "all but the last": (lambda y: jnp.tanh(y[:-1]).sum(), False),
    "differences": (lambda y: ((y[1:] - y[:-1]) ** 2).sum(0), False),
    "the second half": (lambda y: (y[N // 2 :] ** 2).sum(0), True),
    "logarithms": (lambda y: jnp.log(y[1:] ** 2).sum(0), True),
    "a maximum": (lambda y: y[1:].max(0), True),
}


@pytest.mark.parametrize("name", PARTS)
def test_a_part_gives_what_it_gave_forwards_and_backwards(name):
    fun = lambda x: [PARTS[name][0](rollout(x, reverse)) for reverse in (False, True)]
    same_everywhere(optimize(fun, push(chunk=1)), fun, X)


@pytest.mark.parametrize("name", PARTS)
def test_it_branches_only_where_zeros_could_do_harm_or_most_steps_are_skipped(name):
    part, branches = PARTS[name]
    assert ("cond" in str(prims_deep(pushed(lambda x: part(rollout(x)), X)))) == branches


def program(window, n, tame):
    run = lambda x: [2 * x]
    return jax.make_jaxpr(lambda t, x: within(window, n, t, run, [x], tame=tame))(1, X).jaxpr


def test_a_window_of_every_step_is_no_mask():
    assert prims(program(Window(0, 1, N), N, False)) == ["mul"]


@pytest.mark.parametrize("window", [Window(1, 1, 9), Window(0, 2, 5), Window(4, 1, 3)])
@pytest.mark.parametrize("tame", [False, True])
def test_outside_of_a_window_there_are_zeros(window, tame):
    steps = [window.start + i * window.step for i in range(window.count)]
    run = jax.jit(lambda t, x: within(window, N, t, lambda x: [2 * x], [x], tame=tame)[0])
    for t in range(N):
        assert_same(run(t, X), 2 * X if t in steps else 0 * X)


def test_what_is_skipped_is_as_weak_as_what_is_not():
    fun = lambda t: within(Window(1, 1, 2), N, t, lambda: [2.0 * t.astype(float)], [])
    weak = lambda t: within(Window(1, 1, 2), N, t, lambda: [t * 0.5], [])
    kinds = [jax.make_jaxpr(f)(jnp.int32(1)).out_avals[0].weak_type for f in (fun, weak)]
    assert kinds == [False, True]
