import functools
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

from malleable import compat
from malleable.core.stage import stage
from malleable.programs.evaluate import evaluate
from malleable.rewriting.passes.loops import scan_merge, scan_trim
from malleable.rewriting.passes.passes import optimize

XS = jnp.linspace(0.5, 1.5, 4)


def assert_close(one, other):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)


def after(p, fun, *args):
    """The program of fun after a pass: well typed, with the same results, and final."""
    program = stage(fun)(*args).jaxpr
    new = p(program)
    compat.check(new)
    flat = list(map(compat.as_array, jax.tree.leaves(args)))
    assert_close(evaluate(new, flat), jax.tree.leaves(fun(*args)))
    assert [v.aval for v in new.jaxpr.outvars] == [v.aval for v in program.jaxpr.outvars]
    assert p(new) is new
    return new


def scans(jaxpr):
    """(carries, rows, outputs) of the scans of a program."""
    found = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "scan"]
    views: list[Any] = list(map(compat.view, found))
    parts = [view.split(eqn.invars) for view, eqn in zip(views, found, strict=True)]
    return [
        (len(carry), len(xs), len(eqn.outvars) - len(carry))
        for eqn, (_, carry, xs) in zip(found, parts, strict=True)
    ]


def add(c, x):
    return c + x, c * x


# ---------------------------------------------------------------- scan_trim


def test_unused_outputs_and_the_carries_behind_them_go():
    def loop(xs):
        step = lambda c, x: ((c[0] + x, c[1] * x), (c[0] * x, c[1]))
        return lax.scan(step, (0.0, 1.0), xs)[1][0]

    assert scans(after(scan_trim, loop, XS)) == [(1, 1, 1)]


def test_a_carry_that_never_changes_is_a_constant():
    loop = lambda xs: lax.scan(lambda c, x: ((c[0] + x * c[1], c[1]), c[0]), (0.0, xs[0]), xs)
    assert scans(after(scan_trim, loop, XS)) == [(1, 1, 1)]


def test_carries_that_swap_equal_values_are_constants():
    loop = lambda x: lax.scan(lambda c, _: (c[::-1], c), (x, x), None, length=3)
    assert scans(after(scan_trim, loop, XS)) == []


def test_carries_that_are_always_equal_are_one():
    step = lambda c, x: ((c[0] + 1, c[1] + 1, c[2] + x * c[0] - c[1]), None)
    loop = lambda xs: lax.scan(step, (0, 0, 0.0), xs)[0]
    assert scans(after(scan_trim, loop, XS)) == [(2, 1, 0)]


def test_carries_that_start_alike_and_part_ways_stay_two():
    step = lambda c, x: ((c[0] + x, c[1] * x + 1, c[0] + c[1]), None)
    loop = lambda xs: lax.scan(step, (0.0, 0.0, 0.0), xs)[0]
    assert scans(after(scan_trim, loop, XS)) == [(3, 1, 0)]


@pytest.mark.parametrize("reverse", [False, True])
def test_outputs_that_are_operands_constants_or_copies_are_not_stacked(reverse):
    def loop(xs, k):
        step = lambda c, x: (c + x, (x, k, 2.0, c * x, x * c))
        return lax.scan(step, 0.0, xs, reverse=reverse)

    assert scans(after(scan_trim, loop, XS, jnp.ones(2))) == [(1, 1, 1)]


def test_rows_given_twice_are_read_once():
    loop = lambda xs: lax.scan(lambda c, ab: (c + ab[0] * ab[1], None), 0.0, (xs, xs))[0]
    assert scans(after(scan_trim, loop, XS)) == [(1, 1, 0)]


def test_scans_in_scans_are_trimmed():
    def loop(xs):
        inner = lambda c: lax.scan(lambda c, x: ((c[0] + x, c[1]), x), (c, c), xs)[0][0]
        return lax.scan(lambda c, _: (inner(c), None), 1.0, None, length=2)[0]

    (outer,) = after(scan_trim, loop, XS).eqns
    assert scans(outer.params["jaxpr"]) == [(1, 1, 0)]


def test_effects_in_a_loop_stay():
    seen = []

    def loop(xs):
        def step(c, x):
            jax.debug.callback(lambda x: seen.append(float(x)), x, ordered=True)
            return (c[0], c[1] + x), x

        return lax.scan(step, (1.0, 0.0), xs)

    after(scan_trim, loop, XS)
    seen.clear()
    optimize(loop, scan_merge, scan_trim)(XS)
    jax.effects_barrier()
    assert seen == XS.tolist()


def test_a_program_without_anything_to_trim_comes_back_itself():
    program = stage(lambda xs: lax.scan(add, 0.0, xs))(XS).jaxpr
    assert scan_trim(program) is program
    assert scan_merge(program) is program


# ---------------------------------------------------------------- scan_merge


def test_independent_scans_are_one():
    both = lambda xs: (lax.scan(add, 0.0, xs), lax.scan(add, 1.0, jnp.sin(xs)))
    assert scans(after(scan_merge, both, XS)) == [(2, 2, 2)]


def test_a_scan_that_follows_another_step_by_step_joins_it():
    chain = lambda xs: lax.scan(add, 1.0, lax.scan(add, 0.0, xs)[1])
    assert scans(after(scan_merge, chain, XS)) == [(2, 1, 1)]


