"""Arrays that may be another array: who writes into one writes into the other, as in Python."""

import jax
import numpy as np
import pytest

from malleable import TransformError, autograph
from tests.frontend.behaviour.behaviour import assert_same, program

V = np.array([1.0, 2.0, 3.0], np.float32)
A = np.arange(9.0, dtype=np.float32).reshape(3, 3)
SIGNS = pytest.mark.parametrize("x", [1.0, -1.0])
BOTH_SIGNS = pytest.mark.parametrize("y", [1.0, -1.0])


@SIGNS
def test_a_write_after_a_branch_reaches_the_array_that_it_kept(x):
    def f(x, v):
        w = v
        if x > 0:
            w = v * 2
        w[0] = 9.0
        return v, w

    assert_same(f, x, V)


@SIGNS
def test_a_write_reaches_the_one_of_two_arrays_that_was_chosen(x):
    def f(x, v):
        u = v * 3
        w = v if x > 0 else u
        w[0] = 9.0
        return v, u, w

    assert_same(f, x, V)


@SIGNS
@BOTH_SIGNS
def test_a_write_reaches_through_two_branches(x, y):
    def choose(x, y, v, w):
        if x > 0:
            if y > 0:
                u = v
            else:
                u = w
        else:
            u = v * 2
        u += 1
        return u

    def f(x, y, v):
        w = v * 3
        return choose(x, y, v, w), v, w

    assert_same(f, x, y, V)


@SIGNS
def test_a_write_through_a_view_reaches_its_array(x):
    def f(x, a):
        v = a[1:]
        if x > 0:
            v = a[:2]
        v[0] = 7.0
        return a

    assert_same(f, x, A)


@pytest.mark.parametrize("n", [0, 1, 3])
def test_a_loop_that_binds_a_name_anew_writes_to_the_array_of_before_at_first_only(n):
    def f(n, v):
        old = v
        for i in range(n):
            v[i] = 1.0
            v = v * 2
        return old, v

    assert_same(f, n, V)


@pytest.mark.parametrize("n", [0, 2])
def test_an_augmented_assignment_in_a_loop_changes_the_array_of_the_caller(n):
    def halve(n, a):
        for _ in range(n):
            a /= 2

    def f(n, a):
        halve(n, a)
        return a

    assert_same(f, n, A)


@SIGNS
def test_rows_of_a_loop_are_views_of_the_array(x):
    def f(x, a):
        for row in a:
            row[0] = x
        for row in a:
            a[1] -= row
        return a

    assert_same(f, x, A)


@SIGNS
def test_an_attribute_and_a_variable_name_one_array(x):
    class Holder:
        pass

    def f(x, v):
        h = Holder()
        h.v = v
        if x > 0:
            h.v[0] = x
        else:
            v[1] = x
        return v, h.v

    assert_same(f, x, V)


@pytest.mark.parametrize("x", [-1.0, 0.5, 2.0])
def test_one_path_writes_to_the_array_that_the_other_replaces(x):
    class Thing:
        def __init__(self):
            self.grid = np.zeros(3)

    def f(x):
        one, v = Thing(), np.zeros(3)
        rows = [v, v + 1]
        if x > 1:
            pass
        elif x > 0:
            one.grid[0] += 1
            v[2] = x
        else:
            one.grid = np.ones(3) + x
            rows[0] = v + x
        return one.grid, rows, v

    jax.tree.map(np.testing.assert_array_equal, jax.jit(autograph(f))(x), f(x))


@pytest.mark.parametrize("x", [0.5, 2.0])
def test_an_array_of_numpy_that_two_paths_shared_is_written_to_afterwards(x):
    def f(x):
        v = np.zeros(3)
        w = v
        if x > 1:
            w = v + x
        v[1] = 5
        return v, w

    jax.tree.map(np.testing.assert_array_equal, jax.jit(autograph(f))(x), f(x))


@pytest.mark.parametrize("change", ["grows", "shrinks"])
def test_a_list_that_changes_under_a_test_is_no_longer_gone_over(change):
    def total(x):
        items, s = [1, 2, 3], 0
        for item in items:
            s += item
            if item == 2 and x > 0:
                items.append(10) if change == "grows" else items.pop()
        return s

    with pytest.raises(TransformError, match="goes over has another length") as caught:
        jax.jit(autograph(total))(1.0)
    assert "list(xs)" in caught.value.hint


