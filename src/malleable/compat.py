"""The one door to JAX internals.

Every name from `jax.core`, `jax.extend`, `jax.interpreters` or `jax._src` enters here and
nowhere else. Two dialects are spoken: up to JAX 0.10 and from 0.11 on. When a release breaks
us, this file changes, and `tests/test_compat.py` says which line.

In order: jaxprs, source lines, views of higher-order equations, markers, symbolic sizes, live
tracers, operations put off, derivatives in one direction.
"""

import ast
import contextlib
import contextvars
import functools
import gc
import itertools
import pathlib
import sys
import threading
import traceback as traceback_module
import types
from collections import namedtuple
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.core
import jax.export
import numpy as np
from jax import lax
from jax import numpy as jnp
from jax._src import (
    ad_checkpoint,
    array,
    config,
    core,
    custom_derivatives,
    dtypes,
    literals,
    pjit,
    shard_map,
    sharding_impls,
    source_info_util,
    traceback_util,
)
from jax._src import mesh as mesh_internal
from jax._src.interpreters import ad as ad_internal
from jax._src.interpreters import batching as batching_internal
from jax._src.interpreters import partial_eval as pe
from jax._src.lax import lax as lax_internal
from jax._src.lax import parallel
from jax._src.lax.control_flow import conditionals
from jax._src.random import prng
from jax.extend import core as jexc
from jax.interpreters import ad, batching, mlir
from jaxlib import xla_client

from malleable.errors import TransformError

Eqn = jexc.JaxprEqn
Jaxpr = jexc.ClosedJaxpr  # a program with its constants; from JAX 0.11 the only kind there is
Literal = jexc.Literal
Primitive = jexc.Primitive
Tracer = jax.core.Tracer

INLINE: Any = jax.Inline.JAX_EARLY if hasattr(jax, "Inline") else True  # type: ignore[attr-defined]


# ---------------------------------------------------------------- jaxprs


def trace(fun: Callable, *avals) -> Jaxpr:
    """Stage a flat function of `avals`; loops stay loops even under `jax.disable_jit`."""
    with jax.disable_jit(False):
        return jax.make_jaxpr(fun)(*avals)


def inlined(fun: Callable) -> Callable:
    """`fun`, traced once per signature and trace context; leaves no call in the program.

    Compiled where values are at hand; put in place, each equation with its own line, elsewhere.
    """
    jitted = jax.jit(fun, inline=INLINE)

    def call(*args):
        if not isinstance(core.trace_ctx.trace, pe.DynamicJaxprTrace):
            return jitted(*args)
        traced = jitted.trace(*args)
        leaves = list(map(as_array, jax.tree.leaves(args)))
        if len(traced.jaxpr.jaxpr.invars) != len(leaves):  # it closes over a value being traced
            return jitted(*args)
        tree = jax.tree.structure(traced.out_info)
        return jax.tree.unflatten(tree, replay(traced.jaxpr, leaves))

    return call


def replay(closed: Jaxpr, args: Sequence = (), consts: Sequence | None = None) -> list:
    """Put the equations of a program here, each under its own line."""
    program = closed.jaxpr
    known = closed.consts if consts is None else consts
    env = dict(zip((*program.constvars, *program.invars), (*known, *args), strict=True))
    read = lambda atom: atom.val if isinstance(atom, Literal) else env[atom]  # noqa: E731
    for eqn in program.eqns:
        env.update(zip(eqn.outvars, copy(eqn, [read(v) for v in eqn.invars]), strict=True))
    return [read(v) for v in program.outvars]


def close(jaxpr) -> Jaxpr:
    """A jaxpr found in some params, as a closed one."""
    if isinstance(jaxpr, Jaxpr):
        return jaxpr
    return pe.close_jaxpr(pe.convert_constvars_jaxpr(jaxpr) if jaxpr.constvars else jaxpr)


def bodies(params: dict) -> list[Jaxpr]:
    """The jaxprs among the params of an equation, those that an object hides included."""
    hidden = vars(params["_prim"]) if "_prim" in params else {}
    every = (*params.values(), *hidden.values())
    flat = (x for p in every for x in (p if isinstance(p, tuple | list) else (p,)))
    return [close(x) for x in flat if isinstance(x, (Jaxpr, jexc.Jaxpr))]


def bind(eqn: Eqn, args: Sequence) -> list:
    """Run one equation on `args`, unchanged. Always returns a list."""
    out = eqn.primitive.bind(*args, **eqn.primitive.get_bind_params(eqn.params))
    return list(out) if eqn.primitive.multiple_results else [out]


def copy(eqn: Eqn, args: Sequence, *, inside: bool = False) -> list:
    """As `bind`, and under the user's line of the equation; inside: we are in `source` already.

    While a program is being staged, an equation on operands of its own types is put into it as
    it stands, without evaluating it abstractly again: as JAX does where it inlines a jit.
    """
    trace = core.trace_ctx.trace
    if (
        isinstance(trace, pe.DynamicJaxprTrace)
        and not eqn.effects
        and not eqn.primitive.is_high(*(v.aval for v in eqn.invars), **eqn.params)
        and all(jax.typeof(x) == v.aval for x, v in zip(args, eqn.invars, strict=True))
    ):
        info, stack = eqn.source_info, source_info_util.current_name_stack()
        info = info.replace(name_stack=stack if inside else stack + info.name_stack)
        tracers = [trace.to_jaxpr_tracer(x, info) for x in args]
        avals = [v.aval for v in eqn.outvars]
        return trace.emit_eqn(tracers, avals, eqn.primitive, eqn.params, eqn.effects, info, eqn.ctx)
    with contextlib.nullcontext() if inside else source(eqn):
        return bind(eqn, args)


def same_program(eqn: Eqn):
    """A hashable key, equal for equations that compute the same function of their operands."""
    try:
        key = eqn.primitive, frozenset(eqn.params.items())
    except TypeError:  # a custom_vjp with nondiff_argnums carries an object without a hash
        return eqn
    return key


def slice_type(x):
    """The type of one slice of an array along its leading axis."""
    return jexc.mapped_aval(x.shape[0], 0, jax.typeof(x))


def as_array(x):
    """A number or a NumPy array as an array of JAX; anything else as it is."""
    if isinstance(x, jax.Array) or is_ref(jax.typeof(x)):
        return x
    return jnp.asarray(x)


def promote(one, weak_one: bool, other, weak_other: bool):
    """(dtype, weak) that hold values of both, as NumPy promotes; weak: of a Python number."""
    weak = weak_one and weak_other
    types = ((one, weak_one and not weak), (other, weak_other and not weak))
    avals = [core.ShapedArray((), dtype, weak_type=w) for dtype, w in types]
    return dtypes.lattice_result_type(*avals)[0], weak


def convert(x, dtype, weak: bool):
    """An array as one of another dtype or weakness."""
    return lax_internal._convert_element_type(x, dtype, weak)


def is_idle() -> bool:
    """Whether nothing is being traced."""
    return core.trace_state_clean()


def is_inner(x) -> bool:
    """Whether a value exists only in the innermost program being traced."""
    return isinstance(x, Tracer) and x._trace is core.trace_ctx.trace


def is_array(x) -> bool:
    """Whether JAX can trace `x`: an array, a tracer or a Python number."""
    if isinstance(x, np.ndarray | np.generic):
        return x.dtype != jax.dtypes.float0 and x.dtype.kind in "biufcV"
    return isinstance(x, jax.Array | bool | int | float | complex)


HostArray = array.ArrayImpl  # the concrete array; a tracer is no instance of exactly this


def is_on_host(x) -> bool:
    """Whether a concrete array lies on the default CPU device and nothing binds it there."""
    free = _PLACES.get(x.sharding)
    if free is None:
        devices = jax.devices()
        home = jax.sharding.SingleDeviceSharding(devices[0])
        here = devices[0].platform == "cpu" and x.sharding == home
        free = _PLACES[x.sharding] = len(devices) if here else 0
    return free == 1 or (free > 1 and not x._committed)


_PLACES: dict[Any, int] = {}


def host_mode() -> bool | None:
    """Whether 64-bit types are on; None where settings ask for more than values (NaN checks)."""
    if (
        config.debug_nans.value
        or config.debug_infs.value
        or config.default_device.value is not None
    ):
        return None
    if config.numpy_dtype_promotion.value is not _STANDARD:
        return None
    return config.enable_x64.value if config.numpy_rank_promotion.value == "allow" else None


_STANDARD = config.NumpyDtypePromotion.STANDARD


def put(x: np.ndarray, weak: bool = False) -> jax.Array:
    """An array of the default device that may share memory with `x`; `weak`: of weak type."""
    sharding, devices = _home()
    aval = _aval(x.shape, x.dtype, weak)
    return xla_client.batched_device_put(aval, sharding, [x], devices, False)  # type: ignore


@functools.lru_cache(4096)
def _aval(shape, dtype, weak):
    return core.ShapedArray(shape, dtype, weak_type=weak)


@functools.cache
def _home():
    device = jax.local_devices()[0]
    return jax.sharding.SingleDeviceSharding(device), [device]


def differentiable(aval) -> bool:
    """Whether a value of this type can carry a tangent."""
    return jnp.issubdtype(aval.dtype, jnp.inexact)


def is_ref(aval) -> bool:
    """Whether this is the type of a mutable reference (`jax.new_ref`)."""
    return hasattr(aval, "inner_aval")


def mutates(jaxpr: Jaxpr) -> bool:
    """Whether a program works on mutable references, at any depth."""
    program = jaxpr.jaxpr
    atoms = [*program.constvars, *program.invars, *(v for e in program.eqns for v in e.outvars)]
    inside = (body for eqn in program.eqns for body in bodies(eqn.params))
    return any(is_ref(v.aval) for v in atoms) or any(map(mutates, inside))


