"""Iterators made outside of a compiled loop or a branch are advanced in it, as in Python."""

import itertools

import jax
import numpy as np
import pytest

from malleable import TransformError, autograph
from tests.frontend.behaviour.behaviour import assert_same

V = np.array([3.0, 1, 4, 1, 5, 9, 2, 6], np.float32)


@pytest.mark.parametrize("x", [2.0, 7.0])
@pytest.mark.parametrize(
    "make",
    [
        lambda: iter([1.0, 2.0, 3.0]),
        lambda: iter((1.0, 2.0)),
        lambda: iter(range(5, 20, 3)),
        lambda: itertools.count(10),
        lambda: itertools.count(0.5, 0.25),
        lambda: itertools.cycle([4.0, 5.0]),
    ],
)
def test_under_a_traced_test(make, x):
    def f(x):
        items, taken = make(), 0.0
        if x > 5:
            taken = taken + next(items)
        return taken, next(items) + 0.0

    assert_same(f, x)


def test_in_the_steps_of_a_loop():
    def f(v):
        numbers, names, items = itertools.count(1, 2), itertools.cycle("abc"), iter(v)
        n, total, times = 0, 0.0, 0
        for x in v:
            if x > 2:
                n += next(numbers)
                times += next(names) == "b"
            if x > 4:
                total += next(items)
        return n, total, times, next(numbers), next(items)

    assert_same(f, V)


def test_the_default_at_the_end():
    def f(v):
        a, b, out = iter(np.sort(v[:4])), iter(np.sort(v[4:])), []
        x, y = next(a, np.inf), next(b, np.inf)
        for _ in range(8):
            if x <= y:
                out.append(x)
                x = next(a, np.inf)
            else:
                out.append(y)
                y = next(b, np.inf)
        return np.array(out)

    assert_same(f, V)


def test_the_end_is_an_exception_for_a_handler():
    def f(v):
        items, total, ended = iter([1.0, 2.0]), 0.0, 0
        for x in v:
            try:
                if x > 2:
                    total += next(items)
            except StopIteration:
                ended += 1
        return total, ended

    assert_same(f, V)


def test_what_is_left_is_gone_over():
    def f(v):
        items = iter(list(v))
        first, total = next(items), 0.0
        for x in items:
            total += x * first if x > 2 else 0.0
        pairs = list(zip(*[iter(v)] * 2, strict=True))
        return total, next(items, -1.0), len(pairs), pairs[1][0]

    assert_same(f, V)


def test_going_over_one_from_a_traced_place_is_refused():
    def f(x):
        items = iter([1.0, 2.0, 3.0])
        if x > 0:
            next(items)
        return sum(items)

    with pytest.raises(TransformError, match="how far the iterator is") as caught:
        jax.jit(autograph(f))(1.0)
    assert "test_iterators.py" in str(caught.value)


@pytest.mark.parametrize("x", [5.0, 0.5])
def test_an_endless_loop_is_left_by_its_return(x):
    def f(x):
        for i in itertools.count(2):
            if x < 1:
                return i
            x /= 2

    assert_same(f, x)