def branch_binds_two_names(x, n):
    a, b = x + 1, x + 2
    if n > 1:
        a = x + x
        b = a
    b[0] = 7.0
    a[1] = 8.0
    return a, b


def nested_branch_binds_items(x, n):
    v, w = [x, x + 1, x + 2], [x, x, x + 3]
    if n > 2:  # noqa: SIM114
        pass
    elif n > 1:
        pass
    else:
        w[0] = v[0] + x
        v[1] = w[0]
    v[1][0] = 7.0
    return w, v


def branches_within_one_another(x, n):
    a, b, c = x + 1, x + 2, x + 3
    held = [a, b]
    if n > 1:
        held[0] = a = x + x
        b = a
        if n > 2:
            c = b
    c[0] = 7.0
    a[1] = 8.0
    b[2] = 9.0
    return a, b, c, held


def branch_returns_a_row(x, n):
    rows = np.stack([x, x + 1])

    def row():
        if n > 0:
            return rows[n % 2]
        return x + 3

    return row() * 2, rows


TWO_NAMES = [branch_binds_two_names, nested_branch_binds_items, branches_within_one_another]


@pytest.mark.parametrize("n", [0, 1, 2, 3])
@pytest.mark.parametrize("f", [*TWO_NAMES, branch_returns_a_row])
def test_a_new_array_that_a_branch_gives_two_names_stays_one(f, n):
    assert_same(f, V, n)


def branch_makes_a_part(x, n):
    a, b = x + 1, x[1:] + 2
    if n > 1:
        a = x + x
        b = a[1:]
    b[0] = 7.0
    return a, b


def branch_chooses_a_row(x, n):
    rows, b = np.stack([x, x + 1]), x + 3
    if n > 1:
        b = rows[n % 2]
    b[1] = 7.0
    return rows, b


@pytest.mark.parametrize("f", [branch_makes_a_part, branch_chooses_a_row])
def test_a_write_to_a_part_that_only_one_branch_knows_is_refused(f):
    with pytest.raises(TransformError, match="what is written to here is a copy") as caught:
        jax.jit(autograph(f))(V, 2)
    assert "test_aliases.py" in str(caught.value)


def replaced_picked(x, n, v, a):
    vecs = [v, a[0], v * 0]
    w = vecs[n % 3]
    if x > 0.5:
        w = np.clip(w, -1, 1)
    else:
        w += 1
    w[:] = x
    return v, a, vecs, w


def picked_again(x, n, v, a):
    vecs = [v, a[0], v * 0]
    w = vecs[n % 3]
    if x > 0.5:
        w = vecs[(n + 1) % 3]
    elif x > 0.25:
        w = a[1]
    w[:] = x
    return v, a, vecs, w


def picked_of_new(x, n, v, a):
    if x > 0.5:
        vecs = [v + 0, v + 1]
        w = vecs[n % 2]
    else:
        vecs = [v + 2, v + 3]
        w = v
    w[0] = 7.0
    return vecs, w, v


def picked_in_steps(x, n, v, a):
    vecs = [v, a[0], v * 0]
    w = vecs[n % 3]
    k = 0
    while k < n:
        k += 1
        if x > 0.3 * k:
            w = w + 1
        w[k % 3] = x
    return v, a, vecs, w


def picked_in_a_try(x, n, v, a):
    vecs = [v, a[0], v * 0]
    w = vecs[n % 3]
    try:
        if x < 0.5:
            raise ValueError
        w += 1
    except ValueError:
        if x > 0:
            vecs[n % 3] = np.floor(a[0])
        else:
            w = np.clip(w, -1, 1)
    finally:
        w[:] = np.minimum(w, x)
    return v, a, vecs, w


PICKED = [replaced_picked, picked_again, picked_of_new, picked_in_steps, picked_in_a_try]


@pytest.mark.parametrize("f", PICKED)
def test_an_array_that_was_picked_may_be_another_after_a_branch(f):
    compiled = jax.jit(autograph(f))
    for x in (-1.0, 0.3, 0.75):
        for n in range(3):
            want, got = f(x, n, V.copy(), A.copy()), compiled(x, n, V, A)
            jax.tree.map(np.testing.assert_allclose, got, want)


class Thing:
    def __init__(self, x):
        self.x, self.k = x, [x, x]


