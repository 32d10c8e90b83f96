"""What Python raises at traced values goes to the handlers that are written in the source."""

import contextlib
import math
import operator
import statistics
from typing import Any

import jax
import numpy as np
import pytest
from jax import numpy as jnp
from numpy.exceptions import AxisError

from malleable import TransformError, autograph, listen
from malleable.arrays.box import Box, run_function
from tests.frontend.behaviour.behaviour import error_of


def agree(f, *examples):
    """Whether the compiled function, and that over a batch of numbers, return what Python does."""
    compiled = jax.jit(autograph(f))
    wanted = [f(*args) for args in examples]
    for args, want in zip(examples, wanted, strict=True):
        got = compiled(*args)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), got, want)
    if all(isinstance(x, float | int) for args in examples for x in args):
        columns = [jnp.asarray(column) for column in zip(*examples, strict=True)]
        got = jax.jit(jax.vmap(autograph(f)))(*columns)
        np.testing.assert_allclose(np.transpose(jax.tree.leaves(got)).squeeze(), wanted, rtol=1e-5)


def slopes_are_finite(f, *examples):
    columns = [jnp.asarray(column) for column in zip(*examples, strict=True)]
    total = lambda *xs: jax.vmap(autograph(f))(*xs).sum()
    assert np.isfinite(jax.jit(jax.grad(total))(*columns)).all()


def inverse(x):
    try:
        return 1 / x
    except ZeroDivisionError:
        return 0.0


def root_of_callee(x):
    def inner(x):
        return math.sqrt(10 / x)

    try:
        r = inner(x) + 1
    except ZeroDivisionError:
        r = -1.0
    except ValueError:
        r = -2.0
    else:
        r = r * 2
    finally:
        r = 3 * r
    return r


def arc(x):
    try:
        return math.acos(x) * 2
    except Exception:
        return -x


def growth(x):
    try:
        return math.exp(x)
    except OverflowError as e:
        return -1.0 * len(e.args)


def power(x):
    try:
        return x**-2.0
    except ArithmeticError:
        return 5.0


def checked(x):
    try:
        assert x < 1, "too large"
    except AssertionError as e:
        return 4.0 if e.args else 5.0
    return x


def nested(x):
    try:
        try:
            r = math.log(1 / x)
        except ValueError as e:
            raise KeyError("k") from e
        except ZeroDivisionError:
            raise
    except LookupError:
        r = 3.0
    except ArithmeticError:
        r = 4.0
    return r


def of_none(x):
    y: Any = None if x < 0 else x
    try:
        return y + 1
    except TypeError:
        return -5.0


FLOATS = {
    inverse: (0.0, 2.0),
    root_of_callee: (0.0, 4.0, -1.0),
    arc: (2.0, 0.5),
    growth: (1000.0, 2.0),
    power: (0.0, 2.0),
    checked: (2.0, 0.5),
    nested: (0.0, 2.0, -1.0),
    of_none: (-1.0, 2.0),
}


@pytest.mark.parametrize("f", FLOATS, ids=lambda f: f.__name__)
def test_a_handler_runs_where_python_raises_with_numbers(f):
    examples = [(x,) for x in FLOATS[f]]
    agree(f, *examples)
    slopes_are_finite(f, *examples)


def item(i):
    v = [1.0, 2.0, 3.0]
    try:
        return v[i]
    except IndexError:
        return -1.0


def key(k):
    try:
        return {1: 2.0, 3: 4.0}[k]
    except KeyError:
        return -1.0


def remainder(n):
    try:
        q, r = divmod(7, n)
        return q * 10 + r + 7 % n
    except ZeroDivisionError:
        return -1


def place(k):
    xs = [4, 5, 6]
    try:
        xs.remove(k)
        return xs[0] * 10 + [7, 8].index(k + 2)
    except ValueError:
        return -1


def removed(k):
    xs = [4, 5, 6]
    try:
        xs.remove(k)
    except ValueError:
        xs.append(k)
    return sum(xs), len(xs)


