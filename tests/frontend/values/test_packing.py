"""What a handler knows of an exception that was raised under a traced test."""

# pyright: reportOptionalMemberAccess=false, reportOptionalOperand=false
# pyright: reportArgumentType=false, reportOperatorIssue=false

import jax
import pytest

from malleable import TransformError, autograph
from tests.frontend.values.test_raises import agree


def cause(x, k):
    n = 0.0
    try:
        try:
            if x > 0:
                raise ValueError(x)
        except ValueError as e:
            if k > 2:
                raise KeyError(k) from e
            raise IndexError(k) from None
    except KeyError as e:
        n = 10 + isinstance(e.__cause__, ValueError) + e.__cause__.args[0] + e.__suppress_context__
    except IndexError as e:
        n = 20 + e.__context__.args[0] * 100 + e.__suppress_context__ + (e.__cause__ is None)
    return n


def another_cause(x, k):
    try:
        try:
            if x > 2:
                raise ValueError(x)
        except ValueError as e:
            raise e from KeyError(k)
    except ValueError as e:
        return e.__cause__.args[0] + e.args[0]
    return 0.0


def perhaps_a_context(x, k):
    def fail():
        raise IndexError(1)

    def g():
        try:
            if x > 2:
                raise ValueError(x)
            if k > 1:
                fail()
        except ValueError:
            fail()

    try:
        g()
    except IndexError as e:
        return 10 + (e.__context__ is not None)
    return 0


def in_a_loop(x, k):
    n = 0.0
    try:
        for i in range(k):
            try:
                if x + i > 2:
                    raise ValueError(x + i)
                n += 1
            except ValueError as e:
                raise KeyError(i) from e
    except KeyError as e:
        n += 10 * e.__cause__.args[0]
    return n


def first_cause(x, k):
    def first(e):
        return e if e.__cause__ is None else first(e.__cause__)

    try:
        try:
            try:
                if x > 2:
                    raise ValueError(x)
            except ValueError as e:
                raise KeyError(2) from e
        except KeyError as e:
            raise IndexError(3) from e
    except IndexError as e:
        return first(e).args[0] + k
    return 0.0


def of_an_operation(x, k):
    try:
        try:
            if x > 2:
                raise ValueError(x)
        except ValueError:
            return 1 / (k - 3)
    except ZeroDivisionError as e:
        return e.__context__.args[0]
    return 0.0


def a_group(x, k):
    try:
        if x > 2:
            raise ExceptionGroup("g", [ValueError(x), KeyError(k)])
    except ExceptionGroup as g:
        return len(g.exceptions) + g.exceptions[0].args[0] + g.exceptions[1].args[0]
    return 0.0


def a_name(x, k):
    try:
        if x > 2:
            raise AttributeError("m", name="zz", obj=k)
    except AttributeError as e:
        return len(e.name) + e.obj
    return 0


def a_code(x, k):
    try:
        if x > 2:
            raise SystemExit(k)
    except SystemExit as e:
        return e.code
    return 5


def a_number_of_the_system(x, k):
    try:
        if x > 2:
            raise OSError(k, "no")
    except OSError as e:
        return e.errno + len(e.strerror)
    return 0


def a_value(x, k):
    try:
        if x > 2:
            raise StopIteration(k)
        r = 0
    except StopIteration as e:
        r = e.value
    return r


class Slotted(Exception):
    __slots__ = ("v",)

    def __init__(self, v):
        self.v = v


def a_slot(x, k):
    try:
        if x > 2:
            raise Slotted(k)
        r = 0
    except Slotted as e:
        r = e.v
    return r


ALL = [cause, another_cause, perhaps_a_context, in_a_loop, first_cause, of_an_operation, a_group]
ALL += [a_name, a_code, a_number_of_the_system, a_value, a_slot]


@pytest.mark.parametrize("f", ALL, ids=lambda f: f.__name__)
def test_an_exception_holds_what_it_was_raised_with(f):
    agree(f, (1.0, 2), (-2.0, 1), (3.0, 3), (3.0, 0), (-3.0, 4), (2.5, 4))


def test_the_context_of_what_a_finally_raises_is_refused():
    def f(x):
        try:
            try:
                if x > 2:
                    raise ValueError
            finally:
                if x > 1:
                    raise KeyError
        except KeyError as e:
            return 1 + isinstance(e.__context__, ValueError)
        except ValueError:
            return 5
        return 0

    with pytest.raises(TransformError, match="`__context__` of a KeyError") as e:
        jax.jit(autograph(f))(1.0)
    assert "test_packing.py" in str(e.value)
