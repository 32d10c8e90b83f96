"""Rows 70 to 78 of AutoGraph's behaviours: `return`, `and`, `or`, comparisons, `a if c else b`."""

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from malleable import autograph, listen
from tests.frontend.behaviour.behaviour import BOTH, XS, assert_same, count, program

# ---------------------------------------------------------------- 70-75 return


@BOTH
def test_row_70_a_return_with_a_default_after_it_is_one_cond(x):
    def f(x):
        if x > 0:
            return x * 2
        return x - 1

    assert_same(f, x)
    assert count(f, "cond", x) == 1


@BOTH
def test_row_70_a_return_depends_on_a_local_of_its_branch(x):
    def f(x):
        y = x + 1
        if x > 0:
            z = y * 2
            return z
        z = y * 5
        y = z + x
        return y

    assert_same(f, x)
    assert count(f, "cond", x) == 1


def test_row_70_the_default_is_computed_in_the_other_branch_only():
    def f(x):
        if x > 0:
            return x
        return np.sin(x)

    assert {"sin", "jit"}.isdisjoint(e.primitive.name for e in program(f, 1.0).eqns)


@pytest.mark.parametrize(("x", "value"), [(2.0, 4.0), (-2.0, np.nan)])
def test_row_71_the_result_is_nan_on_a_path_without_return(x, value):
    def f(x):
        if x > 0:
            return x * 2

    np.testing.assert_equal(float(jax.jit(autograph(f))(x)), value)


@BOTH
def test_row_71_a_callee_that_may_return_none_can_be_asked(x):
    def find(x):
        if x > 0:
            return x * 2

    def f(x):
        y = find(x)
        return -1.0 if y is None else y

    assert_same(f, x)


@BOTH
def test_row_71_a_tuple_or_none_is_noted_at_the_boundary(x):
    def f(x):
        if x > 0:
            return x, 2.0

    with listen() as notes:
        first, second = jax.jit(autograph(f))(x)
    np.testing.assert_equal((float(first), float(second)), f(x) or (np.nan, np.nan))
    assert any("None on one path" in n.what and __file__ in n.where for n in notes)


@pytest.mark.parametrize("n", [-1, 0, 4])
def test_row_72_a_return_before_a_loop_skips_it(n):
    def f(x, n):
        if n < 0:
            return x
        for i in range(n):
            x = x * 2 + i
        return x

    assert_same(f, 1.5, n)


@BOTH
def test_row_73_a_finally_runs_after_a_return(x):
    def f(x):
        log = [0.0]

        def inner(x):
            try:
                if x > 0:
                    return x * 2
                x = x + 1
            finally:
                log[0] = log[0] + 10
            return x

        return inner(x), log[0]

    assert_same(f, x)


@BOTH
def test_row_73_a_return_in_a_finally_wins(x):
    def f(x):
        try:
            if x > 0:
                return x * 2
        finally:
            return x - 7  # noqa: B012

    assert_same(f, x)


@BOTH
def test_row_74_an_exception_raised_while_a_return_is_evaluated_is_caught(x):
    def fails():
        raise ValueError("no value")

    def f(x):
        try:
            if x > 0:
                x = x * 2
            return fails()
        except ValueError:
            x = x + 100
        return x

    assert_same(f, x)


@BOTH
def test_row_75_the_returns_of_a_nested_function_are_its_own(x):
    def f(x):
        def g(y):
            if y > 1:
                return y * 2
            return -y

        if x > 0:
            return g(x) + 1
        z = g(x - 1)
        return z + 5

    assert_same(f, x)


@BOTH
def test_row_75_a_return_leaves_several_withs_and_code_after_it_does_not_run(x):
    class Open:
        def __init__(self, log, name):
            self.log, self.name = log, name

        def __enter__(self):
            self.log.append("in " + self.name)

        def __exit__(self, *error):
            self.log.append("out " + self.name)

    def f(x):
        log = []

        def inner(x):
            with Open(log, "a"):
                with Open(log, "b"):
                    return x * 2
                return x
            x = x + 1
            return x

        return inner(x), ",".join(log) == "in a,in b,out b,out a"

    assert_same(f, x)