def match_devices(value, *likes):
    """`value`, typed as varying over the mesh axes that `likes` vary over (inside shard_map)."""
    missing = frozenset().union(*map(_varying, likes)) - _varying(value)
    return lax.pcast(value, tuple(missing), to="varying") if missing else value


def _varying(x) -> frozenset:
    aval = jax.typeof(x) if is_array(x) else x
    kind = getattr(aval, "manual_axis_type", None)
    return kind.varying if kind is not None else getattr(aval, "vma", frozenset())


# ---------------------------------------------------------------- programs put together


def new_var(aval):
    """A variable of a program being put together."""
    return core.Var(aval)


def literal(value, aval):
    """A number in the place of a variable."""
    return Literal(literals.TypedNdArray(np.asarray(value, aval.dtype), aval), aval)


def program(like: Jaxpr, eqns: Sequence[Eqn], outs: Sequence, consts: dict) -> Jaxpr:
    """A program of the inputs of `like`: equations, results, {variable: constant}."""
    raw, names = like.jaxpr, list(consts)
    effects = pe.make_jaxpr_effects(names, raw.invars, outs, eqns)
    raw = raw.replace(constvars=names, eqns=list(eqns), outvars=list(outs), effects=effects)
    return like.replace(jaxpr=raw, consts=list(consts.values()))


def with_bodies(eqn: Eqn, new: Sequence[Jaxpr]) -> Eqn:
    """The equation with other bodies of the same types, in the order of `bodies`."""
    rest = iter(new)

    def put(p):
        if isinstance(p, Jaxpr):
            return next(rest)
        if isinstance(p, jexc.Jaxpr):
            return _without_consts(next(rest))
        return type(p)(map(put, p)) if type(p) in (tuple, list) else p

    return eqn.replace(params={name: put(p) for name, p in eqn.params.items()})


def _without_consts(closed: Jaxpr):
    """An open jaxpr, its constants written into it as literals (up to JAX 0.10)."""
    raw = closed.jaxpr
    known = {v: Literal(c, v.aval) for v, c in zip(raw.constvars, closed.consts, strict=True)}
    read = lambda atoms: [a if isinstance(a, Literal) else known.get(a, a) for a in atoms]  # noqa: E731
    eqns = [eqn.replace(invars=read(eqn.invars)) for eqn in raw.eqns]
    return raw.replace(constvars=[], eqns=eqns, outvars=read(raw.outvars)) if known else raw


def dce(jaxpr: Jaxpr, used: Sequence[bool] | None = None) -> Jaxpr:
    """Without the equations that no used result needs; of loops and calls too. Same inputs."""
    keep = [True] * len(jaxpr.jaxpr.outvars) if used is None else list(used)
    raw, _ = pe.dce_jaxpr(jaxpr.jaxpr, keep, instantiate=True)
    if len(raw.eqns) == len(jaxpr.jaxpr.eqns) and all(keep):
        pairs = zip(raw.eqns, jaxpr.jaxpr.eqns, strict=True)
        if all(a is b or a.params == b.params for a, b in pairs):
            return jaxpr
    return jaxpr.replace(jaxpr=raw, consts=jaxpr.consts)


def check(jaxpr: Jaxpr) -> None:
    """Raise where a program is not well typed."""
    core.check_jaxpr(jaxpr.jaxpr)


@contextlib.contextmanager
def inside(eqn: Eqn) -> Iterator[None]:
    """Where the bodies of an equation may be traced again: under shard_map, on its mesh."""
    with contextlib.ExitStack() as stack:
        if eqn.primitive.name == "shard_map":
            p = eqn.params
            manual = frozenset(p.get("newly_manual_axes") or p.get("manual_axes") or ())
            mesh = shard_map._as_manual_mesh(p["mesh"], manual | frozenset(p["mesh"].manual_axes))
            stack.enter_context(shard_map._extend_axis_env(p["mesh"], manual))
            stack.enter_context(jax.sharding.use_abstract_mesh(mesh))
            stack.enter_context(config._check_vma(p["check_vma"]))
        yield


def is_transparent(eqn: Eqn) -> bool:
    """Whether this is a jit that says nothing but its name: its body may stand in its place."""
    p = eqn.params
    if eqn.primitive.name not in ("jit", "pjit"):
        return eqn.primitive.name == "closed_call"
    placed = [*p["in_shardings"], *p["out_shardings"], *p["in_layouts"], *p["out_layouts"]]
    said = any(isinstance(s, jax.sharding.Sharding) for s in placed) or any(p["donated_invars"])
    layouts = any(x is not None for x in (*p["in_layouts"], *p["out_layouts"]))
    return not (said or layouts or p["compiler_options_kvs"])


def is_from(jaxpr: Jaxpr, path: str) -> bool:
    """Whether the function behind a program is in this file or folder."""
    return path in (getattr(jaxpr.jaxpr.debug_info, "func_src_info", None) or "")


def is_of_jax(jaxpr: Jaxpr) -> bool:
    """Whether the function behind a program is JAX's own."""
    return is_from(jaxpr, _JAX)


_JAX = str(pathlib.Path(jax.__file__).parent)


def within(eqn: Eqn, call: Eqn) -> Eqn:
    """An equation of the body of a call, as one beside it: under the call's names and line."""
    inner, outer = eqn.source_info, call.source_info
    stack = outer.name_stack + inner.name_stack
    own = not is_of_jax(bodies(call.params)[0])
    info = (inner if own else outer).replace(name_stack=stack)
    return eqn.replace(source_info=info)


@contextlib.contextmanager
def stamped(eqn: Eqn, name: str) -> Iterator[None]:
    """As `source`, with a name for who rewrites, which shows in the compiled program too."""
    info = eqn.source_info
    stack = info.name_stack.extend(name) if name else info.name_stack
    with source_info_util.user_context(info.traceback, name_stack=stack), eqn.ctx.manager:
        yield


def moved(jaxpr: Jaxpr, eqn: Eqn, name: str) -> Jaxpr:
    """A program as if it had been traced at the line of `eqn`, under the name of who rewrites."""
    info = eqn.source_info
    info = info.replace(name_stack=info.name_stack.extend(name) if name else info.name_stack)
    eqns = [e.replace(source_info=info, ctx=eqn.ctx) for e in jaxpr.jaxpr.eqns]
    return jaxpr.replace(jaxpr=jaxpr.jaxpr.replace(eqns=eqns), consts=jaxpr.consts)


def derivative_key(eqn: Eqn) -> tuple:
    """The functions of others behind the rules of a custom derivative: its identity."""
    found: dict = {}

    def dig(x, depth=12):
        if isinstance(x, tuple | list):
            for part in x:
                dig(part, depth)
        elif hasattr(x, "transforms"):  # a function of JAX's, wrapped for tracing
            dig((x.f, [part for t in x.transforms for part in (t if isinstance(t, tuple) else ())]))
        elif callable(x) and not str(getattr(x, "__module__", "")).startswith(_TRACING):
            found[x] = None
        elif depth:
            for cell in getattr(x, "__closure__", None) or ():
                with contextlib.suppress(ValueError):  # it may be empty still
                    dig(cell.cell_contents, depth - 1)

    dig([p for p in eqn.params.values() if callable(p) or hasattr(p, "transforms")])
    return tuple(found) or tuple(map(id, eqn.params.values()))


_TRACING = ("jax._src.custom_derivatives", "jax._src.interpreters", "jax._src.linear_util")


def context_key(eqn: Eqn):
    """What else decides what an equation computes, or where: as hashable."""
    ctx = eqn.ctx
    metadata = getattr(ctx, "xla_metadata", None) or {}
    return ctx.threefry_partitionable, ctx.compute_type, tuple(sorted(map(str, metadata.items())))


# ---------------------------------------------------------------- where am I

_parts = [p for p in pathlib.Path(__file__).parent.iterdir() if p.name != "tour"]  # a user, as you
for _path in map(str, _parts):
    source_info_util.register_exclusion(_path)
    traceback_util.register_exclusion(_path)
source_info_util.register_exclusion(str(pathlib.Path(np.__file__).parent))


@contextlib.contextmanager
def source(eqn: Eqn) -> Iterator[None]:
    """Attribute everything bound inside to the user's line behind `eqn`."""
    info = eqn.source_info
    stack = source_info_util.current_name_stack() + info.name_stack
    with source_info_util.user_context(info.traceback, name_stack=stack), eqn.ctx.manager:
        yield


def place(*eqns: Eqn) -> tuple[str, int, str] | None:
    """(file, line, function) of the first equation with a line of the user's; of now, for none."""
    infos = [eqn.source_info for eqn in eqns] or [source_info_util.current()]
    frames = (source_info_util.user_frame(info.traceback) for info in infos)
    frame = next(filter(None, frames), None)
    return (frame.file_name, frame.start_line, frame.function_name) if frame else None


def where(*eqns: Eqn) -> str:
    """`file.py:12 in fun`: what `place` gives, in words; "" for nothing."""
    found = place(*eqns)
    return "{}:{} in {}".format(*found) if found else ""


# ---------------------------------------------------------------- views


# One body, run once. wrap(fun) gives fun(frame, *args) -> (outs, frame) the same treatment;
# lost: what a body that was entered cannot keep, or "".
Call = namedtuple("Call", "body wrap lost", defaults=[""])

# jvp(primals, tangents) -> (outs, tangents of outs)
CustomJvp = namedtuple("CustomJvp", "body jvp")

