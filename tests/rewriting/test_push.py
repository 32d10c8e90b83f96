"""A reduction pushed up into its scan gives what it gave; what was stacked is not there any more."""

import functools
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from malleable import compat, listen, stage
from malleable.rewriting.passes import optimize
from malleable.rewriting.push import push_up_reductions
from malleable.rewriting.sinks import SINKS, sink
from tests.rules import assert_same

push = push_up_reductions(threshold=0)

N, B = 10, 3
X = jnp.linspace(0.2, 1.0, B)
W = jnp.cos(jnp.arange(N * B * 1.0)).reshape(N, B)


def rollout(x, reverse=False, length=N):
    def step(c, t):
        c = jnp.sin(1.3 * c + 0.2 * t)
        return c, 1.1 * c

    return lax.scan(step, x, jnp.arange(1.0 * length), reverse=reverse)[1]


def both_ways(tail):
    """What follows a scan, after one that runs forwards and one that runs backwards."""
    return lambda x, w: [tail(rollout(x, reverse), x, w) for reverse in (False, True)]


def value_and_grad(fun, *args):
    """Result and gradient of a function, under vmap over its first argument and under jit."""

    def total(x, *rest):
        out = fun(x, *rest)
        floats = [y for y in jax.tree.leaves(out) if jnp.issubdtype(y.dtype, jnp.inexact)]
        return sum((jnp.sum(jnp.sin(y)) for y in floats), start=0.0), out

    x, *rest = args
    axes = (0, *(None for _ in rest))
    batch = jnp.stack([x, 0.7 * x])
    return jax.jit(jax.vmap(jax.value_and_grad(total, has_aux=True), axes))(batch, *rest)


def same_everywhere(passed, fun, *args):
    assert_same(value_and_grad(passed, *args), value_and_grad(fun, *args), rtol=2e-4)


def stacked(jaxpr):
    """The shapes of what the scans of a program give, those in bodies too."""
    found = []
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "scan":
            found += [v.aval.shape for v in eqn.outvars]
        for body in compat.bodies(eqn.params):
            found += stacked(body)
    return found


def pushed(fun, *args, **options):
    """The program of a function with its reductions pushed up."""
    return push_up_reductions(stage(fun)(*args).jaxpr, threshold=0, **options)


def reasons(fun, *args, **options):
    """Why the pass leaves a program alone, which it does."""
    before = stage(fun)(*args).jaxpr
    with listen() as notes:
        after = push_up_reductions(before, **{"threshold": 0, **options})
    assert after is before
    return [note.why for note in notes]


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
    "running sum backwards": lambda y, x, w: (lax.cumsum(y, 0, reverse=True) * w).sum(),
    "running maximum": lambda y, x, w: (lax.cummax(y, 0) * w).sum(),
    "last": lambda y, x, w: y[-1] * 2,
    "fifth": lambda y, x, w: y[4],
    "two tails": lambda y, x, w: (y.sum(0), jnp.sin(y * w).max()),
}


@pytest.mark.parametrize("chunk", [1, 4])
@pytest.mark.parametrize("name", TAILS)
def test_a_pushed_tail_gives_what_it_gave(name, chunk):
    fun = both_ways(TAILS[name])
    same_everywhere(optimize(fun, push(chunk=chunk)), fun, X, W)


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


# ---------------------------------------------------------------- loops of other kinds


def of_batches(each, size, tail):
    return lambda x: tail(lax.map(each, x, batch_size=size), x)


def turned(carry, _):
    return jnp.sin(carry), jnp.sin(carry)


def waves(x, length=6, **options):
    return lax.scan(turned, x, length=length, **options)[1]


LOOPS = {
    "batches": of_batches(lambda a: jnp.sin(a) * 2, 4, lambda y, x: y.sum(0)),
    "batches of two results": of_batches(
        lambda a: (jnp.sin(a) * 2, a.sum()),
        4,
        lambda y, x: ((y[0] - x) ** 2).mean() + y[1].max(),
    ),
    "batches, normalised": of_batches(
        lambda a: a * a, 3, lambda y, x: jax.nn.logsumexp(y, 0) + jnp.cumsum(y, 0).max(0)
    ),
    "batches that divide": of_batches(lambda a: a * a, 5, lambda y, x: y.sum(0)),
    "vmap in the middle": jax.vmap(lambda x: waves(x).mean(0).max()),
    "two scans, nested": lambda x: lax.scan(lambda c, _: (c * 0.5, waves(c)), x, length=4)[
        1
    ].mean(),
    "a tail in a body": lambda x: lax.scan(lambda c, _: (c * 0.5, waves(c).sum(0)), x, length=4)[
        1
    ].max(0),
    "two scans, joined": lambda x: jnp.concatenate(
        [waves(x), jnp.cos(waves(x, reverse=True))], -1
    ).mean((0, 1)),
    "unrolled": lambda x: waves(x, unroll=4).mean(0),
    "in a cond": lambda x: lax.cond(x[0, 0] > 0, lambda: waves(x).mean(), lambda: 0.0),
    "the final carry beside it": lambda x: (lambda c, y: c * y.mean())(
        *lax.scan(turned, x, length=6)
    ),
    "under checkpoint": jax.checkpoint(lambda x: waves(x).mean(0)),
    "gradient inside": jax.grad(lambda x: waves(x).mean() + jax.nn.logsumexp(waves(x))),
}


@pytest.mark.parametrize("options", [{}, {"chunk": 2}, {"remat": "body"}], ids=str)
@pytest.mark.parametrize("name", LOOPS)
def test_loops_of_all_kinds_give_what_they_gave(name, options):
    fun, x = LOOPS[name], jnp.linspace(0.2, 1.0, 20).reshape(10, 2)
    same_everywhere(optimize(fun, push(**options)), fun, x)


