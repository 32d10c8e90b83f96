"""The one door to JAX internals.

Every name from `jax.core`, `jax.extend`, `jax.interpreters` or `jax._src` enters here and
nowhere else. Two dialects are spoken: up to JAX 0.10 and from 0.11 on. When a release breaks
us, this file changes, and `tests/test_compat.py` says which line.

In order: jaxprs, source lines, views of higher-order equations, markers, live tracers.
"""

import contextlib
import pathlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp
from jax._src import source_info_util
from jax._src.interpreters import partial_eval as pe
from jax.extend import core as jexc
from jax.interpreters import ad, batching, mlir

Eqn = jexc.JaxprEqn
Jaxpr = jexc.ClosedJaxpr  # a program with its constants; from JAX 0.11 the only kind there is
Literal = jexc.Literal
Primitive = jexc.Primitive
Tracer = jax.core.Tracer
SymbolicZero = jax.custom_derivatives.SymbolicZero
CustomVJPPrimal = jax.custom_derivatives.CustomVJPPrimal

INLINE: Any = jax.Inline.JAX_EARLY if hasattr(jax, "Inline") else True  # type: ignore[attr-defined]


# ---------------------------------------------------------------- jaxprs


def trace(fun: Callable, *avals) -> Jaxpr:
    """Stage a flat function of `avals`; loops stay loops even under `jax.disable_jit`."""
    with jax.disable_jit(False):
        return jax.make_jaxpr(fun)(*avals)


def inlined(fun: Callable) -> Callable:
    """`fun`, traced once per signature and trace context; leaves no call in the program."""
    return jax.jit(fun, inline=INLINE)


def close(jaxpr) -> Jaxpr:
    """A jaxpr found in some params, as a closed one."""
    return jaxpr if isinstance(jaxpr, Jaxpr) else pe.close_jaxpr(jaxpr)


def bodies(params: dict) -> list[Jaxpr]:
    """The jaxprs among the params of an equation."""
    flat = (x for p in params.values() for x in (p if isinstance(p, tuple | list) else (p,)))
    return [close(x) for x in flat if isinstance(x, (Jaxpr, jexc.Jaxpr))]


def bind(eqn: Eqn, args: Sequence) -> list:
    """Run one equation on `args`, unchanged. Always returns a list."""
    out = eqn.primitive.bind(*args, **eqn.primitive.get_bind_params(eqn.params))
    return list(out) if eqn.primitive.multiple_results else [out]


def same_program(eqn: Eqn):
    """A hashable key, equal for equations that compute the same function of their operands."""
    key = eqn.primitive, frozenset((k, v) for k, v in eqn.params.items() if _has_hash(v))
    return key if len(key[1]) == len(eqn.params) else eqn


def _has_hash(x):
    try:
        return hash(x) is not None
    except TypeError:  # a custom_vjp with nondiff_argnums carries an object without one
        return False


aval = jax.typeof


def array_type(like):
    """The type of an array with the shape and dtype of `like`, as abstract evaluation wants it."""
    return jax.core.ShapedArray(like.shape, jax.dtypes.canonicalize_dtype(like.dtype, True))


def slice_type(x):
    """The type of one slice of an array along its leading axis."""
    return jexc.mapped_aval(x.shape[0], 0, jax.typeof(x))


def is_array(x) -> bool:
    """Whether JAX can trace `x`: an array, a tracer or a Python number."""
    if isinstance(x, np.ndarray | np.generic):
        return x.dtype != jax.dtypes.float0 and x.dtype.kind in "biufcV"
    return isinstance(x, jax.Array | bool | int | float | complex)


def differentiable(aval) -> bool:
    """Whether a value of this type can carry a tangent."""
    return jnp.issubdtype(aval.dtype, jnp.inexact)


def is_ref(aval) -> bool:
    """Whether this is the type of a mutable reference (`jax.new_ref`)."""
    return hasattr(aval, "inner_aval")


def fits(value, aval) -> bool:
    """Whether a value has the shape and dtype of `aval`; weak types are not compared."""
    have = jax.typeof(value)
    return have.shape == aval.shape and have.dtype == aval.dtype


