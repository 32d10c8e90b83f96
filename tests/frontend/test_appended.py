"""What a compiled loop appends to a list may be changed later, under traced tests and in loops."""

import copy

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from malleable import autograph

V = np.array([1.0, -1.0, -1.375])


def a_number(x, v, n):
    xs = [x, 0.5]
    for _ in v:
        xs.append(x)
    if n > 0:
        xs[0] -= 1.0
    return xs


def the_list(x, v, n):
    xs = []
    for f in v:
        xs.append(f)
    if n > 0:
        xs = [1.0, 2.0, x]
    return xs


def the_list_of_an_outer_function(x, v, n):
    xs = []
    for f in v:
        xs.append(f * x)

    def put():
        nonlocal xs
        if n > 0:
            xs = [xs[2], x, xs[0]]
            xs[1] = 3.0

    put()
    return xs


def an_array(x, v, n):
    xs = []
    for f in v:
        xs.append(np.array([f, x]))
    row = xs[1]
    if n > 0:
        row += 1.0
        xs[0][0] -= 1.0
    return xs


def an_array_in_a_loop(x, v, n):
    xs = []
    for f in v:
        xs.append(np.array([f, x]))
    for _ in range(n):
        xs[0] = xs[1]
    xs[0] += 1
    while n > 0:
        n -= 1
        xs[0][1] = xs[2][0]
        xs[2] = xs[1] * 2
    return xs


def an_array_where_all_is_undone(x, v, n):
    xs = []
    for f in v:
        xs.append(np.array([f, x]))
    try:
        if n > 0:
            xs[0] += 1
            xs = [xs[0], xs[1]]
            raise ValueError
        xs = xs[::-1][:2]
    except ValueError:
        xs[0] -= 4.0
    return xs


class Kept:
    def __init__(self):
        self.xs = []


def an_attribute(x, v, n):
    kept = Kept()
    for f in v:
        kept.xs.append(f * x)
    if n > 0:
        kept.xs[1] = 3.0
        ys = kept.xs
    else:
        ys = [0.0, 1.0, x]
    ys[0] = 5.0
    return kept.xs, ys


PROGRAMS = [
    a_number,
    the_list,
    the_list_of_an_outer_function,
    an_array,
    an_array_in_a_loop,
    an_array_where_all_is_undone,
    an_attribute,
]


@pytest.mark.parametrize("n", [0, 2])
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_write_to_what_a_loop_appended(program, n):
    args = 1.625, V, n
    wanted = program(*copy.deepcopy(args))
    lanes = jax.tree.map(lambda x: jnp.asarray(x)[None], args)
    mapped = jax.jit(jax.vmap(autograph(program)))(*lanes)
    for found in (
        jax.jit(autograph(program))(*args),
        jax.tree.map(lambda x: np.asarray(x)[0], mapped),
    ):
        jax.tree.map(np.testing.assert_allclose, found, wanted)


@pytest.mark.parametrize("n", [0, 2])
def test_its_gradient(n):
    def loss(x, v, n):
        xs = an_array(x, v, n)
        return xs[0][0] * xs[1][1] * xs[2][1]

    row = 1.0 if n > 0 else 0.0
    wanted = (V[0] - row) * (2 * 1.5 + row)  # of (v - row) (x + row) x
    np.testing.assert_allclose(jax.grad(autograph(loss))(1.5, V, n), wanted, rtol=1e-6)
