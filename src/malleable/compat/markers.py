"""Primitives of ours, which some transformation is to remove."""

import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.core
from jax import numpy as jnp
from jax._src import core, source_info_util
from jax._src.debugging import DebugEffect
from jax._src.interpreters import partial_eval as pe
from jax.interpreters import ad, batching, mlir

from malleable.compat.programs import Eqn, Primitive, where
from malleable.errors import TransformError

NOT_MAPPED: Any = None  # what batching calls an operand without a lane axis


class MarkerEffect(DebugEffect):
    """On every equation of a marker, so that no pass drops it and no unknown body hides it."""

    def __repr__(self):
        return "Marker"

    __str__ = __repr__


SOURCE, OPERATION = MarkerEffect(), MarkerEffect()  # a marker that only supplies a value; others


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
        known, array = out(*avals, **params), jax.core.ShapedArray
        return [t if isinstance(t, array) else array(t.shape, t.dtype) for t in known], {effect}

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
        if tangents == "refuse":
            hint = "put the transformation inside the grad: grad(trace(f)), not trace(grad(f))"
            raise TransformError(f"a grad inside goes through `{prim}`", where=where(), hint=hint)
        outs = prim.bind(*args, **params)
        zeros = (ad.Zero(jax.typeof(x).to_tangent_aval()) for x in outs)
        return outs, list(dots[: len(outs)] if tangents == "pass" else zeros)

    batching.fancy_primitive_batchers[prim] = batch
    ad.primitive_jvps[prim] = jvp
    if tangents != "refuse":
        undone = lambda cts, *xs, **_: [*cts, *(None for _ in xs[len(cts) :])]  # noqa: E731
        ad.primitive_transposes[prim] = undone
    if effect is SOURCE:  # JAX hoists what a loop does not change, effects and all: jax#16637
        pe.custom_partial_eval_rules[prim] = _stay_in_loop(prim)


def lane_watch(name: str, told: Callable) -> Primitive:
    """A primitive without results, that calls told(size, **params) where a vmap batches it."""
    prim = Primitive(name)
    prim.multiple_results = True
    prim.def_impl(lambda *_, **__: [])
    prim.def_abstract_eval(lambda *_, **__: [])
    mlir.register_lowering(prim, lambda *_, **__: [])

    def batch(axis, args, dims, **params):
        told(axis.size, **params)
        return prim.bind(*args, **params), []

    batching.fancy_primitive_batchers[prim] = batch
    ad.primitive_jvps[prim] = lambda args, dots, **params: (prim.bind(*args, **params), [])
    return prim


def _stay_in_loop(prim):
    """A rule that makes partial evaluation treat the marker as unknown, though it is not."""

    def rule(trace, *tracers, **params):
        if not is_hoisting():
            with core.set_current_trace(trace.parent_trace):
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


def is_hoisting() -> bool:
    """Whether JAX is splitting a program, and not linearizing a derivative rule, just now."""
    frame = sys._getframe()
    while frame is not None:
        name = frame.f_code.co_name
        if name == "linearize_from_jvp" or "partial_eval_jaxpr" in name:
            return name != "linearize_from_jvp"
        frame = frame.f_back
    return True
