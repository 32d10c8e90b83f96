"""try, except, finally and with under traced tests: what Python does, on each path."""

import contextlib
import math

import jax
import numpy as np
import pytest
from jax import numpy as jnp
from scipy.optimize import _optimize

from malleable import (
    TransformError,
    autograph,
    inline_cond,
    inline_scan,
    inline_stack,
    inline_while,
    listen,
)
from tests.frontend.behaviour.behaviour import BOTH, XS, assert_same, error_of


class FirstError(Exception):
    pass


class SecondError(Exception):
    pass


def guarded(x, log):
    """Changes the log before and after it may raise."""
    log[0] = log[0] + 1
    if x > 1:
        raise FirstError("too large")
    log[0] = log[0] + 10
    return x * 2


@BOTH
def test_a_raise_goes_to_its_handler_and_skips_the_rest_of_the_body(x):
    def f(x):
        y = 1.0
        try:
            if x > 0:
                y = 2.0
                raise KeyError
            y = y + 5
        except KeyError:
            y = y * 10
        return y

    assert_same(f, x)


@BOTH
def test_a_raise_without_a_handler_is_nan(x):
    def f(x):
        try:
            if x > 0:
                raise ValueError
        except KeyError:
            return 1.0
        return x

    out = jax.jit(autograph(f))(x)
    assert np.isnan(out) if x > 0 else out == x


@BOTH
def test_what_a_callee_does_after_its_raise_is_undone_and_what_it_did_before_is_not(x):
    def f(x):
        log, y = [0.0], 0.0
        try:
            y = guarded(x, log)
            y = y + 1
        except FirstError as e:
            y = -log[0] + len(str(e))
        else:
            y = y + 100
        finally:
            log[0] = log[0] + 1000
        return y, log[0]

    assert_same(f, x)


@pytest.mark.parametrize("x", [1.0, 6.0, -1.0, -6.0])
def test_nested_tries_hand_on_what_is_not_theirs(x):
    def f(x):
        s = 0.0
        try:
            try:
                if x > 0:
                    raise FirstError
                s += 1
                if x < -5:
                    raise SecondError
                s += 10
            except FirstError:
                s += 100
                if x > 5:
                    raise SecondError  # noqa: B904
                s += 1000
            else:
                s += 1e4
            finally:
                s += 1e5
            s += 1e6
        except SecondError:
            s += 1e7
        return s

    assert_same(f, x)


@pytest.mark.parametrize("x", [1.0, 5.0, -1.0])
def test_a_bare_raise_raises_again(x):
    def f(x):
        try:
            try:
                if x > 0:
                    raise ValueError
            except ValueError:
                if x > 3:
                    raise
                x = 11.0
        except ValueError:
            x = 22.0
        return x

    assert_same(f, x)


@BOTH
def test_two_branches_may_raise_for_two_handlers(x):
    def f(x):
        try:
            if x > 0:
                raise ValueError
            else:
                raise KeyError
        except ValueError:
            return 1.0
        except KeyError:
            return 2.0

    assert_same(f, x)


@BOTH
def test_an_exception_carries_traced_arguments(x):
    def f(x):
        try:
            if x > 0:
                raise ValueError(x * 2, "text")
        except ValueError as e:
            x = e.args[0] + 1
        return x

    assert_same(f, x)


@BOTH
def test_an_exception_carries_traced_attributes(x):
    class ValuedError(Exception):
        def __init__(self, value):
            super().__init__("text")
            self.value = value

    def f(x):
        try:
            if x > 0:
                raise ValuedError(x * 3)
        except ValuedError as e:
            x = e.value
        return x

    assert_same(f, x)


@BOTH
def test_a_sure_exception_after_a_raise_is_for_the_other_path(x):
    def fails(x):
        if x > 0:
            raise FirstError
        raise KeyError

    def inner(x):
        try:
            fails(x)
        except FirstError:
            x = x * 2
        return x + 1

    def f(x):
        try:
            y = inner(x)
        except KeyError:
            return 2.0
        return y

    assert_same(f, x)


@pytest.mark.parametrize("x", [-1.0, 0.5, 3.0])
def test_a_finally_runs_on_the_path_of_the_exception(x):
    def f(x):
        y = x
        try:
            try:
                if x > 0:
                    raise FirstError
                y = y * 3
            finally:
                y = y + 1
                if x > 2:
                    y = y + 10
            y = y * 5
        except FirstError:
            y = y * 100
        return y

    assert_same(f, x)


@BOTH
def test_a_callee_raises_in_its_loop(x):
    def solve(a):
        k = 0
        while a < 50.0:
            a = a * a + 1
            k = k + 1
            if k > 2:
                raise RuntimeError(k)
        return a

    def f(x, xs):
        s = 0.0
        for t in xs:
            try:
                r = solve(t + x)
            except RuntimeError as e:
                r = -1.0 * e.args[0]
            s = s + r
        return s

    assert_same(f, x, XS)


