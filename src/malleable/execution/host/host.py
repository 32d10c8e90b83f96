"""Host statements: what Python does between two regions, through NumPy where the arrays are on CPU.

`getitem`, `call`, `method`, `binary`, `compare` and `unary` do what JAX does and return raw arrays
(see host_values.py), in microseconds and without a compilation for a size never seen. Whatever is
not known to be equal in NumPy, and every error, is left to JAX.
"""

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from malleable import compat
from malleable.execution.common.breaks import Unsupported
from malleable.execution.common.host_values import (
    QUIET,
    Array,
    arrive,
    arrive_all,
    host_value,
    is_raw,
    is_weak,
    own,
)
from malleable.execution.host.table import METHODS, OPERATORS, host_function
from malleable.execution.host.writes import At, Place, numpy_index

__all__ = [
    "arrive",
    "arrive_all",
    "attribute",
    "binary",
    "call",
    "compare",
    "getitem",
    "host_value",
    "is_raw",
    "method",
    "own",
    "unary",
]

_ndarray = np.ndarray
_asarray = np.asarray


def getitem(x, index):
    """x[index]: raw where `x` stands for an array of JAX, else what Python gives.

    Places out of bounds, which JAX clamps, are left to JAX.
    """
    kind = type(x)
    if kind is _ndarray:
        if not is_raw(x):
            return x[arrive_all(index)]
        values = x
    elif kind is Array and not is_weak(x) and compat.is_on_host(x):
        values = _asarray(x)
    else:
        return x[index if kind is At else arrive_all(index)]
    kind = type(index)
    try:
        if kind is slice or kind is int:
            return own(values[index])
        index = numpy_index(index)
        if type(index) is _ndarray and index.size > 1000 and index.dtype.kind == "b":
            if index.shape != values.shape[: index.ndim]:
                raise Unsupported("a mask of another size")
            index = index.nonzero()  # three times faster than a mask
        return own(values[index])
    except (Unsupported, IndexError, TypeError, ValueError):
        pass
    return arrive(x)[arrive_all(index)]  # not in the handler: its errors are the user's


def call(fun, *args, **kwargs):
    """fun(*args, **kwargs), in NumPy where the table has `fun`."""
    host = host_function(fun)
    if host is not None and compat.host_mode() is not None:
        try:
            return QUIET.run(host, *args, **kwargs)
        except Exception:  # whatever it is, JAX says it in its own words, or knows better
            pass
    args = [arrive_all(arg) for arg in args]
    return fun(*args, **{name: arrive_all(arg) for name, arg in kwargs.items()})


def method(x, name: str, *args, **kwargs):
    """x.name(*args, **kwargs)."""
    if type(x) is Place:
        return x.write(name, *args, **kwargs)
    if is_raw(x) or type(x) is Array:
        host = METHODS.get(name)
        if host is not None and compat.host_mode() is not None:
            try:
                return QUIET.run(host, x, *args, **kwargs)
            except Exception:  # as in `call`
                pass
        x = arrive(x)
    args = [arrive_all(arg) for arg in args]
    kwargs = {name: arrive_all(arg) for name, arg in kwargs.items()}
    return getattr(x, name)(*args, **kwargs)


def attribute(x, name: str):
    """x.name; of a raw array what the array of JAX would have."""
    if not is_raw(x):
        if name == "at" and type(x) is Array and not is_weak(x) and compat.is_on_host(x):
            return At(_asarray(x))
        return getattr(x, name)
    match name:
        case "shape" | "ndim" | "size" | "itemsize" | "nbytes":
            return getattr(x, name)
        case "dtype":
            return np.dtype(x.dtype.type)  # without the mark
        case "T":
            return x.T
        case "at":
            return At(x)
        case _:
            return getattr(arrive(x), name)


def binary(op: Callable, a, b):
    """op(a, b) for a function of `operator`, with JAX's types where one is an array of JAX."""
    host = OPERATORS.get(op)
    ours = is_raw(a) or is_raw(b) or type(a) is Array or type(b) is Array
    if host is not None and ours and compat.host_mode() is not None:
        try:
            return QUIET.run(host, a, b)
        except Exception:  # as in `call`
            pass
    return op(arrive_all(a), arrive_all(b))


compare = binary


def unary(op: Callable, a: Any):
    """op(a) for a function of `operator`."""
    if is_raw(a) or type(a) is Array:
        if op is operator.not_ and is_raw(a) and not a.ndim:
            return not a
        host = OPERATORS.get(op)
        if host is not None and compat.host_mode() is not None:
            try:
                return QUIET.run(host, a)
            except Exception:  # as in `call`
                pass
    return op(arrive_all(a))
