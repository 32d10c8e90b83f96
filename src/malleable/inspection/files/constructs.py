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
from malleable.inspection.files.derivatives import filled, moving
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


def _made_once(make: Callable) -> Callable:
    """A construct whose function, make(b, p), is one for all equations with these parameters."""

    def built(b, p, args):
        key = (make.__name__, str(p))
        if key not in b.made:
            b.made[key] = make(b, p)
        return b.made[key](*args)

    return built


def _body_function(b, ref, name: str | None = None) -> Callable:
    """A body as a function, under its own name or another."""
    body = b.body(ref)
    run = lambda *xs: b.run(ref, xs)  # noqa: E731
    run.__name__ = run.__qualname__ = (body.called or body.name) if name is None else name
    return run


@_made_once
def _jit(b, p):
    donated = tuple(i for i, d in enumerate(p.get("donated", ())) if d)
    options: dict[str, Any] = {"donate_argnums": donated} if donated else {}
    options |= {"keep_unused": True} if p.get("keep_unused") else {}
    for side in ("in_shardings", "out_shardings"):
        if side in p:
            options[side] = list(p[side]) if side == "out_shardings" else tuple(p[side])
    if "compiler_options" in p:
        options["compiler_options"] = p["compiler_options"]
    return jax.jit(_body_function(b, p["body"], str(p["name"])), **options)


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


def _avals(kinds) -> list:
    return [types.parse(kind).aval for _, kind in kinds]


def _refusing(b, p):
    """A function whose derivative is not in the file: it says so where it is asked for."""
    call = jax.custom_jvp(_body_function(b, p["body"]))

    def rule(primals, tangents):
        if not all(isinstance(t, jax.custom_derivatives.SymbolicZero) for t in tangents):
            hint = "differentiate the function it was saved from"
            raise MalleableError(f"no derivative of {p['refuses']}", hint=hint)
        outs = call(*primals)
        return outs, list(map(compat.zero_tangent, map(jax.typeof, outs)))

    call.defjvp(rule, symbolic_zeros=True)
    return call


@_made_once
def _custom_jvp(b, p):
    if "refuses" in p:
        return _refusing(b, p)
    body = b.body(p["body"])
    b.body(p["jvp"])
    call, ins = jax.custom_jvp(_body_function(b, p["body"])), _avals(body.ins)

    @call.defjvp
    def rule(primals, tangents):
        flat = b.run(p["jvp"], [*primals, *moving(tangents, ins)])
        n = len(body.outs)
        outs = flat[:n]
        return outs, filled(flat[n:], [jax.typeof(x) for x in outs])

    return call


@_made_once
def _custom_vjp(b, p):
    if "refuses" in p:
        return _refusing(b, p)
    body = b.body(p["body"])
    for name in ("forward", "backward"):
        b.body(p[name])
    call = jax.custom_vjp(_body_function(b, p["body"]))
    ins, outs = _avals(body.ins), []

    def forward(*args):
        flat = b.run(p["forward"], args)
        n = len(body.outs)
        outs[:] = map(jax.typeof, flat[:n])
        return flat[:n], flat[n:]

    def backward(res, cts):
        back = b.run(p["backward"], [*res, *moving(cts, outs)])
        return tuple(filled(back, ins))

    call.defvjp(forward, backward)
    return call


@_made_once
def _linear_loop(b, p):
    n = p["count"]
    run = {k: lambda r, x, ref=p[k]: b.run(ref, [*r, *x]) for k in ("forward", "transpose")}
    both = run["forward"], run["transpose"]
    return lambda *xs: compat.linear_call(*both, list(xs[:n]), list(xs[n:]))


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
