"""Which functions of JAX have a host function: TABLE[jnp.nonzero](x), in NumPy.

A host function takes some of the arguments of its namesake. It returns raw arrays, or raises: then
the function of JAX decides, also about the error.
"""

from collections.abc import Callable

import numpy as np
from jax import numpy as jnp

from malleable.execution.common.breaks import Unsupported
from malleable.execution.common.host_values import NARROW, Array, is_raw, own, raw
from malleable.execution.host.elementwise import ELEMENTWISE
from malleable.execution.host.reductions import REDUCTIONS
from malleable.execution.host.searches import SEARCHES
from malleable.execution.host.segments import SEGMENTS
from malleable.execution.host.shapes import SHAPES
from malleable.execution.host.statistics import STATISTICS

TABLE: dict[Callable, Callable] = (
    ELEMENTWISE | REDUCTIONS | SHAPES | SEARCHES | STATISTICS | SEGMENTS
)

__all__ = ["METHODS", "TABLE", "host_function"]

_SAME = """
    all any argmax argmin argsort clip conj conjugate cumprod cumsum diagonal dot max mean min
    nonzero prod ravel repeat round searchsorted squeeze std sum swapaxes take var compress
"""


def host_function(fun) -> Callable | None:
    """The host function of a function of JAX; None where there is none.

    NumPy's `float32` equals JAX's, but what it makes stays NumPy's.
    """
    if isinstance(fun, type) and issubclass(fun, np.generic):
        return None
    try:
        return TABLE.get(fun)
    except TypeError:  # no hash
        return None


def _of_many(fun: Callable) -> Callable:
    """x.reshape(2, 3) as x.reshape((2, 3))."""

    def method(x, *sizes, **params):
        if len(sizes) == 1:
            return fun(x, sizes[0], **params)
        return fun(x, sizes, **params) if sizes else fun(x, **params)

    return method


def _scalar_method(kind: type) -> Callable:
    """float(x) and the like of a scalar."""

    def convert(x, /):
        if type(x) is Array:
            x = np.asarray(x)
        elif not is_raw(x):
            raise Unsupported("no array of JAX")
        if x.ndim:
            raise Unsupported("JAX refuses vectors")
        return kind(x)

    return convert


def _length(x, /):
    if not is_raw(x):
        raise Unsupported("no array of JAX")
    return len(x)


def _array(x, /):
    """np.array of an array of JAX: the user's from here on."""
    if not is_raw(x):
        raise Unsupported("no array of JAX")
    return x.astype(x.dtype.type)


def _asarray(x, /):
    """np.asarray of an array of JAX, which is not to be written to."""
    out = _array(x)
    out.setflags(write=False)
    return out


TABLE |= {kind: _scalar_method(kind) for kind in (bool, int, float, complex)}
TABLE |= {len: _length, np.asarray: _asarray, np.array: _array}


def _item(x):
    if type(x) is Array:
        x = np.asarray(x)
    if x.dtype not in NARROW or x.size != 1:
        raise Unsupported("no number")
    return x.item()


def _sort(x, axis=-1):
    return TABLE[jnp.sort](x, axis)


METHODS: dict[str, Callable] = {name: TABLE[getattr(jnp, name)] for name in _SAME.split()}
METHODS |= {
    "reshape": _of_many(TABLE[jnp.reshape]),
    "transpose": _of_many(TABLE[jnp.transpose]),
    "flatten": TABLE[jnp.ravel],
    "sort": _sort,
    "astype": TABLE[jnp.astype],
    "item": _item,
    "tolist": lambda x: raw(x).tolist(),
    "copy": lambda x: own(raw(x)),
    "ptp": TABLE[jnp.ptp],
    "trace": TABLE[jnp.trace],
}
