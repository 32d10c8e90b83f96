"""Types of values: their size, their text, and which of them are random keys."""

import math
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp


def is_key(x: Any) -> bool:
    """Whether an array, or a type, is of random keys.

    >>> is_key(jax.random.key(0)), is_key(jnp.zeros(2)), is_key("a key")
    (True, False, False)
    """
    dtype = getattr(x, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)


def bytes_of(x: Any) -> int:
    """Bytes of an array, or of a value of a type; 0 for what has no shape.

    A size that is a symbol counts as 1.

    >>> bytes_of(jnp.zeros((2, 3))), bytes_of(jax.typeof(1.0))
    (24, 4)
    """
    if not hasattr(x, "shape") or not hasattr(x, "dtype"):
        return 0
    sizes = (n if isinstance(n, int) else 1 for n in x.shape)
    return math.prod(sizes) * getattr(x.dtype, "itemsize", 4)


def identity(name: str, dtype) -> Any:
    """The number that changes nothing in a reduction, cumulative, of windows or by a scatter.

    >>> identity("reduce_max", jnp.dtype("float32")), identity("cumprod", jnp.dtype("int32"))
    (-inf, 1)
    """
    match name.removeprefix("cum").replace("-", "_").rpartition("_")[2]:
        case "sum" | "add" | "or" | "xor":
            return 0
        case "prod" | "mul":
            return 1
        case "and":
            return np.bitwise_not(np.zeros((), dtype))
        case "max" | "logsumexp":
            least = True
        case "min":
            least = False
        case _:
            raise ValueError(f"{name} has no identity that is known")
    if jnp.issubdtype(dtype, jnp.inexact):
        return -np.inf if least else np.inf
    if jnp.issubdtype(dtype, bool):
        return not least
    return jnp.iinfo(dtype).min if least else jnp.iinfo(dtype).max


def type_text(x: Any) -> str:
    """The type of an array, or a type, as `float32[8,2]`."""
    shape = ",".join(map(str, getattr(x, "shape", ())))
    return f"{getattr(x, 'dtype', x)}[{shape}]"


def short_type(x: Any) -> str:
    """The type of a value, or a type, as JAX writes it in short: `f32[8,2]`."""
    aval = x if hasattr(x, "str_short") else jax.typeof(x)
    return aval.str_short(short_dtypes=True)
