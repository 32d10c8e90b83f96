"""What depends on no argument is a constant of the program, if it is small and has no effect."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from malleable import compat, stage
from malleable.programs.evaluate import evaluate
from malleable.rewriting.passes.fold import fold
from malleable.rewriting.passes.passes import optimize
from tests.rules import assert_same, prims, prims_deep

WEIGHTS = jnp.arange(6.0).reshape(2, 3)


def folded(fun, *args, **options):
    program = stage(fun)(*args).jaxpr
    out = fold(**options)(program) if options else fold(program)
    compat.check(out)
    assert fold(out) is out or options
    assert out.out_avals == program.out_avals
    got = list(map(compat.as_array, evaluate(out, args)))
    assert_same(got, list(map(compat.as_array, jax.tree.leaves(fun(*args)))))
    return out


CASES = {
    "a sum of a range": (lambda x: x * jnp.sum(jnp.arange(10) ** 2), ["mul"]),
    "a number": (lambda x: x + jnp.exp(jnp.sin(2.0)), ["add"]),
    "a weak number": (lambda x: (x, jnp.exp(2.0) * 1)[1] * x, ["mul"]),
    "a product of arrays from outside": (lambda x: (WEIGHTS.T @ WEIGHTS) * x, ["mul"]),
    "a custom derivative": (lambda x: x * jax.nn.relu(jnp.arange(3.0) - 1), ["mul"]),
    "one number everywhere": (
        lambda x: x * (jnp.zeros(9) + jnp.cos(1.0)),
        ["broadcast_in_dim", "mul"],
    ),
    "a range stays": (lambda x: x * jnp.arange(9.0), ["iota", "mul"]),
    "half precision": (lambda x: x * jnp.full(3, 2.0, jnp.bfloat16).sum().astype(float), ["mul"]),
}


@pytest.mark.parametrize("name", CASES)
def test_constants_are_computed_once(name):
    fun, left = CASES[name]
    assert prims(folded(fun, np.float32(3))) == left


def test_a_constant_may_be_a_result():
    out = folded(lambda x: (x, jnp.arange(3.0) * 2, jnp.exp(2.0), jnp.arange(3) * 2.0), 1.0)
    assert prims(out) == []


def test_a_result_larger_than_the_limit_stays():
    fun = lambda x: x * jnp.sum(jnp.sin(jnp.arange(100.0)))
    assert "sin" in prims(folded(fun, 1.0, limit=100))
    assert prims(folded(fun, np.float32(1), limit=400)) == ["mul"]


def test_a_large_array_from_outside_may_give_a_small_constant():
    large = np.ones((400, 400), np.float32)
    assert prims(folded(lambda x: x * jnp.sum(large), np.float32(1))) == ["mul"]


def test_random_numbers_and_effects_and_loops_stay():
    key = jax.random.key(0)

    def fun(x):
        jax.debug.print("")
        y = lax.fori_loop(0, 3, lambda i, c: c * 2, jnp.float32(1))
        return x + jax.random.normal(key, ()) + y + lax.optimization_barrier(jnp.float32(2))

    left = str(prims_deep(fold(stage(fun)(1.0).jaxpr)))
    assert all(name in left for name in ("debug", "random_bits", "scan", "optimization_barrier"))


def test_a_value_being_traced_is_not_known():
    fun = lambda w: optimize(lambda x: x * (w + 1) * jnp.sum(w * jnp.ones(3)), fold)(2.0)
    assert float(jax.grad(fun)(3.0)) == 42.0
    assert_same(jax.vmap(fun)(jnp.arange(3.0)), jnp.array([0.0, 12.0, 36.0]))


BODIES = {
    "scan": lambda f: lambda x: lax.scan(lambda c, _: (c * f(), f()), x, None, length=3),
    "while": lambda f: lambda x: lax.while_loop(lambda c: c[0] < 3, lambda c: c * f() + 1, x),
    "cond": lambda f: lambda x: lax.cond(x[0] > 0, lambda: f(), lambda: x * f()),
    "checkpoint": lambda f: jax.checkpoint(lambda x: (x * f(), f())),
}


@pytest.mark.parametrize("name", BODIES)
def test_constants_in_a_body_are_folded_and_the_rest_of_jax_goes_on(name):
    fun = BODIES[name](lambda: jnp.cumsum(jnp.arange(3.0) + 1))
    x = jnp.ones(3)
    assert "cumsum" not in str(prims_deep(folded(fun, x)))
    ours = optimize(fun, fold)

    def everything(f, x):
        found = f(x), jax.vmap(f)(jnp.stack([x, x + 1]))
        if name == "while":
            return found
        return *found, jax.grad(lambda x: sum(map(jnp.sum, jax.tree.leaves(f(x)))))(x)

    assert_same(*(jax.jit(functools.partial(everything, f))(x) for f in (ours, fun)))


@pytest.mark.parametrize("index", [-5, 0, 1, 2, 9])
def test_of_a_switch_with_a_known_index_one_branch_is_left(index):
    branches = [jnp.sin, jnp.cos, lambda x: x * jnp.sum(jnp.arange(3.0))]
    left = prims(folded(lambda x: lax.switch(jnp.int32(index) * 1, branches, x), np.float32(1)))
    assert left == [["sin"], ["cos"], ["mul"]][min(max(index, 0), 2)]


def test_nothing_to_fold_is_the_same_program():
    program = stage(lambda x: jax.jit(jnp.sin)(x) * 2)(1.0).jaxpr
    assert fold(program) is program
