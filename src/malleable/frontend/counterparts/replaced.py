"""Which functions are converted, and which ones something else stands in for."""

import types

import numpy as np

from malleable.frontend.counterparts import numpy, scipy
from malleable.python_source import kinds


def convertible(fun) -> bool:
    """Whether a Python function is of the kind that is converted: not JAX's, not Python's own."""
    if type(fun) is not types.FunctionType or "__malleable_skip__" in fun.__dict__:
        return False
    if replacement(fun) is numpy.CONVERT:
        return True
    return kind_of(fun) == kinds.CONVERT


def kind_of(fun) -> str:
    """The kind of a Python function; one that a context manager decorates is as what it wraps."""
    kind = kinds.of_file(fun.__code__.co_filename)
    wrapped = fun.__dict__.get("__wrapped__")
    decorated = fun.__code__.co_qualname.startswith("ContextDecorator.")
    return kind_of(wrapped) if decorated and type(wrapped) is types.FunctionType else kind


def replacement(fun):
    """What a function of NumPy or SciPy becomes: a function, CONVERT, or None."""
    module = getattr(fun, "__module__", None) or type(fun).__module__
    if not str(module).startswith(("numpy", "scipy")) and type(fun).__name__ != "fortran":
        return (
            None if type(fun) is not np.ufunc else scipy.replacement(fun) or numpy.replacement(fun)
        )
    found = scipy.replacement(fun)
    return numpy.replacement(fun) if found is None else found
