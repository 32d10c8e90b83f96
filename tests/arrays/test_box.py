"""A box behaves as NumPy's array does, whether its content is known or traced."""

import copy
import pickle

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from malleable import TransformError
from malleable.arrays import journal
from malleable.arrays.box import Box, frozen, is_traced, rebox, unbox


def matrix():
    return np.arange(9.0).reshape(3, 3) + 1


def vector():
    return np.array([3.0, -1.0, 4.0, 1.5, -5.0])


def ints():
    return np.array([3, 1, 4, 1, 5])


def _numbers(out):
    return jax.tree.map(np.asarray, unbox(out))


def same_everywhere(program, *args, exact=False, vmapped=True):
    """The program on NumPy arrays, on boxes, on boxes under jit and vmap, in 32 and 64 bits."""
    fresh = lambda: [a.copy() if isinstance(a, np.ndarray) else a for a in args]
    with np.errstate(all="ignore"):
        want = program(*fresh())
    boxed = [Box(a) if isinstance(a, np.ndarray) else a for a in fresh()]
    with np.errstate(all="ignore"):
        check(program(*boxed), want, 1e-12, exact=True)
    run = lambda *xs: unbox(program(*rebox(xs)))
    for bits in (True, False):
        with jax.enable_x64(bits):
            check(jax.jit(run)(*fresh()), want, 1e-12 if bits else 1e-4, exact=exact and bits)
            if vmapped and bits:
                many = [np.stack([a, a]) if isinstance(a, np.ndarray) else a for a in fresh()]
                axes = [0 if isinstance(a, np.ndarray) else None for a in many]
                out = jax.jit(jax.vmap(run, in_axes=axes))(*many)
                check(jax.tree.map(lambda x: np.asarray(x)[1], out), want, 1e-12)


def check(got, want, tolerance, exact=False):
    got, want = jax.tree.leaves(_numbers(got)), jax.tree.leaves(_numbers(want))
    assert len(got) == len(want)
    for a, b in zip(got, want):
        assert a.shape == b.shape
        assert a.dtype == b.dtype or not exact
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


# ---------------------------------------------------------------- writing


def write_row(a):
    row = a[1]
    row[0] = 2
    return a


def write_slices(a):
    a[::2] += 1
    a[:, 1] *= 3
    a[::-1, 0] = [7, 8, 9]
    a[..., 2] -= 1
    a[-1] /= 2
    return a


def write_fancy(a):
    a[range(3), range(3)] = 0.5
    a[[0, 2]] = a[[2, 0]]
    a[np.array([0, 1]), 1:] = [[1, 2], [3, 4]]
    a[[0, 1], [1, 1]] += 10
    return a


def write_prefix(a):
    k = 2
    a[1, :k] = a[0, 1:]
    a[0][1:][0] = 8
    return a


def swap_rows(a):
    x, y = a[0].copy(), a[2].copy()
    a[0], a[2] = y, x
    a[[0, 1]] = a[[1, 0]]
    return a


def write_through_shapes(a):
    a.T[0] = 1
    a.ravel()[3] = -1
    a.flat[0] = 9
    a.reshape(-1)[5:7] += 1
    a.T.flat[1] = 77
    a.swapaxes(0, 1)[1, 2] = 5
    a[None][0, 0, 0] = 4
    a.T.ravel()[0] = 1000  # a copy
    return a


def write_rows_in_a_loop(a):
    for i, row in enumerate(a):
        row *= i
        row[i] = -1
    return a


def alias(a):
    b = a
    b[0, 0] = 5
    c = a.copy()
    c[1, 1] = 7
    d = a[:]
    d += 1
    return a, c


def whole(a):
    a[...] = 3
    a[:] = a + np.arange(3)
    a += a.T
    a -= a[0]
    a.fill(2.5)
    a[1:] = a[0]
    return a


def overlapping(a):
    a[1:] = a[:-1]
    a[:, 1:] += a[:, :-1]
    return a


def out_argument(a):
    z = a.copy()
    np.add(a, 1, out=z)
    np.multiply(z[0], 2, out=z[0])
    np.sqrt(a, z, where=a > 4)
    return z


def ufunc_at(a):
    np.add.at(a, [0, 0, 1], 2.0)
    np.subtract.at(a[0], [1, 1], [1.0, 2.0])
    np.maximum.at(a, (0, 0), 50.0)
    return a


