"""A custom derivative is kept unless a rule changed the value it is about; then a note says so."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from malleable import interpret, listen, live, plant, reap, stage, tag
from tests.rules import again, assert_same, count, hand_out, prims, prims_deep, twice

# Each derivative rule is ten times the true one of the identity, so that losing it shows.


def with_jvp(f):
    fun = jax.custom_jvp(f)
    fun.defjvp(lambda xs, ts: (fun(*xs), 10 * ts[0]))
    return fun


def with_vjp(f):
    fun = jax.custom_vjp(f)
    fun.defvjp(lambda *xs: (fun(*xs), None), lambda _, ct: (10 * ct,))
    return fun


def slope(fun, x=0.5):
    return jax.jit(jax.grad(fun))(x)


both = pytest.mark.parametrize("custom", [with_jvp, with_vjp])
either = pytest.mark.parametrize("run", [interpret, live])


@both
@either
def test_a_rule_that_changes_nothing_keeps_the_derivative(custom, run):
    fun = custom(jnp.sin)
    out = lambda x: run(lambda x: fun(fun(x)), {lax.sin_p: count}, carry=0)(x)[0]
    assert slope(out) == 100.0


@both
def test_the_derivative_is_kept_twice(custom):
    fun = custom(lambda x: jnp.sin(x) * 2)
    out = lambda x: interpret(lambda x: fun(x) ** 2, {lax.sin_p: count}, carry=0)(x)[0]
    plain = lambda x: fun(x) ** 2
    assert_same(slope(jax.grad(out)), slope(jax.grad(plain)))


@both
def test_the_call_stays_one_operation(custom):
    program = lambda x: interpret(custom(jnp.sin), {lax.sin_p: again})(x)[0]
    assert prims(stage(program)(0.5).jaxpr) == prims(stage(custom(jnp.sin))(0.5).jaxpr)


@both
@either
def test_a_rule_that_changes_a_value_inside_drops_the_derivative(custom, run):
    out = lambda x: run(custom(jnp.sin), {lax.sin_p: twice})(x)[0]
    assert jnp.allclose(slope(out), 2 * jnp.cos(0.5))


@both
def test_a_dropped_derivative_leaves_a_note_with_both_lines(custom):
    def inner(x):
        return jnp.sin(x)

    with listen() as heard:
        interpret(lambda x: custom(inner)(x), {lax.sin_p: twice})(0.5)
    note = heard[-1]
    assert note.what.startswith("entered `custom_")
    assert note.what.endswith("_call` without its derivative rule")
    assert "test_higher_derivatives.py:" in note.where
    assert "changed at " in note.why
    assert note.why.endswith(" in inner") or note.why.endswith(".inner")


@both
def test_a_kept_derivative_leaves_no_note(custom):
    with listen() as heard:
        interpret(custom(jnp.sin), {lax.sin_p: count}, carry=0)(0.5)
    assert heard == []


@both
@pytest.mark.parametrize(
    "before",
    [
        lambda x: jnp.cos(x),
        lambda x: jax.jit(jnp.cos)(x),
        lambda x: lax.cond(x > 0, jnp.cos, lambda x: x, x),
        lambda x: lax.scan(lambda c, _: (jnp.cos(c), None), x, length=1)[0],
    ],
)
def test_a_value_changed_before_does_not_drop_the_derivative(custom, before):
    fun = custom(jnp.sin)
    rules = {lax.cos_p: twice, lax.sin_p: count}
    out = lambda x: interpret(lambda x: fun(before(x)), rules, carry=0)(x)[0]
    assert jnp.allclose(slope(out), -20 * jnp.sin(0.5))


@both
def test_a_planted_tag_before_does_not_drop_the_derivative_of_a_tagged_function(custom):
    program = lambda x: custom(lambda x: tag(1.0 * x, "inside"))(tag(2 * x, "before"))
    assert jax.grad(lambda x: plant(program)({"before": x}, x))(1.0) == 10.0


@both
def test_a_value_changed_in_another_function_does_not_drop_the_derivative(custom):
    kept, dropped = custom(lambda x: jnp.sin(x)), custom(lambda x: jnp.cos(x))
    rules = {lax.cos_p: twice, lax.sin_p: count}
    program = lambda x: kept(dropped(x))
    out = lambda x: interpret(program, rules, carry=0)(x)[0]
    assert jnp.allclose(slope(out), -20 * jnp.sin(0.5))


# ------------------------------------------------------------ state inside


@both
@either
def test_state_inside_is_differentiated_as_it_is_computed(custom, run):
    """The value by its own rule, the carry and the writes by those of what computes them."""

    def rule(frame, x, **params):
        key, total, n = frame.carry
        frame.carry = jax.random.split(key)[0], total + x, n + 1
        frame.write("square", x * x, "sum")
        return frame.bind(x)

    def parts(x):
        start = jax.random.key(1), 0.0, 0
        out, (_, total, n), writes = run(
            lambda x: custom(jnp.sin)(3 * x), {lax.sin_p: rule}, carry=start
        )(x)
        return (out, total, writes["square"]), n

    slopes, n = jax.jit(jax.jacrev(parts, has_aux=True))(0.5)
    assert n == 1
    assert_same(slopes, tuple(map(jnp.float32, (30.0, 3.0, 9.0))))


@both
def test_what_is_read_inside_has_a_derivative(custom):
    def rule(frame, x, **params):
        frame.write("product", frame.read("w") * x)
        return frame.bind(x)

    product = lambda w: interpret(custom(jnp.sin), {lax.sin_p: rule}, shared={"w": w})(2.0)[2]
    assert jax.grad(lambda w: product(w)["product"])(3.0) == 2.0


@both
def test_keys_inside_are_the_same_with_a_derivative(custom):
    def rule(frame, x, **params):
        frame.carry += x * jax.random.uniform(frame.next_key())
        return frame.bind(x)

    state = {"key": jax.random.key(0), "carry": 0.0}
    total = lambda x: interpret(custom(jnp.sin), {lax.sin_p: rule}, **state)(x)[1]
    assert jnp.allclose(slope(total), jax.jit(total)(1.0))


def test_integer_operands_and_several_results_are_kept():
    fun = jax.custom_vjp(lambda x, n: (jnp.sin(x), n + 1, x * n))
    fun.defvjp(lambda x, n: (fun(x, n), None), lambda _, cts: (5 * cts[0] + 50 * cts[2], None))
    out = lambda i: lambda x: interpret(fun, {lax.sin_p: count}, carry=0)(x, 2)[0][i]
    assert [slope(out(i)) for i in (0, 2)] == [5.0, 50.0]


def test_operands_that_are_not_differentiated_are_kept():
    fun = jax.custom_vjp(lambda k, x: jnp.sin(x) * k, nondiff_argnums=(0,))
    fun.defvjp(lambda k, x: (fun(k, x), x), lambda k, x, ct: (10 * k * ct,))
    out = lambda x: interpret(lambda x: fun(2.0, x), {lax.sin_p: count}, carry=0)(x)[0]
    assert slope(out) == 20.0


def test_symbolic_zeros_are_kept():
    zero = jax.custom_derivatives.SymbolicZero
    fun = jax.custom_vjp(lambda x, y: jnp.sin(x) * y)
    fun.defvjp(
        lambda x, y: (jnp.sin(x.value) * y.value, y.value),
        lambda y, ct: (None, None) if isinstance(ct, zero) else (10 * ct * y, 7 * ct),
        symbolic_zeros=True,
    )
    out = lambda x: interpret(lambda x: fun(x, 2.0), {lax.sin_p: count}, carry=0)(x)[0]
    assert slope(out) == 20.0


# ------------------------------------------------------------ rules in derivative rules, and around


def test_rules_apply_inside_a_derivative_rule():
    fun = jax.custom_vjp(jnp.sin)
    fun.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (ct * jnp.cos(x),))
    assert jnp.allclose(interpret(jax.grad(fun), {lax.cos_p: twice})(0.5)[0], 2 * jnp.cos(0.5))


def test_tags_of_a_derivative_rule_are_reaped_from_the_gradient():
    fun = jax.custom_vjp(lambda x: tag(2 * x, "value"))
    fun.defvjp(lambda x: (tag(2 * x, "forward"), None), lambda _, ct: (tag(10 * ct, "back"),))
    assert reap(fun)(1.0)[1] == {"value": 2.0}
    assert reap(jax.grad(fun))(1.0) == (10.0, {"forward": 2.0, "back": 10.0})


@pytest.mark.caches  # a function defined in a traced one, with its derivative: JAX keeps both
def test_a_derivative_rule_may_close_over_a_tracer():
    def by_w(w, x):
        fun = jax.custom_jvp(lambda x: x * w)
        fun.defjvp(lambda xs, ts: (xs[0] * w, 10 * w * ts[0]))
        return fun(x)

    ruled = lambda w: lambda x: interpret(lambda x: by_w(w, x), {lax.mul_p: again})(x)[0]
    slope = lambda w: jax.grad(ruled(w))(2.0)
    assert jax.jit(slope)(3.0) == 30.0
    assert jax.grad(slope)(3.0) == 10.0


@pytest.mark.parametrize("fun", [jax.nn.relu, jax.nn.logsumexp])
@either
def test_the_derivatives_of_the_library_are_kept_under_a_default_rule(fun, run):
    x = jnp.array([-1.0, 0.0, 2.0])
    total = lambda x: jnp.sum(run(fun, {}, default=again)(x)[0])
    assert_same(slope(total, x), slope(lambda x: jnp.sum(fun(x)), x))


@both
def test_the_derivative_is_kept_inside_other_control_flow(custom):
    fun = custom(lambda x: jnp.sin(x) * 1.0)
    step = lambda c, t: (fun(c) * t, c)
    program = jax.checkpoint(lambda x: lax.scan(step, x, jnp.arange(1.0, 4.0))[0])
    out = lambda x: interpret(program, {lax.sin_p: hand_out("stack")})(x)[0]
    xs = jnp.array([0.3, 0.5])
    slopes = jax.jit(lambda xs: [jax.vmap(jax.grad(f))(xs) for f in (out, program)])(xs)
    assert_same(*slopes)
    assert "custom" in str(prims_deep(stage(out)(0.3).jaxpr))