# fwd(*args) -> (outs, residuals); bwd(residuals, cotangents) -> cotangents of args
CustomVjp = namedtuple("CustomVjp", "body fwd bwd")

# cond and switch: the operands are the index, then the arguments of the branches
Branch = namedtuple("Branch", "branches")

# split(args) -> consts, carry, xs; body(*consts, *carry, *xs_i) -> (*carry, *ys_i)
Scan = namedtuple("Scan", "body split length reverse unroll")

# split(args) -> consts of the test, consts of the body, carry
While = namedtuple("While", "cond body split")

# shard_map: one body per device along `axes` of the mesh, {name: size}. wrap(fun, in_specs,
# out_specs) maps fun(*state, *args) -> (outs, state) the same way, given the specs of the
# state; lanes(value) -> the axes along which a value inside differs.
Map = namedtuple("Map", "body axes wrap lanes")

# a body that cannot be entered, and why
Opaque = namedtuple("Opaque", "why")


def view(eqn: Eqn):
    """One of the above, for an equation that carries jaxprs; Opaque for one in no table."""
    name = eqn.primitive.name
    if any(is_ref(v.aval) for v in eqn.invars):
        return Opaque("it updates a mutable reference (jax.new_ref)")
    if name in OPAQUE:
        return Opaque(OPAQUE[name])
    if name in INLINED:
        return Call(bodies(eqn.params)[0], lambda fun: fun, INLINED[name])
    return VIEWS[name](eqn) if name in VIEWS else Opaque("malleable does not know it")


def _jit(eqn):
    p = eqn.params
    donated = tuple(i + 1 for i, d in enumerate(p["donated_invars"]) if d)
    options = {"inline": p["inline"], "keep_unused": p["keep_unused"]}
    if p["compiler_options_kvs"]:
        options["compiler_options"] = dict(p["compiler_options_kvs"])
    ins, outs = (
        [s if isinstance(s, jax.sharding.Sharding) else None for s in p[side]]
        for side in ("in_shardings", "out_shardings")
    )
    if any(ins):
        options["in_shardings"] = (None, *ins)
    if any(outs):
        options["out_shardings"] = (outs, None)

    def wrap(fun):
        fun.__name__ = p["name"]
        return jax.jit(fun, donate_argnums=donated, **options)

    return Call(p["jaxpr"], wrap)


def _remat(eqn):
    p = eqn.params
    again = {"prevent_cse": p["prevent_cse"], "policy": p["policy"]}

    def wrap(fun):
        if not p["differentiated"]:
            return jax.checkpoint(fun, **again)

        def kept(*args):  # inside a gradient a flag keeps XLA from undoing the recomputation
            program, out = jax.make_jaxpr(jax.checkpoint(fun, **again), return_shape=True)(*args)
            (eqn,) = program.jaxpr.eqns
            eqn = eqn.replace(params=eqn.params | {"differentiated": True})
            jaxpr = program.jaxpr.replace(eqns=[eqn])
            outs = jax.core.eval_jaxpr(jaxpr, program.consts, *jax.tree.leaves(args))
            return jax.tree.unflatten(jax.tree.structure(out), outs)

        return kept

    return Call(close(p["jaxpr"]), wrap)


def _subfuns(eqn):
    return eqn.primitive.get_bind_params(eqn.params)["subfuns"]


def _custom_jvp(eqn):
    def jvp(primals, tangents):
        _, rule = _subfuns(eqn)
        flat = list(rule.call_wrapped(*primals, *tangents))
        n = len(eqn.outvars)
        return flat[:n], _plain(flat[n:], eqn.outvars)

    return CustomJvp(close(eqn.params["call_jaxpr"]), jvp)


def _custom_vjp(eqn):
    n, consts = len(eqn.outvars), eqn.params["num_consts"]

    def fwd(*args):
        _, rule, _ = _subfuns(eqn)
        pairs = ((x, i >= consts) for i, x in enumerate(args))  # (value, is it differentiated)
        flat = list(rule.call_wrapped(*(x for pair in pairs for x in pair)))
        res, outs = flat[: len(flat) - n], flat[len(flat) - n :]
        trees = eqn.params["out_trees"]()
        if len(trees) > 2 and trees[2] is not None:  # residuals that are inputs are left out
            rest = iter(res)
            res = [next(rest) if i is None else args[i] for i in trees[2]]
        return outs, res

    def bwd(res, cts):
        _, _, rule = _subfuns(eqn)
        out = rule.call_wrapped(*res, *cts)
        if isinstance(out, tuple) and len(out) == 2 and isinstance(out[1], dict | None):
            out = out[0]  # from JAX 0.11: (cotangents, logs)
        return _plain(out, eqn.invars)

    return CustomVjp(close(eqn.params["call_jaxpr"]), fwd, bwd)


def _plain(tangents, variables):
    """Tangents or cotangents, the symbolic zeros among them as arrays."""
    absent = (type(None), ad.Zero, jax.custom_derivatives.SymbolicZero)
    return [
        zero_tangent(v.aval) if isinstance(t, absent) else t
        for t, v in zip(tangents, variables, strict=True)
    ]


def zero_tangent(aval):
    """The zero of the tangent space of a type: an array, of dtype float0 for integers."""
    if differentiable(aval):
        return jnp.zeros(aval.shape, aval.dtype)
    return np.zeros(aval.shape, jax.dtypes.float0)


def add_tangents(a, b):
    """The sum, where the type has tangents at all."""
    return a if a.dtype == jax.dtypes.float0 else a + b


def _scan(eqn):
    p = eqn.params
    if "ft_in" in p:  # from JAX 0.11
        split = lambda args: [list(part.vals) for part in p["ft_in"].update(list(args)).unpack()]  # noqa: E731
    else:
        split = _split_at(p["num_consts"], p["num_carry"])
    return Scan(p["jaxpr"], split, p["length"], p["reverse"], p["unroll"])


def _while(eqn):
    p = eqn.params
    split = _split_at(p["cond_nconsts"], p["body_nconsts"])
    return While(p["cond_jaxpr"], p["body_jaxpr"], split)


def _split_at(a, b):
    return lambda args: (list(args[:a]), list(args[a : a + b]), list(args[a + b :]))


def _shard_map(eqn):
    p = eqn.params
    mesh, checked = p["mesh"], p["check_vma"]
    manual = p.get("newly_manual_axes", p.get("manual_axes"))
    axes = {a: mesh.shape[a] for a in mesh.axis_names if a in manual}
    options = {"mesh": mesh, "check_vma": checked}
    if len(axes) < len(mesh.axis_names):
        options["axis_names"] = set(axes)

    def wrap(fun, in_specs, out_specs):
        outs = (list(p["out_specs"]), out_specs)
        ins = (*in_specs, *p["in_specs"])
        return jax.shard_map(fun, in_specs=ins, out_specs=outs, **options)

    def lanes(value):
        return tuple(a for a in axes if a in _varying(value)) if checked else tuple(axes)

    return Map(close(p["jaxpr"]), axes, wrap, lanes)


VIEWS = {
    **dict.fromkeys(("jit", "pjit"), _jit),
    **dict.fromkeys(("remat", "remat2", "checkpoint"), _remat),
    "custom_jvp_call": _custom_jvp,
    "custom_vjp_call": _custom_vjp,
    "cond": lambda eqn: Branch(tuple(eqn.params["branches"])),
    "scan": _scan,
    "while": _while,
    "shard_map": _shard_map,  # pmap is jit of shard_map
}

# what is run in place, and what is lost by it
INLINED = {
    "closed_call": "",
    "core_call": "",
    "eval_jaxpr": "",
    "composite": "its name as one operation",
    "custom_vmap_call": "its batching rule",
    "custom_transpose_call": "its transposition rule",
    "linear_call": "its transposition rule",
    "custom_partitioning": "its partitioning rule",
    "compute_on": "where it runs",
    "xla_metadata_call": "its XLA metadata",
    "program_order": "the order it fixed",
}

# why a body cannot be entered, and whose
_CLOSED = {
    "its bodies define a linear solve and its derivatives together": "custom_linear_solve",
    "its body is chosen when it is differentiated": "remat_opt",
    "its body is hidden in an object": "call_hi_primitive",
    "its body updates mutable references": "run_state",
    "its body is a kernel over references": "pallas_call core_map mpmd_map run_scoped jaxpr_call "
    "parallel_loop emit_pipeline pipeline_body",
    "its body is meant for one kind of hardware": "cudnn_fusion custom_fusion fusible thunky.cond "
    "thunky.while thunky.async_start thunky.collective_group thunky.call_thunky_nested",
    "its body says how two elements combine, which XLA runs in no fixed order": "reduce "
    "reduce_window select_and_scatter scatter scatter-add scatter-sub scatter-mul scatter-min "
    "scatter-max scatter_add scatter_sub scatter_mul scatter_min scatter_max",
}
OPAQUE = {name: why for why, names in _CLOSED.items() for name in names.split()}


# ---------------------------------------------------------------- markers


NOT_MAPPED: Any = None  # what batching calls an operand without a lane axis


class MarkerEffect(type(next(iter(jax.make_jaxpr(lambda: jax.debug.print(""))().effects)))):
    """On every equation of a marker, so that no pass drops it and no unknown body hides it."""

    def __repr__(self):
        return "Marker"

    __str__ = __repr__


SOURCE, OPERATION = MarkerEffect(), MarkerEffect()  # of markers that only supply a value; others
user_context = jax.make_user_context  # its value is part of the key of every trace cache of JAX


def has_marker(eqn: Eqn) -> bool:
    """Whether a marker is this equation, or is somewhere inside it."""
    return SOURCE in eqn.effects or OPERATION in eqn.effects