@BOTH
def test_an_exception_of_python_itself_in_one_branch_goes_to_its_handler(x):
    def f(x):
        try:
            if x > 0:
                x = {}["missing"]
            x = x + 1
        except KeyError:
            x = -7.0
        return x

    assert_same(f, x)


@pytest.mark.parametrize("x", [1.0, 50.0, 1000.0])
def test_a_raise_stops_a_while_loop(x):
    def f(x):
        n = 0
        try:
            while x < 100:
                if n > 4:
                    raise RuntimeError
                x = x * 2
                n = n + 1
            n = n + 50
        except (KeyError, RuntimeError):
            return x, -n
        return x, n

    assert_same(f, x)


@pytest.mark.parametrize("x", [1.0, -1.0, -9.0])
def test_jumps_leave_a_try_in_a_loop(x):
    def f(x, n):
        s = 0.0
        for _ in range(n):
            try:
                if x > 4:
                    raise ValueError
                s = s + x
                if x > 3:
                    continue
                if x < -8:
                    break
            except ValueError:
                x = x - 7.5
                continue
            x = x + 1
        return s, x

    assert_same(f, x, 10)


def test_a_handler_works_under_vmap_and_grad():
    def f(x):
        log = [0.0]
        try:
            x = guarded(x, log) * x
        except FirstError:
            x = x * 7.0
        return x

    xs = jnp.array([0.5, 3.0, -2.0])
    np.testing.assert_allclose(jax.vmap(autograph(f))(xs), [0.5, 21.0, 8.0])
    np.testing.assert_allclose(jax.vmap(jax.grad(autograph(f)))(xs), [2.0, 7.0, -8.0])


@BOTH
def test_a_handler_works_in_a_scan(x):
    def f(x, xs):
        s = 0.0
        for t in xs:
            try:
                s = s + guarded(t * x, [0.0])
            except FirstError:
                s = s - 1
        return s

    assert_same(f, x, XS)


def test_a_handled_raise_is_no_check_and_leaves_no_note():
    def f(x):
        try:
            if x > 0:
                raise ValueError
        except ValueError:
            x = 1.0
        return x

    assert error_of(f, 1.0) is None
    with listen() as notes:
        jax.jit(autograph(f))(1.0)
    assert not notes


@BOTH
def test_a_list_has_the_length_it_had_at_the_raise(x):
    def f(x):
        log = [1.0]

        def add(x):
            if x > 0:
                raise FirstError
            log.append(x)

        try:
            add(x)
        except FirstError:
            log.append(5.0)
            log.pop()
        return len(log), log[-1]

    assert_same(f, x)


def test_a_handler_for_no_exception_is_an_error():
    def f(x):
        try:
            raise ValueError
        except 3:  # noqa: B030
            return x

    with pytest.raises(TypeError, match="do not inherit from BaseException"):
        jax.jit(autograph(f))(1.0)


def test_nelder_mead_counts_calls_by_an_exception():
    def f(x0):
        def fun(x):
            return (x[0] - 1) ** 2 + 10 * (x[1] - x[0] ** 2) ** 2

        return _optimize._minimize_neldermead(fun, x0, maxfev=20, maxiter=1000).nfev

    with jax.check_tracer_leaks(False):
        assert_same(f, np.array([-1.0, 2.0], np.float32))


# ---------------------------------------------------------------- with


class Held:
    """A context that counts, and changes what it is given at its end."""

    left = 0

    def __init__(self, thing):
        self.thing = thing

    def __enter__(self):
        return self.thing

    def __exit__(self, *error):
        if self.thing["x"] > 1:
            self.thing["x"] = self.thing["x"] - 10
        self.left += 1
        return False


@BOTH
def test_the_methods_of_a_context_are_converted(x):
    def f(x):
        with Held({"x": x}) as thing:
            thing["x"] = thing["x"] * 3
        return thing["x"]

    assert_same(f, x)


@BOTH
def test_a_context_is_left_on_the_path_of_an_exception_too(x):
    def f(x):
        held = Held({"x": x})
        try:
            with held as thing:
                thing["x"] = thing["x"] + 3
                if x > 0:
                    raise ValueError
                thing["x"] = 100.0
        except ValueError:
            x = x - 20
        return x, held.left, held.thing["x"]

    assert_same(f, x)


# ---------------------------------------------------------------- explicit style


def explicit(x, xs):
    ys = []
    if inline_cond(x > 0):
        y = x
    else:
        y = -x
    for t in inline_scan(xs):
        y = y + t
        ys.append(jnp.sin(y))
    while inline_while(y > 1):
        y = y / 2
    return y, inline_stack(ys)


@BOTH
def test_explicit_style_stages_what_is_marked(x):
    want = explicit(x, XS)
    for got in (
        jax.jit(autograph(explicit, mode="explicit"))(x, XS),
        jax.tree.map(lambda a: a[0], jax.vmap(autograph(explicit, mode="explicit"))(*_one(x))),
    ):
        np.testing.assert_allclose(got[0], want[0], rtol=1e-5)
        np.testing.assert_allclose(got[1], want[1], rtol=1e-5, atol=1e-6)