def converts(value, aval) -> bool:
    """Whether a value has the shape of `aval` and converts to its dtype without loss of kind."""
    same = jnp.shape(value) == jnp.shape(aval)
    return same and jnp.promote_types(jax.typeof(value).dtype, aval.dtype) == aval.dtype


def match_devices(value, aval):
    """`value`, typed as varying over the mesh axes `aval` varies over (inside shard_map)."""
    missing = tuple(set(_varying(aval)) - set(_varying(jax.typeof(value))))
    return lax.pcast(value, missing, to="varying") if missing else value


def _varying(aval) -> frozenset:
    kind = getattr(aval, "manual_axis_type", None)
    return kind.varying if kind is not None else getattr(aval, "vma", frozenset())


# ---------------------------------------------------------------- where am I

source_info_util.register_exclusion(str(pathlib.Path(__file__).parent))


@contextlib.contextmanager
def source(eqn: Eqn) -> Iterator[None]:
    """Attribute everything bound inside to the user's line behind `eqn`."""
    info = eqn.source_info
    stack = source_info_util.current_name_stack() + info.name_stack
    with source_info_util.user_context(info.traceback, name_stack=stack), eqn.ctx.manager:
        yield


def line(source_info) -> tuple[str, int, str] | None:
    """(file, line, function) of the innermost frame of the user's, or None."""
    frame = source_info_util.user_frame(source_info.traceback)
    return (frame.file_name, frame.start_line, frame.function_name) if frame else None


def where(*eqns: Eqn) -> str:
    """`file.py:12 in fun`, of the first equation that has a line of the user's; or ""."""
    found = next(filter(None, (line(e.source_info) for e in eqns)), None)
    return "{}:{} in {}".format(*found) if found else ""


def here() -> str:
    """`file.py:12 in fun`: the user's line that is running now."""
    found = line(source_info_util.current())
    return "{}:{} in {}".format(*found) if found else ""


# ---------------------------------------------------------------- views


@dataclass(frozen=True)
class Call:
    """One body, run once. wrap(fun) gives fun(frame, *args) -> (outs, frame) the same treatment.

    lost: what a body that was entered cannot keep, or "".
    """

    body: Jaxpr
    wrap: Callable
    lost: str = ""


@dataclass(frozen=True)
class CustomJvp:
    """jvp(primals, tangents) -> (outs, tangents of outs)."""

    body: Jaxpr
    jvp: Callable


@dataclass(frozen=True)
class CustomVjp:
    """fwd(args, perturbed) -> (outs, residuals); bwd(residuals, cotangents) -> cotangents."""

    body: Jaxpr
    fwd: Callable
    bwd: Callable


@dataclass(frozen=True)
class Branch:
    """cond and switch: operands are the index, then the arguments of the branches."""

    branches: tuple[Jaxpr, ...]


@dataclass(frozen=True)
class Scan:
    """split(args) -> consts, carry, xs;  body(*consts, *carry, *xs_i) -> (*carry, *ys_i)."""

    body: Jaxpr
    split: Callable
    length: int
    reverse: bool
    unroll: int


@dataclass(frozen=True)
class While:
    """split(args) -> cond_consts, body_consts, carry."""

    cond: Jaxpr
    body: Jaxpr
    split: Callable


@dataclass(frozen=True)
class Map:
    """shard_map: one body per device along `axes` of the mesh.

    wrap(fun, in_specs, out_specs) maps fun(frame, *args) the same way; the specs are of the
    frame. lanes(value) -> the axes along which a value inside differs.
    """

    body: Jaxpr
    axes: tuple[str, ...]
    size: int
    wrap: Callable
    lanes: Callable


@dataclass(frozen=True)
class Opaque:
    """A primitive with a body that cannot be entered, and why."""

    why: str


View = Call | CustomJvp | CustomVjp | Branch | Scan | While | Map | Opaque


def view(eqn: Eqn) -> View:
    """The shape of an equation that carries jaxprs; Opaque for a primitive in no table."""
    name = eqn.primitive.name
    if any(is_ref(v.aval) for v in eqn.invars):
        return Opaque("it updates a mutable reference (jax.new_ref)")
    if name in OPAQUE:
        return Opaque(OPAQUE[name])
    if name in INLINED:
        body, lost = INLINED[name]
        inner = close(eqn.params[next(k for k in body if k in eqn.params)])
        return Call(inner, lambda fun: fun, lost)
    if name not in VIEWS:
        return Opaque("malleable does not know this primitive")
    return VIEWS[name](eqn)


