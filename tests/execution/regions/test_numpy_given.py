"""What a region changes in place, or hands out, of the arrays of NumPy that it is given."""

import copy

import jax
import numpy as np
import pytest
from jax import numpy as jnp

import malleable as mal


def same(u):
    return u


def bump(u):
    u += 1
    return u * 2


def double(d):
    d["a"] *= 2


def handed_out(n, a, b):
    y = jnp.sin(n * 1.0)
    f = same(a)
    f += 1
    return a, f, y


def called_to_write(n, a, b):
    y = jnp.sin(n * 1.0)
    return bump(a), a, y


def written_by_a_local_function(n, a, b):
    y = jnp.sin(n * 1.0)

    def g(u):
        u *= 2
        return u + y

    return g(a), a


def handed_out_by_a_lambda(n, a, b):
    y = jnp.sin(n * 1.0)
    g = lambda u: u
    w = g(a)
    w *= 2
    return w, a, y


def item_of_a_dict(n, a, b):
    y = jnp.sin(n * 1.0)
    z = {"a": a, "y": y}
    z["a"] += 1
    return a, z


def item_of_a_list(n, a, b):
    y = jnp.sin(n * 1.0)
    z = [a, y]
    f = z[0]
    f += 1
    return a, z


def appended(n, a, b):
    y = jnp.sin(n * 1.0)
    z = []
    z.append(a)
    z[0] += 1
    return a, z, y


def gone_over(n, a, b):
    y = jnp.sin(n * 1.0)
    z = [y]
    for f in [a, y]:
        f *= 2
        z.append(f)
    return a, z


def written_in_a_dict(n, a, b):
    y = jnp.sin(n * 1.0)
    d = {"a": a}
    double(d)
    return d, a, y


def one_of_two(n, a, b):
    f = jnp.zeros(3) if n > 0 else b
    g = f
    g += 1.0
    return b, f, g


def add(a, v):
    a += v
    return a


def mapped(n, a, b):
    return list(map(lambda x: add(x, 1.0), [a])), a  # noqa: C417


PROGRAMS = [
    mapped,
    handed_out,
    called_to_write,
    written_by_a_local_function,
    handed_out_by_a_lambda,
    item_of_a_dict,
    item_of_a_list,
    appended,
    gone_over,
    written_in_a_dict,
    one_of_two,
]


@pytest.mark.parametrize("n", [1, -1])
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_arrays_given_change_as_in_python(program, n):
    given = n, np.arange(3.0, dtype=np.float32), np.ones(3, np.float32)
    want = program(*copy.deepcopy(given))
    fun = mal.jit(program)
    for _ in range(2):
        got = fun(*copy.deepcopy(given))
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), got, want)


def test_a_loop_sees_what_its_steps_write_to_a_dict():
    def f(x):
        d = {"a": x, "b": 0.5, "c": 1.0, "d": x, "e": x, "f": x}
        s = 0.0
        for _, value in d.items():
            if value > 0.75:
                break
            d["c"] = x
            s = s * 10 + value
        return s

    assert mal.jit(f)(0.5) == f(0.5)
