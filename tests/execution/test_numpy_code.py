"""NumPy evaluation of a program equals XLA's, in values, types and shapes, at any size."""

import jax
import jax.numpy as jnp
import jax.scipy as jsp
import numpy as np
import pytest
from jax import export, lax, nn

from malleable.execution.breaks import Unsupported
from malleable.execution.numpy_code import numpy_function


def assert_same(fun, *args):
    closed = jax.make_jaxpr(fun)(*args)
    run = numpy_function(closed)
    outs, due = run(*args), jax.tree.leaves(jax.jit(fun)(*args))
    assert len(outs) == len(due)
    for out, like in zip(outs, map(np.asarray, due)):
        assert isinstance(out, np.ndarray | np.generic)
        assert (out.dtype, out.shape) == (like.dtype, like.shape), run.source
        if like.dtype.kind in "iub":
            np.testing.assert_array_equal(out, like)
        else:
            wide = "c16" if like.dtype.kind == "c" else "f8"
            near = 2e-2 if like.dtype.itemsize == 2 else 1e-4
            np.testing.assert_allclose(out.astype(wide), like.astype(wide), near, near)
    return run


X = np.random.default_rng(0).normal(size=(4, 3)).astype("f")
EDGES = np.array([0, np.inf, -np.inf, np.nan, 1, -1, 0.5, -0.5, 2.5, 3e9, -3e9], "f")
I = np.array([1, -2, 9], "i")  # noqa: E741
INTS = np.array([-7, 0, 5, 2**31 - 1, -(2**31), 3, -1, 0], "i")

