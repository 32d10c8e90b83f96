"""Rows 28 to 50 of AutoGraph's behaviours: how a loop runs, where it stops, what it carries."""

import jax
import numpy as np
import pytest
from jax import numpy as jnp
from jax.experimental import checkify

from malleable import TransformError, autograph, listen, skip
from tests.frontend.behaviour import assert_same, count, deepest_line, program
from tests.rules import refusal

DIFFERENT = {
    32: "a variable set only in a loop that never ran is zero",
}

XS = np.array([1.0, -2.0, 3.0, 4.0, -5.0, 6.0], np.float32)


def error_of(fun, *args):
    """The message of the run-time check that fails, None if none does."""
    error, _ = checkify.checkify(jax.jit(autograph(fun, checked=True)))(*args)
    return error.get()


def body_of(fun, name, *args):
    """The parameters of the one such primitive in the program of a converted function."""
    (eqn,) = [e for e in program(fun, *args).eqns if e.primitive.name == name]
    return eqn.params


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

    assert "y" in error_of(f, 20.0)
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


# ---------------------------------------------------------------- 42-44 traced from some step on


@pytest.mark.parametrize("limit", [1.5, 30.0, 1e9])
def test_row_42_a_traced_break_in_a_python_for_stops_it(limit):
    def f(x, limit):
        steps = 0
        for k in range(10):
            x = x * 2 + k
            if x > limit:
                break
            steps += 1
        return x, k, steps

    assert_same(f, 1.0, limit)
    assert count(f, "while", 1.0, limit) == 1


@pytest.mark.parametrize("limit", [1.5, 30.0])
def test_row_42_a_traced_break_in_a_python_while_stops_it(limit):
    def f(x, limit):
        k = 0
        while k < 10:
            k += 1
            x = x * 2
            if x > limit:
                break
        return x, k

    assert_same(f, 1.0, limit)


@pytest.mark.parametrize("limit", [1.5, 3.5, 1e9])
def test_row_42_a_traced_break_over_a_list_of_numbers_and_strings_stops_it(limit):
    def f(x, limit):
        name = ""
        for by, name in [(1.0, "a"), (2.0, "bb"), (3.0, "ccc")]:
            x = x + by
            if x > limit:
                break
        return x, by

    assert_same(f, 1.0, limit)


@pytest.mark.parametrize("x", [1.0, 3.0, 1e9])
def test_row_43_a_traced_return_in_a_python_for_ends_the_function(x):
    def f(x):
        for itr in range(20):
            new = 0.5 * (x + 2 / x)
            if abs(new - x) < 1e-3:
                return new, itr
            x = new
        return x, -1

    assert_same(f, x)


def test_row_43_a_traced_return_whose_default_raises_is_nan_where_it_raises():
    def f(x):
        for _ in range(4):
            x = 0.5 * (x + 2 / x)
            if abs(x * x - 2) < 1e-3:
                return x
        raise RuntimeError("no convergence")

    g = jax.jit(autograph(f))
    assert abs(float(g(1.0)) - 2**0.5) < 1e-3
    assert np.isnan(float(g(1e9)))


@pytest.mark.parametrize("x", [0.5, 1.0, 100.0])
def test_row_44_a_while_whose_test_becomes_traced_is_compiled_from_there(x):
    def f(x):
        err, k = 10.0, 0
        while err > 1.0:
            x = x / 2 + 0.1
            err = x
            k += 1
        return x, k

    assert_same(f, x)
    assert count(f, "while", x) == 1


# ---------------------------------------------------------------- 45-50 types that change


def test_row_45_an_integer_array_that_becomes_a_float_is_promoted_and_noted():
    def f(xs, n):
        s = np.zeros(6, np.int32)
        for _ in range(n):
            s = s + xs
        return s

    assert_same(lambda xs, n: f(xs, n), XS, 3)
    with listen() as heard:
        program(f, XS, 3)
    assert any("`s`" in n.what and "int32" in n.what and "float32" in n.what for n in heard)


def test_row_45_a_promotion_traces_the_body_once_more():
    traced = []

    @skip
    def tick():
        traced.append(1)

    def f(x, n):
        s = jnp.int32(0)
        for _ in range(n):
            tick()
            s = s + x
        return s

    jax.jit(autograph(f))(1.5, 3)
    assert len(traced) == 2


@pytest.mark.parametrize("n", [1, 3, 10])
def test_row_46_a_type_is_promoted_through_a_break(n):
    def f(x, n):
        s, k = 0, 0
        while k < n:
            k += 1
            if k > 4:
                s = s + x
                break
            s = s + 1
        return s * 1.0, k

    assert_same(f, 0.5, n)


def test_row_47_a_shape_that_changes_is_an_error_with_both_shapes_and_a_hint():
    def f(x, n):
        y = np.ones(1, np.float32) * x
        for _ in range(n):
            y = np.concatenate([y, y])
        return y

    error = refusal(TransformError, lambda: jax.jit(autograph(f))(1.0, 3), 2, fun=f)
    assert "`y`" in error.what
    assert "float32[1]" in error.what
    assert "float32[2]" in error.what
    assert "buffer" in error.hint


def test_row_48_a_structure_that_changes_is_an_error_that_names_the_variable():
    def f(x, n):
        y = {"a": x}
        for _ in range(n):
            y = x * 2
        return y["a"] if isinstance(y, dict) else y

    error = refusal(TransformError, lambda: jax.jit(autograph(f))(1.0, 3))
    assert "dict" in str(error)


def test_row_48_a_list_that_grows_in_a_loop_over_an_array_is_stacked():
    def f(xs):
        out = []
        for x in xs:
            out.append(x * 2)
        return np.array(out)

    assert_same(f, XS)
    assert count(f, "scan", XS) == 1


def test_row_48_a_list_that_grows_in_a_loop_of_unknown_length_is_an_error():
    def f(x, n):
        out = []
        for i in range(n):
            out.append(x * i)
        return out

    error = refusal(TransformError, lambda: jax.jit(autograph(f))(1.0, 3))
    assert "list" in error.what


@pytest.mark.parametrize("n", [1, 4])
def test_row_49_a_dict_of_arrays_created_in_a_loop_is_there_after_it(n):
    def f(xs, n):
        for i in range(n):
            d = {"a": xs * i, "b": [xs.sum() + i, i]}
        return d["a"], d["b"][0], d["b"][1]

    assert_same(f, XS, n)


def test_row_49_a_dict_of_arrays_of_a_loop_that_never_ran_is_zero():
    def f(xs, n):
        for i in range(n):
            d = {"a": xs * i + 1}
        return d["a"]

    assert not np.any(jax.jit(autograph(f))(XS, 0))


def test_row_50_a_shape_that_depends_on_a_traced_step_is_an_error_at_its_line():
    def f(x, n):
        s = 0.0
        for i in range(n):
            s = s + np.zeros(i).sum()
        return s + x

    with pytest.raises((TypeError, TransformError)) as caught:
        jax.jit(autograph(f))(1.0, 3)
    assert deepest_line(caught, __file__) == f.__code__.co_firstlineno + 3
