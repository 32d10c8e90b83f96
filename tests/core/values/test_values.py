"""Classes whose objects stand for arrays: how they are made, what rules see, what is refused."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.export
import jax.numpy as jnp
import pytest
from jax import lax

import malleable as mal
from malleable.core.values import fitting
from malleable.errors import RuleError, TransformError, UnhandledError
from tests.core.values.value_classes import (
    INTERVALS,
    UNITS,
    Box,
    Diagonal,
    Interval,
    Quantity,
    Zero,
    boxed,
    close,
    dense,
    rising,
)

BOX = Box(jnp.arange(3.0))
ROOM = Interval(jnp.float32(1.0), jnp.float32(2.0))


def run(f, rules, *args, **state):
    return mal.interpret(f, rules, **state)(*args)[0]


# ---------------------------------------------------------------- the class


def test_a_class_of_fields_becomes_a_frozen_pytree():
    with pytest.raises(AttributeError):
        BOX.x = 2
    assert jax.tree.leaves(Quantity(1.0, "m")) == [1.0]
    assert jax.tree.structure(Quantity(1.0, "m")) != jax.tree.structure(Quantity(1.0, "s"))


def test_an_equinox_module_is_a_value_as_it_stands():
    @mal.value
    class Scaled(eqx.Module):
        x: jax.Array
        by: float = eqx.field(static=True)
        aval = property(lambda self: jax.typeof(self.x))

    def double(frame, a: Scaled, b: jax.Array, **_):
        return Scaled(frame.bind(a.x, b), a.by)

    out = run(lambda x: x * 2, {lax.mul_p: double}, Scaled(jnp.ones(2), 3.0))
    assert out.by == 3.0 and out.x.tolist() == [2, 2]


def test_a_named_tuple_is_a_value_as_it_stands():
    @mal.value
    class Pair(NamedTuple):
        x: jax.Array
        y: jax.Array
        aval = property(lambda self: jax.typeof(self.x))
        materialise = lambda self: self.x + self.y

    out = run(lambda p: lax.fori_loop(0, 2, lambda i, c: c + p, p), {}, Pair(BOX.x, BOX.x))
    assert out.tolist() == [0, 6, 12]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: type("Bare", (), {"aval": property(lambda self: 1)}), "is no pytree"),
        (lambda: type("Vague", (), {"__annotations__": {"x": Any}}), "has no `aval`"),
        (lambda: 3, "made of a class"),
    ],
)
def test_a_class_that_cannot_be_a_value_says_why(make, said):
    with pytest.raises(TypeError, match=said):
        mal.value(make())


def test_a_static_field_that_is_not_there_is_named():
    with pytest.raises(TypeError, match="has no field 'unit'"):

        @mal.value(static="unit")
        class Wrong:
            x: Any
            aval = property(lambda self: self.x)


def test_an_aval_that_is_no_type_is_named():
    @mal.value
    class Odd:
        x: Any
        aval = property(lambda self: "float32")

    with pytest.raises(TypeError, match="`aval` of Odd is 'float32'"):
        run(jnp.sin, {}, Odd(jnp.ones(2)))


@pytest.mark.parametrize(
    "aval", [lambda self: self.y.aval, lambda self: jax.ShapeDtypeStruct((int(self.x),), "float32")]
)
def test_an_aval_that_raises_is_named(aval):
    @mal.value
    class Torn:
        x: Any
        aval = property(lambda self: aval(self))

    with pytest.raises(TypeError, match=r"`aval` of Torn raised .*: make it of shapes"):
        jax.jit(lambda x: run(jnp.sin, {}, Torn(x)))(3)


# ---------------------------------------------------------------- rules


def test_a_rule_that_is_no_function_is_named():
    with pytest.raises(TypeError, match="the rule for sin is 3"):
        run(jnp.sin, {lax.sin_p: 3}, BOX)


def test_a_rule_is_asked_for_operands_of_its_annotations():
    def left(frame, x: Box, y: jax.Array, **_):
        return Box(frame.bind(x.x, y) + 100)

    def right(frame, x: jax.Array, y: Box, **_):
        return Box(frame.bind(x, y.x) + 200)

    rules = {lax.mul_p: [left, right]}
    assert run(lambda b: b * 2.0, rules, BOX).x.tolist() == [100, 102, 104]
    assert run(lambda b: 2.0 * b, rules, BOX).x.tolist() == [200, 202, 204]
    assert run(lambda b: b * b, rules, BOX).tolist() == [0, 1, 4]  # materialised
    assert run(lambda x: x * 2.0, rules, BOX.x).tolist() == [0, 2, 4]


def test_annotations_may_be_text():
    def rule(frame, x: "Box", y: "Box | jax.Array", **params: "Unknown"):  # noqa: F821
        return x

    fits = fitting(rule)
    assert fits is not None and fits([BOX, BOX.x]) and not fits([BOX.x, BOX])


def test_a_rule_under_a_class_is_for_what_has_no_other():
    asked = []

    def default(frame, *xs, **params):
        asked.append(frame.eqn.primitive.name)
        return boxed(frame, *xs, **params)

    run(lambda b: jnp.exp(jnp.sin(b)), {Box: default, lax.sin_p: boxed}, BOX)
    assert asked == ["exp"]


def test_equations_without_values_stay_as_they_stand():
    f = jax.jit(lambda x, y: (x * 2, jax.nn.relu(y) * 3))
    program = jax.make_jaxpr(lambda y: mal.interpret(lambda x: f(x, y), INTERVALS)(ROOM)[0][1])
    text = str(program(jnp.float32(1.0)))
    assert "custom_jvp_call" in text and text.count("mul") == 1 + 4


def test_binding_the_operands_one_got_asks_the_rules_behind():
    def counted(frame, x, **_):
        frame.carry += 1
        return frame.bind(x)

    rules = {lax.tanh_p: [counted, rising]}
    f = lambda xs: lax.scan(lambda h, x: (jnp.tanh(x), None), 0.0, xs)[0]
    out, count, _ = mal.interpret(f, rules, carry=0)(Interval(jnp.zeros(4), jnp.ones(4)))
    assert count == 4 and type(out) is Interval


def test_a_rule_that_binds_values_like_its_own_for_ever_is_named():
    def loops(frame, x, **_):
        return frame.bind(Interval(x.lo + 1, x.hi))

    with pytest.raises(RuleError, match=r"`loops` for `sin` is asked for ever.*Interval"):
        run(jnp.sin, {lax.sin_p: loops}, ROOM)


def test_a_rule_that_wraps_its_operand_for_ever_is_named():
    @mal.value
    class Layer:
        x: Any
        aval = property(lambda self: self.x.aval)

    def wraps(frame, x, **_):
        return frame.bind(Layer(x))

    with pytest.raises(RuleError, match="`wraps` for `sin` is asked for ever"):
        run(jnp.sin, {lax.sin_p: wraps}, Layer(BOX))


@pytest.mark.parametrize(
    "rule",
    [
        lambda frame, x, y, **_: frame.bind(x.x),
        lambda frame, x, y, **_: frame.bind(jnp.ones(7), x.x),
    ],
)
def test_an_error_inside_a_rule_says_of_which_equation_and_line(rule):
    with pytest.raises((TypeError, ValueError)) as error:
        run(lambda x: jax.jit(lambda x: x * 2.0)(x), {lax.mul_p: rule}, BOX)
    (note,) = [n for n in error.value.__notes__ if "in a rule" in n]
    assert "`mul` of Box(x=float32[3]), float32[], at " in note and "test_values.py:" in note


def test_a_rule_that_takes_no_parameters_is_told_with_the_equation_and_the_line():
    with pytest.raises(mal.RuleError, match="cannot be called for `mul`") as error:
        run(lambda x: jax.jit(lambda x: x * 2.0)(x), {lax.mul_p: lambda frame, x: x}, BOX)
    assert "test_values.py:" in str(error.value) and "**params" in str(error.value)


def test_a_field_that_no_loop_can_carry_is_told_with_the_line():
    @mal.value
    class Named:
        x: Any
        how: str
        aval = property(lambda self: jax.typeof(self.x))

    with pytest.raises(TypeError) as error:
        run(lambda x: lax.fori_loop(0, 2, lambda i, c: c, x), {Named: boxed}, Named(BOX.x, "fast"))
    assert any("how='fast'" in n and "test_values.py:" in n for n in error.value.__notes__)


@pytest.mark.parametrize("f", [lambda x: x * BOX, lambda x: jnp.add(x, BOX)])
def test_a_value_that_a_function_closes_over_is_to_be_handed_in(f):
    with pytest.raises(TypeError) as error:
        run(f, {Box: boxed}, BOX.x)
    assert "Box stands for an array where it is an argument: hand it in" in error.value.__notes__


def test_units_of_intervals_ask_both_classes():
    both = {p: [rule, INTERVALS[p]] for p, rule in UNITS.items() if p in INTERVALS}
    out = run(lambda v, t: v * t + v * t, both, Quantity(ROOM, "m"), Quantity(ROOM, "s"))
    assert out.unit == "m*s" and (float(out.x.lo), float(out.x.hi)) == (2, 8)


# ---------------------------------------------------------------- what is refused


def test_a_value_that_meets_an_equation_nobody_handles_names_all_three():
    with pytest.raises(UnhandledError, match=r"`cos` meets an Interval") as caught:
        run(lambda x: jnp.cos(x), INTERVALS, ROOM)
    assert "test_values.py" in caught.value.where and "materialise" in caught.value.hint


@pytest.mark.parametrize(
    "f",
    [
        lambda x: lax.cond(x > 0, lambda: 1, lambda: 2),
        lambda x: lax.while_loop(lambda c: c < 3, lambda c: 2 * c, x),
    ],
)
def test_a_test_that_is_a_value_names_a_way_out(f):
    rules = INTERVALS | dict.fromkeys([lax.gt_p, lax.lt_p], rising)
    with pytest.raises(UnhandledError, match="meets an Interval") as error:
        run(f, rules, ROOM)
    assert "the rule that made it return an array" in error.value.hint


def test_a_solver_is_told_which_rules_are_for_values_alone():
    def anything(frame, *xs, **_):
        return frame.bind(*map(dense, xs))

    def annotated(frame, *xs: Diagonal | jax.Array, **_):
        return anything(frame, *xs)

    inside = [lax.dot_general_p, lax.transpose_p]
    given = Diagonal(jnp.arange(1.0, 4.0)), jnp.ones(3)
    with pytest.raises(TransformError, match="inside `custom_linear_solve`") as error:
        run(jnp.linalg.solve, dict.fromkeys(inside, anything), *given)
    assert "annotate the operands of rules" in error.value.hint
    out = run(jnp.linalg.solve, dict.fromkeys(inside, annotated), *given)
    close(out, 1 / jnp.arange(1.0, 4.0))


def test_a_value_of_another_shape_is_found_where_the_rule_returned_it():
    def wrong(frame, x, **_):
        return Box(x.x[:2])

    with pytest.raises(RuleError, match=r"`wrong` for `sin` returned \[Box\(x=float32\[2\]\)\]"):
        run(jnp.sin, {lax.sin_p: wrong}, BOX)


def test_a_materialise_of_another_shape_is_named():
    @mal.value
    class Short:
        x: Any
        aval = property(lambda self: jax.typeof(self.x))
        materialise = lambda self: self.x[:1]

    with pytest.raises(RuleError, match=r"`materialise` of Short returned float32\[1\]"):
        run(jnp.sin, {}, Short(jnp.ones(3)))


def test_branches_of_two_units_are_refused_with_both():
    def f(p, x):
        return lax.cond(p, lambda x: x, lambda x: x * x, x)

    with pytest.raises(TransformError, match=r"cond differ in result 0: .*unit='m\*m'.*unit='m'"):
        run(f, UNITS, True, Quantity(jnp.float32(1.0), "m"))


@pytest.mark.parametrize("loop", ["scan", "while"])
def test_a_carry_whose_unit_grows_is_refused(loop):
    def f(x):
        if loop == "scan":
            return lax.scan(lambda c, _: (c * c, None), x, None, length=3)[0]
        return lax.while_loop(lambda c: 3 < 2, lambda c: c * c, x)

    with pytest.raises(TransformError, match=rf"carry 0 of a {loop}.* changes its type"):
        run(f, UNITS, Quantity(jnp.float32(2.0), "m"))


def test_a_carry_that_grows_for_ever_is_named():
    @mal.value(static="depth")
    class Deep:
        x: Any
        depth: int
        aval = property(lambda self: jax.typeof(self.x))
        materialise = lambda self: self.x
        lift = classmethod(lambda cls, x, like: cls(x, like.depth))

    def deeper(frame, x: Deep, **_):
        return Deep(frame.bind(x.x), x.depth + 1)

    f = lambda x: lax.fori_loop(0, 3, lambda i, x: jnp.sin(x), x)
    with pytest.raises(TransformError, match=r"carry \d of a scan .* without end.*depth=") as error:
        run(f, {lax.sin_p: deeper}, Deep(jnp.float32(1), 0))
    assert "test_values.py" in error.value.where


# ---------------------------------------------------------------- state, and the rest of JAX


def test_the_carry_of_the_frame_becomes_a_value():
    def kept(frame, x, **_):
        frame.carry = Interval(x.lo, x.hi)
        return rising(frame, x)

    f = lambda x: lax.fori_loop(0, 3, lambda i, x: jnp.tanh(x), x)
    _, last, _ = mal.interpret(f, {lax.tanh_p: kept}, carry=jnp.float32(0))(ROOM)
    close(last.hi, jnp.tanh(jnp.tanh(2.0)))


def test_written_values_are_stacked_and_those_of_static_shape_are_arrays():
    def told(frame, x, **_):
        frame.write("x", x)
        return x

    f = lambda x: lax.scan(lambda c, _: (-c, None), x, None, length=3)[0]
    _, _, writes = mal.interpret(f, {lax.neg_p: told})(ROOM)
    assert writes["x"].hi.tolist() == [2, 2, 2]
    _, _, writes = mal.interpret(f, {lax.neg_p: told})(Zero(((2,), jnp.dtype("float32"))))
    assert writes["x"].tolist() == [[0, 0]] * 3
    _, _, writes = mal.interpret(f, {lax.neg_p: told})(Diagonal(jnp.ones(2)))
    assert writes["x"].shape == (3, 2, 2)


def test_keys_are_drawn_for_values_as_for_arrays():
    def noisy(frame, x, **_):
        return Box(x.x + jax.random.normal(frame.next_key(), x.x.shape))

    f = lambda x: lax.fori_loop(0, 2, lambda i, x: jnp.sin(x), x)
    key = jax.random.key(0)
    plain = lambda frame, x, **_: noisy(frame, Box(x)).x
    got = run(f, {lax.sin_p: noisy}, BOX, key=key).x
    close(got, run(f, {lax.sin_p: plain}, BOX.x, key=key))


def test_feeds_and_shared_may_be_values():
    def given(frame, x, **_):
        assert isinstance(frame.read("scale"), Interval)
        return frame.read("row")

    f = lambda x: lax.fori_loop(0, 2, lambda i, x: jnp.sin(x), x)
    rows = Interval(jnp.arange(2.0), jnp.arange(2.0) + 1)
    out = run(f, {lax.sin_p: given}, ROOM, feeds={"row": rows}, shared={"scale": ROOM})
    assert (float(out.lo), float(out.hi)) == (1, 2)


def test_tags_inside_come_out_as_values():
    f = lambda x: mal.tag(x * 2, "twice") + 1
    _, tags = run(mal.reap(f), INTERVALS, ROOM)
    assert float(tags["twice"].hi) == 4


def test_parameters_may_be_values():
    f = lambda x: mal.param("w", lambda key: jnp.float32(1)) * x
    params = mal.init(f)(jax.random.key(0), 1.0)
    wide = jax.tree.map(lambda w: Interval(w, w + 1), params)
    out = run(lambda p, x: mal.apply(f)(p, x), INTERVALS, wide, 2.0)
    assert (float(out.lo), float(out.hi)) == (2, 4)


def test_gradients_are_by_the_fields():
    loss = lambda box: run(lambda x: jnp.sum(jnp.sin(x) * x), {Box: boxed}, box).x
    got, want = jax.grad(loss)(BOX), jax.grad(lambda x: jnp.sum(jnp.sin(x) * x))(BOX.x)
    assert type(got) is Box
    close(got.x, want)


def test_a_custom_derivative_is_entered_with_a_note():
    f = jax.custom_jvp(lambda x: 2 * x)
    f.defjvp(lambda xs, dxs: (2 * xs[0], dxs[0]))
    with mal.listen() as notes:
        run(f, INTERVALS, ROOM)
    assert any("derivative rule" in n.what and "Interval" in n.why for n in notes)


def test_jit_keeps_its_shardings_and_donations():
    mesh = jax.sharding.Mesh(jax.devices()[:2], ("i",))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("i", None))
    f = jax.jit(lambda x: x @ jnp.ones((4, 4)), in_shardings=rows, out_shardings=rows)
    x = jnp.ones((4, 4))
    assert run(f, {Box: boxed}, Box(x)).x.sharding == rows
    close(run(f, {}, Diagonal(jnp.ones(4))), x)


def test_rows_of_symbolic_number_are_exported():
    (n,) = jax.export.symbolic_shape("n")
    f = lambda x: lax.scan(lambda c, row: (c + row, 2 * c), 0.0, x)
    program = jax.jit(lambda x: jax.tree.leaves(run(f, INTERVALS, Interval(x, x + 1))))
    exported = jax.export.export(program)(jax.ShapeDtypeStruct((n,), jnp.float32))
    lo, hi, *_ = exported.call(jnp.arange(4.0))
    assert (float(lo), float(hi)) == (6, 10)


def test_show_cost_step_and_optimize_take_the_result():
    f = lambda box: run(lambda x: jnp.sin(x) + 0.0, {Box: boxed}, box)
    assert "sin" in str(mal.show(f)(BOX))
    assert mal.cost(f)(BOX).flops > 0
    close(mal.optimize(f)(BOX).x, jnp.sin(BOX.x))
    close(run(mal.optimize(lambda x: jnp.sin(x) + 0.0), {Box: boxed}, BOX).x, jnp.sin(BOX.x))


def test_live_values_say_what_they_meet():
    def f(x):
        return jnp.cos(x)

    with pytest.raises(UnhandledError, match="`cos` meets an Interval"):
        mal.live(f, INTERVALS)(ROOM)
    with pytest.raises(jax.errors.ConcretizationTypeError):
        mal.live(lambda x: float(x), INTERVALS)(ROOM)
