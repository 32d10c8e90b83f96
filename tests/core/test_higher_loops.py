"""Branches and loops: masked, stacked and folded writes, sliced feeds, carries that go round."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from malleable import Masked, interpret, marker
from malleable.errors import TransformError
from tests.rules import assert_same, count, hand_out, twice

SIN = lax.sin_p
XS = jnp.arange(1.0, 4.0)


def under(rule, program, *args, **state):
    return interpret(program, {SIN: rule}, **state)(*args)


def written(mode, program, *args):
    return under(hand_out(mode), program, *args)[2]["x"]


def masked(value, flag):
    return Masked(jnp.asarray(value, jnp.float32), jnp.asarray(flag))


# ------------------------------------------------------------ branches


def some(x):
    """A sine in the branch for positive numbers."""
    return lax.cond(x > 0, jnp.sin, lambda x: x, x)


@pytest.mark.parametrize(("x", "n"), [(1.0, 1), (-1.0, 0)])
def test_the_carry_is_that_of_the_branch_taken(x, n):
    assert under(count, some, x, carry=0)[1] == n


@pytest.mark.parametrize("mode", ["masked", "last", "sum"])
def test_a_write_in_some_branches_says_whether_it_happened(mode):
    assert_same(written(mode, some, 2.0), masked(2.0, True))
    assert_same(written(mode, some, -2.0), masked(0.0, False))


@pytest.mark.parametrize(("mode", "taken", "left"), [("last", 2.0, 7.0), ("sum", 9.0, 7.0)])
def test_a_write_before_makes_it_certain(mode, taken, left):
    def program(x):
        return jnp.sin(7.0 * jnp.ones(())) + some(x)

    assert written(mode, program, 2.0) == taken
    assert written(mode, program, -2.0) == left


@pytest.mark.parametrize(("index", "value"), [(0, 0.0), (1, 3.0), (2, 6.0)])
def test_the_branches_of_a_switch_write_for_themselves(index, value):
    branches = [jnp.cos, jnp.sin, lambda x: jnp.sin(2 * x)]
    assert_same(
        written("masked", lambda i: lax.switch(i, branches, 3.0), index), masked(value, index > 0)
    )


def test_a_write_in_every_branch_is_certain():
    program = lambda x: lax.cond(x > 0, jnp.sin, lambda x: jnp.sin(-x), x)
    assert written("stack", program, -2.0) == 2.0


def test_a_masked_write_may_be_masked_again():
    program = lambda p, x: lax.cond(p, some, lambda x: x, x)
    assert_same(written("masked", program, True, 2.0), masked(2.0, True))
    assert_same(written("masked", program, True, -2.0), masked(0.0, False))
    assert_same(written("masked", program, False, 2.0), masked(0.0, False))


def test_the_keys_after_a_cond_do_not_depend_on_the_branch():
    def rule(frame, x, **params):
        frame.write("key", jax.random.key_data(frame.next_key()), "last")
        return frame.bind(x)

    last = lambda x: under(rule, lambda x: jnp.sin(some(x)), x, key=jax.random.key(0))[2]["key"]
    assert_same(last(1.0), last(-1.0))


# ------------------------------------------------------------ scan


def rows(x):
    """A sine of c + t per step."""
    return lax.scan(lambda c, t: (c + 1, jnp.sin(c * t)), x, XS)


@pytest.mark.parametrize("options", [{}, {"reverse": True}, {"unroll": 2}])
def test_writes_are_stacked_in_the_order_of_the_rows(options):
    program = lambda x: lax.scan(lambda c, t: (c + 1, jnp.sin(t)), x, XS, **options)
    assert written("stack", program, 0.0).tolist() == XS.tolist()


@pytest.mark.parametrize(("mode", "wanted"), [("last", 6.0), ("sum", 8.0)])
def test_writes_are_folded_over_steps(mode, wanted):
    assert written(mode, rows, 0.0) == wanted


def test_the_last_step_of_a_reversed_scan_is_the_first_row():
    program = lambda x: lax.scan(lambda c, t: (c, jnp.sin(t)), x, XS, reverse=True)
    assert written("last", program, 0.0) == 1.0


@pytest.mark.parametrize("options", [{}, {"reverse": True}])
def test_each_step_gets_its_slice_of_a_feed(options):
    rule = lambda frame, x, **_: frame.read("w")["a"] * x
    program = lambda x: lax.scan(lambda c, t: (c, jnp.sin(t)), x, XS, **options)[1]
    out, *_ = under(rule, program, 0.0, feeds={"w": {"a": 10 * XS}})
    assert out.tolist() == [10.0, 40.0, 90.0]


def test_scans_in_scans_stack_one_axis_each():
    inner = lambda c, t: lax.scan(lambda c, u: (c, jnp.sin(t * 10 + u)), c, jnp.arange(2.0))
    program = lambda x: lax.scan(inner, x, XS)[0]
    values = written("stack", program, 0.0)
    assert values.tolist() == [[10.0, 11.0], [20.0, 21.0], [30.0, 31.0]]
    rule = lambda frame, x, **_: frame.read("w")
    out, *_ = under(rule, lambda x: lax.scan(inner, x, XS)[1], 0.0, feeds={"w": values})
    assert_same(out, values)


def test_a_scan_of_no_steps_stacks_nothing_and_folds_nothing():
    program = lambda x: lax.scan(lambda c, _: (jnp.sin(c), None), x, length=0)[0]
    assert written("stack", program, 1.0).shape == (0,)
    assert_same(written("last", program, 1.0), masked(0.0, False))
    assert under(count, program, 1.0, carry=0)[:2] == (1.0, 0)


def test_masked_writes_are_stacked_with_their_flags():
    program = lambda x: lax.scan(lambda c, t: (some(c - 2) + t, None), x, XS)[0]
    got = written("masked", program, 3.0)
    assert got.written.shape == got.value.shape == (3,)
    assert got.written.tolist()[0] is True


def test_a_carry_that_starts_as_a_number_takes_the_type_it_gets():
    rule = lambda frame, x, **_: (setattr(frame, "carry", frame.carry + x), frame.bind(x))[1]
    program = lambda x: lax.scan(lambda c, _: (jnp.sin(c), None), x, length=2)[0]
    assert under(rule, program, jnp.bfloat16(1), carry=0.0)[1].dtype == jnp.bfloat16


def test_a_carry_may_be_a_pytree_with_keys_in_it():
    def rule(frame, x, **params):
        frame.carry = {"key": jax.random.split(frame.carry["key"])[0], "none": None}
        return frame.bind(x)

    key = jax.random.key(0)
    carry = under(rule, rows, 0.0, carry={"key": key, "none": None})[1]
    for _ in range(3):
        key = jax.random.split(key)[0]
    assert carry["key"] == key


# ------------------------------------------------------------ while


def until(x, bound=3):
    """A sine of 1, 2, ... while that is less than the bound; x is added each time."""
    step = lambda s: (s[0] + 1, s[1] + x + 0 * jnp.sin(s[1]))
    return lax.while_loop(lambda s: s[0] < bound, step, (0, x))[1]


@pytest.mark.parametrize(("mode", "wanted"), [("last", 3.0), ("sum", 6.0)])
def test_writes_of_a_while_loop_are_folded(mode, wanted):
    assert_same(written(mode, until, 1.0), masked(wanted, True))


@pytest.mark.parametrize("mode", ["last", "sum"])
def test_a_while_loop_that_does_not_run_writes_nothing(mode):
    assert_same(written(mode, lambda x: until(x, 0), 1.0), masked(0.0, False))


def test_the_test_of_a_while_loop_may_have_state():
    program = lambda x: lax.while_loop(lambda c: jnp.sin(c) < 0.9, lambda c: c + 0.5, x)
    out, n, writes = interpret(
        program,
        {SIN: lambda frame, x, **_: (frame.write("x", x, "last"), count(frame, x))[1]},
        carry=0,
    )(0.0)
    assert (out, n) == (1.5, 4)
    assert writes["x"] == 1.5


def test_a_rule_in_the_test_decides_how_long_a_loop_runs():
    program = lambda x: lax.while_loop(lambda c: jnp.sin(c) < 0.9, lambda c: c + 0.5, x)
    assert under(twice, program, 0.0)[0] == 0.5


def test_what_a_while_loop_folds_is_folded_by_a_scan_around_it():
    program = lambda x: lax.scan(lambda c, t: (until(c + t), None), x, XS)[0]
    assert_same(written("last", program, 1.0), masked(129.0, True))


# ------------------------------------------------------------ while, one lane per example

BOUNDS = jnp.array([0, 1, 3])
lanes = jax.vmap(until, in_axes=(None, 0))


def singly(mode):
    return [written(mode, lambda x, n=n: until(x, n), 1.0) for n in BOUNDS]


@pytest.mark.parametrize("mode", ["last", "sum"])
def test_lanes_fold_what_they_would_alone(mode):
    alone = jax.tree.map(lambda *xs: jnp.stack(xs), *singly(mode))
    assert_same(written(mode, lambda n: lanes(1.0, n), BOUNDS), alone)


@pytest.mark.parametrize("mode", ["last", "sum"])
def test_a_write_the_lanes_share_is_one_per_lane_afterwards(mode):
    """What is written is not mapped, but whether it is written is."""
    mark = marker("mark")
    body = lambda i: (mark(jnp.arange(2.0) + 5), i + 1)[1]
    program = jax.vmap(lambda n: lax.while_loop(lambda i: i < n, body, 0))
    rule = lambda frame, x: (frame.write("x", x, mode), x)[1]
    got = interpret(program, {mark: rule})(BOUNDS)[2]["x"]
    times = np.minimum(BOUNDS, 1) if mode == "last" else BOUNDS
    assert_same(got, masked(times[:, None] * np.array([5.0, 6.0]), BOUNDS > 0))


def test_lanes_that_are_done_keep_what_they_have():
    out, *_ = under(twice, lambda n: lanes(1.0, n), BOUNDS)
    assert_same(out, lanes(1.0, BOUNDS))


def test_a_carry_of_all_lanes_counts_while_any_is_at_work():
    assert under(count, lambda n: lanes(1.0, n), BOUNDS, carry=0)[1] == 3


def test_lanes_may_write_a_number_of_python():
    def passes(frame, x, **_):
        frame.write("n", 1.0, mode="sum")
        return frame.bind(x)

    _, _, writes = interpret(lambda n: lanes(1.0, n), {SIN: passes})(BOUNDS)
    each = [interpret(lambda n: until(1.0, n), {SIN: passes})(n)[2]["n"].value for n in BOUNDS]
    assert_same(writes["n"].value, jnp.stack(each))


def test_lanes_in_a_scan_and_scans_of_lanes_write_the_same():
    program = lambda n: lax.scan(lambda c, _: (c + until(1.0, n), None), 0.0, length=2)[0]
    reap = interpret(program, {SIN: hand_out("last")})
    got = interpret(jax.vmap(program), {SIN: hand_out("last")})(BOUNDS)
    assert_same(got[2], jax.vmap(reap)(BOUNDS)[2])


def double(x):
    """Doubles x as often as each of the lanes says."""
    each = lambda n, x: lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, s[1] * 2.0), (0, x))
    return jax.vmap(each)(BOUNDS, x)[1]


def carrying(step):
    def rule(frame, x, y, **_):
        frame.carry = step(frame.carry, x)
        return frame.bind(x, y)

    return lambda carry: interpret(double, {lax.mul_p: rule}, carry=carry)(jnp.ones(3))[1]


def test_a_carry_made_of_what_each_lane_has_is_kept_by_lane():
    assert_same(carrying(lambda c, x: c + x)(jnp.zeros(3)), jnp.array([0.0, 1.0, 7.0]))


@pytest.mark.parametrize(
    "step",
    [
        lambda c, x: c + jnp.arange(3.0),
        lambda c, x: c + x.sum(),
        lambda c, x: c.at[x.astype(int)].add(1.0),
    ],
)
def test_a_carry_as_long_as_the_lanes_that_may_be_shared_is_refused(step):
    with pytest.raises(TransformError, match="may have a row for each example") as caught:
        carrying(step)(jnp.zeros(3))
    assert "x[None]" in caught.value.hint and "test_higher_loops.py" in caught.value.where


def test_an_axis_in_front_says_that_lanes_share_a_carry():
    assert_same(
        carrying(lambda c, x: c + jnp.arange(3.0))(jnp.zeros((1, 3))), 3 * jnp.arange(3.0)[None]
    )


def test_a_carry_as_long_as_the_lanes_that_stays_is_no_matter():
    assert_same(carrying(lambda c, x: c)(jnp.arange(3.0)), jnp.arange(3.0))
