"""`call` decides who is converted; the operators for items and attributes know traced values."""

import collections
import dataclasses
import enum
import functools
import operator
import typing

import equinox as eqx
import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

from malleable import autograph, notes
from malleable.arrays import journal
from malleable.arrays.box import Box, unbox
from malleable.errors import TransformError
from malleable.frontend.operators import items
from malleable.frontend.operators.callables import convertible, make_call
from malleable.frontend.operators.items import Items
from malleable.python_source.source import NoSource


class Converter:
    """A stand-in: the functions as they are, with a list of who was converted."""

    def __init__(self):
        self.seen = []

    def __call__(self, fun):
        if fun.__code__.co_filename == "<string>":
            raise NoSource("the source is not at hand")
        self.seen.append(fun.__name__)
        return lambda *args, **kwargs: fun(*args, **kwargs)


@pytest.fixture
def seen():
    return Converter()


@pytest.fixture
def call(seen):
    enter = lambda f: lambda *args: unbox(call_(f, *map(Box, args)))
    call_ = make_call(seen, enter)
    return call_


@pytest.fixture
def own(call):
    return Items(call)


def traced(fun, *args):
    return jax.jit(lambda *xs: unbox(fun(*map(Box, xs))))(*args)


def double(x):
    return 2 * x


# ---------------------------------------------------------------- who is converted


def test_a_function_is_converted_once(call, seen):
    assert call(double, 1) == call(double, 1) == 2
    assert seen.seen == ["double"]


def test_a_copy_of_attributes_by_wraps_is_not_mistaken(call, seen):
    call(double, 1)

    @functools.wraps(double)
    def wrapper(x):
        return -x

    assert call(wrapper, 1) == -1


def test_two_callers_do_not_share(call, seen):
    call(double, 1)
    other = Converter()
    assert make_call(other)(double, 1) == 2
    assert other.seen == ["double"]


def test_methods_partials_and_callable_objects_are_converted(call, seen):
    class Adder:
        def __init__(self, n):
            self.n = n

        def add(self, x, more=0):
            return x + self.n + more

        __call__ = add

        @classmethod
        def of(cls, n):
            return cls(n)

        @staticmethod
        def still(x):
            return x

    adder = call(Adder.of, 2)
    assert call(adder.add, 1) == call(adder, 1) == call(Adder.add, adder, 1) == 3
    assert call(functools.partial(adder.add, 1, more=1), more=2) == 5
    assert call(Adder.still, 4) == 4
    assert seen.seen == ["of", "add", "still"]
    assert call(Adder, 3).n == 3 and seen.seen[-1] == "__init__"


def test_classes_are_made_as_python_makes_them(call, seen):
    class Point(typing.NamedTuple):
        x: int
        y: int = 2

    class Color(enum.Enum):
        RED = 1

    class Meta(type):
        def __call__(cls, *args):
            return "made", args

    class Strange(metaclass=Meta):
        pass

    class Failure(ValueError):
        def __init__(self, code):
            super().__init__(f"code {code}")
            self.code = code

    class Many(list):
        def __init__(self, *xs):
            super().__init__(xs)

    class One:
        def __new__(cls, x):
            return x if x else super().__new__(cls)

        def __init__(self, x):
            self.x = x

    assert call(Point, 1) == (1, 2)
    assert call(Color, 1) is Color.RED
    assert call(Strange, 1) == ("made", (1,))
    failure = call(Failure, 3)
    assert (str(failure), failure.code) == ("code 3", 3)
    assert call(Many, 1, 2) == [1, 2]
    assert call(One, 5) == 5 and call(One, 0).x == 0
    assert call(ValueError, "a").args == ("a",)
    assert call(collections.OrderedDict, a=1) == {"a": 1}
    with pytest.raises(TypeError, match="takes no arguments"):
        call(type("Empty", (), {}), 1)


def test_post_init_of_a_dataclass_is_converted(call, seen):
    @dataclasses.dataclass(frozen=True)
    class Square:
        side: float
        area: float = 0.0

        def __post_init__(self):
            object.__setattr__(self, "area", self.side**2)

    square = call(Square, 3.0)
    assert square == Square(3.0) and square.area == 9
    assert "__post_init__" in seen.seen and vars(square).keys() == {"side", "area"}


