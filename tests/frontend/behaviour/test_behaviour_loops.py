"""Rows 28 to 41 of AutoGraph's behaviours: how a loop runs, and where it stops."""

import jax
import numpy as np
import pytest

from malleable import autograph, listen
from tests.frontend.behaviour.behaviour import (
    XS,
    assert_same,
    count,
    deepest_line,
    error_of,
    program,
)

# ---------------------------------------------------------------- 28-30 plain loops


def test_row_28_a_loop_over_an_array_that_does_nothing_is_no_loop():
    def f(xs):
        for _ in xs:
            pass
        return xs

    assert program(f, XS).eqns == []


def test_row_28_a_loop_over_a_traced_range_that_does_nothing_is_no_loop():
    def f(n):
        for _ in range(n):
            pass
        return n

    assert count(f, "while", 5) == 0
    assert_same(f, 5)


@pytest.mark.parametrize("n", [0, 5])
def test_row_29_an_integer_accumulator_stays_an_integer(n):
    def f(n):
        s = i = 0
        while i < n:
            s = s + i
            i = i + 1
        return s

    assert_same(f, n)
    assert program(f, n).outvars[0].aval.weak_type


@pytest.mark.parametrize("n", [1, 5])
def test_row_29_an_integer_accumulator_becomes_a_float_when_the_body_makes_one(n):
    def f(n):
        s, i = 0, 0
        while i < n:
            s = s + i * 0.5
            i += 1
        return s, i

    assert_same(f, n)
    assert count(f, "while", n) == 1


def test_row_30_a_loop_over_an_array_is_one_scan():
    def f(xs):
        s = 0.0
        for x in xs:
            s = s * 0.5 + x
        return s

    assert_same(f, XS)
    assert count(f, "scan", XS) == 1
    assert count(f, "while", XS) == 0


def test_row_30_a_loop_over_a_matrix_goes_over_its_rows():
    def f(a):
        s = np.zeros(3, np.float32)
        for row in a:
            s = s * 0.5 + row
        return s

    assert_same(f, np.arange(12, dtype=np.float32).reshape(4, 3))


def test_row_30_a_loop_over_an_array_without_axes_is_a_type_error():
    def f(x):
        for y in x:
            x = y
        return x

    with pytest.raises(TypeError, match="iteration over a 0-d array") as caught:
        jax.jit(autograph(f))(np.float32(1))
    assert deepest_line(caught, __file__) == f.__code__.co_firstlineno + 1


# ---------------------------------------------------------------- 31-35 else, undefined, nests


@pytest.mark.parametrize("limit", [2.0, 100.0])
def test_row_31_the_else_of_a_for_runs_if_it_did_not_break(limit):
    def f(xs, limit):
        for x in xs:
            if x > limit:
                found = x
                break
        else:
            found = -1.0
        return found

    assert_same(f, XS, limit)


@pytest.mark.parametrize("x", [0.0, 3.0, 20.0])
def test_row_31_the_else_of_a_while_runs_if_it_did_not_break(x):
    def f(x):
        y = 0.0
        while x < 10:
            x = x * 2 + 1
            if x == 7:
                break
        else:
            y = 5.0
        return x, y

    assert_same(f, x)


@pytest.mark.parametrize(("x", "value"), [(3.0, 12.0), (20.0, 0.0)])
def test_row_32_a_variable_created_in_a_while_is_zero_if_it_never_ran(x, value):
    def f(x):
        while x < 10:
            y = x * 2
            x = y
        return y

    assert float(jax.jit(autograph(f))(x)) == value


def test_row_32_checked_reports_the_read_of_a_variable_of_a_loop_that_never_ran():
    def f(x):
        while x < 10:
            y = x * 2
            x = y
        return y

    assert "undefined" in error_of(f, 20.0)
    assert error_of(f, 3.0) is None


def test_row_33_a_variable_created_in_a_loop_over_nothing_is_unbound_as_in_python():
    def f(x, items=()):
        for i in items:
            y = x + i
        return y

    with pytest.raises(UnboundLocalError, match="'y'"):
        jax.jit(autograph(f))(1.0)