ELEMENTWISE = {
    "chain": lambda x: jnp.tanh(x * 2 + 1) ** 2 - jnp.exp(-x) / 3,
    "logistic": lambda x: (nn.sigmoid(x), nn.relu(x), nn.gelu(x), nn.softplus(x)),
    "rounding": lambda x: (jnp.round(x), jnp.floor(x), jnp.ceil(x), lax.round(x), jnp.sign(x)),
    "conversions": lambda x: (x.astype(int), x.astype("int8"), x.astype("uint8"), x.astype(bool)),
    "powers": lambda x: (x**2, x**3, x**5, x**-1, x**-2, jnp.abs(x) ** 0.3),
    "select": lambda x: (jnp.where(x > 0, x, 0), jnp.clip(x, -1, 1), jnp.maximum(x, 0)),
    "special": lambda x: (jsp.special.erf(x), jsp.special.gammaln(x), jsp.special.digamma(x)),
    "narrow": lambda x: (x.astype(jnp.bfloat16) * 2 + 1, jnp.exp(x.astype("float16"))),
    "complex": lambda x: (jnp.exp(1j * x), jnp.abs(x + 2j), (x + 1j) / (x - 2j)),
    "remainders": lambda x: (x % 3, jnp.fmod(x, 2), x // 2),
}


@pytest.mark.parametrize("name", ELEMENTWISE)
@pytest.mark.parametrize("x", [X, EDGES, np.float32(0.3), X[:0]], ids=["array", "edges", "0d", "0"])
def test_elementwise_functions(name, x):
    assert_same(ELEMENTWISE[name], x)


def test_integers_divide_and_shift_as_in_xla():
    y = np.array([2, 0, -3, 2, -1, 40, -5, 0], "i")
    assert_same(lambda x, y: (lax.div(x, y), lax.rem(x, y), x // y, x % y), INTS, y)
    shifts = lax.shift_left, lax.shift_right_logical, lax.shift_right_arithmetic
    assert_same(lambda x, y: [s(x, y) for s in shifts], INTS, y)
    assert_same(lambda x: (lax.clz(x), lax.population_count(x), -x, abs(x), ~x, x * x), INTS)
    assert_same(lambda x: (x.astype("uint8") - 1, x.astype("uint32") >> 3), INTS)


SHAPES = {
    "axes": lambda x: (x.T, x[:, None] * x[None], jnp.moveaxis(x, 0, 1), x[None].squeeze(0)),
    "joined": lambda x: (jnp.concatenate([x, x + 1], 1), jnp.stack([x, x]), jnp.tile(x, (2, 2))),
    "cut": lambda x: (x[1:3], x[::-1], x[:, ::2], x[-1], jnp.split(x, 2), jnp.roll(x, 1, 0)),
    "padded": lambda x: (jnp.pad(x, 2), lax.pad(x, 5.0, ((-1, -1, 1), (2, 1, 2)))),
    "made": lambda x: (jnp.eye(3), jnp.arange(4), jnp.zeros((2, 2)), jnp.linspace(0, 1, 5), 3.0),
    "sums": lambda x: (x.sum(), x.mean(0), x.std(1), x.max(), x.min(1), jnp.prod(x, 0)),
    "tests": lambda x: (jnp.any(x > 1), jnp.all(x > -9, 0), jnp.argmax(x, 0), jnp.argmin(x)),
    "running": lambda x: (jnp.cumsum(x, 0), jnp.cumprod(x, 1), lax.cummax(x, 1, reverse=True)),
    "ordered": lambda x: (jnp.sort(x, 0), jnp.argsort(x), lax.top_k(x, 2), jnp.median(x)),
    "products": lambda x: (x @ x.T, x @ x[0], x[:, 0] @ x, jnp.outer(x[0], x[1]), jnp.vdot(x, x)),
    "stacks": lambda x: (jnp.stack([x, x]) @ x.T, jnp.einsum("ij,kj,kl->il", x, x, x)),
    "windows": lambda x: (
        lax.reduce_window(x, -jnp.inf, lax.max, (2, 2), (1, 2), "SAME"),
        jnp.convolve(x[:, 0], x[0]),
    ),
    "fft": lambda x: (jnp.fft.fft(x), jnp.fft.irfft(jnp.fft.rfft(x)), jnp.fft.fft2(x)),
    "softmax": lambda x: (nn.softmax(x), nn.logsumexp(x, 0), nn.standardize(x)),
    "searches": lambda x: (
        jnp.searchsorted(jnp.sort(x[:, 0]), x),
        jnp.interp(x, jnp.array([-1.0, 0, 1]), jnp.array([1.0, 5, 2])),
    ),
}


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_and_reductions(name):
    assert_same(SHAPES[name], X)


INDEXING = {
    "rows": lambda x, i: (x[i], x[:, i], x[i, i], x[i[:, None], i], x[i, 1:], x[i[0]], x[1, i[1]]),
    "modes": lambda x, i: [x.at[i].get(mode=m) for m in ("clip", "fill", "drop")],
    "filled": lambda x, i: (x.at[i, i].get(mode="fill", fill_value=7), jnp.take(x, i, axis=1)),
    "along": lambda x, i: jnp.take_along_axis(x, jnp.argsort(x, 1), 1),
    "set": lambda x, i: (x.at[1].set(5), x.at[1:3, ::2].set(x[:2, :2]), x.at[i[:2]].set(5)),
    "combined": lambda x, i: (x.at[i].add(x[:3]), x.at[i].max(0), x.at[:, i].multiply(2)),
    "dropped": lambda x, i: (x.at[i[2]].add(1), x.at[i].min(0), x.at[i].add(1, mode="clip")),
    "segments": lambda x, i: jax.ops.segment_sum(x[:3], jnp.abs(i), num_segments=3),
    "blocks": lambda x, i: (
        lax.dynamic_slice(x, (i[0], i[2]), (2, 2)),
        lax.dynamic_update_slice(x, x[:2, :2], (i[2], i[0])),
    ),
    "mapped": lambda x, i: (
        jax.vmap(lambda a, k: lax.dynamic_slice(a, (k,), (2,)))(x[:3], i),
        jax.vmap(lambda a, k: a.at[k].add(1))(x[:3], i),
        jax.vmap(lambda a: a[i])(x),
    ),
}


@pytest.mark.parametrize("name", INDEXING)
def test_indexing_out_of_range_included(name):
    assert_same(INDEXING[name], X, I)


CONTROL = {
    "cond": lambda x: lax.cond(x.sum() > 0, lambda x: x + 1, lambda x: x * 2, x),
    "switch": lambda x: lax.switch(jnp.int32(9), [jnp.sin, jnp.cos, jnp.tan], x),
    "while": lambda x: lax.while_loop(lambda c: c.sum() < 50, lambda c: abs(c) * 1.5, x),
    "stack of whiles": lambda x: jax.vmap(
        lambda r: lax.while_loop(lambda c: c.sum() < 50, lambda c: abs(c) * 1.5 + 0.1, r)
    )(x),
    "scan": lambda x: lax.scan(lambda c, y: ((c[1], c[0] + y), c[0]), (x[0], x[1]), x),
    "backwards": lambda x: lax.scan(lambda c, y: (c + y, c * y), x[0], x, reverse=True),
    "fori": lambda x: lax.fori_loop(0, 5, lambda i, c: c * 1.1 + i, x),
}


@pytest.mark.parametrize("name", CONTROL)
def test_control_flow_is_pythons(name):
    assert_same(CONTROL[name], X)


DERIVATIVES = {
    "grad": jax.grad(lambda x: jnp.tanh(x @ x.T).sum()),
    "jacfwd": jax.jacfwd(lambda x: nn.softmax(x[0])),
    "hessian": jax.hessian(lambda x: jnp.prod(jnp.sin(x[0]) + 2)),
    "of sort": jax.grad(lambda x: (jnp.sort(x) ** 3).sum()),
    "of scan": jax.grad(lambda x: lax.scan(lambda c, y: (jnp.sin(c) + y, c), x[0], x)[1].sum()),
    "of custom rules": jax.grad(lambda x: (nn.relu(x) + nn.silu(x)).sum()),
    "of checkpoint": jax.grad(lambda x: jax.checkpoint(lambda y: jnp.sin(jnp.sin(y)))(x).sum()),
}


@pytest.mark.parametrize("name", DERIVATIVES)
def test_derivatives(name):
    assert_same(DERIVATIVES[name], X)


SQUARE = X.T @ X + np.eye(3, dtype="f")
MATRICES = {
    "solve": lambda a: (jnp.linalg.solve(a, a[:2].T), jnp.linalg.inv(a), jnp.linalg.slogdet(a)),
    "cholesky": lambda a: (jnp.linalg.cholesky(a), jnp.linalg.cholesky(-a)),
    "eigh": lambda a: jnp.linalg.eigvalsh(jnp.stack([a, 2 * a])),
    "svd": lambda a: jnp.linalg.svd(a[:2], full_matrices=False),
    "qr": lambda a: (jnp.linalg.qr(a), jnp.linalg.qr(a[:2], mode="complete")),
    "triangular": lambda a: jsp.linalg.solve_triangular(a, a, trans=1, lower=True),
}


@pytest.mark.parametrize("name", MATRICES)
def test_linear_algebra(name):
    assert_same(MATRICES[name], SQUARE)


RANDOM = {
    "draws": lambda k: (jax.random.uniform(k, (3, 2)), jax.random.normal(k, (3,))),
    "integers": lambda k: (jax.random.randint(k, (3,), 0, 5), jax.random.permutation(k, 7)),
    "keys": lambda k: jax.random.key_data(jax.random.split(jax.random.wrap_key_data(k), 3)[1:]),
    "mapped": lambda k: jax.vmap(lambda q: jax.random.normal(q, (2,)))(jax.random.split(k, 3)),
    "folded": lambda k: jax.random.bits(jax.random.fold_in(k, 7), (3,), "uint8"),
}


@pytest.mark.parametrize("name", RANDOM)
def test_random_numbers_are_the_same(name):
    assert_same(RANDOM[name], np.array([3, 4], "u4"))


SYMBOLIC = {
    "mean": lambda x: x.sum(0) / x.shape[0],
    "reverse": lambda x: x[::-1],
    "flat": lambda x: x.reshape(-1) * 2,
    "joined": lambda x: jnp.concatenate([x, x], 0),
    "differences": lambda x: x[1:] - x[:-1],
    "counted": lambda x: jnp.arange(x.shape[0]) + jnp.zeros((2, x.shape[0])),
    "product": lambda x: x @ x.T,
    "sorted": lambda x: x[jnp.argsort(x[:, 0])],
    "quantile": lambda x: jnp.quantile(x, 0.3, axis=0),
    "identity": lambda x: jnp.eye(x.shape[0]),
    "scan": lambda x: lax.scan(lambda c, y: (c + y, c * y), x[0], x),
    "grad": jax.grad(lambda x: jnp.tanh(x @ x.T).sum()),
    "softmax": lambda x: nn.softmax(x, 0),
}


@pytest.mark.parametrize("name", SYMBOLIC)
def test_one_function_for_every_size(name):
    n, m = export.symbolic_shape("n, m")
    run = numpy_function(jax.make_jaxpr(SYMBOLIC[name])(jax.ShapeDtypeStruct((n, m), "float32")))
    for shape in ((4, 3), (2, 5), (1, 1)):
        x = np.ones(shape, "f") * np.arange(shape[0], dtype="f")[:, None]
        for out, due in zip(run(x), jax.tree.leaves(SYMBOLIC[name](x))):
            assert (out.dtype, out.shape) == (due.dtype, due.shape)
            np.testing.assert_allclose(out, due, 1e-5, 1e-5)


def test_the_code_reads_as_one_would_write_it():
    run = assert_same(lambda x: ((x - x.mean(0)) ** 2).sum(1), X)
    assert "np.add.reduce(np.square(a - " in run.source
    assert "broadcast_to" not in run.source


def test_keys_go_in_and_out_as_keys():
    key = jax.random.key(0)
    run = numpy_function(jax.make_jaxpr(lambda k: jax.random.split(k, 2))(key))
    (out,) = run(key)
    assert jnp.array_equal(jax.random.key_data(out), jax.random.key_data(jax.random.split(key)))


def test_what_runs_elsewhere_is_refused():
    def called_back(x):
        return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    with pytest.raises(Unsupported, match="pure_callback"):
        numpy_function(jax.make_jaxpr(called_back)(X))
    with pytest.raises(Unsupported, match="side effect"):
        numpy_function(jax.make_jaxpr(lambda x: jax.debug.print("{}", x))(X))
