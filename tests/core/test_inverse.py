"""Inverses found by propagation, and their log-determinants, against Jacobians."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import malleable as mal

X = jnp.array([0.4, -0.2, 1.0, 0.3])
M = jnp.array([[2.0, 0.5], [-0.3, 1.0]])


def coupling(x):
    a, b = jnp.split(x, 2)
    return jnp.concatenate([a * 3, b * jnp.exp(jnp.sin(a)) + a**2])[::-1]


def flow(x):
    step = lambda x, p: (jnp.tanh(x * jnp.exp(p)) + 0.5, None)
    return lax.scan(step, x, jnp.array([0.1, -0.4, 0.2]))[0]


def couplings(x):
    step = lambda x, p: (coupling(x * p), None)
    return lax.scan(step, x, jnp.array([1.1, 0.4]))[0]


FLOWS = {
    "chain": lambda x: jnp.exp(2 * x + 1),
    "coupling": coupling,
    "permutation": lambda x: x[jnp.array([2, 0, 3, 1])] * jnp.arange(1.0, 5.0),
    "matrix": lambda x: jnp.ravel(M @ x.reshape(2, 2)),
    "rows by a matrix": lambda x: jnp.ravel(jnp.sinh(x.reshape(2, 2) @ M)),
    "scan": flow,
    "scan of couplings": couplings,
    "jit": jax.jit(lambda x: jax.checkpoint(coupling)(x) - 1),
}


@pytest.mark.parametrize("name", FLOWS)
@pytest.mark.parametrize("under", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_an_inverse_is_one_and_its_slope_that_of_the_jacobian(name, under):
    f = FLOWS[name]
    back, logdet = under(mal.inverse(f, X))(f(X))
    np.testing.assert_allclose(back, X, rtol=2e-3, atol=2e-3)
    want = -jnp.linalg.slogdet(jax.jacobian(f)(X))[1]
    np.testing.assert_allclose(logdet, want, rtol=2e-3, atol=2e-3)


def test_pytrees_come_back_as_they_were():
    f = lambda d: (d["a"] + d["b"], jnp.exp(d["b"]))
    x, _ = mal.inverse(f, {"a": 1.0, "b": 2.0})((3.0, jnp.exp(2.0)))
    np.testing.assert_allclose([x["a"], x["b"]], [1.0, 2.0], rtol=1e-5)


def test_a_gradient_goes_through_an_inverse():
    f = lambda x: jnp.exp(2 * x)
    got = jax.grad(lambda y: mal.inverse(f, 1.0)(y)[0])(3.0)
    np.testing.assert_allclose(got, 1 / 6, rtol=1e-5)


def test_a_rule_may_be_added():
    f = lambda x: jnp.sin(x)
    x, _ = mal.inverse(f, 0.1, rules={lax.sin_p: jnp.arcsin})(jnp.sin(0.1))
    np.testing.assert_allclose(x, 0.1, rtol=1e-5)


@pytest.mark.parametrize(
    ("f", "said"),
    [
        (lambda x: jnp.sin(x), "`sin` is not inverted"),
        (lambda x: x + jnp.tanh(x), "`add` is not inverted"),
        (lambda x: jnp.concatenate([x[:2], x[:2]]), "some of x is not in y"),
        (lambda x: jax.jit(lambda x: jnp.cos(x))(x) * 2, "`cos` is not inverted"),
        (lambda x: lax.fori_loop(0, 3, lambda i, x: x / (i + 1), x), "`scan` is not inverted"),
        (lambda x: lax.scan(lambda c, _: (c * c, None), x, None, length=2)[0], "not inverted"),
    ],
)
def test_what_has_no_inverse_names_it_and_the_line(f, said):
    with pytest.raises(mal.TransformError, match=said) as caught:
        mal.inverse(f, X)(X)
    assert "some of" in said or "test_inverse.py" in caught.value.where


def test_results_of_another_shape_are_refused():
    with pytest.raises(TypeError, match="other shapes"):
        mal.inverse(jnp.exp, X)(X[:2])