# ---------------------------------------------------------------- 76-78 expressions


@pytest.mark.parametrize("a", [True, False])
@pytest.mark.parametrize("b", [True, False])
@pytest.mark.parametrize("c", [True, False])
def test_row_76_and_or_not_of_traced_booleans_are_those_of_python(a, b, c):
    def f(a, b, c):
        return a and b or not c, a or b and c, not (a or b), a and not b and c  # noqa: RUF021

    assert_same(f, a, b, c)


@pytest.mark.parametrize("x", [0.0, 2.0])
@pytest.mark.parametrize("y", [0.0, 3.0])
def test_row_76_and_and_or_give_an_operand_not_a_boolean(x, y):
    def f(x, y):
        return x and y, x or y

    assert_same(f, x, y)


def test_row_76_a_known_operand_short_circuits_as_in_python():
    def f(x, flag=False, nothing=None):
        return (flag and nothing.x) or x, nothing is None or nothing.x > x

    out = jax.jit(autograph(f))(2.0)
    assert (float(out[0]), bool(out[1])) == (2.0, True)


@pytest.mark.parametrize("i", [-1, 2, 9])
def test_row_76_a_traced_operand_guards_the_effects_of_the_next(i):
    def f(i):
        log = {"asked": 0}

        def positive(x):
            log["asked"] += 1
            return x > 0

        found = 0 <= i < 6 and positive(XS[i % 6])
        return found, log["asked"]

    assert_same(f, i)


def test_row_76_and_of_an_array_of_two_elements_is_ambiguous():
    def f(a):
        return a and a

    with pytest.raises(ValueError, match="ambiguous"):
        jax.jit(autograph(f))(np.ones(2, np.float32))


@BOTH
def test_row_76_a_walrus_in_a_traced_operand_assigns(x):
    def f(x):
        if (y := x * 2) > 0 and (w := y + 1) > 3:
            return w
        return y

    assert_same(f, x)


@pytest.mark.parametrize("args", [(1, 1, 1), (1, 1, 2), (1, 2, 2), (1, 2, 3)])
def test_row_77_equalities_are_chained(args):
    def f(a, b, c):
        return a == b == c, a != b != c, not a == b  # noqa: SIM201

    assert_same(f, *args)


@pytest.mark.parametrize("args", [(1, 2, 3), (1, 3, 2), (3, 2, 1), (1, 1, 1)])
def test_row_77_the_middle_of_a_chain_is_evaluated_once(args):
    def f(a, b, c):
        seen = []

        def middle():
            seen.append(1)
            return b

        return a < middle() <= c, len(seen)

    assert_same(f, *args)


@BOTH
def test_row_78_a_conditional_expression_is_one_cond_with_lazy_arms(x):
    def f(x):
        return np.log(x) if x > 0 else np.exp(x)

    assert_same(f, x)
    assert count(f, "cond", x) == 1
    assert {"log", "jit"}.isdisjoint(e.primitive.name for e in program(f, x).eqns)


@pytest.mark.parametrize("x", [-2.0, 0.5, 2.0])
def test_row_78_conditional_expressions_nest(x):
    def f(x):
        return x * 2 if x > 1 else (x + 10 if x > 0 else -x)

    assert_same(f, x)


@BOTH
def test_row_78_a_walrus_in_a_traced_arm_assigns(x):
    def f(x):
        y = (z := x * 2) if x > 0 else (z := -x)
        return y, z

    assert_same(f, x)


@pytest.mark.parametrize(("x", "value"), [(2.0, 1.0), (-2.0, -2.0)])
def test_row_78_the_arms_of_a_conditional_expression_are_joined_in_type(x, value):
    out = jax.jit(autograph(lambda x: 1 if x > 0 else x))(x)
    assert (float(out), out.dtype) == (value, jnp.float32)


def test_row_73_a_loop_returns_a_tuple_or_none():
    def halve(x):
        n = 0
        while True:
            x, n = x / 2, n + 1
            if x < 1:
                return x, n
            if n >= 5:
                return None

    def f(x):
        found = halve(x)
        return (-1.0, 0) if found is None else found

    for x in (6.0, 1000.0):
        assert jax.jit(autograph(f))(x) == f(x)
