"""Sums that are products of sums are not streamed: XLA would get the gradient of a block wrong."""

import jax
import jax.numpy as jnp
import pytest

from malleable import listen, stage
from malleable.rewriting.passes.passes import optimize
from malleable.rewriting.streaming.stream import stream
from tests.rules import assert_same

X, Y = (0.1 + 0.9 * jnp.sin(jnp.arange(1.0 * n)) ** 2 for n in (70, 90))
WHY = "a derivative of it is one sum all along an axis: sum each factor first"

products = lambda x, y: x[:, None] * y[None]
everywhere = lambda x: jnp.broadcast_to(x[:, None], (70, 90))

SEPARABLE = {
    "product": lambda x, y: products(x, y).mean(),
    "the other way round": lambda x, y: (y[:, None] * x[None]).mean(),
    "affine": lambda x, y: (2 * products(x, y) - x[:, None]).sum() / 100,
    "one factor is curved": lambda x, y: (jnp.exp(x)[:, None] / y[None]).mean(),
    "spread out before": lambda x, y: (everywhere(x) * y).mean(),
    "flat": lambda x, y: products(x, y).reshape(-1).mean(),
    "a third axis": lambda x, y: (products(x, y)[:, :, None] * y[:5]).transpose(2, 0, 1).mean(),
    "weights that are known": lambda x, y: (x[:, None] * jnp.arange(90.0)).mean(),
}
OTHERS = {
    "rows": lambda x, y: jnp.sin(products(x, y).mean(1)).sum(),
    "columns": lambda x, y: jnp.sin(products(x, y).mean(0)).sum(),
    "a likelihood": lambda x, y: jnp.log1p((products(x, y) ** 2 + jnp.log(y)).mean(1)).sum(),
    "with weights": lambda x, y: (x * (jnp.exp(products(x, y)) - x[:, None] - y).mean(1)).sum(),
    "curved, and not": lambda x, y: (jnp.tanh(products(x, y)) + products(x, y)).mean(),
    "curved": lambda x, y: jnp.tanh(products(x, y)).mean(),
    "differences": lambda x, y: ((x[:, None] - y[None]) ** 2).mean(),
    "weights": lambda x, y: (products(x, y) * jnp.exp(products(x, y))).mean(),
    "sums": lambda x, y: (x[:, None] + y[None]).mean(),
    "by whether they are less": lambda x, y: jnp.where(x[:, None] < y, y, 0.0).mean(),
    "maximum": lambda x, y: products(x, y).max(1).sum(),
}


def reasons(fun):
    with listen() as notes:
        stream(stage(fun)(X, Y).jaxpr, threshold=0)
    return {note.why for note in notes}


@pytest.mark.parametrize("name", SEPARABLE)
def test_it_is_declined(name):
    assert WHY in reasons(SEPARABLE[name])


@pytest.mark.parametrize("name", OTHERS)
def test_others_are_not(name):
    assert WHY not in reasons(OTHERS[name])


@pytest.mark.in_turns
@pytest.mark.parametrize("name", {**SEPARABLE, **OTHERS})
@pytest.mark.parametrize("by", [0, 1])
def test_the_gradient_in_a_batch_is_the_same(name, by):
    fun = {**SEPARABLE, **OTHERS}[name]
    batches = jnp.stack([X, 0.7 * X]), jnp.stack([Y, 0.7 * Y])
    derive = lambda f: jax.jit(jax.vmap(jax.grad(lambda x, y: jnp.sin(f(x, y)), by)))
    assert_same(derive(optimize(fun, stream(threshold=0)))(*batches), derive(fun)(*batches), 1e-4)
