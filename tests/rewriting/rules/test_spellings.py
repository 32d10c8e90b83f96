"""A pattern that is written one way matches what computes the same in other words."""

import itertools

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from malleable import optimize, rewrite, rule, stage, why_not
from tests.rules import prims

X, LANES = jnp.arange(12.0).reshape(3, 4) + 1, jnp.ones((2, 3, 4))

ALIKE = {
    "a square": (
        X,
        [
            lambda x: jnp.log(x**2),
            lambda x: jnp.log(x * x),
            lambda x: jnp.log(jnp.square(x)),
            lambda x: jnp.log(jnp.power(x, 2)),
        ],
    ),
    "a norm": (
        X,
        [
            lambda x: jnp.sqrt(jnp.sum(x**2)),
            lambda x: jnp.sqrt((x * x).sum()),
            jnp.linalg.norm,
        ],
    ),
    "an axis kept": (
        X,
        [
            lambda x: x - x.max(-1, keepdims=True),
            lambda x: x - x.max(-1)[..., None],
            lambda x: x - jnp.expand_dims(x.max(1), 1),
            lambda x: x - x.max(-1).reshape(-1, 1),
        ],
    ),
    "a product": (
        X,
        [
            lambda x: jnp.exp(x @ x.T),
            lambda x: jnp.exp(jnp.einsum("ij,kj->ik", x, x)),
            lambda x: jnp.exp(jnp.inner(x, x)),
            lambda x: jnp.exp(lax.dot(x, x.T)),  # of no preferred type
        ],
    ),
    "a product of lanes": (
        LANES,
        [
            lambda x: jnp.exp(lax.batch_matmul(x, x.mT)),
            lambda x: jnp.exp(x @ x.mT),
            lambda x: jnp.exp(jnp.einsum("bij,bkj->bik", x, x)),
            lambda x: jnp.exp(jax.vmap(lambda a: a @ a.T)(x)),
        ],
    ),
}
PAIRS = [
    (name, i, j)
    for name, (_, ways) in ALIKE.items()
    for i, j in itertools.product(range(len(ways)), repeat=2)
]


@pytest.mark.parametrize(("name", "i", "j"), PAIRS)
def test_a_pattern_written_one_way_matches_another(name, i, j):
    arg, ways = ALIKE[name]
    inside = lambda x: jnp.sinh(jnp.arcsinh(jax.checkpoint(ways[i])(x)))  # entered by no rule
    there = rule(lambda x: ways[i](x), inside, name="there")
    assert why_not(there, ways[j])(arg).fires


@pytest.mark.parametrize(
    "name", ["x**2", "x * x", "jnp.square(x)", "x @ x.T", "x @ jnp.swapaxes(x, 0, 1)"]
)
def test_what_is_put_in_its_place_is_computed(name):
    log = rule(lambda x: jnp.log(x**2), lambda x: 2 * jnp.log(jnp.abs(x)), name="log")
    gram = rule(lambda x: jnp.exp(x @ x.T), lambda x: jnp.cos(x[:, :1] + x[:, 0]), name="gram")
    fun = eval(f"lambda x: jnp.{'exp' if '@' in name else 'log'}({name})", {"jnp": jnp})
    got, there = optimize(fun, rewrite(log, gram)), stage(fun)(X).jaxpr
    assert prims(rewrite(log, gram)(there).jaxpr) != prims(there.jaxpr)
    wanted = jnp.cos(X[:, :1] + X[:, 0]) if "@" in name else fun(X)
    assert jnp.allclose(got(X), wanted, atol=1e-5)


def test_a_rule_may_put_one_way_for_another():
    squares = rule(lambda x: x * x, jnp.square, name="squares")
    program = rewrite(squares)(stage(lambda x: x * x + x**2)(2.0).jaxpr)
    assert "mul" not in prims(program.jaxpr)


@pytest.mark.parametrize(
    "other",
    [lambda x: jnp.log(x**3), lambda x: jnp.log(x * jnp.cos(x)), lambda x: jnp.log(x.T * x.T)],
)
def test_what_is_no_square_of_it_does_not_match(other):
    there = rule(lambda x: jnp.log(x[0] ** 2), lambda x: jnp.log(x[0]), name="there")
    assert not why_not(there, other)(X).fires


@pytest.mark.parametrize("text", ["ij,jk->ik", "ij,ik->jk"])
def test_a_product_of_other_axes_does_not_match(text):
    there = rule(lambda x, y: jnp.exp(x @ y.T), lambda x, y: jnp.exp(-(x @ y.T)), name="there")
    a, b = jnp.ones((3, 3)), jnp.ones((3, 3)) * 2
    assert not why_not(there, lambda x, y: jnp.exp(jnp.einsum(text, x, y)))(a, b).fires
    assert why_not(there, lambda x, y: jnp.exp(jnp.einsum("ij,kj->ik", x, y)))(a, b).fires
