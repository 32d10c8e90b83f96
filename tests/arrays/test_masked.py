"""x[mask] with a traced mask: computed with, reduced, written back as NumPy does."""

import collections

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from malleable import autograph, listen
from malleable.arrays.box import Box, rebox
from malleable.errors import TransformError
from tests.arrays.test_box import same_everywhere


def data():
    return np.array([3.0, -1.0, 4.0, 1.5, -5.0, 9.0]), np.array([2.0, 7.0, 1.0, 8.0, 2.0, 8.0])


def reductions(x, y):
    m = x > 0
    s = x[m]
    return (
        (s.sum(), s.mean(), s.max(), s.min(), s.prod(), s.any(), s.all(), s.size, s.std(), s.var()),
        (np.sum(s), np.max(y[m]), np.mean(s * y[m]), np.dot(s, y[m]), s @ y[m], np.add.reduce(s)),
        (np.sqrt(s).sum(), s[0], s[-1], x[x < -100].sum(), (s > 2).sum(), np.sum(np.abs(x[~m]))),
        np.count_nonzero(m),
    )


def test_reductions():
    same_everywhere(reductions, *data())


def elementwise(x, y):
    m = y > 1.5
    z = x * 0
    z[m] = (np.sin(x[m]) + 2 * y[m] - x[m] ** 2) / (1 + abs(x[m]))
    z[m] += 1
    z[m] *= y[m]
    z[x > 3] = -z[x > 3]
    z[~m] = 4
    z[m] = np.maximum(z[m], 0.5)
    z[m] = np.where(x[m] > 0, z[m], -1)
    return z


def test_elementwise():
    same_everywhere(elementwise, *data(), exact=True)


def between_masks(x, y):
    """As many elements here as there, in other places."""
    x[x > 2] = y[y > 6] + 1
    y[y > 7] = [3, 4]
    y[y == 2] = x[:2]
    return x, y, (x[x > 2] * y[x > 2]).sum()


def test_masks_with_as_many_elements_in_other_places():
    same_everywhere(between_masks, *data(), exact=True)


def rows(a, x):
    m = x[:3] > 0
    a[m] = a[m] * 2 + np.arange(2.0)
    a[m, 0] = -1
    a[:, x[:2] > 0] = 7
    b = a > 3
    a[b] += a[b] / 2
    return a, a[m].sum(axis=0), a[m].mean(), a[b].max()


def test_rows_and_whole_matrices():
    same_everywhere(rows, np.arange(6.0).reshape(3, 2), data()[0], exact=True)


def by_nonzero(x, y):
    (i,) = np.nonzero(x > 2)
    y[i] = x[i] ** 2
    j = np.flatnonzero(x < 0)
    y[j] += 1
    k = np.where(y > 7)[0]
    y[k] = 0
    return y, x[i].sum(), i.sum(), i.size, np.extract(x > 2, y).sum(), np.compress(x > 2, y).max()


def with_fewer_conditions(x, y):
    rows = x.reshape(-1, 2)
    columns = rows.compress([0, 1], axis=1)
    return x.compress([True, False, True]), y.compress(x[:3] > 0).sum(), columns


def test_compress_takes_fewer_conditions_than_items():
    same_everywhere(with_fewer_conditions, *data())


def test_indices_of_nonzero():
    same_everywhere(by_nonzero, *data())


def by_nonzero_2d(a):
    i, j = np.nonzero(a > 2)
    a[i, j] = a[i, j] * 10
    return a, (i * j).sum()


def test_indices_of_nonzero_in_a_matrix():
    same_everywhere(by_nonzero_2d, np.arange(6.0).reshape(3, 2))


def different(x, y):
    y = np.round(y / 3)
    y[1] = y[-1] = np.nan
    found, first, back, often = np.unique(y, True, True, True)
    (z,) = np.unique(x[:1], return_counts=True)[1:]
    return (
        (found.size, found[1], first.max(), (first * often).sum(), back, z[0]),
        (found[np.argmax(often)], often.max(), np.unique(x).mean(), np.unique(x > 2).sum()),
    )


def test_different_elements_are_a_selection_of_the_sorted_ones():
    same_everywhere(different, *data())


def parts(x, y, i):
    s, k = y[y > 2], i[0]
    t, last = s[1:], s[-2:]
    t += 10
    last *= 2
    s[::2] = s[::2] + 0.5
    rows = x.reshape(3, 2)
    rows = rows[rows[:, 1] < 8]
    rows[:1] = 7
    return (
        (s, s[1:] - s[:-1], s[k : k + 2], s[9:].sum(), s[-9:].sum(), s[::k].max()),
        (y, rows[-1:].sum(axis=0), t.mean(), len(x) - s[1:].size, np.sort(s)[1:-1].sum()),
    )


