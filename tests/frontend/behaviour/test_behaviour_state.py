"""Rows 51 to 61 of AutoGraph's behaviours: the names and objects that a loop sees and changes."""

import types

import jax
import pytest

from malleable import autograph, listen
from tests.frontend.behaviour.behaviour import XS, assert_same, program

# ---------------------------------------------------------------- 51-55 scope of names


@pytest.mark.parametrize("n", [0, 3])
def test_row_51_a_temporary_of_any_python_type_is_not_carried(n):
    def f(n):
        s = 0
        for i in range(n):
            name, pair = "ab", types.SimpleNamespace(a=i)
            s += len(name) * pair.a
        return s

    assert_same(f, n)
    (eqn,) = [e for e in program(f, n).eqns if e.primitive.name == "custom_jvp_call"]
    assert len(eqn.outvars) <= 2  # the counter and `s`


@pytest.mark.parametrize("x", [1.0, 20.0])
def test_row_51_a_temporary_in_a_while_is_not_carried(x):
    def f(x):
        while x < 10:
            unit = {"by": 2.0}
            x = x * unit["by"]
        return x

    assert_same(f, x)
    (eqn,) = [e for e in program(f, x).eqns if e.primitive.name == "custom_jvp_call"]
    assert len(eqn.outvars) == 1


@pytest.mark.parametrize("n", [1, 5])
def test_row_52_a_variable_initialised_in_the_first_step_is_right_in_all_others(n):
    def f(x, n):
        s = 0.0
        for i in range(n):
            if i == 0:
                y = x
            y = y * 2
            s += y
        return s, y

    assert_same(f, 1.5, n)


@pytest.mark.parametrize("n", [1, 4])
def test_row_52_a_while_that_defines_a_variable_in_its_first_step_can_read_it_later(n):
    def f(x, n):
        i = 0
        while i < n:
            if i == 0:
                best = x
            elif best > i:
                best = best - i
            i += 1
        return best

    assert_same(f, 3.0, n)


@pytest.mark.parametrize("n", [1, 4])
def test_row_53_the_iterate_of_a_traced_range_is_the_last_one_after_the_loop(n):
    def f(n):
        s = 0
        for i in range(n):
            s += i
        return i, s

    assert_same(f, n)


def test_row_53_the_iterate_over_an_array_is_its_last_item_after_the_loop():
    def f(xs):
        for x in xs:
            y = x * 2
        return x, y

    assert_same(f, XS)


def test_row_53_the_iterate_of_an_empty_python_loop_is_unbound():
    def f(x):
        for i in []:
            x = x + i
        return i

    with pytest.raises(UnboundLocalError, match="'i'"):
        jax.jit(autograph(f))(1.0)


@pytest.mark.parametrize("n", [0, 4])
def test_row_54_an_iterate_that_existed_before_keeps_its_value_if_no_step_is_taken(n):
    def f(n):
        i = 7
        for i in range(n):  # noqa: B007
            pass
        return i

    assert_same(f, n)


@pytest.mark.parametrize("n", [0, 4])
def test_row_54_changing_the_iterate_does_not_change_the_iteration(n):
    def f(n):
        s = i = 0
        for i in range(n):
            s += i
            i = i * 10
        return s, i

    assert_same(f, n)


def test_row_55_lambdas_made_in_a_python_loop_share_its_variable():
    def f(x):
        made = []
        for i in range(3):
            made.append(lambda: x * i)  # noqa: B023
        return [g() for g in made]

    assert_same(f, 2.0)


@pytest.mark.parametrize("n", [0, 3])
def test_row_55_a_lambda_used_within_its_step_of_a_compiled_loop_sees_the_step(n):
    def f(x, n):
        s = 0.0
        for i in range(n):
            by = lambda y: y * i + x  # noqa: B023
            s += by(2.0)
        return s

    assert_same(f, 2.0, n)


@pytest.mark.parametrize("n", [0, 3])
def test_row_55_a_lambda_that_leaves_a_compiled_loop_is_that_of_the_last_step(n):
    def f(x, n):
        by = lambda: x
        for i in range(n):
            by = lambda: x * i  # noqa: B023
        return by()

    assert_same(f, 2.0, n)


# ---------------------------------------------------------------- 56-58 calls in test and body


@pytest.mark.parametrize("x", [1.0, 20.0])
def test_row_56_a_function_called_in_the_test_is_converted(x):
    def small(x):
        if x < 0:
            return True
        return x < 10

    def f(x):
        while small(x):
            x = x * 2
        return x

    assert_same(f, x)


@pytest.mark.parametrize("x", [1.0, 20.0])
def test_row_56_the_effects_of_a_function_called_in_the_test_are_kept(x):
    def f(x):
        asked = {"times": 0}

        def small(x):
            asked["times"] += 1
            return x < 10

        while small(x):
            x = x * 2
        return x, asked["times"]

    assert_same(f, x)


@pytest.mark.parametrize("n", [0, 4])
def test_row_57_a_callee_that_changes_a_closed_over_variable_is_followed(n):
    def f(x, n):
        total = x

        def add(i):
            nonlocal total
            total = total * 2 + i

        for i in range(n):
            add(i)
        return total

    assert_same(f, 1.5, n)


@pytest.mark.parametrize("n", [0, 4])
def test_row_57_a_lambda_that_changes_a_closed_over_list_is_followed(n):
    def f(x, n):
        state = [x, 0]
        push = lambda i: state.__setitem__(0, state[0] + i)
        i = 0
        while i < n:
            push(i)
            i += 1
        return state

    assert_same(f, 1.5, n)