@pytest.mark.parametrize("n", [0, 3])
def test_row_34_the_second_loop_starts_from_what_the_first_left(n):
    def f(xs, n):
        s = 0.0
        for x in xs:
            s += x
        for i in range(n):
            s *= i + 2
        return s

    assert_same(f, XS, n)


def test_row_34_a_loop_in_a_loop_over_arrays_is_a_scan_in_a_scan():
    def f(a):
        s = 0.0
        for row in a:
            t = 1.0
            for x in row:
                t = t * 0.5 + x
            s += t
        return s

    a = np.arange(12, dtype=np.float32).reshape(4, 3)
    assert_same(f, a)
    assert count(f, "scan", a) == 2
    assert [e.primitive.name for e in program(f, a).eqns].count("scan") == 1


def test_row_35_a_list_of_arrays_of_different_shapes_is_unrolled():
    def f(a, b):
        s = 0.0
        for x in [a, b, a * 2]:
            s = s + x.sum()
        return s

    a, b = XS, np.ones((2, 2), np.float32)
    assert_same(f, a, b)
    assert count(f, "scan", a, b) == count(f, "while", a, b) == 0


def test_row_35_a_list_of_arrays_and_other_things_is_unrolled():
    def f(a):
        s = 0.0
        for x in [a, 2.0, "abc", None]:
            if x is None:
                s += 1
            elif isinstance(x, str):
                s += len(x)
            else:
                s = s + np.sum(x)
        return s

    assert_same(f, XS)
    assert count(f, "cond", XS) == 0


# ---------------------------------------------------------------- 36-41 continue, break, return


def test_row_36_continue_guards_the_rest_of_the_body_by_one_cond():
    def f(xs):
        s, t = 0.0, 1.0
        for x in xs:
            if x < 0:
                continue
            s = s + x
            t = t * x
        return s, t

    assert_same(f, XS)
    assert (count(f, "scan", XS), count(f, "cond", XS)) == (1, 1)


@pytest.mark.parametrize("n", [0, 1, 7])
def test_row_36_continue_in_a_while_makes_no_extra_step(n):
    def f(n):
        i = s = 0
        while i < n:
            i += 1
            if i % 2 == 0:
                continue
            s += i
        return s, i

    assert_same(f, n)


@pytest.mark.parametrize("limit", [2.0, 5.0, 100.0])
def test_row_37_break_stops_a_for_and_keeps_its_iterate(limit):
    def f(xs, limit):
        seen = 0
        for x in xs:
            if x > limit:
                break
            seen += 1
        return x, seen

    assert_same(f, XS, limit)
    assert count(f, "while", XS, limit) == 1


@pytest.mark.parametrize("limit", [3, 100])
def test_row_37_break_stops_a_while(limit):
    def f(limit):
        i, s = 0, 1.0
        while i < 8:
            i += 1
            if i * i > limit:
                break
            s = s * 1.5
        return i, s

    assert_same(f, limit)


def test_row_37_an_effect_after_the_break_does_not_happen():
    def f(xs):
        out = np.zeros(6, np.float32)
        for i in range(len(xs)):
            if xs[i] < -4:
                break
            out[i] = xs[i]
        return out

    assert_same(f, XS)


@pytest.mark.parametrize("limit", [1, 3, 9])
def test_row_38_break_in_an_inner_loop_stops_that_one_only(limit):
    def f(limit):
        s = 0
        for i in range(4):
            for j in range(5):
                if i * j > limit:
                    break
                s += 10 * i + j
            s += 1000
        return s

    assert_same(f, limit)


@pytest.mark.parametrize("limit", [1, 3, 9])
def test_row_38_break_and_continue_in_an_inner_while_stay_inside(limit):
    def f(limit):
        s = i = 0
        while i < limit:
            i += 1
            j = 0
            while j < limit:
                j += 1
                if j == 2:
                    continue
                if i + j > 6:
                    break
                s += 10 * i + j
            if i == 5:
                break
        return s, i

    assert_same(f, limit)


@pytest.mark.parametrize("limit", [2.0, 5.0, 100.0])
def test_row_39_an_if_after_the_break_is_not_executed(limit):
    def f(xs, limit):
        s = 0.0
        for x in xs:
            if x > limit:
                break
            if x > 0:
                s += x
            s *= 2
        return s

    assert_same(f, XS, limit)


