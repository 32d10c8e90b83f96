"""NumPy's functions on boxes give what NumPy gives."""

import itertools
import types

import jax
import numpy as np
import pytest

from malleable import autograph, listen
from malleable.arrays.box import Box, rebox, unbox
from malleable.errors import TransformError
from malleable.frontend.counterparts.numpy import (
    CONVERT,
    grid_item,
    implementation,
    replacement,
    vectorized,
)
from tests.arrays.test_box import check
from tests.frontend.behaviour.behaviour import assert_same


class Replaced:
    """np, with every function replaced."""

    def __init__(self, space):
        self._space = space

    def __getattr__(self, name):
        found = getattr(self._space, name)
        if isinstance(found, np.ufunc):
            return Callable(found)
        if isinstance(found, types.ModuleType):
            return Replaced(found)
        new = replacement(found)
        return found if new is None or new is CONVERT else new


class Callable(Replaced):
    def __call__(self, *args, **kwargs):
        return replacement(self._space)(*args, **kwargs)


nq = Replaced(np)
X = np.array([3.0, -1.0, 4.0, 1.5, -5.0])
A = np.array([[4.0, 1, 0.5], [1, 3, 0.25], [0.5, 0.25, 2]])
N = np.array([3, 1, 4, 1, 5])
Z = X + 1j * np.arange(5)

