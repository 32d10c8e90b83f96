"""`live` is `interpret` on live values: Python runs, and JAX is left as it was."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from malleable import RuleError, compat, interpret, live, marker, stage
from tests.rules import again, assert_same, count, prims, twice

SIN = lax.sin_p
RULES = {SIN: lambda frame, x, **_: (frame.write("sum", jnp.sum(x), "sum"), 2 * count(frame, x))[1]}
XS = jnp.array([0.1, 0.2, 0.3])


def here(fun):
    """fun on live values, without rules."""
    return lambda *args: live(fun, {})(*args)[0]


def scan(x):
    return lax.scan(lambda c, t: (jnp.sin(c) * t, jnp.sin(c)), x, XS)


def while_loop(x):
    return lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, jnp.sin(s[1])), (0, x))


def nested(x):
    body = lambda c, _: (jax.jit(lambda c: lax.cond(jnp.sum(c) > 0, jnp.sin, jnp.cos, c))(c), None)
    return lax.scan(body, x, length=2)[0]


def custom(x):
    fun = jax.custom_vjp(jnp.sin)
    fun.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (10 * ct * x,))
    return fun(x)


PROGRAMS = {
    "plain": lambda x: jnp.sin(jnp.sin(x)),
    "jit": lambda x: jax.jit(jnp.sin)(x) + jax.jit(jnp.sin)(2 * x),
    "scan": scan,
    "while": while_loop,
    "cond": lambda x: lax.cond(jnp.sum(x) > 0, jnp.sin, jnp.cos, x),
    "vmap": lambda x: jax.vmap(jnp.sin)(jnp.stack([x, x])),
    "grad": lambda x: jax.grad(lambda x: jnp.sum(jnp.sin(x) * x))(x),
    "grad of scan": lambda x: jax.grad(lambda x: jnp.sum(scan(x)[0]))(x),
    "hessian": lambda x: jax.jvp(jax.grad(lambda x: jnp.sum(jnp.sin(x))), (x,), (x,)),
    "checkpoint": lambda x: jax.grad(lambda x: jnp.sum(jax.checkpoint(jnp.sin)(x)))(x),
    "jvp": lambda x: jax.jvp(jnp.sin, (x,), (x,)),
    "linearize": lambda x: jax.linearize(jnp.sin, x)[1](x),
    "custom_jvp": lambda x: jax.nn.silu(jnp.sin(x)),
    "custom_vjp": custom,
    "closed over": lambda x: jax.jit(lambda y: jnp.sin(y) * x)(x),
    "nested": nested,
}
programs = pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)


@pytest.mark.in_turns
@programs
@pytest.mark.parametrize("around", [lambda f: f, jax.jit, jax.vmap], ids=["eager", "jit", "vmap"])
def test_it_gives_what_interpret_gives(program, around):
    got = around(live(program, RULES, carry=0))(XS)
    assert_same(got, around(interpret(program, RULES, carry=0))(XS))


@pytest.mark.parametrize("name", ["plain", "jit", "scan", "cond", "custom_vjp", "nested"])
def test_its_gradient_is_that_of_interpret(name):
    def total(run):
        ruled = run(PROGRAMS[name], {SIN: count}, carry=0)
        return lambda x: sum(map(jnp.sum, jax.tree.leaves(ruled(x)[0])))

    assert_same(jax.grad(total(live))(XS), jax.grad(total(interpret))(XS))


# ------------------------------------------------------------ Python


def test_python_branches_on_concrete_values():
    program = lambda x: jnp.sin(x) if x > 0 else x
    assert [live(program, {SIN: count}, carry=0)(x)[1] for x in (1.0, -1.0)] == [1, 0]


def test_python_loops_run_as_often_as_the_values_say():
    def program(x):
        while x < 3:
            x = x + 1 + 0 * jnp.sin(x)
        return x

    assert live(program, {SIN: count}, carry=0)(0.5)[:2] == (3.5, 3)


@pytest.mark.parametrize(
    ("ask", "x", "wanted"),
    [
        (float, 2, 2.0),
        (int, jnp.float32(2.5), 2),
        (bool, 0.0, False),
        (complex, jnp.float32(1), 1 + 0j),
        (complex, 1.0, 1 + 0j),
        (lambda x: x.item(), jnp.float32(2), 2.0),
        (lambda x: x.tolist(), jnp.arange(2), [0, 1]),
        (lambda x: [10, 20][x], 1, 20),
        (lambda x: list(range(x)), 2, [0, 1]),
        (lambda x: np.asarray(x).sum(), jnp.arange(3), 3),
        (lambda x: f"{x:.2f}", 0.5, "0.50"),
        (lambda x: jnp.nonzero(x)[0].tolist(), jnp.array([0, 1, 1]), [1, 2]),
        (lambda x: x[x > 1].shape, jnp.arange(4), (2,)),
        (lambda x: jnp.zeros(x).shape, 3, (3,)),
        (len, jnp.arange(3), 3),
        (lambda x: [float(y) for y in x], jnp.arange(2), [0.0, 1.0]),
        (lambda x: 3 in x, jnp.arange(4), True),
    ],
)
def test_a_value_answers_python(ask, x, wanted):
    assert here(ask)(x) == wanted


def test_a_value_prints_as_the_array_it_is(capsys):
    here(lambda x: print(repr(x), f"{x}"))(jnp.float32(0.5))
    assert capsys.readouterr().out == "Array(0.5, dtype=float32) 0.5\n"


def test_the_text_of_a_value_is_that_of_the_array():
    assert here(str)(jnp.arange(3)) == "[0 1 2]"


def test_what_is_traced_outside_stays_traced():
    with pytest.raises(jax.errors.TracerBoolConversionError):
        jax.jit(here(lambda x: x if x > 0 else -x))(1.0)
    assert jax.grad(here(lambda x: 2 * x if x > 0 else -x))(1.0) == 2.0


@pytest.mark.parametrize("thing", ["fast", None, jnp.sin])
def test_what_is_no_array_stays_itself(thing):
    assert here(lambda thing, x: {"thing": thing, "x": x})(thing, 1.0)["thing"] is thing


def test_the_output_has_values_and_no_tracers():
    out, carry, writes = live(PROGRAMS["scan"], RULES, carry=0)(0.5)
    leaves = jax.tree.leaves((out, carry, writes))
    assert not any(isinstance(x, compat.Tracer) for x in leaves)


def test_equations_are_bound_in_the_trace_around():
    assert prims(stage(here(lambda x: jnp.sin(x) + 1))(0.5).jaxpr) == ["sin", "add"]


# ------------------------------------------------------------ rules


def test_markers_wait_for_their_rules():
    mark = marker("mark")
    rule = lambda frame, x: 10 * x
    assert live(lambda x: mark(x) + jax.jit(mark)(x), {mark: rule})(1.0)[0] == 20.0
    assert not mark.active


def test_a_default_rule_is_asked_about_all_without_a_rule():
    program = lambda x: jnp.sin(jax.jit(jnp.cos)(x)) + x
    out, n, _ = live(program, {SIN: twice}, default=count, carry=0)(0.5)
    assert np.allclose(out, 2 * jnp.sin(jnp.cos(0.5)) + 0.5)
    assert n == 2


def test_feeds_shared_and_keys_are_read_as_under_interpret():
    rule = lambda frame, x, **_: (
        x + frame.read("f") + frame.read("s") + jax.random.uniform(frame.next_key())
    )
    state = {"feeds": {"f": XS}, "shared": {"s": 1.0}, "key": jax.random.key(0)}
    program = lambda x: lax.scan(lambda c, _: (jnp.sin(c), None), x, length=3)[0]
    got, wanted = (run(program, {SIN: rule}, **state)(0.5) for run in (live, interpret))
    assert_same(got, wanted)


@pytest.mark.caches  # a function that jit has seen is entered all the same
def test_a_jitted_function_called_twice_is_seen_twice():
    jitted = jax.jit(lambda x: jnp.sin(x))
    jitted(0.5)
    for _ in range(2):
        assert live(lambda x: jitted(x) + jitted(x), {SIN: count}, carry=0)(0.5)[1] == 2
    assert live(jitted, {SIN: twice})(0.5)[0] == 2 * jitted(0.5)


@pytest.mark.parametrize("inner", [live, interpret])
@pytest.mark.parametrize("outer", [live, interpret])
def test_transformations_nest(outer, inner):
    program = lambda x: inner(lambda x: jnp.sin(x) * x, {SIN: twice})(x)[0]
    out, n, _ = outer(program, {lax.mul_p: count}, carry=0)(0.5)
    assert_same(out, jnp.asarray(2 * jnp.sin(0.5) * 0.5))
    assert n == 2


# ------------------------------------------------------------ errors and leaks


def failing(frame, x, **params):
    raise KeyError("mine")


@pytest.mark.parametrize("name", ["plain", "jit", "scan", "while", "cond", "grad"])
def test_an_error_in_a_rule_leaves_jax_as_it_was(name):
    with pytest.raises(KeyError, match="mine"):
        live(PROGRAMS[name], {SIN: failing})(0.5)
    assert jax.jit(jnp.sin)(0.5) == jnp.sin(0.5)
    assert isinstance(jnp.sin(0.5), jax.Array) and not isinstance(jnp.sin(0.5), compat.Tracer)


def test_an_error_of_the_function_leaves_jax_as_it_was():
    mark = marker("mark")
    with pytest.raises(ZeroDivisionError):
        live(lambda x: 1 // 0, {mark: again})(0.5)
    assert not mark.active
    assert not isinstance(jnp.sin(0.5), compat.Tracer)


def test_a_rule_error_names_the_line():
    with pytest.raises(RuleError, match=r"at .*test_live\.py:\d+"):
        live(lambda x: jnp.sin(x), {SIN: lambda frame, x, **_: jnp.ones(3)})(0.5)


def test_a_value_that_is_kept_elsewhere_is_a_plain_one_afterwards():
    kept = []
    live(lambda x: kept.append(jnp.sin(x)), {SIN: again})(0.5)
    assert not isinstance(kept[0], compat.Tracer)
    assert_same(kept[0], jnp.sin(0.5))


@pytest.mark.parametrize("fun", [jax.nn.relu, jax.nn.logsumexp, custom])
@pytest.mark.parametrize("around", [jax.grad, jax.jit, jax.vmap, lambda f: jax.jit(jax.grad(f))])
def test_a_custom_derivative_inside_works_whatever_is_outside(fun, around):
    x = jnp.ones(3) if around is jax.vmap else jnp.float32(0.5)
    assert_same(around(here(fun))(x), around(fun)(x))
