"""Parameters without plumbing: `init` makes them, `apply` hands them in."""

import types

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from malleable import (
    TransformError,
    UnhandledError,
    apply,
    init,
    next_key,
    param,
    reap,
    scope,
    seed,
    tag,
)
from tests.generators.keys import quick_key
from tests.rules import assert_same

KEY = quick_key(0)
INIT = jax.nn.initializers
X = jnp.arange(3.0)


def linear(x, n=2, name="w"):
    return x @ param(name, INIT.normal(1.0), (x.shape[-1], n))


def net(x):
    with scope("first"):
        x = jnp.tanh(linear(x, 4))
    with scope("second"):
        return linear(x, 1)


def shapes(fun, *args):
    return jax.tree.map(jnp.shape, init(fun)(KEY, *args))


# ------------------------------------------------------------ init


def test_parameters_are_nested_by_scope():
    assert shapes(net, X) == {"first": {"w": (3, 4)}, "second": {"w": (4, 1)}}


def test_the_same_name_is_the_same_parameter():
    assert shapes(lambda x: linear(linear(x, 3), 3), X) == {"w": (3, 3)}


def test_a_module_called_twice_shares_its_parameters():
    layer = scope("layer")(lambda x: linear(x, 3))
    assert shapes(lambda x: layer(layer(x)), X) == {"layer": {"w": (3, 3)}}


def test_a_parameter_may_be_any_pytree():
    make = lambda key: {"w": jax.random.normal(key, (2,)), "b": (jnp.zeros(3), None)}
    assert shapes(lambda: param("p", make)["b"][0]) == {"p": {"w": (2,), "b": ((3,), None)}}


@pytest.mark.parametrize("value", [1.0, 2, True, None])
def test_a_parameter_may_be_a_number_or_nothing(value):
    params = init(lambda: param("p", lambda key: value))(KEY)
    assert params == {"p": value}


def test_another_parameter_does_not_change_the_first():
    one = init(lambda x: linear(x))(KEY, X)
    two = init(lambda x: linear(x, name="other") + linear(x))(KEY, X)
    assert_same(two["w"], one["w"])
    assert not jnp.allclose(two["other"], one["w"])


def test_a_slash_in_a_name_is_no_scope():
    both = lambda x: scope("a")(lambda: linear(x, name="b"))() + linear(x, name="a/b")
    params = init(both)(KEY, X)
    assert not jnp.allclose(params["a/b"], params["a"]["b"])


@pytest.mark.parametrize(
    "around",
    [
        jax.jit,
        jax.checkpoint,
        jax.vmap,
        lambda f: lambda x: lax.scan(lambda c, _: (c, f(c)), x, length=2)[1],
        lambda f: lambda x: lax.cond(jnp.sum(x) > 0, f, f, x),
        lambda f: lambda x: jax.grad(lambda x: jnp.sum(f(x)))(x),
    ],
)
def test_parameters_are_found_inside(around):
    x = X[None] if around is jax.vmap else X
    assert shapes(around(lambda x: linear(x)), x) == {"w": (3, 2)}
    params = {"w": jnp.ones((3, 2))}
    assert_same(apply(around(lambda x: linear(x)))(params, x), around(lambda x: x @ params["w"])(x))


def test_init_does_not_run_the_function():
    def unlucky(x):
        jax.debug.callback(lambda: pytest.fail("it ran"))
        return linear(x)

    init(unlucky)(KEY, X)


def test_init_works_under_jit_and_vmap_and_abstractly():
    assert_same(jax.jit(init(net))(KEY, X), init(net)(KEY, X))
    assert jax.eval_shape(init(net), KEY, X)["second"]["w"].shape == (4, 1)
    many = jax.vmap(init(net), (0, None))(jax.random.split(KEY, 5), X)
    assert many["first"]["w"].shape == (5, 3, 4)


def test_keys_drawn_in_the_function_do_not_matter_to_init():
    noisy = lambda x: linear(x) + jax.random.normal(next_key(), (2,))
    assert_same(init(noisy)(KEY, X), init(linear)(KEY, X))


# ------------------------------------------------------------ apply


def test_apply_is_the_function_of_its_parameters():
    params = init(net)(KEY, X)
    wanted = jnp.tanh(X @ params["first"]["w"]) @ params["second"]["w"]
    assert_same(apply(net)(params, X), wanted)
    assert_same(jax.jit(apply(net))(params, X), wanted)


def test_apply_has_the_gradient_of_the_function():
    params = init(net)(KEY, X)
    by_hand = lambda p: jnp.sum(jnp.tanh(X @ p["first"]["w"]) @ p["second"]["w"])
    assert_same(jax.grad(lambda p: jnp.sum(apply(net)(p, X)))(params), jax.grad(by_hand)(params))


def test_a_shared_parameter_has_the_sum_of_its_gradients():
    step = jax.checkpoint(lambda c, _: (jnp.sin(linear(c, 3)), None))
    twice = lambda x: lax.scan(step, x, length=2)[0]
    by_hand = lambda p: jnp.sum(jnp.sin(jnp.sin(X @ p["w"]) @ p["w"]))
    params = {"w": jnp.eye(3) * 2}
    assert_same(jax.grad(lambda p: jnp.sum(apply(twice)(p, X)))(params), jax.grad(by_hand)(params))