def _one(x):
    return jnp.array([x]), jnp.asarray(XS)[None]


def test_explicit_style_leaves_the_rest_to_python():
    @autograph(mode="explicit")
    def f(x):
        return 1.0 if x > 0 else x

    with pytest.raises(jax.errors.TracerBoolConversionError):
        jax.jit(f)(1.0)


def test_explicit_style_has_gradients():
    @autograph(mode="explicit")
    def f(x, xs):
        for t in inline_scan(xs):
            if inline_cond(x > 3):
                x = x * t
                continue
            x = x * x
        return x

    assert jax.grad(f)(2.0, jnp.array([1.0, 5.0])) == 20.0


@pytest.mark.parametrize("x", [0.5, 2.0])
def test_a_variable_that_only_finally_reads_has_what_the_else_clause_left(x):
    def f(x, y):
        total = np.zeros(2)
        try:
            math.acos(x)
        except ValueError:
            pass
        else:
            y += 1.0
        finally:
            total[0] += y
        return total

    assert_same(f, x, 1.0)


@pytest.mark.parametrize("at", [(0, 1), (1, 0), (5, 0), (1, 5)])
def test_what_the_test_of_a_loop_may_raise_is_raised_once_for_each_operand(at):
    def f(x, n, xs, a, i, j):
        k, y = 0, 0.0
        try:
            while k < (n if xs[i] < x <= a[j] else 3):
                k += 1
                y = y + xs[k % 2]
        except Exception:
            y = -1.0
        return k, y, xs

    assert_same(f, 2.0, 2, [1.0, 2.5], np.array([3.0, 1.0]), *at)


@pytest.mark.in_turns
@pytest.mark.parametrize("n", [0, 1, 7])
@pytest.mark.parametrize("x", [1.5, -0.5])
def test_an_else_clause_that_no_path_comes_to(x, n):
    def f(x, n):
        found, items, total = {"p": x}, [x, 0.5, 0.0], 0
        for _ in range(n):
            try:
                items[n] = 0.0
                last = found["nowhere"]
                k = 0
            except LookupError:
                total += 1
            else:
                total += k % 3 + last
            try:
                items[n] = x
                if x > 0:
                    raise KeyError
                raise FirstError
                j = 1
            except LookupError:
                total += 10
            except FirstError:
                total += 100
            else:
                total += j % 3
            finally:
                total += 1000
        return total, items

    assert_same(f, x, n)


def quiet(*kinds):
    return contextlib.suppress(*kinds)


@pytest.mark.parametrize("x", [0.0, 1.0, 2.0, -1.0])
def test_what_a_function_gives_may_suppress(x):
    def divided(x):
        r = -2.0
        with quiet(ZeroDivisionError):
            r = 1 / x
        return r

    def repeated(x):
        r, context = -2.0, quiet(ValueError)
        for i in range(3):
            with context:
                r = r + 1
                if x > i:
                    raise ValueError
                r = r * 2
        return r

    def others(x):
        try:
            with quiet(ValueError):
                if x > 0:
                    raise KeyError
                return 1.0
        except KeyError:
            return 7.0

    for f in (divided, repeated, others):
        assert_same(f, x)


def test_a_raise_that_a_traced_value_decides_is_refused_for_groups():
    def f(x):
        r = 0.0
        try:
            if x > 0:
                raise ValueError
            r = 1.0
        except* ValueError:
            r = 5.0
        return r

    def known(x):
        r = 0.0
        try:
            r = x * 2
        except* ValueError:
            r = 5.0
        else:
            r = r + 1
        return r

    with pytest.raises(
        TransformError, match=r"(?s)ValueError is raised for an `except\*`.*test_exceptions.py:"
    ):
        jax.jit(autograph(f))(1.0)
    assert jax.jit(autograph(known))(1.0) == 3


def always(n, v):
    for _ in range(n):
        v[0] += 1
        raise SecondError


def always_while(n, v):
    k = n
    while k > 0:
        k -= 1
        v[1] = k
        raise SecondError
    else:
        v[2] = 7.0


def always_passed_on(n, v):
    try:
        for x in v[:2]:
            for _ in range(n):
                v[1] += x
                raise SecondError
    except FirstError:
        v[0] = 9.0
    finally:
        v[2] = 5.0


def always_caught(n, v):
    try:
        for _ in range(n):
            v[1] += 1
            raise SecondError
    except SecondError:
        v[0] = 9.0


@pytest.mark.parametrize("fun", [always, always_while, always_passed_on, always_caught])
def test_a_step_that_always_raises_does_so_where_there_is_a_step(fun):
    def run(n, v):
        fun(n, v)
        return v

    for n in (0, 2):
        with listen() as notes:
            got = jax.jit(autograph(run))(n, np.arange(3.0))
        try:
            assert np.array_equal(got, run(n, np.arange(3.0)))
        except SecondError:
            assert np.isnan(got).all()
        noted = any("`raise SecondError` does not happen" in note.what for note in notes)
        assert noted is (fun is not always_caught)
