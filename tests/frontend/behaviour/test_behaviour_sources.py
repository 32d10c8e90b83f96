"""Rows 85 to 90 of AutoGraph's behaviours: errors, sources, generators, asserts, del, callees."""

import functools
import operator
import traceback
import types

import jax
import numpy as np
import pytest

from malleable import TransformError, autograph, compat, listen
from tests.frontend.behaviour.behaviour import (
    BOTH,
    assert_same,
    count,
    deepest_line,
    error_of,
    line_of,
    program,
)

# ---------------------------------------------------------------- 85 errors


# fmt: off
def fails_in_a_branch(x):
    if x > 0:
        x = [x][
            3
        ]
    return x
# fmt: on


def fails_in_a_loop(x):
    for i in range(3):
        x = x + i
        x = x + {}["missing"]
    return x


def fails_in_a_callee(x):
    y = x + 1
    return fails_in_a_branch(y)


def fails_in_a_shape(x):
    while x < 3:
        x = x + np.ones(2) @ np.ones(3)
    return x


LAST_LINE = pytest.mark.xfail(strict=True, reason="row 85: the last line of an item, not the first")


@pytest.mark.parametrize(
    ("fun", "error", "line"),
    [
        pytest.param(
            *(fails_in_a_branch, IndexError, line_of(fails_in_a_branch, 2)), marks=LAST_LINE
        ),
        (fails_in_a_loop, KeyError, line_of(fails_in_a_loop, 3)),
        pytest.param(
            *(fails_in_a_callee, IndexError, line_of(fails_in_a_branch, 2)), marks=LAST_LINE
        ),
        (fails_in_a_shape, ValueError, line_of(fails_in_a_shape, 2)),
    ],
)
def test_row_85_an_exception_keeps_its_type_and_comes_from_the_line_of_the_user(fun, error, line):
    with pytest.raises(error) as caught:
        jax.jit(autograph(fun))(1.0)
    assert type(caught.value) is error
    assert deepest_line(caught, __file__) == line


def test_row_85_the_last_frame_of_a_traceback_is_the_user_s():
    with pytest.raises(IndexError) as caught:
        jax.jit(autograph(fails_in_a_callee))(1.0)
    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (last.filename, last.name) == (__file__, "fails_in_a_branch")


def test_row_85_a_traceback_does_not_show_our_frames():
    with pytest.raises(IndexError) as caught:
        autograph_of_one_loop()
    files = [f.filename for f in traceback.extract_tb(caught.value.__traceback__)]
    assert not [f for f in files if "/src/malleable/" in f]


def autograph_of_one_loop():
    return jax.jit(autograph(fails_in_a_callee))(1.0)


def test_row_85_an_equation_of_the_program_names_the_line_of_the_user():
    def f(x):
        y = x + 1
        if x > 0:
            y = np.sin(y)
        return y

    eqns = program(f, 1.0).eqns
    (cond,) = [e for e in eqns if e.primitive.name == "cond"]
    assert f"test_behaviour_sources.py:{line_of(f, 2)}" in compat.where(cond)
    assert f"test_behaviour_sources.py:{line_of(f, 1)}" in compat.where(eqns[0])


# ---------------------------------------------------------------- 86 finding the source


def test_row_86_two_lambdas_with_one_signature_on_one_line_are_told_apart():
    f, g = (lambda x: x * 2 if x > 0 else x), (lambda x: x * 3 if x > 0 else x)
    assert (float(jax.jit(autograph(f))(1.0)), float(jax.jit(autograph(g))(1.0))) == (2.0, 3.0)


def test_row_86_two_lambdas_with_different_signatures_on_one_line_are_told_apart():
    f, g = (lambda x: x if x > 0 else -x), (lambda x, y: x if x > y else y)
    assert (float(jax.jit(autograph(f))(-1.0)), float(jax.jit(autograph(g))(1.0, 2.0))) == (1, 2)