def define_marker(prim: Primitive, out: Callable, run: Callable, lanes: str, tangents: str) -> None:
    """Tell JAX about a primitive of ours, which some transformation is to remove.

    out(*avals, **params) -> avals of the results; run(*args, **params) -> results, should it be
    left. For lanes and tangents see `malleable.marker`.
    """
    effect = SOURCE if lanes in ("each", "shared") else OPERATION
    prim.multiple_results = True
    prim.def_impl(run)
    mlir.register_lowering(prim, mlir.lower_fun(run, multiple_results=True))

    def abstract(*avals, **params):
        types = [
            t if isinstance(t, jax.core.ShapedArray) else jax.core.ShapedArray(t.shape, t.dtype)
            for t in out(*avals, **params)
        ]
        return types, {effect}

    prim.def_effectful_abstract_eval(abstract)

    def batch(axis, args, dims, **params):
        mapped = [isinstance(d, int) for d in dims]
        args = [
            jnp.moveaxis(x, d, 0) if m else x for x, d, m in zip(args, dims, mapped, strict=True)
        ]
        if lanes == "each":
            params |= {"shape": (axis.size, *params["shape"])}
        if lanes == "all":
            wide = [(axis.size, *jnp.shape(x)) for x in args[:-1]]
            args[:-1] = [
                x if m else jnp.broadcast_to(x, w)
                for x, m, w in zip(args[:-1], mapped, wide, strict=False)
            ]
        outs = prim.bind(*args, **params)
        if lanes != "front" or len(outs) != len(args) - 1:
            mapped = [lanes in ("each", "all") or any(mapped)] * len(outs)
        return outs, [0 if m else NOT_MAPPED for m in mapped[: len(outs)]]

    def jvp(args, dots, **params):
        outs = prim.bind(*args, **params)
        zeros = (ad.Zero(jax.typeof(x).to_tangent_aval()) for x in outs)
        return outs, list(dots[: len(outs)] if tangents == "pass" else zeros)

    batching.fancy_primitive_batchers[prim] = batch
    if tangents != "refuse":
        ad.primitive_jvps[prim] = jvp
        ad.primitive_transposes[prim] = lambda cts, *xs, **_: [
            *cts,
            *(None for _ in xs[len(cts) :]),
        ]
    if effect is SOURCE:  # JAX hoists what a loop does not change, effects and all: jax#16637
        pe.custom_partial_eval_rules[prim] = _stay_in_loop(prim)


_batch_cond = batching.fancy_primitive_batchers[jexc.primitives.cond_p]


def _batch_marked_cond(axis, args, dims, *, branches, **params):
    """vmap makes a select of a cond whose lanes part ways; what one branch marks, all would."""
    if dims[0] is not NOT_MAPPED and any(OPERATION in body.effects for body in branches):
        marked = next(e for body in branches for e in body.eqns if OPERATION in e.effects)
        raise TransformError(
            "a marked value is inside a cond whose predicate differs between the lanes of a vmap",
            where=where(marked),
            hint="put the transformation inside the vmap: vmap(reap(f)), not reap(vmap(f))",
        )
    return _batch_cond(axis, args, dims, branches=branches, **params)


batching.fancy_primitive_batchers[jexc.primitives.cond_p] = _batch_marked_cond


def _stay_in_loop(prim):
    """A rule that makes partial evaluation treat the marker as unknown, though it is not."""

    def rule(trace, *tracers, **params):
        if not _is_hoisting():
            with jexc.set_current_trace(trace.parent_trace):
                return prim.bind(**params)
        avals, effects = prim.abstract_eval(**params)
        outs = [pe.JaxprTracer(trace, pe.PartialVal.unknown(a), None) for a in avals]
        now = source_info_util.current()
        eqn = pe.new_eqn_recipe(trace, tracers, outs, prim, params, effects, now)
        for out in outs:
            out.recipe = eqn
        trace.effect_handles.append(pe.EffectHandle(list(tracers), eqn))
        return outs

    return rule


def _is_hoisting() -> bool:
    """Whether JAX is splitting a program, and not linearizing a derivative rule, just now."""
    frame = sys._getframe()
    while frame is not None:
        name = frame.f_code.co_name
        if name == "linearize_from_jvp" or "partial_eval_jaxpr" in name:
            return name != "linearize_from_jvp"
        frame = frame.f_back
    return True


def _keep_marked_calls(process):
    """JAX moves a call with a custom derivative out of a loop whole; one with a marker may not."""

    def wrapped(self, prim, fun, *rules_tracers, **params):
        *rules, tracers = rules_tracers
        inside = [a for a in getattr(fun.f, "args", ()) if isinstance(a, Jaxpr)]
        if any({SOURCE, OPERATION} & body.effects for body in inside) and _is_hoisting():
            tracers = [self.instantiate_const(self.to_jaxpr_tracer(t)) for t in tracers]
        return process(self, prim, fun, *rules, tracers, **params)

    return wrapped


def _keep_marked_remat(split):
    """So may a checkpointed body: what does not depend on its operands would be moved out."""

    def rule(trace, *tracers, **params):
        if {SOURCE, OPERATION} & params["jaxpr"].effects and _is_hoisting():
            return trace.default_process_primitive(jexc.primitives.remat_p, tracers, params)
        return split(trace, *tracers, **params)

    return rule


_rules = pe.custom_partial_eval_rules
_rules[jexc.primitives.remat_p] = _keep_marked_remat(_rules[jexc.primitives.remat_p])
for _name in ("process_custom_jvp_call", "process_custom_vjp_call"):
    setattr(pe.JaxprTrace, _name, _keep_marked_calls(getattr(pe.JaxprTrace, _name)))


# ---------------------------------------------------------------- symbolic sizes

SymbolicSize: Any = type(jax.export.symbolic_shape("n")[0])
_watched: contextvars.ContextVar[set | None] = contextvars.ContextVar("watched", default=None)


def symbols(names: Sequence[str], least: int) -> dict[str, Any]:
    """{name: a size that may be any number from `least` on}, of a scope of their own."""
    if not names:
        return {}
    limits = [f"{name} >= {least}" for name in names]
    return dict(
        zip(names, jax.export.symbolic_shape(", ".join(names), constraints=limits), strict=True)
    )


@contextlib.contextmanager
def told_apart() -> Iterator[set]:
    """Pairs of sizes, as text, that JAX or the user took as different while tracing inside.

    A symbolic size is never equal to a number for JAX: whoever runs the program has to look.
    """
    token = _watched.set(pairs := set())
    try:
        yield pairs
    finally:
        _watched.reset(token)


def _watch_equality(equal):
    def wrapped(self, other):
        same = equal(self, other)
        if same is False and (pairs := _watched.get()) is not None and _comparable(self, other):
            cached = "_create" in sys._getframe(1).f_code.co_names  # a cache of types looks around
            pairs.update(() if cached else [(str(self), str(other))])
        return same

    return wrapped


def _comparable(size, other) -> bool:
    """Sizes of another trace are met in JAX's caches only."""
    if isinstance(other, SymbolicSize):
        return size.scope is other.scope
    return isinstance(other, int | float | np.number)


def _watch_hash(make):
    """The user may not look a symbolic size up in a set or a dictionary: nothing is found there."""

    def wrapped(self):
        if _watched.get() is not None:
            frame = sys._getframe(1)
            if frame.f_code.co_filename == "<string>" and frame.f_back:  # made by dataclasses
                frame = frame.f_back
            if not frame.f_code.co_filename.startswith((_JAX, __file__, functools.__file__)):
                raise TypeError("a size is looked up in a set or a dictionary")
        return make(self)

    return wrapped


SymbolicSize.__eq__ = _watch_equality(SymbolicSize.__eq__)
SymbolicSize.__hash__ = _watch_hash(SymbolicSize.__hash__)
SymbolicSize.__bool__ = lambda self: self != 0


# ---------------------------------------------------------------- live tracers


class LiveTracer(Tracer):
    """A value that runs now and is watched: branching on it and printing it work."""

    __slots__ = ("value",)

    def __init__(self, trace, value):
        super().__init__(trace, jax.typeof(value))
        self.value = value

    def to_concrete_value(self):
        value = self.value
        return value.to_concrete_value() if isinstance(value, Tracer) else value

    def full_lower(self):
        return self

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.value, dtype)


for _name in ("__float__", "__complex__", "__repr__", "__str__", "__format__", "tolist"):
    setattr(LiveTracer, _name, lambda self, *a, _name=_name: getattr(self.value, _name)(*a))