@pytest.mark.parametrize("k", [1, 2])
def test_a_part_of_a_selection_is_a_view_of_it(k):
    def program(x, y, i):
        (s, off, some, *rest), others = parts(x, y, i)
        return s.sum(), off.sum(), off.max(), some.sum(), rest, others

    same_everywhere(program, *data(), np.array([k]))


def selected_columns(a, x):
    m = x[:2] > 0
    a[:, m] += 1
    a[:, ~m] = a[:, ~m] * 2 + a[:, ~m]
    return a


def test_columns_are_written():
    same_everywhere(selected_columns, np.arange(6.0).reshape(3, 2), data()[0], exact=True)


def test_gradients_are_those_of_where():
    def program(x):
        box = Box(x)
        box[box > 2] = np.sqrt(box[box > 2])
        return (box[box > 1.8] * 3).sum().value

    got = jax.grad(program)(np.array([1.0, 4.0, 9.0]))
    np.testing.assert_allclose(got, [0, 0.75, 0.5], rtol=1e-6)


@pytest.mark.parametrize(
    "use",
    [
        lambda s, x: len(s),
        lambda s, x: list(s),
        lambda s, x: s + x,
        lambda s, x: x[s > 0],
        lambda s, x: np.stack([s, s]),
        lambda s, x: s[::-2],
        lambda s, x: bool(s),
        lambda s, x: np.unique(x[None], axis=0),
        lambda s, x: np.argwhere(x),
        lambda s, x: x[: x[0].astype(int)].reshape(-1, 1),
        lambda s, x: s.reshape(-1, 1),
        lambda s, x: np.asarray(s).tolist(),
    ],
)
def test_what_needs_the_size_names_the_line(use):
    def program(x):
        (x,) = rebox((x,))
        return use(x[x > 0], x)

    with pytest.raises(TransformError, match=r"(?s)run time.*test_masked.py:\d+.*hint"):
        jax.jit(program)(data()[0])


def open_slices(x, y, i):
    k = i[0]
    y[:k] = x[:k] * 2
    y[k:] += 1
    x[1:k] -= x[1:k].mean()
    y[-k:] *= 3
    y[k - 2 : k] = y[:2]
    return (
        x,
        y,
        x[:k].sum(),
        x[1:k] @ y[1:k],
        np.dot(x[: k - 1], y[1:k]),
        x[k:].max(),
        x[::1][k:].size,
    )


def test_slices_with_traced_bounds_are_masks():
    same_everywhere(open_slices, *data(), np.array([4]), exact=True)


def columns(a, i):
    k = i[0]
    a[k:, 1] = 0
    a[1, :k] = a[2, :k] + 1
    a[k:] *= 2
    a[:, k:] = 7
    return a, a[1, :k] @ a[2, :k], a[k:].sum(0)


def test_part_of_a_row_or_column():
    same_everywhere(columns, np.arange(12.0).reshape(3, 4), np.array([1]), exact=True)


def root_where_positive(x, w):
    y, m = np.zeros_like(x), x > 0
    y[m] = np.sqrt(x[m]) / w
    return y.sum()


def log_likelihood(x, w):
    return (w * np.log(x[x > 0])).sum()


def quotient(x, w):
    y, m = np.ones_like(x) * w, x > 0
    y[m] /= x[m]
    return y.sum()


def nested(x, w):
    part = x[x > 0]
    return np.log(part[part > 4]).sum() * w + np.linalg.norm(x[x > 0]) + (x[x > 0] ** 0.5).sum()


def divided_where(x, w):
    out = np.zeros_like(x)
    np.divide(w, x, out=out, where=x > 0)
    return out.sum()


def by_pieces(x, w):
    return np.piecewise(x, [x <= 0, x > 0], [lambda t: 0 * t, lambda t: w * np.sqrt(t)]).sum()


GRADED = [root_where_positive, log_likelihood, quotient, nested, divided_where, by_pieces]


@pytest.mark.parametrize("fun", GRADED, ids=lambda f: f.__name__)
def test_no_derivative_is_nan_where_the_mask_is_false(fun):
    f, (x, w) = autograph(fun), (jnp.array([4.0, -1.0, 0.0, 9.0]), jnp.float32(2))
    value, (by_x, by_w) = jax.jit(jax.value_and_grad(f, (0, 1)))(x, w)
    np.testing.assert_allclose(value, fun(np.array(x), 2.0), rtol=1e-6)
    forward = jax.jit(jax.jacfwd(f, (0, 1)))(x, w)
    np.testing.assert_allclose(by_x, forward[0], rtol=1e-5)
    np.testing.assert_allclose(by_w, forward[1], rtol=1e-5)
    assert by_x[0] != 0 and by_x[1] == 0 and by_x[2] == 0 and np.isfinite(by_w)


