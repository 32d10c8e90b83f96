"""Arrays of JAX as arrays of NumPy, and back: what travels between regions and host statements.

A **raw** array is a read-only `np.ndarray` of exactly the dtype JAX would have: `own(x)` makes one,
and marks it in its dtype. All others are the user's: a writable one is copied before it is kept.
"""

import contextvars
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from malleable import compat
from malleable.execution.common.breaks import Unsupported
from malleable.execution.common.denormals import Arithmetic

Array = compat.HostArray

_NAMES = "bool int8 int16 int32 uint8 uint16 uint32 float16 float32 complex64"
NARROW = frozenset(map(np.dtype, [*_NAMES.split(), jnp.bfloat16]))
_WIDE = {
    np.dtype("int64"): np.dtype("int32"),
    np.dtype("uint64"): np.dtype("uint32"),
    np.dtype("float64"): np.dtype("float32"),
    np.dtype("complex128"): np.dtype("complex64"),
}
HALF = frozenset(map(np.dtype, ["float16", jnp.bfloat16]))
BOOL, INT32, FLOAT32 = np.dtype(bool), np.dtype("int32"), np.dtype("float32")
NUMBERS = frozenset([bool, int, float, complex])
_MARKED = {dtype: np.dtype(dtype, metadata={"raw": True}) for dtype in (*NARROW, *_WIDE)}  # equal


def own(x) -> np.ndarray:
    """`x` as a raw array: read-only and marked, also where it is a scalar of NumPy."""
    if type(x) is not np.ndarray:
        x = np.asarray(x)
    x.setflags(write=False)
    mark = _MARKED.get(x.dtype)
    return x if mark is None or mark is x.dtype else x.view(mark)


def is_raw(x) -> bool:
    """Whether `x` stands for an array of JAX: `own` made it, of a dtype JAX has."""
    if type(x) is not np.ndarray or _MARKED.get(x.dtype) is not x.dtype or x.flags.writeable:
        return False
    return x.dtype not in _WIDE or bool(compat.host_mode())


def raw(x) -> np.ndarray:
    """The values of an array or of a scalar of NumPy; Unsupported for all else, weak types too."""
    kind = type(x)
    if kind is np.ndarray:
        return x if x.dtype in NARROW else _narrow(x)
    if kind is Array:
        if is_weak(x) or not compat.is_on_host(x):
            raise Unsupported("an array of weak type or of another device")
        values = np.asarray(x)
        return values if values.dtype in NARROW else _narrow(values)
    if isinstance(x, np.generic):
        return raw(np.asarray(x))
    raise Unsupported("no array")


def is_weak(x) -> bool:
    """Whether an array of JAX is of a weak type; for truth values that means nothing."""
    return x.weak_type and x.dtype != BOOL


def stable(x) -> np.ndarray:
    """`raw(x)`, in memory that the user does not write to."""
    out = raw(x)
    return out.copy() if out is x and out.flags.writeable else out


def _narrow(x: np.ndarray) -> np.ndarray:
    narrow = _WIDE.get(x.dtype)
    if narrow is None:
        raise Unsupported("a dtype that only JAX knows")
    return x if compat.host_mode() else x.astype(narrow)


def default(dtype: np.dtype) -> np.dtype:
    """The dtype that NumPy's default stands for: float64 is float32 unless 64 bits are on."""
    return dtype if compat.host_mode() else _WIDE.get(dtype, dtype)


def named_dtype(dtype) -> np.dtype:
    """The dtype that a `dtype=` argument asks for."""
    if dtype is float or dtype is int or dtype is complex:
        return default(np.dtype(dtype))
    out = np.dtype(dtype)
    if out not in NARROW and not (out in _WIDE and compat.host_mode()):
        raise Unsupported("JAX warns of this dtype")
    return out


# A kind is what decides the dtype of a result: a dtype, a type of Python numbers, or a weak dtype.


class Weak(tuple):
    """The kind of an array of weak type."""