INTEGERS = {item: (3, -4, 1, -1), key: (5, 1), remainder: (0, 3), place: (5, 6, 9, 4)}
INTEGERS |= {removed: (5, 9, 4)}


@pytest.mark.parametrize("f", INTEGERS, ids=lambda f: f.__name__)
def test_a_handler_runs_where_python_raises_with_integers(f):
    agree(f, *[(n,) for n in INTEGERS[f]])


def test_a_whole_number_of_nan_is_an_error_to_its_handler():
    def f(x):
        try:
            return int(x)
        except ValueError:
            return -1
        except OverflowError:
            return -2

    agree(f, (math.nan,), (2.5,), (math.inf,))


def test_a_loop_goes_on_after_a_try_in_it_and_stops_in_a_try_around_it():
    def f(v, k):
        s, bad = 0.0, 0
        for x in v:
            try:
                s += 1 / float(x)
            except ZeroDivisionError:
                bad += 1
        try:
            while True:
                s += [1.0, 2.0, 3.0][k]
                k += 1
        except IndexError:
            s = s - 100
        return s, bad

    agree(f, (np.array([1.0, 0.0, 2.0, 0.0]), 1))


def test_an_index_out_of_an_array_is_an_error_to_its_handler():
    def f(v, i):
        try:
            v[i] = 9.0
            v = v + v[i - 2]
        except IndexError:
            v = v - 1
        return v

    for i in (5, 1, 0):
        got = jax.jit(autograph(f))(np.array([3.0, 1.0]), i)
        np.testing.assert_array_equal(got, f(np.array([3.0, 1.0]), i))


def test_a_singular_matrix_is_an_error_to_its_handler():
    def f(a):
        try:
            return np.linalg.inv(np.linalg.cholesky(a))
        except np.linalg.LinAlgError:
            return np.eye(2)

    agree(f, (np.array([[4.0, 1], [1, 3]]),), (np.array([[1.0, 2], [2, 1]]),))


def test_numbers_of_numpy_divide_by_zero_without_an_error():
    out = jax.jit(autograph(inverse))(np.float32(0))
    assert np.isinf(out)
    with listen() as notes:
        jax.vmap(autograph(inverse))(jnp.zeros(2))
    assert any("a number of a batch for a float of Python's" in n.what for n in notes)


def test_without_a_handler_nothing_is_tested():
    prims = [e.primitive.name for e in jax.make_jaxpr(autograph(lambda x: 1 / x))(2.0).eqns]
    assert prims == ["div"]


# ---------------------------------------------------------------- text, None, functions


def by_text(x):
    mode = "lo" if x < 0 else "hi" if x > 0 else "none"
    table = {"lo": 1.0, "hi": 2.0, "none": 3.0}
    table[mode] += 10
    count = table.get(mode + "s", -1.0) + len(mode)
    if mode in ("lo", "hi"):
        count += {"lo": lambda t: t + 1, "hi": math.exp}.get(mode, abs)(x)
    return count + table["lo"] * 100 + (mode < "i")


def by_match(x):
    r = None if x > 0 else (x, 2.0)
    match "left" if x < 0 else "right":
        case "left":
            scale = 1.0
        case _:
            scale = 10.0
    return scale if r is None else scale * (r[0] + r[1])


@pytest.mark.parametrize("f", [by_text, by_match], ids=lambda f: f.__name__)
def test_text_and_none_that_a_test_decides(f):
    agree(f, (-1.0,), (0.0,), (1.0,))


def test_what_suppress_names_is_let_pass():
    def f(x):
        y = 5.0
        with contextlib.suppress(ZeroDivisionError, IndexError):
            y = abs(1 / complex(x, 0.0))
        return y

    agree(f, (0.0,), (2.0,))


