"""Equations taken apart: operation, parameters a file may hold, operands. One table by primitive.

Loops, branches and calls get parameters that mean the same in every version of JAX. Any other
equation keeps those of its primitive, if that is one JAX lists and they are plain values.
"""

import re
from typing import Any

import jax
from jax.sharding import NamedSharding

from malleable import compat
from malleable.errors import MalleableError
from malleable.inspection.files import derivatives
from malleable.inspection.files.format import values
from malleable.inspection.files.format.parameters import SILENT
from malleable.inspection.files.reading import Reader
from malleable.notes import note
from malleable.programs.primitives import kind
from malleable.python_source.source import closed_over

WAY_OUT = "save it without transformable=True: as StableHLO it can be called, though not changed"


def take_equation(reader: Reader, eqn: compat.Eqn) -> tuple[str, dict[str, Any], list]:
    """(operation, params, operands). Raises MalleableError for what no file holds."""
    name = eqn.primitive.name
    if any(compat.is_ref(v.aval) for v in (*eqn.invars, *eqn.outvars)):
        raise _refusal(eqn, "it works on a mutable reference (jax.new_ref)")
    if name in _TAKE:
        operation, params = _TAKE[name](reader, eqn)
        return operation, params, list(eqn.invars)
    if name in REFUSED:
        raise _refusal(eqn, REFUSED[name])
    if compat.has_marker(eqn):
        raise _refusal(eqn, "it is a marker that a transformation is still to remove")
    if compat.bodies(eqn.params):
        raise _refusal(eqn, getattr(compat.view(eqn), "why", "it carries a body of its own"))
    if compat.named_primitives().get(name) is not eqn.primitive:
        raise _refusal(eqn, "it is none of the primitives that JAX lists")
    return name, telling_params(eqn), list(eqn.invars)


def telling_params(eqn: compat.Eqn) -> dict:
    """The parameters of an equation, those left out that say nothing."""
    params = {name: None if _is_whole(name, p) else p for name, p in eqn.params.items()}
    silent = {n for n, p in params.items() if p is None and (eqn.primitive.name, n) in SILENT}
    params = {name: p for name, p in params.items() if name not in silent}
    for name, value in params.items():
        try:
            values.encode(value)
        except values.Unwritable as err:
            raise _refusal(eqn, f"its parameter {name!r} is {err}") from None
    return params


def _is_whole(name: str, value) -> bool:
    """Whether this is a sharding that leaves every axis whole."""
    placed = name in ("sharding", "out_sharding") and isinstance(value, NamedSharding)
    return placed and not any(value.spec)


def _refusal(eqn, why: str) -> MalleableError:
    return MalleableError(
        f"`{eqn.primitive}` cannot go into a transformable file: {why}",
        hint="take it out before saving" if eqn.primitive.name in _CALLBACKS else WAY_OUT,
    )


_CALLBACKS = kind("callback") - {"ffi_call"}
_CALLS_BACK = "it calls Python, and a file holds no code"
REFUSED = {
    **dict.fromkeys(_CALLBACKS, _CALLS_BACK),
    "ffi_call": "it calls compiled code that is not in the file",
    "custom_vmap_call": "its batching rule is a Python function of any size",
    "custom_transpose_call": "its transposition rule is a Python function",
    "custom_partitioning": "its partitioning rule is a Python function",
}


# ---------------------------------------------------------------- calls


def _jit(reader, eqn):
    p = eqn.params
    body = reader.body(p["jaxpr"], re.sub(r"\W+", "_", p["name"]))
    params = {"body": body, "name": p["name"]}
    params |= {"keep_unused": True} if p["keep_unused"] else {}
    params |= {"donated": tuple(p["donated_invars"])} if any(p["donated_invars"]) else {}
    for side in ("in_shardings", "out_shardings"):
        placed = [s if isinstance(s, jax.sharding.Sharding) else None for s in p[side]]
        if any(isinstance(s, NamedSharding) for s in placed):
            params[side] = tuple(s if isinstance(s, NamedSharding) else None for s in placed)
        if any(s is not None and not isinstance(s, NamedSharding) for s in placed):
            note("left out where a jit puts its values", compat.where(eqn), "it named one device")
    if p["compiler_options_kvs"]:
        params["compiler_options"] = dict(p["compiler_options_kvs"])
    return "jit", params


