"""Rows 83 to 84 of AutoGraph's behaviours: what is called, and what is shared with it."""

import collections
import concurrent.futures
import dataclasses
import functools
import gc
import linecache
import math
import operator
import weakref
from typing import NamedTuple

import jax
import numpy as np
import pytest

from malleable import autograph, listen, skip
from tests.frontend.behaviour.behaviour import BOTH, XS, assert_same

SCALE = 2.0


# ---------------------------------------------------------------- 83 call forms


def flip(x, *, by=1.0):
    if x > 0:
        return x * by
    return -x * by


class Flipper:
    def __init__(self, x):
        if x > 0:
            self.x = x
        else:
            self.x = -x

    def method(self, y):
        if y > self.x:
            return y
        return self.x

    @classmethod
    def of(cls, x):
        return cls(x * 2)

    @staticmethod
    def plain(x):
        return x if x > 0 else -x

    def __call__(self, y):
        return y if y > 0 else self.x

    @property
    def twice(self):
        if self.x > 3:
            return self.x
        return self.x * 2

    def __mangled(self, y):
        return y * 2 if y > 0 else y

    @property
    def __hidden(self):
        return 1.0 if self.x > 0 else 2.0

    def mangled(self, y):
        return self.__mangled(y) + self.__hidden


class Meta(type):
    def __call__(cls, x):
        made = super().__call__(x if x > 0 else x - 10)
        made.by_meta = True
        return made


class WithMeta(Flipper, metaclass=Meta):
    pass


class Point(NamedTuple):
    x: float
    y: float = 1.0

    def norm(self):
        if self.x > 0:
            return self.x + self.y
        return self.y - self.x


class SubPoint(collections.namedtuple("SubPoint", ["x"])):
    def flipped(self):
        return SubPoint(self.x if self.x > 0 else -self.x)


@dataclasses.dataclass
class Data:
    x: float
    y: float = 2.0

    def __post_init__(self):
        if self.x > 0:
            self.y = self.x * 3


def decorated(fun):
    @functools.wraps(fun)
    def wrapper(x):
        return fun(x) if x > 1 else fun(x - 1) * 2

    return wrapper


@decorated
def wrapped(x):
    if x > 0:
        return x
    return x * 5


def factorial(n, x, depth=4):
    if depth == 0:
        return x
    if n > 0:
        return x * factorial(n - 1, x, depth - 1)
    return x


CALLS = {
    "keyword only": lambda x: flip(x, by=3.0),
    "star arguments": lambda x: flip(*[x], **{"by": 3.0}),
    "partial": lambda x: functools.partial(flip, by=3.0)(x),
    "partial whose keyword is changed": lambda x: functools.partial(flip, by=3.0)(x, by=4.0),
    "partial of partial": lambda x: functools.partial(functools.partial(flip), x)(by=x),
    "lambda": lambda x: (lambda y: y if y > 0 else -y)(x),
    "constructor": lambda x: Flipper(x).x,
    "method": lambda x: Flipper(x).method(x + 1),
    "method by class": lambda x: Flipper.method(Flipper(x), x + 1),
    "bound method as a value": lambda x: list(map(Flipper(x).method, [x, 5.0])),
    "class method": lambda x: Flipper.of(x).x,
    "static method": lambda x: Flipper.plain(x),
    "callable object": lambda x: Flipper(x)(x),
    "property": lambda x: Flipper(x).twice,
    "mangled names": lambda x: Flipper(x).mangled(x),
    "metaclass": lambda x: (WithMeta(x).x, WithMeta(x).by_meta),
    "named tuple": lambda x: Point(x, y=x * 2).norm(),
    "named tuple as result": lambda x: Point(x)._replace(y=x * 3),
    "subclass of named tuple": lambda x: SubPoint(x).flipped(),
    "data class": lambda x: Data(x).y,
    "decorated": lambda x: wrapped(x),
    "recursion": lambda x: factorial(2, x),
    "recursion with a traced test": lambda x: factorial(x, x),
    "native": lambda x: (math.sqrt(abs(x)), operator.add(x, 1), functools.reduce(max, [x, 1.0])),
    "already converted": lambda x: autograph(flip)(x, by=3.0),
    "jax function of a lambda": lambda x: jax.vmap(lambda y: y if y > 0 else -y)(XS * x),
    "chosen at trace time": lambda x: {"flip": flip, "sin": np.sin}["flip"](x),
}


@pytest.mark.parametrize("name", CALLS)
@BOTH
def test_row_83_a_callee_of_any_form_is_converted(name, x):
    if name == "jax function of a lambda":
        want = np.abs(XS * x)
        np.testing.assert_allclose(jax.jit(autograph(CALLS[name]))(x), want, rtol=1e-6)
    else:
        assert_same(CALLS[name], x)


class Number:
    """A class whose operators have control flow of their own."""

    def __init__(self, v):
        self.v = v

    def __bool__(self):
        return self.v > 1

    def __lt__(self, other):
        return self.v < other.v

    def __add__(self, other):
        return Number(self.v + other.v if self.v > 0 else other.v)

    def __getitem__(self, i):
        return self.v if self.v > i else -self.v

    def __iter__(self):
        for k in range(3):
            yield self.v * k

    def __contains__(self, v):
        return self.v > v


