"""One thing with two names, around a loop and in a list of traced length: shared, or loud."""

import math

import jax
import numpy as np
import pytest

from malleable import TransformError, autograph, listen
from tests.frontend.behaviour.behaviour import assert_same

ROWS = np.ones((100, 2), np.float32)


class Point:
    def __init__(self, x):
        self.x = x


@pytest.mark.parametrize("n", [0, 2])
@pytest.mark.parametrize("make", [lambda x: [x], lambda x: np.array([x]), lambda x: {0: x}])
def test_two_names_of_what_each_step_makes_are_one_thing_after_the_loop(n, make):
    def f(n, x):
        b = a = make(x)
        for _ in range(n):
            a = make(a[0] + 1)
            b = a
        b[0] = 100.0
        return a[0], b[0]

    assert_same(f, n, 1.5)


@pytest.mark.parametrize("n", [0, 2])
def test_two_names_of_an_object_that_each_step_makes_are_one(n):
    def f(n, x):
        b = a = Point(x)
        for _ in range(n):
            a = Point(a.x + 1)
            b = a
        b.x = 100.0
        return a.x

    assert_same(f, n, 1.5)


def test_two_names_that_are_one_thing_only_if_a_loop_runs_are_not_written_to():
    def f(n, x):
        a, b = [x], [x]
        for _ in range(n):
            a = [a[0] + 1]
            b = a
        b[0] = 100.0
        return a[0]

    with pytest.raises(TransformError, match="one thing in `a` and `b`, if it runs"):
        jax.jit(autograph(f))(2, 1.0)


@pytest.mark.parametrize("n", [0, 1, 2])
def test_arrays_that_a_loop_swaps_are_written_to_by_their_other_names(n):
    def f(n):
        a, b = np.zeros(2), np.ones(2)
        p, q = a, b
        for _ in range(n):
            a, b = b, a
        a[0] = 5
        return a, b, p, q

    assert_same(f, n)


def append_then_write(n, item):
    out = []
    for i in range(n):
        if i % 2 == 0:
            out.append(item)
    item[0] = 100.0
    return out[0]


def write_to_an_item(n, item):
    out = []
    for i in range(n):
        if i % 2 == 0:
            out.append([item[0] + i])
    out[0][0] = 100.0
    return out[0]


def write_and_append(n, item):
    out, i = [], 0
    while i < n:
        item[0] += 1
        out.append(item)
        i += 1
    return out[0]


@pytest.mark.parametrize("f", [append_then_write, write_to_an_item, write_and_append])
def test_what_a_list_of_traced_length_copied_is_not_written_to(f):
    with pytest.raises(TransformError, match="what is written to here is a copy"):
        jax.jit(autograph(f, max_steps=4))(3, np.ones(2, np.float32))


def test_what_is_taken_out_of_such_a_list_may_be_written_to():
    def f(n, x):
        out = []
        for i in range(n):
            if i % 2 == 0:
                out.append([x + i])
        last = out.pop()
        last[0] = last[0] * 2
        return last[0]

    assert jax.jit(autograph(f, max_steps=4))(3, 1.0) == 6.0


def test_rows_that_a_loop_keeps_are_said_to_be_copies():
    def f(x):
        m, out = ROWS * x, []
        for row in m:
            out.append(row)
        m[0, 0] = 7.0
        return out[0]

    with listen() as notes:
        jax.jit(autograph(f))(1.0)
    assert [n.what for n in notes] == ["this write does not reach each copy"]


def test_an_attribute_that_only_a_loop_sets_is_nan_and_a_note_where_it_is_read():
    def f(n, x):
        p = Point(x)
        for i in range(n):
            p.last = x + i
        return p.last

    with listen() as notes:
        assert np.isnan(jax.jit(autograph(f))(0, 1.0))
    text = "`raise AttributeError` does not happen in a compiled program"
    assert [n.what for n in notes] == [text]


def test_a_factorial_without_room_is_nan():
    f = jax.jit(autograph(lambda n: math.factorial(n) * 1.0))
    assert f(5) == 120.0 and np.isnan(f(30))


def own_and_then_the_class(x):
    class K:
        n = 0

    one = K()
    if x > 0:
        one.n = 5
    K.n = 7
    return one.n


def own_or_the_class(x):
    class K:
        n = 0

    one = K()
    if x > 0:
        one.n = 5
    else:
        K.n = 4
    return one.n


def class_of_the_class(x):
    class K:
        n = 0

    class L(K):
        pass

    if x > 0:
        L.n = 5
    K.n = 7
    return L.n


@pytest.mark.parametrize("f", [own_and_then_the_class, own_or_the_class])
def test_what_a_class_has_may_change_where_an_instance_may_have_its_own(f):
    assert [jax.jit(autograph(f))(x) for x in (1.0, -1.0)] == [f(1.0), f(-1.0)]


