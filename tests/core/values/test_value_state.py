"""Values in the state of a frame: written, fed, summed and chosen by lanes, on devices too."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import malleable as mal
from malleable.errors import TransformError, UnhandledError
from tests.core.values.value_classes import (
    INTERVALS,
    LORAS,
    UNITS,
    Diagonal,
    Interval,
    LoRA,
    Quantity,
    close,
    dense,
)

N = 3
MESH = Mesh(np.array(jax.devices()[:N]), ("i",))
LOW = LoRA(*jax.random.normal(jax.random.key(0), (3, N, N)))
ROOM = Interval(jnp.float32(1.0), jnp.float32(2.0))


def by_device(f, **specs):
    return jax.shard_map(f, mesh=MESH, **{"in_specs": P("i"), "out_specs": P("i")} | specs)


def told(mode="stack", what=lambda x: x):
    def rule(frame, x, *_, **params):
        frame.write("x", what(x), mode=mode)
        return x

    return rule


def written(f, rules, *args, **state):
    return mal.interpret(f, rules, **state)(*args)[2]["x"]


# ---------------------------------------------------------------- sums


@pytest.mark.parametrize("turns", [1, 3])
def test_a_sum_of_values_is_that_of_the_arrays_they_stand_for(turns):
    f = lambda x: lax.fori_loop(0, turns, lambda i, x: x * 1.0, x)
    close(dense(written(f, {lax.mul_p: told("sum")}, LOW)), turns * dense(LOW))


def test_a_sum_is_a_value_where_the_rules_add_values_of_its_type():
    f = lambda x: lax.fori_loop(0, 3, lambda i, x: -x, x)
    total = written(f, INTERVALS | {lax.neg_p: told("sum")}, ROOM)
    assert (float(total.lo), float(total.hi)) == (3, 6)
    total = written(f, UNITS | {lax.neg_p: told("sum")}, Quantity(jnp.float32(2), "m"))
    assert (float(total.x), total.unit) == (6, "m")


def test_a_sum_that_is_written_on_some_paths_has_what_was_written():
    f = lambda x: lax.fori_loop(0, 3, lambda i, x: lax.cond(i > 1, jnp.negative, lambda x: x, x), x)
    total = written(f, INTERVALS | {lax.neg_p: told("sum")}, ROOM)
    assert (float(total.value.hi), bool(total.written)) == (2, True)


def test_a_rule_for_add_may_sum_its_operands():
    def add(frame, x: Interval, y: Interval, **_):
        frame.write("x", x, mode="sum")
        return Interval(frame.bind(x.lo, y.lo), frame.bind(x.hi, y.hi))

    assert float(written(lambda x: x + x + x, {lax.add_p: add}, ROOM).hi) == 2 + 4


def test_a_sum_without_a_rule_for_add_is_refused():
    with pytest.raises(UnhandledError, match="`add` meets an Interval"):
        written(jnp.negative, {lax.neg_p: told("sum")}, ROOM)


# ---------------------------------------------------------------- branches


def test_branches_that_write_array_and_value_write_a_value():
    f = lambda p, x: lax.cond(p, lambda x: -x, lambda x: x * 2.0, x)
    rules = {lax.neg_p: told(), lax.mul_p: told(what=lambda x: x.lo * 3)}
    for p, ends in ((True, [1, 2]), (False, [3, 3])):
        out = written(f, rules, p, ROOM)
        assert [float(out.lo), float(out.hi)] == ends


def test_branches_that_cannot_write_one_type_name_the_way_out():
    f = lambda p, x: lax.cond(p, lambda x: -x, lambda x: x * 2.0, x)
    rules = {lax.neg_p: told(), lax.mul_p: told(what=lambda x: x.x)}
    with pytest.raises(TransformError, match="branches of a cond differ in what 'x' is") as caught:
        written(f, rules, True, Quantity(jnp.float32(2), "m"))
    assert "lift" in caught.value.hint and "test_value_state.py" in caught.value.where


def test_array_and_value_under_one_name_name_the_way_out():
    rules = {lax.neg_p: told("last"), lax.mul_p: told("last", lambda x: x.lo)}
    with pytest.raises(TransformError, match="is written as") as caught:
        written(lambda x: -x * 2.0, rules, ROOM)
    assert "Interval.lift" in caught.value.hint


# ---------------------------------------------------------------- devices


def test_devices_stack_values_field_by_field_if_that_is_a_stack():
    f = by_device(lambda x: x * 2.0)
    wide = Interval(jnp.arange(6.0), jnp.arange(6.0) + 1)
    assert written(f, INTERVALS | {lax.mul_p: told()}, wide).lo.shape == (N, 2)
    out = written(f, {lax.mul_p: told(what=lambda x: Diagonal(jnp.full(2, x[0])))}, jnp.arange(3.0))
    close(out, jnp.arange(3.0)[:, None, None] * jnp.eye(2))


def test_a_value_that_devices_share_stays_one():
    seen = []

    def dot(frame, x, y: LoRA, **_):
        seen.append(type(y))
        return frame.bind(x, y.w) + frame.bind(frame.bind(x, y.a), y.b)

    f = by_device(lambda x, w: x @ w, in_specs=(P("i"), P()))
    x = jnp.ones((N, N))
    close(mal.interpret(f, {lax.dot_general_p: dot})(x, LOW)[0], x @ dense(LOW))
    assert seen == [LoRA]


def test_a_square_pair_of_factors_is_not_cut_as_the_matrix_is():
    f = by_device(lambda x, w: lax.psum(x @ w, "i"), in_specs=(P(None, "i"), P("i")), out_specs=P())
    x = jnp.ones((2, N))
    close(mal.interpret(f, LORAS)(x, LOW)[0], x @ dense(LOW))


def test_a_feed_is_cut_as_the_array_it_stands_for():
    rules = {lax.mul_p: lambda frame, x, y, **_: x + frame.read("d").sum()}
    feeds = {"d": Diagonal(jnp.arange(3.0))}
    close(
        mal.interpret(by_device(lambda x: x * 2.0), rules, feeds=feeds)(jnp.ones(3))[0], [1, 2, 3]
    )
    loop = lambda x: lax.fori_loop(0, 3, lambda i, x: x * 2.0, x)
    close(mal.interpret(loop, rules, feeds=feeds)(jnp.float32(1))[0], 4)


# ---------------------------------------------------------------- lanes


def turns(ns, x):
    """As many steps as each example of a vmap says."""

    def each(n):
        return lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, s[1] * 2.0), (0, x))[1]

    return jax.vmap(each)(ns)


def test_a_carry_that_lanes_share_changes_while_any_is_at_work():
    def more(frame, x, y, **_):
        frame.carry = LoRA(frame.carry.w, frame.carry.a * 2, frame.carry.b)
        return frame.bind(x, y)

    low = LoRA(*jax.random.normal(jax.random.key(1), (3, 4, 4)))
    _, out, _ = mal.interpret(turns, {lax.mul_p: more}, carry=low)(jnp.arange(3), 1.0)
    close(dense(out), low.w + 4 * low.a @ low.b)


def test_what_lanes_write_is_chosen_lane_by_lane():
    rules = INTERVALS | {lax.mul_p: [told("last", lambda x: x), INTERVALS[lax.mul_p]]}

    def double(frame, x, y, **_):
        frame.write("x", x, mode="last")
        return INTERVALS[lax.mul_p](frame, x, y)

    out = written(turns, rules | {lax.mul_p: double}, jnp.arange(1, 4), ROOM)
    close(out.value.lo, [1, 2, 4])


# ---------------------------------------------------------------- stacks that a vmap made


@mal.value
class Scaled:
    q: Any
    by: Any  # one number for each column
    aval = property(lambda self: jax.ShapeDtypeStruct(self.q.shape, self.by.dtype))
    materialise = lambda self: self.q * self.by


def over(ws):
    return lax.scan(lambda x, w: (jnp.tanh(x @ w), None), jnp.ones((2, 3)), ws)[0]


def test_weights_stacked_by_vmap_are_cut_layer_by_layer():
    ws = Scaled(
        *(jax.random.normal(jax.random.key(k), (4, *s)) for k, s in ((0, (3, 3)), (1, (3,))))
    )
    want = over(jax.vmap(lambda w: w.materialise())(ws))
    close(mal.interpret(over, {})(ws)[0], want)


def test_a_square_value_is_one_array_and_a_note_says_that_a_stack_looks_the_same():
    w = Scaled(jax.random.normal(jax.random.key(0), (3, 3)), jnp.arange(1.0, 4))
    with mal.listen() as notes:
        out = mal.interpret(lambda w: lax.scan(lambda c, r: (c, r * 1.0), 0.0, w)[1], {})(w)[0]
    close(out, w.materialise())
    assert any("took Scaled" in n.what and "test_value_state.py" in n.where for n in notes)


def test_a_class_refused_stays_as_it_was():
    class Plain:
        aval = property(lambda self: jax.typeof(self.x))

        def __init__(self, x):
            self.x = x

    with pytest.raises(TypeError, match="is no pytree"):
        mal.value(Plain)
    assert Plain(1).x == 1


# ---------------------------------------------------------------- tags


def marked(x):
    step = lambda c, _: (mal.tag(c * 2.0, "c"), None)
    return mal.tag({"y": lax.scan(step, x, None, length=2)[0]}, "d")["y"] + 1.0


def test_a_transformation_around_reads_tags_as_the_values_they_are():
    run = mal.interpret(marked, INTERVALS)
    (out, _, _), tags = jax.jit(mal.reap(run))(ROOM)
    want, inside = mal.interpret(mal.reap(marked), INTERVALS)(ROOM)[0]
    assert jax.tree.structure((out, tags)) == jax.tree.structure((want, inside))
    jax.tree.map(np.testing.assert_array_equal, (out, tags), (want, inside))
    assert (float(out.lo), float(out.hi), tags["c"].hi.tolist()) == (5, 9, [4, 8])


def test_a_transformation_around_plants_values():
    planted = {"d": {"y": Interval(jnp.float32(0), jnp.float32(3))}}
    out, _, _ = mal.plant(mal.interpret(marked, INTERVALS))(planted, ROOM)
    assert (float(out.lo), float(out.hi)) == (1, 4)
    with pytest.raises(TransformError, match=r"'d' is given as .* belongs here"):
        mal.plant(mal.interpret(marked, INTERVALS))({"d": {"y": jnp.float32(0)}}, ROOM)
