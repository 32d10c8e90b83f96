"""What NumPy shows in place, ours shows: a later write to either is seen through the other."""

import jax
import numpy as np
import pytest

from malleable import TransformError, autograph
from tests.frontend.behaviour.behaviour import assert_same

windows = np.lib.stride_tricks.sliding_window_view
strided = np.lib.stride_tricks.as_strided
A = np.arange(1.0, 7.0, dtype=np.float32).reshape(2, 3)
SHOWN = [  # views and copies alike: NumPy says which
    lambda a: np.diagonal(a), lambda a: a.diagonal(1), lambda a: np.diag(a),
    lambda a: np.linalg.diagonal(a), lambda a: np.einsum("ii->i", a[:, :2]),
    lambda a: np.broadcast_to(a[0], (2, 3)), lambda a: np.broadcast_to(array=a, shape=(1, 2, 3)),
    lambda a: np.broadcast_arrays(a[0], a)[1], lambda a: np.meshgrid(a[0], a[1])[0],
    lambda a: np.meshgrid(a[0], a[1], sparse=True, copy=False)[1], lambda a: np.ix_(a[0], a[1])[0],
    lambda a: windows(a[0], 2), lambda a: windows(a[:, :2], (1, 2), writeable=True),
    lambda a: strided(a, (2, 2), (3 * a.itemsize, a.itemsize)),
    lambda a: a.T.ravel(), lambda a: a.T.ravel("K"), lambda a: a.T.reshape(2, 3),
    lambda a: a.ravel(),
    lambda a: np.transpose(a, axes=(1, 0)), lambda a: np.swapaxes(a=a, axis1=0, axis2=1),
    lambda a: np.linalg.matrix_transpose(a), lambda a: np.rot90(np.flip(a)),
    lambda a: np.split(a, 3, axis=1)[1], lambda a: np.moveaxis(np.atleast_3d(a), 0, 1),
    lambda a: np.ascontiguousarray(a.T), lambda a: np.ascontiguousarray(a[0, ::2]),
    lambda a: np.asfortranarray(a), lambda a: np.asfortranarray(a.T),
    lambda a: np.require(a, None, "F"),
    lambda a: np.asarray(a, order="F"), lambda a: np.copy(a.T).reshape(-1),
    lambda a: np.astype(a, a.dtype, copy=False), lambda a: np.real_if_close(a),
    lambda a: np.real(a),
    lambda a: a.imag, lambda a: a.view(np.int32), lambda a: a.view(np.uint32)[0],
    lambda a: a.view(),
    lambda a: a.flat[:], lambda a: a.flat[1:3], lambda a: np.diagonal(np.flip(a.T)[1:]),
    lambda a: np.compress([True, True], a, axis=0),
]  # fmt: skip


def later_writes(show, a):
    shown = show(a)
    a[0, 0] = 9
    a[1] = -1
    return shown, a


def writes_through(show, a):
    shown = show(a)
    shown[...] = 7
    a[0] += 1
    return shown, a


def writes_in_a_branch(show, a):
    a = a * 1
    shown = show(a)
    if a[0, 0] < 50:
        a[0, 1] = 40
    return shown, a


def outcome(run):
    try:
        return run()
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize("program", [later_writes, writes_through, writes_in_a_branch])
@pytest.mark.parametrize("show", SHOWN)
def test_writes_are_seen_where_numpy_shows_them(show, program):
    want = outcome(lambda: program(show, A.copy()))
    for convert in autograph, lambda f: jax.jit(autograph(f)):
        got = outcome(lambda run=convert: run(lambda a: program(show, a))(A.copy()))
        assert type(want) is not str or got == want
        for x, y in zip(got, want, strict=True):
            assert np.shape(x) == np.shape(y)
            np.testing.assert_array_equal(x, y)


