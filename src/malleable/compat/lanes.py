"""What one device or example of many runs, and where its values lie."""

import contextlib
import functools
import itertools
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.core
import numpy as np
from jax._src import config, core, linear_util, sharding_impls
from jax._src import mesh as mesh_internal
from jax._src.interpreters import ad as ad_internal
from jax._src.interpreters import batching as batching_internal
from jax._src.interpreters import partial_eval as pe
from jax.interpreters import ad

from malleable.compat.building import manual_mesh
from malleable.compat.programs import (
    Eqn,
    HostArray,
    Literal,
    Tracer,
    aval_of,
    put,
    traces_here,
    varying,
)
from malleable.compat.tracers import LiveTracer, under_trace


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
    x: Any = atom.val
    aval: Any = atom.aval
    if isinstance(x, HostArray) or aval.dtype == jax.dtypes.float0:
        return x
    return put(np.asarray(x, aval.dtype), aval.weak_type)


@contextlib.contextmanager
def off_mesh() -> Iterator[None]:
    """Inside, no mesh of `jax.set_mesh` is there: what runs is bound to no devices."""
    with contextlib.ExitStack() as stack:
        if concrete_mesh(None) is not None:
            stack.enter_context(on_mesh(jax.sharding.Mesh(np.empty((), object), ())))
            stack.enter_context(jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())))
        yield


def is_operation(fun) -> bool:
    """Whether JAX jitted a function of its own, to run one operation on values."""
    return getattr(fun, "_apply_primitive", False)


def around() -> set[str]:
    """What there is between the operations done here and their values.

    Of "derivative", "lane" and "program", which means that there are no values.
    """
    found = set()
    for trace in itertools.takewhile(lambda trace: trace is not core.eval_trace, traces_here()):
        lane, derivative = isinstance(trace, Lane), isinstance(trace, _DERIVATIVES)
        found.add("lane" if lane else "derivative" if derivative else "program")
    return found


_DERIVATIVES = (ad.JVPTrace, ad_internal.LinearizeTrace, pe.JaxprTrace)


def is_batched() -> bool:
    """Whether what is done here is done for all examples of a vmap at once."""
    return isinstance(core.trace_ctx.trace, batching_internal.BatchTrace)


def lane_counts() -> list[int]:
    """How many examples the vmaps have that are around here, in the program being traced."""
    is_inside = lambda trace: not isinstance(trace, pe.DynamicJaxprTrace)  # noqa: E731
    found = itertools.takewhile(is_inside, traces_here())
    return [t.axis_data.size for t in found if isinstance(t, batching_internal.BatchTrace)]


def is_scan_body() -> bool:
    """Whether what is done here is a step of a scan, and not of a function that is in it."""
    trace = core.trace_ctx.trace
    told = trace.frame.debug_info if isinstance(trace, pe.DynamicJaxprTrace) else None
    return told is not None and told.traced_for == "scan"


def read_by_lane(fun, stack, axes: int) -> list[bool]:
    """Whether `fun` reads each leaf; ValueError unless it does to a stack what it does to rows."""
    each = fun
    for _ in range(axes):
        each = jax.vmap(each)
    whole, rows = jax.make_jaxpr(fun)(stack), jax.make_jaxpr(each)(stack)
    texts = [re.sub(r"np\.int64\((-?\d+)\)", r"\1", str(p.jaxpr)) for p in (whole, rows)]
    if texts[0] != texts[1] or [*map(id, whole.consts)] != [*map(id, rows.consts)]:
        raise ValueError("a stack is not taken row by row")
    used = {id(v) for e in whole.eqns for v in e.invars} | {*map(id, whole.jaxpr.outvars)}
    return [id(v) in used for v in whole.jaxpr.invars]


def lanes_here() -> "Iterator[Lane]":
    """The lanes that what is done here runs in, innermost first."""
    return (trace for trace in traces_here() if isinstance(trace, Lane))


