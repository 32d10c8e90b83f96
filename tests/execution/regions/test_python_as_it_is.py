"""What Python does beside arithmetic stays so: in its order, once, and with what it raises."""

import copy
import math
import types
import warnings
from typing import NamedTuple

import jax
import numpy as np
import pytest
from jax import numpy as jnp

import malleable as mal
from tests.laws.execution_laws import as_numbers, differs, seen


class Meter:
    def __init__(self, total):
        self.total, self.log = total, [total, 1.0]

    @property
    def level(self):
        self.total += 1.0
        return 2.0

    def up(self, x):
        self.total += x
        return self.total


def written_before_what_is_compiled(x, v, held):
    v += 1.0
    chosen = sum(1 for row in held.values() if row[1] < v[0])
    return (v > v[chosen % 3]) * 1.5, x * 2


def divided_by_nothing(x, v, held):
    try:
        v[0] = math.floor(x) / (len(held["a"]) % 2)
    except ZeroDivisionError:
        v[1] = 7.0


def counted_to_nothing(x, v, held):
    try:
        v[0] = 3 // sum(1 for t in held["a"] if t > 9)
    except ZeroDivisionError:
        v[1] = 7.0


def a_count_divided_by_nothing(x, v, held):
    k = 0
    k += 1
    try:
        v[0] = len([t for t in range(4) if t > 1.5]) // ((k ^ 2) % 3)
    except ArithmeticError:
        v[1] = 7.0


def read_only_by_a_handler(x, v, held):
    try:
        one = 0
        k = 0
        k += 1
        try:
            pass
        except TypeError:
            one = k
    except KeyError:
        pass
    return x * one


def not_in_the_list(x, v, held):
    try:
        held["a"].index(-0.75)
        v[0] = 9.0
    except ValueError:
        v[1] = 7.0


def values_that_count(held):
    return sum(t for t in held if t)


def an_item_that_one_has_not(x, v, held):
    return first_of(int(v[0]) - 1, [x, [0.5, x]])


def first_of(n, many):
    return many[n][0]


def a_container_of_one_array(x, v, held):
    return values_that_count([x, 0.5]), values_that_count([x, 0.5])


def added_to_what_was_there(x, v, held):
    one = Meter(x)
    one.total += one.level
    one.log[0] += one.up(x)
    one.total -= one.up(1.0) - one.total
    return one.total, one.log


def the_greater_is_a_number(x, v, held):
    v += max(x, 1)


def the_least_is_a_number(x, v, held):
    v += min(held["a"])


def refused(t, k):
    if 1.25 > 0:
        raise ValueError(t)
    return math.floor(t) / k


def raised_before_a_division(x, v, held):
    try:
        v[0] = refused(0, 0)
    except ZeroDivisionError:
        v[1] = 7.0


def up(v):
    v[0] += 1.0
    return 1.0


def a_place_that_a_function_writes_to(x, v, held):
    [v, held][int(x)][0] += up(v)


def items_of_numpy_with_those_of_a_dict(x, v, held):
    for row in np.ones((2, 3)):
        v += row[0] - {"a": x, "b": 1.0}.get("z", 0.5)


def an_attribute_that_is_asked_for_first(x, v, held):
    y = jnp.sin(x)
    if not hasattr(test_it_is_done_as_python_does_it, "level"):
        raise ValueError("no level")
    level = test_it_is_done_as_python_does_it.level
    return y * level


def counted_and_looked_up(x, v, held):
    ways = {0: x, 1: 0.5, 2: 7.0}
    v[0] = ways[[t for t in held["a"] if t > 0].count(x) % 2]
    v[1] = ways[[1.5, x, 2.0].index(x)]


