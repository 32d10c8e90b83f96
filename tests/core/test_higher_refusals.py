"""What cannot cross control flow is refused with the user's line, what differs, and a way out."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from malleable import TransformError, interpret, live, reap, tag
from tests.rules import refusal

SIN = lax.sin_p
either = pytest.mark.parametrize("transform", [interpret, live])


def sine(x):
    return jnp.sin(x)


def steps(x):
    return lax.scan(lambda c, _: (sine(c), None), x, length=3)[0]


def until(x):
    return lax.while_loop(lambda c: c < 0.1, sine, x)


def grow(frame, x, **params):
    frame.carry = (frame.carry, 1.0)
    return frame.bind(x)


def widen(frame, x, **params):
    frame.carry = jnp.stack([frame.carry, frame.carry])
    return frame.bind(x)


def speak(frame, x, **params):
    frame.carry = "one"
    return frame.bind(x)


def in_one_branch(x):
    return lax.cond(x > 0, lambda x: tag(x, "a"), lambda x: x, x)


def test_a_tag_in_one_branch_only():
    error = refusal(TransformError, lambda: reap(in_one_branch)(1.0))
    assert error.what == "'a' is written in some branches of a cond but not in all"
    assert 'mode="masked"' in error.hint


@either
def test_a_key_asked_for_by_a_rule_and_not_given(transform):
    rule = lambda frame, x, **_: jax.random.uniform(frame.next_key())
    error = refusal(TransformError, lambda: transform(sine, {SIN: rule})(0.5), 1, fun=sine)
    assert error.what == "a random key is asked for, and none was given"
    assert "key=" in error.hint


@pytest.mark.parametrize("rule", [grow, widen])
def test_a_carry_that_differs_between_branches(rule):
    program = lambda x: lax.cond(x > 0, sine, lambda x: x, x)
    do = lambda: interpret(program, {SIN: rule}, carry=0)(0.5)
    error = refusal(TransformError, do)
    assert error.what.startswith("the carry differs between the branches of a cond: int32[] and ")


@either
@pytest.mark.parametrize("program", [jax.jit(sine), steps, until])
def test_a_carry_that_no_array_can_hold(program, transform):
    do = lambda: transform(program, {SIN: speak}, carry=0)(0.05)
    error = refusal(TransformError, do, 1, fun=sine)
    assert error.what == "the carry holds a str, which cannot cross control flow"


def test_a_carry_that_differs_between_devices():
    def rule(frame, x, **params):
        frame.carry += jnp.sum(x)
        return frame.bind(x)

    mesh, split = Mesh(jax.devices()[:2], ("i",)), PartitionSpec("i")
    program = jax.shard_map(sine, mesh=mesh, in_specs=split, out_specs=split)
    do = lambda: interpret(program, {SIN: rule}, carry=0.0)(jnp.ones(4))
    assert "psum" in refusal(TransformError, do).hint


@pytest.mark.parametrize("mode", ["stack", "unique", "masked"])
def test_a_value_per_step_of_a_loop_of_unknown_length(mode):
    program = lambda x: lax.while_loop(lambda c: c < 1, lambda c: tag(c + 1, "a", mode=mode), x)
    error = refusal(TransformError, lambda: reap(program)(0.0))
    assert error.what == f"'a' is written with mode {mode!r} inside a while loop of unknown length"
    assert 'mode="last"' in error.hint


def test_a_unique_value_in_a_scan():
    program = lambda x: lax.scan(lambda c, _: (tag(c, "a", mode="unique"), None), x, length=2)[0]
    error = refusal(TransformError, lambda: reap(program)(0.0))
    assert error.what == "'a' is written with mode 'unique' inside a scan"
    assert 'mode="stack"' in error.hint


def test_branches_that_write_other_types():
    long = lambda x: tag(jnp.ones(2), "a")[0]
    program = lambda x: lax.cond(x > 0, long, lambda x: tag(x, "a"), x)
    error = refusal(TransformError, lambda: reap(program)(0.0))
    assert error.what.startswith("'a' is written as float32[")
    assert "the same shapes and dtypes" in error.hint
