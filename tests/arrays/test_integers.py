"""Integers and bools are NumPy's: what wraps around, what widens, what is an error."""

import copy
import warnings

import jax
import numpy as np
import pytest

from malleable import TransformError, autograph, listen

SMALL = {  # by type: two arrays
    np.uint8: ([200, 250, 3, 0, 7], [3, 250, 2, 1, 6]),
    np.int8: ([100, -120, 3, 0, -7], [3, 100, -2, 1, 6]),
    np.int32: ([1000, -12, 3, 0, -7], [3, 1000, -2, 1, 6]),
    np.bool_: ([1, 1, 0, 0, 1], [1, 0, 1, 0, 1]),
    np.float32: ([1.5, -2, 3, 0, -7], [3, 2, -2, 1, 6]),
}
PROGRAMS = {  # by what they are about
    "accumulated": lambda a, b: (
        np.cumsum(a), np.cumprod(b), np.nancumsum(a), a.cumsum(), np.cumsum(a, dtype=np.int16),
        np.add.accumulate(a), np.multiply.accumulate(b), np.add.reduceat(a, [0, 2]),
        np.logical_and.reduceat(a, [0, 2]), np.vander(a, 3), np.cumsum(a.reshape(5, 1), axis=0),
    ),
    "summed": lambda a, b: (sum(a), sum(a, 1), sum(a.reshape(5, 1)), a.sum(), sum(a.tolist())),
    "python": lambda a, b: (
        a[0].item() * a[1].item(), a.item(1) + 300, a.tolist()[0] * 2, isinstance(a.item(0), int),
        np.array([[a[0], 300], [2, b[0]]]), np.array([a[0], 1.5]), np.stack([a[0], 300]),
        np.append(a, 300), np.hstack([a, 300]), round(a[0], -1) if a.dtype.kind in "iu" else 0,
    ),
    "compared": lambda a, b: (
        a > -1, a < 300, a >= -1, a <= 300, a == 300, a != -1, a[1] >= -1, a[0] < 300,
        np.greater(a, -1), np.less(a, 300), np.equal(a, -1), np.clip(a, -1, 300), a < b,
        np.clip(a, 1, 2),
    ),
    "convolved": lambda a, b: [
        fun(x, y, mode)
        for fun in (np.convolve, np.correlate)
        for mode in ("full", "same", "valid")
        for x, y in ((a, b), (a, b[:2]), (a, b[:3]), (a[:2], b))
    ],
    "others": lambda a, b: (
        np.correlate(a, b), np.trapezoid(a), np.trapezoid(a, dx=2), np.trapezoid(a, b),
        np.reciprocal(a[:3]), np.polyder(a), np.polyder(a, 2), np.polymul(a, b), np.outer(a, 2),
        np.polyval(a, 2), np.polyfit(np.arange(5), a, 1), np.tril(a), np.triu(a, 1),
        np.choose([0, 1, 0, 1, 0], [a, b]), a.dot(2), np.dot(a, b),
        np.diff(a, prepend=0) if a.dtype != bool else 0,
    ),
    "divided": lambda a, b: (
        7 // a, 7 % a, b // a, b % a, np.floor_divide(b, a), np.remainder(b, a), np.fmod(b, a),
        np.divmod(b, a), b // (a - a if a.dtype != bool else a ^ a), a[1] // 2, a[1] % 2,
    ),
    "rounded": lambda a, b: (np.around(a, -1), a.round(-1), np.round(a, -2), np.around(a, -5)),
}  # fmt: skip
INTEGERS = [np.uint8, np.int8, np.int32]
KINDS = {"rounded": INTEGERS, "divided": [*INTEGERS, np.bool_]}
CASES = [(name, kind) for name in PROGRAMS for kind in KINDS.get(name, SMALL)]


@pytest.mark.in_turns
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_numbers_of_a_small_type_are_as_in_numpy(name, kind):
    args = [np.array(x).astype(kind) for x in SMALL[kind]]
    with warnings.catch_warnings(action="ignore"):  # NumPy warns of zeros and overflows
        want = PROGRAMS[name](*copy.deepcopy(args))
    got = jax.jit(autograph(PROGRAMS[name]))(*args)
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for k, (a, b) in enumerate(zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True)):
        a, b = np.asarray(a), np.asarray(b)
        assert (a.dtype.kind, a.shape) == (b.dtype.kind.replace("O", "f"), b.shape), k
        np.testing.assert_allclose(a, b, rtol=1e-5, err_msg=f"{k}")


@pytest.mark.parametrize("k", [-1, 3, 300])
def test_a_traced_int_is_compared_by_value(k):
    got = jax.jit(autograph(lambda a, k: (a > k, k >= a, a == k)))(np.uint8([3, 250]), k)
    a = np.uint8([3, 250])
    np.testing.assert_array_equal(got, (a > k, k >= a, a == k))


LARGE = [
    lambda a: a + 300, lambda a: 300 // a, lambda a: a & 300, lambda a: a**300,
    lambda a: a[0] - 300,
    lambda a: np.maximum(a, 300), lambda a: np.add(a, -1), lambda a: a.fill(300),
    lambda a: np.clip(a, 300, 400),
]  # fmt: skip


@pytest.mark.parametrize("fun", LARGE)
def test_an_int_that_does_not_fit_is_an_overflow_error(fun):
    with pytest.raises(OverflowError, match="out of bounds for uint8"):
        jax.jit(autograph(fun))(np.uint8([3, 250]))


