"""Values as JSON, by a list of kinds that a file may hold; nothing else goes in or comes out.

Numbers, strings, booleans, None stand for themselves and a list for a tuple; anything else is an
object with one key that says what it is: {"dtype": "float32"}.
"""

import base64
import binascii
import contextlib
import enum
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from malleable import compat
from malleable.errors import MalleableError
from malleable.inspection.files.format import types
from malleable.inspection.files.format.program import Constant, Number, Ref

_NAMED = (
    lax.GatherDimensionNumbers,
    lax.ScatterDimensionNumbers,
    lax.ConvDimensionNumbers,
    lax.RaggedDotDimensionNumbers,
    lax.DotAlgorithm,
)
_ENUMS = (
    *(lax.GatherScatterMode, lax.Precision, lax.FftType, lax.RandomAlgorithm, lax.RoundingMethod),
    *(lax.DotAlgorithmPreset, lax.AccuracyMode, lax.linalg.SvdAlgorithm),
    *(lax.linalg.EigImplementation, lax.linalg.EighImplementation, compat.MemorySpace, AxisType),
)
RECORDS: dict[str, Any] = {kind.__name__: kind for kind in _NAMED}
ENUMS: dict[str, Any] = {kind.__name__: kind for kind in _ENUMS}


class Unwritable(Exception):
    """A value of a kind that no file may hold."""


def encode(value) -> Any:
    """A value as JSON. Raises Unwritable.

    >>> encode((1, None, np.dtype("float32"), lax.Precision.HIGHEST))
    [1, None, {'dtype': 'float32'}, {'Precision': 'HIGHEST'}]
    """
    match value:
        case enum.Enum() if type(value).__name__ in ENUMS:
            return {type(value).__name__: value.name}
        case None | bool() | str() | int():
            return value
        case np.bool_() | np.integer() | np.floating():
            return encode(value.item())
        case float():
            return value if math.isfinite(value) else {"float": str(value)}
        case Ref():
            return {"body": value.name}
        case compat.Primitive() if compat.named_primitives().get(value.name) is value:
            return {"primitive": value.name}
        case np.dtype():
            return {"dtype": types.spell_dtype(value)}
        case type() if issubclass(value, np.generic):
            return {"dtype": types.spell_dtype(np.dtype(value))}
        case PartitionSpec():
            return {"spec": [encode(axis) for axis in value]}
        case NamedSharding():
            typed = ["type"] * isinstance(value.mesh, jax.sharding.AbstractMesh)
            return {"sharding": [encode_mesh(value.mesh), encode(value.spec), *typed]}
        case frozenset():
            return {"set": [encode(x) for x in sorted(value, key=str)]}
        case np.ndarray():
            return encode_array(Constant(value, types.unparse(value)))
    return _encode_compound(value)


def _encode_compound(value) -> Any:
    name = type(value).__name__
    if RECORDS.get(name) is type(value):
        fields = getattr(value, "_fields", None) or list(value.__dataclass_fields__)
        return {name: {field: encode(getattr(value, field)) for field in fields}}
    if type(value) is tuple:
        return [encode(x) for x in value]
    if type(value) is list:
        return {"list": [encode(x) for x in value]}
    if type(value) is dict:
        return {"dict": [[encode(k), encode(v)] for k, v in value.items()]}
    kind = compat.key_kind(value)
    if isinstance(kind, str) and compat.key_implementation(kind) is value:
        return {"random": kind}
    if isinstance(kind, str) and compat.key_dtype(kind) == value:
        return {"dtype": types.spell_dtype(value)}
    return _refuse(value)


def _refuse(value):
    raise Unwritable(f"{value!r}, a {type(value).__module__}.{type(value).__qualname__}")


def encode_mesh(mesh) -> dict:
    """The axes of a mesh; not its devices."""
    kinds = [str(kind.name) for kind in mesh.axis_types]
    return {"mesh": [[str(n), int(mesh.shape[n]), k] for n, k in zip(mesh.axis_names, kinds)]}  # noqa: B905


def encode_array(constant: Constant) -> dict:
    """An array bit by bit."""
    data = np.ascontiguousarray(constant.value).astype(constant.value.dtype.newbyteorder("<"))
    return {"array": constant.type, "base64": base64.b64encode(data.tobytes()).decode()}


def encode_number(number: Number) -> dict:
    """A number by its type: readable if that keeps every bit.

    >>> encode_number(Number(np.float32(0.1), "float32[]"))
    {'float32[]': 0.1}
    >>> encode_number(Number(np.float32("nan"), "~float32[]"))
    {'~float32[]': '0000c07f'}
    """
    value = np.asarray(number.value)
    if value.dtype == jax.dtypes.float0:
        return {number.type: False}
    shortest = (lambda: float(str(value)),) if value.dtype.kind in "fV" else ()
    for readable in (*shortest, value.item):
        with contextlib.suppress(ValueError, TypeError, OverflowError):
            plain = readable()
            again = np.asarray(plain, value.dtype)
            simple = type(plain) in (bool, int, float) and math.isfinite(plain)
            if simple and again.tobytes() == value.tobytes():
                return {number.type: plain}
    return {number.type: value.tobytes().hex()}


