"""One equation of one primitive as a Python expression, for `export.source`."""

import functools
import inspect
from collections.abc import Callable

from jax import lax

from malleable.inspection.files.format import types
from malleable.inspection.files.format.parameters import completed
from malleable.inspection.files.format.program import Equation, Number
from malleable.inspection.source.values import (
    make_weak,
    spell,
    spell_dtype,
    spell_number,
    spell_primitive,
)

_OPERATORS = {
    "add": "+", "add_any": "+", "sub": "-", "mul": "*", "div": "/",
    "and": "&", "or": "|", "xor": "^",
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
}  # fmt: skip
_REDUCTIONS = {
    "reduce_sum": "sum", "reduce_max": "max", "reduce_min": "min", "reduce_prod": "prod",
    "reduce_and": "all", "reduce_or": "any",
}  # fmt: skip
_JNP = {
    *("sin", "cos", "tan", "tanh", "sinh", "cosh", "exp", "log", "log1p", "expm1", "sqrt", "abs"),
    *("sign", "floor", "ceil"),
}


def expression(eqn: Equation, kinds: list[str]) -> str:
    """The results of an equation. kinds: the types of its operands."""
    write = _WRITE.get(eqn.operation)
    found = write(eqn, kinds) if write else None
    return found or _by_name(eqn, kinds) or _bound(eqn)


def operands(eqn: Equation) -> list[str]:
    """The operands as they stand anywhere: numbers with their types."""
    return [spell_number(a, False) if isinstance(a, Number) else a for a in eqn.ins]


def _bound(eqn: Equation) -> str:
    """The primitive itself."""
    given = completed(eqn.operation, eqn.params)
    params = [f"{name}={spell(p)}" for name, p in given.items()]
    args = [f"jnp.asarray({x})" if isinstance(a, Number) else x for a, x in _pairs(eqn)]
    return f"{spell_primitive(eqn.operation)}.bind({', '.join([*args, *params])})"


def _pairs(eqn: Equation):
    return zip(eqn.ins, operands(eqn), strict=True)


def _by_name(eqn: Equation, kinds: list[str]) -> str | None:
    """The function of lax of the same name, if it takes the same operands and parameters."""
    name = eqn.operation.replace("-", "_")
    taken = _parameters(name)
    if taken is None or not set(eqn.params) <= set(taken):
        return None
    count = len(taken) - len([n for n in taken if n in eqn.params or taken[n] is not _NEEDED])
    if count != len(eqn.ins) or name in _OTHERWISE:
        return None
    module = "jnp" if name in _JNP and _is_float(kinds) else "lax"
    params = [f"{n}={spell(p)}" for n, p in eqn.params.items()]
    return f"{module}.{name}({', '.join([*operands(eqn), *params])})"


_NEEDED = inspect.Parameter.empty
# these mean other things
_OTHERWISE = {"dynamic_slice", "dynamic_update_slice", "reduce", "conj", "top_k_"}


@functools.cache
def _parameters(name: str) -> dict | None:
    try:
        found = inspect.signature(getattr(lax, name)).parameters
    except (AttributeError, TypeError, ValueError):
        return None
    return {n: p.default for n, p in found.items() if p.kind is not p.VAR_POSITIONAL}


def _is_float(kinds: list[str]) -> bool:
    return all(types.plain(k).startswith(("float", "bfloat")) for k in kinds)


def _dtype(kind: str) -> str:
    return types.plain(kind).partition("[")[0]


def _dims(kind: str) -> tuple[int, ...]:
    return types.parse(kind).shape


# ---------------------------------------------------------------- operators


def _operator(eqn: Equation, kinds: list[str]) -> str | None:
    if eqn.operation == "div" and not _is_float(kinds) and not _dtype(kinds[0]).startswith("c"):
        return None
    if all(isinstance(a, Number) for a in eqn.ins) or eqn.params:
        return None
    plain = all(k.startswith("~") for k in kinds) or not any(
        k.startswith("~") for a, k in zip(eqn.ins, kinds, strict=True) if isinstance(a, str)
    )
    easy = _dtype(kinds[0]) in ("float32", "float64", "bfloat16", "float16", "int32", "int64")
    a, b = (spell_number(x, plain and easy) if isinstance(x, Number) else x for x in eqn.ins)
    return f"{a} {_OPERATORS[eqn.operation]} {b}"