class LiveTrace(jax.core.Trace):
    """Runs each primitive at once, on the values its tracers hold.

    process(jaxpr, values) -> results runs a program of one equation; watches(prim, params) says
    which primitives go there. The others go straight to the trace outside.
    """

    def __init__(self, parent, process, watches, tracer):
        super().__init__()
        self.parent, self.process, self.watches, self.tracer = parent, process, watches, tracer
        self.requires_low = False

    def lift(self, value):
        """A watched value; what is no array (a mutable reference, say) is left as it is."""
        if is_ref(jax.typeof(value)):
            return value
        if not isinstance(value, jax.Array):  # a number stays known under a jit around us
            with jexc.set_current_trace(core.eval_trace):
                value = as_array(value)
        return self.tracer(self, value)

    def lower(self, x):
        return x.value if isinstance(x, LiveTracer) and x._trace is self else x

    def outside(self):
        """Work on plain values, as the trace around this one would."""
        return jexc.set_current_trace(self.parent)

    def is_current(self) -> bool:
        with jexc.take_current_trace() as now:
            return now is self

    def process_primitive(self, prim, tracers, params, /):
        values, tree, here = [self.lower(t) for t in tracers], None, source_info_util.current()

        def bind(*xs):
            nonlocal tree
            with source_info_util.user_context(here.traceback):
                out = prim.bind(*xs, **params)
            if not hasattr(out, "vals"):
                return out
            tree = out.update([None] * len(out.vals))  # shard_map answers with a tree of its own
            return list(out.vals)

        with self.outside():
            if "subfuns" in params or self.watches(prim, params):
                one = trace(bind, *values)  # what comes with functions is one equation first
                one = one.replace(consts=[self.lower(c) for c in one.consts])
                outs = self.process(one, values)
                outs = outs if prim.multiple_results else outs[0]
                _forget_first_run(*params.get("subfuns", ()))
            else:
                outs = prim.bind(*values, **params)
        if not prim.multiple_results:
            return self.lift(outs)
        outs = [self.lift(x) for x in outs]
        return outs if tree is None else tree.update(outs)

    def process_call(self, prim, fun, tracers, params, /):  # up to JAX 0.10
        return self.process_primitive(prim, tracers, params | {"subfuns": (fun,)})

    def _with_functions(self, prim, *functions_tracers, **params):
        *functions, tracers = functions_tracers
        return self.process_primitive(prim, tracers, params | {"subfuns": tuple(functions)})

    process_custom_jvp_call = process_custom_vjp_call = process_shard_map = _with_functions

    def stage_value(self, value):
        return self.lift(value)

    def to_jaxpr_tracer(self, x, *_):
        return x


def _forget_first_run(fun=None, rule=None, *_):
    """JAX wants to be told that a custom function ran, or its derivative rule, but not both."""
    if rule is not None and all(getattr(s, "_store", s) for s in rule.stores if s is not None):
        for store in filter(None, fun.stores if fun else ()):
            store.reset()


def run_live(fun: Callable, leaves: Sequence, process, watches, tracer=LiveTracer) -> Any:
    """fun(lifted leaves, trace), with every primitive of it run by a new LiveTrace."""
    with jexc.take_current_trace() as parent:
        live = LiveTrace(parent, process, watches, tracer)
        with jexc.set_current_trace(live):
            return fun([live.lift(x) if is_array(x) else x for x in leaves], live)


# ---------------------------------------------------------------- operations put off

Trace = jax.core.Trace
Recording = pe.DynamicJaxprTrace
eager, under_trace = core.eval_trace, jexc.set_current_trace
current_trace = jexc.take_current_trace
trace_context, here = config.trace_context, source_info_util.current


def is_compiling() -> bool:
    """Whether `jax.jit` compiles; it does not under `jax.disable_jit`."""
    return not config.disable_jit.value


def recorded(trace: Recording, outs: Sequence) -> tuple[Jaxpr, list]:
    """The program recorded so far, its constants as leading inputs; and these constants."""
    raw, consts = trace.to_jaxpr(outs, core.DebugInfo("jit", "segment", None, None), here())
    return close(raw), consts


def concrete(x):
    """The value behind a tracer, None where there is none; anything else as it is."""
    return x.to_concrete_value() if isinstance(x, Tracer) else x


# ---------------------------------------------------------------- derivatives in one direction


def linear_call(forward: Callable, transpose: Callable, residuals: list, linear: list) -> list:
    """forward(residuals, linear), which is linear in the latter and has this rule in reverse.

    transpose(residuals, cotangents) -> cotangents of `linear`. As JAX's own linear_call, but also
    for vmap and derivatives of any order.
    """
    params = {"forward": forward, "transpose": transpose, "count": len(residuals)}
    return _linear_call.bind(*residuals, *linear, **params)


def _run_linear(*args, forward, transpose, count):
    args = list(map(as_array, args))
    return list(forward(args[:count], args[count:]))


def _linear_avals(*avals, **params):
    return [
        core.ShapedArray(x.shape, x.dtype)
        for x in jax.eval_shape(lambda *xs: _run_linear(*xs, **params), *avals)
    ]


def _linear_jvp(primals, tangents, *, count, **params):
    outs = _linear_call.bind(*primals, count=count, **params)
    moved = [ad.instantiate_zeros(t) for t in tangents]
    dots = [jnp.zeros_like(x) for x in outs]
    if not all(type(t) is ad.Zero for t in tangents[count:]):
        dots = _linear_call.bind(*primals[:count], *moved[count:], count=count, **params)
    if not all(type(t) is ad.Zero for t in tangents[:count]):
        along = lambda *res: _run_linear(*res, *primals[count:], count=count, **params)  # noqa: E731
        _, more = jax.jvp(along, primals[:count], tuple(moved[:count]))
        dots = [a + b for a, b in zip(dots, more, strict=True)]
    return outs, dots


def _linear_transpose(cts, *args, count, transpose, forward):
    outs = transpose([*map(as_array, args[:count])], [ad.instantiate_zeros(ct) for ct in cts])
    return [None] * count + list(outs)


def _linear_batch(axis, args, dims, *, count, forward, transpose):
    args = list(map(as_array, args))
    if not any(isinstance(d, int) for d in dims):
        outs = linear_call(forward, transpose, args[:count], args[count:])
        return outs, [NOT_MAPPED] * len(outs)
    ins = [d if isinstance(d, int) else None for d in dims[:count]]
    wide = [
        jnp.moveaxis(x, d, 0) if isinstance(d, int) else jnp.broadcast_to(x, (axis.size, *x.shape))
        for x, d in zip(args[count:], dims[count:], strict=True)
    ]
    lanes = {"in_axes": (ins, 0), "axis_size": axis.size, "axis_name": axis.name}
    both = jax.vmap(forward, **lanes), jax.vmap(transpose, **lanes)
    outs = linear_call(*both, args[:count], wide)
    return outs, [0] * len(outs)


_linear_call = Primitive("linear_loop")
_linear_call.multiple_results = True
_linear_call.def_impl(_run_linear)
_linear_call.def_abstract_eval(_linear_avals)
mlir.register_lowering(_linear_call, mlir.lower_fun(_run_linear, multiple_results=True))
ad.primitive_jvps[_linear_call] = _linear_jvp
ad.primitive_transposes[_linear_call] = _linear_transpose
batching.fancy_primitive_batchers[_linear_call] = _linear_batch


# ---------------------------------------------------------------- looking at programs

Place = namedtuple("Place", "file line function column end_line end_column")
_session = jax.make_user_context(0)  # type: ignore[attr-defined]
_sessions = itertools.count(1)


def frames(*eqns: Eqn) -> list[Place]:
    """The user's frames behind an equation and those around it, innermost first."""
    return list(dict.fromkeys(p for eqn in eqns for p in _places(eqn.source_info.traceback)))


@functools.lru_cache(4096)
def _places(traceback) -> tuple[Place, ...]:
    return tuple(
        Place(f.file_name, f.start_line, f.function_name, f.start_column, f.end_line, f.end_column)
        for f in source_info_util.user_frames(traceback)
    )


def is_users(file: str) -> bool:
    """Whether code in a file is neither JAX's, nor NumPy's, nor this library's."""
    return source_info_util.is_user_filename(file)


def defined(jaxpr: Jaxpr) -> Place | None:
    """Where the function behind a program begins, if it is the user's."""
    name, _, at = (getattr(jaxpr.jaxpr.debug_info, "func_src_info", None) or "").rpartition(" at ")
    file, _, line = at.rpartition(":")
    known = line.isdigit() and is_users(file)
    return Place(file, int(line), name, 0, int(line), 0) if known else None


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """Nothing traced inside is taken from JAX's caches, or later from what they keep of it."""
    with _session(next(_sessions)):
        yield


_LANES = "lanes:"


def lanes_of(eqn: Eqn) -> str | None:
    """The name of the mapped function, if this scan goes through the examples of a vmap."""
    stack = getattr(eqn.source_info.name_stack, "stack", ())
    last = next((s.name for s in reversed(stack) if type(s) is source_info_util.Scope), "")
    named = eqn.primitive.name == "scan" and last.startswith(_LANES)
    return last.removeprefix(_LANES) if named else None


@contextlib.contextmanager
def staged_vmap() -> Iterator[None]:
    """Every `jax.vmap` traced inside becomes a scan over its examples: see `lanes_of`.

    One with an axis name, or of values that are no arrays, is batched as usual.
    """
    with _by_example(True):
        yield


_by_example = jax.make_user_context(False)  # type: ignore[attr-defined]
_batch = batching_internal.batch


def _batch_or_scan(fun, axis, dims, out_dims, sum_match=False):
    batched = _batch(fun, axis, dims, out_dims, sum_match=sum_match)
    return _Lanes(fun, axis, dims, out_dims, batched) if _by_example.value else batched


batching_internal.batch = _batch_or_scan


class _Lanes:
    """What stands for a batched function: mapped over its examples one by one."""

    def __init__(self, fun, axis, dims, out_dims, batched):
        self.fun, self.axis, self.dims, self.out_dims = fun, axis, dims, out_dims
        self.batched = batched

    def call_wrapped(self, *args):
        axis, dims, fun = self.axis, self.dims, self.fun
        plain = all(d is None or isinstance(d, int) for d in dims) and all(map(is_array, args))
        named = axis.name is not core.no_axis_name or axis.spmd_name is not None
        if named or axis.explicit_mesh_axis is not None or not plain:
            return self.batched.call_wrapped(*args)
        xs = [jnp.moveaxis(a, d, 0) for a, d in zip(args, dims, strict=True) if d is not None]

        def body(_, xs):
            rest = iter(xs)
            one = [a if d is None else next(rest) for a, d in zip(args, dims, strict=True)]
            self._forget()
            return None, list(fun.call_wrapped(*one))

        with source_info_util.extend_name_stack(_LANES + fun.__name__):
            _, outs = lax.scan(body, None, xs, length=axis.size)
        ends = self.out_dims() if callable(self.out_dims) else self.out_dims
        if not all(isinstance(d, int) for d in ends):  # let JAX see to what is not mapped
            self._forget()
            return self.batched.call_wrapped(*args)
        return [jnp.moveaxis(x, 0, d) for x, d in zip(outs, ends, strict=True)], list(ends)

    def _forget(self):
        for store in filter(None, self.fun.stores):
            store.reset()