def test_names_that_a_path_does_not_bind_are_an_error_to_their_handler():
    def bound_before(x):
        if x > 1:
            y = x
        try:
            z = y
        except NameError:
            z = 5.0 * x
        return z

    def deleted(x):
        y = x
        try:
            if x > 1:
                del y
            y += 1
        except UnboundLocalError:
            y = -1.0
        return y

    def bound_in_steps(x):
        n = 0.0
        for k in range(4):
            try:
                if x + k > 2:
                    w = x + k
                n += w
            except NameError:
                n += 100
        return n

    def a_list(x):
        if x > 1:
            xs = [x]
        try:
            xs.append(2.0)
            return sum(xs)
        except NameError as e:
            return float(e.name == "xs")

    for f in (bound_before, deleted, bound_in_steps, a_list):
        agree(f, (-2.0,), (0.5,), (2.0,))


def test_a_handler_of_unbound_names_runs_where_a_path_has_not_returned():
    def f(v, x):
        v = v.copy()

        def g():
            try:
                if x < 0:
                    return 0
                if 0:
                    y = 1
                w = y
            except UnboundLocalError:
                v[1] += 1
            v[0] = w if x < 0 else 7

        g()
        return v

    agree(f, (np.zeros(3), 1.0), (np.zeros(3), -1.0))


def test_a_branch_that_reads_an_unbound_name_is_one_that_raises():
    def f(v, x):
        v = v.copy()
        if x > 0:
            if 0:
                y = 1
            v[1] = y
        v[0] = 7
        return v

    traced = jax.jit(autograph(f))
    with listen() as notes:
        assert traced(np.zeros(2), -1.0).tolist() == [7, 0]
    assert "`raise UnboundLocalError` does not happen" in notes[0].what
    assert np.isnan(traced(np.zeros(2), 1.0)).all()


def test_a_name_that_nobody_binds_is_an_error_also_in_a_branch():
    def f(x):
        for i in range(2):
            if x > i:
                x += mistyped  # noqa: F821
        return x

    with pytest.raises(NameError, match="mistyped"):
        jax.jit(autograph(f))(-1.0)


def test_a_loop_of_which_every_step_raises_does_so():
    def f(n, x):
        held = {"p": x}
        for _ in range(n):
            x = min([t for t in held.values() if t])
            raise ValueError
        return x

    run = jax.jit(autograph(f))
    with listen() as notes:
        assert np.isnan(run(2, 1.0)) and run(0, 1.0) == 1
    assert any("`raise ValueError` does not happen" in note.what for note in notes)
    with pytest.raises(ValueError):
        jax.jit(autograph(lambda x: f(2, x)))(1.0)


def nothing_or(value):
    def f(x):
        try:
            if x < 0:
                return value(x)
            raise ValueError
        except ValueError:
            pass

    return f


LOWEST = np.iinfo(np.int32).min


@pytest.mark.parametrize(
    "value, nothing", [(lambda x: 4, LOWEST), (abs, np.nan), (lambda x: x < 0, False)]
)
def test_none_or_a_number_as_a_result_is_said_and_is_no_number(value, nothing):
    f = nothing_or(value)
    with listen() as notes:
        found = jax.jit(lambda x: autograph(lambda x: (f(x), x))(x))
        assert found(-1.0)[0] == f(-1.0)
        np.testing.assert_equal(np.asarray(found(1.0)[0]), nothing)
    assert "the result is None on one path" in [note.what for note in notes]


def test_an_int_to_a_negative_power_is_a_float_in_a_try():
    def literal(n):
        try:
            return (abs(n) % 3) ** (-1)
        except (ValueError, ZeroDivisionError):
            return 7.0

    def named(n):
        k = -2
        try:
            y = n**k
            n **= -1
        except (ValueError, ZeroDivisionError):
            y = 7.0
        return y + n

    def counted(n):
        found = [t for t in [n, n - 1, n - 2] if t > 0]
        try:
            return sum(1 for t in found) ** (-1)
        except (ValueError, ZeroDivisionError):
            return 7.0

    for f in (literal, named, counted):
        agree(f, (0,), (1,), (2,), (3,))


