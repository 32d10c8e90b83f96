"""Numbers that a check on ordinary arguments does not meet: NaN, infinity, -0, small, wrapped."""

import importlib.util
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.scipy import special

import malleable as mal

if importlib.util.find_spec("jax2onnx") is None:
    pytest.skip("needs the extra `onnx`", allow_module_level=True)

from malleable.integrations.onnx import export
from malleable.integrations.onnx.running import Session
from malleable.programs.evaluate import evaluate

NAN, INF = np.nan, np.inf
PLAIN = np.linspace(-0.9, 0.8, 8, dtype=np.float32).reshape(2, 4)
MISSING = np.array([[1, 2, NAN, NAN], [INF, NAN, -INF, INF]], np.float32)
SMALL = np.array([[1e-6, -1e-6, 1e-7, 0], [-1e-30, 1e-38, 0.5, -0.75]], np.float32)
FAR = np.array([[-61, -20, 17, 8], [4.5, 1e30, -INF, NAN]], np.float32)
ENDS = np.array([[1, -1, 0.9999999, 2], [-0.9999999, 0.5, NAN, 0]], np.float32)
GAMMA = np.array([[0, -3, -17, INF], [1e-30, -1e-6, -0.9999999, 1e30]], np.float32)


def extremes(x):
    return x.max(), x.max(1), x.min(0), jnp.ptp(x, 1)


def places(x):
    return jnp.argmax(x), jnp.argmax(x, 1), jnp.argmin(x, 0)


def orders(x):
    return jnp.sort(x, 1), jnp.argsort(x, 1), jnp.argsort(x, 0, descending=True), jnp.sort(x, None)


def scattered(x):
    where = jnp.array([0, 2, 2, 1])
    return jnp.zeros((2, 4)).at[:, where].max(x), jnp.ones((2, 4)).at[:, where].min(x)


CASES = {
    "max and min": (extremes, MISSING),
    "argmax and argmin": (places, MISSING),
    "sort": (orders, MISSING),
    "top_k": (lambda x: lax.top_k(x, 3), MISSING),
    "approx_max_k": (lambda x: lax.approx_max_k(x, 3), MISSING),
    "at[].max": (scattered, MISSING),
    "softmax": (lambda x: (jax.nn.softmax(x), jax.nn.log_softmax(x)), MISSING),
    "expm1 and log1p": (lambda x: (jnp.expm1(x), jnp.log1p(x)), SMALL),
    "expm1 and log1p far out": (lambda x: (jnp.expm1(x), jnp.log1p(abs(x))), FAR),
    "sigmoid": (lambda x: (jax.nn.sigmoid(x), jnp.log(jax.nn.sigmoid(x))), FAR),
    "erfc": (lambda x: (lax.erfc(x), special.log_ndtr(x)), FAR),
    "erf_inv": (lax.erf_inv, ENDS),
    "gamma": (lambda x: (lax.lgamma(x), lax.digamma(x)), GAMMA),
}


def assert_same(fun, given, *odd):
    """Exported on `given`, a model computes what JAX does on other arguments, too."""
    session = Session(mal.export.onnx(fun, *given).model)
    names = [value.name for value in session.session.get_inputs()]
    for args in (given, *odd):
        for got, want in zip(
            session.run(args, names), jax.tree.leaves(jax.jit(fun)(*args)), strict=True
        ):
            np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-37, strict=True)


@pytest.mark.in_turns
@pytest.mark.parametrize("name", CASES)
def test_a_model_computes_what_jax_does(name):
    fun, odd = CASES[name]
    given = abs(PLAIN) if name == "gamma" else PLAIN
    assert_same(fun, (given,), (odd,))


def test_the_angle_has_the_signs_of_zeros():
    y, x = np.meshgrid(*[np.array([0.0, -0.0, 1, -1, 0.1, INF, -INF, NAN], np.float32)] * 2)
    assert_same(jnp.arctan2, (y, x))
    with jax.enable_x64(True):
        assert_same(jnp.arctan2, (y.astype(float), x.astype(float)))


def test_a_small_sinh_of_64_bits_is_not_zero():
    with jax.enable_x64(True):
        assert_same(jnp.sinh, (np.array([0.5, 2.0]),), (np.array([1e-22, -1e-9]),))


def test_half_precision_has_nan_too():
    fun = lambda x: (jnp.sign(x), x.max(1))
    for kind in (np.float16, jnp.bfloat16):
        assert_same(fun, (PLAIN.astype(kind),), (MISSING.astype(kind),))


def test_sums_of_integers_wrap():
    fun = lambda x: (x.sum(), x.sum(0), x.sum((0, 1)))
    odd = np.array([[2**20, 2**31 - 1], [2**30, -(2**31)], [2**31 - 1, -(2**31)]], np.int32)
    assert_same(fun, (np.arange(6, dtype=np.int32).reshape(3, 2),), (odd,))
    with jax.enable_x64(True):  # which ReduceSum adds up in float64
        assert_same(fun, (np.arange(6).reshape(3, 2),), (np.array([[2**53 + 1, 2**62]] * 3),))


def operators(model):
    return [node.op_type for node in model.graph.node]


def attended(x):
    heads = x[None, :, None]
    return jax.nn.dot_product_attention(heads, heads, heads)


@pytest.mark.parametrize("fun", [jax.nn.softmax, jax.nn.log_softmax, attended])
def test_a_softmax_needs_no_care_for_nan(fun):
    assert "Where" not in operators(mal.export.onnx(fun, PLAIN).model)


def test_exp_of_what_is_left_of_the_maximum_is_guarded():
    assert_same(lambda x: jnp.exp(x - x.max(1, keepdims=True)) / 2, (PLAIN,), (MISSING,))


def test_a_kind_of_numbers_that_differs_is_in_the_notes():
    done = mal.export.onnx(lambda x: jnp.partition(x, 1), np.array([3, 1, 2], np.float32))
    assert [n.what for n in done.notes] == ["the ONNX model differs from JAX for NaN"]
    assert "`out`" in done.notes[0].why and "differs from JAX for NaN" in str(done)


def test_symbolic_sizes_have_nan_and_wrap_too():
    counts = np.array([[1, 2, 3], [4, 5, 6]], np.int32)
    fun = lambda x, n: (x.max(0), jnp.argmin(x, 1), n.sum(0), n.sum(1), n.sum())
    done = mal.export.onnx(fun, PLAIN, counts, polymorphic=["b, 4", "b, 3"])
    x, n = np.concatenate([MISSING, SMALL]), np.full((4, 3), 2**31 - 1, np.int32)
    names = [value.name for value in done.model.graph.input]
    for got, want in zip(
        Session(done.model).run((x, n), names), fun(x, jnp.asarray(n)), strict=True
    ):
        np.testing.assert_array_equal(got, want)


def test_what_is_right_leaves_no_note():
    assert mal.export.onnx(lambda x: jnp.expm1(x).max(1), PLAIN).notes == []


def test_another_thread_compiles_during_an_export(monkeypatch):
    found = []
    fun = lambda x: jnp.cumsum(x) + jnp.sort(x) + jax.nn.relu(x)

    def meanwhile(*args):
        thread = threading.Thread(target=lambda: found.append(jax.jit(fun)(jnp.arange(4.0))))
        thread.start()
        thread.join()
        return evaluate(*args)

    monkeypatch.setattr(export, "evaluate", meanwhile)
    mal.export.onnx(lambda x: x + 1, PLAIN)
    assert found and np.array_equal(found[0], [0, 3, 7, 12])