def test_the_derivatives_of_a_user_stay_theirs():
    @jax.custom_vjp
    def clipped(x):
        return jnp.sin(x)

    clipped.defvjp(lambda x: (clipped(x), x), lambda x, ct: (5 * ct,))
    fun = lambda x: clipped(rollout(x)).sum(0)
    same_everywhere(optimize(fun, push), fun, X)


def test_a_sum_of_wide_carries_is_taken_one_step_behind():
    x, fun = jnp.linspace(0.0, 3.0, 1024), lambda x: [waves(x, reverse=r).sum(0) for r in (0, 1)]
    assert all(e.params["length"] == 5 for e in pushed(fun, x).eqns if e.primitive.name == "scan")
    same_everywhere(optimize(fun, push), fun, x)


# ---------------------------------------------------------------- what is not there any more


@pytest.mark.parametrize("name", TAILS)
def test_no_scan_stacks_what_only_the_tail_used(name):
    fun = lambda x, w: TAILS[name](rollout(x), x, w)
    assert (N, B) in stacked(stage(fun)(X, W).jaxpr)
    assert all(shape[:1] != (N,) for shape in stacked(pushed(fun, X, W, chunk=1)))


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


def temporary(fun, x):
    """Bytes that a compiled function needs beside its arguments and results."""
    return jax.jit(fun).lower(x).compile().memory_analysis().temp_size_in_bytes


def test_memory_falls_by_the_length_of_the_scan():
    fun, x = lambda x: waves(x, length=1000).mean(), jnp.linspace(0.0, 3.0, 1000)
    assert temporary(optimize(fun, push_up_reductions), x) * 200 < temporary(fun, x)


def test_memory_of_a_gradient_falls():
    fun, x = lambda x: waves(x, length=1000).mean(), jnp.linspace(0.0, 3.0, 1000)
    grads = jax.grad(optimize(fun, push_up_reductions)), jax.grad(fun)
    assert temporary(grads[0], x) * 1.5 < temporary(grads[1], x)


# ---------------------------------------------------------------- options


def test_a_few_kilobytes_are_not_worth_it():
    assert reasons(lambda x: rollout(x).sum(0), X, threshold=None) == [
        f"the scan stacks only {4 * N * B} bytes"
    ]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"chunk": 0}, "number of steps from 1 on, not 0"),
        ({"chunk": "large"}, "not 'large'"),
        ({"remat": "all"}, "not 'all'"),
        ({"level": "sloppy"}, "not 'sloppy'"),
    ],
)
def test_an_option_that_is_none_is_an_error(options, words):
    with pytest.raises(ValueError, match=words):
        pushed(lambda x: rollout(x).sum(), X, **options)


def test_at_level_exact_a_sum_of_floats_stays_where_it_is():
    assert reasons(lambda x: rollout(x).sum(0), X, level="exact") != []


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
    return (y * carry).mean()


DECLINED = {
    "effects": (printing, "the scan has effects"),
    "final carry": (with_final_carry, "known at the end"),
    "whole": (lambda x: (rollout(x), rollout(x).sum()), "used as a whole"),
    "sort": (lambda x: jnp.sort(rollout(x), 0)[3], "sort"),
    "flip": (lambda x: (rollout(x)[::-1] * W).sum(), ""),
    "apart": (lambda x: (rollout(x)[4:] * rollout(x)[:-4]).mean(), "more than two steps"),
    "of the whole": (lambda x: jnp.tanh(rollout(x) / rollout(x).max(0)).sum(), ""),
}


@pytest.mark.parametrize("name", DECLINED)
def test_a_note_says_why_a_reduction_stays(name):
    fun, words = DECLINED[name]
    assert [why for why in reasons(fun, X) if why and words in why], reasons(fun, X)


# ---------------------------------------------------------------- on several devices

SHARDED = """
import jax, jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec as P
from malleable import optimize, push_up_reductions
push = push_up_reductions(threshold=0)
def local(x):
    step = lambda c, t: (jnp.sin(c + t),) * 2
    ys = lax.scan(step, x, jnp.arange(9.0))[1]
    w = lax.psum(ys.mean(), "d") + ys.max() + lax.axis_index("d")
    return w + jax.nn.softmax(ys, 0)[3:].sum(0) + ys.var(0) + jnp.cumsum(ys, 0).max(0)
for kind in (jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit):
    mesh = jax.make_mesh((8,), ("d",), axis_types=(kind,))
    with jax.set_mesh(mesh):
        both = lambda f: jax.shard_map(f, in_specs=P("d"), out_specs=P("d"))
        x = jax.device_put(jnp.linspace(0.1, 0.9, 16), NamedSharding(mesh, P("d")))
        grad = lambda f: jax.jit(jax.value_and_grad(lambda x: f(x).sum()))(x)
        want = grad(both(local))
        for fun in (both(optimize(local, push)), optimize(both(local), push)):
            got = grad(fun)
            assert jnp.allclose(got[0], want[0], rtol=1e-4), (got, want)
            assert jnp.allclose(got[1], want[1], rtol=1e-3, atol=1e-5), (got, want)
            assert jax.jit(fun)(x).sharding.is_equivalent_to(x.sharding, 1)
print("right")
"""


def test_it_composes_with_shard_map_on_eight_devices_in_both_orders():
    flags = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
    env = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run([sys.executable, "-c", SHARDED], env=env, capture_output=True, text=True)
    assert run.stdout.strip() == "right", run.stderr[-3000:]