def _inlined(reader, eqn):
    """A call that says no more than a name."""
    body = compat.bodies(eqn.params)[0]
    lost = compat.INLINED[eqn.primitive.name]
    if lost:
        note(f"`{eqn.primitive}` became a plain call", compat.where(eqn), f"it lost {lost}")
    return "jit", {"body": reader.body(body), "name": str(eqn.params.get("name", "call"))}


def _checkpoint(reader, eqn):
    p = eqn.params
    params = {"body": reader.body(compat.close(p["jaxpr"])), "prevent_cse": p["prevent_cse"]}
    policy = policy_name(p["policy"])
    if policy is None:
        why = "its policy is a function of the user's"
        note("a checkpoint will keep nothing", compat.where(eqn), why)
    params |= {"policy": policy} if policy else {}
    return "checkpoint", params | ({"differentiated": True} if p["differentiated"] else {})


_BY_NAMES = {
    "saveonlythesenames": "save_only_these_names",
    "saveanythingexceptthesenames": "save_anything_except_these_names",
    "saveanynamesbutthese": "save_any_names_but_these",
}


def policy_name(policy) -> tuple[str, ...] | None:
    """(name of one of jax.checkpoint_policies, names it takes); () for none, None for another."""
    if policy is None:
        return ()
    for name in dir(jax.checkpoint_policies):
        known = getattr(jax.checkpoint_policies, name)
        if policy is known or (type(policy) is type(known) and _are_stateless(policy, known)):
            return (name,)
    made = getattr(policy, "__qualname__", type(policy).__name__).partition(".")[0]
    name = _BY_NAMES.get(made.replace("_", "").lower())
    held = [*closed_over(policy).values(), *vars(policy).values()]
    held = [x for x in held if isinstance(x, set | frozenset)]
    if name and len(held) == 1 and all(isinstance(x, str) for x in held[0]):
        return name, *sorted(held[0])
    return None


def _are_stateless(policy, known) -> bool:
    """Whether two policies, objects of one class, have nothing in them that could differ."""
    return not callable(getattr(type(policy), "__get__", None)) and policy == known


# ---------------------------------------------------------------- branches and loops


def _cond(reader, eqn):
    view: Any = compat.view(eqn)
    branches = view.branches
    roles = ("if_false", "if_true") if len(branches) == 2 else ("branch",) * len(branches)
    refs = tuple(reader.body(b, _wish(b, role)) for b, role in zip(branches, roles, strict=True))
    platforms = eqn.params.get("branches_platforms")
    return "cond", {"branches": refs} | ({"platforms": platforms} if platforms else {})


def _scan(reader, eqn):
    view: Any = compat.view(eqn)
    consts, carry, _ = view.split(eqn.invars)
    counts = {"consts": len(consts), "carry": len(carry), "length": view.length}
    how = {"reverse": bool(view.reverse), "unroll": int(view.unroll)}
    return "scan", {"body": reader.body(view.body, _wish(view.body, "step")), **counts, **how}


def _while(reader, eqn):
    view: Any = compat.view(eqn)
    tests, consts, _ = view.split(eqn.invars)
    refs = {"test": reader.body(view.cond, "test"), "body": reader.body(view.body, "body")}
    return "while", {**refs, "test_consts": len(tests), "body_consts": len(consts)}


def _wish(body, role: str) -> str:
    called = compat.spoken_of(body)[0]
    return called if called.isidentifier() else role


# ---------------------------------------------------------------- bodies of other kinds