def test_what_a_try_did_before_a_name_that_is_not_bound_stays():
    def f(v, x):
        v = v.copy()
        try:
            if x > 1:
                y = x
            v[0] = 1.0
            v[1] = y
            v[2] = 1.0
        except NameError:
            v[1] -= 1
        return v

    agree(f, (np.zeros(3), 0.0), (np.zeros(3), 2.0))


# ---------------------------------------------------------------- what NumPy refuses

REFUSED = {
    "+": lambda v: v + np.ones(3),
    "+=": lambda v: operator.iadd(v.copy(), np.ones(3)),
    "<": lambda v: v < np.ones(3),
    "@": lambda v: v.reshape(2, 4) @ v.reshape(2, 4),
    "add": lambda v: np.add(np.ones(3), v),
    "maximum": lambda v: np.maximum(v, v[:2]),
    "gcd": lambda v: np.gcd(v, 2),
    "dot": lambda v: np.dot(v, np.ones(3)),
    "tensordot": lambda v: np.tensordot(v, v[:3], 1),
    "concatenate": lambda v: np.concatenate([v, np.ones((2, 2))]),
    "vstack": lambda v: np.vstack([v, v[:3]]),
    "cov": lambda v: np.cov(v, v[:3]),
    "average": lambda v: np.average(v, weights=np.ones(3)),
    "repeat": lambda v: np.repeat(v, -1),
    "delete": lambda v: np.delete(v, 9),
    "sum": lambda v: v.sum(axis=1),
    "cumsum": lambda v: np.cumsum(v, 3),
    "roll": lambda v: np.roll(v, 1, axis=2),
    "sort": lambda v: np.sort(v, axis=2),
    "v[v]": lambda v: v[v],
    "inv": lambda v: np.linalg.inv(v.reshape(2, 4)),
    "det": lambda v: np.linalg.det(v),
    "eigvals": lambda v: np.linalg.eigvals(v),
    "matrix_power": lambda v: np.linalg.matrix_power(v.reshape(2, 4), 2),
    "%": lambda v: complex(v[0], 1) % 2,
    "quantile": lambda v: np.quantile(v, 1.5),
    "percentile": lambda v: np.percentile(v, [50, 200]),
    "partition": lambda v: np.partition(v, 20),
    "argpartition": lambda v: np.argpartition(v.reshape(2, 4), (1, 5), axis=0),
    "digitize": lambda v: np.digitize(v, [1, 3, 2]),
    "histogram": lambda v: np.histogram(v, bins=0)[0],
    "histogram of a range": lambda v: np.histogram(v, range=(5, 1))[0],
    "rot90": lambda v: np.rot90(v),
    "sort of a kind": lambda v: np.sort(v, kind="foo"),
    "argsort": lambda v: v.argsort(kind="foo"),
    "tile": lambda v: np.tile(v, -1),
    "geomspace": lambda v: np.geomspace(0, v[1], 3),
}


def kind_of_error(f, v):
    try:
        return 0.0 * f(v)
    except np.linalg.LinAlgError:
        return 1
    except AxisError:
        return 2
    except IndexError:
        return 3
    except TypeError:
        return 4
    except ValueError:
        return 5


@pytest.mark.parametrize("name", REFUSED)
def test_what_numpy_refuses_is_its_own_error_for_a_handler_and_without_one(name):
    f, v = REFUSED[name], np.arange(8.0)
    expected = kind_of_error(f, v)
    assert jax.jit(lambda v: autograph(kind_of_error)(f, v))(v) == expected > 0
    with pytest.raises(Exception) as numpys:
        f(v)
    with pytest.raises(numpys.type) as ours:
        jax.jit(autograph(f))(v)
    assert ours.type is numpys.type


