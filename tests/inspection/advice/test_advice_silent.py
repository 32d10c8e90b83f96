"""What JAX does without a word, and `explain()` says: a change is lost, a gradient is 0."""

import warnings

import jax
import pytest
from jax import lax
from jax import numpy as jnp

from malleable.errors import AdviceWarning, explain


def heard(run):
    with warnings.catch_warnings(record=True) as said, explain():
        warnings.simplefilter("always")
        run()
    return [str(w.message) for w in said if w.category is AdviceWarning]


def counted(d, x):
    d["n"] = d["n"] + x
    return x * 2


def counted_and_returned(d, x):
    d["n"] = d["n"] + x
    return d


def test_what_a_jitted_function_changes_in_its_arguments_is_lost():
    (text,) = heard(lambda: jax.jit(counted)({"n": 0.0}, 1.0))
    assert "counted changes `d['n']` in place" in text and "jax.jit(counted)" in text
    assert "perhaps return the new value" in text


def test_nothing_is_lost_of_what_is_returned_or_put_into_a_new_dict():
    copied = jax.jit(lambda d, x: counted(dict(d), x))
    assert not heard(lambda: jax.jit(counted_and_returned)({"n": 0.0}, 1.0))
    assert not heard(lambda: copied({"n": 0.0}, 1.0))


def test_jit_of_flax_carries_out_what_that_of_jax_loses():
    nnx = pytest.importorskip("flax.nnx")
    model, x = nnx.BatchNorm(3, rngs=nnx.Rngs(0)), jnp.ones((2, 3))
    run = lambda model, x: model(x)
    (text,) = heard(lambda: jax.jit(run)(model, x))
    assert "`model.mean` and `model.var`" in text and "write nnx.jit" in text
    assert not heard(lambda: nnx.jit(run)(model, x))
    assert not heard(lambda: jax.jit(lambda m, x: m(x))(nnx.Linear(3, 1, rngs=nnx.Rngs(0)), x))


def accuracy(w, x):
    guess = jax.nn.one_hot(jnp.argmax(x @ w, -1), 3)
    return jnp.mean((guess - 1) ** 2)


@pytest.mark.parametrize("make", [jax.grad, lambda f: jax.jit(jax.grad(f))], ids=["eager", "jit"])
def test_a_gradient_that_is_0_for_all_values_is_told_at_the_step(make):
    (text,) = heard(lambda: make(accuracy)(jnp.ones((4, 3)), jnp.ones((5, 4))))
    assert "the gradient of accuracy is 0 for all values: `jnp.argmax(x @ w, -1)`" in text
    assert "guess = jax.nn.one_hot" in text and "it is differentiated at" in text


def straight(x):
    return jnp.sum(x + lax.stop_gradient(jnp.round(x) - x)) ** 2


def test_a_gradient_that_is_0_at_one_point_only_is_not_told():
    assert not heard(lambda: jax.grad(lambda x: jnp.sum(x * 0.0))(jnp.ones(3)))
    assert not heard(lambda: jax.grad(straight)(jnp.ones(3)))
