"""optimize keeps the meaning of a function wherever it is used; a pass that breaks one is named."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from malleable import MalleableError, RuleError, compat, stage
from malleable.programs.equations import every
from malleable.rewriting.graph.graph import fingerprint
from malleable.rewriting.passes.fold import fold
from malleable.rewriting.passes.hoist import hoist
from malleable.rewriting.passes.passes import (
    configurable,
    cse,
    dce,
    each_body,
    in_bodies,
    optimize,
    pipeline,
)
from malleable.rewriting.passes.products import matmul_order
from tests.rules import assert_same, prims, prims_deep
from tests.scans import same_on_eight_devices

PASSES = [dce, cse, fold, hoist, matmul_order]
X = jnp.linspace(0.1, 0.9, 4)


@jax.custom_vjp
def clipped(x):
    return x + jnp.sum(jnp.zeros(2))


clipped.defvjp(lambda x: (clipped(x), x), lambda x, ct: (7 * ct,))


def mixed(x):
    def step(c, t):
        y = jnp.sin(x) * c + jnp.sin(x) * jax.nn.relu(t)
        return clipped(y), (y, y + jnp.sum(jnp.arange(3.0)))

    c, (ys, zs) = lax.scan(step, x, jnp.ones((3, 4)))
    w = jax.checkpoint(lambda a: jnp.exp(a) + jnp.exp(a))(c)
    unused = jnp.cos(w)
    m = jnp.outer(x, c) @ jnp.outer(w, w) @ ys[0]
    return lax.cond(x[0] > 0, lambda: m + zs[-1], lambda: m - unused)


PROGRAMS = {
    "mixed": mixed,
    "while": lambda x: lax.while_loop(
        lambda c: c[0] < jnp.sum(jnp.sin(x)),
        lambda c: (c[0] + jnp.sin(x).max(), c[1] * 2),
        (0.0, x),
    )[1],
    "twice": lambda x: jnp.sin(x) * jnp.sin(x) + jax.jit(jnp.sin)(x),
}


TWO = jnp.stack([X, 2 * X])


def total(fun):
    return jax.grad(lambda x: jnp.sum(fun(x)))


def everything(fun, name):
    """Value, lanes and derivative, compiled at once."""
    run = lambda x: [fun(x), jax.vmap(fun)(TWO), *([] if name == "while" else [total(fun)(x)])]
    return jax.jit(run)(X)


@functools.cache
def wanted(name):
    return everything(PROGRAMS[name], name)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("p", PASSES, ids=lambda p: p.__name__)
def test_every_pass_keeps_value_lanes_and_derivative(p, name):
    assert_same(everything(optimize(PROGRAMS[name], p), name), wanted(name), rtol=1e-4)


@pytest.mark.parametrize("name", ["mixed", "twice"])
def test_all_passes_keep_a_program_that_is_a_derivative(name):
    ours = jax.jit(optimize(total(PROGRAMS[name]), *PASSES))
    assert_same(ours(X), wanted(name)[2], rtol=1e-4)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("p", PASSES, ids=lambda p: p.__name__)
def test_a_pass_run_twice_changes_nothing_more(p, name):
    once = p(stage(PROGRAMS[name])(X).jaxpr)
    compat.check(once)
    assert p(once) is once
    assert fingerprint(p(once)) == fingerprint(once)


@pytest.mark.parametrize("p", PASSES, ids=lambda p: p.__name__)
def test_a_program_without_work_comes_back_as_the_same_object(p):
    def step(c, t):
        return c * t, c

    program = stage(lambda x: lax.scan(step, jnp.cos(x), jnp.ones((3, 4))))(X).jaxpr
    assert p(program) is program
    assert pipeline(p, p)(program) is program


@pytest.mark.parametrize("p", PASSES, ids=lambda p: p.__name__)
def test_every_equation_names_a_line_of_the_user(p):
    for eqn in p(stage(mixed)(X).jaxpr).eqns:
        assert "test_passes.py" in compat.where(eqn)


# ---------------------------------------------------------------- optimize


def test_arguments_and_results_keep_their_trees():
    def fun(a, *, b, how):
        return {"y": a["x"] + b[0], "how": how, "none": None}

    out = optimize(fun)({"x": 1.0}, b=[2.0], how="fast")
    assert out["how"] == "fast" and out["none"] is None
    assert float(out["y"]) == 3.0


def test_the_name_and_the_docstring_stay():
    def fun(x):
        """Doc."""

    assert optimize(fun).__name__ == "fun"
    assert optimize(fun).__doc__ == "Doc."


@pytest.mark.caches
def test_a_function_is_traced_once_per_signature():
    traces = []
    fun = optimize(lambda x, how="": traces.append(how) or x + 1)
    for x in (1.0, 2.0, np.float32(1), np.float32(2)):
        fun(x)
    fun(1.0, how="other")
    fun(1.0, how="other")
    assert traces == ["", "", "other"]


def test_leaves_that_compare_equal_but_are_of_two_types_are_two_signatures():
    class Name(str):
        pass

    fun = optimize(lambda x, how: type(how).__name__)
    assert [fun(1.0, "a"), fun(1.0, Name("a"))] == ["str", "Name"]


def test_a_leaf_without_a_hash_is_read_each_time():
    class Box:
        __hash__ = None

    box = Box()
    box.it = 2.0
    fun = optimize(lambda x, box: x * box.it)
    first = fun(3.0, box)
    box.it = 5.0
    assert (float(first), float(fun(3.0, box))) == (6.0, 15.0)


@pytest.mark.parametrize("around", [jax.grad, jax.jit, jax.checkpoint], ids=lambda f: f.__name__)
def test_a_closure_over_a_value_being_traced_is_right(around):
    plain = lambda w: w * w * jnp.sin(w)
    closed = lambda w: optimize(lambda x: x * w * jnp.sin(w))(w)
    assert_same(around(closed)(0.7), around(plain)(0.7))
    assert_same(jax.vmap(around(closed))(X), jax.vmap(around(plain))(X))


def test_a_closure_inside_a_loop_is_right():
    def fun(w):
        return lax.scan(lambda c, _: (optimize(lambda x: x * w * c)(1.0), None), 1.0, None, 3)[0]

    assert float(jax.grad(fun)(2.0)) == 12.0


def test_inside_another_optimize_it_is_right():
    assert_same(optimize(lambda x: optimize(mixed, hoist)(x) * 2, cse)(X), mixed(X) * 2)


def test_a_key_from_outside_is_right():
    key = jax.random.key(3)
    fun = lambda x: x + jax.random.normal(key, (2,)) + jax.random.uniform(key)
    assert_same(optimize(fun, *PASSES)(1.0), fun(1.0))


def test_derivatives_that_are_defined_by_the_user_are_kept():
    assert float(jax.grad(optimize(clipped, *PASSES))(1.0)) == 7.0


def test_prints_stay_in_order_and_number(capfd):
    def fun(x):
        for name in ("a", "b", "b"):
            jax.debug.print(name + " {}", x, ordered=True)

        def step(c, _):
            jax.debug.print("c {}", c + jnp.sin(x), ordered=True)
            return c + 1, None

        return lax.scan(step, x, None, length=2)[0]

    assert float(optimize(fun, *PASSES)(0.0)) == 2
    jax.effects_barrier()
    assert capfd.readouterr().out.split("\n")[:-1] == ["a 0.0", "b 0.0", "b 0.0", "c 0.0", "c 1.0"]


def test_random_numbers_of_the_device_are_never_one():
    fun = lambda x: lax.rng_uniform(x, x + 1, (3,)) - lax.rng_uniform(x, x + 1, (3,))
    assert prims(cse(stage(fun)(0.0).jaxpr)).count("rng_uniform") == 2


def test_a_function_on_values_still_needs_values():
    with pytest.raises(jax.errors.TracerBoolConversionError):
        optimize(lambda x: x if x > 0 else -x)(1.0)


def test_a_missing_argument_is_the_error_of_the_function():
    def fun(x, y):
        return x + y

    with pytest.raises(TypeError, match=r"fun\(\) missing 1 required positional argument: 'y'"):
        optimize(fun)(1.0)


def test_it_composes_with_shard_map_on_eight_devices_in_both_orders():
    def local(x):
        y = lax.psum(jnp.sin(x) + jnp.sin(x), "d") * jnp.sum(jnp.arange(3.0))
        step = lambda c, t: (c * jnp.exp(x).sum() + jax.lax.axis_index("d"), c)
        c, cs = lax.scan(step, x, None, length=3)
        return y.sum() + c + (jnp.outer(x, x) @ jnp.outer(x, x)) @ x + cs.sum(0)

    same_on_eight_devices(local, PASSES, (P("d"),), jnp.linspace(0.1, 0.9, 16))


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_a_result_is_spread_over_devices_as_the_argument_is(kind):
    plain = lambda x: jnp.sin(x) * jnp.sin(x) + jnp.zeros(16) + 1
    mesh = jax.make_mesh((8,), ("d",), axis_types=(kind,))
    with jax.set_mesh(mesh):
        x = jax.device_put(jnp.linspace(0.1, 0.9, 16), NamedSharding(mesh, P("d")))
        assert optimize(plain, *PASSES)(x).sharding.is_equivalent_to(x.sharding, 1)


# ---------------------------------------------------------------- passes


def test_common_equations_in_bodies_are_one():
    program = stage(lambda x: lax.fori_loop(0, 3, lambda i, c: jnp.sin(c) + jnp.sin(c), x))(1.0)
    assert prims_deep(cse(program.jaxpr))[0][1].count(("sin",)) == 1


def test_equal_loops_are_one():
    loop = lambda x: lax.scan(lambda c, t: (c * t, c), x, jnp.arange(3.0))
    program = stage(lambda x: (loop(x), loop(x)))(1.0).jaxpr
    assert prims(cse(program)).count("scan") == 1


def test_loops_that_differ_in_direction_are_two():
    loop = lambda x, r: lax.scan(lambda c, t: (c * t, c), x, jnp.arange(3.0), reverse=r)
    program = stage(lambda x: (loop(x, True), loop(x, False)))(1.0).jaxpr
    assert prims(cse(program)).count("scan") == 2


def test_dead_equations_in_the_body_of_a_custom_derivative_go():
    @jax.custom_jvp
    def fun(x):
        return (jnp.sin(x), jnp.cos(x))[1]

    fun.defjvp(lambda primals, tangents: (fun(*primals), tangents[0]))
    assert prims_deep(dce(stage(fun)(1.0).jaxpr)) == [("custom_jvp_call", [("cos",)])]


def test_in_bodies_goes_from_the_deepest_and_each_body_from_the_top():
    loop = lambda x: lax.fori_loop(0, 3, lambda i, c: jnp.sin(jnp.cos(c)), x)
    program, seen = stage(loop)(1.0).jaxpr, []
    look = lambda jaxpr: seen.append(prims(jaxpr)[-1]) or jaxpr
    assert in_bodies(look)(program) is program and each_body(look)(program) is program
    assert seen == ["sin", "scan", "scan", "sin"]


def test_a_body_that_is_there_twice_is_treated_once():
    inner = jax.jit(lambda x: jnp.sin(x) * 2)
    seen = []
    in_bodies(lambda jaxpr: seen.append(prims(jaxpr)) or jaxpr)(
        stage(lambda x: inner(inner(x)))(1.0).jaxpr
    )
    assert seen == [["sin", "mul"], ["jit", "jit"]]


def test_options_are_given_by_keyword_and_the_name_stays():
    @configurable
    def chunked(jaxpr, *, chunk=1, other=2):
        seen.append((chunk, other))
        return jaxpr

    seen, program = [], stage(jnp.sin)(1.0).jaxpr
    chunked(program)
    chunked(chunk=4)(program)
    chunked(chunk=4)(other=5)(program)
    chunked(program, chunk=6)
    assert seen == [(1, 2), (4, 2), (4, 5), (6, 2)]
    assert chunked(chunk=4).__name__ == "chunked"
    with pytest.raises(TypeError, match=r"no option 'chunks'\n  at .*\n  hint: write chunk="):
        chunked(chunks=4)


# ---------------------------------------------------------------- pipeline


def test_watch_is_called_after_each_pass_with_the_program_before_and_after():
    seen = []
    program = stage(lambda x: jnp.sin(x) + jnp.sin(x))(1.0).jaxpr
    watch = lambda name, before, after: seen.append((name, len(before.eqns), len(after.eqns)))
    pipeline(dce, cse, watch=watch)(program)
    assert seen == [("dce", 3, 3), ("cse", 3, 2)]


def test_what_a_pass_leaves_over_is_pruned():
    def careless(jaxpr):
        return stage(lambda x: (jnp.cos(x), jnp.sin(x) + jnp.sin(x))[1])(1.0).jaxpr

    assert prims(pipeline(careless)(stage(jnp.sin)(1.0).jaxpr)) == ["sin", "add"]


def simple(x):
    return jnp.sin(x) * jnp.ones(3)


def pass_of(fun):
    def broken(jaxpr):
        return fun(jaxpr)

    return broken


def without(jaxpr, n, outs):
    return compat.program(jaxpr, jaxpr.eqns[n:], jaxpr.jaxpr.outvars[:outs], {})


@pytest.mark.parametrize(
    ("fun", "message"),
    [
        (lambda j: None, "pass 'broken' returned nothing where a program belongs"),
        (lambda j: lambda k: k, r"'broken' makes passes: give it what it asks for, broken\(...\)"),
        (
            lambda j: stage(lambda x: jnp.ones(4))(1.0).jaxpr,
            r"pass 'broken' changed the type of result 0, from f32\[3\] to f32\[4\]",
        ),
        (
            lambda j: stage(lambda x: jnp.ones(3))(X).jaxpr,
            r"pass 'broken' changed the type of argument 0, from f32\[\] to f32\[4\]",
        ),
        (
            lambda j: stage(lambda x: jnp.ones(3))(np.float32(1)).jaxpr,
            r"changed the type of argument 0, from f32\[\] \(weak.*\) to f32\[\] \(strong",
        ),
        (lambda j: without(j, 0, 0), "changed the number of results from 1 to 0"),
        (lambda j: without(j, 1, 1), r"ill-typed program: Variable .*\n  at .*test_passes\.py:\d+"),
    ],
)
def test_a_pass_that_breaks_the_program_is_named(fun, message):
    with pytest.raises(RuleError, match=message):
        optimize(simple, pass_of(fun))(1.0)


@pytest.mark.parametrize("given", [[dce, cse], (dce,), 3, None, dict, "dce"])
def test_what_is_no_pass_is_an_error_at_once(given):
    with pytest.raises(TypeError, match="pass"):
        optimize(simple, given)


def test_a_pass_given_as_the_function_is_an_error():
    with pytest.raises(TypeError, match="optimize takes a function"):
        optimize(stage(simple)(1.0).jaxpr, dce)


def test_a_function_given_to_a_pass_is_an_error():
    with pytest.raises(
        TypeError, match=r"'hoist' takes a program, .*\n  at .*\n.*optimize\(fun, hoist\)"
    ):
        hoist(simple)


def test_an_error_of_a_pass_itself_comes_as_it_is():
    def loud(jaxpr):
        raise MalleableError("loud")

    with pytest.raises(MalleableError, match="loud"):
        optimize(simple, loud)(1.0)


@pytest.mark.parametrize(
    "choices",
    [
        {"default": jnp.sin},
        {"cpu": jnp.cos, "cuda": jnp.tan, "default": jnp.sin},
        {"cpu": jnp.cos, "default": jnp.sin},
    ],
    ids=["one", "three", "two"],
)
def test_a_choice_by_platform_stays(choices):
    fun = lambda x: lax.platform_dependent(x, **choices) + lax.platform_dependent(x, **choices)
    program = cse(stage(fun)(0.5).jaxpr)
    assert ("cond" in prims(program)) == (len(choices) > 1)
    assert optimize(fun, cse)(0.5) == fun(0.5)


@pytest.mark.parametrize(
    ("number", "dtype"),
    [
        (16777217.0, jnp.int32),
        (jnp.int4(-1), jnp.uint4),
        (float("nan"), jnp.int32),
        (-0.0, jnp.int32),
        (2, jnp.bool_),
        (0.1, jnp.bfloat16),
    ],
)
def test_a_number_is_converted_as_jax_does(number, dtype):
    inside = jax.jit(lambda y: lax.convert_element_type(y, dtype).astype(jnp.float32))
    fun = lambda x: x + inside(number)
    assert jnp.array_equal(optimize(fun, cse)(0.0), jax.jit(fun)(0.0))


@pytest.mark.parametrize("transform", [jax.grad, jax.vmap, jax.linearize, jax.jit])
def test_equations_keep_their_lines_where_an_optimized_function_is_transformed(transform):
    ours = optimize(lambda x: jnp.sin(x) * jnp.cos(x))
    once = (lambda x: jax.linearize(ours, x)[0]) if transform is jax.linearize else transform(ours)
    program = jax.make_jaxpr(once)(X if transform is jax.vmap else 1.0)
    eqns = every(program.eqns)
    assert {compat.where(eqn).split(" in ")[0] for eqn in eqns if eqn.primitive.name == "mul"} == {
        f"{__file__}:{ours.__wrapped__.__code__.co_firstlineno}"
    }


def test_flags_in_a_module_of_equinox_are_static():
    eqx = pytest.importorskip("equinox")
    attention = eqx.nn.MultiheadAttention(2, 4, key=jax.random.key(0))  # has `inference: bool`
    loss = lambda attention, x: attention(x, x, x).sum()
    fast, x = optimize(loss), jnp.arange(12.0).reshape(3, 4)
    assert jnp.allclose(fast(attention, x), loss(attention, x))
    slopes, wanted = eqx.filter_grad(fast)(attention, x), eqx.filter_grad(loss)(attention, x)
    assert_same(jax.tree.leaves(slopes), jax.tree.leaves(wanted))
    dropout = eqx.nn.Dropout(0.0)  # p: a number
    sign = optimize(lambda dropout, x: x * np.copysign(1, dropout.p))
    assert sign(dropout, 2.0) == 2 and sign(eqx.nn.Dropout(-0.0), 2.0) == -2


def test_a_static_argument_of_a_jitted_function_is_static():
    power = jax.jit(lambda x, n: x**n if n > 1 else x, static_argnums=1)
    assert optimize(power)(3.0, 2) == 9 and optimize(power)(3.0, 1) == 3
