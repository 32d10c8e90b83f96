"""Rewritten for the value, and the gradient that of the program as written; or the other way."""

import functools
import os
import platform
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from malleable import compat, listen, optimize, push_up_reductions, stream
from tests.rules import assert_same
from tests.scans import same_everywhere, stacked, temporary

T, B = 30, 4
VALUES, RATIOS, REWARDS = jnp.sin(jnp.arange(3.0 * T * B)).reshape(3, T, B)
GOING = (jnp.cos(jnp.arange(1.0 * T * B)) < 0.9).astype(jnp.float32).reshape(T, B)
LAST = jnp.linspace(0.5, 1.0, B)
push = push_up_reductions(threshold=1)


def returns(rewards, going):
    step = lambda g, x: (x[0] + 0.9 * x[1] * g,) * 2
    return lax.scan(step, jnp.zeros(B), (rewards, going), reverse=True)[1]


def reinforce(logp, rewards, going):
    return -jnp.mean(logp * lax.stop_gradient(returns(rewards, going)))


def ahead(values):
    """At each step the value of the next one."""
    return jnp.concatenate([values[1:], LAST[None]])


def td_lambda(values, rewards, going):
    step = lambda g, x: (x[0] + 0.9 * x[2] * (0.1 * x[1] + 0.9 * g),) * 2
    targets = lax.scan(step, LAST, (rewards, ahead(values), going), reverse=True)[1]
    return jnp.mean((lax.stop_gradient(targets) - values) ** 2)


def vtrace(values, ratios, rewards, going):
    """Espeholt et al. 2018, (1)."""
    rho, discounts = jnp.minimum(1.0, jnp.exp(ratios)), 0.9 * going
    delta = rho * (rewards + discounts * ahead(values) - values)
    step = lambda a, x: (x[0] + x[1] * a,) * 2
    targets = values + lax.scan(step, jnp.zeros(B), (delta, discounts * rho), reverse=True)[1]
    gains = lax.stop_gradient(rho * (rewards + discounts * ahead(targets) - values))
    return jnp.mean((lax.stop_gradient(targets) - values) ** 2) - jnp.mean(gains * ratios)


def kurtosis(x):
    step = lambda c, t: (c := jnp.sin(1.3 * c + t), c)
    d = (h := lax.scan(step, x, jnp.arange(1.0 * T))[1]) - h.mean(0)
    return (d**4).mean(0) / (d**2).mean(0) ** 2


LOSSES = {
    "reinforce": (reinforce, VALUES, REWARDS, GOING),
    "returns first": (lambda r, v, g: reinforce(v, r, g), REWARDS, VALUES, GOING),
    "td lambda": (td_lambda, VALUES, REWARDS, GOING),
    "vtrace": (vtrace, VALUES, RATIOS, REWARDS, GOING),
    "vtrace of ratios": (lambda r, v, *xs: vtrace(v, r, *xs), RATIOS, VALUES, REWARDS, GOING),
    "kurtosis": (kurtosis, LAST),
    "done as a mask": (lambda v, r, g: reinforce(v, r, g > 0.5), VALUES, REWARDS, GOING),
}


def names(jaxpr):
    """The primitives of a program and of its bodies."""
    inside = [body for eqn in jaxpr.eqns for body in compat.bodies(eqn.params)]
    return sum(map(names, inside), [eqn.primitive.name for eqn in jaxpr.eqns])


def program(fun, args):
    return jax.make_jaxpr(fun)(*args)


@pytest.mark.parametrize("name", LOSSES)
def test_value_and_gradient_are_the_same(name):
    fun, *args = LOSSES[name]
    same_everywhere(optimize(fun, push), fun, *args)


@pytest.mark.parametrize("name", LOSSES)
def test_the_value_stacks_nothing_and_the_gradient_runs_no_more_scans(name):
    fun, *args = LOSSES[name]
    passed = optimize(fun, push)
    assert not any(shape[:1] == (T,) for shape in stacked(program(passed, args)))
    total = lambda f: jax.grad(lambda *xs: jnp.sum(f(*xs)))
    ours, plain = (names(program(total(f), args)).count("scan") for f in (passed, fun))
    assert ours == plain


