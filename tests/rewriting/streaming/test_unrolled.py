"""A short last dim: its reduction becomes terms, another reduction is done for each element."""

import jax
import jax.numpy as jnp
import pytest

from malleable import stage
from malleable.rewriting.graph.graph import Graph
from malleable.rewriting.machine import CPU
from malleable.rewriting.passes.passes import optimize
from malleable.rewriting.streaming.comparisons import compared
from malleable.rewriting.streaming.stream import stream
from malleable.rewriting.streaming.unrolled import unroll_reductions
from tests.rules import assert_same, prims

X, Y = jnp.sin(jnp.arange(18.0)).reshape(6, 3), jnp.cos(jnp.arange(21.0)).reshape(7, 3)

REDUCTIONS = {
    "sum": lambda d: (d**2).sum(-1),
    "maximum": lambda d: jnp.abs(d).max(-1),
    "minimum": lambda d: (d**2).min(-1),
    "floor": lambda d: jnp.floor(d).sum(-1),
    "round": lambda d: jnp.round(d).sum(-1),
}


def unrolled(jaxpr, least=64):
    graph = Graph.of(jaxpr)
    return graph.jaxpr() if unroll_reductions(graph, least, compared(graph)) else jaxpr


@pytest.mark.parametrize("name", REDUCTIONS)
def test_terms_give_what_the_reduction_gave(name):
    fun = lambda x, y: REDUCTIONS[name](x[:, None] - y[None])
    assert not any("reduce" in p for p in prims(unrolled(stage(fun)(X, Y).jaxpr)))
    assert bool((jax.jit(optimize(fun, unrolled))(X, Y) == jax.jit(fun)(X, Y)).all())


@pytest.mark.parametrize("name", REDUCTIONS)
def test_the_gradient_is_the_same_where_terms_are_equal(name):
    x, y = jnp.round(2 * X), jnp.round(2 * Y)
    total = lambda x, y: jnp.sin(REDUCTIONS[name](x[:, None] - y[None])).sum()
    assert_same(jax.jit(jax.grad(optimize(total, unrolled)))(x, y), jax.jit(jax.grad(total))(x, y))


@pytest.mark.parametrize(
    "fun",
    [
        lambda x, y: jnp.repeat(x, CPU.terms, 1)[:, None].sum(-1) + y[:, 0],
        lambda x, y: jnp.sort(x[:, None] - y[None], -1).sum(-1),
        lambda x, y: (x[:, None] - y[None]).astype(jnp.float16).max(-1),
        lambda x, y: (x**2).sum(-1)[:, None] + y[:, 0],
    ],
    ids=["many elements", "nothing spread out", "half precision", "norms"],
)
def test_other_reductions_stay(fun):
    before = stage(fun)(X, Y).jaxpr
    assert any("reduce" in p for p in prims(unrolled(before)))


@pytest.mark.parametrize(("count", "terms"), [(16, 16), (17, 1)])
def test_many_coordinates_are_reduced_together(count, terms):
    x, y = jnp.ones((6, count)), jnp.ones((7, count))
    fun = lambda x, y: jnp.tanh(x[:, None] - y[None]).sum(1)
    assert prims(unrolled(stage(fun)(x, y).jaxpr)).count("reduce_sum") == terms


def test_terms_made_of_many_terms_stay():
    """A mixture of 32 normal distributions in 8 dimensions would be some 800 equations."""
    x, y = jnp.ones((50, 8)), jnp.ones((CPU.terms, 8))
    fun = lambda x, y: jax.nn.logsumexp(-((x[:, None] - y) ** 2).sum(-1), 1)
    program = unrolled(stage(fun)(x, y).jaxpr)
    assert [name for name in prims(program) if "reduce" in name] == ["reduce_max", "reduce_sum"]


@pytest.mark.parametrize("name", ["sum", "max", "min"])
def test_what_is_left_of_each_coordinate_is_reduced_by_itself(name):
    fun = lambda x, y: getattr(jnp.tanh(x[:, None] - y[None]), name)(1)
    program = unrolled(stage(fun)(X, Y).jaxpr)
    assert prims(program).count(f"reduce_{name}") == 3
    assert all(v.aval.size <= 6 * 7 for eqn in program.eqns for v in eqn.outvars)
    assert bool((jax.jit(optimize(fun, unrolled))(X, Y) == jax.jit(fun)(X, Y)).all())


@pytest.mark.parametrize("name", ["sum", "max", "min"])
def test_a_number_for_each_coordinate_is_no_reduction_of_its_own(name):
    """XLA reduces 200,000 rows to seven numbers as vectors, and to a number as a scalar."""
    fun = lambda x, y: getattr(jnp.tanh(x[:, None] - y), name)(0)
    before = stage(fun)(X[:, 0], Y[:, 0]).jaxpr
    assert unrolled(before) is before


def test_forces_of_three_coordinates_have_the_same_gradient():
    def forces(x, y):
        d = x[:, None] - y[None]
        return (d / (1 + (d**2).sum(-1, keepdims=True))).sum(1)

    total = lambda x, y: jnp.sin(forces(x, y)).sum()
    passes = [unrolled, stream(threshold=64, block=4)]
    got, want = (jax.jit(jax.grad(f, (0, 1)))(X, Y) for f in (optimize(total, *passes), total))
    assert_same(got, want)


def test_sums_that_are_compared_with_the_least_of_them_stay():
    """The gradient of a minimum: what XLA works out twice may be equal to no minimum."""
    x, y = jnp.sin(jnp.arange(180.0)).reshape(3, 20, 3), jnp.cos(jnp.arange(45.0)).reshape(3, 5, 3)
    near = lambda x, y: ((x[:, None] - y) ** 2).sum(-1).min(1).sum()
    grads = jax.vmap(jax.grad(near))
    for fun, stays in ((grads, True), (jax.vmap(near), False)):
        program = unrolled(stage(fun)(x, y).jaxpr)
        sums = [e.outvars[0].aval.shape for e in program.eqns if e.primitive.name == "reduce_sum"]
        assert ((3, 20, 5) in sums) == stays
    assert_same(jax.jit(optimize(grads, stream(threshold=0, block=2)))(x, y), grads(x, y))


def test_small_values_stay():
    before = stage(lambda x, y: (x[:, None] - y[None]).sum(-1))(X, Y).jaxpr
    assert unrolled(before, least=1 << 20) is before
