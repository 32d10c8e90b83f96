"""`with` under traced tests: a context is told of what is raised in it, and may swallow it."""

import contextlib

import jax
import pytest

from malleable import autograph
from malleable.errors import TransformError
from tests.frontend.behaviour.behaviour import assert_same


class Swallows:
    """A context that counts, and swallows some exceptions."""

    def __init__(self, *kinds):
        self.kinds, self.count = kinds, 0

    def __enter__(self):
        self.count += 1
        return self

    def __exit__(self, kind, error, trace):
        if kind is not None:
            self.count += 10
        return kind is not None and issubclass(kind, self.kinds)


class Undoes:
    """A context that puts a dict back where there is an exception."""

    def __init__(self, values):
        self.values = values

    def __enter__(self):
        self.old = dict(self.values)

    def __exit__(self, kind, error, trace):
        if kind is not None:
            self.values.clear()
            self.values.update(self.old)


def swallowed(x):
    context, y = Swallows(ValueError, ZeroDivisionError), 3.0
    with context:
        if x < 0:
            raise ValueError
        y = 1 / x
        context.count += 100
    return y, context.count


def swallowed_by_one_of_two(x):
    one, other, y = Swallows(ValueError), Swallows(KeyError), 0.0
    with one, other:
        if x < 0:
            raise ValueError
        y = x
    return y, one.count, other.count


def handled_further_out(x):
    context, y = Swallows(ValueError), 3.0
    try:
        with context:
            if x < 0:
                raise ValueError
            y = 4.0
            y = 1 / x
    except ZeroDivisionError:
        y = y + 10
    return y, context.count


def raised_on_either_path(x):
    context, y = Swallows(ValueError, KeyError), 0.0
    with context:
        y = 1.0
        if x < 0:
            raise ValueError
        else:
            raise KeyError
    return y, context.count


def returned_from(x):
    def inner():
        with context:
            if x < 0:
                raise ValueError
            return x
        return 7.0

    context = Swallows(ValueError)
    return inner(), context.count


def undone(x):
    values = {"a": 1.0, "b": 2.0}
    try:
        with Undoes(values):
            values["a"] = values["a"] - x
            if values["a"] < 0:
                raise ValueError
            values["b"] = values["b"] + x
    except ValueError:
        return values["a"], values["b"], -1.0
    return values["a"], values["b"], 1.0


def in_a_loop(x):
    context, total = Swallows(ValueError), 0.0
    for k in range(4):
        with context:
            if x < k - 2:
                raise ValueError
            total = total + 1
    return total, context.count


PROGRAMS = (swallowed, swallowed_by_one_of_two, handled_further_out, raised_on_either_path)


@pytest.mark.parametrize(
    "f", [*PROGRAMS, returned_from, undone, in_a_loop], ids=lambda f: f.__name__
)
def test_a_context_is_told_of_an_exception_and_may_swallow_it(f):
    for x in (4.0, -4.0, 0.0):
        assert_same(f, x)


@contextlib.contextmanager
def returning_on(kind):
    try:
        yield
    except ZeroDivisionError:
        return


def test_a_generator_that_swallows_a_traced_exception_is_refused():
    def f(x):
        y = 3.0
        with returning_on(ZeroDivisionError):
            y = 1 / x
        return y

    text = r"decides whether ZeroDivisionError is raised in this `with`\n  at .*test_contexts"
    with pytest.raises(TransformError, match=text):
        jax.jit(autograph(f))(0.0)