# ---------------------------------------------------------------- and back


def decode(found) -> Any:
    """The value behind JSON. Raises MalleableError for what `encode` never writes."""
    if found is None or isinstance(found, bool | int | float | str):
        return found
    if isinstance(found, list):
        return tuple(map(decode, found))
    if not isinstance(found, dict) or not found:
        raise MalleableError(f"{found!r} is no value that a file holds")
    kind, content = next(iter(found.items()))
    if len(found) != 1 + (kind == "array"):
        raise MalleableError(f"{_shortened(found)} is no value that a file holds")
    if kind in ENUMS and content in ENUMS[kind].__members__:
        return ENUMS[kind][content]
    try:
        if kind in RECORDS:
            return RECORDS[kind](**{name: decode(x) for name, x in content.items()})
        if kind in _DECODE:
            return _DECODE[kind](found if kind == "array" else content)
    except (TypeError, ValueError, AttributeError, KeyError, AssertionError) as err:
        raise MalleableError(f"{_shortened(found)} is no value that a file holds") from err
    raise MalleableError(f"{_shortened(found)}: unknown kind of value {kind!r}")


def _shortened(found) -> str:
    text = repr(found)
    return text if len(text) < 80 else f"{text[:77]}..."


def _decode_float(text: str) -> float:
    if text not in ("nan", "inf", "-inf"):
        raise ValueError(text)
    return float(text)


def _decode_random(name: str) -> Any:
    found = compat.key_implementation(name)
    if found is None:
        raise MalleableError(
            f"there is no generator of random numbers {name!r} here",
            hint="define it before loading",
        )
    return found


def _decode_primitive(name: str) -> Any:
    return compat.named_primitives()[name]


def decode_mesh(found) -> jax.sharding.Mesh:
    """A mesh of devices of this machine, in their order."""
    axes = found["mesh"]
    names, sizes = tuple(str(a[0]) for a in axes), tuple(int(a[1]) for a in axes)
    need, have = math.prod(sizes), len(jax.devices())
    if need > have or need < 1:
        told = ", ".join(f"{n}: {k}" for n, k in zip(names, sizes, strict=True))
        raise MalleableError(
            f"the program runs on {need} devices ({told}), and there are {have} here",
            hint="XLA_FLAGS=--xla_force_host_platform_device_count=N makes more of a CPU",
        )
    kinds = tuple(AxisType.Explicit if a[2] == "Explicit" else AxisType.Auto for a in axes)
    return jax.make_mesh(sizes, names, axis_types=kinds, devices=jax.devices()[:need])


def _decode_spec(axes) -> PartitionSpec:
    return PartitionSpec(*map(decode, axes))


def _decode_sharding(found) -> NamedSharding:
    mesh, spec, *typed = found
    mesh = decode_mesh(mesh)
    return NamedSharding(mesh.abstract_mesh if typed else mesh, decode(spec))


def decode_array(found: dict) -> Constant:
    """The array behind what `encode_array` wrote; of random keys, their data."""
    if set(found) != {"array", "base64"}:
        raise MalleableError(f"{_shortened(found)} is no array")
    kind = types.parse(found["array"])
    try:
        data = base64.b64decode(found["base64"], validate=True)
    except (binascii.Error, TypeError, ValueError) as err:
        raise MalleableError(f"the data of an array {found['array']} is damaged") from err
    dtype, shape = kind.dtype, kind.shape
    if kind.key:
        inner = compat.key_implementation(kind.key).key_shape
        dtype, shape = np.dtype("uint32"), (*shape, *inner)
    if dtype == jax.dtypes.float0:
        dtype = np.dtype(bool)
    if len(data) != math.prod(shape) * dtype.itemsize:
        raise MalleableError(f"an array {found['array']} has {len(data)} bytes of data")
    if dtype == np.dtype(bool) and set(data) - {0, 1}:
        raise MalleableError(f"an array {found['array']} holds what is neither true nor false")
    return Constant(np.frombuffer(data, dtype).reshape(shape), found["array"])


def decode_number(found: dict) -> Number:
    """What `encode_number` wrote."""
    ((text, content),) = found.items()
    kind = types.parse(text)
    if kind.shape or kind.key or isinstance(content, dict | list):
        raise MalleableError(f"{found!r} is no number")
    if kind.dtype == jax.dtypes.float0:
        return Number(np.zeros((), kind.dtype), text)
    try:
        if isinstance(content, str):
            value = np.frombuffer(bytes.fromhex(content), kind.dtype).reshape(())
        else:
            value = np.asarray(content, kind.dtype)
    except (ValueError, TypeError, OverflowError) as err:
        raise MalleableError(f"{found!r} is no number") from err
    return Number(value, text)


_DECODE: dict[str, Callable] = {
    "float": _decode_float,
    "body": lambda name: Ref(str(name)),
    "dtype": types.parse_dtype,
    "spec": _decode_spec,
    "sharding": _decode_sharding,
    "set": lambda items: frozenset(map(decode, items)),
    "list": lambda items: list(map(decode, items)),
    "dict": lambda pairs: {decode(k): decode(v) for k, v in pairs},
    "random": _decode_random,
    "primitive": _decode_primitive,
    "array": decode_array,
}
