"""Arrays and lists whose size is a traced number, and selections of unlike sizes that meet."""

import jax
import numpy as np
import pytest
from jax.experimental import checkify

from malleable import TransformError, autograph, listen


def squares(n):
    y = np.zeros(n)
    for i in range(n):
        y[i] = i * i
    return y.sum(), y.max(), len(y), y.shape[0]


def rows(n):
    y = np.empty((n, 3))
    for i in range(n):
        y[i] = [i, 2 * i, 1]
    return y.sum(axis=0), y.size


def halves(n):
    y = np.full(n, 2.5)
    y[:2] = 1
    y *= 2
    y[-1] -= 1
    return y.mean(), np.sqrt(y).sum()


def filled_with_traced(n):
    return np.full(n, 0.5 * n).sum(), np.ones(n, np.int8).sum(), np.zeros([n], dtype=bool).any()


def ranges(n):
    return (
        np.arange(n).sum(),
        np.arange(1, n + 1, 2).prod(),
        np.arange(n, 0, -1)[0],
        np.arange(0, 0.7 * n, 0.25).sum(),
        np.arange(-n).size,
        np.arange(n, dtype=float).mean(),
        np.arange(0, 0.3 * n, 0.3).size,
        np.arange(0.0, n, 0.5, dtype=int).sum(),
        np.dot(np.arange(n), 2.0).size,
    )


def gone_over(n):
    s = 0.0
    for v in np.arange(1, n + 1):
        s += 1 / v
    return s


def of_each_step(n):
    s, z = 0.0, np.arange(10.0)
    while n > 0:
        y = np.zeros(n)
        y[:] = z[:n]
        s += y @ y + np.dot(y, np.ones(n))
        n -= 1
    return s


def product(n):
    y = np.zeros(n)
    y[:] = 2
    return y @ np.arange(40.0).reshape(10, 4)[:n]


def of_one_path(n):
    y = np.zeros(n) if n > 3 else np.ones(n)
    return y.sum()


def primes(n):
    prime = np.ones(n + 1, bool)
    prime[:2] = False
    i = 2
    while i * i <= n:
        if prime[i]:
            prime[i * i :: i] = False
        i += 1
    return prime.sum()


def pascal(n):
    row = np.zeros(n + 1)
    row[0] = 1
    for i in range(1, n + 1):
        row[1 : i + 1] = row[1 : i + 1] + row[:i]
    return row[n // 2]


def repeated_list(n):
    xs = [0] * n
    for i in range(n):
        xs[i] = i
    return sum(xs), len(xs), len([1, 2] * n), len([0] * -n)


def put_together(n):
    return np.concatenate([np.arange(n), [7]]).sum(), np.sort(np.arange(n) % 3)[0]


PROGRAMS = (
    *(squares, rows, halves, filled_with_traced, ranges, gone_over, of_each_step, product),
    *(of_one_path, primes, pascal, repeated_list, put_together),
)


def leaves(x):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(x)]


@pytest.mark.parametrize("fun", PROGRAMS, ids=lambda f: f.__name__)
def test_an_array_of_a_traced_size_is_the_one_of_that_size(fun):
    with jax.enable_x64(True):
        compiled = jax.jit(autograph(fun))
        for n in (5, 3):
            for got, wanted in zip(leaves(compiled(n)), leaves(fun(n)), strict=True):
                np.testing.assert_allclose(got, wanted)


def test_it_has_room_for_as_many_items_as_max_steps_says():
    def f(n, a):
        return (np.arange(n) * a).sum()

    with listen() as notes:
        assert np.isnan(jax.jit(autograph(f))(1500, 0.5))
    assert any("np.arange of a traced size has room for 1024 items" in n.what for n in notes)
    assert any("more than 1024 items` does not happen" in n.what for n in notes)
    with listen() as notes:
        got = jax.jit(autograph(f, max_steps=2000))(1500, 0.5)
    assert got == f(1500, 0.5) and not any("room" in n.what for n in notes)


def test_a_handler_sees_that_a_size_is_negative():
    def f(n):
        try:
            return np.zeros(n).sum()
        except ValueError:
            return -1.0

    compiled = jax.jit(autograph(f))
    assert compiled(-3) == -1 and compiled(3) == 0


def test_it_has_a_derivative_and_a_size_for_each_example():
    def f(n, a):
        return np.sqrt(np.arange(n) * a + 1).sum()

    with jax.enable_x64(True):
        slope = jax.jit(jax.grad(autograph(f), argnums=1))(3, 2.0)
        np.testing.assert_allclose(slope, (f(3, 2.0001) - f(3, 1.9999)) / 2e-4, rtol=1e-6)
        sizes = np.array([3, 0, 5])
        got = jax.vmap(lambda n: autograph(f)(n, 2.0))(sizes)
        np.testing.assert_allclose(got, [f(n, 2.0) for n in sizes])