CASES = {
    "nested": lambda n, x, a, i, z: n.array([x[0], 1.0, x[1] * 2]),
    "nested2": lambda n, x, a, i, z: n.array([[x[0], 1], [2, x[1]], (x[2], i[0])]),
    "nested3": lambda n, x, a, i, z: n.array([x, [1, 2, 3, 4, 5], list(x)]),
    "nested dtype": lambda n, x, a, i, z: n.array([x[0], 1.5], dtype=np.int32),
    "nested complex": lambda n, x, a, i, z: n.asarray([z[0], 1.5]),
    "array": lambda n, x, a, i, z: (
        n.array(x),
        n.array(x[0]),
        n.array(i, float),
        n.array(x, ndmin=2),
    ),
    "asarray": lambda n, x, a, i, z: (
        n.asarray(x),
        n.asarray(i, dtype=float),
        n.ascontiguousarray(a),
    ),
    "made": lambda n, x, a, i, z: (
        n.zeros(3),
        n.ones((2, 2), int),
        n.eye(3),
        n.arange(4.0),
        n.full(2, 7),
    ),
    "full": lambda n, x, a, i, z: (
        n.full((2, 2), x[0]),
        n.full_like(x, i[0]),
        n.full(2, x[1], int),
    ),
    "like": lambda n, x, a, i, z: (n.zeros_like(a), n.ones_like(i), n.zeros_like(x, dtype=int)),
    "linspace": lambda n, x, a, i, z: (
        n.linspace(x[0], x[1], 5),
        n.linspace(0, x[0], num=3, endpoint=False),
    ),
    "diag": lambda n, x, a, i, z: (
        n.diag(x),
        n.diag(a),
        n.diagflat([x[0], 2]),
        n.tri(3),
        n.tril(a),
    ),
    "constructors": lambda n, x, a, i, z: (
        n.float64(i[0]),
        n.int64(x[0]),
        n.float64(x),
        n.bool_(x[1]),
    ),
    "join": lambda n, x, a, i, z: (
        n.concatenate([x, i]),
        n.stack((x, x), axis=1),
        n.vstack([a, a[0]]),
    ),
    "join2": lambda n, x, a, i, z: (
        n.hstack((x[0], [1, 2])),
        n.append(x, 3),
        n.column_stack((x, i)),
    ),
    "block": lambda n, x, a, i, z: n.block([[a, a], [a, a * 2]]),
    "sums": lambda n, x, a, i, z: (n.sum(a, 0), n.mean(a, axis=1), n.sum([x[0], x[1]]), n.prod(i)),
    "sums2": lambda n, x, a, i, z: (
        n.max(a, axis=0, keepdims=True),
        n.amin(x),
        n.ptp(x),
        n.sum(i, dtype=float),
    ),
    "stats": lambda n, x, a, i, z: (
        n.median(x),
        n.percentile(x, 30),
        n.quantile(x, [0.1, 0.5]),
        n.std(x, ddof=1),
    ),
    "average": lambda n, x, a, i, z: (
        n.average(x, weights=i),
        n.cov(a),
        n.corrcoef(a),
        n.var(a, axis=0),
    ),
    "sorting": lambda n, x, a, i, z: (
        n.sort(x),
        n.argsort(x),
        n.searchsorted([1, 2, 3], x),
        n.sort(a, axis=0),
    ),
    "arg": lambda n, x, a, i, z: (
        n.argmax(x),
        n.argmin(a, axis=1),
        n.count_nonzero(x > 0),
        n.digitize(x, [0, 2]),
    ),
    "where": lambda n, x, a, i, z: (
        n.where(x > 0, x, 0),
        n.where(i > 1, i, x),
        n.select([x > 2, x < 0], [x, -x], 9),
    ),
    "clip": lambda n, x, a, i, z: (
        n.clip(x, 0, 2),
        n.clip(x, None, 2),
        n.clip(x, a_min=0, a_max=None),
        n.clip(i, 2, 4),
    ),
    "shapes": lambda n, x, a, i, z: (
        n.shape(a),
        n.ndim(x),
        n.size(a, 1),
        n.reshape(a, -1),
        n.ravel(a),
        n.transpose(a),
    ),
    "shapes2": lambda n, x, a, i, z: (
        n.squeeze(a[None]),
        n.expand_dims(x, 1),
        n.atleast_2d(x),
        n.atleast_1d(x[0]),
    ),
    "shapes3": lambda n, x, a, i, z: (
        n.moveaxis(a[None], 0, 2),
        n.swapaxes(a, 0, 1),
        n.rollaxis(a, 1),
        n.tile(x, 2),
    ),
    "shapes4": lambda n, x, a, i, z: (
        n.broadcast_to(x, (2, 5)),
        n.repeat(x, 2),
        n.roll(x, 1),
        n.flip(a, 0),
        n.rot90(a),
    ),
    "grids": lambda n, x, a, i, z: (
        n.meshgrid(x, i),
        n.ix_([0, 1], [2]),
        n.indices((2, 2)),
        n.outer(x, i),
    ),
    "broadcast": lambda n, x, a, i, z: (
        n.broadcast_arrays(x[:, None], i),
        n.broadcast(x[:, None], i).shape,
    ),
    "linalg": lambda n, x, a, i, z: (
        n.linalg.solve(a, x[:3]),
        n.linalg.inv(a),
        n.linalg.det(a),
        n.linalg.norm(x),
    ),
    "linalg2": lambda n, x, a, i, z: (
        n.linalg.cholesky(a),
        n.linalg.eigvalsh(a),
        n.linalg.norm(a, ord=2, axis=(0, 1)),
    ),
    "linalg3": lambda n, x, a, i, z: (
        n.linalg.lstsq(a, x[:3], rcond=None)[0],
        n.linalg.matrix_power(a, 2),
        n.linalg.pinv(a),
    ),
    "products": lambda n, x, a, i, z: (
        n.dot(a, a),
        n.inner(x, i),
        n.vdot(z, z),
        n.cross(x[:3], a[0]),
        n.kron(x, i),
    ),
    "products2": lambda n, x, a, i, z: (
        n.einsum("ij,j->i", a, x[:3]),
        n.tensordot(a, a, axes=1),
        n.matmul(a, a),
        n.trace(a),
    ),
    "fft": lambda n, x, a, i, z: (
        n.fft.fft(x),
        n.fft.rfft(x),
        n.fft.ifft(z).real,
        n.fft.fftfreq(4),
    ),
    "calculus": lambda n, x, a, i, z: (
        n.diff(x),
        n.gradient(x),
        n.trapezoid(x, dx=2),
        n.cumsum(x),
        n.cumprod(a, axis=1),
    ),
    "interp": lambda n, x, a, i, z: (
        n.interp(x, [0, 1, 5], [1, 2, 3]),
        n.interp(2.5, n.arange(5), x),
        n.convolve(x, [1, 2]),
    ),
    "poly": lambda n, x, a, i, z: (
        n.polyval(x, 2.0),
        n.polyval([1, 2], x),
        n.polyadd(x, i),
        n.polymul(x, [1, 2]),
        n.polyder(x),
    ),
    "roots": lambda n, x, a, i, z: n.sort(n.roots([1.0, x[1], -6.0]).real),
    "compare": lambda n, x, a, i, z: (
        n.allclose(x, x),
        n.array_equal(x, i),
        n.isclose(x, 3),
        n.isfinite(x),
        n.isin(i, [1, 3]),
    ),
    "types": lambda n, x, a, i, z: (
        n.iscomplexobj(z),
        n.isrealobj(x),
        n.isscalar(x[0]),
        n.isscalar(x),
        n.iterable(x),
        n.finfo(x.dtype).eps > 0,
    ),
    "types2": lambda n, x, a, i, z: (
        n.issubdtype(x.dtype, np.floating),
        n.can_cast(i.dtype, float),
        n.iscomplex(z),
    ),
    "logic": lambda n, x, a, i, z: (
        n.any(x > 3),
        n.all(a > 0, axis=1),
        n.logical_and(x > 0, i > 1),
        n.logical_not(x),
    ),
    "ufuncs": lambda n, x, a, i, z: (
        n.sin(x),
        n.hypot(x, i),
        n.maximum(x, 0),
        n.sign(x),
        n.arctan2(x, i),
        n.fmod(x, 3),
        n.exp2(i),
    ),
    "ufuncs2": lambda n, x, a, i, z: (
        n.add(x, 1),
        n.power(x, 2),
        n.divmod(x, 2),
        n.modf(x),
        n.frexp(x),
        n.ldexp(x, 2),
        n.copysign(1, x),
    ),
    "ufuncs3": lambda n, x, a, i, z: (
        n.add.reduce(a),
        n.add.accumulate(x),
        n.multiply.outer(x, i),
        n.maximum.reduce(x),
        n.logical_or.reduce(x > 3),
    ),
    "ufuncs4": lambda n, x, a, i, z: (
        n.sqrt([x[0], 4]),
        n.exp(2.0),
        n.float_power(i, 2),
        n.add(x, i, dtype=float),
        n.real(z),
        n.imag(z),
    ),
    "ufunc out": lambda n, x, a, i, z: (
        n.add(x, 1, x),
        n.sqrt(a, out=a),
        n.cumsum(x, out=x),
        n.clip(a, 1, 2, out=a),
        x,
        a,
    ),
    "at": lambda n, x, a, i, z: (n.add.at(x, [0, 0], 1), n.subtract.at(a, (0, 1), 2), x, a)[2:],
    "writing": lambda n, x, a, i, z: (
        n.fill_diagonal(a, 0),
        n.copyto(x, i),
        n.put(x, [0, 1], 8),
        n.place(x, x > 3, [1, 2]),
        x,
        a,
    )[4:],
    "put": lambda n, x, a, i, z: (
        n.put_along_axis(a, n.array([[0], [1], [2]]), 9, 1),
        n.take_along_axis(a, n.argsort(a, axis=1), 1),
        a,
    )[1:],
    "taken": lambda n, x, a, i, z: (
        n.take(x, [0, 2]),
        n.take(a, 1, axis=1),
        n.choose(i % 2, [x, -x]),
        n.delete(x, 1),
        n.insert(x, 1, 7),
    ),
    "splitting": lambda n, x, a, i, z: (
        n.split(x[:4], 2),
        n.array_split(x, 2),
        n.pad(x, 1),
        n.pad(x, (1, 2), mode="edge"),
    ),
    "nan": lambda n, x, a, i, z: (
        n.nan_to_num(n.log(x)),
        n.nansum(x),
        n.nanmax(a, axis=0),
        n.nanmean(x),
    ),
    "piecewise": lambda n, x, a, i, z: (
        n.piecewise(x, [x < 0, x >= 2], [lambda v: -v, 7]),
        n.piecewise(x, [x > 0], [1, lambda v: v * 2]),
    ),
    "along": lambda n, x, a, i, z: n.apply_along_axis(lambda r: r[::-1] * 2, 1, a),
    "bins": lambda n, x, a, i, z: (
        n.bincount(n.array([0, 1, 1]), minlength=3),
        n.histogram(x, bins=3, range=(-5, 5)),
        n.vander(x, 3),
    ),
    "angles": lambda n, x, a, i, z: (
        n.angle(z),
        n.unwrap(x),
        n.sinc(x),
        n.deg2rad(x),
        n.round(x, 1),
        n.around(x),
    ),
    "ptrs": lambda n, x, a, i, z: (
        n.triu_indices_from(a),
        n.diag_indices(3),
        n.tril(a, -1),
        n.unravel_index(3, (2, 2)),
    ),
    "enumerate": lambda n, x, a, i, z: [v * j[0] for j, v in n.ndenumerate(a)],
}


