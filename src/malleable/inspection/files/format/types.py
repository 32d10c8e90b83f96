"""Types as text, `float32[3,4]`: `~` for Python numbers, `{i}` for what devices differ in."""

import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from malleable import compat
from malleable.errors import MalleableError

_PLAIN = "bool int2 int4 int8 int16 int32 int64 uint2 uint4 uint8 uint16 uint32 uint64 float16 "
_PLAIN += "bfloat16 float32 float64 complex64 complex128 float4_e2m1fn float8_e3m4 float8_e4m3 "
_PLAIN += "float8_e4m3b11fnuz float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz "
_PLAIN += "float8_e8m0fnu"
PLAIN = {name: np.dtype(getattr(jnp, name, name)) for name in _PLAIN.split() if hasattr(jnp, name)}
_WIDE = {"int64", "uint64", "float64", "complex128"}


class Type(NamedTuple):
    """dtype: keys included; key: their generator, or ""; weak: of a Python number."""

    dtype: Any
    shape: tuple[int, ...]
    weak: bool = False
    key: str = ""
    varies: tuple[str, ...] = ()

    @property
    def aval(self):
        return compat.array_type(self.shape, self.dtype, self.weak)


def spell_dtype(dtype) -> str:
    """The name of a dtype; random keys by their generator.

    >>> spell_dtype(np.dtype("float32")), spell_dtype(jax.random.key(0).dtype)
    ('float32', 'key<threefry2x32>')
    """
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return f"key<{compat.key_kind(dtype)}>"
    name = np.dtype(dtype).name
    if dtype == jax.dtypes.float0:
        return "float0"
    if name not in PLAIN:
        raise MalleableError(f"a file cannot hold values of dtype {name}", hint=_WIDTHS)
    return name


_WIDTHS = f"dtypes that it can hold: {', '.join(PLAIN)}, and random keys"


def parse_dtype(text: str) -> Any:
    """What `spell_dtype` spelled."""
    if text == "float0":
        return jax.dtypes.float0
    if text in PLAIN:
        return PLAIN[text]
    kind = re.fullmatch(r"key<([\w.\-]+)>", text)
    dtype = compat.key_dtype(kind[1]) if kind else None
    if dtype is None:
        raise MalleableError(
            f"there is no dtype {text!r} here",
            hint="define the generator of random keys before loading" if kind else _WIDTHS,
        )
    return dtype


def unparse(aval) -> str:
    """The type of a value as text.

    >>> unparse(jax.typeof(jnp.zeros((2, 3)))), unparse(jax.typeof(1.0))
    ('float32[2,3]', '~float32[]')
    """
    if compat.is_ref(aval) or not hasattr(aval, "shape") or not hasattr(aval, "dtype"):
        raise MalleableError(
            f"a file cannot hold a value of type {aval}",
            hint="return arrays and take arrays; keep mutable references and tokens inside",
        )
    weak = "~" if getattr(aval, "weak_type", False) else ""
    varies = ",".join(sorted(map(str, compat.varying(aval))))
    sizes = ",".join(map(str, aval.shape))
    return f"{weak}{spell_dtype(aval.dtype)}[{sizes}]" + (f"{{{varies}}}" if varies else "")


def parse(text: str) -> Type:
    """What `unparse` spelled, sizes being numbers. Raises MalleableError for anything else."""
    found = re.fullmatch(r"(~?)([^\[\]{}]+)\[((?:\d+(?:,\d+)*)?)\](?:\{([^{}]+)\})?", text)
    if not found:
        raise MalleableError(f"{text!r} is no type", hint='a type reads "float32[2,3]"')
    weak, dtype, sizes, varies = found.groups()
    shape = tuple(int(n) for n in sizes.split(",")) if sizes else ()
    key = dtype[4:-1] if dtype.startswith("key<") else ""
    if any(n >= 2**63 for n in shape):
        raise MalleableError(f"{text!r} is larger than an array can be")
    along = tuple(varies.split(",")) if varies else ()
    return Type(parse_dtype(dtype), shape, bool(weak), key, along)


def plain(text: str) -> str:
    """A type without what decides no value: weakness, and what varies over devices."""
    return text.lstrip("~").partition("{")[0]


def is_wide(aval) -> bool:
    """Whether this type asks for `jax_enable_x64`."""
    return str(getattr(aval, "dtype", "")) in _WIDE
