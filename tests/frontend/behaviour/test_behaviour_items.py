"""Rows 62 to 69 of AutoGraph's behaviours: what a `for` goes over; try and with in loops."""

import contextlib

import jax
import numpy as np
import pytest

from malleable import autograph
from tests.frontend.behaviour.behaviour import BOTH, XS, assert_same, count

# ---------------------------------------------------------------- 62-66 what a for goes over


@pytest.mark.parametrize(
    "bounds",
    [(0,), (5,), (-2,), (2, 6), (6, 2), (2, 9, 3), (9, 2, -3), (2, 9, -1), (0, 1, 5), (3, -4, -2)],
)
def test_row_62_a_range_with_traced_bounds_takes_the_steps_of_python(bounds):
    def f(*bounds):
        s = steps = 0
        for i in range(*bounds):
            s = s * 2 + i
            steps += 1
        return s, steps

    assert_same(f, *bounds)


@pytest.mark.parametrize("step", [3, -2])
def test_row_62_a_range_with_a_traced_end_and_a_known_step_takes_the_steps_of_python(step):
    def f(end):
        s = 0
        for i in range(1, end, step):
            s = s * 2 + i
        return s

    for end in (-6, 0, 1, 2, 8):
        assert_same(f, end)


def test_row_62_a_known_step_of_zero_is_a_value_error():
    def f(n):
        s = 0
        for i in range(0, n, 0):
            s += i
        return s

    with pytest.raises(ValueError, match="must not be zero"):
        jax.jit(autograph(f))(3)


def test_row_63_a_generator_is_not_read_beyond_a_python_break():
    read = []

    def numbers():
        for k in range(10):
            read.append(k)
            yield k

    def f(x):
        for k in numbers():
            if k == 3:
                break
            x = x + k
        return x

    assert float(jax.jit(autograph(f))(1.0)) == 4.0
    assert read == [0, 1, 2, 3]


@pytest.mark.parametrize("limit", [2.5, 4.0, 100.0])
def test_row_63_a_generator_with_a_traced_break_gives_the_values_of_python(limit):
    def f(x, limit):
        for k in (j * 1.0 for j in range(6)):
            if x > limit:
                break
            x = x + k
        return x, k

    assert_same(f, 1.0, limit)


@pytest.mark.parametrize("limit", [2.0, 5.0, 100.0])
def test_row_64_attributes_are_the_state_of_a_loop_with_break(limit):
    class Sum:
        def __init__(self):
            self.x, self.n = 0.0, 0

        def run(self, xs, limit):
            for x in xs:
                if x > limit:
                    break
                self.x += x
                self.n += 1
            return self

    def f(xs, limit):
        s = Sum().run(xs, limit)
        return s.x, s.n

    assert_same(f, XS, limit)


def test_row_65_enumerate_of_zip_of_arrays_is_one_scan():
    def f(xs, ys):
        s = 0.0
        for i, (a, b) in enumerate(zip(xs, ys)):
            s = s * 0.5 + i * a - b
        return s

    assert_same(f, XS, XS[::-1].copy())
    assert count(f, "scan", XS, XS) == 1


def test_row_65_enumerate_with_a_start_and_reversed_are_one_scan():
    def f(xs):
        s = 0.0
        for i, x in enumerate(reversed(xs), 3):
            s = s * 0.5 + i * x
        return s

    assert_same(f, XS)
    assert count(f, "scan", XS) == 1


def test_row_65_the_expression_that_gives_the_items_is_evaluated_once():
    def f(xs):
        calls = []

        def items():
            calls.append(1)
            return xs

        s = 0.0
        for x in items():
            s += x
        return s, len(calls)

    assert_same(f, XS)


@pytest.mark.parametrize("n", [0, 3])
def test_row_66_the_variable_of_a_comprehension_is_not_that_of_the_loop(n):
    def f(x, n):
        k = x
        for i in range(n):
            ys = [k * i for k in (1.0, 2.0)]
            x = x + sum(ys) + k
        return x, k

    assert_same(f, 1.5, n)


# ---------------------------------------------------------------- 67-69 try, with, nested state


@pytest.mark.parametrize("n", [0, 3])
def test_row_67_continue_in_a_try_runs_its_finally(n):
    def f(x, n):
        done = i = 0
        while i < n:
            i += 1
            try:
                if i == 2:
                    continue
                x = x + i
            finally:
                done += 1
        return x, done

    assert_same(f, 1.5, n)


@pytest.mark.parametrize("limit", [2.0, 5.0, 100.0])
def test_row_67_break_in_a_with_leaves_it(limit):
    class Count:
        left = 0

        def __enter__(self):
            return self

        def __exit__(self, *error):
            self.left += 1

    def f(xs, limit):
        count, s = Count(), 0.0
        for x in xs:
            with count:
                if x > limit:
                    break
                s += x
        return s, count.left

    assert_same(f, XS, limit)


def test_row_67_a_with_in_a_branch_that_is_not_taken_leaves_no_effects():
    class Count:
        left = 0

        def __enter__(self):
            return self

        def __exit__(self, *error):
            self.left += 1

    def f(x):
        count = Count()
        if x > 0:
            with count:
                x = x + 1
        return x, count.left

    assert_same(f, -2.0)


@pytest.mark.parametrize("n", [0, 3])
def test_row_67_a_with_over_a_context_made_of_a_generator_keeps_its_writes(n):
    @contextlib.contextmanager
    def counted(log):
        log["n"] += 1
        try:
            yield 5.0
        finally:
            log["n"] += 10

    def f(x, n):
        log = {"n": 0}
        for _ in range(n):
            with counted(log) as y:
                x = x + y
        return x, log["n"]

    assert_same(f, 1.5, n)


@BOTH
def test_row_68_a_python_exception_in_a_branch_is_caught_around_it_and_its_writes_are_undone(x):
    def f(x):
        y = 1.0
        try:
            if x.ndim == 0:
                y = 2.0
                raise KeyError("known")
        except KeyError:
            y = y * 10
        return y + x

    assert_same(f, np.float32(x))


@BOTH
def test_row_68_an_exception_raised_under_a_traced_test_goes_to_its_handler(x):
    def f(x):
        y = 1.0
        try:
            if x > 0:
                y = 2.0
                raise KeyError("positive")
            y = y + 5
        except KeyError:
            y = y * 10
        return y + x

    assert_same(f, x)


def test_row_68_an_exception_raised_by_a_callee_under_a_traced_test_goes_to_its_handler():
    def checked(x):
        if x < 0:
            raise ValueError("negative")
        return x * 2

    def f(x):
        s = 0.0
        for k in range(4):
            try:
                s += checked(x - k)
            except ValueError:
                s += 100
        return s

    assert_same(f, 1.5)


@pytest.mark.parametrize("n", [1, 3])
def test_row_69_a_variable_of_the_outer_loop_is_used_in_the_inner_one(n):
    def f(x, n):
        s = 0.0
        for i in range(n):
            base = x * 2
            varying = x + i
            for j in range(n):
                s += base + varying * j
                varying = varying * 0.5
        return s, varying

    assert_same(f, 1.5, n)


@pytest.mark.parametrize("n", [1, 3])
def test_row_69_a_variable_initialised_in_the_first_outer_step_is_used_in_the_inner_loop(n):
    def f(x, n):
        s = 0.0
        for i in range(n):
            if i == 0:
                base = x * 2
            for j in range(i + 1):
                s += base * j
                base = base + 1
        return s, base

    assert_same(f, 1.5, n)
