"""Looking at programs: frames, traces apart from the caches, examples of a vmap one by one."""

import contextlib
import functools
import itertools
from collections import namedtuple
from collections.abc import Iterator
from typing import Any

import jax
import jax.core
import jax.export
from jax import lax
from jax import numpy as jnp
from jax._src import core, source_info_util
from jax._src.interpreters import batching as batching_internal

from malleable.compat.programs import Eqn, Jaxpr, is_array

Place = namedtuple("Place", "file line function column end_line end_column")
_session = jax.make_user_context(0)  # type: ignore[attr-defined]
_sessions = itertools.count(1)


def frames(*eqns: Eqn) -> list[Place]:
    """The user's frames behind an equation and those around it, innermost first."""
    return list(dict.fromkeys(p for eqn in eqns for p in places_of(eqn.source_info.traceback)))


@functools.lru_cache(4096)
def places_of(traceback) -> tuple[Place, ...]:
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

    One with an axis name, of values that are no arrays, or of a function with a batching rule of
    its own, is batched as usual.
    """
    with _by_example(True):
        yield


_by_example = jax.make_user_context(False)  # type: ignore[attr-defined]
_batch = batching_internal.batch


def _batch_or_scan(fun, axis, dims, out_dims, sum_match=False):
    batched = _batch(fun, axis, dims, out_dims, sum_match=sum_match)
    return _Lanes(fun, axis, dims, out_dims, batched) if _by_example.value else batched


batching_internal.batch = _batch_or_scan


class _HasRule(BaseException):
    """A function with a batching rule of the user's own is met: it has to be batched."""


_in_lane = jax.make_user_context(False)  # type: ignore[attr-defined]
_call_with_rule = jax.custom_batching.custom_vmap.__call__


def _call_or_batch(self, *args, **kwargs):
    if _in_lane.value and _by_example.value:
        raise _HasRule
    return _call_with_rule(self, *args, **kwargs)


jax.custom_batching.custom_vmap.__call__ = _call_or_batch  # type: ignore[method-assign]


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
            with _in_lane(True):
                return None, list(fun.call_wrapped(*one))

        try:
            with source_info_util.extend_name_stack(_LANES + fun.__name__):
                _, outs = lax.scan(body, None, xs, length=axis.size)
        except _HasRule:
            self._forget()
            with _in_lane(False):
                return self.batched.call_wrapped(*args)
        ends: Any = self.out_dims() if callable(self.out_dims) else self.out_dims
        if not all(isinstance(d, int) for d in ends):  # let JAX see to what is not mapped
            self._forget()
            return self.batched.call_wrapped(*args)
        return [jnp.moveaxis(x, 0, d) for x, d in zip(outs, ends, strict=True)], list(ends)

    def _forget(self):
        for store in filter(None, self.fun.stores):
            store.reset()


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
