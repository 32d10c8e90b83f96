"""What every step of a loop computes alike is computed before it, and nothing else is."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from malleable import compat, listen, stage
from malleable.rewriting.passes.buffers import unbuffer
from malleable.rewriting.passes.hoist import hoist
from malleable.rewriting.passes.loops import scan_merge, scan_trim
from malleable.rewriting.passes.passes import optimize
from tests.rules import assert_same, prims, prims_deep

W = jnp.linspace(0.1, 0.9, 9).reshape(3, 3)
XS = jnp.arange(4.0)


def hoisted(fun, *args):
    program = stage(fun)(*args).jaxpr
    out = hoist(program)
    compat.check(out)
    assert hoist(out) is out
    assert out.out_avals == program.out_avals
    return out


def inside(program):
    """The primitives inside the loop of a program."""
    (loop,) = [eqn for eqn in program.eqns if eqn.primitive.name in ("scan", "while")]
    return [name for body in compat.bodies(loop.params) for name in prims(body)]


def constant(w):
    return lax.scan(lambda c, t: (c * jnp.exp(-w).sum() + t, (w @ w.T).sum() * c), 1.0, XS)


def carried(w):
    def step(carry, t):
        w, c = carry
        return (w, c * jnp.exp(-w).sum() + t), c

    return lax.scan(step, (w, 1.0), XS, reverse=True, unroll=2)


def nested(w):
    inner = lambda c: lax.scan(lambda d, u: (d + jnp.sin(w).sum() * u, None), c, XS)[0]
    return lax.scan(lambda c, t: (inner(c), None), 1.0, XS)[0]


def stacked(w):
    return lax.scan(lambda c, t: (c + t, jnp.sin(w)), 1.0, XS)


@pytest.mark.parametrize("fun", [constant, carried, nested, stacked])
def test_values_that_do_not_change_are_computed_once(fun):
    out = hoisted(fun, W)
    loop = str([prims_deep(body) for body in compat.bodies(out.eqns[-1].params)])
    assert not any(name in loop for name in ("exp", "dot_general", "sin"))
    assert_same(optimize(fun, hoist)(W), fun(W))
    total = lambda f: jax.grad(lambda w: sum(map(jnp.sum, jax.tree.leaves(f(w)))))
    assert_same(total(optimize(fun, hoist))(W), total(fun)(W), rtol=1e-3)
    ws = jnp.stack([W, 2 * W])
    assert_same(jax.vmap(optimize(fun, hoist))(ws), jax.vmap(fun)(ws))


def test_direction_and_unrolling_stay():
    eqn = hoisted(carried, W).eqns[-1]
    assert (eqn.params["reverse"], eqn.params["unroll"]) == (True, 2)


def test_the_test_and_the_body_of_a_while_both_give():
    def fun(w):
        return lax.while_loop(
            lambda c: c[0] < jnp.sin(w).sum(),
            lambda c: (c[0] + jnp.cos(w).sum(), c[1] * 2),
            (0.0, w),
        )

    assert not {"sin", "cos"} & set(inside(hoisted(fun, W)))
    assert_same(optimize(fun, hoist)(W), fun(W))


def test_only_one_of_test_and_body_may_give():
    fun = lambda w: lax.while_loop(lambda c: c < 9, lambda c: c + jnp.cos(w).sum(), 0.0)
    assert "cos" not in inside(hoisted(fun, W))
    assert_same(optimize(fun, hoist)(W), fun(W))


def test_a_while_with_an_answer_per_lane_is_left():
    fun = lambda w: lax.while_loop(lambda c: c < 9, lambda c: c + jnp.cos(w).sum(), 0.0)
    lanes = jax.vmap(fun)
    assert_same(optimize(lanes, hoist)(jnp.stack([W, W / 2])), lanes(jnp.stack([W, W / 2])))


def test_broadcasts_and_ranges_are_made_in_the_step():
    fun = lambda w: lax.scan(lambda c, t: (c * w[0, 0] + jnp.arange(3.0), None), jnp.zeros(3), XS)[
        0
    ]
    assert "iota" in inside(hoisted(fun, W))
    wide = lambda w: lax.scan(
        lambda c, t: (c + jnp.broadcast_to(w, (9, 3, 3)), None), 0.0 * wide0, XS
    )
    wide0 = jnp.zeros((9, 3, 3))
    assert hoisted(wide, W).eqns[-1].invars[0].aval.shape == (3, 3)


def test_what_is_large_and_cheap_stays_but_its_sum_goes():
    outer = lambda w: jnp.exp(w.reshape(-1)[:, None] * jnp.ones((1, 9999)))
    kept = lambda w: lax.scan(lambda c, t: (c + outer(w), None), jnp.zeros((9, 9999)), XS)[0]
    gone = lambda w: lax.scan(lambda c, t: (c + outer(w).sum(), None), 0.0, XS)[0]
    assert "exp" in inside(hoisted(kept, W))
    assert "exp" not in inside(hoisted(gone, W))


def test_a_loop_without_steps_is_left():
    fun = lambda w: lax.scan(lambda c, t: (c + jnp.sin(w).sum(), None), 1.0, XS[:0])[0]
    program = stage(fun)(W).jaxpr
    assert hoist(program) is program


def test_out_of_a_while_that_may_not_run_no_while_is_taken():
    endless = lambda w: lax.while_loop(lambda c: c < 1, lambda c: c * w[0, 0], 0.5)
    fun = lambda n, w: lax.while_loop(
        lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] + endless(w)), (0, 0.0)
    )[1]
    assert "while" in inside(hoisted(fun, 0, W))


def test_effects_stay_and_a_note_says_so():
    def step(c, t):
        jax.debug.print("{}", c)
        return c + jnp.sin(W * t).sum() * jnp.cos(c0).sum(), None

    c0 = jnp.ones(3)
    fun = lambda w: lax.scan(lambda c, t: step(c + jnp.exp(w).sum(), t), 1.0, XS)[0]
    program = stage(fun)(W).jaxpr
    with listen() as heard:
        assert hoist(program) is program
    assert [n.why for n in heard] == ["it has effects"]
    assert "test_hoist.py" in heard[0].where


def test_random_numbers_of_the_device_stay():
    fun = lambda w: lax.scan(lambda c, t: (c + lax.rng_uniform(0.0, 1.0, (3,)), None), w[0], XS)[0]
    assert "rng_uniform" in inside(hoisted(fun, W))


def test_a_moved_equation_names_its_line():
    for eqn in hoisted(constant, W).eqns:
        assert "test_hoist.py" in compat.where(eqn)


def test_the_gradient_keeps_the_value_once_and_not_once_per_step():
    loss = lambda f: jax.make_jaxpr(jax.grad(lambda w: f(w)[0]))(W)
    fun = lambda w: lax.scan(lambda c, t: (c * jnp.exp(w * 2).sum() + t, None), 1.0, XS)

    def stacks(program):
        return [
            v.aval.shape for eqn in program.eqns for v in eqn.outvars if v.aval.shape[:1] == (4,)
        ]

    assert stacks(loss(optimize(fun, hoist))) == [(4,)]


@pytest.mark.parametrize("p", [hoist, scan_trim, scan_merge, unbuffer])
def test_a_loop_that_updates_a_reference_is_left(p):
    def fun(x):
        ref = jax.new_ref(jnp.zeros(3))

        def step(c, t):
            ref[0] += jnp.exp(x)
            return c + ref[0] * t, ref[1]

        return lax.scan(step, x, XS)[0] + ref[0]

    assert_same(optimize(fun, p)(1.0), fun(1.0))