def in_place_functions(a):
    np.fill_diagonal(a, [7, 8, 9])
    np.copyto(a[0], 3)
    np.copyto(a[1], a[2], where=a[2] > 8)
    np.put(a, [1, 2], [9, 8])
    np.place(a, a > 8.5, [1, 2])
    np.putmask(a, a < 0, 0)
    a.sort(axis=0)
    return a


PROGRAMS = [write_row, write_slices, write_fancy, write_prefix, swap_rows, write_through_shapes]
PROGRAMS += [write_rows_in_a_loop, alias, whole, overlapping, out_argument, ufunc_at]
PROGRAMS += [in_place_functions]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_writes_are_those_of_numpy(program):
    same_everywhere(program, matrix(), exact=True)


def write_mask(x, y):
    m = x > 1
    x[m] = y[m] * 2
    x[x < -2] = 0
    x[~m] += 1
    x[m & (y > 3)] = np.sin(y[m & (y > 3)]) + x[m & (y > 3)]
    return x


def test_masks_are_those_of_numpy():
    same_everywhere(write_mask, vector(), ints() * 1.0, exact=True)


def at_traced_indices(x, i):
    x[i[0]] = 7
    x[i[1] - 2] += x[i[0]]
    x[i[:2]] = x[i[1:3]]
    x[-i[1]] = i[3]
    return x, x[i[1]], x[i]


def test_indices_may_be_traced():
    same_everywhere(at_traced_indices, np.arange(7.0), ints(), exact=True)


def rows_at_traced_indices(a, i):
    row = a[i[1]]
    row[0] = 2
    row[i[1]] += 5
    a[i[1], 2] = 4
    a[:, i[1]] *= 2
    a[i[1]][i[1]] = 17
    return a


def test_a_row_at_a_traced_index_is_a_view():
    same_everywhere(rows_at_traced_indices, matrix(), ints(), exact=True)


# ---------------------------------------------------------------- reading and computing


