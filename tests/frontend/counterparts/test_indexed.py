"""Functions of NumPy that take an index test it as `v[i]` does."""

import jax
import numpy as np
import pytest

from malleable import autograph, listen


def put_in(v, i):
    np.put(v, [0, i], 7.0)
    return v


def put_along(v, i):
    np.put_along_axis(v.reshape(4, 2), np.array([[i], [0], [0], [0]]) // 4, 7.0, 1)
    return v


def added_at(v, i):
    np.add.at(v, [0, i], 5.0)
    return v


def divided_at(v, i):
    np.floor_divide.at(v, i, 2.0)
    return v


INDEXED = {
    "take": np.take,
    "method": lambda v, i: v.take([i, 0]),
    "axis": lambda v, i: np.take(v.reshape(2, 4), [i // 4], axis=0),
    "wrap": lambda v, i: np.take(v, [i, 0], mode="wrap"),
    "clip": lambda v, i: v.take(i, mode="clip"),
    "along": lambda v, i: np.take_along_axis(v, np.array([i, 1]), 0),
    "rows": lambda v, i: np.take_along_axis(v.reshape(4, 2), np.array([[i // 4, 0]]), 1),
    "insert": lambda v, i: np.insert(v, i, 1.0),
    "column": lambda v, i: np.insert(v.reshape(1, 8), i, 1.0, axis=1),
    "choose": lambda v, i: np.choose(np.array([0, i // 4]), [v[:2], v[2:4]]),
    "chosen": lambda v, i: np.choose(np.array([0, i]), [v[:2], v[2:4]], mode="clip"),
    "list": lambda v, i: v[[0, i]],
    "both": lambda v, i: v.reshape(2, 4)[[i // 4], v[1].astype(int)],
    "put": put_in,
    "put along": put_along,
    "add": added_at,
    "divide": divided_at,
}


@pytest.mark.parametrize("fun", INDEXED.values(), ids=INDEXED)
@pytest.mark.parametrize("at", [2, -8, 8, 9, -9])
def test_an_index_outside_raises_for_functions_as_for_items(fun, at):
    def handled(v, i):
        try:
            try:
                return fun(v, i).sum()
            except (TypeError, KeyError):
                return -3.0
        except IndexError:
            return -1.0
        except ValueError:
            return -2.0

    v = np.array([3.0, 1, 4, 1, 5, 9, 2, 6])
    wanted = handled(v.copy(), at)
    assert jax.jit(autograph(lambda v: handled(v, at)))(v) == wanted
    assert jax.jit(autograph(handled))(v, at) == wanted
    with listen() as notes:
        jax.jit(autograph(fun))(v, at)
    tested = fun not in (INDEXED["wrap"], INDEXED["clip"], INDEXED["chosen"])
    assert any("index is not tested" in n.what or "ValueError" in n.what for n in notes) == tested
    if wanted in (-1.0, -2.0):
        with pytest.raises((IndexError, ValueError)):
            jax.jit(autograph(lambda v: fun(v, at)))(v)


def test_what_is_taken_in_a_loop_may_be_outside():
    def f(v, n):
        failed = 0
        for k in range(n):
            try:
                np.add.at(v, [k, 0], np.take(v, k))
            except IndexError:
                failed += 1
        return v, failed

    v = np.array([3.0, 1, 4])
    for got, wanted in zip(jax.jit(autograph(f))(v, 5), f(v.copy(), 5), strict=True):
        np.testing.assert_allclose(got, wanted)


def test_a_mask_is_the_index_of_a_ufunc():
    def f(v):
        np.add.at(v, v > 3, 5.0)
        return v

    v = np.array([3.0, 1, 4])
    np.testing.assert_allclose(jax.jit(autograph(f))(v), f(v.copy()))