@pytest.mark.parametrize("n", [0, 4])
def test_row_57_a_method_that_changes_its_object_is_followed(n):
    class Counter:
        def __init__(self, start):
            self.total = start

        def add(self, i):
            self.total += i

    def f(x, n):
        counter = Counter(x)
        for i in range(n):
            counter.add(i)
        return counter.total

    assert_same(f, 1.5, n)


@pytest.mark.parametrize("x", [1.0, 20.0])
def test_row_58_a_walrus_in_the_test_assigns_once_more_than_the_body_runs(x):
    def f(x):
        steps = 0
        while (y := x * 2) < 10:
            x = y + 1
            steps += 1
        return x, y, steps

    assert_same(f, x)


@pytest.mark.parametrize("x", [1.0, 20.0])
def test_row_58_a_test_with_effects_runs_before_each_body_and_at_the_end(x):
    def f(x):
        log = {"order": 0}

        def test(x):
            log["order"] = log["order"] * 2 + 1
            return x < 10

        while test(x):
            log["order"] = log["order"] * 3
            x = x * 2
        return x, log["order"]

    assert_same(f, x)


# ---------------------------------------------------------------- 59-61 Python state of a loop


@pytest.mark.parametrize("n", [0, 4])
def test_row_59_an_object_that_a_loop_leaves_alone_stays_this_very_object(n):
    marker = object()

    def f(x, n):
        kept = marker
        name = "abc"
        for i in range(n):
            kept, name = marker, "abc"
            x = x + i
        return x if kept is marker and name == "abc" else -1.0

    assert_same(f, 1.5, n)


@pytest.mark.parametrize("n", [0, 1, 4])
def test_row_60_none_before_the_loop_and_an_array_after_it_can_be_asked(n):
    def f(x, n):
        last = None
        for i in range(n):
            last = x + i
        if last is None:
            return -1.0
        return last

    assert_same(f, 1.5, n)


@pytest.mark.parametrize("n", [1, 4])
def test_row_60_none_replaced_in_the_first_step_is_a_number_in_the_others(n):
    def f(x, n):
        best = None
        for i in range(n):
            y = (i - 2) * (i - 2) + x
            if best is None or y < best:
                best = y
        return best

    assert_same(f, 1.5, n)


def test_row_60_arithmetic_on_the_none_of_the_first_step_is_a_type_error():
    def f(x, n):
        last = None
        for _ in range(n):
            last = last + x
        return last

    with pytest.raises(TypeError, match="NoneType"):
        jax.jit(autograph(f))(1.5, 3)


def test_row_61_a_long_python_loop_over_traced_values_leaves_one_note_with_its_line():
    def f(x):
        for k in range(2000):
            x = x + k
        return x

    with listen() as heard:
        program(f, 1.0)
    where = f"test_behaviour_state.py:{f.__code__.co_firstlineno + 1}"
    (found,) = [n for n in heard if where in n.where]
    assert "2000" in found.what


# ---------------------------------------------------------------- classes that compute attributes


class Attributes(dict):
    def __missing__(self, key):
        return 7.0

    def __getattr__(self, name):
        return self[name]


class Slotted:
    __slots__ = ("a",)

    def __getattr__(self, name):
        if self.a > 1:
            return self.a * 2
        return 5.0

    def __call__(self, x):
        return x + self.other


@pytest.mark.parametrize("x", [0.0, 2.0])
def test_a_getattr_of_the_users_is_asked_where_python_asks_it_and_compiled(x):
    def f(x):
        d, o = Attributes(a=1.0), Slotted()
        o.a = x
        if x > 1:
            d["a"] = x
            o.a += 1
        for i in range(3):
            if x > i:
                d["a"] += x
        return d["none"], d.a, d.none, o.a, o.other, o(x), getattr(o, "b", 0.0), hasattr(o, "c")

    assert_same(f, x)


class Bounded:
    def __set_name__(self, owner, name):
        self.name = "_" + name

    def __get__(self, o, owner=None):
        return o.__dict__[self.name]

    def __set__(self, o, value):
        if value > 5:
            value = 5.0
        o.__dict__[self.name] = value


class Described:
    q = Bounded()

    def __init__(self):
        self.q = 0.0


class Plainly(Described):
    def __setattr__(self, name, value):
        object.__setattr__(self, name, value * 1)


class BySuper(Described):
    def __setattr__(self, name, value):
        super().__setattr__(name, value)


class Measured:
    """A descriptor that answers for instances only, and deletes in Python."""

    def __get__(self, obj, kind=None):
        if obj is None:
            raise ValueError("of instances only")
        return obj.width

    def __set__(self, obj, value):
        obj.width = value * 2

    def __delete__(self, obj):
        obj.width = obj.width * 0


class Shape:
    size = Measured()

    def __init__(self):
        self.width = 1.0


def test_a_descriptor_is_not_asked_for_the_class():
    def f(xs):
        shapes = [Shape(), Shape()]
        for x in xs:
            shape = shapes[int(x > 0)]
            if x > 1:
                del shape.size
            else:
                shape.size = x + shape.size
        return [s.size for s in shapes]

    assert_same(f, XS)
    assert_same(f, XS * 9)


@pytest.mark.parametrize("kind", [Described, Plainly, BySuper])
def test_a_descriptor_with_a_test_is_compiled_under_any_setattr(kind):
    def f(xs):
        o = kind()
        for x in xs:
            if x > 0:
                o.q = o.q + x
        return o.q

    assert_same(f, XS)
    assert_same(f, XS * 9)