def test_no_second_derivative_is_nan_where_the_mask_is_false():
    f, x = autograph(root_where_positive), jnp.array([[4.0, -1.0, 0.0], [-1.0, 0.0, 9.0]])
    lanes = jax.jit(jax.vmap(jax.hessian(f), (0, None)))(x, jnp.float32(1))
    want = np.zeros((2, 3, 3))
    want[0, 0, 0], want[1, 2, 2] = -1 / 32, -1 / 108
    np.testing.assert_allclose(lanes, want, rtol=1e-5)


def test_the_chosen_part_of_a_list_can_be_reversed_in_place():
    def flipped(v, k):
        v[:k] = v[:k][::-1]
        return v

    out = jax.jit(autograph(flipped))(np.arange(6.0), 4)
    np.testing.assert_array_equal(out, flipped(np.arange(6.0), 4))


def projections(a, x, t):
    s, u = np.linalg.eigh(a)
    v = u[:, s > t]
    w = v * s[s > t]
    return (
        (np.linalg.norm(x @ v, axis=-1), np.linalg.norm(x[0] @ v), (v.T @ x[0]).sum()),
        ((2 * v + 1).sum(axis=0).max(), v.sum(axis=1), np.abs(w).sum(), np.max(v, axis=-1)),
        ((v**2).sum(axis=-1), (w.T @ u).sum(), v @ (v.T @ x[0]), v @ s[s > t], v @ v.T),
    )


@pytest.mark.parametrize("t", [0.0, 1.0])
def test_selected_columns(t):
    a = np.array([[2.0, 1.0, 0.0], [1.0, 2.0, 1.0], [0.0, 1.0, 2.0]])
    same_everywhere(projections, a, np.arange(6.0).reshape(2, 3), t)


@pytest.mark.parametrize("use", [lambda v: v.T @ v, lambda v: v + np.ones((3, 3)), np.linalg.svd])
def test_what_needs_the_number_of_selected_columns_says_so(use):
    program = autograph(lambda a: use(a[:, a[0] > 0]))
    with pytest.raises(TransformError, match=r"size that is known only at run time(.|\n)*hint: "):
        jax.jit(program)(np.eye(3))


def as_in_python(program, *args):
    got, want = jax.jit(autograph(program))(*args), program(*map(np.copy, args))
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


def one_way(x, y):
    kept = x = x.copy()
    if y[0] > 6:
        kept = x[x > 0]
    kept *= 2
    return kept.sum(), len(kept), x


def other_ways(x, y):
    z = kept = x[x > 0]
    if y[0] > 6:
        kept = x[x < 0]
    kept[0] = 100.0
    none = None
    if y[0] > 9:
        none = x[x < 0]
    return z.sum(), kept.sum(), len(kept), 0 if none is None else none.min()


def outliers_left_out(x, y):
    kept = x
    for _ in range(9):
        new = kept[np.abs(kept - kept.mean()) < 1.2 * kept.std()]
        if len(new) == len(kept):
            break
        kept = new
    return kept.mean(), len(kept)


def a_front(x, y):
    points, steps = np.stack([x, y], 1), 0
    while len(points) > 2:
        points = points[points[:, 0] > points[:, 0].min()]
        steps += 1
    return points.sum(axis=0), steps


@pytest.mark.parametrize("program", [one_way, other_ways, outliers_left_out, a_front])
@pytest.mark.parametrize("first", [5.0, 7.0, 11.0])
def test_a_selection_that_leaves_a_branch_or_a_step_of_a_loop(program, first):
    x, y = data()
    as_in_python(program, x, np.append(first, y[1:]))


def of_two_axes(x):
    kept = x
    if x[0, 0] > 0:
        kept = x[x > 0]
    return kept.sum(axis=0)


def of_two_arrays(x):
    return (x[0, x[0] > 0] if x[0, 0] > 0 else x[:, 0][x[:, 0] > 0]).sum()


@pytest.mark.caches  # the error holds the selection, and so the tracers of its branch
@pytest.mark.parametrize(
    ("program", "words"), [(of_two_axes, "depending on a traced"), (of_two_arrays, "another x")]
)
def test_a_selection_beside_another_array_is_refused(program, words):
    with pytest.raises(TransformError, match=rf"{words}(.|\n)*in {program.__name__}"):
        jax.jit(autograph(program))(np.arange(6.0).reshape(2, 3) - 1)


