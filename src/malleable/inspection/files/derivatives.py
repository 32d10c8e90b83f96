"""Custom derivatives in a file: their rules are Python functions, and become programs.

A rule is traced with every tangent present. One that calls the function it belongs to refers to
it by name, so that derivatives of any order use it. Where a rule cannot be traced (it may be there
to say that there is no derivative), the file says so, and so does who differentiates it.
"""

import functools
import types as python
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from malleable import compat
from malleable.inspection.files.format import types
from malleable.inspection.files.format.program import Ref
from malleable.notes import note
from malleable.programs.equations import every
from malleable.python_source.source import closed_over

# how deep rules of rules go, each of another function, and how many equations they may have
DEPTHS = {5: 3_000, 3: 10_000, 2: 30_000, 1: None}


class TooMuch(Exception):
    """Rules of rules are more than a file should hold: they are read again, less deep."""


def custom_jvp(reader, eqn: compat.Eqn) -> dict[str, Any]:
    """{body, jvp}: jvp(*args, *tangents of those that have one) -> outs, tangents likewise."""
    view: Any = compat.view(eqn)
    return _once(reader, eqn, view.body, {"jvp": _forward_rule(reader, eqn, view.jvp)})


def _forward_rule(reader, eqn: compat.Eqn, jvp: Callable) -> Callable[[str], Ref]:
    """jvp(args, tangents) -> (outs, tangents) as a body, without tangents that have no value."""
    avals, results = ([v.aval for v in side] for side in (eqn.invars, eqn.outvars))

    def rule(name):
        def run(*flat):
            outs, douts = jvp(flat[: len(avals)], filled(flat[len(avals) :], avals))
            return [*outs, *moving(douts, results)]

        return _staged(reader, eqn, run, [*avals, *tangents(avals)], name)

    return rule


def custom_vjp(reader, eqn: compat.Eqn) -> dict[str, Any]:
    """{body, forward, backward}: forward(*args) -> outs, kept; backward(kept, cotangents).

    kept: what the forward rule hands on, any number of values. Cotangents of what has none, such
    as integers, are left out on both sides.
    """
    view: Any = compat.view(eqn)
    avals, results = ([v.aval for v in side] for side in (eqn.invars, eqn.outvars))
    kept: list = []

    def forward(name):
        def run(*args):
            outs, res = view.fwd(*args)
            return [*outs, *res]

        ref = _staged(reader, eqn, run, avals, name, kept)
        kept[:] = kept[len(results) :]
        return ref

    def backward(name):
        def run(*flat):
            res, rest = flat[: len(kept)], flat[len(kept) :]
            return moving(view.bwd(list(res), filled(rest, results)), avals)

        return _staged(reader, eqn, run, [*kept, *tangents(results)], name)

    return _once(reader, eqn, view.body, {"forward": forward, "backward": backward})


def linear_loop(reader, eqn: compat.Eqn) -> dict[str, Any]:
    """{forward, transpose, count} of a linear function of ours that knows its transpose."""
    p, n = eqn.params, eqn.params["count"]
    ins, outs = ([v.aval for v in vs] for vs in (eqn.invars, eqn.outvars))
    run = {name: _apart(p[name], n) for name in ("forward", "transpose")}
    forward = _staged(reader, eqn, run["forward"], ins, reader.reserve("forward"))
    back = _staged(reader, eqn, run["transpose"], ins[:n] + outs, reader.reserve("transpose"))
    return {"forward": forward, "transpose": back, "count": n}


def _apart(fun: Callable, n: int) -> Callable:
    return lambda *flat: fun(list(flat[:n]), list(flat[n:]))


def expanded(reader, eqn: compat.Eqn, name: str) -> tuple[str, dict[str, Any]]:
    """A function that hides its body: a call, or one with a custom derivative if it has any."""
    body, key = compat.expanded(eqn), (name, str(eqn.params["_prim"].params))
    if not all(tangents([v.aval for v in side]) for side in (eqn.outvars, eqn.invars)):
        return "jit", {"body": reader.body(body, name.lower()), "name": name.lower()}
    along = lambda *xs: compat.bind(eqn, xs)  # noqa: E731
    rule = _forward_rule(reader, eqn, lambda args, dots: jax.jvp(along, args, tuple(dots)))
    return "custom_jvp", _once(reader, eqn, body, {"jvp": rule}, key)


# ---------------------------------------------------------------- tangents


def tangents(avals) -> list:
    """The types of the tangents of those values that have any."""
    smooth = filter(compat.differentiable, avals)
    return [compat.array_type(a.shape, a.dtype).update(**_varying(a)) for a in smooth]


def _varying(aval) -> dict:
    kind = getattr(aval, "manual_axis_type", None)
    known = {"manual_axis_type": kind} if kind is not None else {"vma": compat.varying(aval)}
    return known | {"sharding": aval.sharding}


def filled(given, avals) -> list:
    """One tangent per value, that of an integer being nothing."""
    rest, none = iter(given), jax.dtypes.float0
    return [next(rest) if compat.differentiable(a) else np.zeros(a.shape, none) for a in avals]


