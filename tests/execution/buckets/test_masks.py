"""A region in buckets gives what it gives at the exact size, or says that it cannot."""

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

from malleable.execution.buckets.masks import bucketed, run_region
from malleable.execution.common.breaks import Unsupported
from malleable.execution.common.sizes import trace_symbolic
from tests.execution.symbolic_programs import program

segment_sum = jax.ops.segment_sum


def arguments(shapes, sizes, seed=0):
    """Arrays of shapes such as "n3" (floats) and "n:i" (integers, some out of range)."""
    rng = np.random.default_rng(seed)
    for text in shapes.split():
        letters, _, kind = text.partition(":")
        shape = [sizes.get(c) or int(c) for c in letters]
        if kind == "i":
            yield rng.integers(-12, 40, shape).astype(np.int32)
        else:
            yield rng.normal(size=shape).astype(np.float32)


def region(fun, shapes, **options):
    letters = [text.partition(":")[0] for text in shapes.split()]
    dynamic = {(i, k): c for i, s in enumerate(letters) for k, c in enumerate(s) if c.isalpha()}
    args = arguments(shapes, {"n": 5, "m": 6})
    avals = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in args]
    flat = lambda *xs: jax.tree.leaves(fun(*xs))
    return bucketed(trace_symbolic(flat, avals, dynamic), **options)


def same(fun, shapes, sizes=((16, 5),), edit=lambda x: x):
    padded = region(fun, shapes)
    for i, (n, m) in enumerate(sizes):
        args = [edit(x) for x in arguments(shapes, {"n": n, "m": m}, i)]
        got = run_region(padded, args)
        for have, want in zip(got, jax.tree.leaves(jax.jit(fun)(*args)), strict=True):
            assert have.shape == want.shape
            assert have.dtype == want.dtype
            np.testing.assert_allclose(have, want, rtol=2e-4, atol=2e-5)
    return padded


# ---------------------------------------------------------------- the law


@pytest.mark.parametrize("seed", range(4))
def test_random_programs_give_what_they_give_exactly(seed):
    fun = program(seed)
    try:
        padded = region(fun, "n3 m n:i")
    except Unsupported:
        pytest.skip("declined")
    for n, m in ((2, 9), (16, 3)):
        args = list(arguments("n3 m n:i", {"n": n, "m": m}, seed))
        try:
            got = run_region(padded, args)
        except Unsupported:
            continue
        for have, want in zip(got, jax.jit(fun)(*args), strict=True):
            np.testing.assert_allclose(have, want, rtol=1e-3, atol=1e-4)


# ---------------------------------------------------------------- per primitive


def test_reductions():
    def fun(x):
        return x.sum(0), x.mean(), x.std(0), x.max(0), x.min(), x.prod(0), (x > 0).any(0)

    same(fun, "n3", [(2, 2), (13, 2)])


def test_places_of_extremes():
    same(lambda x: (x.argmax(), x.argmin(0), lax.top_k(x[:, 0], 2)), "n3", [(3, 2)])


def test_an_extreme_of_infinities_is_not_in_the_padding():
    fun = lambda x: (x.argmax(), x.argmin(), lax.top_k(x, 2), x.max(), jnp.argsort(x), jnp.sort(x))
    for value in (-np.inf, np.inf, np.nan):
        same(fun, "n", [(5, 2)], lambda x, value=value: np.full_like(x, value))


def test_products():
    fun = lambda x, y: (x.T @ x, x @ x.T @ x, jnp.einsum("ni,mi->nm", x, y).sum(1))
    same(fun, "n3 m3", [(4, 21)])


def test_what_is_infinite_outside_does_not_come_in():
    same(lambda x: (jnp.log(x).T @ (1 / x), (1 / x).sum(0)), "n3", [(4, 2)], np.abs)


def test_sort_and_quantiles():
    def fun(x):
        return jnp.sort(x, 0), jnp.argsort(x, 0), jnp.quantile(x, 0.25), jnp.median(x, 0)

    same(fun, "n3", [(7, 2)])


def test_running_sums_from_both_ends():
    same(lambda x: (jnp.cumsum(x), lax.cumsum(x, reverse=True), lax.cummax(x)), "n", [(9, 2)])