def _shard_map(reader, eqn):
    p = eqn.params
    view: Any = compat.view(eqn)
    with compat.inside(eqn):
        body = reader.body(view.body)
    mesh = values.encode_mesh(p["mesh"])["mesh"]
    how = {"axes": tuple(view.axes), "check": p["check_vma"]}
    specs = {"in_specs": tuple(p["in_specs"]), "out_specs": tuple(p["out_specs"])}
    return "shard_map", {"body": body, "mesh": tuple(map(tuple, mesh)), **specs, **how}


def _linear_solve(reader, eqn):
    jaxprs, lengths = eqn.params["jaxprs"], eqn.params["const_lengths"]
    names = ("matvec", "vecmat", "solve", "transpose_solve")
    refs = {n: reader.body(getattr(jaxprs, n), n) for n in names if getattr(jaxprs, n) is not None}
    return "linear_solve", refs | {"consts": tuple(getattr(lengths, n) for n in names)}


def _reduce(reader, eqn):
    body = reader.body(compat.bodies(eqn.params)[0], "combine")
    return "reduce", {"body": body, "dimensions": tuple(eqn.params["dimensions"])}


def _reduce_window(reader, eqn):
    body = reader.body(compat.bodies(eqn.params)[0], "combine")
    kept = ("window_dimensions", "window_strides", "padding", "base_dilation", "window_dilation")
    return "reduce_window", {"body": body} | {name: eqn.params[name] for name in kept}


def _scatter(reader, eqn):
    p = eqn.params
    how = {n: p[n] for n in ("dimension_numbers", "indices_are_sorted", "unique_indices", "mode")}
    kind = eqn.primitive.name
    update = p["update_jaxpr"]
    if kind == "scatter" and update is not None and update.eqns:  # lax.scatter_apply
        return "scatter_apply", {"body": reader.body(compat.close(update), "update"), **how}
    return kind, how


def _device_put(reader, eqn):
    if any(d is not None for d in eqn.params["devices"]):
        note("left out where a device_put puts its values", compat.where(eqn), "devices differ")
    return "device_put", {}


def _random_wrap(reader, eqn):
    return "random_wrap", {"impl": compat.key_kind(eqn.params["impl"])}


def _sharding_constraint(reader, eqn):
    sharding = eqn.params["sharding"]
    if not isinstance(sharding, NamedSharding):
        note("left out a sharding constraint", compat.where(eqn), "it names devices")
        return "copy", {}
    return "sharding_constraint", {"sharding": sharding}


def _hidden(reader, eqn):
    """A function of JAX's that hides its body and derivative in an object (from JAX 0.11)."""
    name = type(eqn.params["_prim"]).__name__
    if name not in _EXPANDED:
        raise _refusal(eqn, f"JAX hides the body of {name} in an object")
    return derivatives.expanded(reader, eqn, name)


_SCATTERS = kind("write") - {"dynamic_update_slice"}
_EXPANDED = {"SearchSorted", "Nonzero", "Frexp", "Ldexp", "Einsum"}

_TAKE = {
    **dict.fromkeys(("jit", "pjit"), _jit),
    **dict.fromkeys(("remat", "remat2", "checkpoint"), _checkpoint),
    **dict.fromkeys((n for n in compat.INLINED if n not in {*REFUSED, "linear_call"}), _inlined),
    **dict.fromkeys(_SCATTERS, _scatter),
    "custom_jvp_call": lambda reader, eqn: ("custom_jvp", derivatives.custom_jvp(reader, eqn)),
    "custom_vjp_call": lambda reader, eqn: ("custom_vjp", derivatives.custom_vjp(reader, eqn)),
    "cond": _cond,
    "scan": _scan,
    "while": _while,
    "shard_map": _shard_map,
    "custom_linear_solve": _linear_solve,
    "linear_loop": lambda reader, eqn: ("linear_loop", derivatives.linear_loop(reader, eqn)),
    "reduce": _reduce,
    "reduce_window": _reduce_window,
    "device_put": _device_put,
    "random_wrap": _random_wrap,
    "sharding_constraint": _sharding_constraint,
    "call_hi_primitive": _hidden,
}