def test_a_spread_of_one_point_is_an_error_of_statistics():
    def f(v):
        try:
            return statistics.stdev(v[:1])
        except statistics.StatisticsError:
            return -1.0

    agree(f, (np.arange(3.0),))
    with pytest.raises(statistics.StatisticsError, match="variance requires at least two"):
        jax.jit(autograph(lambda x: statistics.variance([x])))(1.0)


def test_nan_that_is_written_to_integers_is_an_error_or_noted():
    def f(x):
        a = np.zeros(2, int)
        try:
            a[0] = x
        except ValueError:
            return -1
        return a[0]

    def plain(x):
        a = np.zeros(2, int)
        a[0] = x
        return a

    agree(f, (2.5,), (math.nan,))
    with listen() as notes:
        assert jax.jit(autograph(plain))(2.5)[0] == 2
    assert any("a float that becomes an int" in note.what for note in notes)


def test_what_jax_refuses_of_its_own_arrays_or_alone_stays_its_own_error():
    with pytest.raises(TypeError, match="incompatible shapes"):
        jax.jit(autograph(lambda v: jnp.sin(v) + np.ones(3)))(np.arange(8.0))
    with pytest.raises(TransformError, match="known only at run time"):
        jax.jit(autograph(lambda v: np.repeat(v, v[:1].astype(int))))(np.arange(8.0))


def test_numpy_is_asked_with_arrays_that_take_no_memory_and_is_given_no_function():
    asked = []

    def row(r):
        asked.append(r)
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        run_function(np.apply_along_axis, (row, 0, Box(jnp.ones((2, 2)), False)), {})
    assert len(asked) == 1
    shape = jax.ShapeDtypeStruct((1 << 13, 1 << 13), np.float32)
    with pytest.raises(ValueError, match="broadcast"):
        jax.eval_shape(autograph(lambda v: v + np.ones(3)), shape)


# ---------------------------------------------------------------- checked=True


CHECKED = {
    "IndexError: index is out of bounds": lambda n: np.arange(5.0)[n],
    "IndexError: list index": lambda n: [1.0, 2.0][n],
    "IndexError: index is out of bounds for": lambda n: np.delete(np.arange(5.0), n),
    "ZeroDivisionError": lambda n: 10 // (n - 70),
    "OverflowError": math.factorial,
    "ValueError": lambda n: math.isqrt(-n),
    "too large for its bits": lambda n: 1 << n,
    "ArithmeticError": lambda n: 3**n,
    "an integer is too large": lambda n: n * 2**30,
    "an integer is too large for": lambda n: int(n * 1e30),
    "Python integer out of bounds for uint8": lambda n: np.uint8(float(n) - 71),
}


def written_outside(n):
    v = np.zeros(3)
    v[n] = 1
    return v


def multiplied(n):
    x = 1
    for _ in range(n):
        x *= 3
    return x


@pytest.mark.parametrize(
    ("text", "f"),
    [*CHECKED.items(), ("out of bounds", written_outside), ("too large", multiplied)],
)
def test_checked_tests_what_python_would_raise_without_a_handler(text, f):
    assert text in (error_of(f, 70) or "")