def _jit(eqn):
    p = eqn.params
    donated = tuple(i + 1 for i, d in enumerate(p["donated_invars"]) if d)
    options = {"inline": p["inline"], "keep_unused": p["keep_unused"]}
    if p["compiler_options_kvs"]:
        options["compiler_options"] = dict(p["compiler_options_kvs"])
    ins, outs = map(_shardings, (p["in_shardings"], p["out_shardings"]))
    if any(s is not None for s in ins):
        options["in_shardings"] = (None, *ins)
    if any(s is not None for s in outs):
        options["out_shardings"] = (outs, None)

    def wrap(fun):
        fun.__name__ = p["name"]
        return jax.jit(fun, donate_argnums=donated, **options)

    return Call(p["jaxpr"], wrap)


def _shardings(given):
    return [s if isinstance(s, jax.sharding.Sharding) else None for s in given]


def _remat(eqn):
    p = eqn.params
    again = {"prevent_cse": p["prevent_cse"], "policy": p["policy"]}

    def wrap(fun):
        if not p["differentiated"]:
            return jax.checkpoint(fun, **again)

        def kept(*args):  # inside a gradient: the flag keeps XLA from undoing the recomputation
            leaves, tree = jax.tree.flatten(args)
            out_tree = None

            def flat(*leaves):
                nonlocal out_tree
                outs, out_tree = jax.tree.flatten(fun(*jax.tree.unflatten(tree, leaves)))
                return outs

            closed = trace(flat, *leaves)
            jaxpr, consts = closed.jaxpr, closed.consts
            if consts:
                jaxpr = pe.convert_constvars_jaxpr(jaxpr)
            params = {**p, "jaxpr": jaxpr}
            return jax.tree.unflatten(out_tree, eqn.primitive.bind(*consts, *leaves, **params))

        return kept

    return Call(close(p["jaxpr"]), wrap)


def _subfuns(eqn):
    return eqn.primitive.get_bind_params(eqn.params)["subfuns"]


