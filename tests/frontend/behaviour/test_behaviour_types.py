"""Rows 42 to 50 of AutoGraph's behaviours: loops traced from some step on; types that change."""

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from malleable import TransformError, autograph, listen, skip
from tests.frontend.behaviour.behaviour import XS, assert_same, count, deepest_line, program
from tests.rules import refusal

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
            x = x + by * len(name)
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


def test_row_48_a_list_that_grows_in_a_loop_of_unknown_length_has_a_bound():
    def f(x, n):
        out = []
        for i in range(n):
            out.append(x * i)
        return len(out), out[2]

    assert_same(f, 1.5, 3)


@pytest.mark.parametrize("n", [0, 3, 9])
def test_row_48_a_list_that_grows_until_a_traced_break_has_its_length(n):
    def f(n):
        out = []
        for i in range(4):
            if i == n:
                break
            out.append(i * 2)
        return len(out)

    assert_same(f, n)


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
            s = s + np.zeros((i, i)).sum()
        return s + x

    with pytest.raises((TypeError, TransformError)) as caught:
        jax.jit(autograph(f))(1.0, 3)
    assert deepest_line(caught, __file__) == f.__code__.co_firstlineno + 3


@pytest.mark.parametrize("times", [lambda t, a: t * a, lambda t, a: np.multiply(a, t + 1)])
def test_an_int_or_a_float_of_pythons_with_integers_of_numpys_leaves_a_note(times):
    def f(c, a):
        t = 1.5 if c > 0 else 0
        return times(t, a)

    def unmixed(c, a):
        t = 1.5 if c > 0 else 0.0
        return times(t, a), times(1 if c > 0 else 0, a)

    a = np.array([100, 3], np.int8)
    for fun, said in ((f, 1), (unmixed, 0)):
        with listen() as notes:
            jax.jit(autograph(fun))(1.0, a)
        lines = [note.where for note in notes if "its type as a float" in note.what]
        assert len(lines) == said and all("test_behaviour_types.py" in line for line in lines)


def class_of_number(c):
    t = 3 if c > 0 else 2.5
    return 1.0 if isinstance(t, int) else 2.0


def type_of_number(c):
    t = 3 if c > 0 else 2.5
    return 1.0 if type(t) is int else 2.0


def number_that_a_float_rounds(c):
    return (2**60 + 1 if c > 0 else 0.5) % 2


def arrays_of_two_types(c):
    t = np.full(3, 100, np.int8) if c > 0 else np.ones(3, np.float32)
    return t + t


def float_of_pythons_or_numpys(c):
    return (np.float32(3) if c > 0 else 2.5) / 7


@pytest.mark.parametrize(
    ("f", "what"),
    [
        (class_of_number, "is asked for its class as a float"),
        (type_of_number, "is asked for its class as a float"),
        (number_that_a_float_rounds, "1152921504606846977 or a float is float64"),
        (arrays_of_two_types, "the value: int8[3] and float32[3] became float32[3]"),
        (float_of_pythons_or_numpys, "one of float32 is float32 from here on"),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_a_number_that_two_paths_give_in_two_types_leaves_a_note_where_that_shows(f, what):
    with jax.enable_x64(True), listen() as notes:
        jax.jit(autograph(f))(1.0)
    assert any(what in n.what and "test_behaviour_types.py" in n.where for n in notes)


MADE = [
    *(lambda t: np.array([t]), np.array, np.asarray, lambda t: np.stack([t, 3])),
    *(lambda t: np.full(3, t), lambda t: np.sum([t, 2]), lambda t: np.arange(3) * t),
    *(lambda t: np.r_[t, 1], np.atleast_1d, lambda t: np.where(np.arange(3) > 1, t, 0)),
]


@pytest.mark.parametrize("x64", [True, False])
@pytest.mark.parametrize("make", MADE)
def test_an_array_of_a_number_that_is_an_int_on_one_path_leaves_a_note(make, x64):
    def f(c):
        t = 3 if c > 0 else 2.5
        return make(t)

    with jax.enable_x64(x64), listen() as notes:
        jax.jit(autograph(f))(1.0)
    assert sum("its type as a float" in n.what for n in notes) == 1


CHOSEN = [
    *(max, min, lambda a, b: max([a, b]), lambda a, b: sorted([a, b])[0]),
    *(lambda a, b: max([a, b], key=lambda x: x // 2), lambda a, b: [a, b][int(a > 5)]),
]


@pytest.mark.parametrize("choose", CHOSEN)
def test_one_of_two_numbers_of_unlike_types_leaves_a_note(choose):
    a, b = np.array([100, 3], np.int8), np.array([20, 200], np.uint8)
    said = []
    for pair in (lambda a, b: (a[0], b[0]), lambda a, b: (a[0], 3), lambda a, b: (a[0], a[1])):
        with listen() as notes:
            got = jax.jit(autograph(lambda a, b, pair=pair: choose(*pair(a, b))))(a, b)
        assert got == choose(*pair(a, b))
        said.append([n.what for n in notes if "from here on" in n.what])
    assert said[0] == ["one of int8 or one of uint8 is int16 from here on"]
    assert said[1] == ["a number of Python's or one of int8 is int8 from here on"]
    assert said[2] == []


def test_max_with_a_number_of_pythons_is_a_float_of_numpys_without_a_note():
    with jax.enable_x64(True), listen() as notes:
        assert jax.jit(autograph(lambda x: max(0, x[0]) + min(x[1], 2.5)))(np.array([1.0, 2])) == 3
    assert not notes


def test_a_number_that_is_one_or_the_other_is_a_number_without_a_note():
    def f(c):
        t = 3 if c > 0 else 2.5
        a = np.array([t, 0.5]), np.full(2, t, float), np.sin(t), t / np.ones(3)
        return isinstance(t, int | float), a

    with listen() as notes:
        assert jax.jit(autograph(f))(1.0) is not False
    assert not notes


@pytest.mark.parametrize("x64", [True, False])
def test_the_identity_of_a_bool_that_is_an_int_on_another_path_leaves_a_note(x64):
    def f(c):
        x = True if c > 0 else 1
        return x is True

    with jax.enable_x64(x64), listen() as notes:
        jax.jit(autograph(f))(1.0)
    assert any("may be a bool" in n.what and "test_behaviour_types.py" in n.where for n in notes)
    with listen() as notes:
        assert jax.jit(autograph(lambda c: (c > 0) is True))(1.0)
    assert not notes