# fmt: off
def test_row_86_a_lambda_over_several_lines_is_found():
    f = autograph(
        lambda x: (
            x * 2
            if x > 0
            else -x
        )
    )
    assert float(jax.jit(f)(-1.0)) == 1.0


def test_row_86_a_function_with_odd_indentation_is_found():
    if True:
        def f(x):
  # a comment to the left of the function
            text = """
no indentation here
    and some here"""
            y = x \
    + len(text)
            if y > 0:
                return y
            return \
  -y

    assert_same(f, 2.0)
# fmt: on


def adds_100_below_zero(fun):
    @functools.wraps(fun)
    def wrapper(x):
        if x < 0:
            return fun(x) + 100
        return fun(x)

    return wrapper


def test_row_86_the_source_of_a_wrapper_is_its_own_not_that_of_what_it_wraps():
    @adds_100_below_zero
    def f(x):
        return x if x > 0 else -x

    assert_same(f, -2.0)


def test_row_86_the_rewritten_source_can_be_read():
    assert "ag__.for_" in str(autograph(fails_in_a_loop).source)


# ---------------------------------------------------------------- 87 generators


def test_row_87_a_generator_without_traced_control_flow_runs():
    def values(x):
        for k in range(3):
            yield x * k

    def f(x):
        return [y + 1 for y in values(x)]

    assert_same(f, 2.0)


@BOTH
def test_row_87_a_traced_if_without_yield_in_a_generator_is_converted(x):
    def values(x):
        for k in range(3):
            if x > k:
                x = x - 1
            yield x * k

    def f(x):
        return sum(values(x))

    assert_same(f, x)


def test_row_87_a_traced_if_that_yields_is_an_error_at_its_line():
    def values(x):
        if x > 0:
            yield x
        yield -x

    def f(x):
        return next(values(x))

    with pytest.raises((TransformError, jax.errors.TracerBoolConversionError)) as caught:
        jax.jit(autograph(f))(2.0)
    text = str(caught.value) + "".join(getattr(caught.value, "__notes__", ()))
    assert "yield" in text or "generator" in text
    assert deepest_line(caught, __file__) == line_of(values, 1)


# ---------------------------------------------------------------- 88 assert


def asserts(x):
    assert x > 0, f"not positive: {x}"
    return x * 2


def test_row_88_a_false_python_assertion_fails_with_its_message():
    def f(x, n=0):
        assert n > 0, f"n is {n}"
        return x

    with pytest.raises(AssertionError, match="n is 0"):
        jax.jit(autograph(f))(1.0)


def test_row_88_the_message_of_a_true_assertion_is_not_built():
    def f(x, n=1):
        assert n > 0, 1 / 0
        return x

    assert_same(f, 2.0)


@BOTH
def test_row_88_a_traced_assertion_is_not_checked(x):
    assert float(jax.jit(autograph(asserts))(x)) == x * 2


def test_row_88_a_traced_assertion_leaves_a_note_with_its_line():
    with listen() as heard:
        program(asserts, 1.0)
    (found,) = [n for n in heard if "assert" in n.what]
    assert f"test_behaviour_sources.py:{line_of(asserts, 1)}" in found.where


def test_row_88_checked_makes_a_traced_assertion_an_error():
    assert "not positive" in error_of(asserts, -1.0)
    assert error_of(asserts, 1.0) is None


# ---------------------------------------------------------------- 89 annotations, del, undefined


@BOTH
def test_row_89_an_annotation_without_a_value_defines_nothing(x):
    def f(x: float) -> float:
        y: int
        z: float = x * 2
        if x > 0:
            z: float = x * 3
        try:
            return y  # noqa: F821
        except UnboundLocalError:
            return z

    assert_same(f, x)


