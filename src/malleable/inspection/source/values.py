"""Values as Python expressions, for `export.source`: numbers, arrays, parameters of primitives."""

import base64

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from malleable import compat
from malleable.errors import MalleableError
from malleable.inspection.files.format import types
from malleable.inspection.files.format.program import Constant, Number
from malleable.inspection.files.format.values import (
    ENUMS,
    RECORDS,
    Unwritable,
    decode_array,
    encode,
)

_SMALL = 16  # numbers of an array that are written out
_HOMES = {"MemorySpace": "jax.memory.Space", "AxisType": "jax.sharding.AxisType"}
_HOMES |= {kind: f"lax.linalg.{kind}" for kind in ENUMS if hasattr(lax.linalg, kind)}


def spell_dtype(dtype) -> str:
    """A dtype as an expression.

    >>> spell_dtype(np.dtype("float32")), spell_dtype(np.dtype(bool))
    ('jnp.float32', 'jnp.bool_')
    """
    name = types.spell_dtype(dtype)
    if name.startswith("key<"):
        return f"jax.random.key(0, impl={name[4:-1]!r}).dtype"
    return {"bool": "jnp.bool_", "float0": "jax.dtypes.float0"}.get(name, f"jnp.{name}")


def spell(value) -> str:
    """A parameter as an expression. Raises MalleableError for one that has none.

    >>> spell((1, lax.Precision.HIGHEST, None))
    '(1, lax.Precision.HIGHEST, None)'
    """
    try:
        return _written(encode(value))
    except Unwritable:
        raise MalleableError(
            f"{value!r} cannot be written as source", hint="save the function with malleable.save"
        ) from None


def _written(found) -> str:
    """A value as a file holds it, as an expression."""
    if isinstance(found, list):
        return f"({', '.join(map(_written, found))}{',' * (len(found) == 1)})"
    if not isinstance(found, dict):
        return repr(found)
    kind, content = next(iter(found.items()))
    if kind in ENUMS:
        return f"{_HOMES.get(kind, f'lax.{kind}')}.{content}"
    if kind in RECORDS:
        return f"lax.{kind}({', '.join(f'{name}={_written(x)}' for name, x in content.items())})"
    match kind:
        case "float":
            return f'float("{content}")'
        case "primitive":
            return spell_primitive(content)
        case "dtype" if content in types.PLAIN:
            return f"jnp.dtype({content!r})"
        case "dtype":
            return spell_dtype(types.parse_dtype(content))
        case "set":
            return f"frozenset([{', '.join(map(_written, content))}])"
        case "list":
            return f"[{', '.join(map(_written, content))}]"
        case "dict":
            return "{" + ", ".join(f"{_written(k)}: {_written(x)}" for k, x in content) + "}"
        case "spec":
            return f"jax.P({', '.join(map(_written, content))})"
        case "sharding":
            mesh, spec = content
            return f"jax.NamedSharding({spell_mesh_of(mesh['mesh'])}, {_written(spec)})"
        case "array":
            return f"np.asarray({spell_constant(decode_array(found))})"
    raise Unwritable(kind)


def spell_mesh_of(axes) -> str:
    """A mesh of axes (name, size, kind)."""
    names, sizes = tuple(n for n, _, _ in axes), tuple(k for _, k, _ in axes)
    kinds = ", ".join("Explicit" if k == "Explicit" else "Auto" for _, _, k in axes)
    made = ", ".join(f"jax.sharding.AxisType.{k}" for k in kinds.split(", ") if k)
    return f"jax.make_mesh({spell(sizes)}, {spell(names)}, axis_types=({made},))"


def spell_primitive(name: str) -> str:
    """Where a primitive is found.

    >>> spell_primitive("sin"), spell_primitive("random_bits")
    ('lax.sin_p', 'primitives.random_bits_p')
    """
    prim = compat.named_primitives()[name]
    for table, where in (
        (vars(lax), "lax"),
        (vars(lax.linalg), "lax.linalg"),
        (compat.primitives(), "primitives"),
    ):
        attribute = next((n for n, x in table.items() if x is prim and n.endswith("_p")), "")
        if attribute:
            return f"{where}.{attribute}"
    return f"compat.named_primitives()[{name!r}]"


