"""Rows 1 to 17 of AutoGraph's behaviours: what `if` does with names and values."""

import types

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from malleable import TransformError, autograph, listen
from tests.frontend.behaviour.behaviour import (
    BOTH,
    assert_same,
    count,
    deepest_line,
    error_of,
    line_of,
    program,
)
from tests.rules import refusal

# ---------------------------------------------------------------- 1-4 names set by a branch


def test_row_01_a_traced_if_that_only_prints_has_no_results():
    def f(x):
        if x > 0:
            print("positive", x)
        else:
            print("negative")
        return x

    (cond,) = [e for e in program(f, 1.0).eqns if e.primitive.name == "cond"]
    assert cond.outvars == []


@pytest.mark.parametrize(
    ("x", "said"), [(2.0, "before\npositive 2.0\nafter\n"), (-1.0, "before\nafter\n")]
)
def test_row_01_a_print_in_a_traced_branch_happens_in_order(x, said, capfd):
    @jax.jit
    @autograph
    def f(x):
        print("before")
        if x > 0:
            print("positive", x)
        print("after")
        return x

    f(x).block_until_ready()
    jax.effects_barrier()
    assert capfd.readouterr().out == said


mapped_ways = pytest.mark.parametrize(
    "mapped",
    [lambda f: jax.vmap(f), lambda f: jax.jit(jax.vmap(f)), lambda f: jax.vmap(jax.jit(f))],
)


@mapped_ways
def test_row_01_a_print_happens_for_the_examples_of_its_branch(mapped, capfd):
    def f(x):
        if x > 0:
            print("large", x) if x > 1 else print("small", x)
        else:
            print("negative")
        return x

    mapped(autograph(f))(np.array([2.0, -1.0, 0.5]))
    jax.effects_barrier()
    assert sorted(capfd.readouterr().out.splitlines()) == ["large 2.0", "negative", "small 0.5"]


@mapped_ways
def test_row_01_a_print_in_a_loop_or_handler_happens_for_the_examples_that_are_in_it(mapped, capfd):
    def f(x):
        while x < 2:
            print("step", x)
            if x > 0:
                break
            x = x + 1
        try:
            if x < 0:
                raise ValueError
            print("fine", x)
        except ValueError:
            print("handled", x)
        for k in range(2):
            print("last", k, x)
        return x

    mapped(autograph(f))(np.array([1.0, -1.0, 2.0]))
    jax.effects_barrier()
    said = sorted(capfd.readouterr().out.splitlines())
    for x in (1.0, -1.0, 2.0):
        f(x)
    assert said == sorted(capfd.readouterr().out.splitlines())


def doubles_aloud(x):
    i = 0
    while x < 20 and i < 9:
        print("step", i)
        x, i = x * 2, i + 1
    return x


def asks_aloud(x):
    def small(x):
        print("test", x)
        return x < 5

    while small(x):
        x = x + 2
    return x


def counts_aloud(x):
    i = 0
    while x < 20:
        x, i = x * 2, i + 1
        for k in range(i):
            print("in", k)
        if i > 7:
            break
    return x


@pytest.mark.parametrize(
    "mapped",
    [
        lambda f: f,
        jax.grad,
        lambda f: jax.jit(jax.grad(f)),
        lambda f: jax.grad(jax.jit(f)),
        lambda f: jax.jacfwd(jax.jit(f)),
        jax.checkpoint,
    ],
)
@pytest.mark.parametrize("f", [doubles_aloud, asks_aloud, counts_aloud])
def test_row_01_what_a_loop_prints_is_printed_once(f, mapped, capfd):
    jax.block_until_ready(mapped(autograph(f, max_steps=9))(1.5))
    jax.effects_barrier()
    said = capfd.readouterr().out
    f(1.5)
    assert said == capfd.readouterr().out


class Forgiving:
    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        return kind is ValueError


@mapped_ways
def test_row_01_nothing_is_printed_after_a_raise_but_by_who_handles_it(mapped, capfd):
    def f(x):
        with Forgiving():
            if x > 1:
                raise ValueError
            print("within", x)
        try:
            try:
                if x < 0:
                    raise KeyError
                print("tried", x)
            finally:
                print("finally", x)
            print("went on", x)
        except KeyError:
            print("handled", x)
        return x

    mapped(autograph(f))(np.array([0.5, -1.0, 2.0]))
    jax.effects_barrier()
    said = sorted(capfd.readouterr().out.splitlines())
    for x in (0.5, -1.0, 2.0):
        f(x)
    assert said == sorted(capfd.readouterr().out.splitlines())


