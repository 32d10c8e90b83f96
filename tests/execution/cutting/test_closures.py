"""Functions that a function makes: they see its variables as they are when they are called."""

import functools
import gc
import importlib
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import malleable as mal
from malleable.execution.cutting.closures import Made, seen_later
from malleable.execution.purity.facts import outside
from malleable.python_source import source


def a_lambda_called_later(x):
    s = 0.0
    g = lambda: s
    print(end="")
    s = float(x.sum())
    return g() * x


def a_lambda_before_its_variable(x):
    g = lambda: s + x
    s = x.sum()
    return g()


def functions_in_a_list(x):
    s, some = 0.0, []

    def g():
        return s * x

    some.append(g)
    print(end="")
    s = 5.0
    return [f() for f in some]


def a_lambda_around_a_loop(x):
    n = 0
    more = lambda: n + 1
    for _ in range(3):
        n = more()
        print(end="")
    return x * n


def a_search_that_makes_them_anew(x):
    """Each is made again before its variables are bound: this one is cut as ever."""
    for _ in range(3):
        at = lambda t: x - t * jnp.sin(x)  # noqa: B023
        t = 1.0 if float(at(1.0).sum()) > 0 else 0.5
        x = at(t)
    return x


def a_method_of_a_class(x):
    class Reader:
        def read(self):
            return s

    reader = Reader()
    s = x * 2
    s = s + float(s.sum())
    return reader.read()


def a_generator(x):
    def numbers():
        yield s
        yield s * 2

    s = x
    drawn = numbers()
    first = next(drawn)
    s = x * 7
    return first + next(drawn)


def an_expression_that_generates(x):
    s = x
    drawn = (s * k for k in range(3))
    s = x * float(x.sum())
    return sum(drawn)


def a_decorated_function(x):
    @functools.lru_cache
    def cached():
        return s

    s = x * 3
    return cached()


def a_default(x):
    s = x

    def read(get=lambda: s):
        return get()

    s = x * 2
    return read()


def an_object_that_keeps_it(x):
    kept = Holder(lambda: s)
    s = x * 4
    return kept.function()


def a_function_that_keeps_it(x):
    kept = held(lambda: s)
    s = x * float(x.sum())
    return kept[0]()


def one_that_another_gives(x):
    s = x

    def outer():
        def inner():
            return s

        return inner

    got = outer()
    s = x * float(x.sum())
    return got()


def one_through_another(x):
    def scaled(a):
        return a * s

    def shifted(a):
        return scaled(a) + 1

    some = [shifted]
    s = x
    print(end="")
    s = s + 1
    return some[0](x)


def one_that_jax_makes(x):
    s = x
    scaled = jax.vmap(lambda a: a * s.sum())
    s = x + float(x.sum())
    return scaled(x)


class Holder:
    def __init__(self, function):
        self.function = function


def held(function):
    return [function]


def descent(f, y):
    for _ in range(3):
        y = y - f(y)
    return y


def a_solver_in_a_loop(x):
    y = x
    for t in range(3):
        y = descent(lambda z: z - y * 0.5 - t, y)  # noqa: B023
        print(end="")
    return y


def jax_in_a_loop(x):
    y = x
    for _ in range(3):
        y = jax.lax.cond(y.sum() > 3, lambda: y + 1, lambda: y * 2)  # noqa: B023
        y = jax.vmap(lambda a: a * y.sum())(y)  # noqa: B023
        y = y - jax.grad(lambda a: (a * y).sum())(y)  # noqa: B023
        print(end="")
    return y


def one_called_by_name(x):
    def scaled(a):
        return a * s

    def shifted(a):
        return scaled(a) + 1

    s = x
    y = shifted(x)
    s = s + float(y.sum())
    return descent(shifted, y)


def items_bound_at_once(x):
    for k in range(2):
        a, b = (x * n for n in range(k, k + 2))
        x = a + b * float(a.sum())
    return x


LATE = [a_lambda_called_later, a_lambda_before_its_variable, functions_in_a_list]
LATE += [a_lambda_around_a_loop, a_method_of_a_class, a_generator, an_expression_that_generates]
LATE += [a_decorated_function, a_default, an_object_that_keeps_it, a_function_that_keeps_it]
LATE += [one_that_another_gives, one_through_another, one_that_jax_makes]
AT_ONCE = [a_search_that_makes_them_anew, a_solver_in_a_loop, jax_in_a_loop, one_called_by_name]
AT_ONCE += [items_bound_at_once]


@pytest.mark.parametrize("program", [*LATE, *AT_ONCE], ids=lambda f: f.__name__)
def test_a_function_sees_its_variables_as_they_are_when_it_is_called(program):
    x, jitted = jnp.arange(3.0), mal.jit(program)
    for _ in range(3):
        jax.tree.map(np.testing.assert_allclose, jitted(x), program(x))
    node = source.find(program.__code__, program.__globals__).node
    assert bool(seen_later(Made(node, outside(program)))) is (program in LATE)
    assert bool(mal.explain(jitted)(x).regions) is (program in AT_ONCE)


def test_what_a_call_made_is_let_go_with_it():
    seen = []

    def program(x):
        kept = Holder(1.5)
        seen.append(weakref.ref(kept))
        return x * kept.function

    mal.jit(program)(jnp.ones(3))
    gc.collect()
    assert seen[0]() is None


LIBRARY = """
import jax.numpy as jnp

def outer(x):
    return middle(x) + 1

def middle(x):
    return inner(x) * 2

def inner(x):
    return jnp.sin(x)
"""


library: Any = None


class Scaled:
    by = 2.0

    @classmethod
    def of(cls, x):
        return x * cls.by


def test_what_helpers_of_helpers_call_is_what_it_is_now(tmp_path, monkeypatch):
    (tmp_path / "helpers_of_a_test.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(globals(), "library", importlib.import_module("helpers_of_a_test"))
    x, jitted = jnp.ones(3), mal.jit(lambda x: library.outer(x))
    for name, new in [("inner", jnp.cos), ("middle", lambda x: x * 50), ("outer", lambda x: x)]:
        for _ in range(2):
            np.testing.assert_allclose(jitted(x), library.outer(x), rtol=1e-6)
        setattr(library, name, new)
    np.testing.assert_allclose(jitted(x), x)


def test_a_method_of_a_class_reads_what_the_class_holds_now(monkeypatch):
    jitted = mal.jit(lambda x: Scaled.of(x))
    for by in (2.0, 2.0, 7.0, 7.0):
        monkeypatch.setattr(Scaled, "by", by)
        assert jitted(jnp.float32(1)) == by
