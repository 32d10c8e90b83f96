"""A marker is a place in a program for a rule; without one, it is nothing or an error."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from malleable import UnhandledError, interpret, marker, stage
from tests.rules import count, prims, prims_deep

mark = marker("mark")
asked = marker(
    "asked",
    out=lambda *, shape: jax.ShapeDtypeStruct(shape, jnp.float32),
    lanes="each",
    missing="a value is asked for, and nobody gives it",
    hint="give it",
)
fixed = marker(
    "fixed", out=lambda *, shape: jax.ShapeDtypeStruct(shape, jnp.float32), lanes="shared"
)


def shapes(program, prim, *args):
    """The shapes of the results of a marker in a program."""
    return [v.aval.shape for e in stage(program, [prim])(*args).jaxpr.eqns
            if e.primitive is prim for v in e.outvars]  # fmt: skip


def test_without_a_rule_a_marker_is_the_identity():
    assert mark(2.0) == 2.0
    assert mark(1.0, 2.0) == [1.0, 2.0]


def test_a_marked_function_costs_nothing():
    assert prims(jax.make_jaxpr(lambda x: mark(x))(1.0)) == []


def test_without_a_rule_a_marker_that_needs_one_names_the_line():
    with pytest.raises(
        UnhandledError, match=r"nobody gives it\n  at .*test_marker\.py:\d+ in test"
    ):
        asked(shape=())


def test_the_error_of_a_marker_has_its_hint():
    with pytest.raises(UnhandledError, match="hint: give it"):
        jax.jit(lambda: asked(shape=()))()


def test_a_rule_gets_the_operands_and_the_params():
    def rule(frame, x, y, *, how):
        assert how == "add"
        return x, x + y

    out, *_ = interpret(lambda x: mark(x, 2.0, how="add"), {mark: rule})(1.0)
    assert out == [1.0, 3.0]


def test_a_rule_supplies_what_is_asked_for():
    rule = lambda frame, *, shape: jnp.full(shape, 7.0)
    assert interpret(lambda: asked(shape=(2,)), {asked: rule})()[0].tolist() == [7.0, 7.0]


def test_out_says_how_many_results_there_are():
    pair = marker("pair", out=lambda x: [x, x])
    out, *_ = interpret(lambda x: pair(x), {pair: lambda frame, x: (x, -x)})(1.0)
    assert out == [1.0, -1.0]


def test_a_marker_without_results_has_an_effect_all_the_same():
    seen = marker("seen", out=lambda x: [], lanes="all", tangents="none")
    program = lambda x: (seen(x), lax.fori_loop(0, 3, lambda i, c: (seen(c), c)[1], x))[1]
    rule = lambda frame, x: setattr(frame, "carry", frame.carry + 1)
    assert interpret(program, {seen: rule}, carry=0)(1.0)[1] == 4


def test_a_rule_may_hand_its_marker_on_to_the_transformation_around():
    hand_on = lambda frame, x: mark(x) + 1
    inner = lambda x: interpret(mark, {mark: hand_on})(x)[0]
    assert inner(1.0) == 2.0
    assert interpret(inner, {mark: lambda frame, x: 10 * x})(1.0)[0] == 11.0


def test_the_nearest_transformation_takes_a_marker():
    inner = lambda x: interpret(mark, {mark: lambda frame, x: 2 * x})(x)[0]
    assert interpret(inner, {mark: lambda frame, x: 10 * x})(1.0)[0] == 2.0


@pytest.mark.parametrize(("prim", "shape"), [(asked, (3,)), (fixed, ())])
def test_lanes_say_whether_a_vmap_gets_one_result_or_one_per_lane(prim, shape):
    assert shapes(jax.vmap(lambda x: x + prim(shape=())), prim, jnp.ones(3)) == [shape]


def test_lanes_of_a_vmap_in_a_vmap_are_both_there():
    program = jax.vmap(jax.vmap(lambda x: x + asked(shape=(4,))[0]))
    assert shapes(program, asked, jnp.ones((2, 3))) == [(2, 3, 4)]


def test_an_unmapped_operand_is_left_so_with_lanes_in_front():
    program = jax.vmap(lambda x: x + mark(jnp.zeros(2)).sum())
    assert shapes(program, mark, jnp.ones(3)) == [(2,)]


@pytest.mark.caches  # JAX's leak check takes any effect in a differentiated scan for a leak
def test_a_marker_stays_in_its_loop_when_the_loop_is_differentiated():
    # JAX moves what a loop does not change out of it, and its effect with it
    seen = marker("seen", out=lambda x: [], tangents="none")

    def program(x):
        return lax.scan(lambda c, _: (seen(lax.stop_gradient(x)), c * x)[1:] * 2, x, length=3)[0]

    rule = lambda frame, x: setattr(frame, "carry", frame.carry + 1)
    assert interpret(jax.grad(program), {seen: rule}, carry=0)(1.0)[1] == 3


@pytest.mark.parametrize("options", [{"lanes": "back"}, {"tangents": "some"}])
def test_an_unknown_option_is_refused(options):
    with pytest.raises(ValueError, match="lanes is one of"):
        marker("m", **options)


@pytest.mark.caches
def test_a_transformation_leaves_nothing_of_a_marker_in_the_cache_of_jit():
    jitted = jax.jit(lambda x: mark(x) + 1)
    for _ in range(2):
        assert jitted(1.0) == 2.0
        assert interpret(jitted, {mark: lambda frame, x: 10 * x})(1.0)[0] == 11.0


def test_a_default_rule_leaves_markers_alone():
    program = lambda x: jnp.sin(mark(x))
    assert interpret(program, {}, default=count, carry=0)(1.0)[1] == 1
    inner = lambda x: interpret(program, {}, default=count, carry=0)(x)[:2]
    staged = stage(inner, [mark])(1.0)
    assert prims_deep(staged.jaxpr) == [("mark",), ("sin",)]
