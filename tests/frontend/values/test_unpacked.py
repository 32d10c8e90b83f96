"""`a, b = xs` where a traced value says how long xs is."""

import jax
import numpy as np
import pytest

from malleable import TransformError, autograph, listen
from tests.frontend.behaviour.behaviour import assert_same
from tests.frontend.values.test_raises import agree


def two(k):
    try:
        a, b = [1, 2, 3][:k]
        return a + 10 * b
    except ValueError:
        return -4


def first_and_rest(k):
    try:
        a, *b = [1, 2, 3][:k]
        return a + 10 * sum(b)
    except ValueError:
        return -4


def both_ends(k):
    try:
        a, *b, c = [1, 2, 3][:k]
    except ValueError:
        return -4
    return a + 10 * sum(b) + 100 * c


def inside(k):
    v = [0, 0]
    try:
        (v[0], b), c = [1, 2, 3][:k], 5
    except ValueError:
        return v[0] - 4
    return v[0] + b + c


def too_many_targets(k):
    try:
        a, b, c, d = [1, 2, 3][:k]
        return a + b + c + d
    except ValueError:
        return -4


def in_a_loop(k):
    s = 0
    try:
        for a, b in [[1, 2], [1, 2, 3][:k]]:
            s += a * b
    except ValueError:
        s -= 50
    return s


def in_a_comprehension(k):
    try:
        return sum([a + b for a, b in [[1, 2], [1, 2, 3][:k]]])
    except ValueError:
        return -4


def tuples_of_several_lengths(k):
    found = (k, 2, np.array([k, 1])) if k > 1 else (None,)
    if found[0] is None:
        found = (k, 3, np.array([k, 2])) if k > 0 else (k,)
    try:
        a, b, c = found
    except ValueError:
        return -4
    return a + 10 * b + 100 * c.sum()


def a_star_on_one_of_two_tuples(k):
    found = (k, 2, 3, 4) if k > 2 else (k, 5) if k > 1 else (k,)
    try:
        a, *b, c = found
    except ValueError:
        return -4
    return a + 10 * c + 100 * len(b)


def no_items_on_one_path(k):
    r = (1.0, 2.0) if k > 1 else 3.0 if k > 0 else None
    log = 1
    try:
        a, b = r
        log = log + 10
    except TypeError:
        log, a, b = log + 100, -1.0, -2.0
    return log + a + b


def neither_items_nor_as_many(k):
    n = 0
    for r in [(k, 2), [(1, 2), k, (4, 5, 6), "xy"][k]]:
        try:
            a, b = r
            n += (a == k) + (b == 2)
        except TypeError:
            n += 10
        except ValueError:
            n += 100
    return n


def an_array_or_none(k):
    r = np.array([k, 2]) if k > 1 else None
    try:
        a, *b = r
    except TypeError:
        return 5
    return a + 10 * b[0]


class Twice:
    def __init__(self, start):
        self.start = start

    def __iter__(self):
        yield self.start
        yield self.start * 2


def of_a_class_or_nothing(k):
    r = Twice(k) if k > 1 else k
    try:
        a, b = r
    except TypeError:
        return 5
    return a + 10 * b


@pytest.mark.parametrize(
    "f",
    [
        two,
        first_and_rest,
        both_ends,
        inside,
        too_many_targets,
        in_a_loop,
        in_a_comprehension,
        tuples_of_several_lengths,
        a_star_on_one_of_two_tuples,
        no_items_on_one_path,
        neither_items_nor_as_many,
        an_array_or_none,
        of_a_class_or_nothing,
    ],
    ids=lambda f: f.__name__,
)
def test_too_few_or_too_many_items_are_an_error_to_their_handler(f):
    agree(f, (2,), (1,), (3,), (0,))


@pytest.mark.parametrize("c", [True, False])
def test_tuples_of_unlike_lengths_are_joined_column_by_column(c):
    def f(c):
        t = (7, 2.5) if c else (9, 2.0, True)
        a, *rest = t
        try:
            d, e = t
        except ValueError:
            d, e = -7, -8.0
        return a, len(rest), a // 2, d, d // 2, e

    assert_same(f, c)


@pytest.mark.parametrize("c", [True, False])
def test_what_is_unpacked_is_the_very_thing(c):
    def f(c):
        x, y = np.array([1.0, 2.0]), np.array([5.0, 6.0])
        a, b, *rest = (x, y) if c else (y, x, 1)
        a[0] = 100.0
        b[1] = 50.0
        return x, y, len(rest)

    assert_same(f, c)


def test_one_with_an_iter_of_its_own_or_a_tuple_is_refused():
    def f(k):
        a, b = Twice(k) if k > 1 else (k, 2)
        return a + b

    with pytest.raises(TransformError, match=r"(?s)Twice or a tuple of 2.*unpacked.*test_unpacked"):
        jax.jit(autograph(f))(2)


def test_without_a_handler_it_is_noted():
    def f(k):
        a, b = [1.0, 2.0, 3.0][:k]
        return a + b

    compiled = jax.jit(autograph(f))
    with listen() as notes:
        assert compiled(2) == 3 and np.isnan(compiled(1)) and np.isnan(compiled(3))
    assert any("too many values to unpack (expected 2)" in n.what for n in notes)


def test_such_a_list_is_not_spread_into_arguments():
    def f(k):
        try:
            return max(*[1, 2, 3][:k])
        except TypeError:
            return -4

    with pytest.raises(TransformError, match="`\\*` on a list whose length"):
        jax.jit(autograph(f))(2)


@pytest.mark.parametrize("y", [2.0, -1.0, 0.5])
def test_one_of_several_lists_of_traced_length(y):
    def f(y, v):
        xs = [1.5, y, 0.5]
        if y > 1:
            xs[1:] = [xs[-1]]
        for b in v:
            if b > 0:
                *head, last = xs
                xs = [last, *head]
        ys = xs if y > 0 else [y, 7.0]
        *head, last = ys
        return xs[0], len(xs), last, len(head), len([*ys, y]), sum(ys), [2 * z for z in ys][-1]

    assert_same(f, y, np.array([0.5, 1.25, -0.625]))


def test_a_number_and_an_array_are_not_items_of_one_type():
    def f(x):
        rows = (x, np.array([x, 1.0])) if x > 1 else (x,)
        total = 0.0
        for row in rows:
            total = total + np.sum(row)
        return total

    with pytest.raises(TransformError, match=r"(?s)a tuple of 2 or a tuple of 1.*test_unpacked"):
        jax.jit(autograph(f))(0.5)


def test_a_number_on_one_path_and_an_array_on_the_other_leave_a_note():
    def f(x):
        y = x
        if x > 1:
            y = np.array([x, 1.0])
        return np.sum(y)

    with listen() as notes:
        assert jax.jit(autograph(f))(1.5) == f(1.5)
    assert any("`y` is a number on one path and an array on the other" in n.what for n in notes)
