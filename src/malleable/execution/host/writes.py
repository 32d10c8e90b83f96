"""`x.at[index].set(value)` and its kin in NumPy; sums by segments."""

import jax
import numpy as np

from malleable import compat
from malleable.execution.common.breaks import Unsupported
from malleable.execution.common.host_values import (
    HALF,
    QUIET,
    Array,
    arrive,
    arrive_all,
    asked,
    example,
    own,
    raw,
    with_kind,
)
from malleable.execution.host.elementwise import common_kind

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


class At:
    """`x.at` of a raw array."""

    __slots__ = ("x",)

    def __init__(self, x: np.ndarray):
        self.x = x

    def __getitem__(self, index):
        return Place(self.x, index)


_UFUNCS = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}


class Place:
    """`x.at[index]`: its methods in NumPy where that is the same, else those of JAX."""

    __slots__ = ("index", "x")

    def __init__(self, x, index):
        self.x, self.index = x, index

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(arrive(self.x).at[arrive_all(self.index)], name)

    def write(self, name: str, *args, **kwargs):
        """self.name(*args, **kwargs)."""
        known = (name == "set" or name in _UFUNCS) and not kwargs and len(args) == 1
        if known and compat.host_mode() is not None:
            try:
                return QUIET.run(_copy_with, self.x, self.index, _UFUNCS.get(name), args[0])
            except Exception:  # JAX says it in its own words, or knows better
                pass
        args = [arrive_all(arg) for arg in args]
        return getattr(self, name)(*args, **{key: arrive_all(v) for key, v in kwargs.items()})


def _copy_with(x, index, ufunc, value):
    values, index = raw(x), numpy_index(index)
    value, kind = with_kind(value)
    if common_kind(values.dtype, kind)[0] != values.dtype or values.dtype.kind == "c":
        raise Unsupported("JAX warns of such values")
    value = np.asarray(value, values.dtype)
    out = values.copy()
    if value.ndim and value.ndim > np.ndim(out[index]):
        raise Unsupported("a value of more dimensions")
    if ufunc is None:
        out[index] = value
    elif _is_apart(index):
        out[index] = ufunc(out[index], value)
    elif values.dtype in HALF or values.dtype == bool:
        raise Unsupported("sums in half precision")
    else:
        ufunc.at(out, index, value)
    return own(out)


def _is_apart(index) -> bool:
    """Whether no place can come twice."""
    parts = index if type(index) is tuple else (index,)
    return all(type(i) is not np.ndarray or i.dtype == bool or not i.ndim for i in parts)


def segment_sum(data, segment_ids, num_segments=None):
    """jax.ops.segment_sum along the leading axis; numbers beyond the last segment are dropped."""
    data, places = raw(data), raw(segment_ids)
    if data.dtype in HALF or data.dtype.kind not in "fiu" or places.ndim != 1:
        raise Unsupported("sums of another kind")
    if len(data) != len(places) or places.dtype.kind != "i":
        raise Unsupported("one number for each row")
    low, high = (places.min(), places.max()) if places.size else (0, -1)
    if num_segments is None:
        num_segments = int(high) + 1
    elif type(num_segments) is not int:
        num_segments = raw(num_segments).__index__()
    if low < 0 or num_segments < 0:
        raise Unsupported("negative numbers")
    if high >= num_segments:
        inside = places < num_segments
        data, places = data[inside], places[inside]
    out = np.zeros((num_segments, *data.shape[1:]), data.dtype)
    np.add.at(out, places, data)
    return own(out)


def one_hot(x, num_classes, *, dtype=None):
    """jax.nn.one_hot along the last axis."""
    x = raw(x)
    if type(num_classes) is not int:
        num_classes = raw(num_classes).__index__()
    if dtype is not None or x.dtype.kind not in "iu":
        raise Unsupported("another dtype")
    found = x[..., None] == np.arange(num_classes, dtype=x.dtype)
    return own(found.astype(asked(lambda y: jax.nn.one_hot(y, 1), example(x.dtype))[0]))


WRITES = {jax.ops.segment_sum: segment_sum, jax.nn.one_hot: one_hot}