def test_who_is_left_alone(call, seen):
    assert call(collections.namedtuple, "P", "x y")(1, 2) == (1, 2)
    double_alone = lambda x: 2 * x
    double_alone.__malleable_skip__ = True
    assert call(double_alone, 2) == 4 and seen.seen == []
    assert not convertible(jnp.mean) and not convertible(functools.wraps)
    assert convertible(double) and not convertible(len) and not convertible(eqx.filter_jit)


def test_a_function_that_autograph_made_is_converted_from_its_original(call, seen):
    @functools.wraps(double)
    def autographed(x):
        raise AssertionError

    autographed.__malleable_converted__ = double

    @functools.wraps(autographed)
    def decorated(x):
        return 10 + call(autographed, x)

    assert call(autographed, 2) == 4
    assert call(decorated, 2) == 14


def test_generic_functions_dispatch_on_the_class_a_value_pretends(call, seen):
    @functools.singledispatch
    def name(x):
        return "any"

    @name.register
    def _(x: float):
        return "float"

    out = []
    traced(lambda x: out.append(call(name, x)) or x, 1.0)
    assert out == ["float"] and call(name, "a") == "any"


class _Kinds:
    @functools.singledispatchmethod
    def of(self, x):
        return 0

    @of.register
    def _(self, x: float):
        return 1 if x > 0 else 2


@pytest.mark.parametrize("wide", [True, False])
def test_a_method_is_picked_as_python_picks_it(wide):
    run = jax.jit(autograph(lambda x: _Kinds().of(x)))
    with jax.enable_x64(wide), notes.listen() as heard:
        for x in (1.5, -1.5, np.float64(1.5), 3):
            assert run(x) == _Kinds().of(x)
    assert [n.what for n in heard] == (
        [] if wide else ["a function is picked by a class that is float32 or float64"]
    )


def test_a_cache_is_passed_by_traced_values(call, seen):
    @functools.lru_cache
    def square(x):
        return x * x

    assert call(square, 3) == 9 and square.cache_info().currsize == 1
    assert float(traced(lambda x: call(square, x), 3.0)) == 9
    assert square.cache_info().currsize == 1 and seen.seen == ["square"]


def test_a_function_without_source_says_so_when_it_trips(call):
    space = {}
    exec("def trip(x):\n    return 1 if x > 0 else 2", space)
    with notes.listen() as heard, pytest.raises(jax.errors.TracerBoolConversionError) as e:
        traced(lambda x: call(space["trip"], x), 1.0)
    assert any("source is not at hand" in text for text in e.value.__notes__)
    assert "trip" in heard[0].what
    assert call(space["trip"], 1) == 1


def test_what_a_function_without_source_calls_is_converted(call, seen):
    space = {"double": double}
    exec("def twice(x):\n    return double(double(x))", space)
    assert float(traced(lambda x: call(space["twice"], x), 1.0)) == 4
    assert seen.seen == ["double"]


def test_compiled_code_gets_arrays_and_says_when_it_trips(call):
    assert isinstance(call(np.frombuffer, b"ab", np.uint8), np.ndarray)
    with pytest.raises(TypeError) as e:
        traced(lambda x: call("".join, [x]), 1.0)
    assert any("compiled code" in text for text in e.value.__notes__)


# ---------------------------------------------------------------- JAX


def test_functions_of_jax_get_arrays_and_give_boxes(call, seen):
    def run(x):
        total, ys = call(lax.scan, lambda c, y: (c + y, c * 2), x[0], x)
        slope = call(call(jax.grad, lambda z: z**3), total)
        made = call(jnp.zeros, 2)
        made[0] = 1.0
        assert isinstance(slope, Box) and isinstance(ys, Box)
        return call(x.at[0].set, slope), call(jnp.add, x, 1), made

    out, more, made = traced(run, jnp.arange(3.0))
    assert out.tolist() == [27, 1, 2] and more.tolist() == [1, 2, 3] and made.tolist() == [1, 0]
    assert seen.seen == ["<lambda>", "<lambda>"]


