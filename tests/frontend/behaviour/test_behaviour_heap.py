"""Rows 18 to 27 of AutoGraph's behaviours: `raise`, globals, items and attributes under `if`."""

import inspect
import types

import jax
import numpy as np
import pytest

from malleable import autograph, listen
from tests.frontend.behaviour.behaviour import (
    BOTH,
    assert_same,
    count,
    deepest_line,
    error_of,
    program,
)

TOTAL = 0.0
LIMIT = 3.0


# ---------------------------------------------------------------- 18-20 raise, global, except


def raises_below_zero(x):
    if x > 0:
        y = x * 2
    else:
        raise ValueError(f"not positive: {x}")
    return y + 1


@pytest.mark.parametrize(("x", "value"), [(2.0, 5.0), (-2.0, np.nan)])
def test_row_18_a_float_is_nan_where_a_dropped_raise_would_have_happened(x, value):
    np.testing.assert_equal(float(jax.jit(autograph(raises_below_zero))(x)), value)


def test_row_18_a_dropped_raise_leaves_a_note_with_its_line():
    with listen() as heard:
        program(raises_below_zero, 1.0)
    (line,) = [n.where for n in heard if "raise ValueError" in n.what]
    wanted = raises_below_zero.__code__.co_firstlineno + 4
    assert f"test_behaviour_heap.py:{wanted}" in line


def test_row_18_an_integer_keeps_the_value_of_the_other_branch():
    def f(n):
        if n < 0:
            raise ValueError("negative")
        return n * 2

    assert int(jax.jit(autograph(f))(-3)) == -6


def test_row_18_checked_makes_a_dropped_raise_an_error():
    assert "ValueError: not positive" in error_of(raises_below_zero, -2.0)
    assert error_of(raises_below_zero, 2.0) is None


def test_row_18_a_raise_in_both_branches_is_raised():
    def f(x):
        if x > 0:
            raise KeyError("yes")
        else:
            raise ValueError("no")

    with pytest.raises((KeyError, ValueError)):
        jax.jit(autograph(f))(1.0)


@BOTH
def test_row_19_a_global_written_in_a_traced_branch_holds_the_chosen_value(x):
    def f(x):
        global TOTAL
        TOTAL = 1.0
        if x > 0:
            TOTAL = TOTAL + x
        out = TOTAL * 2
        TOTAL = 0.0
        return out

    assert_same(f, x)
    assert TOTAL == 0.0


@pytest.mark.parametrize("n", [0, 3])
def test_row_19_an_attribute_of_a_class_is_the_state_of_a_loop(n):
    class Config:
        steps = 0

    def f(n):
        Config.steps = 0
        for i in range(n):
            Config.steps += i
        steps, Config.steps = Config.steps, 0
        return steps

    assert_same(f, n)


@BOTH
def test_row_19_globals_and_cells_that_are_only_read_are_not_carried(x):
    step = 0.5

    def f(x):
        if x > 0:
            x = x + LIMIT * step
        return x

    assert_same(f, x)
    (cond,) = [e for e in program(f, x).eqns if e.primitive.name == "cond"]
    assert len(cond.outvars) == 1


@BOTH
def test_row_19_a_nonlocal_written_in_a_traced_branch_holds_the_chosen_value(x):
    def f(x):
        total = 1.0

        def add(y):
            nonlocal total
            if y > 0:
                total = total + y

        add(x)
        add(x * 2)
        return total

    assert_same(f, x)


@BOTH
def test_row_20_a_variable_defined_in_an_except_before_can_be_changed(x):
    def f(x):
        try:
            y = {}["missing"]
        except KeyError as e:
            y = x + len(e.args)
        if x > 0:
            y = y * 2
        return y

    assert_same(f, x)


# ---------------------------------------------------------------- 21-27 containers and objects


@BOTH
def test_row_21_items_and_attributes_set_in_one_branch_hold_the_chosen_value(x):
    def f(x):
        d, o = {"a": x}, types.SimpleNamespace(b=x)
        if x > 0:
            d["a"] = x * 2
        else:
            o.b = x * 3
        return d, o.b

    assert_same(f, x)
    assert count(f, "cond", x) == 1


@pytest.mark.parametrize(("x", "value"), [(2.0, 4.0), (-2.0, np.nan)])
def test_row_21_an_attribute_missing_in_one_branch_is_an_error_where_it_is_read(x, value):
    def f(x):
        o = types.SimpleNamespace()
        if x > 0:
            o.b = x * 2
        return o.b

    assert np.array_equal(jax.jit(autograph(f))(x), value, equal_nan=True)