def new_list_or_another_item(x, n):
    a = Thing(x)
    b = a
    if n > 2:
        if n > 3:
            a.k = [4.0, a.x]
    else:
        a.k[1] -= 1
        if n > 1:
            a = Thing(7.0)
    return a.k, b.k


def new_list_in_a_dict(x, n):
    a = {"k": [x, x]}
    b = a
    if n > 2:
        a["k"] = [4.0, 5.0]
    else:
        a["k"][1] -= 1
        if n > 1:
            a = {"k": [7.0, x]}
    return a, b


def new_object_or_another_attribute(x, n):
    a = Thing(Thing(x))
    b = a
    if n > 2:
        a.x = Thing(4.0)
    else:
        a.x.x -= 1
        a.x.k[0] = 9.0
        if n > 1:
            a = Thing(Thing(7.0))
    return a.x.x, b.x.x, a.x.k, b.x.k


@pytest.mark.parametrize("n", [0, 1, 2, 3, 4])
@pytest.mark.parametrize(
    "f", [new_list_or_another_item, new_list_in_a_dict, new_object_or_another_attribute]
)
def test_one_path_replaces_what_the_other_writes_to(f, n):
    assert_same(f, 1.0, n)


@pytest.mark.parametrize("n", [0, 1, 7])
def test_a_list_put_under_a_traced_index_after_another_new_list(n):
    def f(x, n, v):
        nest = [[x, 1.0], [0.5, 2.0]]
        if n <= 5:
            nest[0] = [x, v[0]]
            nest[n] = [x * 2, 8.0]
        return nest

    jax.tree.map(
        np.testing.assert_array_equal,
        jax.jit(autograph(f))(-1.75, n, np.array([-0.25, 0.5], np.float32)),
        f(-1.75, n, np.array([-0.25, 0.5], np.float32)),
    )


def test_arrays_in_the_order_of_a_key_are_told_apart_by_few_tests():
    def sorted_steps(n):
        def f(rows, goal):
            points = [rows[i].copy() for i in range(n)]
            for _ in range(6):
                order = sorted(range(n), key=lambda i: points[i].sum())
                points = [points[i] for i in order]
                if points[0].sum() > goal:
                    break
                if points[-1][0] > 1:
                    points[-1] = 0.5 * (points[0] + points[-1])
                else:
                    points[0] = points[0] + 1.0
            return points

        return f

    rows = np.arange(12.0).reshape(6, 2)[::-1].copy() % 5
    for n in (2, 4):
        assert_same(sorted_steps(n), rows, 9.0)
    sizes = [len(str(program(sorted_steps(n), rows, 9.0)).splitlines()) for n in (3, 6)]
    assert sizes[1] < 6 * sizes[0]


@SIGNS
def test_a_write_in_an_else_reaches_an_array_that_a_try_may_not_have_bound(x):
    def f(x, n, a):
        try:
            try:
                v = a[n]
                if x > 5:
                    raise IndexError
            except NameError:
                pass
            else:
                v -= x
        except IndexError:
            pass
        return a

    assert_same(f, x, 1, A)


@SIGNS
@pytest.mark.parametrize("m", [1, 2])
def test_parts_of_two_shapes_that_go_around_a_loop_are_written_to(x, m):
    def f(x, m, v, a):
        p = a.T[0][:2]
        r = v
        if x > 0:
            r = a[1, :2]
        for _ in range(m):
            p, q = v, p
            q += 1
            r += 2
        return v, a

    assert_same(f, x, m, V, A)


def selected_and_written(v):
    y = v[v > 0]
    z = y
    for x in v:
        if x > 2:
            z += x
    return y.sum(), z.sum()


def selected_in_a_list(v):
    y = v[v > 0]
    held, n = [y], 0
    while n < v[1]:
        y += 1
        n += 1
    return y.sum(), held[0].sum()


def selected_and_cut(v):
    y = v[v > 0]
    z = y
    while len(z) > 1:
        z[z > 2] = 1.0
        z = z[z > 1]
    return y.sum(), z.sum()


def in_a_tuple_of_two_names(v):
    one = (np.zeros(3), v)
    two = one
    for x in v:
        if x > 1:
            two[0][0] += x
            two = (two[0], v * 2)
    return one[0], two[1]


@pytest.mark.parametrize(
    "f", [selected_and_written, selected_in_a_list, selected_and_cut, in_a_tuple_of_two_names]
)
def test_what_is_held_by_two_names_is_written_in_a_loop_for_both(f):
    assert_same(f, V)
