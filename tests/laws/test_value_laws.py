"""Values under random programs: a box changes nothing, and intervals enclose what may come."""

import jax
import numpy as np
import pytest
from jax import lax

import malleable as mal
from malleable.core.values import is_value
from malleable.errors import UnhandledError
from malleable.programs.primitives import has, kind
from tests.core.values.value_classes import INTERVALS, Box, Interval, boxed, hi, lo, rising
from tests.generators.programs.programs import example_args, random_program

PROGRAMS, TOGETHER = 200, 20
unboxed = lambda tree: jax.tree.map(lambda x: x.x if is_value(x) else x, tree, is_leaf=is_value)


def boxes(program):
    def run(*args):
        return unboxed(mal.interpret(program, {Box: boxed})(*map(Box, args))[0])

    return run


def compare(frame, *xs: Interval | jax.Array, **_):
    """Programs branch on signs that are far from zero: the middle has them."""
    return frame.bind(*((lo(x) + hi(x)) / 2 if isinstance(x, Interval) else x for x in xs))


def steady(frame, x: Interval, **_):
    """Of slope 1 at most."""
    at, reach = frame.bind((x.lo + x.hi) / 2), (x.hi - x.lo) / 2
    return Interval(at - reach, at + reach)


def other(frame, *xs, **_):
    """What moves or sums entries, or keeps their order."""
    if frame.eqn.primitive.name not in kind("dims", "cut", "join", "write") | has(
        "sum", "extremum"
    ):
        raise UnhandledError(frame.eqn.primitive.name)
    return rising(frame, *xs)


RULES = INTERVALS | dict.fromkeys([lax.gt_p, lax.lt_p, lax.ge_p, lax.le_p], compare)
RULES |= dict.fromkeys([lax.sin_p, lax.cos_p], steady) | {Interval: other}


@pytest.mark.parametrize("start", range(0, PROGRAMS, TOGETHER))
def test_a_box_changes_no_bit(start):
    programs = [random_program(seed) for seed in range(start, start + TOGETHER)]
    args = example_args(start)

    @jax.jit  # all at once: compiling is what takes time
    def both(*args):
        return [(boxes(program)(*args), program(*args)) for program in programs]

    for got, want in both(*args):
        assert jax.tree.structure(got) == jax.tree.structure(want)
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            assert a.dtype == b.dtype and a.weak_type == b.weak_type and a.sharding == b.sharding
            np.testing.assert_array_equal(a, b)


def test_intervals_enclose_a_hundred_runs():
    """Of those of fifty programs whose primitives have a rule here."""
    ruled, args = [], example_args(1)
    *floats, n = args
    wide = [Interval(x - 0.01, x + 0.01) for x in floats]
    for program in map(random_program, range(50)):
        run = mal.interpret(program, RULES)
        try:
            jax.eval_shape(lambda *a, run=run: run(*a)[0], *wide, n)
        except UnhandledError:
            continue
        ruled.append((program, run))
    assert len(ruled) >= 15
    noise = 0.01 * jax.random.uniform(jax.random.key(0), (100, 1), minval=-1)[:, 0]

    @jax.jit
    def both(noise):
        inner = lambda e: [p(*(x + e for x in floats), n) for p, _ in ruled]
        return [run(*wide, n)[0] for _, run in ruled], jax.vmap(inner)(noise)

    for outs, inner in zip(*both(noise), strict=True):
        pairs = jax.tree.leaves(outs, is_leaf=is_value), jax.tree.leaves(inner)
        for out, runs in zip(*pairs, strict=True):
            assert (lo(out) <= runs + 1e-4).all() and (runs <= hi(out) + 1e-4).all()