PROGRAMS = [
    counted_and_looked_up,
    an_attribute_that_is_asked_for_first,
    *(raised_before_a_division, a_place_that_a_function_writes_to),
    items_of_numpy_with_those_of_a_dict,
    *(written_before_what_is_compiled, divided_by_nothing, counted_to_nothing),
    *(a_count_divided_by_nothing, read_only_by_a_handler, not_in_the_list),
    *(an_item_that_one_has_not, a_container_of_one_array, added_to_what_was_there),
    *(the_greater_is_a_number, the_least_is_a_number),
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_it_is_done_as_python_does_it(program):
    x = jnp.asarray(0.5)
    args = x, np.array([1.0, 2.0, 3.0]), {"a": [x, 0.25], "b": [x, 2.0]}
    jitted = mal.jit(program)
    for _ in range(2):
        assert not differs(seen(jitted, copy.deepcopy(args)), seen(program, copy.deepcopy(args)))


def more(t):
    return t + 0.75


def item(t, n):
    return t[n] * 2


def by_a_lambda(x, n, v):
    return (lambda t, s: t - s)(v, 2), (lambda t, s=2.0: t * s)(v), (lambda t: t * x)(v)


def by_a_function_of_its_own(x, n, v):
    def less(t):
        return t - 1

    return less(v), less(x)


def by_a_function_that_takes_more(x, n, v):
    return more(v), more(x), more(v) * x


def at_a_place_that_jax_computed(x, n, v):
    return item(v, n), v[n] + 1, v[n] * x, v[v > n].sum()


MADE = [
    *(by_a_lambda, by_a_function_of_its_own, by_a_function_that_takes_more),
    at_a_place_that_jax_computed,
]


@pytest.mark.parametrize("program", MADE, ids=lambda program: program.__name__)
def test_what_numpy_computes_is_an_array_of_numpy(program):
    args = jnp.asarray(0.5), jnp.asarray(1), np.arange(6.0).reshape(2, 3)
    kinds = lambda out: jax.tree.map(lambda part: isinstance(part, jax.Array), out)
    assert kinds(mal.jit(program)(*args)) == kinds(program(*args))


def inverted(n, k):
    return n**-1


def inverted_in_a_loop(n, k):
    for _ in range(3):
        n = n + n**-2
    return n


def to_a_power_that_comes_in(n, k):
    return n**k


@pytest.mark.parametrize("program", [inverted, inverted_in_a_loop, to_a_power_that_comes_in])
@pytest.mark.parametrize("n", [3, jnp.asarray(3), np.int32(3), jnp.arange(3), jnp.asarray(2.0)])
def test_integers_of_jax_have_no_negative_powers(program, n):
    jitted = mal.jit(program)
    for k in (-1, 2, -1):
        assert not differs(seen(jitted, (n, k)), seen(program, (n, k)))


VALUES = [-1.5, -1.0, 0.0, 0.5, 2.0, 1e3, np.inf, np.nan]


@pytest.mark.in_turns
@pytest.mark.parametrize("name", [*(n for n in dir(math) if callable(getattr(math, n))), "int"])
def test_numbers_of_arrays_raise_as_in_python(name):
    function = getattr(math, name, int)

    def plain(x):
        return function(x * 1) * 1

    def handled(x):
        try:
            found = function(x * 1)
        except (ValueError, OverflowError):
            found = -7.0
        return found, x * 2

    for program in (plain, handled):
        jitted = mal.jit(program)
        for x in map(jnp.asarray, [*VALUES, -2, 0, 3]):
            got, wanted = (as_numbers(seen(f, (x,))) for f in (jitted, program))
            assert type(got.error) is type(wanted.error)
            wanted = wanted._replace(error=got.error)
            assert not differs(got, wanted)


def test_attributes_of_a_module_that_nobody_imported_are_read_each_time():
    held = types.ModuleType("state")

    def program(x):
        held.total = held.total + jnp.sum(x)
        return jnp.sin(held.total) * 1

    found = []
    for fun in (program, mal.jit(program)):
        held.total = 0.0
        found.append([float(fun(jnp.ones(3) * k)) for k in (1, 2, 3)])
    assert found[0] == pytest.approx(found[1])


class Settings(dict):
    __getattr__ = dict.__getitem__  # raises a KeyError for whatever is asked


def test_a_dict_whose_items_are_attributes():
    held = Settings(rate=0.5)
    of_argument = mal.jit(lambda settings, x: x * settings.rate)
    assert of_argument(held, jnp.ones(())) == mal.jit(lambda x: x * held.rate)(jnp.ones(())) == 0.5


def rows(x, n):
    for start in range(0, len(x), n):
        yield start, x[start : start + n]


@pytest.mark.parametrize(
    "made",
    [
        rows,
        lambda x, n: zip(range(3), x.reshape(3, 2), strict=True),
        lambda x, n: {0: (n, x)}.values(),
    ],
    ids=["generator", "zip", "values of a dict"],
)
def test_jax_warns_of_no_iterator_that_python_runs(made):
    def program(x, n):
        log = []
        for start, part in made(x, n):
            if part.mean() > 1:
                log.append(start)
                continue
            x = x + part.sum()
        return x, log

    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        got, wanted = (fun(jnp.arange(6.0), 4) for fun in (mal.jit(program), program))
    assert not found
    assert got[1] == wanted[1]
    np.testing.assert_allclose(got[0], wanted[0])


def test_a_value_whose_hash_raises_is_told_apart_by_what_it_is():
    """As that of a writable memoryview: a ValueError."""
    held = np.zeros(3)

    def program(x):
        memoryview(held)[0] = float(x.sum())
        return x * 2

    np.testing.assert_array_equal(mal.jit(program)(jnp.arange(3.0)), [0, 2, 4])
    assert held.tolist() == [3, 0, 0]


class Result(NamedTuple):
    statistic: float
    place: int


class Made(Result):
    """As results of SciPy: more is needed to make one than the items of the tuple."""

    def __new__(cls, statistic, place, *, sign):
        new = super().__new__(cls, statistic, place)
        new.sign = sign
        return new


def test_a_tuple_that_only_its_library_can_make_passes_through():
    held = Made(0.5, 2, sign=-1)

    def program(x):
        found = held if len(x) else None
        y = jnp.sin(x) * found.statistic
        return y[found.place] / (np.asarray(found) / 2).sum(), found

    got, same = mal.jit(program)(jnp.arange(3.0))
    assert same is held and got == pytest.approx(float(program(jnp.arange(3.0))[0]))


class Square:
    def __init__(self, side):
        self.side = side

    def __eq__(self, other):
        return isinstance(other, Square) and bool((self.side == other.side).all())

    def __rmul__(self, times):
        return float(times * self.side.sum())

    def __hash__(self):
        return 5


def test_what_an_operator_makes_of_an_object_is_what_its_class_says():
    def program(x):
        some = [Square(x), Square(x * 2), Square(x)]
        return some[0] == some[2], some[0] != some[1], 3 * some[0], len({*some})

    got = mal.jit(program)(jnp.arange(3.0))
    assert got == program(jnp.arange(3.0)) and list(map(type, got)) == [bool, bool, float, int]


def test_a_handler_of_unbound_names_runs_at_each_call():
    def program(x):
        r = 0.0
        try:
            if x > 0:
                r = u  # noqa: F821
            u = 1.0  # noqa: F841
        except UnboundLocalError:
            r = 5.0
        return r

    jitted = mal.jit(program)
    assert [jitted(jnp.float32(x)) for x in (7, 7, -1, 7)] == [5, 5, 0, 5]


def bound_before_an_error(a):
    v = 0
    try:
        v = jnp.sum(a)
        v = a.tolist()[None]
    except TypeError:
        pass
    return v


def bound_twice_before_an_error(a):
    found = []
    for name in ("sum", "shape"):
        v = a + 1
        try:
            v = v * 2
            v = getattr(v, name)()
        except TypeError:
            v = v + 3
        found.append(v)
    return found


def sorted_by_values(a):
    return sorted(a), sorted([a[3], 2.0, 1.0])


def items_at_a_list(a):
    try:
        return (a * 2)[[0, 1]]
    except TypeError:
        return "no tuple"


def a_method_that_numbers_lack(a, s=2.5):
    try:
        return s.cumsum() + a
    except AttributeError:
        return "no method"


def scaled_by_length(a, b):
    if a.ndim > 3:
        raise ValueError
    return a / b.shape[0]


def attributes_that_numbers_lack(a, s=2.5):
    try:
        return scaled_by_length(a, s)
    except AttributeError:
        try:
            return scaled_by_length(s, a)
        except AttributeError:
            return "no arrays"


@pytest.mark.parametrize(
    "program",
    [
        *(
            attributes_that_numbers_lack,
            bound_before_an_error,
            bound_twice_before_an_error,
            sorted_by_values,
        ),
        *(items_at_a_list, a_method_that_numbers_lack),
    ],
    ids=lambda f: f.__name__,
)
def test_each_call_is_as_in_python(program):
    x, jitted = jnp.array([1, jnp.nan, 3, 2]), mal.jit(program)
    wanted = program(x)
    for _ in range(3):
        got = jitted(x)
        types = [[type(leaf) for leaf in jax.tree.leaves(out)] for out in (got, wanted)]
        assert types[0] == types[1]
        if isinstance(wanted, str):
            assert got == wanted
        else:
            jax.tree.map(np.testing.assert_array_equal, got, wanted)


def test_a_write_stays_behind_what_raises():
    pair = (1, 2)

    def program(x, n, state):
        y = state["absent"]
        state["k"] = pair[n]
        return x * y

    jitted, state = mal.jit(program), {"k": 0}
    for _ in range(3):
        with pytest.raises(KeyError, match="absent"):
            jitted(jnp.ones(2), 0, state)
        assert state == {"k": 0}


def test_what_finally_binds_is_there_when_a_later_statement_raises(capsys):
    def program(x):
        v = x
        try:
            v = x * 2
        finally:
            v = x - x
        print("here")
        return v.tolist()[None]

    jitted = mal.jit(program)
    for _ in range(2):
        with pytest.raises(TypeError, match="list indices"):
            jitted(jnp.ones(2))
        assert capsys.readouterr().out == "here\n"


def test_a_number_of_numpy_is_a_float_where_python_says_so():
    def program(x, y, log):
        v = x @ x
        m = y.mean()
        if isinstance(v, float):
            log.append(m)
        return isinstance(v, float)

    log: list = []
    assert mal.jit(program)(np.ones(2), jnp.ones(2), log) and len(log) == 1


def test_one_thing_stays_one_thing():
    def program(x, y):
        best, held = max(x, y), {"a": x}
        held["b"] = held["a"] + 1
        rest = [v for v in (x, x + 1) if v is not x]
        return best is x, held["a"] is x, len(rest), x * 2

    jitted = mal.jit(program)
    for _ in range(2):
        assert jitted(jnp.float32(3), jnp.float32(2))[:3] == (True, True, 1)


@pytest.mark.parametrize("program", [lambda u: (u > 1) - True, lambda u: -(u > 1)])
def test_arithmetic_that_jax_refuses_is_refused(program):
    for fun in (program, mal.jit(program)):
        with pytest.raises(TypeError, match="does not accept dtype bool"):
            fun(jnp.array(2))


def test_classes_and_functions_bear_the_name_of_where_they_are_made():
    def program(x):
        class Made:
            pass

        print(end="")
        return Made.__qualname__, (lambda: 0).__qualname__, x * 2

    jitted, x = mal.jit(program), jnp.ones(1)
    for _ in range(2):
        assert jitted(x)[:2] == program(x)[:2]


def test_numbers_beside_one_that_a_loop_needs_stay_pythons():
    def euler(f, y, h, n):
        out = [y]
        for _ in range(n):
            y = y + h * f(y)
            out.append(y)
        return out, y

    jitted = mal.jit(euler)
    for n in (3, 3, 4):
        assert jitted(lambda y: 1 / 3 - y, 1.0, 0.5, n) == euler(lambda y: 1 / 3 - y, 1.0, 0.5, n)