QUICK = "td lambda", "vtrace", "kurtosis"


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n not in QUICK)) for n in LOSSES]
)
def test_other_derivatives_are_the_same(name):
    fun, x, *rest = LOSSES[name]
    passed = optimize(fun, push)

    def found(f, x, *rest):
        total = lambda x: jnp.sum(jnp.sin(jax.checkpoint(f)(x, *rest)))
        ahead = jax.jvp(total, (x,), (jnp.cos(x),))
        twice = jax.jvp(jax.grad(total), (x,), (jnp.cos(x),))
        return ahead, twice, jax.linearize(total, x)[1](jnp.sin(x))

    ours, wanted = (jax.jit(functools.partial(found, f))(x, *rest) for f in (passed, fun))
    assert_same(ours, wanted, rtol=2e-4)


def test_what_the_scan_is_differentiated_in_stays_in_it():
    fun = lambda r, g: jnp.mean(jnp.square(returns(r, g)))
    assert "custom_jvp_call" not in names(program(optimize(fun, push), (REWARDS, GOING)))


@pytest.mark.parametrize("options", [{"threshold": 0}, {"threshold": 1, "remat": "tail"}])
def test_who_asks_for_a_pushed_gradient_gets_it(options):
    passed = optimize(reinforce, push_up_reductions(**options))
    found = names(program(passed, (VALUES, REWARDS, GOING)))
    assert "scan" in found and "custom_jvp_call" not in found


def test_a_second_run_changes_nothing():
    once = optimize(vtrace, push)
    args = VALUES, RATIOS, REWARDS, GOING
    assert names(program(optimize(once, push), args)) == names(program(once, args))


@pytest.mark.parametrize("threshold", [0, 1])
def test_an_operand_as_long_as_the_stream_is_not_moved(threshold):
    fun, *args = LOSSES["vtrace"]
    passed = optimize(fun, push_up_reductions(threshold=threshold))
    assert "pad" not in names(program(passed, args))


def test_states_before_each_step_meet_what_is_given_for_it():
    def fun(x, w):
        step = lambda c, t: (jnp.sin(1.3 * c + t), 1.1 * c)
        ys = lax.scan(step, x, jnp.arange(1.0 * T))[1]
        before = jnp.concatenate([x[None], ys[:-1]])
        return (w * before).sum(), ((before * w - ys) ** 2).sum(0)

    passed = optimize(fun, push_up_reductions(threshold=0))
    assert "pad" not in names(program(passed, (LAST, VALUES)))
    same_everywhere(passed, fun, LAST, VALUES)


# ---------------------------------------------------------------- the other way round: `stream`

U, W = jnp.sin(jnp.arange(40.0)), jnp.cos(jnp.arange(90.0))
apart = lambda x, y: x[:, None] - y[None]
energy = lambda x, y: abs(apart(x, y)).mean()

FUSED = {
    "sum of rows": lambda x, y: jnp.exp(-(apart(x, y) ** 2)).mean(1),
    "sum of columns": lambda x, y: jnp.tanh(apart(x, y)).mean(0),
    "mean of all": energy,
    "maximum": lambda x, y: abs(apart(x, y)).max(1),
    "hinge": lambda x, y: jnp.maximum(0, 1 - apart(x, y)).mean(),
    "rows and their norm": lambda x, y: (
        (r := jnp.tanh(apart(x, y)).sum(1)) / jnp.sqrt((r * r).sum())
    ),
    "three axes": lambda x, y: jnp.exp(-((apart(x, y)[:, None] - y[:3, None]) ** 2)).mean(2),
}
STREAMED = {
    "as large as another": lambda x, y: abs(apart(x, y)).mean(1) * (jnp.tanh(2 * apart(x, y)) @ y),
    "comparisons": lambda x, y: jnp.where(apart(x, y) > 0, x[:, None], 0.0).sum(1),
    "clamp": lambda x, y: jnp.clip(apart(x, y), -1, 1).sum(1),
    "product of all": lambda x, y: (1 + 0.01 * apart(x, y)).prod(1),
    "two reductions": lambda x, y: (apart(x, y).sum(1), jnp.exp(apart(x, y)).max(1)),
    "used twice": lambda x, y: ((d := jnp.exp(apart(x, y))) / (1 + d)).sum(1),
    "many operands": lambda x, y: sum(abs(apart(x + i, y - i)) for i in range(20)).sum(1),
    "short rows": lambda x, y: jnp.exp(apart(y, x)).sum(1),
    "product": lambda x, y: jnp.exp(apart(x, y)) @ y,
    "place": lambda x, y: abs(apart(x, y)).argmin(1),
}


def bodies_as_written(fun, **options):
    """The values that `stream` leaves as they are written, in what it makes of a function."""
    jaxpr = program(optimize(fun, stream(**{"threshold": 1} | options)), (U, W))
    calls = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "custom_jvp_call"]
    return [names(body) for eqn in calls for body in compat.bodies(eqn.params)]