# ---------------------------------------------------------------- whole tracebacks


class Whole:
    """A traceback with the frames of JAX, kept beside the one JAX made of it."""

    def __init__(self, traceback=None):
        self.traceback = traceback

    def __reduce__(self):  # an error is still sent between processes; its frames are not
        return Whole, ()


_keepers: set[object] = set()


@contextlib.contextmanager
def whole_tracebacks() -> Iterator[None]:
    """While open, errors keep the frames that JAX removes: see `whole_traceback`."""
    _keepers.add(keeper := object())
    try:
        yield
    finally:
        _keepers.discard(keeper)


def whole_traceback(error: BaseException) -> list[tuple]:
    """(frame, index of the instruction, whether the code is JAX's) of an error, outermost first."""
    kept = list(_walk(vars(error).get(_WHOLE, Whole()).traceback))
    inner = {frame for frame, _ in kept}
    outer = itertools.takewhile(lambda step: step[0] not in inner, _walk(error.__traceback__))
    return [(f, at, is_hidden(f)) for f, at in (*outer, *kept)]


def is_hidden(frame) -> bool:
    """Whether a frame runs code of JAX or of this library."""
    return not traceback_util.include_frame(frame)


def _walk(tb) -> Iterator[tuple]:
    while tb is not None:
        yield tb.tb_frame, tb.tb_lasti
        tb = tb.tb_next


def _keep_whole(filter_traceback):
    def wrapped(tb):
        if _keepers and (error := sys.exception()) is not None and error.__traceback__ is tb:
            vars(error).setdefault(_WHOLE, Whole(tb))
        return filter_traceback(tb)

    return wrapped


_WHOLE = "_whole_traceback"
traceback_util.filter_traceback = _keep_whole(traceback_util.filter_traceback)


# ---------------------------------------------------------------- programs as they run

# A call of a jitted function with values, or an execution: of such a call, or of a part of what
# runs without jit (then fun is None). leaves: the flat arguments; given: (args, kwargs).
# traced: the call is under vmap or grad, and the leaves are types.
Running = namedtuple(
    "Running", "program leaves donated fun given traced", defaults=[None, None, False]
)

_watches: list[Callable] = []


@contextlib.contextmanager
def watched(watch: Callable) -> Iterator[None]:
    """While open, watch(proceed, running) stands in the place of proceed() for all that runs.

    watch.narrowed(asked, given) is told of a dtype that is not to be had without jax_enable_x64.
    Compiled functions are compiled again for the block, and called through Python.
    """
    with apart():
        _watches.append(watch)
        try:
            yield
        finally:
            _watches.remove(watch)


def argument_names(jaxpr: Jaxpr) -> tuple[str, ...]:
    """The paths of the arguments of the function behind a program, as JAX knows them."""
    return tuple(name or "" for name in getattr(jaxpr.jaxpr.debug_info, "arg_names", None) or ())


def name_of(jaxpr: Jaxpr) -> str:
    """The name of the function behind a program, "" where JAX does not know it."""
    known = getattr(jaxpr.jaxpr.debug_info, "func_src_info", None) or ""
    return known.rpartition(" at ")[0]


def key_numbers(x):
    """The array of numbers behind a typed random key; anything else as it is."""
    return getattr(x, "_base_array", x)


def host_function(eqn: Eqn):
    """The function that a callback calls on the host, None where it is out of reach."""
    fun = eqn.params.get("callback")
    return getattr(fun, "callback_func", fun)


def is_hidden_file(file: str) -> bool:
    """Whether a file is of JAX or of this library."""
    return not traceback_util.include_filename(file)


def _through_watch(proceed: Callable, running: Running):
    for watch in _watches:
        proceed = functools.partial(watch, proceed, running)
    return proceed()


def _watched_call(run):
    def wrapped(p, leaves, fun, args, kwargs):
        proceed = functools.partial(run, p, leaves, fun, args, kwargs)
        if not _watches or _is_staging():
            return proceed()
        program, donated = p.params["jaxpr"], p.params["donated_invars"]
        traced = any(map(_is_tracer, leaves))
        leaves = list(map(jax.typeof, leaves)) if traced else leaves
        running = Running(program, leaves, donated, fun, (args, kwargs), traced)
        return _through_watch(proceed, running)

    return wrapped


def _watched_run(run):
    def wrapped(*leaves, jaxpr, donated_invars, **params):
        params |= {"jaxpr": jaxpr, "donated_invars": donated_invars}
        proceed = functools.partial(run, *leaves, **params)
        if not _watches:
            return proceed()
        return _through_watch(proceed, Running(jaxpr, leaves, donated_invars))

    return wrapped


def _watched_dtype(canonical):
    def wrapped(dtype, fun_name):
        kept = canonical(dtype, fun_name)
        for watch in _watches if kept != dtype else ():
            watch.narrowed(dtype, kept)
        return kept

    return wrapped


def _no_fast_path(make):
    return lambda *args: None if _watches else make(*args)


def _is_staging() -> bool:
    trace = core.trace_ctx.trace
    while trace is not None:
        if isinstance(trace, pe.DynamicJaxprTrace):
            return True
        trace = getattr(trace, "parent_trace", None)
    return False


def _is_tracer(x) -> bool:
    return isinstance(x, Tracer)


pjit._run_python_pjit = _watched_call(pjit._run_python_pjit)
pjit._pjit_call_impl_python = _watched_run(pjit._pjit_call_impl_python)
pjit._get_fastpath_data = _no_fast_path(pjit._get_fastpath_data)
dtypes._maybe_canonicalize_explicit_dtype = _watched_dtype(
    dtypes._maybe_canonicalize_explicit_dtype
)


# ---------------------------------------------------------------- running lane by lane


def is_spread(x) -> bool:
    """Whether a value is a concrete array that lies on several devices."""
    return isinstance(x, HostArray) and len(x.sharding.device_set) > 1


def alone(eqn: Eqn) -> Eqn:
    """An equation of the body of a shard_map, as one that runs on the part of a single device."""
    with eqn.ctx.manager, jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
        ctx = type(eqn.ctx)()
    placed = [k for k, p in eqn.params.items() if isinstance(p, jax.sharding.Sharding)]
    return eqn.replace(ctx=ctx, params=eqn.params | dict.fromkeys(placed))


def concrete_mesh(mesh):
    """The devices of a mesh, those of the context if it names none; None where there are none."""
    if isinstance(mesh, jax.sharding.Mesh):
        return mesh
    known = mesh_internal.get_concrete_mesh()
    return None if known is None or known.empty else known


def mesh_of(x):
    """The mesh that a concrete array is laid out on, or None."""
    mesh = getattr(x.sharding, "mesh", None) if isinstance(x, HostArray) else None
    return mesh if isinstance(mesh, jax.sharding.Mesh) else None


def is_laid_out(aval) -> bool:
    """Whether a type says how its values are laid out on a mesh."""
    sharding = getattr(aval, "sharding", None)
    return sharding is not None and not sharding.mesh.empty


on_mesh = sharding_impls._internal_use_concrete_mesh  # inside, the devices of a mesh are known


def number(atom: Literal):
    """A number written into a program, as an array of its type."""
    x, aval = atom.val, atom.aval
    if isinstance(x, HostArray) or aval.dtype == jax.dtypes.float0:
        return x
    return put(np.asarray(x, aval.dtype), aval.weak_type)


# ---------------------------------------------------------------- calls of JAX's transformations

# module behind jax._src. -> {name of the code that runs when one is called: what a user calls it}
_CALLED = {
    "api": "vmap_f=vmap grad_f=grad grad_f_aux=grad value_and_grad_f=value_and_grad _jvp=jvp "
    "vjp=vjp linearize=linearize jacfun=jacobian",
    "pjit": "cache_miss=jit",
    "lax.control_flow.loops": "scan=scan while_loop=while_loop fori_loop=fori_loop map=map "
    "associative_scan=associative_scan",
    "lax.control_flow.conditionals": "cond=cond switch=switch",
    "ad_checkpoint": "fun_remat=checkpoint",
    "shard_map": "wrapped=shard_map",
}
CALLED = {
    (f"jax._src.{module}", code): name
    for module, names in _CALLED.items()
    for code, name in (pair.split("=") for pair in names.split())
}


# ---------------------------------------------------------------- programs in files


@functools.cache
def named_primitives() -> dict[str, Primitive]:
    """{name: primitive} of those of JAX that only compute: nothing that calls back or mutates."""
    modules = (lax, lax.linalg, jexc.primitives, parallel, prng, lax_internal, conditionals)
    found = [v for m in modules for n, v in vars(m).items() if n.endswith("_p")]
    named = {p.name: p for p in (*found, core.pvary_p) if isinstance(p, Primitive)}
    return {name: p for name, p in named.items() if name not in _DOING}


_DOING = {*"get swap addupdate call core_call custom_lin infeed outfeed create_token".split()}
MemorySpace = core.MemorySpace
UNPLACED = type(jax.make_jaxpr(jax.jit(abs))(0.0).eqns[0].params["in_shardings"][0])


