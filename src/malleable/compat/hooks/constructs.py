"""Transformations and control flow of JAX, run as plain Python: for `unstage`.

Stands in front of what traces a function of the user's: scan, while_loop, cond, switch and the
custom solvers; jit, vmap, shard_map, checkpoint, closure_convert; psum, which has to be told which
values differ between lanes; and the start of every trace, to say what stays staged. JAX offers
`jax.disable_jit()` alone, which leaves vmap, shard_map, checkpoint and custom_root as they are.
"""

import contextlib
import types
from collections import namedtuple
from collections.abc import Iterator
from typing import Any

import jax
from jax import lax
from jax._src import ad_checkpoint, core, custom_derivatives, pjit, shard_map
from jax._src.interpreters import batching as batching_internal
from jax._src.interpreters import partial_eval as pe
from jax._src.lax import parallel

from malleable.compat.contexts import user_context
from malleable.compat.hooks import Hook, caller, cell_of
from malleable.compat.tracers import under_trace

_detour = user_context(None)


def detour():
    """Who runs the constructs of JAX in its place, in this thread; None for nobody."""
    return _detour.value


@contextlib.contextmanager
def detoured(by) -> Iterator[None]:
    """Inside, in this thread, `by` is asked to run each construct; its methods have their names.

    Each is given JAX's own function, then what that was called with. by: hashable; JAX's caches
    are told apart by it.
    """
    with contextlib.nullcontext() if by is None else _HOOK.held(), _detour(by):
        yield


def _asked(name: str):
    return lambda own, *args, **kwargs: getattr(_detour.value, name)(own, *args, **kwargs)


class _Ran(namedtuple("_Ran", "outs")):
    """What stands for the program of a jitted function that ran without one."""


_NO_PROGRAM = types.SimpleNamespace(effects=(), consts=())


def _infer_or_run(infer, fun, info, args, kwargs):
    if caller().f_code.co_name == "cache_miss":  # a call, no lower()
        outs = _detour.value.jit(fun, args, kwargs, info.static_argnums, info.static_argnames)
        if outs is not NotImplemented:
            return _Ran(outs), ()
    return infer(fun, info, args, kwargs)


def _finish_run(run, p, *rest):
    if isinstance(p, _Ran):
        return p.outs, None, None, None, _NO_PROGRAM, None, None, []
    return run(p, *rest)


def _batch_or_loop(batch, fun, axis, dims, out_dims, **options):
    return _Examples(fun, axis, dims, out_dims, batch(fun, axis, dims, out_dims, **options))


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


def _bind_or_run(bind, self, trace, args, avals, params, /):
    def lane(*parts):
        tree, specs = fun(*parts).unpack_aux()
        trees.append((tree, specs))
        return list(tree.vals), list(specs)

    fun, trees = params["subfuns"][0], []
    given = [params[k] for k in ("mesh", "in_specs", "newly_manual_axes", "check_vma")]
    with under_trace(trace):
        outs = _detour.value.shard_map(lane, fun, args, *given)
    if outs is None or outs is NotImplemented:
        with contextlib.nullcontext() if outs is NotImplemented else detoured(None):
            return bind(self, trace, args, avals, params)
    return trees[-1][0].update(outs)


def _trace_or_run(trace, fun, tree, avals, debug):
    args, kwargs = jax.tree.unflatten(tree, caller().f_locals["args_flat"])
    outs = _detour.value.checkpoint(fun, args, kwargs)
    if outs is NotImplemented:
        return trace(fun, tree, avals, debug)
    leaves, out_tree = jax.tree.flatten(outs)
    return _Ran(leaves), [], out_tree


def _bind_unless_run(bind, *args, jaxpr, **params):
    return jaxpr.outs if isinstance(jaxpr, _Ran) else bind(*args, jaxpr=jaxpr, **params)


def _convert_or_keep(convert, fun, tree, avals, debug):
    kept = _detour.value.closure_convert(fun)
    return convert(fun, tree, avals, debug) if kept is NotImplemented else (kept, [])


def _record_staging(start, self, debug_info, *args, **kwargs):
    start(self, debug_info, *args, **kwargs)
    if debug_info is not None:
        _detour.value.staged(debug_info.traced_for, debug_info.func_src_info or "")


_ALIKE = ("scan", "while_loop", "cond", "switch", "custom_root", "custom_linear_solve")
_HOOK = Hook(
    *((*cell_of(getattr(lax, name)), _asked(name)) for name in _ALIKE),
    (parallel, "_psum", _asked("psum")),
    (pjit, "_infer_params", _infer_or_run),
    (pjit, "_run_python_pjit", _finish_run),
    (batching_internal, "batch", _batch_or_loop),
    (shard_map.ShardMapPrimitive, "bind_with_trace", _bind_or_run),
    (ad_checkpoint, "_trace_to_jaxpr", _trace_or_run),
    (ad_checkpoint.remat_p, "bind", _bind_unless_run),
    (custom_derivatives, "_closure_convert_for_avals", _convert_or_keep),
    (pe.DynamicJaxprTrace, "__init__", _record_staging),
    here=lambda: _detour.value is not None,
)
