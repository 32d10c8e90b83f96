"""Rules that many tests use, and what they compare programs and results with."""

import pathlib
import re

import jax
import numpy as np
import pytest

from malleable import MalleableError, compat


def again(frame, *args, **params):
    """Changes nothing."""
    return frame.bind(*args)


def count(frame, *args, **params):
    """Counts in the carry, and changes nothing."""
    frame.carry += 1
    return frame.bind(*args)


def twice(frame, *args, **params):
    """Doubles the result."""
    return 2 * frame.bind(*args)


def hand_out(mode, name="x"):
    """A rule that writes the operand of its equation."""

    def rule(frame, x, **params):
        frame.write(name, x, mode)
        return frame.bind(x)

    return rule


def prims(jaxpr):
    """The names of the primitives of a program, without those of its bodies."""
    return [name for name, *_ in prims_deep(jaxpr)]


def prims_deep(jaxpr):
    """The names of the primitives of a program, each with those of its bodies: a nested list.

    Without the place that comes before each marker.
    """
    eqns = [e for e in jaxpr.eqns if e.primitive.name != "place"]
    return [(e.primitive.name, *map(prims_deep, compat.bodies(e.params))) for e in eqns]


def assert_same(got, wanted, rtol=1e-5):
    """Raise AssertionError unless two pytrees have one structure, shapes, dtypes and values."""
    assert jax.tree.structure(got) == jax.tree.structure(wanted)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted)):
        a, b = np.asarray(a), np.asarray(b)
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-6)


def refusal(cls, do, line=None, *, fun=None):
    """The error of `do`, which is of this class, names the file of `do`, and has a hint.

    line: the one it names, counted from the `def` of `fun`; any line of the file without it.
    """
    with pytest.raises(MalleableError) as caught:
        do()
    error, file = caught.value, re.escape(pathlib.Path(do.__code__.co_filename).name)
    assert type(error) is cls
    assert re.search(rf"{file}:\d+", error.where)
    if fun is not None:
        number = fun.__code__.co_firstlineno + line
        assert re.search(rf"{file}:{number} in {fun.__name__}", error.where)
    assert error.hint
    assert str(error) == f"{error.what}\n  at {error.where}\n  hint: {error.hint}"
    return error
