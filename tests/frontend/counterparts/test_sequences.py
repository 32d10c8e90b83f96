"""Tuples and lists of traced values in order, and what keeps Python's own test or index."""

import collections
import heapq

import jax
import numpy as np
import pytest

from malleable import TransformError, autograph
from malleable.python_source.nodes import HOOKS
from tests.frontend.behaviour.behaviour import BOTH, assert_same

V = np.array([3.0, 1.0, 3.0, 1.0, 2.0, 9.0])
W = np.array([3.0, 2.0, 3.0, 1.0, 1.0, 1.0])


def pairs_sorted(v):
    xs = [(v[2 * k], v[2 * k + 1], k) for k in range(3)]
    xs.sort()
    return [k for _, _, k in xs] + [k for _, _, k in sorted(xs, reverse=True)]


def by_two_keys(v):
    return [*sorted(range(6), key=lambda k: (-v[k], "b" if k % 2 else "a")), 7]


def nested(v):
    return sorted([(v[k], [v[k + 1], k]) for k in range(5)])[1][1][1]


def extremes(v):
    rows = [list(v[:3]), list(v[3:]), [v[0], v[1], v[4]]]
    return max(rows)[2], min(rows)[0], min((v[k], k) for k in range(6))[1], max(rows, key=sum)[1]


def comparisons(v):
    a, b, c = (v[0], v[1]), (v[2], v[3]), [v[0], v[2], v[4]]
    signs = [a < b, a <= b, a > b, a >= b, a == b, a != b, (*a, 1) > a, a < (*b, 1)]
    return [
        *signs,
        c <= [v[2], v[0]],
        c == c,
        (1, v[0]) < (2, None),
        a in [b],
        [a].count(b),
        (v[0], "x") == a,
    ]


def largest(v):
    return heapq.nlargest(2, v) + heapq.nsmallest(2, list(v), key=lambda x: -x)


def queue(v):
    d = collections.deque([v[0], v[1], v[2], v[3]])
    d[int(v[1])] = 9.0
    d[-int(v[1])] += 1.0
    return d[int(v[0])], list(d)


@pytest.mark.parametrize(
    "f", [pairs_sorted, by_two_keys, nested, extremes, comparisons, largest, queue]
)
def test_rows_are_in_the_order_that_python_has(f):
    for v in (V, W):
        got, want = jax.jit(autograph(f))(v), f(v)
        for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            np.testing.assert_array_equal(x, y)


def test_rows_of_several_lengths_are_not_sorted():
    def f(v):
        return sorted([(v[0],), (v[1], v[2])])

    with pytest.raises(
        TransformError, match=r"no single numbers, nor rows(.|\n)*test_seq(.|\n)*key="
    ):
        jax.jit(autograph(f))(V)


def generated(v):
    def values():
        if v[0] > 2:
            yield v[0]
        yield v[1]

    return next(values())


def indexed(v):
    return b"abcd"[int(v[1])] == 98


@pytest.mark.parametrize(("f", "line"), [(generated, 2), (indexed, 1)])
def test_a_test_or_an_index_that_stays_pythons_is_an_error_at_its_line(f, line):
    where = rf"test_sequences.py:{f.__code__.co_firstlineno + line} in "
    with pytest.raises(TransformError, match=rf"Python's(.|\n)*{where}(.|\n)*hint: ") as caught:
        jax.jit(autograph(f))(V)
    assert isinstance(caught.value.__cause__, jax.errors.JAXTypeError)


def test_code_that_is_not_converted_keeps_the_error_of_jax():
    made = eval("lambda x: 1 if x > 0 else 2")
    assert HOOKS not in made.__code__.co_freevars
    with pytest.raises(jax.errors.TracerBoolConversionError):
        jax.jit(autograph(made))(1.0)


@BOTH
def test_a_bool_of_python_is_an_index(x):
    def f(x):
        xs, queue = [10, 20], collections.deque([1, 2])
        xs[x > 0] += 5
        queue[not x] = 7
        return xs[not x], (1, 2)[x > 0], "ab"[x > 0] == "b", xs[-(x > 0)], list(queue), xs

    assert_same(f, x)


@pytest.mark.parametrize("i", [0, 2, -1, -4])
def test_an_item_is_taken_out_at_a_traced_index(i):
    def f(i, v):
        xs, rows = list(v), [[a] for a in v]
        row = rows.pop(i)
        row[0] += 5
        del rows[0]
        return xs.pop(i), xs, row, rows, len(rows)

    assert_same(f, i, np.arange(4.0))


def test_a_handler_of_an_index_that_is_not_there_is_for_pop_too():
    def f(i):
        xs = [1, 2, 3]
        try:
            return xs.pop(i)
        except IndexError:
            return -len(xs)

    assert_same(f, 2)
    assert_same(f, 3)


class Heavy:
    def __init__(self, x):
        self.x = x

    def __bool__(self):
        return self.x > 1

    def __lt__(self, other):
        return self.x < other.x


@BOTH
def test_bool_asks_an_object(x):
    assert_same(lambda x: (bool(Heavy(x)), not Heavy(x), 1 if Heavy(x) else 0), x)


TIES = {
    "sorted": lambda v: sorted(v)[1],
    "backward": lambda v: sorted(v, reverse=True)[2],
    "max": lambda v: max(v),
    "min": lambda v: min(v),
    "grown": lambda v: sorted([x for x in v if x > 0], reverse=True)[2],
}


@pytest.mark.parametrize("name", TIES)
def test_the_gradient_goes_to_the_one_of_equals_that_python_takes(name):
    f = TIES[name]
    wanted = jax.grad(lambda v: f(list(v)))(V)
    assert wanted.max() == 1
    assert np.array_equal(jax.jit(jax.grad(autograph(f)))(V), wanted)


@pytest.mark.parametrize("fun", [min, max])
@pytest.mark.parametrize("v", [[np.inf, np.nan, -np.inf], [np.nan, 2], [1, 1], [3, np.nan, 5]])
def test_the_extreme_of_a_list_that_grew_skips_nan_as_comparisons_do(fun, v):
    f = lambda v: fun([x for x in v if x != 1], default=7.0)
    v = np.array(v, float)
    assert np.array_equal(jax.jit(autograph(f))(v), f(v), equal_nan=True)
