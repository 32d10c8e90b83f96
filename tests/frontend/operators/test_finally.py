"""`return`, `break` and `continue` in a `finally`: what was under way before is dropped."""

# ruff: noqa: B007, B012, B904, F841
# pyright: reportPossiblyUnbound=false
import jax
import pytest

from malleable import autograph, listen
from tests.frontend.values.test_raises import agree

XS = [(-1.0,), (0.5,), (1.5,), (2.5,), (4.0,)]


def break_drops_an_exception(x):
    n = 0.0
    for i in range(3):
        try:
            if x > i:
                raise ValueError
            n += 1
        finally:
            n += 10
            break
    return n


def return_on_some_paths(x):
    try:
        y = 1 / x
    finally:
        if x > 0:
            return 1.0
    return 2.0


def continue_on_some_paths(x):
    n = 0.0
    for i in range(4):
        try:
            n += 1
            if x > 1:
                raise ValueError
        finally:
            if x > 0:
                continue
        n += 10
    return n


def return_always(x):
    try:
        if x > 0:
            raise ValueError
        y = 1.0
    finally:
        return 5.0 + x


def return_takes_the_place_of_a_return(x):
    n = 0.0
    try:
        if x > 0:
            return 1.0
        n += 1
    finally:
        n += 1
        if x > 1:
            return n + 10
        n += 100
    return n


def break_takes_the_place_of_a_return(x):
    n = 0.0
    for i in range(5):
        try:
            if i > x:
                return n
            n += 1
        finally:
            if x > 2:
                break
            n += 10
    return n + 1000


def continue_takes_the_place_of_a_break(x):
    n = 0.0
    while n < 50:
        try:
            if n > 5 * x:
                break
            n += 1
        except ValueError:
            n += 3
        finally:
            n += 2
            if n < 10:
                continue
            n += 1
        n += 7
    return n


def what_was_raised_goes_on(x):
    try:
        try:
            if x > 1:
                raise KeyError("k")
            if x > 0:
                raise ValueError(3)
            y = 1.0
        finally:
            if x > 2:
                return 9.0
    except KeyError:
        return 7.0
    except ValueError as e:
        return 6.0 + e.args[0]
    return y


def what_a_handler_raised_is_dropped(x):
    try:
        try:
            if x > 0:
                raise ValueError(3)
        except ValueError:
            raise KeyError
        finally:
            if x > 1:
                return 4.0
    except KeyError:
        return 7.0
    return 8.0


def within_one_another(x):
    for i in range(3):
        try:
            try:
                if x > 1:
                    return 1.0
            finally:
                if x > 2:
                    continue
        finally:
            if x > 3:
                break
    return -1.0


def in_a_function_of_the_body(x):
    def f():
        try:
            return 1.0
        finally:
            if x > 1:
                return 2.0

    n = 0.0
    for i in range(6):
        try:
            if i % 2:
                continue
            n += f()
        finally:
            if i > x:
                break
            n += 0.5
    else:
        n += 100
    return n


PROGRAMS = [
    break_drops_an_exception,
    return_on_some_paths,
    continue_on_some_paths,
    return_always,
    return_takes_the_place_of_a_return,
    break_takes_the_place_of_a_return,
    continue_takes_the_place_of_a_break,
    what_was_raised_goes_on,
    what_a_handler_raised_is_dropped,
    within_one_another,
    in_a_function_of_the_body,
]


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_jump_out_of_a_finally_drops_what_was_under_way(program):
    agree(program, *XS)


def test_what_python_knows_of_is_raised_again_after_such_a_finally():
    def f(x, k):
        try:
            y = [x][k]
        finally:
            if x > 1:
                return 0.0
        return y

    assert jax.jit(autograph(f), static_argnums=1)(0.5, 0) == 0.5
    with listen() as notes:
        assert jax.jit(autograph(f), static_argnums=1)(2.0, 7) == 0.0
    assert "`raise IndexError` does not happen" in notes[0].what
