"""Inverses found by propagation, and their log-determinants, against Jacobians."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import malleable as mal

X = jnp.array([0.4, -0.2, 1.0, 0.3])
M = jnp.array([[2.0, 0.5], [-0.3, 1.0]])
SQUARE = jnp.eye(4) + jnp.sin(jnp.arange(16.0)).reshape(4, 4) / 5


def coupling(x):
    a, b = jnp.split(x, 2)
    return jnp.concatenate([a * 3, b * jnp.exp(jnp.sin(a)) + a**2])[::-1]


def flow(x):
    step = lambda x, p: (jnp.tanh(x * jnp.exp(p)) + 0.5, None)
    return lax.scan(step, x, jnp.array([0.1, -0.4, 0.2]))[0]


def couplings(x):
    step = lambda x, p: (coupling(x * p), None)
    return lax.scan(step, x, jnp.array([1.1, 0.4]))[0]


def branches(i, x):
    return lax.switch(i, [jnp.exp, jnp.tanh, lambda x: 2 * x + 1], x)


def autoregressive(x, reverse=False):
    def step(c, row):
        y = row * jnp.exp(jnp.sin(c)) + c
        return y, y

    return lax.scan(step, 0.3, x, reverse=reverse)[1]


def growing(x):
    step = lambda c, _: ((c[0] * jnp.exp(c[1]), c[1] + 0.1), None)
    return lax.scan(step, (x, 0.2), None, length=3)[0][0]


def filtered(x):
    step = lambda c, row: ((row + 0.5 * c[0] - 0.2 * c[1], c[0]), row + 0.5 * c[0] - 0.2 * c[1])
    return lax.scan(step, (0.0, 0.0), x)[1]


def twice_read(x):
    step = lambda x, p: (jnp.concatenate([x[2:], x[:2] * p + jnp.sin(x[2:])]), None)
    return lax.scan(step, x, jnp.array([1.1, 0.4]))[0]


def masked_coupling(x, mask):
    left = SQUARE @ (mask * x)
    return mask * x + (1 - mask) * (x * jnp.exp(jnp.tanh(left)) + left), None


def decayed(one, other):
    return one[0] * other[0], other[0] * one[1] + other[1]


def in_rows(row):
    return lax.map(jnp.sinh, M @ row)


FLOWS = {
    "chain": lambda x: jnp.exp(2 * x + 1),
    "coupling": coupling,
    "permutation": lambda x: x[jnp.array([2, 0, 3, 1])] * jnp.arange(1.0, 5.0),
    "matrix": lambda x: jnp.ravel(M @ x.reshape(2, 2)),
    "rows by a matrix": lambda x: jnp.ravel(jnp.sinh(x.reshape(2, 2) @ M)),
    "scan": flow,
    "scan of couplings": couplings,
    "jit": jax.jit(lambda x: jax.checkpoint(coupling)(x) - 1),
    "jit of one that is dropped": lambda x: jax.jit(lambda x: (jnp.sum(x), jnp.exp(x)))(x)[1],
    "fori": lambda x: lax.fori_loop(0, 3, lambda i, x: coupling(x) / (i + 1) + i, x),
    "fori in scan": lambda x: lax.fori_loop(0, 2, lambda i, x: flow(x) / (i + 2.0), x),
    "carry beside": growing,
    "map": lambda x: lax.map(lambda x: jnp.exp(x) + 1, x),
    "map of batches": lambda x: lax.map(jnp.sinh, x, batch_size=3),
    "map in map": lambda x: jnp.ravel(lax.map(in_rows, x.reshape(2, 2))),
    "cond": lambda x: lax.cond(M[0, 0] > 0, coupling, jnp.exp, x),
    "cond by a half": lambda x: jnp.hstack([x[:2], lax.cond(x[0] > 0, jnp.exp, jnp.sinh, x[2:])]),
    "switch in fori": lambda x: lax.fori_loop(0, 3, branches, x),
    "autoregressive": autoregressive,
    "autoregressive, reverse": lambda x: autoregressive(x, reverse=True),
    "filter": filtered,
    "parts read twice": twice_read,
    "while": lambda x: lax.fori_loop(0, jnp.int32(3), lambda i, x: coupling(x) / (i + 1), x),
    "cumsum": lambda x: jnp.exp(jnp.cumsum(x)),
    "cumprod, reverse": lambda x: lax.cumprod(x, reverse=True),
    "cumlogsumexp of rows": lambda x: jnp.ravel(lax.cumlogsumexp(x.reshape(2, 2), axis=1)),
    "sums by association": lambda x: lax.associative_scan(jnp.add, jnp.sinh(x)),
    "a recurrence by association": lambda x: lax.associative_scan(decayed, (M.ravel(), x))[1],
    "odd powers": lambda x: 1 / x**3,
    "matrix of vmap": lambda x: jnp.ravel(jax.vmap(lambda row: M @ row)(x.reshape(2, 2))),
    "triangular": lambda x: jnp.stack([x[0], x[1] + x[0] ** 2, x[2] * jnp.exp(x[0] * x[1]), x[3]]),
    "where": lambda x: jnp.where(jnp.array([True, False, True, False]), jnp.exp(x), 2 * x),
    "a fraction": lambda x: (2 * x + 1) / (x + 4) - 3 / (5 - x) * 0,
    "logit": lambda x: jax.scipy.special.logit(jax.nn.sigmoid(x) / 2),
    "more than once": lambda x: x + 0.5 * x - 1,
    "leaky": lambda x: jnp.where(x > 0.2, x + 0.1, 0.5 * x + 0.2),
    "falling on both sides": lambda x: jnp.where(x <= 0.0, -3 * x, -jnp.expm1(x)),
    "activations": lambda x: jax.nn.selu(jax.nn.celu(jax.nn.elu(jax.nn.leaky_relu(x)), 2.0)),
    "softplus": lambda x: jnp.tanh(jax.nn.softplus(x) * 0.7 - 1),
    "log_sigmoid in a scan": lambda x: lax.scan(
        lambda c, p: (jax.nn.log_sigmoid(p * c), None), x, jnp.array([2.0, -0.5])
    )[0],
    "reflection": lambda x: x - 2 * X * (X @ x) / (X @ X),
    "system": lambda x: jnp.linalg.solve(SQUARE, x),
    "triangular system": lambda x: jax.scipy.linalg.solve_triangular(jnp.triu(SQUARE), x),
    "matrix each": lambda x: jnp.ravel(
        jnp.einsum("bij,bj->bi", jnp.stack([M, M.T]), x.reshape(2, 2))
    ),
    "convolution of one place": lambda x: jnp.ravel(
        lax.conv(x.reshape(1, 2, 1, 2), M[..., None, None], (1, 1), "SAME")
    ),
    "masks by products": lambda x: lax.scan(masked_coupling, x, jnp.eye(4)[:2] + jnp.eye(4)[2:])[0],
    "masks by where": lambda x: jnp.where(X > 0, x, x * jnp.exp(SQUARE @ jnp.where(X > 0, x, 0))),
    "power": lambda x: jnp.exp(x) ** 1.7,
    "power of a number": lambda x: 3.0 ** jnp.arctan(x),
}


@functools.cache
def inverted(name):
    """What a flow gives, the logarithm of its slope, and what its inverse makes of it, compiled."""
    f = FLOWS[name]
    y, slope = jax.jit(lambda x: (f(x), jnp.linalg.slogdet(jax.jacfwd(f)(x))[1]))(X)
    return y, slope, jax.jit(mal.inverse(f, X))(y)


def is_inverse(name, back, logdet):
    np.testing.assert_allclose(back, X, rtol=2e-3, atol=2e-3)
    np.testing.assert_allclose(logdet, -inverted(name)[1], rtol=2e-3, atol=2e-3)


@pytest.mark.in_turns
@pytest.mark.parametrize("name", FLOWS)
def test_an_inverse_is_one_and_its_slope_that_of_the_jacobian(name):
    is_inverse(name, *inverted(name)[2])


QUICK = [*FLOWS][::4]  # without jit the same rules are followed, and each operation is compiled


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n not in QUICK)) for n in FLOWS]
)
def test_an_inverse_without_jit_is_one(name):
    is_inverse(name, *mal.inverse(FLOWS[name], X)(inverted(name)[0]))


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


def test_a_rule_may_be_for_a_jitted_function():
    rules = {
        jax.nn.softplus: lambda y: y + jnp.log(-jnp.expm1(-y)),
        jax.nn.leaky_relu: lambda y, slope: jnp.where(y < 0, y / slope, y),
    }
    step = lambda x, p: (jax.nn.leaky_relu(jax.nn.softplus(p * x) - 0.5, 0.3), None)
    f = lambda x: lax.scan(step, x, jnp.array([1.5, -2.0]))[0]
    back, logdet = mal.inverse(f, X, rules=rules)(f(X))
    np.testing.assert_allclose(back, X, rtol=1e-3, atol=1e-3)
    want = -jnp.linalg.slogdet(jax.jacobian(f)(X))[1]
    np.testing.assert_allclose(logdet, want, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("f", "said"),
    [
        (lambda x: jnp.sin(x), "`sin` is not inverted"),
        (lambda x: x + jnp.tanh(x), "`add` is not inverted"),
        (lambda x: jnp.concatenate([x[:2], x[:2]]), "some of x is not in y"),
        (lambda x: jax.jit(lambda x: jnp.cos(x))(x) * 2, "`cos` is not inverted"),
        (lambda x: lax.fori_loop(0, 3, lambda i, x: x * x, x), "`mul` is not inverted"),
        (lambda x: lax.while_loop(lambda x: x[0] < 3, lambda x: x * 2, x), "`while` is not"),
        (lambda x: x**2, "`integer_pow` is not inverted|`square` is not inverted"),
        (lambda x: lax.cond(x[0] > 0, jnp.exp, jnp.sinh, x), "`cond` is not inverted"),
        (
            lambda x: lax.cond(M[0, 0] > 0, jnp.exp, lambda x: jnp.ones(4), x),
            "`cond` is not inverted",
        ),
        (lambda x: lax.map(jnp.cos, x), "`cos` is not inverted"),
        (lambda x: jnp.roll(x, jnp.argmax(x)), "`dynamic_slice` is not inverted"),
        (lambda x: jnp.where(x > 0, x, -2 * x), "`select_n` is not inverted"),
        (lambda x: jnp.where(x > 0, 1 - x, -x), "`select_n` is not inverted"),
        (lambda x: jnp.where(x > 1, x, 2 * x), "`select_n` is not inverted"),
        (lambda x: jax.nn.relu(x), "`max` is not inverted"),
        (lambda x: x - x + 1, "`sub` is not inverted"),
        (lambda x: (x + 1) / (2 * x + 2), "`div` is not inverted"),
        (lambda x: x - jnp.ones(4) * (jnp.ones(4) @ x) / 4, "`sub` is not inverted"),
        (lambda x: jnp.exp(x) ** 2.0, "`pow` is not inverted|`square` is not inverted"),
        (lambda x: lax.scan(lambda c, _: (c * c, None), x, None, length=2)[0], "not inverted"),
    ],
)
def test_what_has_no_inverse_names_it_and_the_line(f, said):
    with pytest.raises(mal.TransformError, match=said) as caught:
        mal.inverse(f, X)(X)
    assert "some of" in said or "test_inverse.py" in caught.value.where


def test_what_no_piece_gives_has_no_inverse():
    back = mal.inverse(lambda x: jnp.where(x > 1, 3 * x, 2 * x), 0.0)
    np.testing.assert_allclose([back(y)[0] for y in (2.0, 2.5, 3.3)], [1, np.nan, 1.1], rtol=1e-6)


def test_a_while_of_a_length_that_is_not_known_is_undone():
    turns = lambda x, n: lax.fori_loop(0, n, lambda i, x: coupling(x) / (i + 1), x)
    back = jax.jit(lambda y, n: mal.inverse(lambda x: turns(x, n), X)(y))
    for n in (0, 3):
        x, logdet = back(turns(X, n), n)
        np.testing.assert_allclose(x, X, rtol=1e-4)
        want = -jnp.linalg.slogdet(jax.jacfwd(turns)(X, n))[1]
        np.testing.assert_allclose(logdet, want, rtol=1e-4, atol=1e-6)


def test_a_function_of_the_users_is_told_by_what_it_does():
    @jax.jit
    def softplus(x):
        return jnp.sin(x)

    with pytest.raises(mal.TransformError, match="`sin` is not inverted"):
        mal.inverse(softplus, X)(X)


def test_results_of_another_shape_are_refused():
    with pytest.raises(TypeError, match="other shapes"):
        mal.inverse(jnp.exp, X)(X[:2])


@pytest.mark.parametrize(
    "fun",
    [
        jax.nn.soft_sign,
        lambda x: 2 * x / (1 + jnp.abs(x)) + 1,
        lambda x: x + 0.5 * jnp.abs(x),
        lambda x: jnp.where(x > 0, x / (2 + x), 3 * x),
    ],
)
def test_a_fraction_on_each_side_of_a_number_is_inverted(fun):
    x = jnp.array([0.1, -0.4, 0.7, 30.0, -2.5])
    y, slope = jax.jit(lambda x: (fun(x), jnp.linalg.slogdet(jax.jacobian(fun)(x))[1]))(x)
    found, logdet = jax.jit(mal.inverse(fun, x))(y)
    np.testing.assert_allclose(found, x, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(logdet, -slope, rtol=1e-3)


@pytest.mark.parametrize(
    "fun",
    [
        lambda x: x / (1 - 2 * jnp.abs(x)),  # 1 / 2 is a pole
        lambda x: x / (3 + jnp.abs(x) - 2 * x),
        lambda x: x + 2 * jnp.abs(x),
        lambda x: 1 / (1 + jnp.abs(x)),
    ],
)
def test_a_fraction_with_a_pole_on_its_side_is_not_inverted(fun):
    x = jnp.array([0.1, -0.4])
    with pytest.raises(mal.TransformError, match="no inverse that can be found"):
        mal.inverse(fun, x)(fun(x))


def test_no_number_is_the_inverse_of_what_a_function_of_two_sides_never_gives():
    found, _ = mal.inverse(jax.nn.soft_sign, jnp.ones(3))(jnp.array([0.5, 1.5, -2.0]))
    assert float(found[0]) == 1.0 and np.isnan(found[1:]).all()