def test_parameters_are_the_same_in_every_lane_and_step():
    params = {"w": jnp.ones((3, 2))}
    assert apply(jax.vmap(linear))(params, jnp.ones((5, 3))).tolist() == [[3.0, 3.0]] * 5
    steps = lambda x: lax.while_loop(lambda c: jnp.sum(c) < 99, lambda c: linear(c, 3), x)
    assert apply(steps)({"w": 2 * jnp.eye(3)}, X).tolist() == [0.0, 64.0, 128.0]


def test_a_vmap_of_an_apply_maps_over_parameters():
    many = {"w": jnp.ones((5, 3, 2))}
    assert jax.vmap(apply(linear), (0, None))(many, X).shape == (5, 2)


def test_parameters_that_are_not_used_are_ignored():
    params = {"w": jnp.ones((3, 2)), "other": 1.0}
    assert apply(linear)(params, X).tolist() == [3.0, 3.0]
    assert jax.grad(lambda p: jnp.sum(apply(linear)(p, X)))(params)["other"] == 0.0


def test_any_mapping_will_do():
    assert apply(linear)(types.MappingProxyType({"w": jnp.ones((3, 2))}), X).shape == (2,)


def test_keys_and_parameters_go_through_each_other():
    noisy = lambda x: linear(x) + jax.random.normal(next_key(), (2,))
    params = init(noisy)(KEY, X)
    inside = seed(lambda x: apply(noisy)(params, x))(KEY, X)
    assert_same(inside, apply(seed(noisy))(params, KEY, X))


def test_tags_go_through_apply():
    program = lambda x: scope("s")(lambda: tag(linear(x), "h"))()
    params = {"s": {"w": jnp.ones((3, 2))}}
    assert reap(apply(program))(params, X)[1]["s"]["h"].tolist() == [3.0, 3.0]


def test_a_parameter_may_be_a_key():
    program = lambda: param("key", lambda key: key)
    key = jax.random.key(0)
    assert apply(program)({"key": key}) == key


# ------------------------------------------------------------ refusals


@pytest.mark.parametrize("program", [linear, jax.jit(linear), jax.vmap(lambda x: linear(x[None]))])
def test_without_parameters_the_line_is_named(program):
    text = (
        r"no parameters are around\n  at .*test_params\.py:\d+ in linear\n  hint: run the function"
    )
    with pytest.raises(UnhandledError, match=text):
        program(X)


@pytest.mark.parametrize(
    ("params", "text"),
    [
        ({}, r"there is no parameter 'w', of type float32\[3,2\]"),
        ({"w": None}, r"there is no parameter 'w', of type float32\[3,2\]"),
        (
            {"w": jnp.ones((3, 3))},
            r"'w' is given as float32\[3,3\], and float32\[3,2\] belongs here",
        ),
        ({"w": {"x": jnp.ones((3, 2))}}, r"'w' is given as {x: float32\[3,2\]}, and"),
        ({"w": jnp.ones((3, 2), complex)}, r"'w' is given as complex64\[3,2\], and"),
    ],
)
def test_a_parameter_that_does_not_fit_is_refused(params, text):
    with pytest.raises(TransformError, match=text + r".*\n  at .*test_params\.py:\d+ in linear"):
        apply(linear)(params, X)


def test_one_name_with_two_types_is_refused_with_both_lines():
    program = lambda x: linear(linear(x, 3), 2)
    with pytest.raises(TransformError, match=r"'w' is used with two types \(.*:\d+ .* and .*:\d+"):
        init(program)(KEY, X)


@pytest.mark.parametrize(
    "make",
    [lambda x: param("w", lambda key: x + 1), lambda x: param("w", lambda key, x: x, x)],
    ids=["closed over", "an argument"],
)
def test_an_initializer_may_not_use_what_is_traced(make):
    with pytest.raises(
        TransformError, match=r"'w' uses a value that is traced\n  at .*test_params"
    ):
        init(make)(KEY, X)


@pytest.mark.parametrize("params", [None, [1.0]])
def test_parameters_are_given_by_name(params):
    with pytest.raises(TypeError, match=r"values are given as a dict, not as (NoneType|list)"):
        apply(linear)(params, X)


def test_init_needs_a_single_key():
    with pytest.raises(TransformError, match="a single random key is needed, not 0"):
        init(linear)(0, X)


def test_a_parameter_in_what_a_solver_calls_is_told_to_be_read_before():
    lineax = pytest.importorskip("lineax")
    like, tags = jax.ShapeDtypeStruct((3,), jnp.float32), lineax.positive_semidefinite_tag
    read = lambda: param("w", jax.nn.initializers.constant(2.0), ())

    def solve(operator, b):
        return lineax.linear_solve(operator, b, lineax.CG(1e-5, 1e-5), throw=False).value

    def inside(b):
        return solve(lineax.FunctionLinearOperator(lambda v: read() * v, like, tags), b)

    def before(b):
        return solve(lineax.MatrixLinearOperator(read() * jnp.eye(3), tags), b)

    told = r"\n  hint: .*(read before|use its value inside)"
    with pytest.raises((TransformError, UnhandledError), match=told):
        apply(inside)({"w": 2.0}, jnp.ones(3))
    params = init(before)(KEY, jnp.ones(3))
    assert jnp.allclose(apply(before)(params, jnp.ones(3)), 0.5, atol=1e-4)