def test_what_a_class_has_stays_where_a_class_of_it_may_have_its_own():
    with pytest.raises(TransformError, match=r"`K.n` changes, and whether"):
        jax.jit(autograph(class_of_the_class))(1.0)


def test_a_row_that_only_one_branch_knows_is_not_used_after_a_write_to_the_array():
    """Which row it is, is worked out in that branch: what leaves it is a copy."""

    def f(x, n, used):
        rows, row = ROWS * x, None
        if n > 0:
            row = rows[n % 2]
        first = 0.0 if row is None else row[0]
        rows[0, 0] = 5.0
        rows[0, 0] = 7.0
        if used and row is not None:
            first = row[0]
        return rows[0, 0] + first

    got = jax.jit(autograph(f), static_argnums=2)
    assert got(1.0, 2, False) == f(1.0, 2, False) and got(1.0, 0, False) == f(1.0, 0, False)
    with pytest.raises(TransformError, match=r"a copy, of before a write at .*: one branch of an"):
        got(1.0, 2, True)


def test_a_set_of_words_that_one_branch_adds_to_is_refused():
    def f(x):
        seen = {"a", "b"}
        if x > 0:
            seen.add("c")
        return len(seen)

    with pytest.raises(TransformError, match="a set has other members after one branch") as error:
        jax.jit(autograph(f))(1.0)
    assert "keep a bool for each that it may have" in str(error.value)


def rows_of(v):
    rows = []
    for x in v:
        if x > 0:
            rows.append([x, {"n": [x]}])
    return rows


def one_of_two(v):
    rows = rows_of(v)
    row = rows[0] if v[0] > 1 else rows[1]
    row[0] = 9.0
    return rows


def on_one_path(v):
    rows, row = rows_of(v), [0.0, {"n": [0.0]}]
    if v[0] > 1:
        row = rows[0]
    row[0] = 9.0
    return rows


def what_is_in_it(v):
    rows = rows_of(v)
    row = rows[0] if v[0] > 1 else rows[1]
    row[1]["n"].append(9.0)
    return rows


@pytest.mark.parametrize("program", [one_of_two, on_one_path, what_is_in_it])
def test_an_item_that_an_if_picks_from_a_list_of_traced_length_is_a_copy(program):
    with pytest.raises(TransformError, match="what is written to here is a copy"):
        jax.jit(autograph(program))(np.array([2.0, 1.0, 3.0]))


def appended_under_another_name(v):
    rows, last = [[5.0, 5.0]], [0.0, 0.0]
    if v[0] > 1:
        last = [1.0, v[1]]
        rows.append(last)
    last[1] = 7.0
    return rows


def appended_with_nothing_traced_in_it(v):
    rows, last = [[5.0, 5.0]], [0.0, 0.0]
    if v[0] > 1:
        last = [1.0, 2.0]
        rows.append(last)
    last[1] = 7.0
    return rows


def appended_in_another(v):
    rows, kept = [[[5.0, 5.0]]], {"last": [0.0, 0.0]}
    if v[0] > 1:
        kept["last"] = [1.0, v[1]]
        rows.append([kept["last"]])
    kept["last"][1] = 7.0
    return rows


def an_array_appended(v):
    rows, last = [np.zeros(2)], np.ones(2)
    if v[0] > 1:
        last = np.zeros(2) + v[1]
        rows.append(last)
    last[1] = 7.0
    return rows


APPENDED = [
    appended_under_another_name,
    appended_with_nothing_traced_in_it,
    appended_in_another,
    an_array_appended,
]


@pytest.mark.parametrize("program", APPENDED)
def test_what_an_if_appends_under_another_name_is_not_written_to(program):
    with pytest.raises(TransformError, match="what is written to here is a copy"):
        jax.jit(autograph(program))(np.array([2.0, 1.0]))


def test_what_an_if_appends_under_another_name_is_read():
    def f(v):
        rows, last = [[5.0, 5.0]], [0.0, 0.0]
        if v[0] > 1:
            last = [1.0, v[1]]
            rows.append(last)
        last = [last[1], 3.0]
        last[1] += 1.0
        return last, len(rows)

    last, size = jax.jit(autograph(f))(np.array([2.0, 1.5]))
    assert [float(x) for x in last] == [1.5, 4.0] and size == 2


def put(d, k):
    d[k] = 5.0


@pytest.mark.parametrize(
    "write",
    [
        put,
        lambda d, k: d.setdefault(k + 4, 1.0),
        lambda d, k: d.pop(k),
        lambda d, k: d.pop(k, None),
        lambda d, k: d.update({k + 4: 1.0}),
    ],
)
def test_a_traced_key_is_not_put_into_a_dict_of_a_list_of_traced_length(write):
    def f(v):
        found = []
        for x in v:
            if x > 1:
                found.append({0: x, 1: x, 2: x})
        write(found[0], v[0])
        return [len(d) for d in found], [d.get(1) for d in found]

    with pytest.raises(TransformError, match="what is written to here is a copy"):
        jax.jit(autograph(f))(np.array([1, 2, 3]))
