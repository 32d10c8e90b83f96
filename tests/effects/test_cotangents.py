"""The gradient with respect to what is inside a function, in one backward pass."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from malleable import cotangents, scope, tag
from tests.rules import assert_same


def test_a_cotangent_is_the_gradient_of_what_follows():
    assert cotangents(lambda x: jnp.sin(tag(2 * x, "h")))(0.25) == (
        jnp.sin(0.5),
        {"h": jnp.cos(0.5)},
    )


def test_what_follows_includes_later_tags():
    assert cotangents(lambda x: 3 * tag(tag(2 * x, "u") ** 2, "v"))(0.5)[1] == {"u": 6.0, "v": 3.0}


def test_the_value_is_that_of_the_function():
    fun = lambda x: jnp.sum(tag(jnp.sin(x), "h") ** 2)
    xs = jnp.arange(3.0)
    assert_same(cotangents(fun)(xs)[0], fun(xs))


def test_each_step_of_a_scan_has_its_own():
    fun = lambda x: lax.scan(lambda c, t: (tag(c, "h") * t, None), x, jnp.arange(1.0, 5.0))[0]
    _, bars = cotangents(fun)(1.0)
    assert bars["h"].tolist() == [24.0, 24.0, 12.0, 4.0]


@pytest.mark.parametrize("mode", ["last", "sum"])
def test_a_folded_tag_has_the_sum_of_all(mode):
    fun = lambda x: 2 * tag(x, "h", mode=mode) + 5 * tag(3 * x, "h", mode=mode)
    assert cotangents(fun)(0.5)[1] == {"h": 7.0}


@pytest.mark.parametrize(("x", "bar"), [(1.0, 6.0), (-1.0, 0.0)])
def test_a_tag_in_a_branch_not_taken_has_none(x, bar):
    fun = lambda x: lax.cond(x > 0, lambda x: tag(3 * x, "h", mode="masked") ** 2, lambda x: x, x)
    assert cotangents(fun)(x)[1] == {"h": bar}


@pytest.mark.parametrize("around", [jax.jit, jax.checkpoint, lambda f: lambda x: jax.nn.relu(f(x))])
def test_it_goes_through_calls_and_derivative_rules(around):
    fun = lambda x: around(lambda x: tag(2 * x, "h") ** 2)(x)
    assert cotangents(fun)(1.0)[1] == {"h": 4.0}


def test_each_lane_has_its_own():
    xs = jnp.arange(3.0)
    inside = lambda x: jnp.sum(jax.vmap(lambda x: tag(2 * x, "h") ** 2)(x))
    assert cotangents(inside)(xs)[1]["h"].tolist() == (4 * xs).tolist()
    outside = jax.vmap(cotangents(lambda x: tag(2 * x, "h") ** 2))
    assert outside(xs)[1]["h"].tolist() == (4 * xs).tolist()


def test_it_may_be_jitted():
    fun = lambda x: tag(2 * x, "h") ** 2
    assert_same(jax.jit(cotangents(fun))(1.0), cotangents(fun)(1.0))


def test_pytrees_and_scopes_stay_as_they_are():
    fun = lambda x: scope("s")(lambda: sum(tag((x, 2 * x), "h")))()
    assert cotangents(fun)(1.0)[1] == {"s": {"h": (1.0, 1.0)}}


def test_kinds_do_not_see_each_other():
    fun = lambda x: tag(2 * x, "h", kind="q") ** 2
    assert cotangents(fun)(1.0)[1] == {}
    assert cotangents(fun, kind="q")(1.0)[1] == {"h": 4.0}


@pytest.mark.parametrize("value", [1, True, jax.random.key(0)])
def test_what_has_no_derivative_is_left_out(value):
    fun = lambda x: (tag(value, "n"), tag(x, "h") ** 2)[1]
    assert cotangents(fun)(3.0)[1] == {"h": 6.0}


def test_a_cotangent_has_the_type_of_its_value():
    fun = lambda x: tag(x.astype(jnp.bfloat16), "h").astype(jnp.float32) ** 2
    assert cotangents(fun)(jnp.float32(0.5))[1]["h"].dtype == jnp.bfloat16


def test_an_output_that_is_no_scalar_is_refused_by_jax():
    with pytest.raises(TypeError, match="scalar"):
        cotangents(lambda x: tag(x, "h"))(jnp.ones(3))