def test_a_layer_of_equinox_that_holds_boxes(call):
    def run(x):
        layer = eqx.nn.Linear(2, 2, key=jax.random.key(0))
        layer = eqx.tree_at(lambda m: m.bias, layer, x.value)
        boxed = jax.tree.map(lambda a: Box(a) if eqx.is_array(a) else a, layer)
        return call(boxed, x), layer(x.value)

    out, want = jax.jit(lambda x: unbox(run(Box(x))))(jnp.ones(2))
    np.testing.assert_allclose(out, want)


def test_a_module_of_the_users_own_is_converted(call, seen):
    class Net(eqx.Module):
        w: jax.Array

        def __call__(self, x):
            return self.first(x) + 1

        def first(self, x):
            return x * self.w

    net = Net(jnp.ones(()))
    assert float(traced(lambda x: call(net, x), 2.0)) == 3
    assert float(traced(lambda x: call(net.first, x), 2.0)) == 2
    assert seen.seen == ["__call__", "first"]


# ---------------------------------------------------------------- the journal


@pytest.mark.parametrize(
    ("thing", "change"),
    [
        ([1, 2], lambda call, xs: call(xs.append, 3)),
        ([1, 2], lambda call, xs: call(list.append, xs, 3)),
        ([2, 1], lambda call, xs: call(xs.sort)),
        ({1: 2}, lambda call, d: call(d.setdefault, 3, 4)),
        ({1: 2}, lambda call, d: call(operator.setitem, d, 1, 5)),
        ({1}, lambda call, s: call(s.add, 3)),
        (collections.deque([1]), lambda call, q: call(q.appendleft, 3)),
        ([1, 2], lambda call, xs: Items(call).setitem(5, xs, 0)),
        ([1, 2], lambda call, xs: Items(call).delitem(xs, 0)),
        ([1, 2], lambda call, xs: Items(call).aug("+=", xs, [3])),
        ({1: 2}, lambda call, d: Items(call).aug_item("+=", d, 1, lambda: 4)),
        ({1}, lambda call, s: Items(call).aug("|=", s, {2})),
        (collections.defaultdict(list), lambda call, d: Items(call).getitem(d, 1)),
        (np.zeros(2), lambda call, x: Items(call).setitem(5, x, 0)),
        (np.zeros(2), lambda call, x: Items(call).aug("+=", x, 1)),
        (np.zeros(2), lambda call, x: call(x.fill, 1)),
    ],
)
def test_a_change_is_undone_with_the_journal(call, thing, change):
    before = thing.copy()
    with journal.opened() as book:
        change(call, thing)
        assert not np.array_equal(np.asarray(list(thing)), np.asarray(list(before))) or (
            thing != before
        )
        book.undo()
    assert list(thing) == list(before)


def test_attributes_cells_and_globals_are_undone(call, own):
    class Thing:
        @functools.cached_property
        def once(self):
            return 7

    thing, count, variables = Thing(), 1, {"n": 1}
    with journal.opened() as book:
        own.setattr_(3, thing, "x")
        call(setattr, thing, "y", 4)
        call(object.__setattr__, thing, "z", 4)
        assert own.attr(thing, "once") == 7
        own.aug_attr("+=", thing, "x", lambda: 2)
        items.writes_cell(lambda: count)
        count = 2
        items.writes_global(variables, "n")
        variables["n"] = 2
        assert thing.x == 5
        book.undo()
    assert (vars(thing), count, variables) == ({}, 1, {"n": 1})


# ---------------------------------------------------------------- attributes and items


