"""Every `jax.vmap` run for its examples one by one: for debuggers.

Stands in front of what batches a function, and of a call of a function with a batching rule of the
user's own, which has to see all examples. JAX says of neither that it is about to happen.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax import lax
from jax import numpy as jnp
from jax._src import core, source_info_util
from jax._src.interpreters import batching as batching_internal

from malleable.compat.contexts import user_context
from malleable.compat.hooks import Hook
from malleable.compat.looking import LANES
from malleable.compat.programs import Eqn, is_array


def lanes_of(eqn: Eqn) -> str | None:
    """The name of the mapped function, if this scan goes through the examples of a vmap."""
    stack = getattr(eqn.source_info.name_stack, "stack", ())
    last = next((s.name for s in reversed(stack) if type(s) is source_info_util.Scope), "")
    named = eqn.primitive.name == "scan" and last.startswith(LANES)
    return last.removeprefix(LANES) if named else None


@contextlib.contextmanager
def staged_vmap() -> Iterator[None]:
    """Every `jax.vmap` traced inside becomes a scan over its examples: see `lanes_of`.

    One with an axis name, of values that are no arrays, or of a function with a batching rule of
    its own, is batched as usual.
    """
    with _BATCH.held(), _by_example(True):
        yield


@contextlib.contextmanager
def one_example(refuse: Callable[[], Any]) -> Iterator[None]:
    """Inside, refuse() is called before each function that has a batching rule of its own."""
    with _RULE.held(), _refuse(refuse):
        yield


_by_example, _refuse = user_context(False), user_context(None)


class _HasRule(BaseException):
    """A function with a batching rule of the user's own is met: it has to be batched."""


def _has_rule():
    raise _HasRule


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
            with one_example(_has_rule):
                return None, list(fun.call_wrapped(*one))

        try:
            with source_info_util.extend_name_stack(LANES + fun.__name__):
                _, outs = lax.scan(body, None, xs, length=axis.size)
        except _HasRule:
            self._forget()
            with _refuse(None):
                return self.batched.call_wrapped(*args)
        ends: Any = self.out_dims() if callable(self.out_dims) else self.out_dims
        if not all(isinstance(d, int) for d in ends):  # let JAX see to what is not mapped
            self._forget()
            return self.batched.call_wrapped(*args)
        return [jnp.moveaxis(x, 0, d) for x, d in zip(outs, ends, strict=True)], list(ends)

    def _forget(self):
        for store in filter(None, self.fun.stores):
            store.reset()


def _batch_or_scan(batch, fun, axis, dims, out_dims, sum_match=False):
    batched = batch(fun, axis, dims, out_dims, sum_match=sum_match)
    return _Lanes(fun, axis, dims, out_dims, batched)


def _refuse_or_call(call, *args, **kwargs):
    _refuse.value()
    return call(*args, **kwargs)


_BATCH = Hook((batching_internal, "batch", _batch_or_scan), here=lambda: _by_example.value)
_RULE = Hook(
    (jax.custom_batching.custom_vmap, "__call__", _refuse_or_call),
    here=lambda: _refuse.value is not None,
)