OPERATORS = {
    "less": lambda x: Number(x) < Number(1.0),
    "iteration": lambda x: list(Number(x)),
    "in": lambda x: 0.0 in Number(x),
    "truth": lambda x: 1.0 if Number(x) else 2.0,
    "not": lambda x: not Number(x),
    "add": lambda x: (Number(x) + Number(1.0)).v,
    "item": lambda x: Number(x)[0],
}


@pytest.mark.parametrize("name", OPERATORS)
@BOTH
def test_row_83_an_operator_of_a_class_of_the_user_is_converted(name, x):
    assert_same(OPERATORS[name], x)


def test_row_83_code_made_by_exec_is_converted_if_its_source_is_known():
    source = "def made(x):\n    if x > 0:\n        return x * 2\n    return x - 1\n"
    linecache.cache["<made>"] = (len(source), None, source.splitlines(True), "<made>")
    scope: dict = {}
    exec(compile(source, "<made>", "exec"), scope)
    try:
        assert_same(scope["made"], 2.0)
    finally:
        del linecache.cache["<made>"]


def test_row_83_code_without_source_runs_as_it_is_and_leaves_a_note():
    scope: dict = {}
    exec("def made(x):\n    return x * 2\n", scope)
    made = scope["made"]

    def f(x):
        return made(x) + 1

    with listen() as heard:
        assert_same(f, 2.0)
    assert any("`made` is not converted" in n.what for n in heard)


def test_row_83_control_flow_in_code_without_source_fails_with_a_note_on_the_exception():
    scope: dict = {}
    exec("def made(x):\n    return x * 2 if x > 0 else x\n", scope)
    made = scope["made"]

    def f(x):
        return made(x) + 1

    with pytest.raises(jax.errors.TracerBoolConversionError) as caught:
        jax.jit(autograph(f))(2.0)
    assert any("made" in note for note in caught.value.__notes__)


def test_row_83_a_skipped_function_is_called_as_it_is():
    @skip
    def untouched(x):
        return x if x > 0 else -x

    with pytest.raises(jax.errors.TracerBoolConversionError):
        jax.jit(autograph(lambda x: untouched(x)))(2.0)


def test_row_83_a_converted_function_does_not_keep_what_it_closed_over_alive():
    class Big:
        by = 2.0

    def make():
        big = Big()
        fun = autograph(lambda x: x * big.by if x > 0 else x)
        jax.make_jaxpr(fun)(1.0)
        return weakref.ref(big)

    alive = make()
    gc.collect()
    assert alive() is None


# ---------------------------------------------------------------- 84 identity of a function


def test_row_84_a_rebound_global_is_seen_by_the_next_call(monkeypatch):
    def f(x):
        if x > 0:
            return x * SCALE
        return x

    g = autograph(f)
    assert float(jax.jit(g)(1.0)) == 2.0
    monkeypatch.setitem(globals(), "SCALE", 5.0)
    assert float(jax.jit(lambda x: g(x))(1.0)) == 5.0


def test_row_84_a_rebound_closure_variable_is_seen_by_the_next_call():
    by = 2.0

    @autograph
    def f(x):
        if x > 0:
            return x * by
        return x

    assert float(jax.jit(lambda x: f(x))(1.0)) == 2.0
    by = 5.0
    assert float(jax.jit(lambda x: f(x))(1.0)) == 5.0


@pytest.mark.xfail(strict=True, reason="row 84: the clone keeps the defaults it was made with")
def test_row_84_defaults_are_those_of_the_function_at_the_call():
    def f(x, by=2.0, *, plus=1.0):
        if x > 0:
            return x * by + plus
        return x

    g = autograph(f)
    assert float(jax.jit(lambda x: g(x))(1.0)) == 3.0
    f.__defaults__, f.__kwdefaults__ = (5.0,), {"plus": 2.0}
    assert float(jax.jit(lambda x: g(x))(1.0)) == 7.0


def test_row_84_a_converted_function_has_the_name_and_signature_of_the_function():
    g = autograph(flip)
    assert (g.__name__, g.__qualname__, g.__module__) == ("flip", "flip", __name__)
    assert g.__wrapped__ is flip


@pytest.mark.xfail(strict=True, reason="row 84: `ag__` and `_ag_...` collide")
def test_row_84_names_of_the_user_never_collide_with_those_of_the_conversion():
    def f(x, ag__=1.0, body=2.0, state=3.0, test=4.0):
        _ag_ret = _ag_rv = _ag_break1 = x
        while x < 10:
            x = x * 2 + ag__
            if x > 7:
                _ag_break1 = x + body
                break
            _ag_ret = _ag_rv + state
        return x, _ag_ret, _ag_rv, _ag_break1, test

    assert_same(f, 1.0)


def test_row_84_many_threads_may_convert_the_same_function_at_once():
    def f(x):
        s = 0.0
        while x > s:
            s += 1.5
        return s

    def run(x):
        return float(jax.jit(autograph(f))(x))

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert list(pool.map(run, [1.0, 2.0, 4.0, 8.0])) == [f(x) for x in (1.0, 2.0, 4.0, 8.0)]


def test_row_84_one_code_object_serves_functions_with_different_closures():
    def make(by):
        def f(x):
            return x * by if x > 0 else x

        return autograph(f)

    made = [make(2.0), make(3.0), make(4.0)]
    assert [float(jax.jit(f)(1.0)) for f in made] == [2.0, 3.0, 4.0]
