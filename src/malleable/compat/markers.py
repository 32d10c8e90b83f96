"""Primitives of ours, which some transformation is to remove."""

import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.core
import jax.export
from jax import numpy as jnp
from jax._src import source_info_util
from jax._src.interpreters import partial_eval as pe
from jax.extend import core as jexc
from jax.interpreters import ad, batching, mlir

from malleable.compat.programs import Eqn, Jaxpr, Primitive, where
from malleable.errors import TransformError

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