@pytest.mark.parametrize("limit", [-3.0, 2.0, 5.0, 100.0])
def test_row_40_the_first_of_several_breaks_counts(limit):
    def f(xs, limit):
        why = 0
        for x in xs:
            if x > limit:
                why = 1
                break
            if x > 3.5:
                why = 2
                break
            if x < -4:
                why = 3
                break
        return why, x

    assert_same(f, XS, limit)


@pytest.mark.parametrize("n", [1, 4])
def test_row_41_a_return_in_a_loop_ends_the_function(n):
    def f(n):
        for i in range(n):
            return i * 2.0 + n
        return -1.0

    assert_same(f, n)


@pytest.mark.parametrize("n", [0, 4])
def test_row_41_the_default_after_a_loop_with_a_return_holds_for_no_steps(n):
    def f(n):
        for i in range(n):
            if i > 1:
                return i * 2.0
        return -1.0

    assert_same(f, n)


@pytest.mark.parametrize(("n", "value"), [(0, np.nan), (3, 7.0)])
def test_row_41_a_function_that_returns_only_in_its_loop_is_nan_after_no_steps(n, value):
    def f(n):
        for i in range(n):
            return i + 7.0

    np.testing.assert_equal(float(jax.jit(autograph(f))(n)), value)


@pytest.mark.parametrize("x", [1.0, 3.0, 9.0])
def test_the_else_of_a_while_may_leave_the_loop_around_it(x):
    def f(x):
        total = 0.0
        for i in range(3):
            k = 0
            while (k := k + 1) < x:
                total += 1
                if total > 7:
                    break
            else:
                total += 10 * i
                if total > 25:
                    break
                continue
            total += 100
        return total, i, k

    assert autograph(f)(x) == f(x) == tuple(map(float, jax.jit(autograph(f))(x)))


def test_a_variable_that_a_loop_may_not_reach_leaves_a_note_where_it_is_read_later():
    def last(n):
        for i in range(n):
            y = i * 2.0
        return y

    def within(n):
        total = 0.0
        for i in range(n):
            y = i * 2.0
            total += y
        return total

    def caught(n):
        try:
            for i in range(n):
                y = i * 2.0
            return y
        except NameError:
            return -1.0

    with listen() as heard:
        assert (float(jax.jit(autograph(last))(0)), float(jax.jit(autograph(last))(3))) == (0, 4)
    assert {n.what for n in heard} == {"`y` may be undefined"}
    assert {n.why for n in heard} == {"it is set in a loop that may not run, and is zero then"}
    assert all("test_behaviour_loops.py" in n.where for n in heard)
    with listen() as heard:
        assert float(jax.jit(autograph(within))(3)) == 6
        assert float(jax.jit(autograph(caught))(0)) == -1
    assert heard == []


def romberg(a, tol=1e-6):
    def f(x):
        return np.exp(-x) * np.cos(2 * x)

    n, width, ends = 1, 1.7 - a, 0.5 * (f(a) + f(1.7))
    last = [width * ends]
    for i in range(1, 6):
        n *= 2  # which Python knows in each step, as long as the loop goes on
        h = width / (n // 2)
        ends += np.sum(f(a + 0.5 * h + h * np.arange(n // 2)))
        row = [width * ends / n]
        for k in range(i):
            row.append((4.0 ** (k + 1) * row[k] - last[k]) / (4.0 ** (k + 1) - 1))
        if abs(row[i] - last[i - 1]) < tol:
            break
        last = row
    else:
        return -1.0, n
    return row[i], n


@pytest.mark.parametrize("a", [0.2, 1.69, -9.0])
def test_what_python_knows_is_known_in_an_unrolled_loop_that_may_stop(a):
    assert_same(romberg, a)


def stopped_alias(x):
    total, rows = 0.0, []
    for i, v in enumerate(x):
        x[(i + 1) % 4] += v  # the next item sees it
        rows.append(v)
        total += len(rows) * rows[0] * np.arange(len(rows)).sum()
        if total > 3:
            break
    return total, x, i


@pytest.mark.parametrize("x", [[0.5, 0.1, 0.2, 0.3], [9.0, 1.0, 1.0, 1.0]])
def test_an_unrolled_loop_that_may_stop_sees_what_its_steps_write(x):
    assert_same(stopped_alias, np.array(x))
