"""Arrays that may be another array: who writes into one writes into the other, as in Python."""

import numpy as np
import pytest

from tests.frontend.behaviour import assert_same

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