def _astype(eqn, kinds):
    (x,), dtype = operands(eqn), eqn.params["new_dtype"]
    if eqn.params.get("weak_type") or eqn.params.get("sharding") is not None:
        return None
    if _dtype(kinds[0]).startswith("complex") and not types.spell_dtype(dtype).startswith(
        "complex"
    ):
        return None  # with a warning otherwise
    if types.spell_dtype(dtype).startswith("key<"):
        return None
    made = x if isinstance(eqn.ins[0], str) else f"jnp.asarray({x})"
    return f"{made}.astype({spell_dtype(dtype)})"


def converted(text: str, kind: str, weak: bool) -> str:
    """A value of a type as a weak or a strong one."""
    return make_weak(text, types.parse(kind).dtype, weak)


# ---------------------------------------------------------------- shapes


def _broadcast(eqn, kinds):
    (x,), shape = operands(eqn), tuple(eqn.params["shape"])
    dims, old = tuple(eqn.params["broadcast_dimensions"]), _dims(kinds[0])
    new = [d for d in range(len(shape)) if d not in dims]
    if not old and not isinstance(eqn.ins[0], str):
        return f"jnp.full({spell(shape)}, {x})" if not kinds[0].startswith("~") else None
    same = dims == tuple(sorted(dims)) and tuple(shape[d] for d in dims) == old
    if same and new and all(shape[d] == 1 for d in new):
        return f"jnp.expand_dims({x}, {spell(tuple(new) if len(new) > 1 else new[0])})"
    if dims == tuple(range(len(shape) - len(dims), len(shape))):
        return f"jnp.broadcast_to({x}, {spell(shape)})"
    return None


def _reshape(eqn, kinds):
    if eqn.params.get("dimensions") is not None or not isinstance(eqn.ins[0], str):
        return None
    return f"{eqn.ins[0]}.reshape({spell(tuple(eqn.params['new_sizes']))})"


def _transpose(eqn, kinds):
    order = tuple(eqn.params["permutation"])
    if order == (1, 0):
        return f"{eqn.ins[0]}.T"
    return f"jnp.transpose({eqn.ins[0]}, {spell(order)})"


def _slice(eqn, kinds):
    p = eqn.params
    steps = p.get("strides") or (1,) * len(p["start_indices"])
    if any(step != 1 for step in steps) or not isinstance(eqn.ins[0], str):
        return None
    sizes = _dims(kinds[0])
    parts = []
    for start, stop, size in zip(p["start_indices"], p["limit_indices"], sizes, strict=True):
        parts.append(f"{start or ''}:{stop if stop != size else ''}")
    while parts[1:] and parts[-1] == ":":
        parts.pop()
    return f"{eqn.ins[0]}[{', '.join(parts)}]"


def _iota(eqn, kinds):
    p = eqn.params
    dtype, shape = spell_dtype(p["dtype"]), tuple(p["shape"])
    if len(shape) == 1:
        return f"lax.iota({dtype}, {shape[0]})"
    return f"lax.broadcasted_iota({dtype}, {spell(shape)}, {p['dimension']})"


def _reduction(eqn, kinds):
    dtype = _dtype(kinds[0])
    direct = dtype in ("float32", "float64", "complex64", "complex128", "bool")  # keep their type
    if not direct or eqn.params.get("out_sharding") is not None or isinstance(eqn.ins[0], Number):
        return None
    axes = tuple(eqn.params["axes"])
    every = axes == tuple(range(len(_dims(kinds[0]))))
    told = "" if every else f", axis={spell(axes[0] if len(axes) == 1 else axes)}"
    return f"jnp.{_REDUCTIONS[eqn.operation]}({eqn.ins[0]}{told})"


def _dot(eqn, kinds):
    p = eqn.params
    (left, right), batch = p["dimension_numbers"]
    wanted = p.get("preferred_element_type")
    dtypes = {_dtype(k) for k in kinds} | (
        {types.spell_dtype(wanted)} if wanted is not None else set()
    )
    ranks = [len(_dims(k)) for k in kinds]
    usual = [list(left), list(right)] == [[ranks[0] - 1], [0]] and not batch[0] and not batch[1]
    simple = usual and max(ranks) <= 2 and len(dtypes) == 1 and p.get("precision") is None
    names = all(isinstance(a, str) for a in eqn.ins)
    return f"{eqn.ins[0]} @ {eqn.ins[1]}" if simple and names else None