def with_kind(x):
    """(values, kind) of an operand; Unsupported unless an array or a number."""
    kind = type(x)
    if kind is np.ndarray:
        if x.dtype not in NARROW:
            x = _narrow(x)
        return x, x.dtype
    if kind is Array:
        if not compat.is_on_host(x):
            raise Unsupported("an array of another device")
        values = np.asarray(x)
        if values.dtype not in NARROW:
            values = _narrow(values)
        return values, Weak((values.dtype,)) if is_weak(x) else values.dtype
    if kind is int:
        if not -2147483648 <= x <= 2147483647:
            raise Unsupported("JAX refuses large numbers")
        return x, int
    if kind is float:
        if abs(x) > 3.4e38 and x - x == 0:
            raise Unsupported("JAX warns of large numbers")
        return x, float
    if kind in NUMBERS:
        return x, kind
    values = raw(x)
    return values, values.dtype


def example(kind, shape=()):
    """An abstract operand of a kind."""
    if type(kind) is Weak:
        return jax.ShapeDtypeStruct(shape, kind[0], weak_type=True)
    return kind(1) if kind in NUMBERS else jax.ShapeDtypeStruct(shape, kind)


def asked(fun, *operands, **params) -> tuple[np.dtype, bool]:
    """(dtype, weak) of what a function of JAX makes of operands like these."""
    out = jax.eval_shape(lambda *xs: fun(*xs, **params), *operands)
    return out.dtype, out.weak_type and out.dtype != BOOL


def finish(x, weak: bool):
    """A result: raw, or an array of JAX where the type is weak (NumPy has no word for that)."""
    if weak:
        return compat.put(np.asarray(x), weak=True)
    return own(x)


def arrive(x: Any) -> Any:
    """A raw array as an array of JAX; all else unchanged. A writable array is copied first.

    `jax.jit` takes raw arrays as they are, and faster.
    """
    if type(x) is not np.ndarray:
        return x
    if x.flags.writeable or (type(x.base) is np.ndarray and x.base.flags.writeable):
        x = x.copy()
    if x.dtype in NARROW:
        return compat.put(x)
    return x if x.dtype.kind in "OSUMm" or x.dtype.names else jax.device_put(x)


def arrive_all(tree: Any) -> Any:
    """`arrive` for what stands for arrays of JAX within lists, tuples, dicts and slices.

    Arrays that the user may write to are the user's, and stay; so does the very list, tuple or dict
    that holds nothing of ours.
    """
    kind = type(tree)
    if kind is np.ndarray:
        return arrive(tree) if is_raw(tree) else tree
    named = issubclass(kind, tuple) and hasattr(kind, "_fields")
    if kind is tuple or kind is list or named:
        parts = [arrive_all(part) for part in tree]
        same = all(a is b for a, b in zip(parts, tree, strict=True))
        return tree if same else kind(*parts) if named else kind(parts)
    if kind is dict:
        parts = {key: arrive_all(value) for key, value in tree.items()}
        return tree if all(parts[key] is tree[key] for key in tree) else parts
    if kind is slice:
        return slice(arrive_all(tree.start), arrive_all(tree.stop), arrive_all(tree.step))
    return tree


def host_value(tree: Any) -> Any:
    """The arrays of JAX within `tree` as views of NumPy, where they lie on the CPU."""
    return jax.tree.map(_view, tree)


def _view(x):
    if type(x) is Array and not is_weak(x) and compat.is_on_host(x):
        return np.asarray(x)
    return x


class _Quiet(Arithmetic):
    """A way to run NumPy as XLA computes: without denormal numbers, and without warnings.

    Entering `np.errstate` costs 1.5 us; running in a context where errors are off, 0.1 us.
    """

    def __init__(self):
        super().__init__()
        self.context = contextvars.copy_context()
        self.context.run(np.seterr, all="ignore")

    def run(self, fun, *args, **kwargs) -> Any:
        return self.flushed(self.context.run, (fun, *args), kwargs)


QUIET = _Quiet()