def inputs():
    return [v.copy() for v in (X, A, N, Z)]


@pytest.mark.in_turns
@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_numpy(name):
    program = CASES[name]
    with np.errstate(all="ignore"):
        want = program(np, *inputs())
        check(program(nq, *map(Box, inputs())), want, 1e-12, exact=True)
    run = lambda *xs: unbox(program(nq, *rebox(xs)))
    for bits in (True, False):
        with jax.enable_x64(bits), np.errstate(all="ignore"):
            check(jax.jit(run)(*inputs()), want, 1e-11 if bits else 1e-4, exact=bits)


def test_asarray_of_a_box_is_the_box():
    def program(x):
        box = Box(x)
        assert nq.asarray(box) is box and nq.asanyarray(box, dtype=box.dtype) is box
        assert nq.array(box) is not box and nq.asarray(box[0]).ndim == 0
        assert not nq.asarray(box[0]).scalar and nq.float64(box[0]).scalar
        return unbox(box)

    jax.jit(program)(np.ones(2, np.float32))
    known = Box(np.ones(2))
    assert nq.asarray(known) is known


def test_arrays_made_in_the_function_can_be_written_with_traced_values():
    def program(x):
        out = nq.zeros(3)
        out[1] = x
        like = nq.zeros_like(out)
        like[0] = out[1]
        assert type(nq.arange(3)) is Box and not nq.empty_like(out).traced
        return unbox((out, like))

    out, like = jax.jit(program)(2.0)
    assert out.tolist() == [0, 2, 0] and like.tolist() == [2, 0, 0]