def spell_number(number: Number, plain: bool) -> str:
    """A number; plain: as Python writes it, where it takes its type from its neighbour."""
    kind = types.parse(number.type)
    value = np.asarray(number.value)
    if value.dtype == jax.dtypes.float0:
        return "np.zeros((), jax.dtypes.float0)"
    text = _exact(value)
    if text is None:
        raw = f"np.frombuffer(bytes.fromhex({value.tobytes().hex()!r}), {spell(kind.dtype)})"
        return f"jnp.asarray({raw}[0])"
    default = value.dtype in _defaults()
    if plain or (kind.weak and default):
        return f"({text})" if text.startswith("-") else text
    made = f"{spell_dtype(kind.dtype).replace('jnp.', 'np.')}({text})"
    if not hasattr(np, spell_dtype(kind.dtype).partition(".")[2]):
        made = f"np.asarray({text}, {spell_dtype(kind.dtype)})"
    return made


def _defaults() -> list[np.dtype]:
    """What Python's numbers are as arrays."""
    return [jnp.asarray(x).dtype for x in (False, 0, 0.0, 0j)]


def _exact(value: np.ndarray) -> str | None:
    """The shortest text that gives a number back bit by bit, None where there is none."""
    dtype = value.dtype
    if dtype.kind == "c":
        parts = [_exact(part) for part in (np.real(value), np.imag(value))]
        return None if None in parts else f"complex({parts[0]}, {parts[1]})"
    readable = [lambda: repr(value.item())]
    if dtype in (np.dtype("float32"), np.dtype("float64")):  # others might be rounded twice
        readable.insert(0, lambda: repr(float(str(value))))
    elif dtype.kind in "fV":
        readable = [lambda: repr(float(value))]
    for read in readable:
        try:
            text = read()
            number = float(text) if dtype.kind in "fV" else value.item()
            again = np.asarray(number, dtype)
        except (ValueError, TypeError, OverflowError):
            continue
        if again.tobytes() == value.tobytes():
            return {"nan": "jnp.nan", "inf": "jnp.inf", "-inf": "-jnp.inf"}.get(text, text)
    return None


def spell_constant(constant: Constant) -> str:
    """An array as an expression: written out if it is small, else through `_array`."""
    kind = types.parse(constant.type)
    value = np.asarray(constant.value)
    if value.dtype == jax.dtypes.float0:
        return f"np.zeros({value.shape}, jax.dtypes.float0)"
    texts = [_exact(x) for x in value.reshape(-1)] if 0 < value.size <= _SMALL else [None]
    dtype = spell_dtype(value.dtype)
    if all(texts):
        made = f"jnp.array({_nested(texts, value.shape)}, {dtype})"
    else:
        data = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
        made = f"_array({dtype}, {value.shape}, {data!r})"
    if kind.weak:
        return make_weak(made, kind.dtype, True)
    if kind.key:
        return f"jax.random.wrap_key_data({made}, impl={kind.key!r})"
    return made


def make_weak(text: str, dtype, weak: bool) -> str:
    """A value as one whose type gives way, as that of a Python number, or as one whose does not."""
    told = f"new_dtype={spell(np.dtype(dtype))}, weak_type={weak}, sharding=None"
    return f"lax.convert_element_type_p.bind({text}, {told})"


WIDE = """if not jax.config.jax_enable_x64:
    raise RuntimeError("this program has types of 64 bits: set jax_enable_x64")"""


def _nested(texts: list, shape: tuple[int, ...]) -> str:
    if not shape:
        return texts[0]
    step = len(texts) // shape[0] if shape[0] else 0
    rows = [_nested(texts[i * step : (i + 1) * step], shape[1:]) for i in range(shape[0])]
    return f"[{', '.join(rows)}]"


def needs(text: str) -> list[str]:
    """The lines that a module of this text begins with."""
    lines = ["import jax", "import jax.numpy as jnp"]
    lines += ["import numpy as np"] * ("np." in text.replace("jnp.", ""))
    lines += ["from jax import lax"] * ("lax." in text)
    lines += ["from jax.extend.core import primitives"] * ("primitives." in text)
    lines += ["from malleable import compat"] * ("compat." in text)
    first = ["import base64"] * ("_array(" in text) + ["import collections"] * (
        "collections." in text
    )
    first += ["from functools import partial"] * ("partial(" in text)
    lines = [*first, *[""] * bool(first), *lines]
    if "_array(" in text:
        lines += ["", "", "def _array(dtype, shape, text):"]
        lines += ['    """An array bit by bit."""']
        lines += ["    data = np.frombuffer(base64.b64decode(text), dtype)"]
        lines += ["    return jnp.asarray(data.reshape(shape))"]
        if "import numpy as np" not in lines:
            lines.insert(lines.index("import jax.numpy as jnp") + 1, "import numpy as np")
    return lines