def test_properties_and_item_methods_are_converted(own, seen):
    class Thing:
        def __init__(self):
            self.data = {}

        @property
        def size(self):
            return len(self.data)

        @size.setter
        def size(self, n):
            self.data["n"] = n

        def __getitem__(self, i):
            return self.data[i]

        def __setitem__(self, i, x):
            self.data[i] = x

        def __contains__(self, x):
            return x in self.data

        def __iadd__(self, x):
            self.data["sum"] = x
            return self

    thing = Thing()
    own.setattr_(3, thing, "size")
    own.setitem(4, thing, "k")
    assert own.attr(thing, "size") == 2 and own.getitem(thing, "k") == 4
    assert own.in_("k", thing) is True and own.not_in("k", thing) is False
    assert own.aug("+=", thing, 5) is thing
    assert seen.seen == ["size", "__setitem__", "size", "__getitem__", "__contains__", "__iadd__"]


def test_a_missing_attribute_is_pythons_error(own):
    class Thing:
        @property
        def bad(self):
            raise AttributeError("inner")

    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        own.attr(Thing(), "nope")
    with pytest.raises(AttributeError, match="inner"):
        own.attr(Thing(), "bad")
    assert own.getattr(Thing(), "nope", 3) == 3 and own.hasattr([], "append")


def test_a_list_indexed_by_a_traced_scalar(own):
    read = lambda i: own.getitem([1.0, 2.0, 3.0], i)
    assert float(traced(read, 1)) == 2 and float(traced(read, -1)) == 3
    assert int(traced(lambda i: own.getitem(range(3, 9, 2), i), 1)) == 5

    def write(i):
        xs = [1.0, 2.0, 3.0]
        own.setitem(9.0, xs, i)
        return xs

    assert [float(x) for x in traced(write, -1)] == [1, 2, 9]


def test_an_array_from_outside_can_be_read_but_not_written(own):
    table = np.arange(4.0)
    assert float(traced(lambda i: own.getitem(table, i), 2)) == 2
    for change in (
        lambda x: own.setitem(x, table, 0),
        lambda x: own.aug("+=", table, x),
        lambda x: own.aug_item("+=", table, 0, lambda: x),
    ):
        with pytest.raises(TransformError, match="made outside"):
            traced(change, 1.0)
    call = lambda fun, *args, **kwargs: (
        lambda x: own.call(fun, table, *(x if a is None else a for a in args), **kwargs)
    )
    for change in (
        call(np.add, None, out=table),
        call(np.put, [0], None),
        call(np.putmask, table > 1, None),
        call(np.copyto, None),
        call(np.place, table > 1, None),
        lambda x: own.setitem(x, table.flat, 0),
    ):
        with pytest.raises(TransformError, match="made outside of the converted function"):
            traced(change, jnp.ones(1)[0])
    own.setitem(Box(np.float64(5)), table, 0)
    own.aug("+=", table, Box(np.ones(4)))
    assert table.tolist() == [6, 2, 3, 4]


def test_a_traced_key_or_bound_is_refused_with_a_hint(own):
    for use in (
        lambda i: own.getitem({"a": 2}, i),
        lambda i: own.getitem((1, 2), slice(i, None)),
        lambda i: own.in_(i, {"a": 2}),
    ):
        with pytest.raises(TransformError, match="hint"):
            traced(use, 1)


def test_a_dict_of_numbers_is_asked_for_a_traced_key(own):
    table = {1: 10.0, 4: 40.0}

    def run(i):
        known = own.call(table.get, i, -1.0)
        return own.getitem(table, i), known, own.in_(i, table), own.not_in(i, table)

    assert [float(x) for x in traced(run, 4)] == [40, 40, 1, 0]
    _, known, there, missing = traced(run, 2)
    assert [float(known), bool(there), bool(missing)] == [-1, False, True]


def test_a_view_is_changed_in_place_once(own):
    def run(x):
        own.aug_item("+=", x, slice(1, 3), lambda: 10.0)
        own.aug_item("*=", x, 0, lambda: x[1])
        return x

    assert traced(run, jnp.ones(3)).tolist() == [11, 11, 11]
    x = Box(np.ones(3))
    own.aug_item("+=", x, 0, lambda: 1)
    assert x.tolist() == [2, 1, 1]


def test_raw_arrays_of_jax_are_rebound(own):
    x = jnp.ones(2)
    y = own.aug("+=", x, Box(jnp.ones(2)))
    assert isinstance(y, Box) and x.tolist() == [1, 1]


