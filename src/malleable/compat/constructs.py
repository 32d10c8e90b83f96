"""Transformations and control flow of JAX, run as plain Python."""

import contextlib
import functools
import sys
import types
from collections import namedtuple
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.core
import jax.export
from jax import lax
from jax._src import ad_checkpoint, config, core, custom_derivatives, linear_util, pjit, shard_map
from jax._src import mesh as mesh_internal
from jax._src.interpreters import ad as ad_internal
from jax._src.interpreters import batching as batching_internal
from jax._src.interpreters import partial_eval as pe
from jax._src.lax import parallel
from jax.interpreters import ad

from malleable.compat.programs import HostArray, Tracer, aval_of, varying
from malleable.compat.tracers import LiveTracer, under_trace

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
            known: Any = self.out_dims() if callable(self.out_dims) else self.out_dims
            return outs, list(known)
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
        given = [params[k] for k in ("mesh", "in_specs", "newly_manual_axes", "check_vma")]
        with under_trace(trace):
            outs = by.shard_map(lane, fun, args, *given)
        if outs is None or outs is NotImplemented:
            with contextlib.nullcontext() if outs is NotImplemented else detoured(None):
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


def is_batched() -> bool:
    """Whether what is done here is done for all examples of a vmap at once."""
    return isinstance(core.trace_ctx.trace, batching_internal.BatchTrace)


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


def _manual(mesh, axes):
    return shard_map._as_manual_mesh(mesh, frozenset(axes) | frozenset(mesh.manual_axes))


def is_weak(x) -> bool:
    """Whether the dtype of an array gives way to that of others, as a number's does."""
    return getattr(jax.typeof(x), "weak_type", False)


def is_known(x) -> bool:
    """Whether there is a value behind an array, a number or a tracer."""
    return core.is_concrete(x)


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