def test_arrays_of_jax_keep_to_jax():
    def f(x):
        y = jax.numpy.sort(x)
        return y + 300, y > -1, y // 0

    x = jax.numpy.array([3, 250], np.uint8)
    np.testing.assert_array_equal(jax.jit(autograph(f))(x), jax.jit(f)(x))


def test_fromiter_takes_what_is_traced():
    def f(a):
        return np.fromiter((v * 2 for v in a), float), np.fromiter(map(abs, a), np.float32, count=1)

    got = jax.jit(autograph(f))(np.array([1.0, -2.0]))
    np.testing.assert_array_equal(got[0], [2, -4])
    np.testing.assert_array_equal(got[1], [1])


def test_masked_arrays_of_what_is_traced_are_refused():
    known = np.array([1.0, -2.0])
    traced = jax.jit(autograph(lambda x: x + np.ma.masked_where(known < 0, known).sum()))
    assert float(traced(1.0)) == 2
    with pytest.raises(TransformError, match=r"np\.ma takes a traced array"):
        jax.jit(autograph(lambda x: np.ma.masked_where(x < 0, x).sum()))(known)


def test_a_reduceat_that_jax_has_not_is_refused():
    with pytest.raises(TransformError, match=r"np\.hypot\.reduceat"):
        jax.jit(autograph(lambda a: np.hypot.reduceat(a, [0, 2])))(np.ones(3))
    total = jax.jit(autograph(lambda a: (np.hypot.reduce(a), np.floor_divide.reduce(a))))
    np.testing.assert_allclose(total(np.array([12.0, 4.0, 3.0])), (13, 1))


def test_one_triangle_of_a_matrix_counts():
    def f(m):
        return np.linalg.eigvalsh(m), np.linalg.eigvalsh(m, "U"), np.linalg.cholesky(m)

    m = np.array([[4.0, 1.0], [2.0, 5.0]])
    for a, b in zip(jax.jit(autograph(f))(m), f(m), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_a_number_that_a_loop_adds_small_integers_to_is_one_of_them():
    def total(a):
        s = 0
        for v in a:
            s += v
        return s

    def by_index(a, n):
        s = 5
        for i in range(n):
            s = s * 2 + a[i]
        return s, s // 3

    def within(a):
        s = 0
        for row in a.reshape(3, 1):
            for v in row:
                s += v
        return s

    def large(a):
        s = 300
        for v in a:
            s = v
        return s

    with np.errstate(over="ignore"):
        for kind in np.uint8, np.int16, np.uint32:
            a = np.array([200, 100, 50], kind)
            for f, args in (total, (a,)), (by_index, (a, 3)), (within, (a,)):
                got, want = jax.jit(autograph(f))(*args), f(*args)
                for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
                    assert (x.dtype, x) == (y.dtype, y)
            assert jax.jit(autograph(large))(a) == 50


def test_what_takes_no_booleans_says_so():
    for f in np.positive, lambda m: np.percentile(m, 30), lambda m: np.nanquantile(m, 0.5):
        said = []
        for run in f, jax.jit(autograph(lambda m, f=f: f(m))):
            with pytest.raises(TypeError) as caught:
                run(np.array([True, False, True]))
            said.append(str(caught.value))
        assert said[0] == said[1]


def test_the_differences_that_unwrap_takes_of_small_integers_wrap_around():
    for kind, period in (np.int8, 2 * np.pi), (np.uint8, 7.5), (np.int32, 10):
        a = np.array([[1, 120, 6, 5], [100, 1, 50, 127]], kind)
        for f in lambda a, p=period: np.unwrap(a, period=p), lambda a: np.unwrap(a, axis=0):
            got, want = jax.jit(autograph(f))(a), f(a)
            assert got.dtype.kind == want.dtype.kind
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-3)


def test_an_item_of_an_unsigned_sum_is_an_int_of_python():
    f = lambda x: x.sum().item() * x
    x = np.array([200, 3, 7], np.uint8)
    with jax.enable_x64(True):
        got = jax.jit(autograph(f))(x)
    assert got.dtype == np.uint8 and np.array_equal(got, f(x))


def test_an_integer_of_numpy_or_a_float_of_python_leaves_a_note():
    f = lambda x: (x[0] if x[1] > 0 else 0.0) * x
    with listen() as notes:
        jax.jit(autograph(f))(np.array([100, 3, -4], np.int8))
    assert any("a number of Python's or one of int8 is float" in n.what for n in notes)


CASTS = np.array([np.nan, np.inf, -np.inf, 1e10, -1e10, 1e19, -1.5, 300.5, 2.0**31, 2.0**63, 3e9])


@pytest.mark.parametrize("kind", ["int8", "uint8", "int16", "int32", "uint32", "int64", "uint64"])
def test_a_float_that_no_integer_holds_is_what_numpy_makes_of_it(kind):
    with jax.enable_x64(True), np.errstate(invalid="ignore"):
        for given in (CASTS, CASTS.astype(np.float32), CASTS.astype("bfloat16")):
            cast = lambda x: x.astype(kind)
            assert np.array_equal(jax.jit(autograph(cast))(given), cast(given))


def test_a_float_of_python_that_an_integer_of_numpy_has_no_room_for_is_noted_or_caught():
    def caught(x):
        try:
            return np.uint32(x) + 0.0
        except OverflowError:
            return -7.0

    for x in (-1.0, 1e10, np.inf, 5.5):
        assert float(jax.jit(autograph(caught))(x)) == caught(x)
    with listen() as notes:
        jax.jit(autograph(lambda x: np.uint32(x)))(-1.0)
    assert [n.what.partition(" is not tested")[0] for n in notes] == ["a float that becomes an int"]