def says(x):
    print("asked", x)
    return x > 2


def yields_aloud(xs):
    for x in xs:
        if says(x):
            yield x


def filtered_aloud(xs):
    total = 0.0
    for x in (x for x in xs if says(x)):
        total += x
    return total + sum(filter(says, xs)) + sum(yields_aloud(xs))


def stops_aloud(xs):
    return any(says(x) for x in xs), all(says(x) for x in xs), next(x for x in xs if says(x))


@mapped_ways
@pytest.mark.parametrize("f", [filtered_aloud, stops_aloud])
def test_row_01_a_generator_prints_for_the_examples_that_ask_it(f, mapped, capfd):
    rows = np.array([[1.0, 3.0, 5.0], [1.0, 1.5, 4.0], [3.0, 6.0, 7.0]])
    mapped(autograph(f))(rows)
    jax.effects_barrier()
    said = sorted(capfd.readouterr().out.splitlines())
    for row in rows:
        f(row)
    assert said == sorted(capfd.readouterr().out.splitlines())


def test_row_01_a_generator_and_the_loop_over_it_that_print_leave_a_note():
    def prints_twice(xs):
        for x in yields_aloud(xs):
            print("then", x)
        return xs

    def prints_apart(xs):
        for x in yields_aloud(xs):
            xs = xs + x
        print(xs)
        return xs

    for f, said in ((prints_twice, 1), (prints_apart, 0)):
        with listen() as notes:
            jax.jit(autograph(f))(np.array([1.0, 3.0]))
        assert sum("all that the generator prints comes first" in n.what for n in notes) == said
    jax.effects_barrier()


@pytest.mark.parametrize("flag", [True, False])
def test_row_01_a_python_if_runs_one_branch_only(flag):
    ran = []

    @jax.jit
    @autograph
    def f(x):
        if flag:
            ran.append("yes")
        else:
            ran.append("no")
        return x

    f(1.0)
    assert ran == ["yes" if flag else "no"]


@BOTH
def test_row_02_a_variable_reassigned_in_one_branch_keeps_its_old_value_in_the_other(x):
    def f(x):
        if x < 0:
            x = -x * 3
        return x

    assert_same(f, x)
    assert count(f, "cond", x) == 1


@pytest.mark.parametrize(("x", "value"), [(2.0, 1.0), (-2.0, 0.5)])
def test_row_02_the_type_of_a_reassigned_variable_is_joined(x, value):
    def f(x):
        y = 1
        if x < 0:
            y = y / 2
        return y

    out = jax.jit(autograph(f))(x)
    assert (float(out), out.dtype) == (value, jnp.float32)


@BOTH
def test_row_03_two_variables_of_one_if_make_one_cond_with_two_results(x):
    def f(x):
        if x > 0:
            a, b = x * 2, x + 1
        else:
            a, b = x - 1, x * 3
        return a, b

    assert_same(f, x)
    (cond,) = [e for e in program(f, x).eqns if e.primitive.name == "cond"]
    assert len(cond.outvars) == 2


def test_row_04_a_variable_created_in_the_branch_that_python_takes_is_there():
    def f(x, flag=True):
        if flag:
            y = x + 1
        return y

    assert_same(f, 1.0)


def test_row_04_a_variable_created_in_the_other_branch_is_unbound_as_in_python():
    def f(x, flag=False):
        if flag:
            y = x + 1
        return y

    with pytest.raises(UnboundLocalError) as ours:
        jax.jit(autograph(f))(1.0)
    with pytest.raises(UnboundLocalError) as python:
        f(1.0)
    assert str(ours.value) == str(python.value)


# ---------------------------------------------------------------- 5-10 names that may be missing


def created_in_else(x):
    if x > 0:
        pass
    else:
        y = x * 2
    return y


@pytest.mark.parametrize(("x", "value"), [(-2.0, -4.0), (2.0, 0.0)])
def test_row_05_a_variable_set_in_one_traced_branch_is_zero_after_the_other(x, value):
    assert float(jax.jit(autograph(created_in_else))(x)) == value


def test_row_05_a_variable_that_may_be_undefined_leaves_a_note():
    with listen() as heard:
        program(created_in_else, 1.0)
    assert "`y` may be undefined" in [n.what for n in heard]