@pytest.mark.parametrize("fun", [lambda n: np.zeros((n, n)), np.eye])
def test_two_axes_of_a_traced_size_are_refused(fun):
    with pytest.raises(TransformError, match="size that is known only at run time"):
        jax.jit(autograph(lambda n: fun(n)))(3)


# ---------------------------------------------------------------- selections that meet


def added(x, y):
    return (x[x > 0] + y[y > 0]).sum()


def multiplied(x, y):
    return x[x > 0] @ y[y > 0]


def written(x, y):
    x = x.copy()
    x[x > 0] = y[y > 0]
    return x


def written_in_place(x, y):
    a = x[x > 0]
    a[:] = y[y > 0]
    return a.sum()


def kept(x, y):
    return np.where(x[x > 0] > 2, y[y > 0], 0.5)[0]


X = np.array([1.0, -2, 3, 4])


@pytest.mark.parametrize(
    "fun", [added, multiplied, written, written_in_place, kept], ids=lambda f: f.__name__
)
@pytest.mark.parametrize("other", [X, -X, np.array([1.0, 5, -6, -7])], ids=["3", "1", "2"])
def test_selections_of_unlike_sizes_meet_as_numpy_lets_them(fun, other):
    def handled(x, y):
        try:
            return fun(x, y)
        except ValueError:
            return x * 0 - 99 if fun is written else -99.0

    with listen() as notes:
        plain = jax.jit(autograph(fun))(X, other)
    np.testing.assert_allclose(jax.jit(autograph(handled))(X, other), handled(X, other))
    assert any("a mask selects another number" in n.what for n in notes)
    try:
        np.testing.assert_allclose(plain, fun(X, other))
    except ValueError:
        assert np.isnan(plain).all()


def test_what_one_mask_selects_meets_without_a_test():
    def f(x, y):
        m = x > 0
        x[m] += y[m]
        return (x[m] * y[m]).sum() + (x[1:] - x[:-1])[m[1:]].sum()

    with listen() as notes:
        jax.jit(autograph(f))(X, X)
    assert not any("another number" in n.what for n in notes)


def put_by_mask(x, y):
    x[x > 0] = y
    return x


def put_by_places(x, y):
    x[np.nonzero(x > 0)] = y
    return x


def put_in_slice(x, y):
    start = (x[0] - 2).astype(int)
    x[start : start + 3] = y
    return x


def put_rows(x, y):
    rows = np.stack([x, -x], 1)
    rows[x > 0] = np.stack([y, y + 1], 1)
    return rows.sum(axis=1)


PUT = (put_by_mask, put_by_places, put_in_slice, put_rows)


@pytest.mark.parametrize("fun", PUT, ids=lambda f: f.__name__)
@pytest.mark.parametrize("count", range(5))
def test_as_many_values_are_written_as_a_mask_selects_or_a_value_error_is_raised(fun, count):
    def handled(x, y):
        try:
            try:
                x = fun(x, y)
            except (TypeError, IndexError):
                x[0] = 77
        except ValueError:
            x[1] = 88
        return x

    x, y = np.array([3.0, -2, 4, 5]), np.arange(10.0, 10 + count)
    with listen() as notes:
        plain = jax.jit(autograph(fun))(x, y)
    checked = checkify.checkify(jax.jit(autograph(fun, checked=True)))
    np.testing.assert_allclose(jax.jit(autograph(handled))(x, y), handled(x.copy(), y))
    try:
        wanted = fun(x.copy(), y)
    except ValueError:
        assert np.isnan(plain).all()
        assert any("`ValueError: operands could not be broadcast" in n.what for n in notes)
        with pytest.raises(checkify.JaxRuntimeError, match="a mask selects another number"):
            checked(x, y)[0].throw()
    else:
        np.testing.assert_allclose(plain, wanted)
        checked(x, y)[0].throw()


def test_the_steps_of_a_loop_write_what_fits_their_mask():
    def f(x, y):
        failed = 0
        while x[0] > 0:
            try:
                x[x > x[0]] = y + x[0]
            except ValueError:
                failed += 1
            x[0] -= 1
        return x, failed

    x, y = np.array([4.0, 1, 2, 6, 9, 4]), np.array([1.0, 2, 3])
    for got, wanted in zip(jax.jit(autograph(f))(x, y), f(x.copy(), y), strict=True):
        np.testing.assert_allclose(got, wanted)