@pytest.mark.in_turns
@pytest.mark.parametrize("name", FUSED)
def test_a_value_that_xla_fuses_is_left_and_its_derivative_streamed(name):
    fun = FUSED[name]
    (body,) = bodies_as_written(fun)
    assert "scan" not in body
    passed = optimize(fun, stream(threshold=1))
    total = lambda f: jax.grad(lambda *xs: jnp.sum(f(*xs)))
    assert "scan" in names(program(total(passed), (U, W)))
    assert "scan" not in names(program(total(fun), (U, W)))
    same_everywhere(passed, fun, U, W)
    second = lambda f: jax.jit(jax.hessian(lambda x: jnp.sum(jnp.sin(f(x, W)))))(U[:5])
    assert_same(second(passed), second(fun), rtol=2e-4)


@pytest.mark.parametrize("name", STREAMED)
def test_a_value_that_xla_would_keep_or_is_slow_at_is_streamed(name):
    fun = STREAMED[name]
    assert bodies_as_written(fun) == []
    assert "scan" in names(program(optimize(fun, stream(threshold=1)), (U, W)))


@pytest.mark.parametrize("options", [{"threshold": 0}, {"block": 5}])
def test_who_asks_for_blocks_gets_them(options):
    assert bodies_as_written(FUSED["sum of rows"], **options) == []


def test_what_is_left_as_written_stays_so_and_a_note_says_so():
    once = optimize(FUSED["sum of rows"], stream(threshold=1))
    twice = optimize(once, stream(threshold=0, block=1))
    with listen() as notes:
        assert names(program(twice, (U, W))) == names(program(once, (U, W)))
    said = ["only what is differentiated is streamed", "nothing is streamed"]  # once, and twice
    assert [note.what for note in notes] == said


NO_YNN = "--xla_cpu_experimental_ynn_fusion_type="
SEEN = """
import jax, jax.numpy as jnp
from malleable import optimize, stream
fun = optimize(lambda x, y: jnp.exp(x[:, None] - y).sum(1), stream(threshold=1))
print("custom_jvp_call" in str(jax.make_jaxpr(fun)(jnp.ones(90), jnp.ones(70))))
"""


@pytest.mark.parametrize(("flags", "seen"), [("", "True"), (NO_YNN, "False")])
def test_where_xla_does_not_fuse_the_value_is_streamed(flags, seen):
    env = os.environ | {"XLA_FLAGS": flags}
    run = subprocess.run([sys.executable, "-c", SEEN], env=env, capture_output=True, text=True)
    assert run.stdout.strip() == (seen if platform.machine() == "x86_64" else "False"), run.stderr


SEVERAL = {
    "energy distance": lambda x, y: 2 * energy(x, y) - energy(x, x) - energy(y, y),
    "two places": lambda x, y: energy(x, y) * jnp.exp(apart(x, 2 * y)).mean(),
    "with its own sum": lambda x, y: jax.nn.standardize(jnp.exp(-abs(apart(x, y))).sum(1)),
    "one after another": lambda x, y: abs(apart(x, y + abs(apart(x, y)).mean(0))).mean(1),
}


@pytest.mark.parametrize("name", SEVERAL)
def test_what_several_kernels_have_in_common_is_not_large_in_memory(name):
    x, y = jnp.sin(jnp.arange(2000.0)), jnp.cos(jnp.arange(2000.0))
    passed = optimize(SEVERAL[name], stream)
    assert temporary(passed, x, y) < 5e6  # 16 MB and more otherwise
    assert_same(jax.jit(passed)(x, y), jax.jit(SEVERAL[name])(x, y), rtol=2e-4)


def test_nor_what_they_have_in_common_with_the_program_around():
    x, y = jnp.sin(jnp.arange(2000.0)), jnp.cos(jnp.arange(2000.0))
    near = optimize(lambda x, y: jnp.exp(-abs(apart(x, y))).sum(1), stream)
    assert temporary(lambda x, y: ((r := near(x, y)), r.sum()), x, y) < 5e6


@pytest.mark.parametrize("name", FUSED)
def test_neither_the_value_nor_the_gradient_is_large_in_memory(name):
    fun = optimize(FUSED[name], stream)
    x, y = (jnp.linspace(0.1, 1.0, n) for n in (3000, 1000))  # 12 MB and more
    assert temporary(fun, x, y) < 5e6
    assert temporary(jax.grad(lambda *xs: jnp.sum(jnp.sin(fun(*xs)))), x, y) < 8e6
