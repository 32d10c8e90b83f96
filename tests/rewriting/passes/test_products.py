"""Chains of products are multiplied in the cheapest order, with the same result."""

import random
import string
from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from malleable import compat, listen, stage
from malleable.programs.evaluate import evaluate
from malleable.rewriting.passes.passes import optimize
from malleable.rewriting.passes.products import _cheapest, _cost, _nearly_cheapest, matmul_order
from tests.rules import assert_same, prims


def multiplications(jaxpr):
    """Of all products in a program."""
    count = 0
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "dot_general":
            (inner, _), _ = eqn.params["dimension_numbers"]
            shape = eqn.invars[0].aval.shape
            count += int(np.prod(eqn.outvars[0].aval.shape) * np.prod([shape[d] for d in inner]))
        count += sum(map(multiplications, compat.bodies(eqn.params)))
    return count


def arrays(*shapes):
    return [jax.random.normal(jax.random.key(i), s) for i, s in enumerate(shapes)]


A, B, C, D, V = (9, 8), (8, 7), (7, 2), (2, 3), (7,)
CASES = {
    "vector last": (lambda a, b, v: (a @ b) @ v, [A, B, V], 128),
    "vector first": (lambda v, b, a: v @ (b.T @ a.T), [V, B, A], 128),
    "best already": (lambda a, b, v: a @ (b @ v), [A, B, V], 128),
    "vectors at both ends": (lambda u, a, b, v: u @ ((a @ b) @ v), [(9,), A, B, V], 135),
    "four": (lambda a, b, c, d: ((a @ b) @ c) @ d, [A, B, C, D], 310),
    "transposed product": (lambda a, b, u: (a @ b).T @ u, [A, B, (9,)], 128),
    "twice transposed": (lambda a, b, u: u @ (b.T @ a.T).T, [A, B, (9,)], 128),
    "rows of any rank": (lambda x, a, b: (x @ a) @ b, [(5, 2, 8), B, (7, 1)], 136),
    "batch": (lambda q, k, v: (q @ k.mT) @ v, [(3, 9, 2)] * 3, 216),
    "linear attention": (
        lambda q, k, v: jnp.einsum("bqk,bkd->bqd", jnp.einsum("qbd,kbd->bqk", q, k), v),
        [(9, 3, 2), (9, 3, 2), (3, 9, 2)],
        216,
    ),
    "two dims contracted": (
        lambda a, b, c: jnp.tensordot(a, jnp.tensordot(b, c, ((0,), (1,))), ((2, 1), (1, 0))),
        [(4, 2, 3), (6, 2, 3), (5, 6)],
        264,
    ),
    "power": (lambda a, v: jax.jit(jnp.matmul)(a @ a.T, a) @ v, [(9, 9), (9,)], 243),
    "in a loop": (
        lambda a, xs: lax.scan(lambda c, x: ((a @ a.T) @ c, c[0]), xs[0], xs)[0],
        [(9, 9), (3, 9)],
        162,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_order_is_the_cheapest(name):
    fun, shapes, best = CASES[name]
    args = arrays(*shapes)
    program = stage(fun)(*args).jaxpr
    out = matmul_order(program)
    compat.check(out)
    assert out.out_avals == program.out_avals
    assert multiplications(out) == best
    assert matmul_order(out) is out
    assert (out is program) == (multiplications(program) == best)
    ours = optimize(fun, matmul_order)
    assert_same(ours(*args), fun(*args), rtol=1e-3)


def test_derivatives_and_lanes_are_right():
    fun = lambda a, b, v: (a @ b) @ v
    ours, args = optimize(fun, matmul_order), arrays(A, B, V)
    total = lambda f: jax.grad(lambda *args: jnp.sum(jnp.sin(f(*args))), (0, 1, 2))
    assert_same(total(ours)(*args), total(fun)(*args), rtol=1e-3)
    lanes = lambda f: jax.vmap(f, (None, 0, None))
    stack = [args[0], jnp.stack([args[1]] * 2), args[2]]
    assert_same(lanes(ours)(*stack), lanes(fun)(*stack), rtol=1e-3)


def test_a_product_that_is_used_elsewhere_is_a_factor():
    fun = lambda a, b, v: ((a @ b) @ v, jnp.sum(a @ b))
    program = stage(fun)(*arrays(A, B, V)).jaxpr
    assert matmul_order(program) is program


@pytest.mark.parametrize(
    "fun",
    [
        lambda a, b, v: jnp.matmul(a @ b, v, precision="highest"),
        lambda a, b, v: (a @ b).astype(jnp.float16) @ v.astype(jnp.float16),
        lambda a, b, v: (
            jnp.matmul(a.astype("bfloat16"), b.astype("bfloat16"), preferred_element_type=float) @ v
        ),
        lambda a, b, v: jnp.einsum("ij,k->ijk", a, v),
    ],
)
def test_products_of_other_dtypes_or_precision_are_no_chain(fun):
    program = stage(fun)(*arrays(A, B, V)).jaxpr
    assert matmul_order(program) is program


def test_integers_are_exact():
    args = [jnp.arange(np.prod(s), dtype=jnp.int32).reshape(s) for s in (A, B, V)]
    fun = lambda a, b, v: (a @ b) @ v
    assert bool(jnp.all(optimize(fun, matmul_order)(*args) == fun(*args)))


def test_new_products_name_the_line():
    for eqn in matmul_order(stage(lambda a, b, v: (a @ b) @ v)(*arrays(A, B, V)).jaxpr).eqns:
        assert "test_products.py" in compat.where(eqn)


def test_half_precision_which_may_overflow_in_another_order_stays():
    args = [x.astype(jnp.float16) for x in arrays(A, B, V)]
    program = stage(lambda a, b, v: (a @ b) @ v)(*args).jaxpr
    with listen() as heard:
        assert matmul_order(program) is program
    assert "float16 may overflow" in heard[0].why


def test_a_chain_of_a_thousand_products_is_no_trouble():
    def fun(a, v):
        for _ in range(1000):
            v = v @ a.T
        return v

    program = stage(fun)(*arrays((9, 9), (9,))).jaxpr
    assert matmul_order(program) is program
    program = stage(lambda a, v: fun(a, a) @ v)(*arrays((9, 9), (9,))).jaxpr
    out = matmul_order(program)
    assert multiplications(out) == 1001 * 81
    assert matmul_order(out) is out


@pytest.mark.parametrize("seed", range(20))
def test_long_chains_take_at_most_a_quarter_more_than_the_best_order(seed):
    pick = random.Random(seed)
    sizes = [pick.choice([1, 2, 7, 50, 300]) for _ in range(pick.randint(4, 25))]
    order = _nearly_cheapest(sizes)
    assert len(order) == len(sizes) - 2
    assert _cost(sizes, order) <= 1.25 * _cost(sizes, _cheapest(sizes))


def random_chain(seed):
    """A chain of contractions of shuffled dims, in a random order, and the shapes it takes."""
    pick, letters = random.Random(seed), iter(string.ascii_letters)
    size = {}

    def new(count):
        names = [next(letters) for _ in range(count)]
        size.update((name, pick.choice([1, 2, 3, 5])) for name in names)
        return names

    n = pick.randint(3, 5)
    batch, ends = new(pick.choice([0, 0, 1, 2])), [new(pick.randint(0, 2)) for _ in range(2)]
    groups = [ends[0], *(new(pick.choice([1, 1, 2])) for _ in range(n - 1)), ends[1]]
    dims = [pick.sample(d, len(d)) for d in (batch + a + b for a, b in pairwise(groups))]

    def fun(*xs):
        draw = random.Random(seed)
        left = [(x, d, groups[i], groups[i + 1]) for i, (x, d) in enumerate(zip(xs, dims))]
        while len(left) > 1:
            i = draw.randrange(len(left) - 1)
            (x, dx, rows, _), (y, dy, _, columns) = left[i : i + 2]
            out = draw.sample(every := batch + rows + columns, len(every))
            a, b, c = map("".join, (dx, dy, out))
            z = jnp.einsum(f"{a},{b}->{c}", x, y) if draw.random() < 0.5 else None
            z = jnp.einsum(f"{b},{a}->{c}", y, x) if z is None else z
            left[i : i + 2] = [(z, out, rows, columns)]
        return left[0][0]

    return fun, [tuple(size[name] for name in d) for d in dims]


@pytest.mark.in_turns
@pytest.mark.parametrize("seed", range(4))
def test_random_chains_cost_no_more_and_give_the_same(seed):
    for trial in range(6):
        fun, shapes = random_chain(6 * seed + trial)
        args = arrays(*shapes)
        program = stage(fun)(*args).jaxpr
        out = matmul_order(program)
        assert multiplications(out) <= multiplications(program)
        assert matmul_order(out) is out
        if out is not program and trial == 0:
            assert prims(out).count("dot_general") == len(shapes) - 1
            ours, plain = (jax.jit(partial(evaluate, p))(args)[0] for p in (out, program))
            np.testing.assert_allclose(ours, plain, rtol=1e-3, atol=1e-3)
