"""The interpreter: rules by primitive, everything else as it was."""

import jax
import jax.experimental
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from malleable import compat, interpret, marker, stage
from malleable.core.interpret import sites
from tests.rules import again, assert_same, count, prims_deep, twice

mark = marker("mark")


def through_everything(x):
    """Control flow of every kind, with one sine in each."""
    x = jax.jit(jnp.sin)(x)
    x = lax.cond(x > 0, jnp.sin, lambda x: x, x)
    x = lax.scan(lambda c, t: (jnp.sin(c) * t, c), x, jnp.arange(1.0, 3.0))[0]
    x = lax.while_loop(lambda c: c > 0.5, jnp.sin, x)
    return jax.checkpoint(jnp.sin)(x)


def staged_under(rules, program, *args, **options):
    """What the primitives of a program are after a transformation."""
    out = lambda *args: interpret(program, rules, **options)(*args)[0]
    return prims_deep(stage(out)(*args).jaxpr)


# ------------------------------------------------------------ rules


def test_a_rule_replaces_its_equation():
    assert staged_under({lax.sin_p: lambda frame, x, **_: jnp.cos(x)}, jnp.sin, 1.0) == [("cos",)]


def test_rules_see_what_rules_before_them_gave():
    out, *_ = interpret(lambda x: jnp.sin(jnp.sin(x)), {lax.sin_p: twice})(0.5)
    assert np.allclose(out, 2 * jnp.sin(2 * jnp.sin(0.5)))


def test_a_rule_gets_the_params_by_name():
    def rule(frame, x, *, axes, **_):
        assert axes == (1,)
        return frame.bind(x)

    interpret(lambda x: jnp.sum(x, 1), {lax.reduce_sum_p: rule})(jnp.ones((2, 3)))


@pytest.mark.parametrize("value", [0.25, np.float64(0.25), np.float32(0.25), jnp.float32(0.25)])
def test_a_rule_may_return_any_number_of_the_right_type(value):
    out, *_ = interpret(jnp.sin, {lax.sin_p: lambda frame, x, **_: value})(jnp.float32(1))
    assert (out, out.dtype) == (0.25, jnp.float32)


def test_a_rule_for_an_equation_without_results_returns_none():
    rule = lambda frame, *args, **params: None
    program = lambda x: (jax.debug.callback(lambda: pytest.fail("it ran")), x)[1]
    (prim,) = {e.primitive for e in stage(program)(1.0).jaxpr.eqns}
    assert interpret(program, {prim: rule})(1.0)[0] == 1.0


def test_a_default_rule_is_asked_about_all_without_a_rule():
    program = lambda x: jnp.sin(jax.jit(jnp.cos)(x)) + 1
    out, n, _ = interpret(program, {lax.sin_p: twice}, default=count, carry=0)(0.5)
    assert np.allclose(out, 2 * jnp.sin(jnp.cos(0.5)) + 1)
    assert n == 2


def test_control_flow_is_entered_for_a_default_rule():
    out, n, _ = interpret(through_everything, {}, default=count, carry=0)(0.9)
    assert_same(out, through_everything(0.9))
    assert n > 6


def test_a_control_flow_primitive_may_have_a_rule():
    def rule(frame, *args, **params):
        frame.carry += 1
        return frame.bind(*args)

    program = lambda x: lax.scan(lambda c, _: (jnp.sin(c), None), x, length=3)[0]
    out, n, _ = interpret(program, {lax.scan_p: rule, lax.sin_p: twice}, carry=0)(0.5)
    assert (out, n) == (program(0.5), 1)


@pytest.mark.parametrize("key", ["sin", jnp.sin, lax.sin])
def test_rules_are_given_by_primitive(key):
    with pytest.raises(TypeError, match=r"rules are given by primitive, such as lax\.sin_p"):
        interpret(jnp.sin, {key: again})


# ------------------------------------------------------------ what is left alone


def test_without_a_rule_the_program_stays_what_it_was():
    program = stage(through_everything)(0.5).jaxpr
    assert staged_under({}, through_everything, 0.5) == prims_deep(program)


@pytest.mark.caches  # the same function is compiled twice
def test_an_untouched_function_compiles_to_the_same_code():
    kept = lambda x: interpret(through_everything, {lax.tan_p: twice})(x)[0]
    kept.__name__ = through_everything.__name__
    code = [jax.jit(f).lower(0.5).compile().as_text() for f in (through_everything, kept)]
    strip = lambda text: [line.split(", metadata=")[0] for line in text.splitlines()[1:]
                          if line.startswith(("  ", "ENTRY", "%"))]  # fmt: skip
    assert strip(code[0]) == strip(code[1])


def test_control_flow_without_a_ruled_equation_is_not_entered():
    left = jax.jit(lambda x: lax.fori_loop(0, 3, lambda i, c: jnp.cos(c), x))
    program = lambda x: left(jnp.sin(x))
    assert staged_under({lax.sin_p: again}, program, 0.5) == prims_deep(stage(program)(0.5).jaxpr)


def solve(x):
    divide = lambda product, b: b / product(jnp.ones_like(b))
    return lax.custom_linear_solve(lambda v: v * jnp.sin(x), jnp.cos(x), divide)


