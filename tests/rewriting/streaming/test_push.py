"""A reduction pushed up into its scan gives what it gave; what was stacked is not there."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from jax.sharding import PartitionSpec as P

from malleable import compat, listen, stage
from malleable.rewriting.passes.passes import optimize
from malleable.rewriting.streaming.push import push_up_reductions
from malleable.rewriting.streaming.region.sinks import SINKS, sink
from malleable.rewriting.streaming.stream import stream
from tests.rules import assert_same, prims
from tests.scans import (
    B,
    N,
    W,
    X,
    in_turns,
    push,
    pushed,
    reasons,
    rollout,
    same_everywhere,
    same_on_eight_devices,
    stacked,
    temporary,
    turned,
    waves,
)

# ---------------------------------------------------------------- the value, its gradient, vmap

TAILS = {
    "mean": lambda y, x, w: y.mean(),
    "weights": lambda y, x, w: (y * w).sum(0),
    "loss": lambda y, x, w: ((y - w) ** 2).mean(),
    "product": lambda y, x, w: y.prod(0),
    "extent": lambda y, x, w: y.max(0) - y.min(0),
    "places": lambda y, x, w: (jnp.argmax(y, 0), jnp.argmin(y), jnp.argmax(y, 1).sum()),
    "any": lambda y, x, w: ((y > 0.9).any(0), (y > -2).all()),
    "norm": lambda y, x, w: jnp.linalg.norm(y, axis=0),
    "mask": lambda y, x, w: jnp.where(w > 0.5, y, 0.0).sum(0),
    "contraction": lambda y, x, w: jnp.einsum("tb,tc->bc", y, w),
    "layer": lambda y, x, w: jnp.tanh(y @ w[:3]).max(0),
    "labels": lambda y, x, w: (
        -jnp.take_along_axis(jax.nn.log_softmax(y), jnp.argmax(w, 1)[:, None], 1).mean()
    ),
    "labels by arange": lambda y, x, w: (
        -jax.nn.log_softmax(y)[jnp.arange(N), jnp.argmax(w, 1)].mean()
    ),
    "rows in one": lambda y, x, w: (y.reshape(-1) * w.reshape(-1)).sum(),
    "columns in one": lambda y, x, w: jnp.swapaxes(y, 0, 1).reshape(-1).max(),
    "running sum": lambda y, x, w: (jnp.cumsum(y, 0) * w).sum(),
    "running maximum": lambda y, x, w: (lax.cummax(y, 0) * w).sum(),
    "last": lambda y, x, w: y[-1] * 2,
    "fifth": lambda y, x, w: y[4],
    "two tails": lambda y, x, w: (y.sum(0), jnp.sin(y * w).max()),
}


@pytest.mark.parametrize(("name", "chunk", "reverse"), in_turns(TAILS, [(1, False), (4, True)]))
def test_a_pushed_tail_gives_what_it_gave(name, chunk, reverse):
    fun = lambda x, w: TAILS[name](rollout(x, reverse), x, w)
    same_everywhere(optimize(fun, push(chunk=chunk)), fun, X, W)


def test_the_gradient_of_a_maximum_is_finite_though_xla_rounds_it_in_two_ways():
    fun = lambda x: rollout(x, reverse=True).max(0)
    same_everywhere(optimize(fun, push(chunk=1)), fun, X)


def test_the_gradient_of_a_maximum_of_blocks_is_finite_as_well():
    turn = jnp.exp(0.3j * jnp.arange(4.0)) * 0.9
    step = lambda c, u: (c * turn + u,) * 2
    fun = lambda u: lax.scan(step, jnp.zeros((3, 4), "complex64"), u)[1].real.max()
    u = jax.random.normal(jax.random.key(0), (7, 3, 4))
    assert_same(*(jax.jit(jax.grad(f))(u) for f in (optimize(fun, push(chunk=3)), fun)), rtol=1e-4)


TWICE = {
    "variance": lambda y: jnp.var(y, 0).sum(),
    "deviation of all": lambda y: jnp.std(y),
    "third moment": lambda y: ((y - y.mean(0)) ** 3).sum(),
    "maximum": lambda y: (y.max(0) ** 3).sum(),
    "minimum of all": lambda y: y.min() ** 3,
    "softmax": lambda y: (jax.nn.softmax(y, 0) * W).sum(),
}


@pytest.mark.parametrize(("name", "chunk"), [*zip(TWICE, [1, 4] * 3, strict=True)])
def test_the_second_derivative_is_the_same(name, chunk):
    fun = lambda x: TWICE[name](rollout(x))
    got, want = (jax.jit(jax.hessian(f))(X) for f in (optimize(fun, push(chunk=chunk)), fun))
    assert_same(got, want, rtol=1e-3)


@pytest.mark.parametrize(
    ("axis", "reverse", "options"),
    [(0, False, {}), (0, True, {"chunk": 4}), (None, True, {"remat": "body"})],
)
def test_the_gradient_of_a_deviation_far_from_zero_has_the_digits_it_had(axis, reverse, options):
    fun = lambda x, far: (rollout(x, reverse) + far).std(axis).sum()
    passed = optimize(fun, push(**{"chunk": 1, **options}))
    exact, plain, got = (
        jax.jit(jax.grad(f))(X, far) for f, far in [(fun, 0.0), (fun, 3e4), (passed, 3e4)]
    )
    assert jnp.abs(got - exact).max() < 1.5 * jnp.abs(plain - exact).max()


# ---------------------------------------------------------------- what is not there any more


@pytest.mark.parametrize("name", TAILS)
def test_no_scan_stacks_what_only_the_tail_used(name):
    fun = lambda x, w: TAILS[name](rollout(x), x, w)
    assert (N, B) in stacked(stage(fun)(X, W).jaxpr)
    assert all(shape[:1] != (N,) for shape in stacked(pushed(fun, X, W, chunk=1)))


def test_what_a_carry_meets_a_step_later_is_no_copy():
    fun = lambda x, w: ((waves(x, N)[:-1] - w[1:]) ** 2).sum()
    program = pushed(fun, X, W)
    assert "slice" not in prims(program) and (N, B) not in stacked(program)
    same_everywhere(optimize(fun, push(chunk=1)), fun, X, W)


def test_a_chunk_is_all_that_is_stacked():
    program = pushed(lambda x: rollout(x).mean(0), X, chunk=4)
    assert {shape for shape in stacked(program) if len(shape) == 2} == {(4, B), (2, B)}


def test_what_is_used_as_a_whole_as_well_stays_stacked_beside_the_reduction():
    fun = lambda x: (lambda y: (y, (y * W).sum(0)))(rollout(x))
    assert (N, B) in stacked(pushed(fun, X))


def test_the_same_pass_again_changes_nothing():
    for name in ("loss", "labels", "two tails"):
        once = pushed(lambda x, w, tail=TAILS[name]: tail(rollout(x), x, w), X, W)
        assert push(once) is once


def test_a_long_tail_stays_about_as_long():
    def long_tail(x):
        y = rollout(x)
        for i in range(100):
            y = jnp.sin(y) * (1 + 0.01 * i)
        return y.mean()

    def count(jaxpr):
        bodies = [body for eqn in jaxpr.eqns for body in compat.bodies(eqn.params)]
        return len(jaxpr.eqns) + sum(map(count, bodies))

    before = stage(long_tail)(X).jaxpr
    assert count(before) > 200
    assert count(push(before)) <= 3 * count(before)


def test_memory_falls_by_the_length_of_the_scan():
    fun, x = lambda x: waves(x, length=1000).mean(), jnp.linspace(0.0, 3.0, 1000)
    assert temporary(optimize(fun, push_up_reductions), x) * 200 < temporary(fun, x)


def test_memory_of_a_gradient_falls():
    fun = lambda x: (jnp.tanh(waves(x, length=1000)) ** 2).mean()
    x = jnp.linspace(0.0, 3.0, 1000)
    grads = jax.grad(optimize(fun, push_up_reductions)), jax.grad(fun)
    assert temporary(grads[0], x) * 1.3 < temporary(grads[1], x)


# ---------------------------------------------------------------- options


def test_a_few_kilobytes_are_not_worth_it():
    assert reasons(lambda x: rollout(x).sum(0), X, threshold=None) == [
        f"the scan stacks only {4 * N * B} bytes"
    ]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"chunk": 0}, "chunk is .* from 1 on, not 0"),
        ({"chunk": True}, "not True"),
        ({"chunk": "large"}, "not 'large'"),
        ({"threshold": -1}, "not -1"),
        ({"sinks": "sum"}, "not 'sum'"),
        ({"remat": "all"}, "not 'all'"),
        ({"level": "sloppy"}, "not 'sloppy'"),
    ],
)
def test_an_option_that_is_none_is_an_error(options, words):
    with pytest.raises(ValueError, match=words):
        pushed(lambda x: rollout(x).sum(), X, **options)


def test_at_level_exact_a_sum_of_floats_stays_where_it_is():
    assert any("order" in why for why in reasons(lambda x: rollout(x).sum(0), X, level="exact"))


@pytest.mark.parametrize("name", ["extent", "places", "any", "last"])
def test_at_level_exact_what_does_not_round_is_pushed(name):
    fun = lambda x, w: TAILS[name](rollout(x), x, w)
    program = pushed(fun, X, W, level="exact")
    assert (N, B) not in stacked(program)


@pytest.mark.parametrize(("remat", "count"), [("tail", 1), ("body", 2), (None, 0)])
def test_remat_says_what_a_gradient_computes_again(remat, count):
    def remats(jaxpr):
        bodies = [body for eqn in jaxpr.eqns for body in compat.bodies(eqn.params)]
        return str([e.primitive.name for e in jaxpr.eqns]).count("remat") + sum(map(remats, bodies))

    assert remats(pushed(lambda x: rollout(x).mean(), X, remat=remat)) == count


# ---------------------------------------------------------------- sinks of one's own

length = sink(
    lambda x: jnp.sqrt((x * x).sum(0)),
    init=lambda x: jnp.zeros(x.shape[1:]),
    step=lambda acc, start, x: acc + (x * x).sum(0),
    merge=lambda a, b: a + b,
    final=jnp.sqrt,
)


@pytest.mark.parametrize("chunk", [1, 4])
def test_a_sink_of_yours_is_pushed_up(chunk):
    fun, sinks = lambda x: length(rollout(x)), (*SINKS, length)
    assert (N, B) not in stacked(pushed(fun, X, sinks=sinks, chunk=chunk))
    same_everywhere(optimize(fun, push(sinks=sinks, chunk=chunk)), fun, X)


def test_a_sink_that_was_not_given_is_a_function_like_others():
    program = pushed(lambda x: length(rollout(x)), X)
    assert (N, B) not in stacked(program)


# ---------------------------------------------------------------- what is left alone, and why


def printing(x):
    def step(c, _):
        jax.debug.print("{}", c[0])
        return jnp.sin(c), jnp.sin(c)

    return lax.scan(step, x, length=N)[1].sum(0)


def with_final_carry(x):
    carry, y = lax.scan(turned, x, length=N)
    return jnp.sin(y - carry).mean()


DECLINED = {
    "effects": (printing, "the scan has effects"),
    "final carry": (with_final_carry, "known at the end"),
    "whole": (lambda x: (rollout(x), rollout(x).sum()), "used as a whole"),
    "sort": (lambda x: jnp.sort(rollout(x), 0)[3], "sort"),
    "flip": (lambda x: rollout(x)[::-1][::2].sum(), "reversed"),
    "against the scan": (lambda x: lax.cumsum(rollout(x), 0, reverse=True).max(0), "against"),
    "apart": (lambda x: (rollout(x)[4:] * rollout(x)[:-4]).mean(), "more than two steps"),
}


@pytest.mark.parametrize("name", DECLINED)
def test_a_note_says_why_a_reduction_stays(name):
    fun, words = DECLINED[name]
    why = reasons(fun, X)
    assert any(words in w for w in why), why


# ---------------------------------------------------------------- on several devices


def test_it_composes_with_shard_map_on_eight_devices_in_both_orders():
    def local(x):
        ys = lax.scan(lambda c, t: (jnp.sin(c + t),) * 2, x, jnp.arange(9.0))[1]
        w = lax.psum(ys.mean(), "d") + ys.max() + lax.axis_index("d")
        return w + jax.nn.softmax(ys, 0)[3:].sum(0) + ys.var(0) + jnp.cumsum(ys, 0).max(0)

    same_on_eight_devices(local, [push], (P("d"),), jnp.linspace(0.1, 0.9, 16))


@pytest.mark.parametrize("chunk", [1, 8, "auto"])
@pytest.mark.parametrize("pick", [jnp.argmax, jnp.argmin])
def test_a_nan_comes_first_in_blocks_so_wide_that_a_maximum_loses_it(chunk, pick):
    def paths(x):
        return lax.scan(lambda c, x: (jnp.round(c / 2 + x),) * 2, jnp.zeros(x.shape[1]), x)[1]

    def places(x):
        ys = jnp.where(paths(x) == 2, jnp.nan, paths(x))
        return pick(ys, 0), pick(ys)

    x = jax.random.normal(jax.random.key(0), (200, 1000))
    found = jax.jit(optimize(places, push_up_reductions(chunk=chunk, threshold=0)))(x)
    ys = np.where(np.asarray(jax.jit(paths)(x)) == 2, np.nan, jax.jit(paths)(x))
    np.testing.assert_array_equal(found[0], getattr(np, pick.__name__)(ys, 0))
    assert found[1] == getattr(np, pick.__name__)(ys)


@pytest.mark.parametrize("chunk", [2, 3, 4, 8, "auto"])
@pytest.mark.parametrize("pick", [jnp.argmax, jnp.argmin])
def test_equal_steps_are_rounded_alike_so_that_the_first_tie_is_found(chunk, pick):
    def place(x):
        ys = lax.scan(lambda c, _: (c * 0.99, x), x, length=37)[1]
        return pick(2 * (ys / 6.0) - 1, axis=0)

    x = jax.random.normal(jax.random.key(0), (400,))
    ours = optimize(place, push_up_reductions(chunk=chunk, threshold=0))
    assert not jax.jit(ours)(x).any()
    assert all(v.aval.size < 37 * 400 for e in stage(ours)(x).jaxpr.eqns for v in e.outvars)


@pytest.mark.parametrize("chunk", [1, 4])
def test_numbers_stay_numbers_in_the_body_of_a_scan(chunk):
    def most(x):
        ys = lax.scan(lambda c, _: (jnp.sin(c),) * 2, x, length=8)[1]
        return (ys / 6.0).max()

    ours = stage(optimize(most, push_up_reductions(chunk=chunk, threshold=0)))(jnp.ones(4)).jaxpr
    (scan,) = [e for e in ours.eqns if e.primitive.name == "scan"]
    assert " 6.0:f32[]" in str(scan.params["jaxpr"])
    assert not any(isinstance(v, compat.Literal) and v.val == 6 for v in scan.invars)


def test_a_run_finds_what_another_run_would_find():
    """The second scan hands on what the first stacks: seen once its own reduction is pushed."""

    def program(x, c):
        ys = lax.scan(lambda c, x: (jnp.sin(c) + x,) * 2, c, x)[1]

        def hand_on(c, y):
            inner = lax.scan(lambda d, _: (jnp.cos(d * c), (c, y)), jnp.ones((4, 3)), length=2)[1]
            mean = jnp.full(3, inner[0].mean())
            return jnp.where(mean > 0.1, c * 0.8, mean), y

        return jnp.var(lax.scan(hand_on, c, ys)[1], axis=(0, 1))

    once = push_up_reductions(stage(program)(jnp.ones((6, 3)), jnp.ones(3)).jaxpr, threshold=0)
    assert push_up_reductions(once, threshold=0) is once


def test_numbers_that_a_scan_stacks_may_be_reshaped():
    fun = lambda x: lax.scan(lambda c, _: (jnp.sin(c), c), x, length=6)[1].reshape(2, 3).sum(1)
    np.testing.assert_allclose(optimize(fun, push)(0.5), fun(0.5), rtol=1e-6)


def test_an_unused_user_of_what_is_stacked_holds_nothing_back():
    def fun(x):
        ys = rollout(x)
        _ = jnp.sort(ys, 0)
        return ys.sum()

    assert (N, B) in stacked(jax.make_jaxpr(fun)(X))
    assert (N, B) not in stacked(jax.make_jaxpr(optimize(fun, push))(X))


@pytest.mark.parametrize("chunk", [1, 2])
@pytest.mark.parametrize("count", [2, 5])
def test_results_are_as_weakly_typed_as_they_were(count, chunk):
    def parts(rows):
        ys = lax.map(lambda row: 0.7 * row, rows)
        return ys.sum(0), ys[::3], ys > 0.1  # JAX has weak booleans, too

    before = stage(parts)(jnp.ones((count, 3), bool)).jaxpr
    after = push_up_reductions(before, threshold=0, chunk=chunk)
    for program in (before, after):
        assert [aval.weak_type for aval in program.out_avals] == [False, True, True]


@pytest.mark.parametrize("pass_", [push, stream])
def test_a_program_of_unknown_size_is_exported_as_it_is(pass_):
    def fun(x):
        return (waves(x, length=9) ** 2).sum((0, 1)) + jnp.exp(x[:, None] - x).sum()

    (n,) = export.symbolic_shape("n")
    with listen() as notes:
        ours = export.export(jax.jit(optimize(fun, pass_)))(jax.ShapeDtypeStruct((n,), X.dtype))
    assert jnp.allclose(ours.call(X), fun(X), rtol=1e-5)
    assert [note.why for note in notes] == ["a size is not known"]