def test_row_05_checked_reports_the_read_of_an_undefined_variable():
    assert "undefined" in error_of(created_in_else, 1.0)
    assert error_of(created_in_else, -1.0) is None


def test_row_05_checked_names_the_variable_and_both_lines():
    def f(x):
        if x > 0:
            pass
        else:
            y = x * 2
        return y + 1

    message = error_of(f, 1.0)
    assert "`y`" in message
    for after in (1, 5):
        assert f"test_behaviour_if.py:{line_of(f, after)}" in message


@BOTH
def test_row_06_a_variable_deleted_in_one_branch_and_not_read_after_is_fine(x):
    def f(x):
        y = x + 1
        if x > 0:
            x = x * y
            del y
        return x

    assert_same(f, x)


@pytest.mark.parametrize(("x", "value"), [(2.0, 0.0), (-2.0, -1.0)])
def test_row_06_a_variable_deleted_in_one_branch_is_zero_where_it_is_deleted(x, value):
    def f(x):
        y = x + 1
        if x > 0:
            del y
        return y

    assert float(jax.jit(autograph(f))(x)) == value


def test_row_07_a_variable_deleted_in_both_branches_is_unbound_where_it_is_read():
    def f(x):
        y = x + 1
        if x > 0:
            del y
        else:
            x = x + y
            del y
        return x + y

    with pytest.raises(UnboundLocalError, match="'y'") as caught:
        jax.jit(autograph(f))(1.0)
    assert deepest_line(caught, __file__) == f.__code__.co_firstlineno + 7


@BOTH
def test_row_08_a_none_guarded_by_is_none_is_a_number_elsewhere(x):
    def f(x):
        y = None
        if x > 0:
            y = x * 2
        if y is None:
            return -1.0
        return y + 1

    assert_same(f, x)


@BOTH
def test_row_08_a_number_or_none_can_be_asked_with_is_not_none(x):
    def f(x):
        if x > 0:
            y = x * 2
        else:
            y = None
        return y * 3 if y is not None else x

    assert_same(f, x)


@pytest.mark.parametrize(("x", "value"), [(2.0, 4.0), (-2.0, np.nan)])
def test_row_08_a_result_that_is_none_or_a_float_is_nan_where_it_is_none(x, value):
    def f(x):
        if x > 0:
            return x * 2
        return None

    np.testing.assert_equal(float(jax.jit(autograph(f))(x)), value)


def test_row_08_a_result_that_is_none_or_an_integer_is_the_lowest_one_and_said():
    def f(n):
        if n > 0:
            return n * 2
        return None

    with listen() as notes:
        found = jax.jit(autograph(f))
        assert (found(1), found(-1)) == (2, np.iinfo(np.int32).min)
    assert "the result is None on one path" in [note.what for note in notes]


def test_row_08_a_use_of_two_kinds_of_value_is_nan_where_python_raises():
    def f(x):
        if x > 0:
            y = {"a": x}
        else:
            y = x
        return y["a"]

    assert float(jax.jit(autograph(f))(2.0)) == 2.0
    assert np.isnan(float(jax.jit(autograph(f))(-2.0)))


def test_row_08_two_kinds_of_value_are_refused_where_their_type_is_asked_for():
    def f(x):
        if x > 0:
            y = [x]
        else:
            y = x
        return len(y) if isinstance(y, list) else 0

    error = refusal(TransformError, lambda: jax.jit(autograph(f))(1.0))
    assert f"test_behaviour_if.py:{line_of(f, 5)} in" in error.where
    assert "list" in error.what


@BOTH
def test_row_09_a_string_or_object_used_inside_a_branch_only_is_not_carried(x):
    def f(x):
        if x > 0:
            name, box = "up", types.SimpleNamespace(by=2.0)
            x = x * box.by + len(name)
        return x

    assert_same(f, x)
    (cond,) = [e for e in program(f, x).eqns if e.primitive.name == "cond"]
    assert len(cond.outvars) == 1


@BOTH
def test_row_10_a_variable_changed_in_a_branch_and_not_read_after_is_no_result(x):
    def f(x):
        y = x + 1
        z = x + 2
        if x > 0:
            y = y * 2
            z = z + y
        return z

    assert_same(f, x)
    (cond,) = [e for e in program(f, x).eqns if e.primitive.name == "cond"]
    assert len(cond.outvars) == 1


# ---------------------------------------------------------------- 11-17 what becomes one value