def test_shapes():
    def fun(x, y):
        pairs = (x[:, None] - y[None]).reshape(-1, 3)
        ends = jnp.concatenate([x, y, x[:1]]), x[::-1], jnp.roll(x, 2, 0), x.T.reshape(-1)
        return pairs, *ends, jnp.pad(x, ((1, 2), (0, 1))), jnp.tile(x, (2, 1)), x[1:] - x[:-1]

    same(fun, "n3 m3", [(6, 11)])


def test_indices_meet_the_true_size():
    def fun(x, i):
        ways = [x.at[i].get(mode=mode) for mode in ("fill", "clip")]
        return *ways, x[i], x[-1], x[7], x.at[i].set(1.0), x.at[i].add(2.0, mode="drop")

    same(fun, "n m:i", [(11, 14)])


def test_updates_of_a_part():
    same(lambda x: (x.at[1:].set(0), x.at[1:-1].add(x[2:]), x.at[::2].mul(3)), "n", [(9, 2)])


def test_segments():
    def fun(x, i):
        return segment_sum(x, i % 7, 7), segment_sum(x, i, 5), jax.ops.segment_max(x, i % 3, 3)

    same(fun, "n n:i", [(12, 2)])


def test_loops_over_the_padded_axis():
    def fun(x):
        step = lambda c, v: (0.9 * c + v, c)
        backwards = lax.scan(step, 0.0, x, reverse=True)
        whole = lax.fori_loop(0, x.shape[0], lambda i, c: c + i * x[i], 0.0)
        return lax.scan(step, 0.0, x), backwards, whole

    same(fun, "n", [(6, 2)])


def test_loops_with_padded_values():
    def fun(x):
        grown = lax.while_loop(lambda c: c[0].sum() < 99, lambda c: (c[0] * 1.5, c[1] + 1), (x, 0))
        lanes = jax.vmap(lambda v: lax.while_loop(lambda c: c < 5, lambda c: c + v, 0.0))(x)
        branch = lax.cond(x.sum() > 0, lambda: x[::-1], lambda: x)
        return grown, lanes, branch, lax.scan(lambda c, t: (c + t * x, c.max()), x, jnp.arange(3.0))

    same(fun, "n", [(6, 2)], lambda x: np.abs(x) + 0.5)


def test_gradients_taken_inside():
    def loss(w, x, y):
        z = jax.nn.gelu(x @ w)
        return jnp.mean(jnp.logaddexp(0.0, z) - y * z) + jnp.sort(z)[0]

    same(lambda x, y, w: jax.value_and_grad(loss)(w, x, y), "n3 n 3", [(10, 2)])


def test_linear_systems():
    def fun(x):
        a = x @ x.T + 5 * jnp.eye(x.shape[0])
        return jnp.linalg.cholesky(a), jnp.linalg.solve(a, x), jnp.linalg.slogdet(a)[1]

    same(fun, "n3", [(7, 2)])


def test_random_numbers_are_those_of_the_exact_size():
    def fun(x):
        key = jax.random.key(0)
        wide = jax.random.uniform(key, (3, x.shape[0]))
        return jax.random.normal(key, x.shape), wide, jax.random.split(key, x.shape[0]).shape[0]

    same(fun, "n2", [(7, 2)])


# ---------------------------------------------------------------- what it is for


def test_sizes_of_a_bucket_share_an_executable():
    padded = region(lambda x: x / x.sum(), "n")
    for n in (2, 3, 9, 16):
        assert run_region(padded, [np.ones(n, np.float32)])[0].shape == (n,)
    assert padded.compiled == 1
    run_region(padded, [np.ones(17, np.float32)])
    assert padded.compiled == 2


def test_results_of_fixed_size_stay_arrays_of_jax():
    whole, total = run_region(region(lambda x: (x * 2, x.sum()), "n"), [np.ones(3, np.float32)])
    assert isinstance(total, jax.Array)
    assert isinstance(whole, np.ndarray)


def test_what_has_no_rule_is_named():
    with pytest.raises(Unsupported, match="fft"):
        region(lambda x: jnp.fft.fft(x), "n")
    with pytest.raises(Unsupported, match="eigh"):
        region(lambda x: jnp.linalg.eigh(x @ x.T), "n3")
