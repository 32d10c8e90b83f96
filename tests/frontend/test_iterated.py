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


ONE_OF_TWO = pytest.mark.parametrize("n", [0, 1])


@ONE_OF_TWO
@pytest.mark.parametrize("over", [iter, reversed, enumerate, lambda xs: zip(xs, xs)])
@pytest.mark.parametrize("size", [3, 12])
def test_a_loop_over_the_chosen_list_sees_what_it_writes(over, size, n):
    def f(n):
        a, b = [1.0 * k for k in range(size)], [3.0 * k for k in range(size)]
        chosen, s = (a, b)[n], 0.0
        for v in over(chosen):
            s = s * 2 + (v[1] if isinstance(v, tuple) else v)
            chosen[2] += 10.0
            b[1] = chosen[0] = 7.0
        return s, a, b

    assert_same(f, n)


@ONE_OF_TWO
def test_a_loop_over_the_chosen_dict_sees_what_it_writes_in_the_order_of_its_keys(n):
    def f(n):
        a, b = {"p": 1.0, "q": 2.0, "r": 3.0}, {"r": 4.0, "q": 5.0, "p": 6.0}
        d, s = (a if n > 0 else b), 0.0
        for v in d.values():
            s = s * 2 + v
            b["p"] = 10.0
        for k, v in d.items():
            s = s * 2 + v
            a["r"] = d[k] = 8.0
        held = d.values()
        a["q"] = 9.0
        for k in d:
            s = s * 2 + d[k] * (2.0 if k == "p" else 1.0)
        return s, sum(held), 9.0 in held, a, b

    assert_same(f, n)


def test_a_chosen_list_that_grows_while_a_loop_goes_over_it_is_refused():
    def f(n):
        chosen = ([1.0, 2.0], [3.0, 4.0])[n]
        for v in chosen:
            if len(chosen) < 5:
                chosen.append(v)
        return chosen

    with pytest.raises(TransformError, match="changes its length"):
        jax.jit(autograph(f))(0)


def test_writing_to_one_of_lists_of_two_lengths_that_a_loop_goes_over_is_refused():
    def f(n):
        b = [3.0, 4.0]
        for v in ([1.0, 2.0, 3.0], b)[n]:
            b[1] += v
        return b

    with pytest.raises(TransformError, match="writes to a list that it may go over"):
        jax.jit(autograph(f))(0)


@ONE_OF_TWO
def test_a_loop_over_a_list_of_traced_length_sees_what_it_writes(n):
    def f(n):
        xs, s = [1.0, 2.0, 3.0], 0.0
        if n > 0:
            xs.append(4.0)
        for v in xs:
            s = s * 2 + v
            if v < 3:
                xs[-1] = 10.0
        for k, v in enumerate(xs):
            s = s * 2 + v
            xs[k] = xs[-1] = 0.5
        return s, sum(xs)

    assert_same(f, n)


def test_a_list_of_traced_length_that_grows_in_a_loop_over_it_is_an_error():
    def f(n):
        xs, s = [1.0, 2.0], 0.0
        if n > 0:
            xs.append(4.0)
        for v in xs:
            s += v
            if v < 2:
                xs.append(8.0)
        return s

    assert np.isnan(jax.jit(autograph(f))(0))