def _select(eqn, kinds):
    which, *cases = operands(eqn)
    if _dtype(kinds[0]) != "bool" or len(cases) != 2 or _dims(kinds[0]) != _dims(kinds[1]):
        return f"lax.select_n({', '.join(_as_arrays(eqn))})"
    return f"lax.select({which}, {cases[1]}, {cases[0]})"


def _as_arrays(eqn) -> list[str]:
    return [f"jnp.asarray({x})" if isinstance(a, Number) else x for a, x in _pairs(eqn)]


def _dynamic_slice(eqn, kinds):
    x, *starts = operands(eqn)
    sizes = spell(tuple(eqn.params["slice_sizes"]))
    return f"lax.dynamic_slice({x}, [{', '.join(starts)}], {sizes}, allow_negative_indices=False)"


def _dynamic_update(eqn, kinds):
    x, update, *starts = operands(eqn)
    at = ", ".join(starts)
    return f"lax.dynamic_update_slice({x}, {update}, [{at}], allow_negative_indices=False)"


def _arg(eqn, kinds):
    axes = eqn.params["axes"]
    told = f"{axes[0]}, {spell_dtype(eqn.params['index_dtype'])}"
    return f"lax.{eqn.operation}({eqn.ins[0]}, {told})" if len(axes) == 1 else None


def _sort(eqn, kinds):
    p = eqn.params
    args = operands(eqn)
    given = args[0] if len(args) == 1 else f"({', '.join(args)})"
    how = f"dimension={p['dimension']}, is_stable={p['is_stable']}, num_keys={p['num_keys']}"
    return f"lax.sort({given}, {how})"


def _barrier(eqn, kinds):
    args = operands(eqn)
    return f"lax.optimization_barrier(({', '.join(args)},))" if len(args) > 1 else None


def _seed(eqn, kinds):
    kind = types.parse(eqn.outs[0][1]).key
    return f"jax.random.key({operands(eqn)[0]}, impl={kind!r})" if not _dims(kinds[0]) else None


def _collective(call: str, eqn: Equation) -> str | None:
    if any(p is not None for n, p in eqn.params.items() if n != "axes") or len(eqn.ins) != 1:
        return None
    return call.format(operands(eqn)[0], spell(eqn.params["axes"]))


_WRITE: dict[str, Callable] = {
    **dict.fromkeys(_OPERATORS, _operator),
    **dict.fromkeys(_REDUCTIONS, _reduction),
    "neg": lambda eqn, kinds: f"-{eqn.ins[0]}" if isinstance(eqn.ins[0], str) else None,
    "not": lambda eqn, kinds: f"~{eqn.ins[0]}" if isinstance(eqn.ins[0], str) else None,
    "integer_pow": lambda eqn, kinds: (
        f"{eqn.ins[0]} ** {eqn.params['y']}" if isinstance(eqn.ins[0], str) else None
    ),
    "convert_element_type": _astype,
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "transpose": _transpose,
    "slice": _slice,
    "iota": _iota,
    "concatenate": lambda eqn, kinds: (
        f"jnp.concatenate([{', '.join(operands(eqn))}], axis={eqn.params['dimension']})"
    ),
    "stack": lambda eqn, kinds: (
        f"jnp.stack([{', '.join(operands(eqn))}], axis={eqn.params['axis']})"
    ),
    "dot_general": _dot,
    "select_n": _select,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update,
    "argmax": _arg,
    "argmin": _arg,
    "sort": _sort,
    "optimization_barrier": _barrier,
    "random_seed": _seed,
    "random_wrap": lambda eqn, kinds: (
        f"jax.random.wrap_key_data({operands(eqn)[0]}, impl={eqn.params['impl']!r})"
    ),
    "psum_invariant": lambda eqn, kinds: _collective("lax.psum({}, {})", eqn),
    "pvary": lambda eqn, kinds: _collective("lax.pcast({}, {}, to='varying')", eqn),
    "random_unwrap": lambda eqn, kinds: f"jax.random.key_data({operands(eqn)[0]})",
    "device_put": lambda eqn, kinds: f"jax.device_put([{', '.join(operands(eqn))}])",
    "copy": lambda eqn, kinds: f"jnp.copy({_as_arrays(eqn)[0]})",
    "sharding_constraint": lambda eqn, kinds: (
        f"lax.with_sharding_constraint({eqn.ins[0]}, {spell(eqn.params['sharding'])})"
    ),
}
