"""Host statements: what Python does between two regions, through NumPy where the arrays are on CPU.

`getitem`, `call` and `method` do what JAX does and return raw arrays (see host_values.py), in
microseconds and without a compilation for a size never seen. Whatever is not known to be equal in
NumPy, and every error, is left to JAX.
"""

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
from malleable.execution.host.table import METHODS, host_function

__all__ = [
    "arrive",
    "arrive_all",
    "call",
    "getitem",
    "host_value",
    "is_raw",
    "method",
    "own",
]

_ndarray = np.ndarray
_asarray = np.asarray
_PLAIN = frozenset([int, slice, type(None), type(Ellipsis)])
_PLACES = frozenset(map(np.dtype, ["int32", "int64", "uint8", "bool"]))


def numpy_index(index):
    """An index of JAX as one of NumPy; Unsupported where the two may differ."""
    kind = type(index)
    if kind in _PLAIN:
        return index
    if kind is tuple:
        return tuple([i if type(i) in _PLAIN else _array(i) for i in index])
    return _array(index)


def _array(index) -> np.ndarray:
    if type(index) is Array and compat.is_on_host(index):
        index = np.asarray(index)
    if type(index) is not np.ndarray or index.dtype not in _PLACES:
        raise Unsupported("no integers")
    return index


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
        return x[arrive_all(index)]
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
