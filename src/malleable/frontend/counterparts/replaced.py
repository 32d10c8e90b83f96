"""Which functions are converted, and which ones something else stands in for."""

import types

import numpy as np

from malleable.frontend.counterparts import numpy, scipy
from malleable.python_source import kinds
from malleable.python_source.twins import CONVERTED


def convertible(fun) -> bool:
    """Whether a Python function is of the kind that is converted: not JAX's, not Python's own."""
    if type(fun) is not types.FunctionType or "__malleable_skip__" in fun.__dict__:
        return False
    if replacement(fun) is numpy.CONVERT:
        return True
    return kind_of(fun) == kinds.CONVERT


def is_users_own(fun) -> bool:
    """Whether a function is converted, and of no installed package: theirs work as they are."""
    return convertible(fun) and not kinds.is_installed(fun.__code__.co_filename)


def kind_of(fun) -> str:
    """The kind of a Python function; one that a context manager decorates is as what it wraps."""
    if fun.__code__ in CONVERTED:
        return kinds.CONVERT
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


def full_name(f) -> str:
    """The name of a function with that of its module."""
    module = getattr(f, "__module__", None)
    name = getattr(f, "__qualname__", None) or type(f).__qualname__
    return f"{module}.{name}" if module and module != "builtins" else name


def why_left(f) -> str:
    """Why a function is not converted."""
    if type(f) is not types.FunctionType:
        return "it is compiled code"
    if kinds.of_file(f.__code__.co_filename) == kinds.CONVERT:
        return f.__dict__.get("__malleable_reason__", "it has no Python source")
    return f"its module, {f.__module__}, is left alone"
