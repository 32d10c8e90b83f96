"""Functions of SciPy, and of Python's own modules, converted: what they return on plain numbers."""

import statistics

import jax
import numpy as np
import pytest
import scipy.integrate
import scipy.interpolate
import scipy.optimize
import scipy.stats as st

from malleable import autograph, listen
from malleable.errors import TransformError

X = np.array([0.3, 0.5, 0.9, 0.2])
COUNTS = np.array([0.0, 1.0, 4.0])
Y = [1.3, 0.2, 2.7, 0.4, 0.9]
Z = [0.3, 1.2, 0.7, 0.1, 2.0]


def same(fun, *args, tolerance=1e-7):
    with jax.enable_x64(True):
        got = jax.jit(autograph(fun))(*args)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(fun(*args)), strict=True):
        np.testing.assert_allclose(a, b, tolerance, tolerance)


@pytest.mark.in_turns
@pytest.mark.parametrize(
    ("name", "args", "methods"),
    [
        ("t", (5.0,), "pdf cdf sf"),
        ("lognorm", (0.5,), "pdf logpdf cdf sf ppf isf"),
        ("expon", (), "pdf sf ppf isf"),
        ("laplace", (), "cdf logcdf sf logsf ppf isf"),
        ("weibull_min", (1.5,), "pdf logpdf cdf sf ppf isf"),
        ("f", (3.0, 5.0), "pdf logpdf cdf"),
        ("poisson", (2.0,), "pmf cdf sf"),
        ("geom", (0.3,), "pmf cdf sf"),
    ],
)
def test_a_distribution_keeps_to_its_support(name, args, methods):
    for method in methods.split():
        points = COUNTS if name in ("poisson", "geom") else np.append(X, [-1.0, 2.0])
        same(lambda x, *a, m=method: getattr(getattr(st, name), m)(x, *a), points, *args)


def test_a_normal_of_several_dimensions():
    cov = np.array([[2.0, 0.3], [0.3, 1.0]])
    same(lambda x, c: st.multivariate_normal.logpdf(x, np.zeros(2), c), X[:2], cov)


@pytest.mark.parametrize("test", [st.kruskal, st.mood, st.fligner, st.spearmanr, st.rankdata])
def test_ranks_with_ties(test):
    x, y = np.array([1.0, 2.0, 2.0, 5.0, 0.5]), np.array([2.0, 7.0, 1.0, 1.0, 4.0])
    same(lambda x, y: tuple(test(x, y)) if test is not st.rankdata else test(x), x, y)


def test_a_traced_count_of_equal_points():
    same(scipy.interpolate.krogh_interpolate, np.arange(4.0), X, np.array([0.5, 1.5]))


@pytest.mark.parametrize(
    ("fun", "args"),
    [
        (statistics.geometric_mean, (Y,)),
        (statistics.harmonic_mean, (Y,)),
        (lambda x: statistics.harmonic_mean(x, weights=[1, 2, 1, 1, 3]), (Y,)),
        (statistics.quantiles, (Y,)),
        (lambda x: statistics.quantiles(x, n=10, method="inclusive"), (Y,)),
        (lambda x: statistics.quantiles(x, n=7), (Y,)),
        (statistics.covariance, (Y, Z)),
        (statistics.correlation, (Y, Z)),
        (lambda x, y: tuple(statistics.linear_regression(x, y)), (Y, Z)),
    ],
)
def test_statistics(fun, args):
    same(fun, *args)


def test_the_remainder_of_polynomials_keeps_its_zeros_and_says_so():
    with listen() as notes:
        q, r = jax.jit(autograph(np.polydiv))(np.array([1.0, 2.0, 3.0]), np.array([1.0, 0.5]))
    assert [note.what for note in notes] == ["np.polydiv keeps the leading zeros of the remainder"]
    np.testing.assert_allclose(q, [1.0, 1.5])
    np.testing.assert_allclose(r, [0.0, 0.0, 2.25])


CALL_BACK = {
    "brentq": lambda a: scipy.optimize.brentq(lambda x: x**3 - a, 0.0, 5.0),
    "bisect": lambda a: scipy.optimize.bisect(lambda x: x**3 - a, 0.0, 5.0),
    "qagse": lambda a: scipy.integrate.quad(lambda x: a * x, 0.0, 1.0)[0],
    "hybrd": lambda a: scipy.optimize.fsolve(lambda x: x**3 - a, 1.0),
    "odeint": lambda a: scipy.integrate.odeint(lambda y, t: -a * y, 1.0, np.arange(3.0)),
}


@pytest.mark.parametrize("name", CALL_BACK)
def test_compiled_code_that_calls_back_a_function_of_traced_values_is_refused_by_name(name, capfd):
    with pytest.raises(TransformError, match=rf"{name} is compiled code[\s\S]*test_scipy\.py:\d+"):
        jax.jit(autograph(CALL_BACK[name]))(2.0)
    assert capfd.readouterr().err == ""


def test_compiled_code_that_calls_back_a_function_of_known_values_runs():
    same(lambda a: a * scipy.optimize.brentq(lambda x: x**3 - 8, 0.0, 5.0), 2.0)
    same(lambda a: a * scipy.integrate.quad(lambda x: x * x, 0.0, 1.0)[0], 2.0)


@pytest.mark.parametrize("y", [2.0, 0.5])
def test_one_of_a_tuple_and_none_is_given_on(y):
    def f(y):
        kept = None
        for i in range(2):
            if y > i:
                kept = scipy.linalg.lu_factor(np.array([[3.0, 1.0], [1.0, y]]))
        return scipy.linalg.lu_solve(kept, np.array([y, 1.0]))

    same(f, y)


@pytest.mark.parametrize("solve", ["toms748", "fixed_quad", "solve_ivp"])
def test_what_is_said_to_do_the_same_is_converted(solve):
    def f(a):
        if solve == "toms748":
            return scipy.optimize.toms748(lambda x: x**3 - a, 0.0, 5.0)
        if solve == "fixed_quad":
            return scipy.integrate.fixed_quad(lambda x: np.exp(-a * x), 0.0, 1.0, n=20)[0]
        return scipy.integrate.solve_ivp(lambda t, y: -a * y, (0.0, 1.0), [1.0]).y[0, -1]

    same(f, 2.0)
