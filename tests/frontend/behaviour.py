"""Runs a function twice, as Python and converted under `jit`, and compares what comes out."""

import copy
import pathlib
import traceback

import jax
import numpy as np

from malleable import autograph
from tests.rules import prims_deep


def assert_same(fun, *args):
    """Raise AssertionError unless fun(*args) under jit is what Python makes of it."""
    want = fun(*copy.deepcopy(args))
    got = jax.jit(autograph(fun))(*args)
    assert jax.tree.structure(got) == jax.tree.structure(want), (got, want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want)):
        kinds = np.asarray(a).dtype.kind + np.asarray(b).dtype.kind
        assert kinds[0] == kinds[1], (a, b)
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def program(fun, *args, **options):
    """The jaxpr of a converted function."""
    return jax.make_jaxpr(autograph(fun, **options))(*args).jaxpr


def count(fun, name, *args):
    """How often a primitive stands in the program of a converted function, bodies included."""
    return str(prims_deep(program(fun, *args))).count(f"'{name}'")


def deepest_line(caught, file):
    """The line of this file that an exception comes from, counted over the whole traceback."""
    frames = traceback.extract_tb(caught.value.__traceback__)
    return [f.lineno for f in frames if pathlib.Path(f.filename) == pathlib.Path(file)][-1]
