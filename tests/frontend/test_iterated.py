"""A loop sees what its steps write to what it goes over."""

import itertools

import jax
import numpy as np
import pytest

import malleable as mal
from malleable import TransformError, autograph
from tests.frontend.behaviour.behaviour import assert_same

A = np.arange(6.0, dtype=np.float32).reshape(2, 3)


def rows_under_try(x, n, a):
    s = 0.0
    try:
        for v in a:
            if n < -3:
                raise IndexError
            if x > 0:
                a[:, 1] -= 1.0
            s = s * 10 + v[1]
    except IndexError:
        x = 2.0
    return a, s


def rows_under_try_and_while(x, n, a):
    try:
        for v in a:
            k = 0
            while k < 2 and not v[n] < x:
                k += 1
                a[:, n] -= 1.0
        assert x > 0
    except Exception:
        x = 2.0
    return a


@pytest.mark.parametrize("x", [0.5, -1.5])
@pytest.mark.parametrize("program", [rows_under_try, rows_under_try_and_while])
def test_the_rows_of_an_array(program, x):
    jax.tree.map(
        np.testing.assert_array_equal,
        jax.jit(autograph(program))(x, 1, A.copy()),
        program(x, 1, A.copy()),
    )


def items_of_a_list(x):
    xs = [x, 0.5, 1.0, x, x * 2]
    s = 0.0
    for f in xs:
        if f > 0.75:
            break
        xs[4] = xs[4] + 1
        xs[2] = x
        s = s * 10 + f
    return s, xs


def items_with_numbers(x):
    xs = [x, 0.5, 1.0, x, x * 2]
    s = 0.0
    for _, f in enumerate(xs):
        if f > 0.75:
            break
        xs[4] = xs[4] + 1
        s = s * 10 + f
    return s, xs


def items_of_a_dict(x):
    d = {"a": x, "b": 0.5, "c": x, "d": x, "e": x}
    s = 0.0
    for _, f in d.items():
        if f > 0.75:
            break
        d["e"] = d["e"] + 1
        s = s * 10 + f
    return s


def items_of_a_rolled_list(x):
    xs = [x, 0.5, 1.0, x, x * 2, x]
    s = 0.0
    for f in mal.loop(xs, roll=True):
        xs[3] = xs[2] + 1
        s = s * 10 + f
    return s, xs


@pytest.mark.parametrize("x", [0.5, -30.5, 1.0])
@pytest.mark.parametrize(
    "program", [items_of_a_list, items_with_numbers, items_of_a_dict, items_of_a_rolled_list]
)
def test_items_that_come_later(program, x):
    assert_same(program, x)


@pytest.mark.parametrize("x", [0.5, 4.0])
def test_a_loop_over_what_has_no_end_is_left_by_a_traced_test(x):
    def f(x):
        total, numbers = 0.0, itertools.count(3, 2)
        for k in numbers:
            if k > 5 * x:
                break
        for step in itertools.cycle([1.0, 2.0, 3.0]):
            total += step * x
            if total > 50:
                break
        return total, k, next(numbers)

    assert_same(f, x)


def test_a_generator_without_end_that_a_traced_test_leaves_is_refused():
    def fibonacci():
        a, b = 0, 1
        while True:
            yield a
            a, b = b, a + b

    def f(x):
        for n in fibonacci():
            if n > x:
                break
        return n

    with pytest.raises(TransformError, match="an iterator of more than 64 items"):
        jax.jit(autograph(f))(10.0)