def update(x):
    ref = jax.new_ref(x)

    def step(c, _):
        ref[...] = jnp.sin(ref[...])
        return c, None

    lax.scan(step, 0.0, length=2)
    return jnp.cos(ref[...])


@pytest.mark.parametrize("program", [solve, update])
def test_what_cannot_be_entered_is_left_alone_where_nothing_inside_has_a_rule(program):
    out, n, _ = interpret(program, {lax.cos_p: count}, carry=0)(0.5)
    assert n == 1
    assert_same(out, program(0.5))


@pytest.mark.parametrize("program", [solve, update])
def test_a_default_rule_does_not_enter_what_cannot_be_entered(program):
    assert_same(interpret(program, {}, default=again)(0.5)[0], program(0.5))


def test_effects_keep_their_order():
    seen = []

    def say(x, where):
        jax.experimental.io_callback(
            lambda x: seen.append((where, float(x))), None, x, ordered=True
        )
        return jnp.sin(x)

    def program(x):
        x = jax.jit(lambda x: say(x, "jit"))(say(x, "before"))
        x = lax.fori_loop(0, 2, lambda i, c: say(c, "loop"), x)
        return say(lax.while_loop(lambda c: c > 0.4, lambda c: say(c, "while"), x), "after")

    program(0.9)
    jax.effects_barrier()
    wanted, seen[:] = [*seen], []
    interpret(program, {lax.sin_p: count}, carry=0)(0.9)
    jax.effects_barrier()
    assert [where for where, _ in seen] == [where for where, _ in wanted]
    assert_same([x for _, x in seen], [x for _, x in wanted])


def named(x):
    with jax.named_scope("layer"):
        return jnp.sin(x)


def test_equations_keep_their_lines():
    program = lambda x: interpret(named, {lax.sin_p: again})(x)[0]
    (eqn,) = stage(program)(0.5).jaxpr.eqns
    assert compat.where(eqn).endswith("named")


@pytest.mark.parametrize("rule", [again, lambda frame, x, **_: frame.bind(2 * x)])
def test_equations_keep_their_name_stacks(rule):
    program = lambda x: interpret(named, {lax.sin_p: rule})(x)[0]
    eqn = stage(program)(0.5).jaxpr.eqns[-1]
    assert str(eqn.source_info.name_stack) == "layer"


@pytest.mark.parametrize(
    "around",
    [
        jax.jit,
        jax.checkpoint,
        lambda f: lambda x: lax.cond(x > 0, f, lambda x: x, x),
        lambda f: lambda x: lax.scan(lambda c, _: (f(c), None), x, length=2)[0],
    ],
)
def test_equations_in_bodies_keep_their_lines(around):
    program = lambda x: interpret(around(named), {lax.sin_p: again})(x)[0]
    (eqn,) = sites(stage(program)(0.5).jaxpr, [lax.sin_p])
    assert compat.where(eqn).endswith("named")


# ------------------------------------------------------------ arguments and results


def test_arguments_and_output_may_be_any_pytree():
    program = lambda d, fun, *, scale=1.0: {"out": fun(d["x"]) * scale, "fun": fun, "n": d["n"]}
    out, n, writes = interpret(program, {lax.sin_p: count}, carry=0)(
        {"x": 0.5, "n": None}, jnp.sin, scale=2.0
    )
    assert (n, writes) == (1, {})
    assert np.allclose(out["out"], 2 * jnp.sin(0.5))
    assert out["fun"] is jnp.sin and out["n"] is None


def test_constants_of_the_function_are_constants():
    table = np.arange(3.0, dtype=np.float32)
    out, *_ = interpret(lambda i: jnp.sin(jnp.asarray(table))[i], {lax.sin_p: twice})(2)
    assert np.allclose(out, 2 * jnp.sin(2.0))


def test_an_argument_handed_through_is_an_array():
    out, *_ = interpret(lambda x: x, {})(1.0)
    assert isinstance(out, jax.Array)


def test_the_carry_may_be_a_tracer_of_a_trace_around():
    def total(w):
        rule = lambda frame, x, **_: (setattr(frame, "carry", frame.carry * w), frame.bind(x))[1]
        return interpret(through_everything, {lax.sin_p: rule}, carry=w)(0.9)[1]

    _, n, _ = interpret(through_everything, {lax.sin_p: count}, carry=0)(0.9)
    assert np.allclose(jax.jvp(total, (1.5,), (1.0,))[1], (n + 1) * 1.5**n)


@pytest.mark.parametrize("around", [jax.jit, jax.vmap, jax.checkpoint])
def test_a_transformed_function_may_be_transformed_by_jax(around):
    counted = interpret(through_everything, {lax.sin_p: count}, carry=0)
    got = around(lambda x: counted(x)[0])(jnp.full(2, 0.9) if around is jax.vmap else 0.9)
    assert np.allclose(got, through_everything(0.9))


def test_it_works_where_jit_is_disabled():
    counted = interpret(through_everything, {lax.sin_p: count}, carry=0)
    wanted = counted(0.9)
    with jax.disable_jit():
        assert_same(counted(0.9), wanted)


def test_sites_are_found_at_any_depth_in_order():
    program = lambda x: lax.cond(x > 0, mark, lambda x: mark(-x), mark(x))
    found = sites(stage(program, [mark])(1.0).jaxpr, [mark])
    assert [len(str(e.invars)) > 0 for e in found] == [True] * 3
