"""`x[i] = y` on JAX arrays: inside `mutable(fun)` arrays alias and change as NumPy's do."""

import operator
from collections.abc import Callable

import jax
from jax import numpy as jnp

from malleable import compat
from malleable.core.live import live
from malleable.errors import TransformError


def mutable(fun: Callable) -> Callable:
    """Run `fun` with arrays that can be written to: x[i] = y, x[i] += y, x += y, masks, views.

    Names, slices, `.T` and `.reshape` of an array are the same memory, as in NumPy; the caller's
    arrays never change. Works under jit, grad and vmap; a jit, scan or grad body inside `fun`
    has JAX's own values, unless it is `mutable` itself.
    Raises TransformError for a write to an array of an enclosing function.

    >>> def f(x):
    ...     row = x[1]
    ...     row[0] = 7.0
    ...     return x
    >>> mutable(f)(jnp.zeros((2, 2))).tolist()
    [[0.0, 0.0], [7.0, 0.0]]
    """
    run = live(fun, {}, tracer=MutableTracer)
    return lambda *args, **kwargs: run(*args, **kwargs)[0]


class MutableTracer(compat.LiveTracer):
    """A value with a place: its own, or a part of another's, from which it is read anew."""

    __slots__ = ("base", "get", "own", "put")

    def __init__(self, trace, value, base=None, get=None, put=None):
        self.base, self.get, self.put, self.own = base, get, put, None
        super().__init__(trace, value)

    @property
    def value(self):
        if self.base is None:
            return self.own
        with self._trace.outside():
            return self.get(self.base.value)

    @value.setter
    def value(self, new):
        if self.base is None:
            self.own = new
        elif self.own is not None:  # a write, not the construction of the view
            self.base.value = self.put(self.base.value, new)
        else:
            self.own = ()

    def _view(self, get, put):
        with self._trace.outside():
            part = get(self.value)
        return MutableTracer(self._trace, part, self, get, put)

    def __getitem__(self, index):
        index = jax.tree.map(self._trace.lower, index)
        if _is_traced_mask(index):
            return Selection(self, index)
        if not _is_view(index) or _picks_one(self, index):
            return super().__getitem__(index)
        return self._view(lambda a: a[index], lambda a, new: a.at[index].set(new))

    def __setitem__(self, index, new):
        trace = self._trace
        if not trace.is_current():
            raise TransformError(
                "x[i] = y on an array of an enclosing function",
                where=compat.here(),
                hint="hand the array to the jit, loop or grad body, and return the new one",
            )
        index, new = jax.tree.map(trace.lower, (index, new))
        with trace.outside():
            self.value = _write(jnp.asarray(self.value), index, new)

    @property
    def T(self):
        return self._view(lambda a: a.T, lambda a, new: new.T)

    def reshape(self, *shape, **kwargs):
        return self._view(
            lambda a: a.reshape(*shape, **kwargs), lambda a, new: new.reshape(a.shape)
        )

    def _update(self, op, other):
        if self.ndim == 0:  # as NumPy's scalars, which are values
            return op(self, other)
        new = op(self, other)
        if not jnp.can_cast(new.dtype, self.dtype, "same_kind"):
            raise TypeError(f"cannot write {new.dtype} into an array of {self.dtype} in place")
        self[...] = new
        return self


class Selection:
    """`x[mask]` with a mask whose size is unknown: good for `x[mask] += y` and its like."""

    def __init__(self, array, mask):
        self.array, self.mask, self.new = array, mask, None

    def _update(self, op, other):
        other = jnp.asarray(other)
        if other.ndim > self.array.ndim - self.mask.ndim:
            raise _unknown_size()
        self.new = op(self.array, other)
        return self


def _write(old, index, new):
    if isinstance(new, Selection):
        new, whole = new.array._trace.lower(new.new), True
    else:
        whole = False
    if not _is_traced_mask(index):
        return old.at[index].set(new)
    if not whole and jnp.ndim(new) > old.ndim - index.ndim:
        raise _unknown_size()
    mask = index.reshape(index.shape + (1,) * (old.ndim - index.ndim))
    return jnp.where(mask, jnp.asarray(new).astype(old.dtype), old)


def _unknown_size():
    return TransformError(
        "x[mask] = y with a `y` per selected element, and a mask known only at run time",
        where=compat.here(),
        hint="write x[...] = jnp.where(mask, y_for_all, x)",
    )


def _is_view(index) -> bool:
    """Basic indexing, in NumPy's words: integers, slices, None and Ellipsis."""
    parts = index if isinstance(index, tuple) else (index,)
    return all(
        p is None or p is ... or isinstance(p, slice) or (not isinstance(p, bool) and _is_int(p))
        for p in parts
    )


def _is_int(p) -> bool:
    return (
        compat.is_array(p) and jnp.ndim(p) == 0 and jnp.issubdtype(jnp.result_type(p), jnp.integer)
    )


def _picks_one(array, index) -> bool:
    parts = index if isinstance(index, tuple) else (index,)
    return len(parts) == array.ndim and all(map(_is_int, parts))


def _is_traced_mask(index) -> bool:
    return isinstance(index, compat.Tracer) and index.dtype == bool and index.ndim > 0


def _in_place(name):
    op = getattr(operator, name)
    return lambda self, other: self._update(op, other)


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and_", "or_", "xor"):
    for _cls in (MutableTracer, Selection):
        setattr(_cls, f"__i{_name.strip('_')}__", _in_place(_name))