def moving(given, avals) -> list:
    """The tangents of those values that have any."""
    return [t for t, a in zip(given, avals, strict=True) if compat.differentiable(a)]


# ---------------------------------------------------------------- rules, once


def _staged(reader, eqn, fun, avals, name: str, outs: list | None = None) -> Ref:
    """A function of a rule as a body under a name."""
    program = compat.trace(fun, *avals)
    if outs is not None:
        outs[:] = program.out_avals
    reader.spent += sum(1 for _ in every(program.eqns))
    if reader.budget is not None and reader.spent > reader.budget:
        raise TooMuch
    known = [f"x{i}" for i in range(len(eqn.invars))]
    return reader.read(program, name, [*known, *(f"t{i}" for i in range(len(avals) - len(known)))])


def _once(reader, eqn, body, rules: dict[str, Callable], identity=None) -> dict[str, Any]:
    """{body, *rules} as references: read once for equations of one function on equal types.

    {body, refuses} where there are no rules to be had: refuses says why.
    """
    parts: list = []
    _dig([p for p in eqn.params.values() if _is_rule(p)], parts, set())
    kinds = tuple(types.unparse(v.aval) for v in (*eqn.invars, *eqn.outvars))
    key = (eqn.primitive.name, kinds, tuple(parts), identity)
    active, known = reader.rules.setdefault("active", {}), reader.rules.setdefault("known", {})
    if key in active or key in known:
        return active.get(key) or known[key]
    called = compat.spoken_of(body)[0]
    base = called if called.isidentifier() else "custom"
    if len(active) >= reader.depth:
        why = f"its derivatives are in the file up to order {reader.depth}"
        return {"body": reader.body(body, base), "refuses": f"`{base}`: {why}"}
    reader.rules.setdefault("alive", []).append(eqn)  # so that nothing gets the id of its parts
    plain, before = reader.body(body, base), reader.checkpoint()
    refs = {name: Ref(reader.reserve(f"{base}_{name}")) for name in rules}
    known[key] = active[key] = {"body": plain, **refs}
    try:
        for name, make in rules.items():
            make(refs[name].name)
    except TooMuch:
        raise
    except Exception as err:  # a user-defined rule may raise anything
        reader.restore(before)
        why = str(getattr(err, "what", err)).partition("\n")[0]
        known[key] = {"body": plain, "refuses": f"`{base}`: {why}"}
        note(f"saved `{base}` without its derivative", compat.where(eqn), why)
    finally:
        active.pop(key, None)
    return known[key]


def _is_rule(x) -> bool:
    return hasattr(x, "transforms") or isinstance(x, python.FunctionType)


# what JAX wraps rules in, more of it with each trace; its own rules live elsewhere
_TRACING = tuple(
    f"jax._src.{x}" for x in ("api", "core", "custom_", "interpreters.", "linear_util")
)
_SIMPLE = (str, bytes, int, float, complex, bool, type(None), np.dtype, np.generic)


def _dig(x, parts: list, seen: set, user: bool = False) -> None:
    """Collect what a rule is made of, so that equal parts mean the same rule.

    user: we are in a user function, where everything counts. Of JAX's rules only their code
    does, and of the functions in which it wraps rules only what they lead to.
    """
    if isinstance(x, tuple | list | frozenset):
        parts.extend([len(x)] * user)
        for part in x:
            _dig(part, parts, seen, user)
    elif hasattr(x, "transforms"):  # a function wrapped for tracing
        steps = [p for t in x.transforms for p in (t if isinstance(t, tuple) else (t,))]
        for part in (x.f, *steps):
            _dig(part, parts, seen)
    elif isinstance(x, python.FunctionType):
        _dig_function(x, parts, seen)
    elif isinstance(x, functools.partial):
        for part in (x.func, *x.args, *x.keywords.values()):
            _dig(part, parts, seen, user)
    elif not user and hasattr(type(x), "reset"):  # where a trace puts a tree, once
        return
    elif not user and hasattr(x, "val"):  # a static argument
        _dig(x.val, parts, seen, True)
    elif user and isinstance(x, _SIMPLE):
        parts.append((type(x).__name__, str(x)))
    elif isinstance(x, jax.tree_util.PyTreeDef) or hasattr(x, "str_short"):
        parts.extend([x] * user)
    elif user or callable(x):
        parts.append(id(x))


def _dig_function(fun, parts: list, seen: set) -> None:
    if id(fun) in seen:
        parts.append("again")
        return
    seen.add(id(fun))
    module = str(getattr(fun, "__module__", ""))
    user = not module.startswith("jax._src.")
    inside = [*closed_over(fun).values()]
    parts.extend([id(fun.__code__)] * (not module.startswith(_TRACING)))
    if user:
        inside += [fun.__defaults__, *(fun.__kwdefaults__ or {}).values()]
    for part in inside:
        _dig(part, parts, seen, user)