def test_scalars_are_rebound_and_arrays_written(own):
    def run(x, s):
        y, t = x, s
        x, s = own.aug("+=", x, 1), own.aug("+=", s, 1)
        return x, y, s, t

    x, y, s, t = traced(run, jnp.zeros(1), 0.0)
    assert (x[0], y[0], s, t) == (1, 1, 1, 0)


def test_in_is_an_or_of_equalities(own):
    def check(fun, x):
        return bool(traced(fun, x))

    assert check(lambda x: own.in_(x, [1, 2]), 2) and not check(lambda x: own.in_(x, (1,)), 2)
    assert check(lambda x: own.in_(2, [x, "a", None]), 2)
    assert check(lambda x: own.in_(x, range(0, 9, 3)), 6)
    assert check(lambda x: own.not_in(x, range(0, 9, 3)), 5)
    assert check(lambda x: own.in_(2.0, x), np.arange(3.0))
    assert check(lambda x: own.in_(x, np.arange(3)), 2)
    assert own.in_("a", "cat") is True and own.not_in(1, {1}) is False


def test_what_is_raised_is_marked():
    marked = items.raising(ValueError), items.raising(KeyError("k"))
    assert all(e.__malleable_raised__ for e in marked) and marked[1].args == ("k",)
    assert items.raising(3) == 3


# ---------------------------------------------------------------- builtins through call


def test_builtins_that_take_functions_convert_them(call, seen):
    assert list(call(map, double, [1])) == [2]
    assert traced(lambda x: list(call(map, float, [x, 1])), 2)[0].dtype == np.float32
    floats = traced(lambda x: call(sorted, [x, 1], key=np.asarray), 2)
    assert [int(x) for x in floats] == [1, 2]
    assert call(sorted, [2, 1], key=double) == [1, 2]
    assert call(functools.reduce, lambda a, b: a + b, [1, 2]) == 3
    assert call(max, [1, 2], key=double) == 2
    assert seen.seen == ["double", "<lambda>"]


def test_a_builtin_on_traced_values(call):
    assert int(traced(lambda x: call(len, x), jnp.ones(3))) == 3
    assert float(traced(lambda x: call(abs, x), -1.5)) == 1.5
    assert float(traced(lambda x: call(operator.iadd, x, 1), 1.5)) == 2.5
    assert int(traced(lambda x: call([1, 2, 1].count, x), 1)) == 2
    assert int(traced(lambda x: call([1, 2].index, x), 2)) == 1


def test_arrays_of_the_function_are_written_even_while_a_block_is_traced(own):
    def run(x, y):
        with journal.opened() as book:
            own.aug("+=", x, y)
            own.setitem(y, x, 0)
            inside = x.value
            book.undo()
        return inside, x

    inside, x = traced(run, np.ones(2), 2.0)
    assert inside.tolist() == [2, 3] and x.tolist() == [1, 1]


def test_an_array_of_jax_from_outside_is_not_written(own):
    with pytest.raises(TypeError, match="JAX arrays are immutable"):
        own.setitem(1, jnp.ones(2), 0)
    assert [float(x) for x in own.iter_(jnp.arange(2.0))] == [0, 1]


def test_an_object_that_a_library_makes_stays_itself(call):
    layer = call(eqx.nn.Linear, 2, 2, key=jax.random.key(0))
    assert isinstance(layer.weight, jax.Array)
    state = call(lambda: (layer, {"a": [jnp.ones(1)]}))
    assert state[0] is layer


def test_new_arrays_of_numpy_can_be_written(call):
    table = np.arange(3.0)
    made = call(table.copy)
    assert isinstance(made, Box) and made.value is not table
    assert call(table.reshape, 3, 1).base is table


def test_a_vectorized_function_is_converted(call, seen):
    assert traced(lambda x: call(np.vectorize(double), x), np.arange(2)).tolist() == [0, 2]
    assert seen.seen == ["double"]


def test_numpy_written_in_python_is_converted(call):
    assert traced(lambda x: call(np.poly1d, [1.0, 2.0])(x), 3.0) == 5
