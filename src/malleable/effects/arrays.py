"""`x[i] = y` on JAX arrays: inside `mutable(fun)` arrays alias and change as NumPy's do."""

import operator
import traceback
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from malleable import compat
from malleable.core.live import live
from malleable.effects.indexing import (
    Selection,
    is_traced_mask,
    is_view,
    plain_index,
    unknown_size,
    write,
)
from malleable.errors import TransformError
from malleable.python_source.misuse import called_as
from malleable.signatures import P, R

_IN_PLACE = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"),
    *("and_", "or_", "xor", "lshift", "rshift"),
)


@called_as("mutable(fun)(*args)")
def mutable(fun: Callable[P, R]) -> Callable[P, R]:
    """Run `fun` with arrays that can be written to: x[i] = y, x[i] += y, x += y, masks, views.

    Names, slices, rows, `.T`, `.reshape` and their like are the same memory, as in NumPy (where
    `.reshape` may also have to copy); what jnp functions return is new. The caller's arrays never
    change. Works under jit, grad and vmap; a jit, scan or grad body inside `fun` has JAX's own
    values, unless it is `mutable`.
    Raises TransformError for a write to an array of an enclosing function.

    >>> import jax
    >>> def f(x):
    ...     row = x[1]
    ...     row[0] = 7.0
    ...     return x
    >>> mutable(f)(jax.numpy.zeros((2, 2))).tolist()
    [[0.0, 0.0], [7.0, 0.0]]
    """
    run = live(fun, {}, tracer=MutableTracer)

    def mutated(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            out, *_ = run(*args, **kwargs)
        except TypeError as error:
            if str(error) != "first operand must be array":
                raise
            *_, frame = traceback.extract_tb(error.__traceback__)
            raise TransformError(
                "`.at` of a NumPy ufunc writes to NumPy's own arrays only",
                where=f"{frame.filename}:{frame.lineno} in {frame.name}",
                hint="write x = x.at[i].add(y), or transform with autograph, which converts it",
            ) from None
        if any(isinstance(x, Selection) for x in jax.tree.leaves(out)):
            raise unknown_size("x[mask] as a result")
        return out

    return mutated


class MutableTracer(compat.LiveTracer):
    """A value with a place: its own, or a part of another's, from which it is read anew."""

    __slots__ = ("base", "get", "own", "put")

    def __init__(self, trace, value, base: Any = None, get: Any = None, put: Any = None):
        self.base, self.get, self.put = base, get, put
        self.own: Any = None
        super().__init__(trace, value)

    @property
    def value(self) -> Any:
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
            return MutableTracer(self._trace, get(self.value), self, get, put)

    def __getitem__(self, index):
        index = plain_index(index, self.shape, self._trace.lower)
        if is_traced_mask(index):
            return Selection(self._trace, self.value, index)
        if not is_view(index, self.ndim):
            with self._trace.outside():
                return self._trace.lift(self.value[index])
        return self._view(lambda a: a[index], lambda a, new: a.at[index].set(new))

    def __setitem__(self, index, new):
        if not self._trace.is_current():
            raise TransformError(
                "x[i] = y on an array of an enclosing function",
                where=compat.where(),
                hint="hand the array to the jit, loop or grad body, and return the new one",
            )
        lower = self._trace.lower
        index, new = plain_index(index, self.shape, lower), lower(new)
        with self._trace.outside():
            self.value = write(self.value, index, new)

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    def reshape(self, *shape, **kwargs):
        return self._view(
            lambda a: a.reshape(*shape, **kwargs), lambda a, new: new.reshape(a.shape)
        )

    def ravel(self):
        return self.reshape(-1)

    def squeeze(self, axis=None):
        return self.reshape(np.squeeze(np.broadcast_to(0, self.shape), axis).shape)

    def transpose(self, *axes):
        order = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes
        order = tuple(a % self.ndim for a in order or range(self.ndim)[::-1])
        back = tuple(map(int, np.argsort(order)))
        return self._view(lambda a: a.transpose(order), lambda a, new: new.transpose(back))

    def swapaxes(self, one, other):
        order = np.arange(self.ndim)
        order[[one, other]] = order[[other, one]]
        return self.transpose(tuple(map(int, order)))

    def astype(self, dtype):
        with self._trace.outside():
            return self._trace.lift(self.value.astype(dtype))

    def fill(self, value):
        self[...] = value

    T = property(transpose)
    mT = property(lambda self: self.swapaxes(-1, -2))

    def _is_scalar(self):
        """Whether NumPy has a number here, which no write changes, and no view of an array."""
        return self.ndim == 0 and (self.base is None or self.base._is_scalar())

    def _update(self, op, other):
        new = op(self, other)
        if self._is_scalar():
            return new
        if not np.can_cast(new.dtype, self.dtype, "same_kind"):
            raise TypeError(f"cannot write {new.dtype} into an array of {self.dtype} in place")
        self[...] = new
        return self


def _in_place(op):
    return lambda self, other: self._update(op, other)


for _name in _IN_PLACE:
    _op = _in_place(getattr(operator, _name))
    setattr(MutableTracer, f"__i{_name.strip('_')}__", _op)
