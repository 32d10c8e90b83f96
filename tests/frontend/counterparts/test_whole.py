"""Where Python takes whole numbers only, a float is a TypeError."""

import math

import jax
import numpy as np
import pytest

from malleable import autograph

V = np.array([3.0, 1, 4, 1, 5])


def repeated_in_place(v, n):
    items = [1, 2]
    items *= n
    return len(items)


def written(v, n):
    v[n:] = 7.0
    return v.sum()


def replaced(v, n):
    items = [1, 2, 3]
    items[:n] = [7]
    return len(items)


def deleted(v, n):
    items = [1, 2, 3]
    del items[:n]
    return len(items)


WHOLE = {
    "list": lambda v, n: len([0] * n),
    "times": lambda v, n: len(n * [v[0]]),
    "items": lambda v, n: len([1, 2, 3][:n]),
    "from": lambda v, n: len([1, 2, 3][n:]),
    "slice": lambda v, n: v[:n].sum(),
    "step": lambda v, n: v[::n].sum(),
    "column": lambda v, n: v.reshape(1, 5)[:, n:].sum(),
    "item": lambda v, n: [1, 2, 3][n],
    "isqrt": lambda v, n: math.isqrt(n),
    "comb": lambda v, n: math.comb(5, n),
    "perm": lambda v, n: math.perm(n),
    "gcd": lambda v, n: math.gcd(n, 6),
    "range": lambda v, n: sum(range(n)),
    **{f.__name__: f for f in (repeated_in_place, written, replaced, deleted)},
}
FLOATS = {
    "tuple": lambda v, n: len((1, 2) * n),
    "text": lambda v, n: len("ab" * n),
    "part": lambda v, n: len("abc"[:n]),
    "of an array": lambda v, n: len([1.0] * v[1]),
    "end of an array": lambda v, n: v[: v[1]].sum(),
    "digits": lambda v, n: round(n, 1.0),
    "digits of an int": lambda v, n: round(v.astype(int)[0], 1.0),
}


@pytest.mark.parametrize("fun", (WHOLE | FLOATS).values(), ids=WHOLE | FLOATS)
def test_a_float_is_no_whole_number(fun):
    def handled(v, n, steps):
        failed = 0
        for _ in range(steps):
            try:
                try:
                    fun(v, n)
                except (ValueError, IndexError):
                    failed += 100
            except TypeError:
                failed += 1
        return failed

    for f in (fun, jax.jit(autograph(fun))):
        with pytest.raises(TypeError):
            f(V.copy(), 2.0)
    assert jax.jit(autograph(handled))(V, 2.0, 3) == handled(V.copy(), 2.0, 3) == 3


@pytest.mark.parametrize("fun", WHOLE.values(), ids=WHOLE)
def test_an_int_is(fun):
    assert jax.jit(autograph(fun))(V, 2) == fun(V.copy(), 2)


def test_an_array_times_a_list_is_a_product():
    np.testing.assert_allclose(jax.jit(autograph(lambda v: [2.0] * v))(V), [2.0] * V)


def test_a_class_may_be_asked_for_parts_by_floats():
    class Line:
        def __getitem__(self, part):
            return part.stop - part.start

    assert jax.jit(autograph(lambda x: Line()[x : x + 0.5]))(1.0) == 0.5
