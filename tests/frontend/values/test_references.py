"""What each step of a compiled loop makes is a thing of its own, and so is what a branch makes."""

import collections
import functools
import types
from dataclasses import dataclass, field

import jax
import numpy as np
import pytest

from malleable import autograph
from malleable.errors import TransformError
from tests.frontend.behaviour.behaviour import assert_same

XS = np.array([3.0, 1.0, 4.0])


class Bare:
    pass


@dataclass
class Particle:
    x: float = 0.0
    hits: list = field(default_factory=list)


def held(thing):
    """What a thing holds, as numbers."""
    if isinstance(thing, Particle):
        return thing.x, len(thing.hits)
    fields = vars(thing) if isinstance(thing, Bare | types.SimpleNamespace) else thing
    return len(fields) if isinstance(fields, dict) else list(fields)


def particle(p):
    p.x, _ = 2.0, p.hits.append(1.0)


MAKES = {
    "list": (list, lambda xs: xs.append(1.0)),
    "items": (lambda: [1.0], lambda xs: xs.append(1.0)),
    "dict": (dict, lambda d: d.update(a=1.0)),
    "array": (lambda: np.zeros(2), lambda a: np.add(a, 1.0, out=a)),
    "set": (set, lambda s: s.add(1)),
    "deque": (collections.deque, lambda d: d.append(1.0)),
    "defaultdict": (lambda: collections.defaultdict(int), lambda d: d["a"]),
    "object": (Bare, lambda o: setattr(o, "a", 1.0)),
    "namespace": (lambda: types.SimpleNamespace(a=0.0), lambda o: setattr(o, "b", 1.0)),
    "dataclass": (Particle, particle),
    "iterator": (lambda: iter([1.0, 2.0, 3.0]), next),
}


@pytest.mark.parametrize("kind", MAKES)
def test_a_loop_that_appends_a_new_thing_in_each_step_makes_several(kind):
    make, change = MAKES[kind]

    def f(xs):
        things = []
        for _ in xs:
            things.append(make())
        change(things[1])
        return [held(thing) for thing in things]

    assert_same(f, XS)


class Adjoint:
    def __init__(self, of):
        self.of, self.tag = of.T, "adjoint"


class Operator:
    """With an adjoint that is made when it is first asked for, as SciPy's have."""

    def __init__(self, of):
        self.of, self._adjoint = of, None

    @property
    def adjoint(self):
        if self._adjoint is None:
            self._adjoint = Adjoint(self.of)
        return self._adjoint


def test_an_object_that_the_first_step_makes_and_keeps_goes_around():
    def f(x):
        op, steps = Operator(np.array([[1.0, 2.0], [3.0, 1.0]]) * x[0]), 0
        while np.sum(x) < 100.0:
            x, steps = op.adjoint.of @ (op.of @ x), steps + 1
        return x, steps

    assert_same(f, XS[:2])


def test_an_object_without_traced_values_is_made_anew_in_each_step():
    def f(x):
        old = token = types.SimpleNamespace(n=0, tag="none")
        others = total = 0
        while x < 6:
            token = types.SimpleNamespace(n=1, tag="even" if x > 3 else "odd")
            alias, others = token, others + (token is not old)
            alias.n += 2
            total, x = total + token.n, x + 1
        return total, others, token.n, token.tag == "even", token is old

    for x in (0.5, 4.5, 9.0):
        assert_same(f, x)


def multiplied(k):
    return lambda y: y * k


KEEPS = {
    "cell": lambda x: multiplied(x * 2),
    "default": lambda x: lambda y, k=x * 2: y * k,
    "partial": lambda x: functools.partial(multiplied(1.0), x * 2),
}


@pytest.mark.parametrize("kind", KEEPS)
def test_a_function_that_keeps_a_value_of_its_step_is_one_of_several(kind):
    make = KEEPS[kind]

    def f(xs):
        functions = []
        for x in xs:
            functions.append(make(x))
        return [fun() if kind == "partial" else fun(2.0) for fun in functions]

    assert_same(f, XS)


def test_a_function_that_keeps_a_value_of_its_branch_is_refused():
    def f(x):
        fun = multiplied(x * 2) if x > 0 else multiplied(x * 3)
        return fun(1.0)

    with pytest.raises(TransformError, match=r"keeps a value(.|\n)*test_references\.py:\d+ in "):
        jax.jit(autograph(f))(2.0)


# ---------------------------------------------------------------- attributes that a loop sets


def last(o):
    return o.last if hasattr(o, "last") else -1.0


def caught(o):
    try:
        return o.last
    except AttributeError:
        return -1.0


@pytest.mark.parametrize("read", [last, caught, lambda o: getattr(o, "last", -1.0)])
def test_an_attribute_that_a_loop_sets_is_there_if_the_loop_ran(read):
    def f(n):
        o = Bare()
        while n > 0:
            o.last, n = n, n - 1.0
        return read(o)

    for n in (0.0, 2.0):
        assert_same(f, n)


def test_an_attribute_of_no_step_is_nan():
    def f(xs, n):
        o = Bare()
        for i in range(n):
            o.last = xs[i]
        return o.last

    got = jax.jit(autograph(f))
    assert np.isnan(got(XS, 0)) and got(XS, 3) == 4.0


def test_a_step_asks_whether_an_earlier_one_has_set_an_attribute():
    def asked(xs):
        o = Bare()
        for x in xs:
            if hasattr(o, "total"):
                o.total += x
            else:
                o.total = x
        return o.total

    def tried(xs):
        o, n = Bare(), 0
        for x in xs:
            if x > 2:
                try:
                    o.total += x
                except AttributeError:
                    o.total, n = x, n + 1
        return n, o.total

    assert_same(asked, XS)
    assert_same(tried, XS)


def one_of_two(x):
    a, b, same = types.SimpleNamespace(n=0), types.SimpleNamespace(n=0), 0
    while x < 5:
        same += a is b
        a = types.SimpleNamespace(n=x)
        b = a if x > 2 else types.SimpleNamespace(n=x)
        x += 1
    return same, a.n


def test_whether_two_names_are_of_one_object_of_the_step_before_is_refused():
    why = r"the same SimpleNamespace is not known(.|\n)*test_references\.py:\d+ in one_of_two"
    with pytest.raises(TransformError, match=why):
        jax.jit(autograph(one_of_two))(0.5)


class Token:
    pass


def equal_of_two(x):
    a, b, same = Token(), Token(), 0
    while x < 5:
        same += a == b
        a = Token()
        b = a if x > 2 else Token()
        x += 1
    return same


def test_whether_objects_without_an_eq_of_their_own_are_equal_is_refused_too():
    with pytest.raises(TransformError, match="the same Token is not known"):
        jax.jit(autograph(equal_of_two))(0.5)
