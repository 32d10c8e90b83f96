"""Odd callables in `mal.jit`: what cannot be looked at is Python's, and functions are pickled."""

import collections
import copy
import dataclasses
import functools
import inspect
import pickle
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import malleable as mal

X = jnp.array([1.0, -2.0, 3.0])


class Basis:
    scale = 2.0

    @functools.lru_cache  # noqa: B019
    def order(self, n):
        return n + 1

    @functools.singledispatchmethod
    def kind(self, x):
        return 1.0

    @kind.register
    def _(self, x: int):
        return 5.0

    half = functools.partialmethod(lambda self, n, by: n / by, by=2)

    @functools.cached_property
    def weight(self):
        return 3.0

    def __call__(self, x):
        return x[x > 0] * self.scale


@functools.singledispatch
def general(x):
    return 1.0


@general.register
def _(x: int):
    return 7.0


class Lying:
    """A callable whose attributes raise, or are not what they seem."""

    __wrapped__ = property(lambda self: 1 / 0)
    __code__ = "no code"
    __func__ = None
    __name__ = 3

    def __call__(self, x):
        return x * 2


BASIS, LYING = Basis(), (Lying(),)  # in a tuple: pytest asks what a module holds

CALLS = [
    lambda x: x[x > 0].sum() * BASIS.order(3),
    lambda x: x[x > 0].sum() * BASIS.kind(3) * BASIS.kind(3.0),
    lambda x: x[x > 0].sum() * BASIS.half(6),
    lambda x: x[x > 0].sum() * BASIS.weight,
    lambda x: BASIS(x).sum(),
    lambda x: x[x > 0].sum() * general(3) * general("a"),
    lambda x: LYING[0](x[x > 0]).sum(),
    lambda x: x[x > 0].sum() * sum(v for v in (1, 2)),
    lambda x: x[x > 0].sum() * functools.reduce(lambda a, b: a * b, [1, 2, 3]),
]


@pytest.mark.parametrize("fun", CALLS)
def test_an_odd_callable_is_called_as_python_calls_it(fun):
    jitted = mal.jit(fun)
    for _ in range(2):
        np.testing.assert_allclose(jitted(X), fun(X), rtol=1e-6)


def test_installed_packages_are_not_rewritten():
    pandas = pytest.importorskip("pandas")

    def means(x, groups):
        frame = pandas.DataFrame({"x": np.asarray(x * 2), "g": np.asarray(groups)})
        found = frame.groupby("g")["x"].agg(["mean", "std"]).fillna(0.0)
        return jnp.asarray(found["mean"].values)[groups] - x, list(found.columns)

    x, groups = jnp.linspace(-1, 1, 6), jnp.arange(6) % 2
    jitted = mal.jit(means)
    assert jitted(x, groups)[1] == means(x, groups)[1]
    np.testing.assert_allclose(jitted(x, groups)[0], means(x, groups)[0], rtol=1e-6)
    files = [part.filename for part in jitted.engine.known.values()]
    assert files == [__file__]


@mal.jit
def named(x, y=2.0):
    """The positive ones, scaled."""
    return x[x > 0] * y


def plain(x, y=2.0):
    return x[x > 0] * y


@mal.jit
@mal.autograph
def both(x):
    return x + 1


@pytest.mark.parametrize(
    "fun", [named, mal.jit(plain), mal.jit(plain, dynamic_sizes="exact"), both]
)
@pytest.mark.parametrize("copied", [lambda f: pickle.loads(pickle.dumps(f)), copy.deepcopy])
def test_a_jitted_function_is_pickled_as_the_function_is(fun, copied):
    expected = fun(X)
    np.testing.assert_array_equal(copied(fun)(X), expected)


def test_what_cannot_be_pickled_in_python_cannot_here():
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(mal.jit(lambda x: x))


