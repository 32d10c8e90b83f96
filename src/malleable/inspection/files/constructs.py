"""Loops, branches, calls and derivatives of a file, built with the public functions of JAX.

A table from operation to make(builder, params, args) -> results, the counterpart of `structures`.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from malleable import compat
from malleable.core.frame import select
from malleable.errors import MalleableError
from malleable.inspection.files.format import types, values
from malleable.inspection.files.format.program import Constant
from malleable.programs.evaluate import evaluate
from malleable.programs.primitives import kind


def array(constant: Constant):
    """A constant as an array of JAX."""
    kind = types.parse(constant.type)
    if kind.key:
        return jax.random.wrap_key_data(jnp.asarray(constant.value), impl=kind.key)
    if kind.dtype == jax.dtypes.float0:
        return np.zeros(kind.shape, jax.dtypes.float0)
    made = jnp.asarray(constant.value)
    return compat.convert(made, kind.dtype, True) if kind.weak else made


def check(x, kind: str, what: str) -> None:
    """Raise MalleableError unless a value has a type, weak or not."""
    got = types.unparse(jax.typeof(x))
    if types.plain(got) != types.plain(kind):
        raise MalleableError(f"{what} is {types.plain(got)}, the file says {types.plain(kind)}")


def fit_type(x, kind: str, what: str):
    """A value of a type, made weak or strong as the type is."""
    check(x, kind, what)
    aval, weak = jax.typeof(x), kind.startswith("~")
    if getattr(aval, "weak_type", False) == weak or not compat.is_array(x):
        return x
    return compat.convert(x, aval.dtype, weak)


# ---------------------------------------------------------------- calls


def _flagged(fun: Callable) -> Callable:
    """A checkpointed function as inside a gradient, where XLA may not undo it."""

    def step(eqn, args):
        return compat.copy(eqn.replace(params=eqn.params | {"differentiated": True}), args)

    return lambda *args: evaluate(jax.make_jaxpr(fun)(*args), args, step)


def _rename(fun: Callable, name: str) -> Callable:
    fun.__name__ = fun.__qualname__ = name
    return fun


def _jit(b, p, args):
    donated = tuple(i for i, d in enumerate(p.get("donated", ())) if d)
    options: dict[str, Any] = {"donate_argnums": donated} if donated else {}
    options |= {"keep_unused": True} if p.get("keep_unused") else {}
    for side in ("in_shardings", "out_shardings"):
        if side in p:
            options[side] = list(p[side]) if side == "out_shardings" else tuple(p[side])
    if "compiler_options" in p:
        options["compiler_options"] = p["compiler_options"]
    key = ("jit", p["body"], str(p))
    if key not in b.made:
        b.body(p["body"])
        run = _rename(lambda *xs: b.run(p["body"], xs), str(p["name"]))
        b.made[key] = jax.jit(run, **options)
    return b.made[key](*args)


def _checkpoint(b, p, args):
    policy = None
    if p.get("policy"):
        name, *saved = p["policy"]
        if name not in dir(jax.checkpoint_policies) or name.startswith("_"):
            raise MalleableError(f"there is no checkpoint policy {name!r}")
        policy = getattr(jax.checkpoint_policies, name)
        policy = policy(*saved) if saved else policy
    run = lambda *xs: b.run(p["body"], xs)  # noqa: E731
    kept = jax.checkpoint(run, prevent_cse=p["prevent_cse"], policy=policy)
    return (_flagged(kept) if p.get("differentiated") else kept)(*args)


# ---------------------------------------------------------------- branches and loops


def _cond(b, p, args):
    index, *args = args
    runs = [lambda *xs, ref=ref: b.run(ref, xs) for ref in p["branches"]]
    platforms = {"branches_platforms": p["platforms"]} if p.get("platforms") else {}

    def step(eqn, xs):
        if eqn.primitive.name == "clamp":  # the index is known to be in range
            return [index]
        told = platforms if eqn.primitive.name == "cond" else {}
        return compat.copy(eqn.replace(params=eqn.params | told), xs)

    made = compat.trace(lambda index, *xs: lax.switch(index, runs, *xs), index, *args)
    return evaluate(made, [index, *args], step)


def _scan(b, p, args):
    n, m = p["consts"], p["consts"] + p["carry"]
    kinds = [kind for _, kind in b.body(p["body"]).ins]
    carry = [fit_type(x, k, "a carry") for x, k in zip(args[n:m], kinds[n:m], strict=True)]

    def step(carry, xs):
        outs = b.run(p["body"], [*args[:n], *carry, *xs])
        return outs[: p["carry"]], outs[p["carry"] :]

    how = {"length": p["length"], "reverse": p["reverse"], "unroll": p["unroll"]}
    carry, ys = lax.scan(step, carry, list(args[m:]), **how)
    return [*carry, *ys]


def _while(b, p, args):
    n, m = p["test_consts"], p["test_consts"] + p["body_consts"]
    kinds = [kind for _, kind in b.body(p["body"]).ins][p["body_consts"] :]
    start = [fit_type(x, k, "a carry") for x, k in zip(args[m:], kinds, strict=True)]
    test = lambda carry: b.run(p["test"], [*args[:n], *carry])[0]  # noqa: E731
    step = lambda carry: b.run(p["body"], [*args[n:m], *carry])  # noqa: E731
    if not jax.eval_shape(test, start).shape:
        return lax.while_loop(test, step, start)

    def some(carry):  # of vmap: one test per example; those that are done keep what they have
        return select(test(carry), step(carry), list(carry))

    return lax.while_loop(lambda carry: jnp.any(test(carry)), some, start)


# ---------------------------------------------------------------- derivatives


def _split(values: list, likes: list) -> tuple[list, list]:
    """Tangents for every type, from those of the types that have one; what is left over."""
    rest = iter(values)
    make = lambda a: next(rest) if compat.differentiable(a) else _nothing(a)  # noqa: E731
    return [make(a) for a in likes], list(rest)


def _nothing(aval):
    return np.zeros(aval.shape, jax.dtypes.float0)


def _avals(kinds) -> list:
    return [types.parse(kind).aval for _, kind in kinds]


def _moving(tangents, avals) -> list:
    pairs = zip(tangents, avals, strict=True)
    return [t for t, a in pairs if compat.differentiable(a)]


def _refusing(b, p, args):
    """A function whose derivative is not in the file: it says so where it is asked for."""
    body = b.body(p["body"])
    key = ("refuses", p["body"], str(p["refuses"]))
    if key not in b.made:
        call = jax.custom_jvp(_rename(lambda *xs: b.run(p["body"], xs), body.called or body.name))

        def rule(primals, tangents):
            if not all(isinstance(t, jax.custom_derivatives.SymbolicZero) for t in tangents):
                hint = "differentiate the function it was saved from"
                raise MalleableError(f"no derivative of {p['refuses']}", hint=hint)
            outs = call(*primals)
            return outs, list(map(compat.zero_tangent, map(jax.typeof, outs)))

        call.defjvp(rule, symbolic_zeros=True)
        b.made[key] = call
    return b.made[key](*args)


def _custom_jvp(b, p, args):
    if "refuses" in p:
        return _refusing(b, p, args)
    body = b.body(p["body"])
    b.body(p["jvp"])
    key = ("custom_jvp", p["body"], p["jvp"])
    if key not in b.made:
        call = jax.custom_jvp(_rename(lambda *xs: b.run(p["body"], xs), body.called or body.name))
        ins = _avals(body.ins)

        @call.defjvp
        def rule(primals, tangents):
            flat = b.run(p["jvp"], [*primals, *_moving(tangents, ins)])
            n = len(body.outs)
            outs = flat[:n]
            return outs, _split(flat[n:], [jax.typeof(x) for x in outs])[0]

        b.made[key] = call
    return b.made[key](*args)


def _custom_vjp(b, p, args):
    if "refuses" in p:
        return _refusing(b, p, args)
    body = b.body(p["body"])
    for name in ("forward", "backward"):
        b.body(p[name])
    key = ("custom_vjp", p["body"], p["forward"], p["backward"])
    if key not in b.made:
        call = jax.custom_vjp(_rename(lambda *xs: b.run(p["body"], xs), body.called or body.name))
        ins, outs = _avals(body.ins), []

        def forward(*args):
            flat = b.run(p["forward"], args)
            n = len(body.outs)
            outs[:] = map(jax.typeof, flat[:n])
            return flat[:n], flat[n:]

        def backward(res, cts):
            back = b.run(p["backward"], [*res, *_moving(cts, outs)])
            return tuple(_split(back, ins)[0])

        call.defvjp(forward, backward)
        b.made[key] = call
    return b.made[key](*args)


def _linear_loop(b, p, args):
    n = p["count"]
    key = ("linear_loop", p["forward"], p["transpose"])
    if key not in b.made:
        both = [lambda r, x, ref=p[k]: b.run(ref, [*r, *x]) for k in ("forward", "transpose")]
        b.made[key] = both
    forward, transpose = b.made[key]
    return compat.linear_call(forward, transpose, args[:n], args[n:])


def _linear_solve(b, p, args):
    consts, start = [], 0
    for length in p["consts"]:
        consts.append(args[start : start + length])
        start += length
    matvec, _, solve, transpose_solve = consts
    symmetric = p.get("vecmat") is not None and p["vecmat"] == p["matvec"]

    def run(name, given):
        return lambda x: b.run(p[name], [*given, *x])

    back = run("transpose_solve", transpose_solve) if "transpose_solve" in p else None
    rest = args[start:]
    forth = run("solve", solve)
    aux = len(b.body(p["solve"]).outs) - len(rest)
    apart = (lambda f: lambda x: _aux(f(x), len(rest))) if aux else (lambda f: f)
    outs = lax.custom_linear_solve(
        run("matvec", matvec),
        list(rest),
        lambda _, x: apart(forth)(x),
        transpose_solve=None if back is None else lambda _, x: apart(back)(x),
        symmetric=symmetric,
        has_aux=bool(aux),
    )
    return jax.tree.leaves(outs)


def _aux(flat, n):
    return flat[:n], flat[n:]


# ---------------------------------------------------------------- the rest


def _shard_map(b, p, args):
    mesh = values.decode_mesh({"mesh": p["mesh"]})
    options = {"axis_names": set(p["axes"])} if len(p["axes"]) < len(mesh.axis_names) else {}
    return jax.shard_map(
        lambda *xs: b.run(p["body"], xs),
        mesh=mesh,
        in_specs=tuple(p["in_specs"]),
        out_specs=list(p["out_specs"]),
        check_vma=p["check"],
        **options,
    )(*args)


def _reduce(b, p, args):
    n = len(args) // 2
    combine = lambda x, y: b.run(p["body"], [*x, *y])  # noqa: E731
    return lax.reduce(args[:n], args[n:], combine, p["dimensions"])


def _reduce_window(b, p, args):
    n = len(args) // 2
    kept = ("window_dimensions", "window_strides", "padding", "base_dilation", "window_dilation")
    combine = lambda x, y: b.run(p["body"], [*_listed(x), *_listed(y)])  # noqa: E731
    rest = [p[name] for name in kept]
    return lax.reduce_window(list(args[:n]), list(args[n:]), combine, *rest)


def _listed(x) -> list:
    return list(x) if isinstance(x, list | tuple) else [x]


def _scatter(name: str):
    def make(b, p, args):
        return [getattr(lax, name)(*args, **p)]

    return make


def _scatter_apply(b, p, args):
    rest = {name: x for name, x in p.items() if name != "body"}
    x, indices, updates = args
    fun = lambda x: b.run(p["body"], [x, jnp.zeros((), updates.dtype)])[0]  # noqa: E731
    return [lax.scatter_apply(x, indices, fun, update_shape=updates.shape, **rest)]


TABLE: dict[str, Callable] = {
    "jit": _jit,
    "checkpoint": _checkpoint,
    "cond": _cond,
    "scan": _scan,
    "while": _while,
    "custom_jvp": _custom_jvp,
    "custom_vjp": _custom_vjp,
    "linear_loop": _linear_loop,
    "linear_solve": _linear_solve,
    "shard_map": _shard_map,
    "reduce": _reduce,
    "reduce_window": _reduce_window,
    "scatter": _scatter("scatter"),
    **{f"scatter-{how}": _scatter(f"scatter_{how}") for how in ("add", "sub", "mul", "min", "max")},
    "scatter_apply": _scatter_apply,
    "device_put": lambda b, p, args: jax.device_put(list(args)),
    "random_wrap": lambda b, p, args: ([jax.random.wrap_key_data(args[0], impl=p["impl"])]),
    "random_unwrap": lambda b, p, args: [jax.random.key_data(args[0])],
    "sharding_constraint": lambda b, p, args: [
        lax.with_sharding_constraint(args[0], p["sharding"])
    ],
}

# primitives with bodies: they are built by the table above or not at all
RESERVED = kind("call") | {"custom_linear_solve", "select_and_scatter"} | {"swap", "get"}