def test_views_from_functions_write_through():
    def program(a):
        a = Box(a)
        nq.transpose(a)[0] = 7
        nq.ravel(a)[-1] = 5
        nq.squeeze(nq.expand_dims(a, 0))[1, 1] = -1
        return unbox(a)

    want = A.copy()
    want[:, 0], want[2, 2], want[1, 1] = 7, 5, -1
    np.testing.assert_allclose(jax.jit(program)(A), want, rtol=1e-6)


def test_grid_objects():
    def program(x):
        x = Box(x)
        return unbox((grid_item(np.r_, (x, 1.0, [2, 3])), grid_item(np.c_, (x, x))))

    r, c = jax.jit(program)(X)
    np.testing.assert_allclose(r, np.r_[X, 1.0, [2, 3]])
    np.testing.assert_allclose(c, np.c_[X, X])
    assert type(grid_item(np.r_, (0, slice(1, 3)))) is Box


def test_vectorized_functions():
    vec = np.vectorize(lambda a, b: a * b + 1)
    got = jax.jit(lambda x: unbox(vectorized(vec)(Box(x), 2.0)))(X)
    np.testing.assert_allclose(got, vec(X, 2.0), rtol=1e-6)
    assert type(replacement(vec)(X, 2.0)) is Box


def test_what_is_no_function_of_numpy_is_left_alone():
    assert replacement(len) is None and replacement(jax.numpy.sin) is None
    assert replacement(lambda x: x) is None and replacement([].append) is None
    assert replacement(np.errstate) is np.errstate
    assert replacement(np.sin) is replacement(np.sin)


def test_python_code_without_counterpart_is_to_be_converted():
    assert replacement(np.polynomial.polynomial.polyfromroots) is CONVERT
    assert replacement(np.emath.sqrt) is CONVERT
    assert implementation(np.emath.sqrt).__code__.co_filename.endswith(".py")


def test_random_numbers_and_methods_of_arrays_come_in_boxes():
    assert type(replacement(np.random.default_rng(0).normal)(size=3)) is Box
    assert type(replacement(X.cumsum)()) is Box
    got = jax.jit(lambda x: replacement(X.dot)(Box(x)).value)(X)
    np.testing.assert_allclose(got, X @ X)


@pytest.mark.parametrize(
    "program",
    [
        lambda n: nq.zeros((n, n)),
        lambda n: nq.tri(n),
        lambda n: nq.eye(n),
        lambda n: nq.full((2, n), 2.0),
    ],
)
def test_a_traced_size_names_the_line(program):
    with pytest.raises(TransformError, match=r"(?s)run time.*test_numpy.py:\d+.*hint"):
        jax.jit(lambda n: program(Box(n)))(3)


def test_out_may_be_given_by_position():
    def program(x):
        x, total, product = Box(x), nq.array(0.0), nq.zeros(1)
        nq.sum(x, None, None, total)
        nq.dot(x, x[:, None], product)
        return unbox((total, product))

    total, product = jax.jit(program)(X)
    np.testing.assert_allclose([total, product[0]], [X.sum(), X @ X], rtol=1e-6)


def places_of(a):
    w, rows = np.argwhere(a > 2), np.argwhere(a.ravel() > 1)
    first, zero = a.argmax() * 0, rows[:, 0] * 1.5
    return w[0], w[-1, 1], w[first, 1], w[:, 0].sum(), w[:, ::-1][1], w.mean(axis=0), zero.max()