def array_type(shape, dtype, weak: bool = False):
    """The type of an array."""
    return core.ShapedArray(tuple(shape), dtype, weak_type=weak)


def key_kind(x) -> str | None:
    """The name of the generator behind a dtype of random keys, or behind what holds one."""
    return getattr(getattr(x, "_impl", x), "name", None)


@functools.cache
def key_dtype(name: str) -> Any:
    """The dtype of the random keys of a generator; None for one that is not there."""
    return prng.KeyTy(prng.prngs[name]) if name in prng.prngs else None


def key_implementation(name: str) -> Any:
    """A generator, as the params of primitives hold it; None for one that is not there."""
    return prng.prngs.get(name)


def names_around(eqn: Eqn) -> list[tuple[str, str]]:
    """The name stack of an equation as text: ("scope", name) or ("transform", name)."""
    stack = getattr(eqn.source_info.name_stack, "stack", ())
    return [("scope" if type(s) is source_info_util.Scope else "transform", s.name) for s in stack]


def spoken_of(jaxpr: Jaxpr) -> tuple[str, tuple[str, ...]]:
    """What the user called the function behind a program, and its arguments; "" for unknown."""
    info, count = jaxpr.jaxpr.debug_info, len(jaxpr.jaxpr.invars)
    known = getattr(info, "arg_names", None) or ()
    names = tuple(str(n or "") for n in known) if len(known) == count else ("",) * count
    return (getattr(info, "func_src_info", None) or "").partition(" at ")[0], names


@contextlib.contextmanager
def restored(traceback, names: Sequence[tuple[str, str]]) -> Iterator[None]:
    """Attribute everything bound inside to frames made by `traceback_of`, under a name stack."""
    kinds = {"scope": source_info_util.Scope, "transform": source_info_util.Transform}
    stack = source_info_util.NameStack(tuple(kinds[kind](name) for kind, name in names))
    with source_info_util.user_context(traceback, name_stack=stack):
        yield


def traceback_of(places: Sequence[Place]):
    """A traceback as JAX keeps them, of frames that are no more: innermost first.

    One empty call per frame, of a code object with the file, the line and the name it had.
    """
    run: Any = xla_client.Traceback.get_traceback
    for p in places:
        at = {"lineno": p.line, "col_offset": p.column}
        at |= {"end_lineno": p.end_line, "end_col_offset": p.end_column}
        call = ast.Call(ast.Name("run", ast.Load(), **at), [], [], **at)
        code = compile(ast.Expression(call), p.file, "eval")
        code = code.replace(co_name=p.function.rpartition(".")[2], co_qualname=p.function)
        run = functools.partial(eval, code, {"run": run})
    made: list = []
    thread = threading.Thread(target=lambda: made.append(run()))  # no frames of ours around it
    thread.start()
    thread.join()
    return made[0]


# ---------------------------------------------------------------- programs in other operations


def written_in_jax(prim: Primitive) -> Callable | None:
    """fun(*args, **params), by which a primitive is compiled, if it is one of JAX operations."""
    entry: Any = mlir._lowerings.get(prim)
    rule = getattr(entry, "rule", entry)
    written = getattr(getattr(rule, "__code__", None), "co_freevars", ()) == _LOWER_FUN
    return rule.__closure__[0].cell_contents if written else None


_LOWER_FUN = ("fun", "multiple_results")


def is_key(aval) -> bool:
    """Whether this is the type of random keys."""
    return jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key)


def key_functions(dtype):
    """What makes random numbers of a kind of key: seed, split, random_bits, fold_in, key_shape."""
    return dtype._impl


def sizes_at(shape: Sequence, sizes: dict[str, int]) -> tuple[int, ...]:
    """A shape with symbols as one of numbers: {name: size}."""
    return tuple(d if isinstance(d, int) else int(d._evaluate(sizes)) for d in shape)


def places_now() -> tuple[Place, ...]:
    """The user's frames at this moment, innermost first."""
    return _places(source_info_util.current().traceback)


varying = _varying


# ---------------------------------------------------------------- constructs run as plain Python

_detour: Any = jax.make_user_context(None)  # type: ignore[attr-defined]


def detour():
    """Who runs the constructs of JAX in its place, in this thread; None for nobody."""
    return _detour.value


def detoured(by):
    """Inside, in this thread, `by` is asked to run each construct; its methods have their names.

    Each is given JAX's own function, then what that was called with. by: hashable; JAX's caches
    are told apart by it.
    """
    return _detour(by)


def _asking(name: str, original: Callable):
    @functools.wraps(original)
    def wrapped(*args, **kwargs):
        by = _detour.value
        do = original if by is None else functools.partial(getattr(by, name), original)
        return do(*args, **kwargs)

    return wrapped


def _ask_first(name: str, public: Callable) -> None:
    """Every public function of JAX holds what it does in a cell: it is found by all its names."""
    inner = public.__wrapped__  # type: ignore[attr-defined]
    cell = next(c for c in public.__closure__ or () if c.cell_contents is inner)
    cell.cell_contents = _asking(name, inner)


for _name in ("scan", "while_loop", "cond", "switch", "custom_root", "custom_linear_solve"):
    _ask_first(_name, getattr(lax, _name))
parallel._psum = _asking("psum", parallel._psum)


class _Ran(namedtuple("_Ran", "outs")):
    """What stands for the program of a jitted function that ran without one."""


_NO_PROGRAM = types.SimpleNamespace(effects=(), consts=())


def _infer_or_run(infer):
    def wrapped(fun, info, args, kwargs):
        by = _detour.value
        if by is not None and sys._getframe(1).f_code.co_name == "cache_miss":  # a call, no lower()
            outs = by.jit(fun, args, kwargs, info.static_argnums, info.static_argnames)
            if outs is not NotImplemented:
                return _Ran(outs), ()
        return infer(fun, info, args, kwargs)

    return wrapped


def _finish_run(run):
    def wrapped(p, *rest):
        if isinstance(p, _Ran):
            return p.outs, None, None, None, _NO_PROGRAM, None, None, []
        return run(p, *rest)

    return wrapped


pjit._infer_params = _infer_or_run(pjit._infer_params)
pjit._run_python_pjit = _finish_run(pjit._run_python_pjit)


def _batch_or_loop(batch):
    def wrapped(fun, axis, dims, out_dims, **options):
        batched = batch(fun, axis, dims, out_dims, **options)
        return batched if _detour.value is None else _Examples(fun, axis, dims, out_dims, batched)

    return wrapped


class _Examples:
    """What stands for a batched function: run for its examples one by one."""

    def __init__(self, fun, axis, dims, out_dims, batched):
        self.fun, self.axis, self.dims, self.out_dims = fun, axis, dims, out_dims
        self.batched = batched

    def call_wrapped(self, *args):
        def run(*xs):
            outs = list(self.fun.call_wrapped(*xs))
            said.append([s.val if s else None for s in stores])  # the pytree of the results
            for store in stores:
                store.reset()
            return outs

        def ends():
            for store, value in zip(stores, said[-1], strict=True):
                store.store(value)
            return self.out_dims() if callable(self.out_dims) else self.out_dims

        said: list = []
        stores = [s for s in self.fun.stores if s is not None]
        name = None if self.axis.name is core.no_axis_name else self.axis.name
        outs = _detour.value.vmap(run, args, self.dims, self.axis.size, name, ends, self.fun.f)
        if outs is not NotImplemented:
            return outs, list(self.out_dims() if callable(self.out_dims) else self.out_dims)
        for store in stores:
            store.reset()
        return self.batched.call_wrapped(*args)


batching_internal.batch = _batch_or_loop(batching_internal.batch)


def _bind_or_run(bind):
    def wrapped(self, trace, args, avals, params, /):
        by = _detour.value
        if by is None:
            return bind(self, trace, args, avals, params)

        def lane(*parts):
            tree, specs = fun(*parts).unpack_aux()
            trees.append((tree, specs))
            return list(tree.vals), list(specs)

        fun, trees = params["subfuns"][0], []
        with under_trace(trace):
            outs = by.shard_map(
                lane,
                fun,
                args,
                params["mesh"],
                params["in_specs"],
                params["newly_manual_axes"],
                params["check_vma"],
            )
        if outs is NotImplemented:
            return bind(self, trace, args, avals, params)
        return trees[-1][0].update(outs)

    return wrapped


shard_map.ShardMapPrimitive.bind_with_trace = _bind_or_run(
    shard_map.ShardMapPrimitive.bind_with_trace
)


def _trace_or_run(trace):
    def wrapped(fun, tree, avals, debug):
        by = _detour.value
        if by is not None:
            args, kwargs = jax.tree.unflatten(tree, sys._getframe(1).f_locals["args_flat"])
            outs = by.checkpoint(fun, args, kwargs)
            if outs is not NotImplemented:
                leaves, out_tree = jax.tree.flatten(outs)
                return _Ran(leaves), [], out_tree
        return trace(fun, tree, avals, debug)

    return wrapped


def _bind_unless_run(bind):
    def wrapped(*args, jaxpr, **params):
        return jaxpr.outs if isinstance(jaxpr, _Ran) else bind(*args, jaxpr=jaxpr, **params)

    return wrapped


ad_checkpoint._trace_to_jaxpr = _trace_or_run(ad_checkpoint._trace_to_jaxpr)
ad_checkpoint.remat_p.bind = _bind_unless_run(ad_checkpoint.remat_p.bind)


