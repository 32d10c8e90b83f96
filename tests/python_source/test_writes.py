"""A write to an array of NumPy in a function that is traced is said, or refused at its line."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from malleable import TransformError, cost, interpret, optimize, reap, seed, show
from malleable.notes import listen

RUNS = {
    "interpret": lambda f: lambda *a: interpret(f, {})(*a)[0],
    "optimize": optimize,
    "reap": lambda f: lambda *a: reap(f)(*a)[0],
    "seed": lambda f: lambda *a: seed(f)(jax.random.key(0), *a),
    "show": lambda f: show(f, quiet=True),
    "cost": cost,
}


def put(x):
    x[0] = 1.0
    return x.sum()


def grown(x):
    x += 1.0
    return x.sum()


def ordered(x):
    x.sort()
    return x[0]


def own(x):
    x = x * 2
    x += 1.0
    return x.sum()


@pytest.mark.parametrize("name", RUNS)
def test_an_item_that_is_written_is_an_error_at_the_line(name):
    x = np.zeros(3)
    with pytest.raises(TransformError, match="written to in place") as caught:
        RUNS[name](put)(x)
    assert "test_writes.py:22 in put" in caught.value.where and ".at[i].set" in caught.value.hint
    assert x.tolist() == [0, 0, 0]


@pytest.mark.parametrize("name", RUNS)
def test_a_sort_in_place_is_an_error_at_the_line(name):
    with pytest.raises(TransformError, match=r"`x\.sort\(\)`.*\n.*test_writes\.py:32 in ordered"):
        RUNS[name](ordered)(np.array([2.0, 1.0]))


@pytest.mark.parametrize("name", RUNS)
def test_an_augmented_assignment_leaves_a_note(name):
    with listen() as heard:
        RUNS[name](grown)(np.zeros(3))
    notes = [n for n in heard if n.what == "`x` is not written to in place"]
    assert len(notes) == 1 and "test_writes.py:27 in grown" in notes[0].where


def test_arrays_of_jax_and_names_bound_anew_are_as_ever():
    with pytest.raises(TypeError, match="immutable"):
        reap(put)(jnp.zeros(3))
    with listen() as heard:
        reap(own)(np.zeros(3)), reap(grown)(jnp.zeros(3)), reap(grown)(1.0)
    assert heard == []