def test_a_jitted_function_says_what_it_is():
    assert (named.__name__, named.__doc__) == ("named", "The positive ones, scaled.")
    assert repr(named) == "<jit of named>"
    assert list(inspect.signature(named).parameters) == ["x", "y"]


x = jnp.full(3, 100.0)  # a global of the name of a variable that is deleted below


def deleted(x):
    y = x * 2
    del x
    try:
        return x
    except NameError:
        return y[y > 0].sum()


def deleted_then_bound(x):
    y = x * 2
    del x
    try:
        z = x + 1  # noqa: F821
    except UnboundLocalError:
        z = y[y > 0].sum()
    return z


def deleted_in_a_loop(x):
    for i in range(3):
        t = x * i
        if i == 2:
            del t
    try:
        return t.sum()
    except NameError as e:
        return x[x > 0] + len(str(e))


@pytest.mark.parametrize("fun", [deleted, deleted_then_bound, deleted_in_a_loop])
def test_a_deleted_variable_has_no_value(fun):
    jitted = mal.jit(fun)
    for _ in range(2):
        np.testing.assert_allclose(jitted(X), fun(X))


class Pair(NamedTuple):
    x: Any
    y: Any

    def __add__(self, other):
        print("add")
        return Pair(self.x + other.x, self.y + other.y)

    def __len__(self):
        print("len")
        return 7


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Boxed:
    x: Any

    def __add__(self, other):
        print("add")
        return Boxed(self.x + other.x)

    def __mul__(self, k):
        return Boxed(self.x * k)


@pytest.mark.parametrize(
    "fun",
    [
        lambda x: (Pair(x, 2 * x) + Pair(x, x)).y,
        lambda x: sum([Pair(x, x), Pair(x, x)], Pair(x, x)).x,
        lambda x: (len(Pair(x, x)), x * 2),
        lambda x: ((lambda d: d + d)(Boxed(x))).x,
        lambda x: (Boxed(x) * 2 + Boxed(x)).x,
    ],
    ids=["pair", "sum", "len", "lambda", "dataclass"],
)
def test_what_an_operator_of_a_class_does_is_done_once_in_each_call(fun, capsys):
    want, said = str(fun(X)), capsys.readouterr().out
    jitted = mal.jit(fun)
    for _ in range(3):
        assert (str(jitted(X)), capsys.readouterr().out) == (want, said)
    given = mal.jit(lambda d: (d + d).x)
    for _ in range(2):
        given(Boxed(X))
        assert capsys.readouterr().out == "add\n"


class Counting:
    def __init__(self):
        self.calls = 0

    def __call__(self, x):
        self.calls += 1
        return x * self.calls


def test_an_object_that_jax_wraps_is_called_as_often_as_in_python():
    def program(x, f):
        return f(x), jax.vmap(f)(x)

    one, two, jitted = Counting(), Counting(), mal.jit(program)
    for _ in range(3):
        assert str(jitted(X, one)) == str(program(X, two))
        assert one.calls == two.calls


def test_attributes_of_a_function_do_not_stand_for_those_of_jit():
    @functools.singledispatch
    def area(s):
        return jnp.sin(s) * 2

    area.register(int)(lambda s: s * s)
    area.options = {"mine": 1}
    with mal.listen() as notes:
        jitted = mal.jit(area)
    assert jitted(3) == 9 and float(jitted(jnp.float32(0))) == 0.0
    assert jitted.dispatch(int)(3) == 9
    assert any("`.options`" in note.what for note in notes)


def test_an_outer_jit_keeps_its_own_options():
    outer = mal.jit(mal.jit(lambda x: x[x > 0]), on_break="error")
    with pytest.raises(mal.TransformError, match="breaks the graph"):
        outer(jnp.ones(2))


