"""Read-only arrays of NumPy that the user keeps stay arrays of NumPy, with all their digits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import malleable as mal

X = jnp.linspace(-1.0, 2.0, 6)
LARGE = 2.0**24 + np.arange(1.0, 4.0)
LARGE.setflags(write=False)


class Held:
    def __init__(self):
        self.table = LARGE
        self.wide = np.broadcast_to(np.arange(3), (2, 3))


def of_an_attribute(held, x):
    print(float(x.sum()))
    return held.table, held.table[1:], held.table + 1, held.wide.sum(0), x[:3] * held.table


def of_an_argument(held, x):
    table = held.table
    total = sum(v * float(x[0]) for v in table)
    return table[1], total, jnp.asarray(table) * 2, table.mean()


def of_a_global(held, x):
    y = LARGE[:2]
    print(float(x.sum()))
    return y, LARGE * 2, [LARGE], x[:3] + LARGE


@pytest.mark.parametrize("program", [of_an_attribute, of_an_argument, of_a_global])
def test_read_only_arrays_of_64_bits_keep_them(program):
    jitted, held = mal.jit(program), Held()
    expected = jax.tree.leaves(program(held, X))
    for _ in range(3):
        found = jax.tree.leaves(jitted(held, X))
        assert list(map(type, found)) == list(map(type, expected))
        for one, other in zip(found, expected, strict=True):
            assert one.dtype == other.dtype
            np.testing.assert_allclose(one, other, rtol=1e-6 if one.dtype == np.float32 else 0)


def test_a_read_only_argument_comes_back_as_it_went_in():
    jitted = mal.jit(lambda table, x: (table, table * float(x[0])))
    for _ in range(3):
        table, scaled = jitted(LARGE, X)
        assert table is LARGE and scaled.dtype == np.float64


def of_a_narrow_attribute(held, x):
    y = jnp.sin(x).sum()
    w = held.narrow
    return y + w, w, w + 1, w[0], w.max(), isinstance(w, np.ndarray), [w]


@pytest.mark.parametrize("dtype", ["float32", "int32", "bool", "uint8", jnp.bfloat16])
def test_read_only_arrays_of_a_dtype_that_jax_has_stay_those_of_numpy(dtype):
    held, jitted = Held(), mal.jit(of_a_narrow_attribute)
    held.narrow = np.ones(3, dtype)
    held.narrow.setflags(write=False)
    for _ in range(3):
        found, expected = jitted(held, X), of_a_narrow_attribute(held, X)
        assert found[1] is held.narrow and found[-1][0] is held.narrow
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            assert type(one) is type(other) and getattr(one, "dtype", 0) == getattr(
                other, "dtype", 0
            )