class Lane(jax.core.Trace):
    """What runs inside is one lane of many: values are concrete, collectives are passed on.

    axes: {name: size}; run(primitive, plain operands, params, operands) -> results, for what is
    about the axes, has a body, or a rule for its derivative in reverse. mesh: of a shard_map that
    checks along which axes values vary: then arrays say so in their types, as derivatives have to
    know. in_rule: it runs a rule for a derivative, whose tangents no other lane knows.
    """

    def __init__(self, axes, run, mesh=None):
        super().__init__()
        self.axes, self.run, self.mesh, self.manual, self.in_rule = axes, run, mesh, False, False
        self.parent_trace, self.outside = core.trace_ctx.trace, mesh_internal.get_abstract_mesh()

    @contextlib.contextmanager
    def entered(self, mesh=None, checked=None) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            stack.enter_context(under_trace(self))
            stack.enter_context(core.extend_axis_env_nd(list(self.axes.items())))
            if mesh is not None:
                manual, self.manual = manual_mesh(mesh, self.axes), True
                stack.enter_context(jax.sharding.use_abstract_mesh(manual))
                stack.enter_context(config._check_vma(checked))
            yield

    def plainly(self, prim, args, params):
        """Run an operation as it would run outside of the lane."""
        there = lambda p: isinstance(p, jax.sharding.NamedSharding) and p.mesh._any_axis_manual  # noqa: E731
        params = {k: None if there(p) else p for k, p in params.items()}  # of a shard_map around
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

    def process_custom_jvp_call(self, prim, fun, rule, args, /, **params):
        if not self.is_differentiated():
            return self.process_call(prim, fun, args, params)
        types, seen = list(map(jax.typeof, args)), []
        tangents = [t.to_tangent_aval() for t in types]
        params["subfuns"] = self.again(fun, types, seen), self.again(rule, types + tangents, seen)
        with self.beside():
            outs = prim.bind(*map(self.plain, args), **params)
        return [self.typed(x, jax.typeof(y)) for x, y in zip(outs, seen, strict=False)]

    def process_custom_vjp_call(self, prim, fun, fwd, bwd, args, /, **params):
        if self.is_differentiated():
            return self.run(self, prim, args, params, args)
        return self.process_call(prim, fun, args, params)

    def process_call(self, prim, fun, args, params, /):
        with under_trace(self):
            return fun.call_wrapped(*args)

    def is_differentiated(self) -> bool:
        with under_trace(self.parent_trace):
            return "derivative" in around()

    def again(self, fun, types, seen):
        """A function to be called beside the lane, that runs as in it. seen: its results there."""
        mesh = mesh_internal.get_abstract_mesh()

        def run(*args):
            lane = Lane(self.axes, self.run, self.mesh)
            lane.manual, lane.in_rule = self.manual, True
            with under_trace(lane), jax.sharding.use_abstract_mesh(mesh):
                seen[:] = fun.call_wrapped(*map(lane.typed, args, types))
            return list(map(lane.plain, seen))

        return linear_util.wrap_init(run, debug_info=fun.debug_info)

    def stage_value(self, value):
        return value

    def typed(self, x, aval):
        """A value, saying along which axes of the mesh it varies."""
        if not varying(aval) or isinstance(x, jax.custom_derivatives.SymbolicZero):
            return x
        if isinstance(x, HostArray):
            arrays, kept = x._arrays, x._committed
            return HostArray(aval, x.sharding, arrays, committed=kept, _skip_checks=True)
        return LaneTracer(self, x, aval)

    def plain(self, x):
        """A value without what `typed` said of it."""
        if isinstance(x, LaneTracer) and x._trace is self:
            return self.plain(x.value)
        if self.mesh is not None and isinstance(x, HostArray) and varying(x):
            aval = aval_of(x.shape, x.dtype, x.aval.weak_type)
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


def is_weak(x) -> bool:
    """Whether the dtype of an array gives way to that of others, as a number's does."""
    return getattr(jax.typeof(x), "weak_type", False)


def is_known(x) -> bool:
    """Whether there is a value behind an array, a number or a tracer."""
    return core.is_concrete(x)


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
    known = [x._obj if type(x) is config.UserConfig else x for x in known]
    return list({id(x): x for x in known if isinstance(x, config.config_ext.Config)}.values())
