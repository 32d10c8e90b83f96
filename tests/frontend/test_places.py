"""What a traced index or test picks is a place: who writes to it writes to the thing itself."""

import jax
import numpy as np
import pytest

from malleable import TransformError, autograph
from tests.frontend import place_programs_loops  # noqa: F401  adds to PROGRAMS
from tests.frontend.behaviour.behaviour import BOTH, assert_same
from tests.frontend.place_programs import PROGRAMS, V

NAMES = [
    f"{fun.__name__}-{args[0] if len(args) == 1 and args[0] is not V else ''}"
    for fun, args in PROGRAMS
]


@pytest.mark.in_turns
@pytest.mark.parametrize(("fun", "args"), PROGRAMS, ids=NAMES)
def test_a_write_to_what_was_picked_reaches_each_name_of_it(fun, args):
    assert_same(fun, *args)


class P:
    def __init__(self, x):
        self.x, self.n, self.log = x, 0, [0.0, 0.0]


def test_each_lane_of_a_vmap_writes_to_the_one_that_it_picked():
    def f(v, k):
        ps = [P(x) for x in v]
        ps[k].n += 1
        ps[k].log[0] = 2.0
        return [p.n for p in ps], [p.log[0] for p in ps]

    n, first = jax.vmap(jax.jit(autograph(f)), in_axes=(None, 0))(V[:3], np.arange(3))
    assert np.array_equal(np.stack(n), np.eye(3)) and np.array_equal(np.stack(first), 2 * np.eye(3))


def test_gradients_go_through_what_was_picked():
    def f(v):
        rows = [v[:2] * 2, v[2:4] * 3]
        best = max(rows, key=lambda row: row[0])
        best *= v[0]
        return rows[0].sum() + rows[1].sum()

    grad = jax.grad(autograph(f))(V[:4])
    np.testing.assert_allclose(grad, [2 + 3 * (V[2] + V[3]), 2, 3 * V[0], 3 * V[0]])


def test_two_names_of_a_list_that_are_two_lists_on_the_other_path_are_refused():
    def f(x):
        if x > 0:
            a = b = [x]
        else:
            a, b = [x], [x + 1]
        b.append(x)
        return a

    with pytest.raises(TransformError, match="one list has two names after one branch"):
        jax.jit(autograph(f))(1.0)


@BOTH
def test_a_place_shows_none_of_our_names(x):
    def f(x):
        a, b = [1.0], {"k": 2.0}
        t = a if x > 0 else b
        return t * 2.0

    with pytest.raises((TransformError, TypeError)) as caught:
        jax.jit(autograph(f))(x)
    assert "Choice" not in str(caught.value) and "Box" not in str(caught.value)


class Shifted(list):
    """A list whose items are read and written by its own methods."""

    def __getitem__(self, i):
        return super().__getitem__(i) + 100

    def __setitem__(self, i, value):
        super().__setitem__(i, value * 2)

    def __delitem__(self, i):
        list.__delitem__(self, i)


class Pair(tuple):
    __slots__ = ()

    def __getitem__(self, i):
        return tuple.__getitem__(self, 1 - i)


@pytest.mark.parametrize("k", [0, 2])
def test_a_traced_index_asks_the_methods_of_a_subclass(k):
    def f(k, x):
        xs = Shifted([1.0, 2.0, 3.0])
        read = xs[k], Pair((x, x + 1))[k // 2]
        xs[k] = x
        xs[k] += 1
        found = [*xs]
        del xs[k]
        return read, found, [*xs]

    assert_same(f, k, 5.0)