@BOTH
def test_row_89_names_items_and_attributes_are_deleted_together(x):
    def f(x):
        a, b, o = x, [1, x, 3.0], types.SimpleNamespace(y=x)
        del a, b[0], o.y
        if x > 0:
            b[0] = b[0] * 2
        return b, hasattr(o, "y")

    assert_same(f, x)


def unbound(x):
    if x is None:
        y = 1
    return x + y


def deleted(x):
    y = x
    del y
    return x + y  # noqa: F821


def free_and_unbound(x):
    def g():
        return y

    if x is None:
        y = 1
    return g()


def unknown(x):
    return x + no_such_name  # noqa: F821


@pytest.mark.parametrize("fun", [unbound, deleted, free_and_unbound, unknown])
def test_row_89_the_error_of_an_undefined_name_is_that_of_python(fun):
    with pytest.raises(NameError) as ours:
        jax.jit(autograph(fun))(1.0)
    with pytest.raises(NameError) as python:
        fun(1.0)
    assert type(ours.value) is type(python.value)
    assert str(ours.value) == str(python.value)


AUGMENTED = {
    "+=": lambda x: operator.iadd(x, 2.0),
    "//=": lambda x: operator.ifloordiv(x, 2.0),
    "**=": lambda x: operator.ipow(x, 2.0),
    "%=": lambda x: operator.imod(x, 2.0),
}


@pytest.mark.parametrize("n", [3, -4])
def test_row_89_every_augmented_assignment_is_that_of_python(n):
    def f(n, x):
        a = b = c = d = n
        if n > -10:
            a += 2
            b -= 3
            c *= x
            d //= 2
        e, g, h, i, j = n, n, n, n, n
        e **= 2
        g %= 3
        h /= 2
        i &= 6
        j |= 8
        k = j
        k ^= 5
        k <<= 1
        k >>= 2
        return a, b, c, d, e, g, h, i, j, k

    assert_same(f, n, 1.5)


# ---------------------------------------------------------------- 90 callees


def factory(by):
    def made(x):
        return x * by if x > 0 else x

    return made


@BOTH
def test_row_90_a_function_made_by_a_callee_is_converted(x):
    assert_same(lambda x: factory(3.0)(x), x)


@BOTH
def test_row_90_a_function_passed_as_an_argument_is_converted(x):
    def apply(fun, x):
        return fun(x) + 1

    assert_same(lambda x: apply(factory(2.0), x) + apply(lambda y: y if y > 1 else 0.0, x), x)


@BOTH
def test_row_90_numpy_functions_are_called_on_traced_values(x):
    def f(x):
        a = np.linspace(0.0, 1.0, 5) * x
        if np.any(a > 1):
            a = np.clip(np.cumsum(a), 0, 1)
        return np.where(a > 0.5, np.sqrt(np.abs(a)), a).mean(), np.dot(a, a)

    assert_same(f, x)


@pytest.mark.parametrize("i", [0, 1, 2])
def test_row_90_a_function_from_a_list_at_a_traced_index_is_a_switch_or_refused(i):
    chosen = [np.sin, lambda y: y * 2, lambda y: y if y > 1 else 0.0]

    def f(i, x):
        return chosen[i](x)

    try:
        out = jax.jit(autograph(f))(i, 0.5)
    except TransformError as e:
        assert e.hint
    else:
        np.testing.assert_allclose(out, f(i, 0.5), rtol=1e-6)


@BOTH
def test_row_90_a_function_chosen_by_a_traced_if_is_called_or_refused(x):
    def f(x):
        if x > 0:
            g = np.sin
        else:
            g = np.cos
        return g(x)

    try:
        out = jax.jit(autograph(f))(x)
    except TransformError as e:
        assert "test_behaviour_sources.py:" in e.where
        assert e.hint
    else:
        np.testing.assert_allclose(out, f(x), rtol=1e-6)


def test_row_90_the_branches_of_a_traced_if_in_a_callee_are_one_cond():
    assert count(lambda x: factory(3.0)(x), "cond", 1.0) == 1
