"""Which handler an exception goes to, of whatever class it is, and what the handler knows of it."""

import itertools
import math
import sys

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from malleable import autograph, listen
from malleable.frontend.values.unwinding import is_same
from malleable.frontend.values.values import Choice
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


# ---------------------------------------------------------------- what a `finally` raises


def raised_in_both(x, k):
    r = 0
    try:
        try:
            if x > 2:
                raise ValueError(1)
        finally:
            if k > 2:
                raise KeyError
    except KeyError:
        r = 1
    except ValueError:
        r = 7
    return r


def always_raised(x, k):
    r = 0
    try:
        try:
            if x > 2:
                raise ValueError(1)
            r = 5
        finally:
            if k > 2:
                raise KeyError
            r += 30
            raise IndexError
    except LookupError as e:
        r += 1 + isinstance(e, KeyError)
    except ValueError:
        r = 7
    return r


def a_try_in_a_finally(x, k):
    r = 0
    try:
        try:
            if x > 2:
                raise ValueError(1)
            r = 5
        finally:
            try:
                if k > 0:
                    raise KeyError
                r += 20
            except KeyError:
                r += 100
            r += 1
    except ValueError:
        r += 7
    return r


def in_each_step(x, k):
    r = 0
    for i in range(3):
        try:
            try:
                if x + i > 2:
                    raise ValueError(1)
                r += 5
            finally:
                if k == i:
                    raise KeyError
        except KeyError:
            r += 100
        except ValueError:
            r += 1000
    return r


def a_return_ends_it(x, k):
    def g():
        try:
            if x > 2:
                raise ValueError
            return 1
        finally:
            return 2  # noqa: B012, SIM107

    try:
        return g() + k
    except ValueError:
        return 10


def an_operation_of_a_finally(x, k):
    r = 0.0
    try:
        try:
            if x > 2:
                raise ValueError(1)
        finally:
            r = 1 / k
    except ZeroDivisionError:
        r = 1.0
    except ValueError:
        r = r + 7
    return r


def raised_before_a_finally(x, k):
    def g():
        if x > 2:
            raise ValueError
        try:
            return 1
        finally:
            raise KeyError

    try:
        return g() + k
    except KeyError:
        return 20
    except ValueError:
        return 10


class Leaves:
    def __init__(self, k):
        self.k = k

    def __enter__(self):
        return self

    def __exit__(self, *error):
        if self.k > 2:
            raise KeyError
        return False


def raised_by_a_context(x, k):
    r = 0
    try:
        with Leaves(k):
            if x > 2:
                raise ValueError
            r = 1
    except KeyError:
        r += 100
    except ValueError:
        r += 7
    return r


FINALLY = [raised_in_both, always_raised, a_try_in_a_finally, in_each_step, a_return_ends_it]
FINALLY += [an_operation_of_a_finally, raised_before_a_finally, raised_by_a_context]


@pytest.mark.filterwarnings("ignore:.*return.*in a 'finally'.*:SyntaxWarning")
@pytest.mark.parametrize("f", FINALLY, ids=lambda f: f.__name__)
def test_what_a_finally_raises_takes_the_place_of_what_is_under_way(f):
    agree(f, (1.0, 2), (-2.0, 1), (3.0, 3), (3.0, 0), (-3.0, 0), (-3.0, 3))


# ---------------------------------------------------------------- FloatingPointError of NumPy


def within(x):
    with np.errstate(divide="raise"):
        try:
            return np.float64(1) / np.float64(x)
        except FloatingPointError:
            return -4.0


def around(x):
    try:
        with np.errstate(over="raise", invalid="raise"):
            return np.exp(x)
    except ArithmeticError:
        return -4.0


def set_before(x):
    old = np.seterr(invalid="raise")
    try:
        return np.sqrt(x)
    except FloatingPointError:
        return -4.0
    finally:
        np.seterr(**old)


def in_place(x):
    y = np.array([1.0, x, 3.0])
    with np.errstate(all="raise", under="ignore"):
        try:
            y /= np.array([1.0, x, 1.0])
            y *= y.sum()
        except FloatingPointError:
            y[0] = -1
    return y[0], y[1], y[2]


