"""Staging traces a function once, and remembers its pytrees and whatever is not an array."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from malleable import TransformError, interpret, marker, optimize, stage
from tests.rules import prims, prims_deep

mark = marker("mark")


def test_the_program_has_the_equations_of_the_function():
    staged = stage(lambda x: jnp.sin(x) * jnp.cos(x))(1.0)
    assert prims(staged.jaxpr) == ["sin", "cos", "mul"]


def test_the_function_is_not_run():
    def unlucky(x):
        jax.debug.callback(lambda: pytest.fail("it ran"))
        return x

    stage(unlucky)(1.0)


def test_arguments_are_flat_and_in_the_order_of_jax():
    staged = stage(lambda a, *, b: a["y"] + b[0])({"z": 1.0, "y": 2.0}, b=[3.0])
    assert staged.args == [2.0, 1.0, 3.0]


def test_the_output_is_rebuilt_as_the_function_gave_it():
    staged = stage(lambda x: {"a": (x, [x + 1])})(1.0)
    assert staged.rebuild(["p", "q"]) == {"a": ("p", ["q"])}


@pytest.mark.parametrize("thing", ["fast", None, jnp.sin, object(), np.array(["a"]), slice(3)])
def test_what_is_no_array_stays_itself(thing):
    staged = stage(lambda x, thing: (thing, x))(1.0, thing)
    assert len(staged.args) == 1
    assert staged.rebuild([2.0])[0] is thing


@pytest.mark.parametrize("value", [1, 1.5, True, 2j, np.float32(1), np.arange(3), jnp.arange(3)])
def test_numbers_and_arrays_are_traced(value):
    staged = stage(lambda x: x)(value)
    (aval,) = staged.jaxpr.in_avals
    assert (aval.shape, aval.dtype) == (jnp.shape(value), jnp.result_type(value))


def test_a_typed_key_is_traced():
    staged = stage(jax.random.split)(jax.random.key(0))
    assert staged.jaxpr.in_avals[0].dtype == jax.random.key(0).dtype


def test_an_array_from_outside_is_an_output_too():
    staged = stage(lambda: (np.arange(2), 3.0, "how"))()
    assert len(staged.jaxpr.out_avals) == 2
    assert staged.rebuild([0, 1]) == (0, 1, "how")


def test_a_loop_stays_a_loop_where_jit_is_disabled():
    with jax.disable_jit():
        staged = stage(lambda x: lax.fori_loop(0, 3, lambda i, c: jnp.sin(c), x))(1.0)
    assert prims(staged.jaxpr) == ["scan"]


def test_a_marker_somebody_waits_for_is_in_the_program():
    assert prims(stage(mark, [mark])(1.0).jaxpr) == ["mark"]


def test_a_marker_nobody_waits_for_is_not():
    assert prims(stage(lambda x: mark(x) + 1)(1.0).jaxpr) == ["add"]


def test_nobody_waits_for_a_marker_after_the_staging():
    stage(mark, [mark])(1.0)
    assert not mark.active


def test_nobody_waits_for_a_marker_after_an_error():
    with pytest.raises(ZeroDivisionError):
        stage(lambda x: 1 // 0, [mark])(1.0)
    assert not mark.active


def test_markers_waited_for_outside_are_waited_for_inside():
    other = marker("other")
    inner = lambda x: stage(lambda x: mark(other(x)), [other])(x).jaxpr
    seen = []
    stage(lambda x: seen.append(prims(inner(x))), [mark])(1.0)
    assert seen == [["other", "mark"]]


@pytest.mark.caches
def test_a_jitted_function_traced_before_has_the_marker_that_is_waited_for():
    # the trace without the marker must not be found in the cache of jit
    jitted = jax.jit(lambda x: mark(x) + 1)
    jitted(1.0)
    assert prims_deep(stage(jitted, [mark])(1.0).jaxpr) == [("jit", [("mark",), ("add",)])]
    assert prims_deep(stage(jitted)(1.0).jaxpr) == [("jit", [("add",)])]


def test_static_arguments_of_a_jitted_function_stay_as_they_are():
    power = jax.jit(lambda x, n, up=True: x**n if up else x, static_argnums=1, static_argnames="up")
    for given in [((2.0, 3), {}), ((2.0, 3), {"up": False})]:
        staged = stage(power)(*given[0], **given[1])
        assert len(staged.args) == 1
        assert interpret(power, {})(*given[0], **given[1])[0] == power(*given[0], **given[1])


def test_static_arguments_may_be_counted_from_the_end():
    power = jax.jit(lambda x, n: x**n, static_argnums=-1)
    assert len(stage(power)(2.0, 3).args) == 1


@pytest.mark.parametrize(
    "wrap", [lambda f: interpret(f, {}), optimize], ids=["interpret", "optimize"]
)
def test_transformations_nested_too_deep_say_so(wrap):
    fun = jnp.sin
    for _ in range(100):
        fun = wrap(fun)
    with pytest.raises(TransformError, match="nested too deep"):
        fun(1.0)


def test_a_function_that_calls_itself_for_ever_is_the_users_own_error():
    def endless(x):
        return endless(x + 1)

    with pytest.raises(RecursionError):
        stage(endless)(1.0)