def _custom_jvp(eqn):
    def jvp(primals, tangents):
        _, rule = _subfuns(eqn)
        flat = list(rule.call_wrapped(*primals, *tangents))
        outs, dots = flat[: len(flat) // 2], flat[len(flat) // 2 :]
        avals = [v.aval for v in eqn.outvars]
        return outs, [zero_tangent(a) if _is_zero(t) else t for t, a in zip(dots, avals)]

    return CustomJvp(close(eqn.params["call_jaxpr"]), jvp)


def _custom_vjp(eqn):
    out_avals = [v.aval for v in eqn.outvars]
    in_avals = [v.aval for v in eqn.invars]

    def fwd(args, perturbed):
        _, rule, _ = _subfuns(eqn)
        flat = [x for pair in zip(args, perturbed, strict=True) for x in pair]
        out = list(rule.call_wrapped(*flat))
        res, outs = out[: len(out) - len(out_avals)], out[len(out) - len(out_avals) :]
        trees = eqn.params["out_trees"]()
        if len(trees) > 2 and trees[2] is not None:  # residuals that are inputs are left out
            rest = iter(res)
            res = [next(rest) if i is None else args[i] for i in trees[2]]
        return outs, res

    def bwd(res, cts):
        _, _, rule = _subfuns(eqn)
        if not eqn.params["symbolic_zeros"]:
            cts = [zero_tangent(a) if _is_zero(c) else c for c, a in zip(cts, out_avals)]
        out = rule.call_wrapped(*res, *cts)
        if isinstance(out, tuple) and len(out) == 2 and (out[1] is None or _is_logs(out[1])):
            out = out[0]  # from JAX 0.11: (cotangents, logs)
        return [
            zero_tangent(a) if c is None or _is_zero(c) else c
            for c, a in zip(out, in_avals, strict=True)
        ]

    return CustomVjp(close(eqn.params["call_jaxpr"]), fwd, bwd)


def _is_zero(x):
    return isinstance(x, SymbolicZero | ad.Zero)


def _is_logs(x):
    return isinstance(x, dict)


def zero_tangent(aval):
    """The zero of the tangent space of a type: an array, of dtype float0 for integers."""
    if differentiable(aval):
        return jnp.zeros(aval.shape, aval.dtype)
    return np.zeros(aval.shape, jax.dtypes.float0)


def primal_values(tree):
    """The plain values of the arguments of a custom_vjp forward rule with symbolic zeros."""
    kind = CustomVJPPrimal
    return jax.tree.map(lambda p: p.value, tree, is_leaf=lambda x: isinstance(x, kind))


def any_cotangent(tree) -> bool:
    """Whether any cotangent is not a symbolic zero."""
    return not all(map(_is_zero, jax.tree.leaves(tree, is_leaf=_is_zero)))


def plain_cotangents(tree):
    """Symbolic zeros as arrays."""

    def plain(x):
        if not _is_zero(x):
            return x
        return np.zeros(x.shape, x.dtype) if x.dtype == jax.dtypes.float0 else zero_tangent(x)

    return jax.tree.map(plain, tree, is_leaf=_is_zero)


def add_cotangents(a, b):
    """The sum, where the type has cotangents at all."""
    return a if getattr(a, "dtype", None) == jax.dtypes.float0 else a + b


def _cond(eqn):
    return Branch(tuple(eqn.params["branches"]))


def _scan(eqn):
    p = eqn.params

    def split(args):
        if "ft_in" in p:  # from JAX 0.11
            return [list(part.vals) for part in p["ft_in"].update(list(args)).unpack()]
        a, b = p["num_consts"], p["num_consts"] + p["num_carry"]
        return list(args[:a]), list(args[a:b]), list(args[b:])

    return Scan(p["jaxpr"], split, p["length"], p["reverse"], p["unroll"])


def _while(eqn):
    a, b = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]

    def split(args):
        return list(args[:a]), list(args[a : a + b]), list(args[a + b :])

    return While(eqn.params["cond_jaxpr"], eqn.params["body_jaxpr"], split)


def _shard_map(eqn):
    p = eqn.params
    mesh, checked = p["mesh"], p["check_vma"]
    manual = p.get("newly_manual_axes", p.get("manual_axes"))
    axes = tuple(a for a in mesh.axis_names if a in manual)
    size = int(np.prod([mesh.shape[a] for a in axes]))
    options = {"mesh": mesh, "check_vma": checked}
    if len(axes) < len(mesh.axis_names):
        options["axis_names"] = set(axes)

    def wrap(fun, in_specs, out_specs):
        outs = (list(p["out_specs"]), out_specs)
        ins = (*in_specs, *p["in_specs"])
        return jax.shard_map(fun, in_specs=ins, out_specs=outs, **options)

    def lanes(value):
        return tuple(a for a in axes if a in _varying(jax.typeof(value))) if checked else axes

    return Map(close(p["jaxpr"]), axes, size, wrap, lanes)


def mesh_specs(axes):
    """The specs of a leading axis split over mesh axes, and of a value equal on all devices."""
    spec = jax.sharding.PartitionSpec
    return (spec(tuple(axes)) if axes else spec()), spec()


VIEWS: dict[str, Callable[[Eqn], View]] = {
    "jit": _jit,
    "pjit": _jit,
    "remat": _remat,
    "remat2": _remat,
    "checkpoint": _remat,
    "custom_jvp_call": _custom_jvp,
    "custom_vjp_call": _custom_vjp,
    "cond": _cond,
    "scan": _scan,
    "while": _while,
    "shard_map": _shard_map,  # pmap is jit of shard_map
}

# name -> (where its body is, what is lost when the body is entered)
INLINED = {
    "closed_call": (("call_jaxpr",), ""),
    "core_call": (("call_jaxpr",), ""),
    "eval_jaxpr": (("call_jaxpr", "jaxpr"), ""),
    "composite": (("call_jaxpr", "jaxpr"), "its name as one operation"),
    "custom_vmap_call": (("call",), "its batching rule"),
    "custom_transpose_call": (("call",), "its transposition rule"),
    "linear_call": (("callee",), "its transposition rule"),
    "custom_partitioning": (("call",), "its partitioning rule"),
    "compute_on": (("jaxpr", "call_jaxpr"), "where it runs"),
    "xla_metadata_call": (("jaxpr", "call_jaxpr"), "its XLA metadata"),
    "program_order": (("jaxpr", "call_jaxpr"), "the order it fixed"),
}

