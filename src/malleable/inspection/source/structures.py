"""Equations with bodies as Python, for `export.source`: calls, loops, branches, derivatives.

A body becomes a function; how it takes its arguments depends on who calls it, its role.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from malleable.errors import MalleableError
from malleable.inspection.files.format import types
from malleable.inspection.files.format.program import Body, Equation, Number, Ref
from malleable.inspection.source.layout import atom, fresh, indent, pack, tupled, unpack, variables
from malleable.inspection.source.values import spell, spell_mesh_of


class Role(NamedTuple):
    """How a body is called. kind: "plain", "step", "test", "state", "jvp", "forward", "backward".

    consts: leading arguments that are bound beforehand; carry: of a step, how many go around;
    others: the types of the function that a rule belongs to, and of its results.
    """

    kind: str = "plain"
    consts: int = 0
    carry: int = 0
    others: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())


# name(ref, role) -> the name of the function for a body in a role
Namer = Callable[..., str]


def write(eqn: Equation, name: Namer, body: Callable[[Ref], Body]) -> str:
    """The expression that gives the results of an equation, as a tuple or alone if there is one."""
    return _WRITE[eqn.operation](eqn, name, body)


def has_bodies(eqn: Equation) -> bool:
    return eqn.operation in _WRITE


def arrays(eqn: Equation) -> list[str]:
    """The operands as arrays: a function may do with them what only arrays can."""
    return list(map(atom, eqn.ins))


def _bound(function: str, body: Body, consts: list[str]) -> str:
    """A function with its leading arguments given by name."""
    if not consts:
        return function
    given = zip([n for n, _ in body.ins], consts, strict=False)
    return f"partial({function}, {', '.join(f'{n}={x}' for n, x in given)})"


# ---------------------------------------------------------------- calls


def _jit(eqn, name, body):
    p = eqn.params
    donated = tuple(i for i, d in enumerate(p.get("donated", ())) if d)
    options = [f"donate_argnums={donated}"] * bool(donated)
    options += ["keep_unused=True"] * ("keep_unused" in p)
    for side in ("in_shardings", "out_shardings"):
        if side in p:
            placed = spell(p[side])
            single = side == "out_shardings" and len(p[side]) == 1
            options.append(f"{side}={spell(p[side][0]) if single else placed}")
    if "compiler_options" in p:
        options.append(f"compiler_options={spell(p['compiler_options'])}")
    call = f"jax.jit({', '.join([name(p['body'], Role()), *options])})"
    return f"{call}({', '.join(arrays(eqn))})"


def _checkpoint(eqn, name, body):
    p = eqn.params
    options = [] if p["prevent_cse"] else ["prevent_cse=False"]
    if p.get("policy"):
        known, *saved = p["policy"]
        made = f"jax.checkpoint_policies.{known}"
        options.append(
            f"policy={made}({', '.join(map(repr, saved))})" if saved else f"policy={made}"
        )
    call = f"jax.checkpoint({', '.join([name(p['body'], Role()), *options])})"
    return f"{call}({', '.join(arrays(eqn))})"


# ---------------------------------------------------------------- branches and loops


def _cond(eqn, name, body):
    index, *args = arrays(eqn)
    runs = [name(ref, Role()) for ref in eqn.params["branches"]]
    if "platforms" in eqn.params:
        names = eqn.params["platforms"]
        told = [f"{p}={r}" for ps, r in zip(names, runs, strict=True) for p in ps or ("default",)]
        return f"lax.platform_dependent({', '.join([*args, *told])})"
    return f"lax.switch({', '.join([index, '[' + ', '.join(runs) + ']', *args])})"


def cond(pred: str, eqn: Equation, name: Namer) -> str:
    """A branch on a bool, whose number is the index."""
    false, true = (name(ref, Role()) for ref in eqn.params["branches"])
    return f"lax.cond({', '.join([pred, true, false, *arrays(eqn)[1:]])})"


def _scan(eqn, name, body):
    p, args = eqn.params, arrays(eqn)
    n, m = p["consts"], p["consts"] + p["carry"]
    function = name(p["body"], Role("step", n, p["carry"]))
    step = _bound(function, body(p["body"]), args[:n])
    xs = pack(args[m:]) if args[m:] else "None"
    told = [f"length={p['length']}"] * (not args[m:])
    told += ["reverse=True"] * p["reverse"] + [f"unroll={p['unroll']}"] * (p["unroll"] != 1)
    return f"lax.scan({', '.join([step, pack(args[n:m]), xs, *told])})"


def _test_type(test: Body) -> str:
    """The type of what a test gives."""
    (out,) = test.outs
    known = dict(test.ins) | {n: k for e in test.equations for n, k in e.outs}
    return out.type if isinstance(out, Number) else known.get(out, "bool[]")


def _while(eqn, name, body):
    p, args = eqn.params, arrays(eqn)
    n, m = p["test_consts"], p["test_consts"] + p["body_consts"]
    test = _bound(name(p["test"], Role("state", n)), body(p["test"]), args[:n])
    step = _bound(name(p["body"], Role("state", p["body_consts"])), body(p["body"]), args[n:m])
    if types.parse(_test_type(body(p["test"]))).shape:  # of vmap: each example has its own test
        step = f"lambda state: _where({test}(state), {step}(state), state)"
        test = f"lambda state: jnp.any({test}(state))"
    return f"lax.while_loop({test}, {step}, {pack(args[m:])})"


# ---------------------------------------------------------------- derivatives


def _custom(eqn, name, body):
    function = name(eqn.params["body"], Role("custom"), eqn.params)
    return f"{function}({', '.join(arrays(eqn))})"


def _linear_loop(eqn, name, body):
    p, args = eqn.params, arrays(eqn)
    n = p["count"]
    runs = [name(p[k], Role()) for k in ("forward", "transpose")]
    both = [f"lambda _r, _x: _flat({run}(*_r, *_x))" for run in runs]
    return (
        f"compat.linear_call({', '.join(both)}, [{', '.join(args[:n])}], [{', '.join(args[n:])}])"
    )


def _linear_solve(eqn, name, body):
    p, args = eqn.params, arrays(eqn)
    parts, start = {}, 0
    for role, length in zip(
        ("matvec", "vecmat", "solve", "transpose_solve"), p["consts"], strict=True
    ):
        parts[role] = args[start : start + length]
        start += length
    rest = args[start:]
    if len(body(p["solve"]).outs) != len(rest):
        raise MalleableError(
            "a linear solve with further results cannot be written as source",
            hint="save the function with malleable.save",
        )

    def run(role):
        inside = ", ".join([*parts[role], "*_x"])
        return f"_flat({name(p[role], Role())}({inside}))"

    told = [f"lambda _x: {run('matvec')}", f"[{', '.join(rest)}]", f"lambda _, _x: {run('solve')}"]
    if "transpose_solve" in p:
        told.append(f"transpose_solve=lambda _, _x: {run('transpose_solve')}")
    told += ["symmetric=True"] * (p.get("vecmat") == p["matvec"])
    return f"lax.custom_linear_solve({', '.join(told)})"


# ---------------------------------------------------------------- the rest


def _shard_map(eqn, name, body):
    p = eqn.params
    mesh = spell_mesh_of(p["mesh"])
    outs = p["out_specs"]
    told = [
        name(p["body"], Role()),
        f"mesh={mesh}",
        f"in_specs={spell(tuple(p['in_specs']))}",
        f"out_specs={spell(outs[0]) if len(outs) == 1 else spell(tuple(outs))}",
    ]
    told += ["check_vma=False"] * (not p["check"])
    if len(p["axes"]) < len(p["mesh"]):
        told.append(f"axis_names={set(p['axes'])!r}")
    return f"jax.shard_map({', '.join(told)})({', '.join(arrays(eqn))})"


def _reduce(eqn, name, body):
    p, args = eqn.params, arrays(eqn)
    n = len(args) // 2
    combine = name(p["body"], Role())
    if n > 1:
        combine = f"lambda _x, _y: {combine}(*_x, *_y)"
    rest = [spell(p[key]) for key in p if key != "body"]
    told = [pack(args[:n]), pack(args[n:]), combine, *rest]
    return f"lax.{eqn.operation}({', '.join(told)})"


def _scatter_apply(eqn, name, body):
    p = eqn.params
    x, indices, updates = arrays(eqn)
    second = types.plain(body(p["body"]).ins[1][1]).partition("[")[0]
    zero = f"jnp.zeros((), jnp.{second})"
    told = [f"{key}={spell(value)}" for key, value in p.items() if key != "body"]
    told.append(f"update_shape={updates}.shape")
    fun = f"lambda _x: {name(p['body'], Role())}(_x, {zero})"
    return f"lax.scatter_apply({', '.join([x, indices, fun, *told])})"


_WRITE = {
    "jit": _jit,
    "checkpoint": _checkpoint,
    "cond": _cond,
    "scan": _scan,
    "while": _while,
    "custom_jvp": _custom,
    "custom_vjp": _custom,
    "linear_loop": _linear_loop,
    "linear_solve": _linear_solve,
    "shard_map": _shard_map,
    "reduce": _reduce,
    "reduce_window": _reduce,
    "scatter_apply": _scatter_apply,
}
LISTED = {"linear_loop", "linear_solve"}  # a list also for one result

# ---------------------------------------------------------------- custom derivatives


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