def test_argwhere_gives_the_places_as_rows():
    assert_same(places_of, np.arange(6.0).reshape(3, 2))


def without_and_with(x, a):
    k = x.argmax()
    one = np.delete(x, k), np.delete(x, -k), np.delete(a, [k % 3], axis=0), np.delete(a, k % 2, 1)
    many = np.delete(x, x > 2).sum(), np.delete(x, np.nonzero(x > 2)[0]).sum()
    twice = np.delete(x, [k, 0, k]).sum(), np.delete(x, slice(1, k)).sum()
    put = np.insert(x, k, x[0]), np.insert(a, k % 3, x[:2], axis=0), np.insert(x, -k, [1, 2])
    return one, many, twice, put, np.append(x, k), np.delete(a, k % 6)


def test_delete_and_insert_at_a_traced_index():
    assert_same(
        without_and_with, np.array([3.0, -1.0, 4.0, 1.5, -5.0, 9.0]), np.arange(6.0).reshape(3, 2)
    )


def test_delete_at_a_traced_float_is_an_index_error_as_in_numpy():
    with pytest.raises(IndexError, match="integer"):
        jax.jit(autograph(lambda x: np.delete(x, x[0])))(np.arange(3.0))


def test_nditer_names_what_goes_over_a_traced_array():
    def f(v):
        return sum(x for x in np.nditer(v))

    with pytest.raises(TransformError, match=r"nditer(.|\n)*test_numpy(.|\n)*x\.flat"):
        jax.jit(autograph(f))(np.arange(3.0))
    assert autograph(f)(np.arange(3.0)) == 3
    assert jax.jit(autograph(lambda v: sum(x for x in v.flat)))(np.arange(3.0)) == 3


@pytest.mark.parametrize("index", ["..., y > 2", "y > 2, ...", "y > 2", "None, y > 2"])
def test_a_mask_of_a_view_without_dims_is_written_through(index):
    space: dict = {}
    exec(f"def f(y, new):\n    y[{index}] = new", space)

    def f(x):
        y = x[0, ...]
        space["f"](y, 5.0)
        x[1, x[1] > 2] = 7.0
        return x

    for x in (np.array([3.0, 1.0]), np.array([1.0, 3.0])):
        np.testing.assert_array_equal(jax.jit(autograph(f))(x), f(np.array(x)))


def test_put_wraps_and_clips_its_indices_and_takes_lists_of_them():
    def f(v, k):
        np.put(v, [9, k], [5.0, 6.0], mode="wrap")
        np.put(v, [k + 20, -3], 7.0, mode="clip")
        v.put([k, 1], [1.0, 2.0], mode="wrap")
        return v

    for k in (2, 11):
        want = np.arange(8.0)
        f(want, k)
        np.testing.assert_array_equal(jax.jit(autograph(f))(np.arange(8.0), k), want)


def test_bit_length_counts_the_bits_of_a_traced_integer():
    f = jax.jit(autograph(lambda n: n.bit_length()))
    assert [int(f(n)) for n in (0, 1, -6, 255, 256)] == [0, 1, 3, 8, 9]


def test_a_histogram_of_traced_numbers_is_as_long_as_it_is_said_to_be():
    def f(at, w):
        return np.bincount(at, minlength=4), np.bincount(np.array([0, 2, 2]), weights=w)

    at, w = np.array([3, 0, 3]), np.array([0.5, 1.0, 2.0])
    assert_same(f, at, w)
    assert np.isnan(jax.jit(autograph(f))(np.array([4, 0, 3]), w)[1]).all()  # a dropped `raise`
    assert np.isnan(jax.jit(autograph(f))(np.array([-1, 0, 3]), w)[1]).all()


def test_an_error_of_jax_in_a_call_names_the_line():
    programs = {
        "known only at run time": lambda v: np.bincount(v),
        "takes arrays of NumPy only": lambda v: np.put_along_axis(v, [v[0]], 1, 0),
    }
    for text, f in programs.items():
        with pytest.raises(TransformError, match=rf"{text}(.|\n)*test_numpy\.py:\d+"):
            jax.jit(autograph(f))(np.arange(3))


def sums(a, b):
    return a + b


def roots(a, b):
    return np.sqrt(b)


def rows(a, b):
    return np.concatenate([a, b])


def choices(a, b):
    return np.where(a > 0, a, b)


def items(a, b):
    return np.array([a[0], b[1]])


def halves(a, b):
    return b / 2


def shifts(a, b):
    return (a > 0) << (b > 0)