def operators(x, y, i):
    two = np.float64(2)
    return (
        (x + y, x - 1, 2 * x, two * x, x / 2, x // 2, x % 2, x**2, 2**y, y**0.5, -x, +x, abs(x)),
        (x < y, x <= 1, x == y, x != 3, x > y, x >= 0, ~(x > 0), (x > 0) & (y > 1), (x > 0) ^ True),
        (x @ y, np.ones((2, 5)) @ x, [1, 2, 3, 4, 5] * x, x + tuple(range(5)), np.arange(5) - x),
        (i << 1, i >> 1, i | 1, i // 2, i / 2, i % 3, i**2, divmod(x, 2), divmod(7, y), 1 / y),
    )


def test_operators_are_those_of_numpy():
    same_everywhere(operators, vector(), vector() + 7, ints(), exact=True)


def methods(a):
    return (
        (a.sum(), a.sum(0), a.mean(axis=1), a.min(), a.max(1), a.prod(), a.std(), a.var(ddof=1)),
        (a.argmin(), a.argmax(0), a.cumsum(), a.cumprod(1), a.any(), a.all(1), a.trace()),
        (a.T, a.ravel(), a.flatten(), a.reshape(9, 1), a.reshape((1, -1)), a.transpose(1, 0)),
        (
            a.clip(2, 5),
            a.round(1),
            a.conj(),
            a.dot(a),
            a.diagonal(),
            a.repeat(2, 0),
            a.take([1, 2]),
        ),
        (a.squeeze(), a.swapaxes(0, 1), a.astype(int), a.astype("f4").astype(float), a.argsort(0)),
        (a[None].squeeze(0), a[0].searchsorted(1.5), a.real, a.imag, a.copy(), a.item(1, 1)),
        (a.sum(keepdims=True), a.max(initial=100.0), a.sum(axis=(0, 1)), a.tolist()),
    )


def test_methods_are_those_of_numpy():
    same_everywhere(methods, matrix() / 3, exact=True)


def complex_parts(z):
    z.real = 3
    z.imag[1:] = 7
    z.real[0] += 1
    return z, z.conj(), abs(z), z.real, z.imag.sum(), np.angle(z), z.real.dtype.type(1)


def test_real_and_imaginary_parts_are_views():
    same_everywhere(complex_parts, vector() + 2j)


def scalars(x):
    a, b = x[0], x[1]
    c = a
    a += 1
    return a, c, a / b, a**2, -a, round(a), round(a, 1), abs(b), a > b, divmod(a, 2), min(1, 2) * a


def test_scalars_are_those_of_numpy():
    same_everywhere(scalars, vector(), exact=True)


def test_attributes_of_a_traced_array():
    def program(a):
        box = Box(a)
        assert (box.shape, box.ndim, box.size, len(box)) == ((2, 3), 2, 6, 2)
        assert box[0].shape == (3,) and box.T.shape == (3, 2) and box[:, None].shape == (2, 1, 3)
        assert box.dtype == np.float32 and box.itemsize == 4 and box.nbytes == 24
        assert isinstance(box, np.ndarray) and box.flags.c_contiguous
        assert not box.T.flags.c_contiguous
        assert f"{box} {box!r} {box[0, 0]:.3f}" == "<float32[2, 3]> <float32[2, 3]> <float32[]>"
        return unbox(box.at[0].set(box[1]) + 1)

    assert jax.jit(program)(np.ones((2, 3), np.float32)).shape == (2, 3)


def test_a_scalar_pretends_to_be_the_number_it_stands_for():
    def program(x, y, n):
        x, y, n = rebox((x, y, n))
        assert isinstance(x, float) and not isinstance(x, np.ndarray)
        assert isinstance(y, np.floating) and isinstance(y, np.float32)
        assert isinstance(n, int) and isinstance(y > x, np.bool_)
        return unbox(x + y)

    jax.jit(program)(1.0, np.float32(2), 3)


def test_known_scalars_are_numbers_of_numpy():
    box = Box(vector())
    assert type(box[0]) is np.float64 and type(box.sum()) is np.float64
    assert type(np.sum(box)) is np.float64 and type(box + 1) is Box
    assert hash(Box(2.0)) == hash(2.0)
    assert 4.0 in box and 17.0 not in box
    assert float(Box(np.array([2.0]))[0]) == 2.0 and int(Box(np.array(2.0))) == 2


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize(
    "run", [lambda f, x: f(Box(x)), lambda f, x: jax.jit(lambda x: f(Box(x)))(x)]
)
@pytest.mark.parametrize(
    "program, error",
    [
        (lambda x: x.__imul__(1.5), TypeError),
        (lambda x: x.__itruediv__(2), TypeError),
        (lambda x: x[7], IndexError),
        (lambda x: x[0, 0], IndexError),
        (lambda x: x.__setitem__(9, 1), IndexError),
        (lambda x: x.__setitem__(slice(2), [1, 2, 3]), ValueError),
        (lambda x: x.__setitem__(0, 1j), TypeError),
        (lambda x: x[0].__setitem__(0, 1), (TypeError, AttributeError)),
        (lambda x: np.add(x, 0.5, out=x), TypeError),
        (lambda x: hash(x), TypeError),
        (lambda x: x.nothing, AttributeError),
        (lambda x: x.reshape(2, 2), ValueError),
    ],
)
def test_what_numpy_refuses_is_refused(run, program, error):
    with pytest.raises(error):
        run(program, ints())


def test_a_traced_value_has_no_truth():
    with pytest.raises(jax.errors.TracerBoolConversionError):
        jax.jit(lambda x: 1 if Box(x) else 2)(1.0)
    with pytest.raises(jax.errors.TracerArrayConversionError):
        jax.jit(lambda x: np.asarray(Box(x)).sum())(np.ones(2))


# ---------------------------------------------------------------- memory


def test_known_arrays_are_written_in_the_memory_they_have():
    a = matrix()
    box = Box(a)
    box[0][1] = 17
    box.T[2] += 1
    np.add(box, 1, out=box)
    assert a[0, 1] == 18 and a[1, 2] == 8


def test_inside_a_journal_memory_is_left_alone_and_undone():
    a = matrix()
    box = Box(a)
    row = box[1]
    with journal.opened() as changes:
        box[0, 0] = 17
        row += 5
        np.add.at(box, 2, 1.0)
        np.multiply(box, 2, out=box)
        box.T.sort()
        assert box.value[1, 1] != 5
        changes.undo()
    assert np.array_equal(box.value, matrix()) and np.array_equal(row.value, matrix()[1])
    assert np.array_equal(a, matrix())


def test_copies_are_other_arrays():
    box = Box(matrix())
    others = copy.copy(box), copy.deepcopy(box), pickle.loads(pickle.dumps(box)), box.copy()
    box[0] = 0
    for other in others:
        assert type(other) is Box and np.array_equal(other.value, matrix())
    jax.jit(lambda x: copy.deepcopy({"a": Box(x)})["a"].value)(1.0)


def test_a_known_array_becomes_traced_when_something_traced_is_written():
    def program(x):
        box = Box(np.zeros(3))
        part = box[1:]
        assert not is_traced(box) and not is_traced(part)
        part[0] = x
        assert is_traced(box) and is_traced(part) and is_traced(x) and not is_traced([x])
        return unbox(box)

    assert jax.jit(program)(2.0).tolist() == [0, 2, 0]
    assert jax.jacobian(program)(2.0).tolist() == [0, 1, 0]


def test_unbox_goes_into_trees_and_keeps_what_has_no_box():
    tree = {"a": [1, (2.0, "x")], "b": None}
    assert unbox(tree) is tree
    box = Box(np.ones(2))
    got = unbox({"a": [box, (box,)], "s": slice(box, None)})
    assert got["a"][0] is got["a"][1][0] is box.value
    assert type(rebox([jnp.ones(2), 1.0, "x"])[0]) is Box


def test_gradients_pass_through_writes():
    def program(x):
        a = Box(x)
        a[1:] *= a[:-1]
        m = a > 2
        a[m] = a[m] ** 2
        return unbox(a.sum())

    def pure(x):
        x = jnp.concatenate([x[:1], x[1:] * x[:-1]])
        return jnp.where(x > 2, x**2, x).sum()

    x = np.arange(1.0, 5.0)
    ours, wanted = (jax.jit(jax.grad(f))(x) for f in (program, pure))
    np.testing.assert_allclose(ours, wanted, rtol=1e-6)


def test_a_later_write_does_not_change_what_was_computed():
    def program(x):
        z, raw = Box(np.zeros(3)), np.zeros(3)
        out = [x + z, z * x, np.add(z, x), np.concatenate([z, x]), x + raw, np.where(x > 0, z, 9)]
        out += [np.stack([x, z]), np.add(x, raw), np.dot(x, z) + 1]
        y = Box(np.zeros(3))
        y[x > 0] = z[x > 0]
        out += [z[x > 0].sum(), y, frozen(z)]
        z[...] = 5
        raw[...] = 5
        return unbox(out)

    with jax.enable_x64(True):
        got = jax.jit(lambda x: program(Box(x)))(np.ones(3))
        assert max(float(np.max(a)) for a in got) == 1


def test_what_numpy_gives_as_a_view_is_written_through():
    views = (
        np.flip,
        lambda a: np.flip(a, -1),
        lambda a: np.flip(a, (0, 2)),
        lambda a: np.fliplr(a),
        lambda a: np.flipud(a),
        *(lambda a, k=k: np.rot90(a, k, (2, 0)) for k in range(-1, 5)),
        lambda a: np.matrix_transpose(a),
        lambda a: np.unstack(a, axis=1)[1],
        lambda a: np.einsum("ijk->kij", a),
        lambda a: np.einsum("ii->i", a.reshape(-1)[:16].reshape(4, 4)),
        lambda a: a.T.ravel("K"),
        lambda a: a[::-1].ravel("A"),
    )

    def program(a, x, view):
        found = view(a)
        found[(0,) * found.ndim] = x
        return a, found

    for view in views:
        whole = np.arange(24.0, dtype=np.float32).reshape(2, 3, 4)
        got = jax.jit(lambda a, view=view: unbox(program(Box(a), 50.0, view)))(whole)
        for want, found in zip(program(whole.copy(), 50.0, view), got, strict=True):
            np.testing.assert_array_equal(want, found)


def test_einsum_of_one_array_is_not_taken_for_its_out():
    def program(a):
        return np.einsum("ij->j", Box(a)).value

    np.testing.assert_array_equal(jax.jit(program)(np.eye(3)), np.ones(3))


def test_a_write_to_windows_that_overlap_is_refused():
    def program(a):
        windows = np.lib.stride_tricks.sliding_window_view(Box(a), 2, writeable=True)
        windows[0] = 1

    with pytest.raises(TransformError, match="shows elements of its array more than once"):
        jax.jit(program)(np.ones(3))