# why a body cannot be entered, and whose
_CLOSED = {
    "its bodies define a linear solve and its derivatives together": "custom_linear_solve",
    "its body is chosen when it is differentiated": "remat_opt",
    "its body is hidden in an object": "call_hi_primitive",
    "its body updates mutable references": "run_state",
    "its body is a kernel over references": (
        "pallas_call core_map mpmd_map run_scoped jaxpr_call parallel_loop emit_pipeline "
        "pipeline_body"
    ),
    "its body is meant for one kind of hardware": (
        "cudnn_fusion custom_fusion fusible thunky.cond thunky.while thunky.async_start "
        "thunky.collective_group"
    ),
    "its body says how two elements combine, which XLA runs in no fixed order": (
        "reduce reduce_window select_and_scatter scatter scatter-add scatter-sub scatter-mul "
        "scatter-min scatter-max scatter_add scatter_sub scatter_mul scatter_min scatter_max"
    ),
}
OPAQUE = {name: why for why, names in _CLOSED.items() for name in names.split()}


# ---------------------------------------------------------------- markers


NOT_MAPPED: Any = None  # what batching calls an operand without a lane axis


class MarkerEffect(type(next(iter(jax.make_jaxpr(lambda: jax.debug.print(""))().effects)))):
    """On every equation of a marker, so that no pass drops it and no unknown body hides it."""

    def __repr__(self):
        return "Marker"

    __str__ = __repr__


EFFECT = MarkerEffect()
user_context = jax.make_user_context  # its value is part of the key of every trace cache of JAX


def has_marker(eqn: Eqn) -> bool:
    """Whether a marker is this equation, or is somewhere inside it."""
    return EFFECT in eqn.effects


def define_marker(prim: Primitive, out: Callable, run: Callable, lanes: str, tangents: str) -> None:
    """Tell JAX about a primitive of ours, which a transformation is to remove.

    out(*avals, **params) -> avals of the results; run(*args, **params) -> results, when no
    transformation removed it.

    lanes says what `vmap` makes of it: "front" moves the lane axis of mapped operands to the
    front, "all" gives it to every operand, "each" asks for one result per lane (params must
    have a `shape`), "shared" for one result in all.

    tangents: "pass" hands them through, "none" has none: such a marker is also kept inside the
    loop it is written in, where JAX would hoist what does not change (jax#16637); "refuse".
    """
    prim.multiple_results = True
    prim.def_impl(run)
    mlir.register_lowering(prim, mlir.lower_fun(run, multiple_results=True))
    prim.def_effectful_abstract_eval(lambda *a, **k: (list(out(*a, **k)), {EFFECT}))

    def batch(axis, args, dims, **params):
        mapped = [isinstance(d, int) for d in dims]
        args = [jnp.moveaxis(x, d, 0) if m else x for x, d, m in zip(args, dims, mapped)]
        if lanes == "each":
            params = {**params, "shape": (axis.size, *params["shape"])}
            mapped = [True]
        elif lanes == "all":
            args = [
                x if m else jnp.broadcast_to(x, (axis.size, *jnp.shape(x)))
                for x, m in zip(args, mapped)
            ]
            mapped = [True]
        outs = prim.bind(*args, **params)
        if lanes == "shared" or not outs:
            return outs, [NOT_MAPPED] * len(outs)
        if len(mapped) != len(outs):
            mapped = [any(mapped)] * len(outs)
        return outs, [0 if m else NOT_MAPPED for m in mapped]

    batching.fancy_primitive_batchers[prim] = batch
    if tangents == "pass":
        ad.primitive_jvps[prim] = lambda xs, ts, **params: (prim.bind(*xs, **params), list(ts))
    elif tangents == "none":
        ad.primitive_jvps[prim] = lambda xs, ts, **params: _no_tangents(prim.bind(*xs, **params))
        pe.custom_partial_eval_rules[prim] = _stay_in_loop(prim)


