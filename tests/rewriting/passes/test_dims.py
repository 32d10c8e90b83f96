"""Products keep their values when dims side by side are merged; what contracts two dims is gone."""

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from malleable import compat, merge_dims, optimize, push_up_reductions, stage
from tests.rules import assert_same


def products(jaxpr):
    """All products in a program, its bodies too."""
    here = [e for e in jaxpr.eqns if e.primitive.name == "dot_general"]
    return here + [e for eqn in jaxpr.eqns for b in compat.bodies(eqn.params) for e in products(b)]


def ranks(fun, *args):
    """The ranks of all operands of products."""
    return {len(v.aval.shape) for e in products(stage(fun)(*args).jaxpr) for v in e.invars}


def array(rng, *shape):
    return jnp.asarray(np.asarray(rng.standard_normal(shape), np.float32))


def random_product(draw: random.Random, rng):
    """A product of up to 8 dims a side, in any order, of sizes 0 to 3; its operands."""
    batch, inner = draw.randint(0, 2), draw.randint(0, 3)
    sizes = {(kind, i): draw.choice([0, 1, 2, 2, 3, 3]) for kind in "bc" for i in range(3)}
    order = draw.sample(range(inner), inner) if draw.random() < 0.3 else range(inner)
    numbers, operands = ([], []), []
    for _ in range(2):
        dims = [("b", i) for i in range(batch)] + [("c", i) for i in range(inner)]
        dims += [("f", i) for i in range(draw.randint(0, 3))]
        if draw.random() < 0.7:
            draw.shuffle(dims)
        operands.append(array(rng, *(sizes[d] if d in sizes else draw.randint(1, 3) for d in dims)))
        numbers[0].append([dims.index(("c", i)) for i in order])
        numbers[1].append([dims.index(("b", i)) for i in range(batch)])
    return lambda x, y: lax.dot_general(x, y, numbers), operands


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_any_product_is_the_same(first):
    """And so are its gradients; all of ten products are compiled at once."""
    total = lambda f: lambda *xs: jnp.sum(jnp.sin(f(*xs)))
    pairs = []
    for seed in range(first, first + 10):
        fun, operands = random_product(random.Random(seed), np.random.default_rng(seed))
        for f in (fun, jax.grad(total(fun), (0, 1))):
            once = merge_dims(stage(f)(*operands).jaxpr)
            assert merge_dims(once) is once
            pairs.append((optimize(f, merge_dims), f, operands))
    run = lambda args: [(one(*xs), other(*xs)) for (one, other, _), xs in zip(pairs, args)]
    for got, want in jax.jit(run)([xs for *_, xs in pairs]):
        assert_same(got, want)


def dense(x, w):
    return jnp.sum(jnp.tanh(x @ w) ** 2)


def test_a_gradient_contracts_one_dim_before_and_after():
    x, w = array(np.random.default_rng(0), 4, 5, 3), array(np.random.default_rng(1), 3, 2)
    plain = jax.grad(dense, (0, 1))
    assert ranks(plain, x, w) == {2, 3}
    for ours in (jax.grad(optimize(dense, merge_dims), (0, 1)), optimize(plain, merge_dims)):
        assert ranks(ours, x, w) == {2}
        assert_same(jax.jit(ours)(x, w), jax.jit(plain)(x, w), rtol=1e-5)


def test_bodies_and_vmap():
    rng = np.random.default_rng(0)
    xs, w = array(rng, 6, 4, 5, 3), array(rng, 3, 3)
    fun = lambda xs, w: lax.scan(lambda c, x: (jnp.tanh(c @ w + x), None), xs[0], xs)[0]
    ours = optimize(fun, merge_dims)
    assert ranks(ours, xs, w) == {2}
    both = jnp.stack([w, 2 * w])
    each = lambda f: jax.jit(lambda w, ws: (f(xs, w), jax.vmap(f, (None, 0))(xs, ws)))(w, both)
    assert_same(each(ours), each(fun), rtol=1e-6)


def test_what_it_leaves():
    """Dims of a batch, of what is contracted in another order, and those with others between."""
    rng = np.random.default_rng(0)
    x, y = array(rng, 2, 3, 4, 5), array(rng, 2, 3, 5, 4)
    for fun in (
        jnp.matmul,
        lambda x, y: jnp.einsum("abcd,abdc->ab", x, y),
        lambda x, y: jnp.einsum("abcd,ebdf->acef", x, y),
    ):
        program = stage(fun)(x, y).jaxpr
        assert merge_dims(program) is program


@pytest.mark.parametrize("dtype", ["int8", "bfloat16", "complex64"])
def test_other_types(dtype):
    x = jnp.arange(24).reshape(2, 3, 4).astype(dtype)
    wide = jnp.int32 if dtype == "int8" else None
    fun = lambda x: lax.dot_general(x, x[0], (((2,), (1,)), ((), ())), preferred_element_type=wide)
    assert_same(optimize(fun, merge_dims)(x), fun(x))


def test_what_is_placed_stays():
    mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(mesh):
        x = jax.device_put(jnp.ones((4, 5, 3)), NamedSharding(mesh, P("data")))
        reduced = jax.sharding.reshard(jnp.ones((3, 2)), P(None, None, reduced={"data"}))
        for a, b in ((x, jnp.ones((3, 2))), (jnp.ones((4, 5, 3)), reduced)):
            program = stage(jnp.matmul)(a, b).jaxpr
            assert merge_dims(program) is program


def test_a_product_whose_result_is_said_to_be_nowhere_in_parts_is_merged():
    mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(mesh):
        fun = lambda x, w: jnp.einsum("btd,de->bte", x, w, out_sharding=P(None, None, None))
        args = jnp.ones((3, 4, 5)), jnp.ones((5, 2))
        assert_same(optimize(fun, merge_dims)(*args), fun(*args))


@pytest.mark.parametrize("chunk", [1, 8])
def test_a_tail_that_was_pushed_has_products_of_matrices(chunk):
    rng = np.random.default_rng(0)
    xs, w = array(rng, 64, 4, 5, 3), array(rng, 3, 7)

    def loss(w, xs):
        _, ys = lax.scan(lambda c, x: (jnp.tanh(c + x),) * 2, xs[0], xs)
        return jax.nn.logsumexp(ys @ w, -1).mean()

    ours = optimize(loss, push_up_reductions(chunk=chunk, threshold=0))
    assert ranks(loss, w, xs) == {2, 4} and ranks(ours, w, xs) == {2}
    slopes = (jax.jit(jax.grad(f))(w, xs) for f in (ours, loss))
    assert_same(*slopes, rtol=1e-4)
