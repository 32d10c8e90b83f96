"""Arrays that do not exist yet: operations on them are recorded, and run when a value is asked for.

Some questions need the value (`if x > 0`, `float(x)`, a size), others only ask whether it happens
to be known: those are answered as under `jax.jit`, so that they do not cut the program in two.
"""

import sys
import weakref
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from malleable import compat

# Who may ask JAX whether a value is known and cannot go on without it.
NEEDED_BY = frozenset(
    [
        *("__bool__", "__int__", "__index__", "__hex__", "__oct__", "concrete_or_error"),
        *("expand_bool_indices", "_is_slice_element_none_or_constant_or_symbolic"),
        *("is_constant_dim", "fori_loop"),
    ]
)
PASSING = ("to_concrete_value", "is_concrete")

# What is asked of a value: whether it is true; the value, even of a tracer of `jax.grad` with a
# value behind it; or something that JAX answers for arrays only.
TRUTH, VALUE, CONTENT = range(3)


class Leave(BaseException):
    """Ends a recording from anywhere inside it, past the `except Exception` of the user."""


class LazyTracer(compat.Tracer):
    """A value to come. slot: where it lies once it has been computed; born: its number."""

    __slots__ = ("born", "inner", "slot")

    def __init__(self, trace, aval, inner, born=-1, slot=None):
        super().__init__(trace, aval)
        self.inner, self.born, self.slot = inner, born, slot

    def ask(self, what):
        return self._trace.demand(self, what)

    def to_concrete_value(self):
        known = self._trace.known(self)
        return self.ask(VALUE) if known is None and asker() else known

    def full_lower(self):
        return self

    def __bool__(self):
        return bool(self.ask(TRUTH if self.size == 1 else VALUE))

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.ask(CONTENT), dtype)

    def item(self, *args):
        return np.asarray(self.ask(CONTENT)).item(*args)

    def block_until_ready(self):
        return self

    def copy_to_host_async(self):
        return None

    def __getitem__(self, index):
        return super().__getitem__(counted(self, index))

    @property
    def at(self):
        return _At(self, super().at)


def _asking(name, what):
    return lambda self, *args: getattr(self.ask(what), name)(*args)


for _name in ("__int__", "__index__", "__hex__", "__oct__"):
    setattr(LazyTracer, _name, _asking(_name, VALUE))
for _name in ("__float__", "__complex__", "__repr__", "__str__", "__format__", "tolist", "tobytes"):
    setattr(LazyTracer, _name, _asking(_name, CONTENT))


class _At:
    def __init__(self, array, at):
        self.array, self.at = array, at

    def __getitem__(self, index):
        return self.at[counted(self.array, index)]


def counted(array, index):
    """Masks among the indices as positions: then their count is asked for, not their content."""
    parts, axis, out = index if isinstance(index, tuple) else (index,), 0, []
    for part in parts:
        mask = isinstance(part, LazyTracer) and part.dtype == bool and part.ndim > 0
        if part is Ellipsis or (mask and array.shape[axis : axis + part.ndim] != part.shape):
            return index  # JAX knows which axes these are, or what to complain about
        out += jnp.nonzero(part) if mask else [part]
        axis += part.ndim if mask else part is not None
    return tuple(out) if len(out) != len(parts) or index is not out[0] else index


def asker() -> str:
    """Who asks a tracer for its concrete value and cannot do without; "" for whoever can."""
    frame = sys._getframe(2)
    while frame.f_code.co_name in PASSING and frame.f_back is not None:
        frame = frame.f_back
    name = frame.f_code.co_name
    return name if name in NEEDED_BY else ""


class _Pending(compat.Recording):
    """What has been recorded and not run. slots: of its inputs, in order."""

    def __init__(self, owner):
        super().__init__(None)
        self.owner, self.slots = owner, []

    def to_jaxpr_tracer(self, x, source_info):
        if isinstance(x, compat.Tracer) and x._trace is not self:
            x = self.owner.inner(x)
        return super().to_jaxpr_tracer(x, source_info)


class LazyTrace(compat.Trace):
    """Records. demand(tracer, what) -> its value; what: one of TRUTH, VALUE, CONTENT."""

    def __init__(self, demand: Callable):
        super().__init__()
        self.requires_low, self.demand = False, demand
        self.pending, self.born = _Pending(self), []

    def arg(self, aval, slot: int) -> LazyTracer:
        return LazyTracer(self, aval, None, slot=slot)

    def wrap(self, inner):
        if compat.is_ref(inner.aval):
            raise Leave("it makes a mutable reference")
        return self._bear(LazyTracer(self, inner.aval, inner))

    def _bear(self, tracer):
        tracer.born = len(self.born)
        self.born.append(weakref.ref(tracer))
        return tracer

    def inner(self, x):
        """An operand as an operand of the pending program."""
        if not isinstance(x, compat.Tracer):
            return x
        if not isinstance(x, LazyTracer) or x._trace is not self:
            if x._trace is self.pending:
                return x
            raise Leave("it uses a value of another transformation around it")
        if x.inner is None or x.inner._trace is not self.pending:
            if x.slot is None:
                raise Leave("it uses a value that was gone before")
            x.inner = self.pending.new_arg(x.aval, compat.here())
            self.pending.slots.append(x.slot)
        return x.inner

    def known(self, tracer: LazyTracer):
        """The value of a constant, or None."""
        if tracer.slot is not None or tracer.inner._trace is not self.pending:
            return None
        const = self.pending.get_const(tracer.inner)
        return const if const is None or isinstance(const, jax.Array) else np.asarray(const)

    def cut(self) -> tuple[Any, list[LazyTracer]]:
        """The pending program, and who still holds results of it; a new one begins."""
        done, self.pending = self.pending, _Pending(self)
        alive = [t for ref in self.born if (t := ref()) is not None and t.slot is None]
        self.born, kept = [], []
        for t in alive:
            const = done.get_const(t.inner)
            if const is None:
                kept.append(t)
            else:
                t.inner = self.pending.new_const(const, compat.here(), t.aval)
                self._bear(t)
        return done, kept

    def process_primitive(self, prim, tracers, params, /):
        return self._record("process_primitive", prim, tracers, params)

    def process_call(self, prim, fun, tracers, params, /):  # up to JAX 0.10
        return self._record("process_call", prim, fun, tracers, params)

    def stage_value(self, value):
        return self.wrap(self.pending.to_jaxpr_tracer(value, compat.here()))

    def to_jaxpr_tracer(self, x, *_):
        return x

    def process_custom_jvp_call(self, prim, fun, jvp, tracers, /, **params):
        return self._record("process_custom_jvp_call", prim, fun, jvp, tracers, **params)

    def process_custom_vjp_call(self, prim, fun, fwd, bwd, tracers, /, **params):
        return self._record("process_custom_vjp_call", prim, fun, fwd, bwd, tracers, **params)

    def process_shard_map(self, prim, fun, tracers, /, **params):
        return self._record("process_shard_map", prim, fun, tracers, **params)

    def _record(self, name, *args, **params):
        """Let the pending program record one operation; the operands are the list in `args`."""
        pending = self.pending
        args = [list(map(self.inner, a)) if isinstance(a, list | tuple) else a for a in args]
        out = getattr(pending, name)(*args, **params)
        if pending is not self.pending:  # it ran while this operation was being taken down
            raise Leave("a value is asked for inside a function that JAX traces")
        if hasattr(out, "vals"):  # shard_map answers with a tree of its own
            return out.update([self.wrap(x) for x in out.vals])
        return [self.wrap(x) for x in out] if isinstance(out, list | tuple) else self.wrap(out)