def _no_tangents(outs):
    return outs, [ad.Zero.from_primal_value(x) for x in outs]


def _stay_in_loop(prim):
    """A rule that makes partial evaluation treat the marker as unknown, whatever its operands."""

    def rule(trace, *tracers, **params):
        tracers = [trace.instantiate_const(t) for t in tracers]
        avals, effects = prim.abstract_eval(*[t.aval for t in tracers], **params)
        outs = [pe.JaxprTracer(trace, pe.PartialVal.unknown(a), None) for a in avals]
        now = source_info_util.current()
        eqn = pe.new_eqn_recipe(trace, tracers, outs, prim, params, effects, now)
        for out in outs:
            out.recipe = eqn
        trace.effect_handles.append(pe.EffectHandle(tracers, eqn))
        return outs

    return rule


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

    def __repr__(self):
        return repr(self.value)

    def __format__(self, spec):
        return format(self.value, spec)


class LiveTrace(jax.core.Trace):
    """Runs each primitive at once, on the values its tracers hold, through `process`.

    process(jaxpr, values) -> results runs a program of one equation; `watches(prim, params)`
    says which primitives go there. The others go straight to the trace outside.
    """

    def __init__(self, parent, process, watches, tracer):
        super().__init__()
        self.parent, self.process, self.watches, self.tracer = parent, process, watches, tracer
        self.requires_low = False

    def raise_(self, value):
        """A watched value; what is no array (a mutable reference, say) is left as it is."""
        return value if is_ref(jax.typeof(value)) else self.tracer(self, value)

    def lower(self, x):
        return x.value if isinstance(x, LiveTracer) and x._trace is self else x

    def outside(self):
        """Work on plain values, as the trace around this one would."""
        return jexc.set_current_trace(self.parent)

    def is_current(self) -> bool:
        with jexc.take_current_trace() as now:
            return now is self

    def process_primitive(self, prim, tracers, params, /):
        values = [self.lower(t) for t in tracers]
        if self.watches(prim, params):
            outs = self._staged(lambda *xs: prim.bind(*xs, **params), values)
            outs = outs if prim.multiple_results else outs[0]
        else:
            with self.outside():
                outs = prim.bind(*values, **params)
        if prim.multiple_results:
            return [self.raise_(x) for x in outs]
        return self.raise_(outs)

    def process_custom_jvp_call(self, prim, fun, jvp, tracers, /, **params):
        return self._call(prim, (fun, jvp), tracers, params)

    def process_custom_vjp_call(self, prim, fun, fwd, bwd, tracers, /, **params):
        return self._call(prim, (fun, fwd, bwd), tracers, params)

    def process_shard_map(self, prim, fun, tracers, /, **params):
        tree = None

        def one(*xs):
            nonlocal tree
            tree = prim.bind(*xs, subfuns=(fun,), **params)
            return list(tree.vals)

        outs = self._staged(one, [self.lower(t) for t in tracers])
        return tree.update([self.raise_(x) for x in outs])

    def _call(self, prim, subfuns, tracers, params):
        values = [self.lower(t) for t in tracers]
        outs = self._staged(lambda *xs: prim.bind(*xs, subfuns=subfuns, **params), values)
        return [self.raise_(x) for x in outs]

    def _staged(self, bind, values):
        """What comes with callables becomes one equation first, as it would in a jaxpr."""
        with self.outside():
            jaxpr = trace(bind, *values)
            jaxpr = jaxpr.replace(consts=[self.lower(c) for c in jaxpr.consts])
            return self.process(jaxpr, values)

    def stage_value(self, value):
        return self.raise_(value)

    def to_jaxpr_tracer(self, x, *_):
        return x


def run_live(fun: Callable, leaves: Sequence, process, watches, tracer=LiveTracer) -> Any:
    """fun(raise_(leaves), trace), with every primitive of it run by a new LiveTrace."""
    with jexc.take_current_trace() as parent:
        live = LiveTrace(parent, process, watches, tracer)
        with jexc.set_current_trace(live):
            return fun([live.raise_(x) if is_array(x) else x for x in leaves], live)