def of_many_kinds(x):
    at = 0
    with np.errstate(divide="raise", over="raise", invalid="raise"):
        for f in (np.log, np.sqrt, lambda v: v * np.float64(1e300), lambda v: (v * v).sum()):
            try:
                at = at * 10 + np.isfinite(f(np.array([x, 2.0]))).all()
            except FloatingPointError:
                at = at * 10 + 5
    return at


def of_integers(x):
    with np.errstate(divide="raise"):
        try:
            y = np.array([7, 8]) // np.array([x, 2])
        except FloatingPointError:
            y = np.array([-1, -1])
    return y


def nan_comes_in(x):
    with np.errstate(all="raise", under="ignore"):
        try:
            return (np.array([np.nan, np.inf]) * np.float64(x)).sum()
        except FloatingPointError:
            return -4.0


@pytest.mark.parametrize(
    ("f", "inputs"),
    [
        (within, (2.0, 0.0, -1.0)),
        (around, (1.0, 1e5, -1e5)),
        (set_before, (4.0, -4.0, 0.0)),
        (in_place, (2.0, 0.0)),
        (of_many_kinds, (1.0, 0.0, -1.0, 1e200)),
        (of_integers, (0, 3)),
        (nan_comes_in, (1.0, 0.0)),
    ],
    ids=lambda f: getattr(f, "__name__", ""),
)
def test_a_handler_of_what_numpy_raises_at_floats_runs(f, inputs):
    with jax.enable_x64(True):
        agree(f, *((np.asarray(x)[()],) for x in inputs))
    assert np.geterr()["invalid"] == "warn"


def test_a_number_of_a_batch_is_one_of_numpys_to_a_handler_of_what_it_raises():
    def f(x):
        with np.errstate(divide="raise"):
            try:
                return 1 / x
            except FloatingPointError:
                return -4.0

    with listen() as notes:
        out = jax.vmap(autograph(f))(jnp.array([2.0, 0.0]))
    np.testing.assert_array_equal(out, [0.5, -4])
    assert any("takes a number of a batch for one of NumPy's" in n.what for n in notes)


def test_the_derivative_knows_nothing_of_the_path_that_raises():
    assert jax.grad(autograph(within))(0.0) == 0 and jax.grad(autograph(within))(2.0) == -0.25


def test_numpy_without_a_handler_of_what_it_raises_is_noted():
    def f(x):
        with np.errstate(all="raise"):
            return np.log(x)

    with listen() as notes:
        assert np.isinf(jax.jit(autograph(f))(0.0))
    assert any("which no compiled program does" in n.what for n in notes)
    with listen() as notes:
        jax.jit(autograph(lambda x: np.log(x) if np.errstate(all="ignore") else x))(1.0)
    assert not notes


# ---------------------------------------------------------------- many tests, one handler


def raising(body):
    def f(x, y, z):
        v, log = np.array([x, y, z]), np.zeros(4)
        with np.errstate(divide="raise", over="raise", invalid="raise"):
            return body(v, log), log

    return f


def quotients(v, log):
    a = b = which = 0.0
    try:
        log[0] = 1
        a = v[0] / v[1]
        log[1] = a
        b = np.log(a)
        which = 1.0
    except ArithmeticError:
        which = -1.0
    return which + 10 * a + 100 * b


def by_kind(v, log):
    which = 0.0
    try:
        xs = [np.sqrt(v[0])]
        n = 1 / len(xs)
        log[0] = 1 / float(v[1])
        xs.append(v[2] / v[1])
        which = xs[1] + n
    except FloatingPointError:
        which = -1.0
    except ZeroDivisionError:
        which = -2.0
    return which


def with_a_helper(v, log):
    def helper(x):
        y = 1 / x
        for k in range(3):
            y = y * v[0]
            log[k] = y
        return np.sqrt(y)

    try:
        a = helper(v[1])
        log[3] = a
    except ArithmeticError:
        return -1.0
    return a


def in_turn_of_a_loop(v, log):
    total = 0.0
    try:
        total = np.sqrt(v[0])
        while total < 10:
            total = total + np.sqrt(v[1]) + 1
            log[0] += 1
        for x in v:
            log[1] = 1 / x
        total = total / v[2]
    except ArithmeticError:
        total = -total
    return total