def test_loops_that_come_into_one_body_are_one():
    inner = lambda c, x: (x + lax.scan(add, c, XS)[0], x)
    both = lambda xs: (lax.scan(inner, 0.0, xs), lax.scan(inner, 1.0, xs))
    (outer,) = (e for e in after(scan_merge, both, XS).eqns if e.primitive.name == "scan")
    assert scans(compat.view(outer).body) == [(2, 1, 0)]


def test_outputs_used_elsewhere_stay_outputs():
    def chain(xs):
        ys = lax.scan(add, 0.0, xs)[1]
        return lax.scan(add, 1.0, ys)[1], ys

    assert scans(after(scan_merge, chain, XS)) == [(2, 1, 2)]


@pytest.mark.parametrize(
    "second",
    [
        lambda end, ys: lax.scan(add, end, ys),  # starts with the end of the first
        lambda end, ys: lax.scan(add, 0.0, ys * 2.0),  # something is between them
        lambda end, ys: lax.scan(add, 0.0, ys, reverse=True),
        lambda end, ys: lax.scan(add, 0.0, ys[:2]),
        lambda end, ys: lax.scan(lambda c, x: (c + x, ys * c), 0.0, ys),  # reads them all
    ],
)
def test_scans_that_need_the_whole_of_another_stay_two(second):
    program = stage(lambda xs: second(*lax.scan(add, 0.0, xs)))(XS).jaxpr
    assert scan_merge(program) is program


def test_no_merge_ties_a_knot():
    def knot(xs):
        a, _ = lax.scan(add, 0.0, xs)
        b, zs = lax.scan(add, 0.0, xs[:2] + a)
        c, ws = lax.scan(add, b, xs * 2)  # of the kind of the first, but after the second
        d, _ = lax.scan(add, c, zs)
        return lax.scan(add, d, ws)

    after(scan_merge, knot, XS)


def test_effects_keep_their_order():
    seen = []

    def loop(xs):
        a, _ = lax.scan(add, 0.0, xs)
        jax.debug.callback(lambda x: seen.append(("first", float(x))), a, ordered=True)
        b, _ = lax.scan(add, 1.0, xs)
        jax.debug.callback(lambda x: seen.append(("second", float(x))), b, ordered=True)
        return b

    optimize(loop, scan_merge)(XS)
    jax.effects_barrier()
    assert seen == [("first", 4.0), ("second", 5.0)]


@pytest.mark.parametrize("seed", range(8))
def test_random_programs_of_scans_keep_their_results(seed):
    fun, args = random_loops(np.random.default_rng(seed))
    program = stage(fun)(*args).jaxpr
    for p in (scan_trim, scan_merge):
        new = p(program)
        compat.check(new)
        assert new.out_avals == program.out_avals
        assert p(new) is new
    lanes = jax.tree.map(lambda x: jnp.stack([x, x + 0.1]), args)

    @functools.partial(jax.jit, static_argnums=0)  # one compilation for all of it
    def everything(f):
        loss = lambda *a: sum(jnp.sum(jnp.sin(x)) for x in f(*a))
        return f(*args), jax.grad(loss)(*args), jax.vmap(f)(*lanes) if seed % 2 else None

    assert_close(everything(optimize(fun, scan_merge, scan_trim)), everything(fun))


def random_loops(rng):
    """A chain of scans of two lengths, each over rows, ends and results of others."""
    plans = [
        {
            "rows": rng.integers(0, 9, 2),
            "starts": rng.integers(0, 9, 3),
            "ops": rng.integers(0, 7, (4, 3)),
            "outs": rng.integers(0, 9, 3),
            "backward": rng.random() < 0.3,
        }
        for _ in range(rng.integers(2, 4))
    ]
    kept = rng.integers(0, 9, 3)

    def fun(xs, x):
        vectors, scalars = [xs, jnp.sin(xs)], [x, jnp.cos(x)]
        for plan in plans:
            rows = [vectors[i % len(vectors)] for i in plan["rows"]]
            starts = [scalars[i % len(scalars)] for i in plan["starts"]]
            const = scalars[-1]

            def step(carry, rows, plan=plan, const=const):
                pool = [*carry, *rows, const]
                for op, a, b in plan["ops"]:
                    u, v = pool[a % len(pool)], pool[b % len(pool)]
                    pool.append([u, u + v, u * v, jnp.sin(u), u - v, v, jnp.tanh(u)][op])
                ends = [jnp.tanh(pool[i % len(pool)]) for i in plan["outs"][:2]]
                ends.append(carry[2] if plan["ops"][0][0] < 4 else ends[0])
                return ends, [pool[i % len(pool)] for i in plan["outs"]]

            ends, outs = lax.scan(step, starts, rows, reverse=bool(plan["backward"]))
            scalars += ends
            vectors += outs
        return [*(vectors[-1 - i % len(vectors)] for i in kept), scalars[-1]]

    return fun, (jnp.asarray(rng.normal(size=4), jnp.float32), jnp.float32(0.3))


def test_a_long_shift_register_is_trimmed_in_a_bounded_number_of_turns():
    def fun(xs):
        step = lambda c, t: ((c[0], *c[2:], t), c[0] + c[1])
        return lax.scan(step, (0.0,) * 60, xs)[1]

    new = scan_trim(stage(fun)(XS).jaxpr)
    assert [carries for carries, *_ in scans(new)] == [59]
    assert scan_trim(new) is new
