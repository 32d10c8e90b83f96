"""Rows 83 to 90 of AutoGraph's behaviours: call forms, sources, errors, generators, asserts."""

import collections
import concurrent.futures
import dataclasses
import functools
import gc
import linecache
import math
import operator
import sys
import traceback
import weakref
from typing import NamedTuple

import jax
import numpy as np
import pytest
from jax import numpy as jnp
from jax.experimental import checkify

from malleable import TransformError, autograph, compat, listen, skip
from tests.frontend.behaviour import assert_same, count, deepest_line, program

DIFFERENT = {
    87: "control flow in a generator is converted, unless the block itself yields",
}

BOTH = pytest.mark.parametrize("x", [2.0, -2.0])
XS = np.array([1.0, -2.0, 3.0, 4.0, -5.0, 6.0], np.float32)
SCALE = 2.0


def line_of(fun, after):
    """The line of this file so many lines after the `def` or the decorator of `fun`."""
    return fun.__code__.co_firstlineno + after


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


# ---------------------------------------------------------------- 85 errors


def fails_in_a_branch(x):
    if x > 0:
        x = [x][
            3
        ]
    return x


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


@pytest.mark.parametrize(
    ("fun", "error", "line"),
    [
        (fails_in_a_branch, IndexError, line_of(fails_in_a_branch, 2)),
        (fails_in_a_loop, KeyError, line_of(fails_in_a_loop, 3)),
        (fails_in_a_callee, IndexError, line_of(fails_in_a_branch, 2)),
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
    assert not [f for f in files if "/malleable/frontend/" in f]


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
    assert f"test_behaviour_callables.py:{line_of(f, 2)}" in compat.where(cond)
    assert f"test_behaviour_callables.py:{line_of(f, 1)}" in compat.where(eqns[0])


# ---------------------------------------------------------------- 86 finding the source


def test_row_86_two_lambdas_with_one_signature_on_one_line_are_told_apart():
    f, g = (lambda x: x * 2 if x > 0 else x), (lambda x: x * 3 if x > 0 else x)
    assert (float(jax.jit(autograph(f))(1.0)), float(jax.jit(autograph(g))(1.0))) == (2.0, 3.0)


def test_row_86_two_lambdas_with_different_signatures_on_one_line_are_told_apart():
    f, g = (lambda x: x if x > 0 else -x), (lambda x, y: x if x > y else y)
    assert (float(jax.jit(autograph(f))(-1.0)), float(jax.jit(autograph(g))(1.0, 2.0))) == (1, 2)


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


def test_row_86_the_source_of_a_wrapper_is_its_own_not_that_of_what_it_wraps():
    @BOTH_CALLED
    def f(x):
        return x if x > 0 else -x

    assert_same(f, -2.0)


def BOTH_CALLED(fun):
    @functools.wraps(fun)
    def wrapper(x):
        if x < 0:
            return fun(x) + 100
        return fun(x)

    return wrapper


def test_row_86_the_rewritten_source_can_be_read():
    assert "ag__.if_" in str(autograph(flip).source)


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
        return list(values(x))

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
    assert f"test_behaviour_callables.py:{line_of(asserts, 1)}" in found.where


def test_row_88_checked_makes_a_traced_assertion_an_error():
    checked = checkify.checkify(jax.jit(autograph(asserts, checked=True)))
    assert "not positive" in checked(-1.0)[0].get()
    assert checked(1.0)[0].get() is None


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
        a, b, o = x, [1, x, 3.0], Data(x)
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
    return x + y


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
        assert "test_behaviour_callables.py:" in e.where
        assert e.hint
    else:
        np.testing.assert_allclose(out, f(x), rtol=1e-6)


def test_row_90_the_branches_of_a_traced_if_in_a_callee_are_one_cond():
    assert count(lambda x: factory(3.0)(x), "cond", 1.0) == 1