def inner_and_outer(v, log):
    a = 0.0
    try:
        try:
            a = np.sqrt(v[0])
            a = a + 1 / v[1]
        except ZeroDivisionError:
            a = 5.0
        finally:
            log[0] = a
        a = a + np.log(v[2])
        log[1] = a
    except FloatingPointError:
        a = -a
    return a


@pytest.mark.parametrize(
    "body", [quotients, by_kind, with_a_helper, in_turn_of_a_loop, inner_and_outer]
)
def test_where_each_operation_of_numpy_is_tested_the_first_that_raises_counts(body):
    f = raising(body)
    compiled = jax.jit(autograph(f))
    for args in itertools.product((-1.0, 0.0, 4.0), repeat=3):
        for got, want in zip(compiled(*args), f(*args), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.parametrize("body", [quotients, with_a_helper, in_turn_of_a_loop])
def test_the_first_that_raises_counts_for_each_of_a_batch(body):
    f, rows = raising(body), [*itertools.product((-1.0, 0.0, 4.0), repeat=3)]
    got = jax.jit(jax.vmap(autograph(f)))(*map(jnp.array, zip(*rows, strict=True)))
    for k, args in enumerate(rows):
        for one, want in zip(got, f(*args), strict=True):
            np.testing.assert_allclose(one[k], want, rtol=1e-5)


def test_tests_of_one_try_make_one_branch():
    def f(v):
        try:
            a = v[0] / v[1]
            b = np.sqrt(v[0]) * a
            c = np.log(a) / b
            d = c**2 - np.sqrt(c)
            e = np.sqrt(d) / c
        except ArithmeticError:
            return -1.0
        return e

    with np.errstate(divide="raise", over="raise", invalid="raise"):
        program = jax.make_jaxpr(autograph(f))(np.array([4.0, 1.0]))
    assert str(program).count("cond[") <= 1


def plus_root(x):
    try:
        y = 1 / x + np.sqrt(x)
    except ZeroDivisionError:
        y = -x
    return y


def through_a_call(x):
    def g(x):
        a = 1 / x
        return a * np.sqrt(x) * math.sqrt(x)

    try:
        return g(x)
    except ZeroDivisionError:
        return -x


def of_numpy(x):
    v = np.array([x, 1.0])
    with np.errstate(all="raise"):
        try:
            a = v[1] / v[0]
            b = a * np.sqrt(v[0])
        except ArithmeticError:
            return -v[0]
    return b


@pytest.mark.parametrize("f", [plus_root, through_a_call, of_numpy])
def test_what_follows_a_raise_has_no_part_in_the_derivative(f):
    for derivative in (jax.grad, jax.jacfwd):
        assert jax.jit(derivative(autograph(f)))(0.0) == -1


def test_an_exception_that_nobody_looks_at_is_one_with_others():
    def f(x):
        r = 0.0
        try:
            r = 1 / x
            r = r + 1 / (x - 1)
            r = r + math.log(x)
        except (ZeroDivisionError, ValueError):
            r = -r
        return r

    agree(f, *((x,) for x in (-1.0, 0.0, 1.0, 2.0)))


def test_the_context_of_a_raise_in_a_handler_may_be_one_of_several():
    def f(x):
        y = 0.0
        try:
            try:
                if x > 2:
                    raise IndexError("a")
                if x > 1:
                    raise KeyError("b", 1)
                y = x
            except LookupError:
                if x > 1.5:
                    raise ValueError("v")  # noqa: B904
                y = 7.0
        except Exception as error:
            y = len(error.args) + 0.5
            if isinstance(error.__context__, KeyError):
                y += 10
        return y

    agree(f, (0.5,), (1.2,), (1.7,), (3.0,))


def test_one_of_several_dicts_has_no_keys_of_its_own():
    several = [Choice(np.bool_(k), [{"a": 1.0}, {"b": 2.0}], "") for k in range(2)]
    assert not is_same(*several)
    assert is_same({"a": several[0]}, {"a": several[0]})