def means(a, b):
    return b.mean() + np.mean(b)


FEW = [items, halves, means, shifts, np.append, np.kron, np.convolve, np.polyval]
FEW += [lambda a, b: np.einsum("i,i->i", a, b), lambda a, b: np.select([a > 0], [a], b)]
FEW += [lambda a, b: np.interp(a, b, b), lambda a, b: np.linspace(a[0], b[1], 3)]
FEW += [lambda a, b: np.r_[a, b], lambda a, b: np.average(a, weights=b)]
KINDS = [*((f, "efbhildF?") for f in (sums, roots, rows, choices, np.add, np.maximum, np.dot))]


@pytest.mark.parametrize(("fun", "types"), [*KINDS, *((f, "efbi") for f in FEW)])
def test_a_result_of_another_type_than_numpys_is_said(fun, types):
    for kinds in itertools.product(types, repeat=2):
        a, b = (np.ones(2, kind) for kind in kinds)
        with jax.enable_x64(True), listen() as notes:
            ours = jax.eval_shape(autograph(fun), a, b).dtype
        said = any("in NumPy" in note.what for note in notes)
        assert said == (ours != fun(a, b).dtype), kinds


def test_lists_of_numbers_are_options_of_functions():
    def f(v):
        bins = np.histogram(v, bins=[0, 2, 5, 10], weights=[0.5] * 4)[0]
        area = np.trapezoid(v, x=[0, 1, 3, 4])
        line = np.polyfit(v, v * v, 1, w=[1.0, 2.0, 3.0, 4.0])
        steps = np.ediff1d(v, to_begin=[1, 2], to_end=[3.0])
        mean = np.average(v, weights=[1, 2, 3, 4])
        return mean, bins, area, np.quantile(v, q=[0.2, 0.5]), line, steps

    assert_same(f, np.array([3.0, 1.0, 4.0, 7.0]))


def test_what_jax_does_not_implement_is_an_error_at_the_line_of_the_user():
    def f(v):
        return np.gradient(v, edge_order=2)

    with pytest.raises(TransformError, match=r"np\.gradient: .*edge_order") as caught:
        jax.jit(autograph(f))(np.array([1.0, 4.0, 9.0]))
    assert f"test_numpy.py:{f.__code__.co_firstlineno + 1} in " in str(caught.value)
    assert "hint: " in str(caught.value)


# ---------------------------------------------------------------- types, axes and memory as NumPy's

