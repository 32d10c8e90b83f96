"""Instances of classes derived from ndarray, whose content may be traced.

NumPy cannot make them: what stands in for one is a Box with the attributes of the class, which
`isinstance` takes for an instance of it. What is computed with it are plain arrays.
"""

import types
import weakref
from typing import Any

import numpy as np

from malleable.arrays import functions, places
from malleable.arrays.content import Box, any_box, unbox

_LEFT = {"__new__", "__init__", "__dict__", "__weakref__", "__array_finalize__", "__array_wrap__"}
_LEFT |= {"__module__", "__qualname__", "__slots__", "__array_priority__", "__array_prepare__"}
_kinds: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def kind_of(cls: type) -> type:
    """The class of boxes that stand in for instances of a class derived from ndarray."""
    found = _kinds.get(cls)
    if found is None:
        members: dict[str, Any] = {}
        for base in reversed(cls.__mro__[: cls.__mro__.index(np.ndarray)]):
            members |= {k: v for k, v in vars(base).items() if k not in _LEFT}
        members["__class__"] = property(lambda self: cls)
        members["__slots__"] = ("__dict__",)
        found = _kinds[cls] = type(cls.__name__, (Box,), members)
    return found


def view(box: Box, cls: type) -> Box:
    """box.view(cls)"""
    new = object.__new__(kind_of(cls))
    new._value, new._base, new._index, new.scalar = None, box, places.Item(...), False
    new.immutable, new.born = box.immutable, 0  # a view: its root says it
    finalize = getattr(cls, "__array_finalize__", None)
    if isinstance(finalize, types.FunctionType):
        finalize(new, box)
    return new


def new(cls, shape, dtype=float, buffer=None, offset=0, strides=None, order=None):
    """ndarray.__new__, with a buffer that may be a Box: a view of it."""
    if not any_box((shape, buffer)):
        return np.ndarray.__new__(cls, shape, dtype, buffer, offset, strides, order)
    shape = tuple(map(int, np.atleast_1d(unbox(shape))))
    if not isinstance(buffer, Box):
        return np.ndarray.__new__(cls, shape, dtype, buffer, offset, strides, order)
    if functions.canonical(dtype) != functions.canonical(buffer.dtype):
        raise TypeError(f"a buffer of {buffer.dtype}, read as {np.dtype(dtype)}, cannot be traced")
    whole = buffer if buffer.shape == shape else buffer.reshape(shape)
    return view(whole, cls) if cls is not np.ndarray else whole[...]