def _convert_or_keep(convert):
    @functools.wraps(convert)
    def wrapped(fun, tree, avals, debug):
        by = _detour.value
        kept = NotImplemented if by is None else by.closure_convert(fun)
        return convert(fun, tree, avals, debug) if kept is NotImplemented else (kept, [])

    return wrapped


custom_derivatives._closure_convert_for_avals = _convert_or_keep(
    custom_derivatives._closure_convert_for_avals
)


def _record_staging(start):
    def wrapped(self, debug_info, *args, **kwargs):
        start(self, debug_info, *args, **kwargs)
        by = _detour.value
        if by is not None and debug_info is not None:
            by.staged(debug_info.traced_for, debug_info.func_src_info or "")

    return wrapped


pe.DynamicJaxprTrace.__init__ = _record_staging(pe.DynamicJaxprTrace.__init__)


def around() -> set[str]:
    """What there is between the operations done here and their values.

    Of "derivative", "lane" and "program", which means that there are no values.
    """
    found, trace = set(), core.trace_ctx.trace
    while trace is not None and trace is not core.eval_trace:
        lane, derivative = isinstance(trace, Lane), isinstance(trace, _DERIVATIVES)
        found.add("lane" if lane else "derivative" if derivative else "program")
        trace = getattr(trace, "parent_trace", None)
    return found


_DERIVATIVES = (ad.JVPTrace, ad_internal.LinearizeTrace, pe.JaxprTrace)


def lanes_here() -> "Iterator[Lane]":
    """The lanes that what is done here runs in, innermost first."""
    trace = core.trace_ctx.trace
    while trace is not None:
        if isinstance(trace, Lane):
            yield trace
        trace = getattr(trace, "parent_trace", None)


class Lane(jax.core.Trace):
    """What runs inside is one lane of many: values are concrete, collectives are passed on.

    axes: {name: size}; run(primitive, plain operands, params, operands) -> results, for what is
    about the axes or has a body. mesh: of a shard_map that checks along which axes values vary:
    then arrays say so in their types, as derivatives have to know.
    """

    def __init__(self, axes, run, mesh=None):
        super().__init__()
        self.axes, self.run, self.mesh, self.manual = axes, run, mesh, False
        self.parent_trace, self.outside = core.trace_ctx.trace, mesh_internal.get_abstract_mesh()

    @contextlib.contextmanager
    def entered(self, mesh=None, checked=None) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            stack.enter_context(under_trace(self))
            stack.enter_context(core.extend_axis_env_nd(list(self.axes.items())))
            if mesh is not None:
                manual, self.manual = _manual(mesh, self.axes), True
                stack.enter_context(jax.sharding.use_abstract_mesh(manual))
                stack.enter_context(config._check_vma(checked))
            yield

    def plainly(self, prim, args, params):
        """Run an operation as it would run outside of the lane."""
        params = {k: None if is_manual(p) else p for k, p in params.items()}
        with self.beside():
            out = prim.bind(*args, **prim.get_bind_params(params))
        return list(out) if prim.multiple_results else [out]

    @contextlib.contextmanager
    def beside(self) -> Iterator[None]:
        """What runs inside runs as outside of the lane."""
        with under_trace(self.parent_trace), jax.sharding.use_abstract_mesh(self.outside):
            yield

    def process_primitive(self, prim, args, params, /):
        plain = [self.plain(x) for x in args]
        with self.beside():  # JAX leaves no trace to run in from 0.11 on
            outs = self.run(self, prim, plain, params, args)
        if outs is NotImplemented:
            outs = self.plainly(prim, plain, params)
        if self.mesh is not None:
            types = prim.abstract_eval(*map(jax.typeof, args), **params)[0]
            types = types if prim.multiple_results else [types]
            outs = [self.typed(x, t) for x, t in zip(outs, types, strict=True)]
        return list(outs) if prim.multiple_results else outs[0]

    def process_custom_jvp_call(self, prim, fun, rule, args, /, **_):
        with under_trace(self):
            return fun.call_wrapped(*args)

    def process_custom_vjp_call(self, prim, fun, fwd, bwd, args, /, **_):
        with under_trace(self):
            return fun.call_wrapped(*args)

    def process_call(self, prim, fun, args, params, /):
        with under_trace(self):
            return fun.call_wrapped(*args)

    def stage_value(self, value):
        return value

    def typed(self, x, aval):
        """A value, saying along which axes of the mesh it varies."""
        if not _varying(aval) or not isinstance(aval, core.ShapedArray):
            return x
        if isinstance(x, HostArray):
            arrays, kept = x._arrays, x._committed
            return HostArray(aval, x.sharding, arrays, committed=kept, _skip_checks=True)
        return LaneTracer(self, x, aval)

    def plain(self, x):
        """A value without what `typed` said of it."""
        if isinstance(x, LaneTracer) and x._trace is self:
            return self.plain(x.value)
        if self.mesh is not None and isinstance(x, HostArray) and _varying(x):
            aval = _aval(x.shape, x.dtype, x.aval.weak_type)
            return HostArray(aval, x.sharding, x._arrays, committed=x._committed, _skip_checks=True)
        return x

    def dressed(self, x):
        """A value as one that nobody takes for a constant, the same in all lanes."""
        return x if isinstance(x, Tracer) else LaneTracer(self, x, jax.typeof(x))


class LaneTracer(LiveTracer):
    """A value of one lane, in the place of an array that cannot say what it has to."""

    __slots__ = ()

    def __init__(self, trace, value, aval):
        Tracer.__init__(self, trace, aval)
        self.value = value


def part_type(x, spec, mesh, axes, checked):
    """The type of the part of a value that each lane of a shard_map gets."""
    aval = jax.typeof(x)
    return core.shard_aval(mesh, frozenset(axes), checked, spec, aval)


def _manual(mesh, axes):
    return shard_map._as_manual_mesh(mesh, frozenset(axes) | frozenset(mesh.manual_axes))


def is_weak(x) -> bool:
    """Whether the dtype of an array gives way to that of others, as a number's does."""
    return getattr(jax.typeof(x), "weak_type", False)


def is_known(x) -> bool:
    """Whether there is a value behind an array, a number or a tracer."""
    return core.is_concrete(x)


def same_type(x, y) -> bool:
    """Whether two arrays are of one type, weak or not, wherever they lie."""
    one, other = jax.typeof(x), jax.typeof(y)
    same = one.shape == other.shape and one.dtype == other.dtype
    return same and _varying(one) == _varying(other)


def is_manual(p) -> bool:
    """Whether a parameter places values on the mesh of a shard_map around it."""
    return isinstance(p, jax.sharding.NamedSharding) and p.mesh._any_axis_manual


def thread_state() -> Callable[[], None]:
    """What JAX knows of the context in this thread, as a function that tells it another thread."""
    unset = config.config_ext.unset
    known = [(s, x) for s in _settings() if (x := s.get_local()) is not unset]
    stack = list(mesh_internal.thread_resources.stack)

    def tell():
        for setting, value in known:
            setting.set_local(value)
        mesh_internal.thread_resources.stack[:] = stack
        mesh_internal.thread_resources.env = stack[-1]

    return tell


@functools.cache
def _settings() -> list:
    """What JAX keeps for each thread, contexts of others included, found by their names."""
    known = [
        x for m in list(sys.modules.values()) for x in list(getattr(m, "__dict__", {}).values())
    ]
    known = [x._obj if type(x) is type(_detour) else x for x in known]
    return list({id(x): x for x in known if isinstance(x, config.config_ext.Config)}.values())


def checkpointed(fun: Callable, differentiated: bool, **again) -> Callable:
    """jax.checkpoint; differentiated: as inside a gradient, where XLA may not undo it."""
    kept = jax.checkpoint(fun, **again)
    if not differentiated:
        return kept

    def flagged(*args):
        made, out = jax.make_jaxpr(kept, return_shape=True)(*args)
        (eqn,) = made.jaxpr.eqns
        eqn = eqn.replace(params=eqn.params | {"differentiated": True})
        known = dict(zip(made.jaxpr.constvars, made.consts, strict=True))
        outs = replay(program(made, [eqn], made.jaxpr.outvars, known), list(args))
        return jax.tree.unflatten(jax.tree.structure(out), outs)

    return flagged


def branch(index, branches: Sequence[Callable], args: Sequence, platforms=None) -> list:
    """lax.switch on an index that is known to be in range: without a clamp."""
    made = trace(lambda index, *xs: lax.switch(index, branches, *xs), index, *args)
    env = dict(zip(made.jaxpr.constvars, made.consts, strict=True))
    env |= dict(zip(made.jaxpr.invars, (index, *args), strict=True))
    read = lambda atom: atom.val if isinstance(atom, Literal) else env[atom]  # noqa: E731
    for eqn in made.jaxpr.eqns:
        values = [read(v) for v in eqn.invars]
        if eqn.primitive.name == "clamp":
            outs = [index]
        else:
            told = {"branches_platforms": platforms} if platforms else {}
            told = told if eqn.primitive.name == "cond" else {}
            outs = copy(eqn.replace(params=eqn.params | told), values)
        env.update(zip(eqn.outvars, outs, strict=True))
    return [read(v) for v in made.jaxpr.outvars]


InconclusiveSize: Any = core.InconclusiveDimensionOperation  # what is not decided for a symbol


def frames_of(error: BaseException) -> tuple[Place, ...]:
    """The user's frames that an exception went through, innermost first."""
    found = []
    for frame, line in traceback_module.walk_tb(error.__traceback__):
        code = frame.f_code
        if source_info_util.is_user_filename(code.co_filename):
            found.append(Place(code.co_filename, line, code.co_qualname, 0, line, 0))
    return tuple(reversed(found))
