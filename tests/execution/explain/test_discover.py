"""Discovery: one run says what was asked for, where, and whose fault it is."""

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

from malleable.execution.explain.discover import discover

X = jnp.array([3.0, -1.0, 2.0, 5.0])


def kinds(fun, *args):
    return [(d.kind, d.by) for d in discover(fun)(*args).demands]


@pytest.mark.parametrize(
    "fun, found",
    [
        (lambda x: x * 2 if x.sum() > 0 else x, [("bool", "")]),
        (lambda x: x * float(x[0]), [("float", "")]),
        (lambda x: x * int(x[0]), [("int", "")]),
        (lambda x: x[x > 0], [("boolean mask", "")]),
        (lambda x: jnp.nonzero(x), [("static value", "nonzero")]),
        (lambda x: np.asarray(x), [("array", "")]),
        (
            lambda x: f"{x[0]:.1f} {x.sum().item()} {x.tolist()}",
            [("text", ""), ("item", ""), ("list", "")],
        ),
        (lambda x: x[: x.argmin()], [("slice bound", "")]),
        (lambda x: lax.top_k(x, x.argmin()), [("size", "top_k")]),
        (lambda x: lax.fori_loop(0, x.argmin(), lambda i, y: y, x), [("trip count", "fori_loop")]),
        (lambda x: jnp.sort(x) @ x, []),
        (lambda x: x[0] ** 2, []),  # JAX asks whether it knows the value, but needs it not
    ],
)
def test_each_kind_of_demand_is_named(fun, found):
    got = kinds(fun, X)
    assert sorted(got) == sorted(found)


def test_the_result_is_that_of_the_function():
    fun = lambda x: jax.grad(lambda y: (y[y > 0] ** 2).sum())(x)
    assert jnp.array_equal(discover(fun)(X).out, fun(X))


def test_a_demand_names_line_value_and_arguments():
    def scaled(params, x, n=1):
        unrelated = x * n
        return params["w"] * 2 if (params["w"] * 3).sum() > 0 else unrelated

    seen = discover(scaled)({"w": X, "b": X}, X)
    (demand,) = seen.demands
    assert demand.inputs == ("params['w']",)
    assert demand.where.endswith("scaled") and "test_discover.py" in demand.where
    assert bool(demand.value) and demand.aval.shape == ()
    assert list(seen.inputs) == ["params['b']", "params['w']", "x"]


def test_dependence_goes_through_calls_loops_and_custom_rules():
    @jax.custom_jvp
    def rule(a, b):
        return a * b

    rule.defjvp(lambda p, t: (rule(*p), t[0]))

    def fun(a, b, c):
        looped = lax.fori_loop(0, 3, lambda i, s: s + b, a)
        return int(rule(jax.jit(jnp.add)(looped, 1.0), 2.0)) + c

    (demand,) = discover(fun)(1.0, 2.0, 3.0).demands
    assert demand.inputs == ("a", "b")


def test_what_went_through_python_is_blamed_on_what_was_asked_before():
    def fun(x, y):
        total = jnp.asarray(np.cumsum(np.asarray(x)))
        return y if total[0] > 0 else -y

    assert [d.inputs for d in discover(fun)(X, X).demands] == [("x",), ("x",)]


@pytest.mark.parametrize(
    "fun, static",
    [
        (lambda x, n, k: jnp.zeros(n), ("n",)),
        (lambda x, n, k: jnp.arange(2 * n)[:k], ("n", "k")),
        (lambda x, n, k: x.sum(n) * k, ("n",)),
        (lambda x, n, k: [x * i for i in range(k)], ("k",)),
        (lambda x, n, k: jnp.eye(k) * n, ("k",)),
        (lambda x, n, k: x[x > 0] * n * k, ()),
    ],
)
def test_arguments_that_reach_shapes_only_may_be_static(fun, static):
    seen = discover(fun)(X, 0, 2)
    assert seen.static == static
    assert bool(seen.breaks) == (not static)


def test_a_random_key_is_never_static():
    seen = discover(lambda k: 1 if jax.random.uniform(k) > 0.5 else 2)(jax.random.PRNGKey(0))
    assert seen.static == () and len(seen.breaks) == 1


def test_operations_are_counted_at_any_depth():
    twice = jax.jit(lambda y: lax.sin(lax.sin(y)))
    assert discover(lambda x: lax.neg(twice(x)))(1.0).ops == 3


def test_asking_twice_at_a_line_is_one_demand():
    assert len(kinds(lambda x: [x * 2 for _ in range(3) if x.sum() > 0], X)) == 3  # three sums
    assert len(kinds(lambda n: [1 for _ in range(3) if n > 0 and int(n)], jnp.array(3))) == 4


def test_an_exception_goes_through():
    with pytest.raises(ZeroDivisionError):
        discover(lambda x: 1 / 0)(X)
