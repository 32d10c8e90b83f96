"""Values under random programs: a box changes nothing, and intervals enclose what may come."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import malleable as mal
from examples.values import intervals
from examples.values.interval_rules import Interval, hi, lo
from malleable.core.values import is_value
from malleable.errors import TransformError
from tests.core.values.value_classes import Box, boxed
from tests.generators.programs.programs import example_args, random_program

TOGETHER = 10  # all at once: compiling is what takes time
unboxed = lambda tree: jax.tree.map(lambda x: x.x if is_value(x) else x, tree, is_leaf=is_value)


def boxes(program):
    def run(*args):
        return unboxed(mal.interpret(program, {Box: boxed})(*map(Box, args))[0])

    return run


def total(f):
    return lambda *args: sum(map(jnp.sum, jax.tree.leaves(f(*args))))


def derived(f):
    return jax.grad(total(f), argnums=(0, 1, 2))


def mapped(f):
    pair = lambda x: jnp.stack([x, -x])
    return lambda x, y, z, n: jax.vmap(f, (0, None, 0, None))(pair(x), y, pair(z), n)


def looped(f):
    return lambda *args: lax.scan(lambda c, _: (c, f(*c)), args, None, length=2)[1]


def chosen(f):
    none = lambda *args: jax.tree.map(jnp.zeros_like, f(*args))
    return lambda *args: lax.cond(args[2] > 0, f, none, *args)


def turning(f):
    return lambda *args: lax.fori_loop(0, args[3], lambda i, s: s + total(f)(*args), 0.0)


WAYS = {  # what is around a program, innermost first; programs themselves nest three deep
    "jit": (),
    "grad": (derived,),
    "vmap": (mapped,),
    "scan": (looped,),
    "cond": (chosen,),
    "while": (turning,),
    "vmap of grad": (derived, mapped),
    "grad of vmap": (mapped, derived),
    "scan of cond of vmap": (mapped, chosen, looped),
    "grad of scan of cond": (chosen, looped, derived),
    "boxes around a vmap": (mapped, boxes),
    "boxes around a grad of a scan": (looped, derived, boxes),
}


def compiled(functions, ways, args, ordered):
    """The results, and the program that XLA makes, without the names that it counts."""
    made = [functools.reduce(lambda f, way: way(f), ways, f) for f in functions]
    run = jax.jit(lambda *args: [f(*args) for f in made]).lower(*args).compile()
    text, names = run.as_text().split("\n", 1)[1], {}
    text = re.sub(r", metadata=\{[^}]*\}|, stack_frame_id=\d+", "", text)
    text = re.sub(r"(?s)FileNames.*?(?=\n\n%|\n\nENTRY)", "", text)
    text = re.sub(r"%[\w.\-]+", lambda m: names.setdefault(m[0], f"%{len(names)}"), text)
    text = re.sub(r"[\w.]+: (?=\(?[a-z])", "", text)
    if not ordered:  # XLA orders what does not depend on each other by how it was traced
        lines = [line.split(" = ", 1)[1] for line in text.splitlines() if " = " in line]
        kinds = [re.sub(r"\(?[a-z]+\d*\[.*?\)? (?=[a-z\-]+\()", "", line) for line in lines]
        shapes = [sorted(re.findall(r"[a-z]+\d*\[[\d,]*\]", line)) for line in lines]
        text = sorted((kind.split("(")[0], *own) for kind, own in zip(kinds, shapes, strict=True))
    return run(*args), text


@pytest.mark.parametrize("half", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("way", WAYS)
def test_a_box_leaves_the_compiled_program_the_same(way, half):
    """And with it every bit; of two hundred programs in all."""
    ways, start = WAYS[way], TOGETHER * (2 * [*WAYS].index(way) + half)
    options = {"differentiable": derived in ways, "depth": 3 if len(ways) < 2 else 2}
    programs = [random_program(seed, **options) for seed in range(start, start + TOGETHER)]
    plain = [lambda *args, program=program: program(*args) for program in programs]
    ordered, ways = derived not in ways, ways if boxes in ways else (boxes, *ways)
    (got, text), (want, other) = (
        compiled(plain, some, example_args(start), ordered and ways[0] is boxes)
        for some in (ways, [way for way in ways if way is not boxes])
    )
    if way != "boxes around a grad of a scan":  # on JAX 0.10 what no result needs is left out of it
        assert text == other
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert a.dtype == b.dtype and a.weak_type == b.weak_type and a.sharding == b.sharding
        np.testing.assert_array_equal(a, b)


def compare(frame, *xs, **_):
    """Programs branch on signs that are far from zero: the middle has them."""
    return frame.bind(*((lo(x) + hi(x)) / 2 for x in xs))


RULES = {Interval: intervals.ask} | dict.fromkeys([lax.gt_p, lax.lt_p, lax.ge_p, lax.le_p], compare)


def test_intervals_enclose_a_hundred_runs():
    """Of those of fifty programs whose primitives have a rule here."""
    ruled, args = [], example_args(1)
    *floats, n = args
    wide = [Interval(x - 0.01, x + 0.01) for x in floats]
    for program in map(random_program, range(50)):
        run = mal.interpret(program, RULES)
        try:
            jax.eval_shape(lambda *a, run=run: run(*a)[0], *wide, n)
        except TransformError:
            continue
        ruled.append((program, run))
    assert len(ruled) >= 49
    noise = 0.01 * jax.random.uniform(jax.random.key(0), (100, 1), minval=-1)[:, 0]

    @jax.jit
    def both(noise):
        inner = lambda e: [p(*(x + e for x in floats), n) for p, _ in ruled]
        return [run(*wide, n)[0] for _, run in ruled], jax.vmap(inner)(noise)

    for outs, inner in zip(*both(noise), strict=True):
        pairs = jax.tree.leaves(outs, is_leaf=is_value), jax.tree.leaves(inner)
        for out, runs in zip(*pairs, strict=True):
            assert (lo(out) <= runs + 1e-4).all() and (runs <= hi(out) + 1e-4).all()