def test_a_jitted_function_called_in_a_lifted_branch_stays_callable():
    inner = mal.jit(lambda x, n: (x[:n].sum(), n + 1))

    def outer(x):
        s, n = x.sum(), 2
        if s > 1:
            s, n = inner(x * 2, n)
        return s

    for _ in range(2):
        assert float(mal.jit(outer)(jnp.arange(4.0))) == 2.0
        assert float(inner(jnp.ones(3), 2)[0]) == 2.0


class Named:
    """Its hash is that of a name, which does not say what it holds."""

    def __init__(self, name, by: Any):
        self.name, self.by = name, by

    def __hash__(self):
        return hash(self.name)

    def __eq__(self, other):
        return self.name == other.name

    def __add__(self, other):
        return Named(self.name, self.by + getattr(other, "by", other))

    __radd__ = __add__

    def scaled(self, x):
        return x * self.by


@dataclasses.dataclass(frozen=True)
class Frozen:
    by: float
    more: dict = dataclasses.field(default_factory=dict, hash=False, compare=False)

    def scaled(self, x):
        return x * self.by + self.more.get("shift", 0)


NAMED = Named("a", 2.0)


@pytest.mark.parametrize(
    "fun",
    [
        lambda held, x: held.scaled(x).sum() + jnp.sin(x).sum(),
        lambda held, x: NAMED.scaled(x).sum() + jnp.sin(x).sum(),
        lambda held, x: sum(one.scaled(x) for one in [held, NAMED]),
        lambda held, x: {"a": held}["a"].scaled(x) + 1,
    ],
)
def test_an_object_with_a_hash_of_its_own_may_change(fun):
    jitted, frozen = mal.jit(fun), Frozen(2.0, {"shift": 1})
    for by in (2.0, 5.0, jnp.array(3.0)):
        NAMED.by = by
        frozen.more["shift"] += 1
        for held in (NAMED, Named("a", 9.0), frozen, Frozen(2.0, {"shift": 50})):
            for _ in range(2):
                np.testing.assert_allclose(jitted(held, X), fun(held, X), rtol=1e-6)


def test_what_an_object_with_a_hash_holds_stays_an_array():
    one, other = Named("a", jnp.ones(2)), Named("b", jnp.arange(2.0))
    found: Any = mal.jit(lambda a, b: sum([a, b]))(one, other)
    np.testing.assert_allclose(found.by, [1.0, 2.0])
    assert all(isinstance(x.by, jax.Array) for x in (one, other, found))


def test_items_of_an_array_of_weak_type_are_of_weak_type():
    def items(x):
        kept = []
        for value in x:
            kept.append(value + 0.0)
            print(end="")
        return kept

    x = jnp.arange(3) * 1.0
    assert [y.weak_type for y in mal.jit(items)(x)] == [y.weak_type for y in items(x)] == [True] * 3


class OfInstances:
    """A descriptor that answers for instances only, and tells each question."""

    def __get__(self, obj, kind=None):
        if obj is None:
            raise ValueError("of instances only")
        obj.asked += 1
        return 7.0


class Asked:
    asked = 0
    value = OfInstances()


def test_a_descriptor_is_asked_as_often_as_python_asks_it():
    @mal.jit
    def f(o, x):
        y = o.value
        return jnp.sin(x) * y

    o = Asked()
    for calls in (1, 2):
        assert jnp.allclose(f(o, X), jnp.sin(X) * 7)
        assert o.asked == calls


class Answering:
    """It makes up an attribute of any name, or raises what is no AttributeError."""

    def __init__(self, given):
        self.given = given

    def __getattr__(self, name):
        return self.given[name]

    def __call__(self, x):
        return x * 2


@pytest.mark.parametrize("given", [{}, collections.defaultdict(lambda: 1)], ids=["raises", "any"])
def test_an_object_that_answers_to_any_name_is_called(given):
    def f(x, double):
        return double(x) + 1, float(x) > 2

    for x in (1.0, 3.0):
        assert mal.jit(f)(jnp.asarray(x), Answering(given)) == f(x, Answering(given))