SMALL = np.array([200, 100, 3, 7], np.uint8)
MATRIX = np.arange(6.0).reshape(2, 3)
HALVES = np.array([0.5, 1.5, 2.5])
TRUTHS = np.array([True, True, False])
WRAPPED = np.array([-1.5, -300.0, 255.9, 256.0, 70000.0, -70001.0])
THROUGHOUT = [
    (lambda m: np.maximum.reduce(m, axis=None), MATRIX),
    (lambda m: np.add.reduce(m, axis=None, keepdims=True), MATRIX),
    (lambda m: np.hypot.reduce(m, axis=None), MATRIX),
    (lambda m: np.logical_and.reduce(m > -1, None), MATRIX),
    (lambda u: sum(u, 0.0), SMALL),
    (lambda u: sum(u, np.int16(0)), SMALL),
    (lambda u: sum(u[u > 5], 0.5), SMALL),
    (lambda u: sum([x for x in u if x > 5], 0.0), SMALL),
    (lambda b: sum(b, np.bool_(True)), TRUTHS),
    (lambda m: sum(m, 1.5), MATRIX),
    (lambda u: np.vectorize(lambda x: x // 3)(u), SMALL),
    (lambda u: np.vectorize(lambda x: x + 0.75, otypes=[np.float32])(u), SMALL),
    (lambda v: np.vectorize(lambda x: x * 2, otypes=[int])(v), HALVES),
    (lambda v: np.vectorize(lambda x: (x, x * 2), otypes=[int, float])(v), HALVES),
    (lambda m: m.T.flatten("K"), MATRIX),
    (lambda m: m.T.flatten("A"), MATRIX),
    (lambda m: np.array(m.T, order="A").ravel("K"), MATRIX),
    (lambda v: np.histogram2d(v, v[::-1], bins=2)[0], HALVES),
    (lambda m: np.dot(m[m > 1], 2.0).sum(), MATRIX),
    (lambda v: np.average(v, weights=[1, 2, 4]), HALVES.astype(np.float32)),
    (lambda v: np.average(v, 0, (v > 1).astype(int), True), HALVES.astype(np.float32)),
    (lambda u: np.average(u), SMALL),
    (lambda v: np.histogram(v, bins=3, weights=[1, 2, 4]), HALVES.astype(np.float32)),
    (lambda v: np.histogram(v, 3, None, True), HALVES),
    (lambda v: np.histogram(v, 3, (-9.0, -v.min()))[0], HALVES),
    (lambda v: np.histogram(v, 3, range=(2.0, v.max() + 3))[0], HALVES),
    (lambda v: np.histogram(v, [2.0, v.max() + 1, 6.0])[0], HALVES),
    (lambda v: np.digitize(v, [1.0, v[2], 6.0]), HALVES),
    (lambda v: np.insert([1.0, v[0]], 1, 4.0), HALVES),
    (lambda v: np.histogram(v, bins=2, weights=v > 1), HALVES.astype(np.float32)),
    (lambda v: np.histogram(v, bins=2, weights=v + 1j), HALVES),
    (lambda v: np.histogram2d(v, v, 2, weights=[1, 2, 4])[0], HALVES),
    (lambda v: v.astype(np.uint8), WRAPPED),
    (lambda v: np.array(v, np.uint16), WRAPPED),
    (lambda v: v.astype(np.uint32), WRAPPED),
    (lambda v: v.astype(np.uint64), WRAPPED),
    (lambda v: v[v < 0].astype(np.int8)[0], WRAPPED),
    (lambda v: np.uint8(v[0]) + np.uint8(1), WRAPPED[1:]),
    (lambda u: u[[0, 1]].astype(float).astype(np.int8), SMALL),
    (lambda u: np.bincount(u, weights=[1, 2, 4, 9], minlength=202), SMALL),
]


def from_matrix(m):
    a = np.array(m, order="F")
    a.reshape(-1)[0] = 99
    return a


def from_numbers(m):
    a = np.array([[m[0, 0], 1.0], [2.0, m[1, 1]]], order="F")
    a.ravel()[1] = 99
    return a


def as_columns(m):
    a = np.asarray([[m[0, 0], 1.0], [2.0, m[1, 1]]], order="F")
    a.ravel("F")[1] = 99
    return a


def of_zeros(m):
    a = np.zeros((2, 3), order="F")
    a[:] = m
    a.reshape(-1)[0] = 99
    a.ravel("F")[1] = 5
    return a


def like_another(m):
    a = np.empty_like(m.T)
    a[:] = m.T
    a.reshape(-1)[0] = 99
    return a.ravel("K")


def flat(m):
    a = m.flatten()
    a[0] = 99
    return m


def columns(m):
    a = m[:, [1, 0]]
    a.ravel()[0] = 99
    a.ravel("F")[1] = 5
    return a


def known_columns(m):
    a = np.arange(6.0).reshape(2, 3)[:, [1, 0]]
    a.reshape(-1)[0] = 99
    return a + m[0, 0]


def by_turned_index(m):
    a = m[m.astype(int).T % 2]
    a.reshape(-1)[0] = 99
    return a


def taken(m):
    a = m.take([1, 0], 1)
    a.reshape(-1)[0] = 99
    return a


def in_its_own_order(m):
    a = m.T.reshape((2, 3), order="A")
    a[0, 0] = 99
    return m, a


IN_MEMORY = (from_matrix, from_numbers, as_columns, of_zeros, like_another, flat)
IN_MEMORY += (columns, known_columns, by_turned_index, taken, in_its_own_order)


@pytest.mark.parametrize(("fun", "x"), THROUGHOUT)
def test_the_type_and_the_shape_are_those_of_numpy(fun, x):
    with jax.enable_x64(True), np.errstate(over="ignore"):
        got, wanted = jax.jit(autograph(fun))(x), fun(x)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-15)
        assert one.shape == np.shape(other) and one.dtype == np.asarray(other).dtype


@pytest.mark.parametrize("f", IN_MEMORY, ids=lambda f: f.__name__)
def test_a_view_is_one_where_it_is_one_of_numpys(f):
    got, wanted = jax.jit(autograph(f))(MATRIX.copy()), f(MATRIX.copy())
    jax.tree.map(np.testing.assert_array_equal, got, wanted)


def test_the_type_of_the_first_result_of_vectorize_leaves_a_note():
    with listen() as notes:
        jax.jit(autograph(lambda v: np.vectorize(lambda x: 1 if x > 1 else 0.5)(v)))(HALVES)
    assert any("results from np.vectorize" in n.what for n in notes)


def laid_by_astype(m):
    a = m.astype(float, order="F")
    a.ravel("K")[1] = 99.0
    return a, m.astype(int, order="F").flatten("A"), m.T.astype(int, order="A").ravel("K")


def kept_by_astype(m):
    m = m.copy()
    m.astype(float, copy=False)[0, 0] = 77.0
    return m


def differences(m):
    return np.diff(m[0], 2), np.diff(m, 2, -1), np.diff(m, 1, 0), np.diff(m, prepend=2.0)


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("fun", [laid_by_astype, kept_by_astype, differences])
def test_types_and_differences_are_made_as_in_numpy(fun, x64):
    m = np.arange(6.0).reshape(2, 3) ** 2
    with jax.enable_x64(x64):
        got = jax.jit(autograph(fun))(m)
    assert all(map(np.array_equal, jax.tree.leaves(got), jax.tree.leaves(fun(m))))


METHODS = ["hazen", "weibull", "median_unbiased", "normal_unbiased", "interpolated_inverted_cdf"]
ORDERED = {
    **{m: lambda x, q, m=m: np.quantile(x, q, axis=1, method=m) for m in METHODS},
    "percent": lambda x, q: np.percentile(x, 100 * q, method="hazen"),
    "all": lambda x, q: np.quantile(x, 0.3, axis=(0, 1), method="weibull", keepdims=True),
    "square": lambda x, q: np.quantile(x, q.reshape(2, 3), axis=0),
    "square of nan": lambda x, q: np.nanpercentile(x, 100 * q.reshape(2, 3), axis=1, keepdims=True),
    "filled": lambda x, q: np.nan_to_num(np.log(x - 2), True, 7.0, 8.0, -9.0),
    "filled here": lambda x, q: np.nan_to_num(y := np.log(x - 2), False, 7.0, 8.0, 9.0) + y,
}


@pytest.mark.filterwarnings("ignore:divide by zero|invalid value")
@pytest.mark.parametrize("name", ORDERED)
def test_quantiles_are_by_every_formula_of_a_linear_one(name):
    x, q = np.array([[3.0, 1, 2, 5], [7.0, 0, -1, 4]]), np.array([0, 0.1, 0.33, 0.5, 0.77, 1])
    with jax.enable_x64(True):
        got, want = jax.jit(autograph(ORDERED[name]))(x, q), ORDERED[name](x, q)
        assert got.dtype == want.dtype and np.allclose(got, want, rtol=1e-13)


@pytest.mark.parametrize("method", ["closest_observation", "averaged_inverted_cdf"])
def test_a_quantile_that_jax_lacks_is_refused(method):
    with pytest.raises(TransformError, match=f"no method '{method}'\n  at .*test_numpy.py"):
        jax.jit(autograph(lambda x: np.quantile(x, 0.3, method=method)))(np.ones(3))


def test_weights_that_sum_to_zero_are_a_zero_division():
    def mean(x, w, axis=None):
        try:
            return np.average(x, axis, w)
        except ZeroDivisionError:
            return -1.0

    x = np.array([3.0, 1, 2])
    for w in ([1.0, -1, 0], [1.0, 2, 3]):
        w = np.array(w)
        assert jax.jit(autograph(mean))(x, w) == pytest.approx(mean(x, w))
        assert np.isfinite(jax.grad(autograph(mean), 1)(x, w)).all()
    with listen() as notes:
        jax.jit(autograph(lambda x, w: np.average(x, weights=w)))(x, x)
    assert "a division by zero is not tested" in notes[0].what


def _drawn(x):
    rng, old = np.random.default_rng(0), np.random.RandomState(0)
    y = np.array(x)
    rng.shuffle(y)
    return y, rng.permutation(x), rng.permuted(x, axis=1), rng.choice(x, 3), old.permutation(x)


def test_a_generator_moves_what_is_traced():
    x = np.arange(6.0).reshape(3, 2)
    for got, want in zip(jax.jit(autograph(_drawn))(x), _drawn(x), strict=True):
        assert np.array_equal(got, want)


def test_a_list_of_samples_is_one_of_columns():
    fun = lambda x: np.histogramdd([x, -x], [2, 3], weights=x)[0]
    x = np.array([3.0, 1, 2, 5])
    assert np.array_equal(jax.jit(autograph(fun))(x), fun(x))


def test_piecewise_takes_a_number_and_one_condition():
    fun = lambda x: np.piecewise(np.asarray(x), x < 0, [lambda t: -t, lambda t: 2 * t])
    assert jax.jit(autograph(fun))(3.0) == fun(3.0) == 6
