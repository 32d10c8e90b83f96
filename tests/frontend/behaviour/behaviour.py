"""Runs a function twice, as Python and converted under `jit`, and compares what comes out."""

import copy
import pathlib
import traceback

import jax
import numpy as np
import pytest
from jax.experimental import checkify

from malleable import autograph
from tests.rules import prims_deep

BOTH = pytest.mark.parametrize("x", [2.0, -2.0])
XS = np.array([1.0, -2.0, 3.0, 4.0, -5.0, 6.0], np.float32)


def assert_same(fun, *args):
    """Raise AssertionError unless fun(*args) under jit is what Python makes of it."""
    want = fun(*copy.deepcopy(args))
    got = jax.jit(autograph(fun))(*args)
    assert jax.tree.structure(got) == jax.tree.structure(want), (got, want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want)):
        assert np.asarray(a).dtype.kind == np.asarray(b).dtype.kind, (a, b)
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def error_of(fun, *args):
    """The message of the run-time check that fails with checked=True; None if none does."""
    error, _ = checkify.checkify(jax.jit(autograph(fun, checked=True)))(*args)
    return error.get()


def program(fun, *args, **options):
    """The jaxpr of a converted function."""
    return jax.make_jaxpr(autograph(fun, **options))(*args).jaxpr


def count(fun, name, *args):
    """How often a primitive stands in the program of a converted function, bodies included."""
    return str(prims_deep(program(fun, *args))).count(f"'{name}'")


def line_of(fun, after):
    """The line of a test file so many lines after the `def`, or the decorator, of a function."""
    return fun.__code__.co_firstlineno + after


def deepest_line(caught, file):
    """The line of this file that an exception comes from, counted over the whole traceback."""
    frames = traceback.extract_tb(caught.value.__traceback__)
    return [f.lineno for f in frames if pathlib.Path(f.filename) == pathlib.Path(file)][-1]
