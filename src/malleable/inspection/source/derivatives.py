"""Custom derivatives as Python, for `export.source`: a function, its rules, and how they meet."""

from collections.abc import Sequence
from typing import Any

from malleable.inspection.files.format import types
from malleable.inspection.files.format.program import Body, Number
from malleable.inspection.source.layout import atom, fresh, indent, pack, tupled, unpack, variables
from malleable.inspection.source.structures import Role


def custom(writer: Any, name: str, body: Body, params: dict) -> list[list[str]]:
    """A function with a custom derivative, and its rules. writer: as in `as_source`."""
    plain = writer.function(name, body, Role())
    if "refuses" in params:
        why = f"no derivative of {params['refuses']}"
        count = len(body.outs)
        return [["@jax.custom_jvp", *plain], [f"_no_derivative({name}, {why!r}, {count == 1})"]]
    if "jvp" in params:
        return [["@jax.custom_jvp", *plain], _jvp(writer, name, body, params)]
    rules = [_forward(writer, name, body, params), _backward(writer, name, body, params)]
    told = [f"{name}.defvjp({name}_forward, {name}_backward)"]
    return [["@jax.custom_vjp", *plain], *rules, told]


def _jvp(writer, name: str, body: Body, params: dict) -> list[str]:
    rule = writer.program.bodies[params["jvp"].name]
    n = len(body.ins)
    known = [x for x, _ in rule.ins]
    primals, tangents = (fresh(w, variables(rule)) for w in ("primals", "tangents"))
    kinds = [kind for _, kind in body.ins]
    first = unpack(known[:n], primals) + unpack(_filled(known[n:], kinds), tangents)
    outs = list(map(atom, rule.outs))
    values, dots = outs[: len(body.outs)], iter(outs[len(body.outs) :])
    moved = [
        next(dots) if _moves(kind) else f"np.zeros({types.parse(kind).shape}, jax.dtypes.float0)"
        for kind in _results(writer, body)
    ]
    result = f"return {pack(values)}, {pack(moved)}"
    head = [f"@{name}.defjvp", f"def {name}_jvp({primals}, {tangents}):"]
    return [*head, *indent([*first, *writer.equations(rule), result])]


def _forward(writer, name: str, body: Body, params: dict) -> list[str]:
    rule = writer.program.bodies[params["forward"].name]
    n = len(body.outs)
    kept = list(map(atom, rule.outs))
    args = ", ".join(x for x, _ in rule.ins)
    result = f"return {pack(kept[:n])}, {tupled(kept[n:])}"
    return [f"def {name}_forward({args}):", *indent([*writer.equations(rule), result])]


def _backward(writer, name: str, body: Body, params: dict) -> list[str]:
    rule = writer.program.bodies[params["backward"].name]
    n = len(body.outs)
    count = len(writer.program.bodies[params["forward"].name].outs) - n
    known = [x for x, _ in rule.ins]
    res, cotangents = (fresh(w, variables(rule)) for w in ("res", "cotangents"))
    kinds = _results(writer, body)
    first = unpack(known[:count], res) + unpack(_filled(known[count:], kinds), cotangents, n)
    back = iter(map(atom, rule.outs))
    whole = [next(back) if _moves(kind) else "None" for _, kind in body.ins]
    result = f"return {tupled(whole)}"
    head = f"def {name}_backward({res}, {cotangents}):"
    return [head, *indent([*first, *writer.equations(rule), result])]


def _filled(moving: Sequence[str], kinds: Sequence[str]) -> list[str]:
    rest = iter(moving)
    return [next(rest) if _moves(kind) else "_" for kind in kinds]


def _moves(kind: str) -> bool:
    return types.plain(kind).startswith(("float", "bfloat", "complex")) and "float0" not in kind


def _results(writer, body: Body) -> list[str]:
    """The types of the results of a body."""
    kinds = writer.kinds(body)
    return [a.type if isinstance(a, Number) else kinds[a] for a in body.outs]


NO_DERIVATIVE = '''def _no_derivative(fun, why, single):
    """Give a function a rule that says that it has no derivative."""

    def rule(primals, tangents):
        if not all(isinstance(t, jax.custom_derivatives.SymbolicZero) for t in tangents):
            raise NotImplementedError(why)
        outs = fun(*primals)
        zero = jax.custom_derivatives.zero_from_primal
        return outs, zero(outs) if single else tuple(map(zero, outs))

    fun.defjvp(rule, symbolic_zeros=True)'''