@BOTH
def test_row_21_a_handler_is_told_of_the_first_attribute_that_a_path_lacks(x):
    class Empty:
        pass

    def f(x):
        o = Empty()
        if x > 0:
            o.b = x
        try:
            return o.b
        except AttributeError:
            return -1.0

    assert_same(f, x)


def test_row_21_an_attribute_that_the_class_has_keeps_that_value_in_the_other_branch():
    class Counter:
        n = 0

    def f(x):
        counter = Counter()
        if x > 0:
            counter.n += 1
        return counter.n

    assert_same(f, -2.0)


def test_row_21_an_object_of_the_caller_sees_the_write_and_gets_an_array():
    o = types.SimpleNamespace(b=1.0)

    @autograph
    def f(x):
        if x > 0:
            o.b = x * 2
        return o.b

    @jax.jit
    def call(x):
        o.b = 1.0
        out = f(x)
        kind, o.b = isinstance(o.b, jax.Array), 1.0
        return out, kind

    assert jax.tree.map(float, call(2.0)) == (4.0, 1.0)


@BOTH
def test_row_22_an_item_of_a_dict_is_increased_in_a_traced_branch(x):
    def f(x):
        d = {"a": x, "b": 1}
        if x > 0:
            d["a"] += 1
        return d

    assert_same(f, x)


@BOTH
def test_row_21_an_object_made_in_one_branch_is_joined_with_that_of_the_other(x):
    def f(x):
        o = types.SimpleNamespace(p=types.SimpleNamespace(q=[x, 1]))
        if x > 0:
            o.p.q[1] += 2
            o.p = types.SimpleNamespace(q=[x * 2, 5])
        return o.p.q

    assert_same(f, x)


@BOTH
def test_row_22_a_list_that_has_two_names_after_one_branch_has_them_still(x):
    def f(x):
        xs = [x, 1.0]
        ys = xs
        if x > 0:
            ys = [x, 5.0]
        ys[0] = 9.0
        return xs, ys

    assert_same(f, x)


@BOTH
def test_row_22_an_item_of_a_list_is_increased_in_a_traced_branch(x):
    def f(x):
        xs = [x, 2.0]
        if x > 0:
            xs[0] += 1
        else:
            xs[1] *= x
        return xs

    assert_same(f, x)


@pytest.mark.parametrize(("x", "value"), [(2.0, 4.0), (-2.0, np.nan)])
def test_row_23_a_key_created_in_one_branch_is_nan_where_it_is_missing(x, value):
    def f(x):
        d = {"a": x}
        if x > 0:
            d["b"] = x * 2
        return d["b"]

    np.testing.assert_equal(float(jax.jit(autograph(f))(x)), value)


def test_row_23_a_key_that_may_be_missing_leaves_a_note():
    def f(x):
        d = {"a": x}
        if x > 0:
            d["b"] = x * 2
        return d["b"]

    with listen() as heard:
        program(f, 1.0)
    assert any("may be undefined" in n.what for n in heard)


def test_row_24_a_wrong_key_is_a_key_error_at_its_line():
    def f(x):
        d = {"a": x}
        if x > 0:
            d["a"] = d["wrong"] + 1
        return d

    with pytest.raises(KeyError, match="wrong") as caught:
        jax.jit(autograph(f))(1.0)
    assert deepest_line(caught, __file__) == inspect.getsourcelines(f)[1] + 3


@pytest.mark.parametrize("x", [2.0, 20.0])
def test_row_25_an_entry_of_a_dict_is_the_state_of_a_loop(x):
    def f(x):
        d = {"a": x, "n": 0}
        while d["a"] < 10:
            d["a"] *= 2
            d["n"] += 1
        return d

    assert_same(f, x)
    assert count(f, "while", x) == 1


@pytest.mark.parametrize("x", [2.0, 20.0])
def test_row_25_an_entry_of_a_list_is_the_state_of_a_loop(x):
    def f(x):
        xs = [x, 0]
        while xs[0] < 10:
            xs[0] *= 2
            xs[1] += 1
        return xs

    assert_same(f, x)


@pytest.mark.parametrize(("x", "value"), [(2.0, 8.0), (20.0, np.nan)])
def test_row_26_a_key_created_in_a_loop_is_nan_where_the_loop_never_ran(x, value):
    def f(x):
        d = {}
        while x < 10:
            d["last"] = x
            x = x * 2
        return d["last"]

    np.testing.assert_equal(float(jax.jit(autograph(f))(x)), value)


@pytest.mark.parametrize("n", [0, 4])
def test_row_27_a_list_item_is_found_as_the_only_state_of_a_loop(n):
    def f(n):
        xs = [0.0, 1.0]
        for i in range(n):
            xs[0] += i * xs[1]
        return xs

    assert_same(f, n)
    assert count(f, "while", n) == 1
