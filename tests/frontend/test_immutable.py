"""`x += 1` changes an array of NumPy for all its names; a number or an array of JAX is replaced."""

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from malleable import autograph
from tests.frontend.behaviour.behaviour import assert_same

INPUTS = [(-1.5, 1), (-1.5, 0), (0.5, 0), (0.5, 2)]


def number_or_array(x, n):
    f = 0.0 if n > 0 else np.where(x, 0, 0.25)
    g = f
    g += 1.0
    return f, g


def array_or_number_by_statement(x, n):
    f = np.where(x, 0, 0.25)
    h = f
    if n > 0:
        f = 1.0
    g = f
    g += 1.0
    return f, g, h


def number_or_long_array(x, n):
    v = np.arange(3.0) * x
    f = 0.0 if n > 0 else v
    g = f
    g += 1.0
    return f + v, g + v, v


def in_each_step(x, n):
    f = np.where(x > 0, np.array(0.5), 0.25)
    g = f
    for i in range(3):
        if i == n:
            f = 1.0
        g = f
        g += 1.0
    return f, g


def total_of_arrays(x, n):
    v = np.arange(3.0) * x
    total, before, i = 0.0, 0.0, 0
    while i < n:
        before = total
        total += v
        i += 1
    return total + v, before + v


def many_additions(x, n):
    v = np.arange(3.0) * x
    total = 0.0
    for i in range(12):
        if i != n:
            total += v
    return total, v


def a_number_becomes_an_array(x, n):
    v = np.arange(3.0) * x
    t = 0 if n > 0 else v
    t += v
    t += v
    q = t
    t += v
    return t, v, q


def in_a_dict(x, n):
    a = np.array(x)
    d = {"k": 1.0 if n > 0 else a}
    e = d["k"]
    d["k"] += 1.0
    return a, d, e


def in_an_attribute(x, n):
    class T:
        t = 1.0

    a, o = np.array(x), T()
    if n > 0:
        o.t = a
    p = o.t
    o.t *= 2
    if x < 0:
        o.t -= 1
    return a, o.t, p


def picked_from_a_list(x, n):
    a = np.array(x)
    xs = [1.0, a, 2.0]
    p = xs[n]
    q = p
    p += 1
    return a, xs, p, q


def of_jax(x, n):
    f = jnp.zeros(3)
    g = f
    f += x
    return f, g


def of_jax_in_a_branch(x, n):
    f = jnp.zeros(3)
    g = f
    if n > 0:
        f += x
    return f, g


def one_of_two_of_jax(x, n):
    a, b = jnp.arange(3.0) * x, jnp.ones(3)
    f = a if n > 0 else b
    g = f
    g += 1.0
    return a, b, f, g


def of_jax_or_of_numpy(x, n):
    a, b = jnp.arange(3.0) * x, np.ones(3)
    f = a if n > 0 else b
    g = f
    g += 1.0
    return a, b, f, g


def of_jax_round_a_loop(x, n):
    a, f = jnp.arange(3.0) * x, jnp.zeros(3)
    g, i = f, 0
    while i < n:
        g = f
        f += a
        i += 1
    return a, f, g


def rows_of_jax(x, n):
    rows = [jnp.ones(2) * x, jnp.zeros(2)]
    p = rows[n % 2]
    q = p
    p += 1
    return rows, p, q


def kept_in_a_list(x, n):
    h, kept = jnp.zeros(2), []
    for _ in range(3):
        h += x
        kept.append(h)
    return jnp.stack(kept)


PROGRAMS = [
    number_or_array,
    array_or_number_by_statement,
    number_or_long_array,
    in_each_step,
    total_of_arrays,
    many_additions,
    a_number_becomes_an_array,
    in_a_dict,
    in_an_attribute,
    picked_from_a_list,
    of_jax,
    of_jax_in_a_branch,
    one_of_two_of_jax,
    of_jax_or_of_numpy,
    of_jax_round_a_loop,
    rows_of_jax,
    kept_in_a_list,
]


@pytest.mark.parametrize("args", INPUTS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_adding_in_place_does_what_python_does(program, args):
    assert_same(program, *args)


def test_what_jax_calls_is_given_arrays_of_jax():
    def f(x):
        def step(h, row):
            kept = h
            h += row
            return h, (kept, h)

        return jax.lax.scan(step, jnp.zeros(2), x)

    x = jnp.arange(6.0).reshape(3, 2)
    jax.tree.map(np.testing.assert_array_equal, jax.jit(autograph(f))(x), f(x))


def test_an_item_of_an_array_of_jax_is_written_in_place():
    @jax.jit
    @autograph
    def f(x):
        a = jnp.zeros(3)
        a[0] = x
        return a

    assert f(2.0).tolist() == [2, 0, 0]


@pytest.mark.parametrize("c", [1.0, -1.0])
def test_a_view_of_one_of_two_still_shows_it(c):
    def f(c):
        n, j = np.ones(4, np.float32), jnp.ones(4)
        a = n if c > 0 else j
        r = a[:2]
        r *= 2
        a += 1
        return r, a, n

    assert_same(f, c)
