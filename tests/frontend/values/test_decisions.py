"""A `return` on every way out of a `try`, with code behind it: no path is left without a result."""

import contextlib

import pytest

from tests.frontend.values.test_raises import agree


def two_raises(x, y):
    for _ in range(1):
        try:
            u = 1 / x
            v = 1 / y
            return int(u + v) + 3
        except ZeroDivisionError:
            return 1


def two_handlers(x, y):
    with contextlib.nullcontext():
        try:
            u = 6 // x
            return [4, 5][y] * u
        except ZeroDivisionError:
            return 1
        except IndexError:
            return 2


def otherwise(x, y):
    with contextlib.nullcontext():
        try:
            if x > 3:
                raise ValueError
            if y == 2:
                return 7
            1 // x
        except ZeroDivisionError:
            return 1
        except ValueError:
            if y > 2:
                return 4
            return 2
        else:
            return 5


def anew(x, y):
    while True:
        try:
            return y // x
        except ZeroDivisionError:
            x = x + 1


def nested(x, y):
    for _ in range(1):
        try:
            try:
                if x == y:
                    raise KeyError
                return 10 // x
            except KeyError:
                return -y
        except ZeroDivisionError:
            return 30


PROGRAMS = [two_raises, two_handlers, otherwise, anew, nested]


@pytest.mark.parametrize("f", PROGRAMS, ids=lambda f: f.__name__)
def test_every_handler_may_return(f):
    agree(f, *((x, y) for x in (0, 1, 5, -1) for y in (0, 1, 2, 3)))