@pytest.mark.parametrize("x", [-2.0, 0.4, 3.0])
def test_row_11_the_second_of_two_ifs_sees_what_the_first_did(x):
    def f(x):
        if x < 1:
            x = x * x
        if x > 2:
            x = x + 10
        return x

    assert_same(f, x)
    assert count(f, "cond", x) == 2


@pytest.mark.parametrize("x", [-2.0, 0.4, 3.0])
def test_row_12_returns_on_all_inner_paths_make_one_result(x):
    def f(x):
        if x > 0:
            if x > 1:
                return x * 2
            else:
                y = x + 5
        else:
            y = x - 1
        return y

    assert_same(f, x)


def test_row_12_an_inner_python_path_without_return_gives_none():
    def f(x, flag=False):
        if flag:  # noqa: SIM102
            if x is not None:
                return x
        return None

    assert jax.jit(autograph(f))(1.0) is None


@BOTH
def test_row_13_a_tuple_or_dict_from_both_branches_is_joined_leaf_by_leaf(x):
    def f(x):
        if x > 0:
            return (x, {"a": x * 2, "b": [1.0, x]})
        return (x * 5, {"a": x, "b": [x, 2.0]})

    assert_same(f, x)
    assert count(f, "cond", x) == 1


@pytest.mark.parametrize(("x", "items"), [(2.0, [2.0, 2.0]), (-2.0, [-2.0])])
def test_row_13_lists_of_two_lengths_are_one_of_traced_length(x, items):
    def f(x):
        if x > 0:
            y = [x, x]
        else:
            y = [x]
        return y

    out = jax.jit(autograph(f))(x)
    assert out.items[: int(out.length)].tolist() == items


@pytest.mark.parametrize(("x", "value"), [(2.0, 1.0), (-2.0, 2.5)])
def test_row_14_an_integer_in_one_branch_and_a_float_in_the_other_become_a_float(x, value):
    def f(x):
        if x > 0:
            y = np.int32(1) * np.ones((), np.int32)
        else:
            y = np.float32(2.5)
        return y

    out = jax.jit(autograph(f))(x)
    assert (float(out), out.dtype) == (value, jnp.float32)


def test_row_14_two_types_that_become_one_leave_a_note():
    def f(x, n):
        y = n
        if x > 0:
            y = x
        return y

    with listen() as heard:
        program(f, jnp.float32(1.0), jnp.int32(1))
    assert any("float32" in n.what and "int32" in n.what and "`y`" in n.what for n in heard)


def test_row_14_strict_refuses_to_join_two_types():
    def f(x, n):
        y = n
        if x > 0:
            y = x
        return y

    with pytest.raises(TransformError, match="float32"):
        program(f, jnp.float32(1.0), jnp.int32(1), strict=True)


@pytest.mark.parametrize("x", [np.ones((1, 1)), np.zeros((1, 1)), np.ones(1)])
def test_row_15_a_predicate_of_one_element_is_a_truth_value(x):
    def f(x):
        if x > 0.5:
            y = 1.0
        else:
            y = 2.0
        return y

    assert_same(f, x.astype(np.float32))


def test_row_15_a_predicate_of_two_elements_is_ambiguous():
    def f(x):
        if x > 0:
            x = x + 1
        return x

    with pytest.raises(ValueError, match=r"[Tt]ruth value of an array with more than one element"):
        jax.jit(autograph(f))(np.ones(2, np.float32))


@pytest.mark.parametrize("x", [0.0, 0.5, -3.0, np.float32(0), np.nan])
def test_row_16_a_float_as_predicate_is_whether_it_is_not_zero(x):
    def f(x):
        if x:
            return 1.0
        return 2.0

    assert_same(f, x)


@pytest.mark.parametrize("n", [0, 3])
def test_row_16_an_integer_as_predicate_is_whether_it_is_not_zero(n):
    def f(n):
        return 1.0 if not n else 2.0

    assert_same(f, n)


@BOTH
def test_row_17_none_in_both_branches_is_none(x):
    def f(x):
        if x > 0:
            y = None
        else:
            y = None
        return x if y is None else 0.0

    assert_same(f, x)


def test_row_17_arithmetic_on_none_or_a_number_that_is_not_guarded_takes_the_number():
    def f(x):
        y = None
        if x > 0:
            y = x * 2
        return y + 1

    assert float(jax.jit(autograph(f))(2.0)) == 5.0
