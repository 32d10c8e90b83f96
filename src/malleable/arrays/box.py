"""Arrays of NumPy that may be traced: what converted code computes with.

A `Box` holds an array of NumPy or of JAX and behaves as NumPy's ndarray does, writes and views
included. `unbox` takes the values out of a tree of boxes, `rebox` puts them back in.
"""

import builtins
import operator

import numpy as np

from malleable.arrays import functions, journal, numbers, subclasses
from malleable.arrays.content import (
    NUMBERS,
    Box,
    any_jax,
    any_traced,
    as_box,
    frozen,
    held,
    is_traced,
    rebox,
    unbox,
    wrap,
)
from malleable.arrays.items import get_item, set_item
from malleable.arrays.masked import UNSIZED, Masked
from malleable.arrays.places import belongs_to_jax, is_jax, own
from malleable.arrays.protocols import put_out, run_function, run_ufunc

__all__ = ["UNSIZED", "Box", "Masked", "any_jax", "any_traced", "as_box", "frozen"]
__all__ += ["held", "is_traced", "rebox", "unbox", "wrap"]

_empty = object.__new__
SUBCLASSED = (int, float, complex)
PRODUCT = numbers.arithmetic(operator.matmul)  # which is made in the order of C


def _binary(fun, swapped=False, of_jax=None):
    """of_jax: what it is for arrays of JAX, of the user's own."""

    def method(self, other):
        a = self._value
        if a is None:
            a = self.value
        kind = type(other)
        scalar, immutable = self.scalar, self.immutable
        if issubclass(kind, Box):
            b = other._value
            if b is None:
                b = other.value
            scalar = scalar and other.scalar
            immutable = immutable is True or other.immutable is True
        elif kind in NUMBERS or belongs_to_jax(kind):
            b = other
            scalar = scalar and kind in NUMBERS
        elif issubclass(kind, SUBCLASSED):  # a member of an IntEnum, say
            b = next(base.__pos__(other) for base in SUBCLASSED if issubclass(kind, base))
        elif isinstance(other, np.ndarray | np.generic | list | tuple) and kind not in UNSIZED:
            b = functions.nested_array(unbox(other)) if isinstance(other, list | tuple) else other
            scalar = False
        else:
            return NotImplemented
        if type(a) is np.ndarray and belongs_to_jax(type(b)):
            a = own(a)
        elif type(b) is np.ndarray and belongs_to_jax(type(a)):
            b = own(b)
        run = of_jax if of_jax and immutable is True else fun
        a, b = (b, a) if swapped else (a, b)
        try:
            out = run(a, b)
        except functions.REFUSALS as e:
            if immutable is True:
                raise
            functions.refuse(e, fun, a, b)
        if belongs_to_jax(type(out)):
            new = _empty(Box)
            new._value, new._base, new._index, new.born = out, None, None, journal.tick()
            new.scalar, new.immutable = scalar or out.ndim == 0, immutable is True
            return new if new.scalar or fun is PRODUCT else new.laid(self, other)
        return Box(out, False) if type(out) is np.ndarray else out

    return method


def _in_place(fun, ufunc):
    def method(self, other):
        if self.scalar:
            return NotImplemented
        kind = type(other)
        if kind in UNSIZED:
            return NotImplemented
        a = self.value
        b = other.value if issubclass(kind, Box) else other
        b = functions.nested_array(unbox(b)) if isinstance(b, list | tuple) else b
        if not is_jax(a) and not is_jax(b):
            if not journal.is_undone() and self._in_memory(a):
                fun(a, b)
                journal.tell(self.root)
            else:
                self.write(fun(a.copy(), b))
            return self
        out = functions.run_ufunc(ufunc, "__call__", (a, b), {})
        return put_out(self, out, True, ufunc)

    return method


def _unary(fun):
    def method(self):
        out = wrap(fun(self.value), self.immutable is True)
        return out.laid(self) if type(out) is Box else out

    return method


def _define(name, method):
    method.__name__ = f"__{name}__"
    setattr(Box, method.__name__, method)


for _name, _ufunc in functions.OPERATORS.items():
    _fun = numbers.power if _name == "pow" else getattr(operator, f"__{_name}__")
    _of_jax = None if _name in ("and", "or", "xor") else _fun
    _fun = numbers.by_zero(_fun) if _name in ("floordiv", "mod") else _fun
    _fun = (numbers.logical if _name in ("and", "or", "xor") else numbers.arithmetic)(_fun)
    _fun = PRODUCT if _name == "matmul" else _fun
    _define(_name, _binary(_fun, False, _of_jax))
    _define(f"r{_name}", _binary(_fun, True, _of_jax))
    _define(f"i{_name}", _in_place(getattr(operator, f"__i{_name}__"), _ufunc))
for _name, _fun in functions.ORDERED.items():
    _define(_name, _binary(_fun, False, _fun.__wrapped__))
for _name in ("neg", "pos", "abs", "invert"):
    _define(_name, _unary(numbers.unary(getattr(operator, _name))))
_define("divmod", lambda self, other: (self // other, self % other))
_define("rdivmod", lambda self, other: (other // self, other % self))

_plain_view = Box.view


def _view(self, dtype=None, type=None):
    kind = dtype if type is None else type
    if isinstance(kind, builtins.type) and issubclass(kind, np.ndarray) and kind is not np.ndarray:
        return subclasses.view(self, kind)
    return _plain_view(self, dtype, type)


Box.view = _view  # type: ignore[method-assign]
Box.__getitem__, Box.__setitem__ = get_item, set_item  # type: ignore[attr-defined]
_define("array_ufunc", lambda self, ufunc, method, *xs, **kw: run_ufunc(ufunc, method, xs, kw))
_define("array_function", lambda self, fun, types, args, kw: run_function(fun, args, kw))
