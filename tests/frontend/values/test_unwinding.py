"""Which handler an exception goes to, of whatever class it is, and what the handler knows of it."""

import sys

import jax
import numpy as np
import pytest

from malleable import autograph, listen
from tests.frontend.values.test_raises import agree


class Stop(BaseException):
    pass


def interrupted(x):
    try:
        if x > 2:
            raise KeyboardInterrupt
        r = 1
    except KeyboardInterrupt:
        r = 3
    return r


def ended(x):
    try:
        if x > 2:
            sys.exit("done")
        r = 1
    except SystemExit:
        r = 2
    finally:
        x = x + 1
    return r + x


def closed(x):
    try:
        if x > 2:
            raise GeneratorExit
        r = 1
    except Exception:
        r = 2
    except GeneratorExit:
        r = 4
    return r


def anything(x):
    try:
        if x > 2:
            raise KeyboardInterrupt
        r = 1
    except ValueError:
        r = 2
    except BaseException as e:
        r = 3 + isinstance(e, KeyboardInterrupt)
    return r


def stopped_in_a_loop(x):
    n = 0
    try:
        for i in range(4):
            n += 1
            if i * x > 2:
                raise Stop
    except Stop:
        n += 100
    return n


ALL = [interrupted, ended, closed, anything, stopped_in_a_loop]


@pytest.mark.parametrize("f", ALL, ids=lambda f: f.__name__)
def test_an_exception_that_is_no_exception_class_goes_to_its_handler(f):
    agree(f, (1.0,), (-2.0,), (3.0,))


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit(3), Stop()], ids=repr)
def test_such_a_raise_without_a_handler_is_nan(error):
    def f(x):
        if x > 2:
            raise error
        return x

    compiled = jax.jit(autograph(f))
    with listen() as notes:
        assert compiled(1.0) == 1 and np.isnan(compiled(3.0))
    assert any("does not happen in a compiled program" in n.what for n in notes)


def test_ctrl_c_while_a_branch_is_traced_ends_the_tracing():
    def pressed():
        raise KeyboardInterrupt

    def f(x, press):
        try:
            if x > 2:
                press()
            r = 1
        except KeyError:
            r = 3
        return r

    press = jax.named_call(pressed)  # no code to convert: as a signal would raise it
    with pytest.raises(KeyboardInterrupt):
        jax.jit(lambda x: autograph(f)(x, press))(1.0)