@pytest.mark.parametrize(
    "f", [lambda n: np.arange(5.0)[n], lambda n: 10 // n, lambda n: 3**n, lambda n: n * n - n]
)
def test_checked_lets_pass_what_python_does(f):
    assert error_of(f, 4) is None


def test_lines_of_one_kind_are_one_note():
    def ratio(x):
        return 1 / x

    def f(x, n, v):
        y = v[n] + v[n]
        y += v[n + 1] / x
        return y * ratio(x) * v[n]

    with listen() as notes:
        jax.jit(autograph(f))(2.0, 1, np.arange(4.0))
    line, name = f.__code__.co_firstlineno, f.__qualname__
    wheres = [n.where.rpartition("/")[2] for n in notes]
    assert f"test_raises.py:{line + 1}, {line + 2}, {line + 3} in {name}" in wheres
    assert f"test_raises.py:{line - 2} in {ratio.__qualname__}" in wheres


def test_of_a_loop_that_is_traced_again_the_last_notes_are_left():
    def f(v):
        x = 0
        for y in v:
            x = x + y
            assert y > 0
        return x

    with listen() as notes:
        jax.jit(autograph(f))(np.arange(4.0))
    assert [n.what for n in notes].count("an assertion is not checked") == 1


def test_what_is_not_tested_is_noted_once_at_its_line():
    def f(x, n, v):
        y = math.log(x) + math.log(x)
        y += 1 / x
        y += v[n]
        return y * (n * n)

    with listen() as notes:
        jax.jit(autograph(f))(2.0, 1, np.arange(3.0))
    found = [(n.what.partition(" is not tested")[0], n.where) for n in notes]
    line = f.__code__.co_firstlineno
    whats = (
        ("the domain of a function of `math`", 1),
        ("a division by zero", 2),
        ("an index", 3),
        ("an int of Python's", 4),
    )
    assert [what for what, _ in found] == [what for what, _ in whats]
    assert all(
        f"py:{line + k} in" in where for (_, where), (_, k) in zip(found, whats, strict=True)
    )


@pytest.mark.parametrize("n", [2, 4])
def test_none_as_a_number_is_a_raise_on_the_path_that_leads_there(n):
    def f(v, n):
        last: Any = None
        total, i = 0.0, 0
        while i < n:
            if i > 0 and v[i] > last:
                total += last
            last = v[i]
            i += 1
        return total

    v = np.array([1.0, 2.0, 1.0, 5.0])
    assert jax.jit(autograph(f))(v, n) == f(v, n)
    with pytest.raises(TypeError, match="'float' and 'NoneType'"):
        jax.jit(autograph(lambda x: x + None))(1.0)


def test_a_stack_that_is_empty_at_first_is_popped():
    def f(codes):
        stack = []
        for c in codes:
            if c == 100:
                b, a = stack.pop(), stack.pop()
                stack.append(a + b)
            else:
                stack.append(c)
        return stack[-1], len(stack)

    codes = np.array([2, 3, 100, 4, 100, 7])
    assert tuple(map(int, jax.jit(autograph(f))(codes))) == f(codes)


def test_a_number_that_goes_around_is_divided_for_a_handler():
    def f(k):
        s, n = 8, 0
        while k > -3:
            try:
                s //= k
            except ZeroDivisionError:
                s, n = 5, n + 1
            k -= 1
        return s, n

    assert tuple(map(int, jax.jit(autograph(f))(3))) == f(3)


def test_a_namesake_that_a_loop_binds_is_another_variable():
    def reads(x, v):
        if x > 0:
            if 0:
                y = 1
            v[1] = y
        return 2.0

    def f(x, n):
        v, y = np.zeros(2), 0.0
        for _ in range(n):
            y += 1
            v[0] += reads(x, v)
        return v, y

    traced = jax.jit(autograph(f))
    with listen() as notes:
        assert traced(-1.0, 3)[0].tolist() == [6, 0]
    assert any("does not happen in a compiled program" in n.what for n in notes)
    assert np.isnan(traced(1.0, 3)[0]).all()


@pytest.mark.parametrize("dtype", [np.int32, np.int8, np.uint8])
def test_where_what_is_looked_up_is_not_there_an_integer_is_the_one_farthest_from_zero(dtype):
    def f(n, a):
        xs = [n]
        if n < 0:
            raise ValueError
        if n > 3:
            xs.append(n)
        return a + n, {1: 5, 2: 7}[n], xs

    a, ends = np.array([1, 2], dtype), np.iinfo(dtype)
    compiled = jax.jit(autograph(f))
    right = compiled(2, a)
    assert (right[0].tolist(), right[1], right[2].length) == ([3, 4], 7, 1)
    wrong = compiled(3, a)
    assert set(wrong[0].tolist()) == {ends.min or ends.max}
    assert wrong[1] == wrong[2].length == np.iinfo(np.int32).min