def in_lists(x, y):
    found, queue, total = [1.0], collections.deque(np.where(x > 0)[0]), 0.0
    found.extend(x[x > 0])
    found += list(y[y > 7])
    while queue:
        total = total / 2 + y[queue.popleft()]
    for row, column in zip(*np.nonzero(np.outer(x, y) > 2), strict=True):
        total = total / 2 + x[row] - y[column]
    for pair in np.argwhere(np.outer(x, y) > 2):
        total = total / 2 + pair[0] - pair[1]
    whole = list(np.stack([x, y], 1)[x > 0])
    return sum(found), len(found), total, whole[-1], 2 in np.where(x > 0)[0], x[0] in x[x < 0]


def test_what_is_selected_in_lists():
    as_in_python(in_lists, *data())


def chosen_columns(x, y):
    rows = np.stack([x, y], 1)[x > 0]
    columns = np.vstack(rows).T
    last = columns[:, np.array([[0, 1], [-1, 0]])]
    return columns[:, -1], columns[:, [0, -1]], columns[:, 1:].sum(axis=1), np.stack(rows)[1], last


def test_columns_among_the_selected_ones():
    got = jax.jit(autograph(chosen_columns))(*data())
    for one, other in zip(got, chosen_columns(*data()), strict=True):
        np.testing.assert_allclose(one, other)


def put_together(x, y):
    s = x[x > 0]
    both = np.concatenate([s, y[y > 7], [5.0]])
    more = np.append(s, 3.0), np.append([2.0], s), np.hstack([s, s])
    _, often = np.unique(np.round(y / 3), return_counts=True, axis=-1)
    return (
        (both[2], np.diff(both).max(), both[[0, -1]]),
        (more[0][-1], more[1][0], more[2].sum(), (often**3 - often).sum(axis=-1)),
    )


def test_selections_are_put_together():
    same_everywhere(put_together, *data())


def picked(x, y, i):
    s, k = np.sort(y[y > 1.5]), i[0]
    rows = np.stack([x, y], 1)[x > 0]
    return s[[k, 0]], s[np.array([[0, 1], [-1, 1]])], s[[-1, -2]], rows[[0, -1]]


def test_several_elements_of_a_selection():
    same_everywhere(picked, *data(), np.array([1]))


def test_what_is_no_function_of_numpy_takes_a_selection():
    def f(x):
        ends = np.r_[0.0, x[x > 1], 1:3, 7.0]
        return (
            ends[[1, -1]],
            len(ends),
            sum(x[x > 0]),
            sum(x[x > 1], 5.0),
            any(x[x > 0] > 8),
            all(x[x > 1] > 8),
        )

    for one, other in zip(jax.jit(autograph(f))(data()[0]), f(data()[0]), strict=True):
        np.testing.assert_allclose(one, other)


@pytest.mark.parametrize("at", [1, 3])
def test_an_index_beyond_a_selection_is_an_error_for_a_handler(at):
    def f(x):
        try:
            return x[x > 3][[0, at]].sum()
        except IndexError:
            return -1.0

    np.testing.assert_allclose(jax.jit(autograph(f))(data()[0]), f(data()[0]))


def first_selected(x):
    try:
        return x[x > 30][0]
    except IndexError:
        return -1.0


def written_beyond(x):
    y = x[x > 0]
    try:
        y[3] = 9.0
    except IndexError:
        return -1.0
    return y.sum()


def first_place(x):
    try:
        return np.nonzero(x > 30)[0][0]
    except IndexError:
        return -1


def largest_selected(x):
    try:
        return x[x > 30].max()
    except ValueError:
        return -1.0


def lowest_place(x):
    try:
        return np.argmin(x[x > 30])
    except ValueError:
        return -7


@pytest.mark.parametrize("scale", [1, 40])
@pytest.mark.parametrize(
    "f", [first_selected, written_beyond, first_place, largest_selected, lowest_place]
)
def test_a_handler_sees_that_a_selection_is_too_short(f, scale):
    x = np.array([1.0, -2.0, 3.0, -4.0, 5.0], np.float32) * scale
    assert float(jax.jit(autograph(f))(x)) == float(f(x.copy()))


def test_a_search_in_nothing_is_said_and_no_number():
    with listen() as notes:
        found = jax.jit(autograph(lambda x: x[x > 30].max()))(np.ones(3, np.float32))
    assert np.isnan(found) and any("empty selection" in note.what for note in notes)