def test_gradients_go_through_windows():
    def f(x):
        return (windows(x, 2) * np.broadcast_to(x[:2], (2, 2))).sum()

    slope = jax.grad(autograph(f))(np.arange(3.0, dtype=np.float32))
    np.testing.assert_allclose(slope, [1, 4, 1])


def test_strides_beyond_the_end_are_refused():
    with pytest.raises(TransformError, match="beyond its ends"):
        jax.jit(autograph(lambda a: strided(a, (3, 3), (12, 4))))(A)


def of_a_view(x):
    y = x.view()
    back = y[::-1]
    y.shape = 2, -1
    turned = y.T
    y.shape = 4
    y[0], turned[1, 1] = 9, -3
    back[1] += 1
    return x, y, back, turned


def of_an_array_that_has_views(x):
    part = x[1:]
    x.shape = (2, 2)
    for i in range(3):
        if x[0, 0] < i:
            part[0] += i
        x[1] += 1
    while part[0] < 100:
        part += 7
    return x, part


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of NumPy 2.5
@pytest.mark.parametrize("program", [of_a_view, of_an_array_that_has_views])
def test_a_new_shape_is_of_the_same_memory(program):
    assert_same(program, np.arange(4, dtype=np.float32))


def test_a_new_shape_under_a_test_is_refused():
    def f(x):
        if x[0] > 0:
            x.shape = (2, 2)
        return x

    with pytest.raises(TransformError, match="the shape of an array from before changes"):
        jax.jit(autograph(f))(np.arange(4.0))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of NumPy 2.5
def test_a_new_shape_of_a_part_of_what_an_index_picks_is_refused():
    def f(x, i):
        part = [x + 1, x * 2][i].reshape(2, 2)
        if x[0] > 0:
            part.shape = 4
        return part

    with pytest.raises(TransformError, match="the shape of an array from before changes"):
        jax.jit(autograph(f))(np.arange(4.0), 1)


@pytest.mark.parametrize(
    "make",
    [
        lambda a: a.T + 1, lambda a: 2 - a.T, lambda a: -a.T, lambda a: np.exp(a.T),
        lambda a: (a.T * 2) ** 2, lambda a: a.T + np.ones((3, 2), a.dtype),
        lambda a: a.T + a.T.copy(), lambda a: a[:, ::2].T * 2, lambda a: a.T[None] + 0,
        lambda a: a.T.astype(np.int32), lambda a: np.where(a.T > 1, a.T, 0),
        lambda a: np.array(a.T), lambda a: np.zeros_like(a.T), lambda a: np.full_like(a.T, a[0, 0]),
        lambda a: np.sort(a.T, 0), lambda a: a.T.cumsum(0), lambda a: a.T.round(1),
        lambda a: a[:, :2].T @ a[:, 1:].T, lambda a: np.matmul(a[:, :2].T, a[:, 1:]),
        lambda a: (a.T + 1)[::-1], lambda a: np.divmod(a.T, 2)[0],
        lambda a: np.concatenate([a.T, a.T], 1), lambda a: np.stack([a.T, a.T * 2]),
        lambda a: np.concatenate([a.T, np.ones((1, 2))]), lambda a: np.vstack((a.T, a.T)),
        lambda a: np.hstack([a.T, a.T]), lambda a: np.append(a.T, a.T, 0),
        lambda a: np.block([[a.T], [a.T]]), lambda a: np.roll(a.T, 1, 0),
        lambda a: np.pad(a.T, 1, constant_values=2), lambda a: np.diff(a.T, axis=0),
    ],
)  # fmt: skip
def test_a_result_lies_in_memory_in_the_order_of_its_operands(make):
    """So NumPy says whether `ravel` and `reshape` show it, or copy it."""

    def written(a):
        done = []
        for show in (np.ravel, lambda b: b.T.reshape(-1), lambda b: b.ravel("F"), lambda b: b.T):
            b = make(a)
            show(b)[0] = 99
            done.append(b)
        return done

    for got, want in zip(jax.jit(autograph(written))(A), written(A.copy()), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)
