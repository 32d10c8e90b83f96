"""The methods and attributes of an ndarray, for a class that has `value` and `_view`."""

import functools

import numpy as np
from jax import lax
from jax import numpy as jnp

from malleable.arrays import places
from malleable.arrays.functions import canonical, jax_function
from malleable.arrays.numbers import python_number


class Methods:
    """What an ndarray answers besides operators, on the content of a box."""

    __slots__ = ()

    # ---- attributes

    @property
    def T(self):
        return self.transpose()

    mT = property(lambda self: self.swapaxes(-1, -2))
    real = property(lambda self: self._part("real"), lambda self, new: self._set_part("real", new))
    imag = property(lambda self: self._part("imag"), lambda self, new: self._set_part("imag", new))
    itemsize = property(lambda self: self.dtype.itemsize)
    nbytes = property(lambda self: self.size * self.itemsize)
    flags = property(lambda self: self._model().flags)
    strides = property(lambda self: self._model(self.dtype).strides)
    base = property(lambda self: self._base)

    @property
    def flat(self):
        flat = places.reshaped(self.shape, (self.size,))
        return self._view(places.Flat(flat.there, flat.back))

    @flat.setter
    def flat(self, new):
        self.flat[...] = new

    def _part(self, name):
        if self.scalar:
            value = self.value
            return self._done(getattr(value if places.is_jax(value) else np.asarray(value), name))
        if self.dtype.kind != "c":  # zeros that nobody writes to
            return self if name == "real" else self._view(places.Strided(np.imag, jnp.imag))
        return self._view(places.Part(name))

    def _set_part(self, name, new):
        if name == "real" or self.dtype.kind == "c":
            self._part(name)[...] = new
        else:
            raise TypeError("array does not have imaginary part to set")

    # ---- views

    def transpose(self, *axes):
        if len(axes) == 1 and (axes[0] is None or np.ndim(axes[0])):
            axes = () if axes[0] is None else tuple(axes[0])
        axes = axes or range(self.ndim)[::-1]
        return self if self.scalar else self._view(places.permuted(a % self.ndim for a in axes))

    def swapaxes(self, a, b):
        axes = list(range(self.ndim))
        axes[a], axes[b] = axes[b], axes[a]
        return self.transpose(axes)

    def reshape(self, *shape, order="C", copy=None):
        if len(shape) == 1 and np.ndim(shape[0]):
            shape = tuple(shape[0])
        shape = tuple(map(self._index_of, shape))
        model = self._model()
        if order == "A":
            order = "F" if model.flags.fnc else "C"
        new = model.reshape(shape, order=order)
        if self.scalar or copy or not np.may_share_memory(new, model):
            return self._new(_reshape(self.value, new.shape, order), False)
        return self._view(places.reshaped(self.shape, new.shape, order))

    def ravel(self, order="C"):
        if order == "K":  # as it lies in memory
            return self.transpose(self._as_it_lies()).reshape(-1)
        return self.reshape(-1, order=order)

    def _as_it_lies(self) -> list[int]:
        """The axes in the order of memory."""
        steps = self._model().strides
        return sorted(range(self.ndim), key=lambda k: -abs(steps[k]))

    def squeeze(self, axis=None):
        return self.reshape(np.squeeze(self._model(), axis).shape)

    def diagonal(self, offset=0, axis1=0, axis2=1):
        where = offset, axis1, axis2
        return self._view(
            places.Strided(lambda x: np.diagonal(x, *where), lambda x: jnp.diagonal(x, *where))
        )

    def view(self, dtype=None, type=None):
        if dtype is None or (isinstance(dtype, builtin_type) and issubclass(dtype, np.ndarray)):
            return self[...]
        if np.dtype(dtype) == self.dtype:
            return self[...]
        old, new = self.dtype, canonical(dtype)
        return self._view(places.Bits(lambda x: x.view(new), lambda x: x.view(old)))

    # ---- copies

    def copy(self, order="C"):
        if order != "C" and self.ndim > 1:  # a view of what lies in another order
            axes = range(self.ndim)[::-1] if order == "F" else self._as_it_lies()
            if [*axes] != [*range(self.ndim)]:
                return self.transpose(axes).copy().transpose(np.argsort(axes))
        value = self.value
        return self._new(value.copy() if isinstance(value, np.ndarray) else value, self.scalar)

    __copy__ = copy

    def __deepcopy__(self, memo):
        return self.copy()

    def astype(self, dtype, order="K", casting="unsafe", subok=True, copy=True):
        value, traced = self.value, places.is_jax(self.value)
        if not np.can_cast(self.dtype, dtype, casting):
            np.empty(0, self.dtype).astype(dtype, casting=casting)  # NumPy's TypeError
        if not copy and self.dtype == (canonical(dtype) if traced else np.dtype(dtype)):
            return self
        if traced:
            if self.dtype.kind == "c" and np.dtype(dtype).kind not in "cb":
                value = value.real
            out = self._new(places.retyped(value, canonical(dtype)), self.scalar)
            model = self._model().astype(bool, order)
            return out.laid(self) if order == "K" else out.lying_as(model)
        return self._done(np.asarray(value).astype(dtype, order))

    def flatten(self, order="C"):
        return self.ravel(order).copy()

    def tolist(self):
        if not places.is_jax(self.value):
            return np.asarray(self.value).tolist()
        return [x.tolist() for x in self] if self.ndim else self._number()

    def item(self, *index):
        if not places.is_jax(self.value):
            return np.asarray(self.value).item(*index)
        if not index and self.size != 1:
            raise ValueError("can only convert an array of size 1 to a Python scalar")
        if len(index) == self.ndim and self.ndim != 1:
            return (self[index] if index else self)._number()
        return self.reshape(-1)[index[0] if index else 0]._number()

    def _number(self):
        return self._new(python_number(places.to_jax(self.value)), True)

    def compress(self, condition, axis=None):
        return np.compress(condition, self, axis)

    # ---- writes

    def fill(self, value):
        self[...] = value

    def sort(self, axis=-1, kind=None, order=None):
        self[...] = self._call_on(np.sort, axis, kind=kind)

    def partition(self, kth, axis=-1, kind="introselect", order=None):
        self[...] = self._call_on(np.partition, kth, axis)

    def resize(self, *shape, refcheck=True):
        shape = shape[0] if len(shape) == 1 and np.ndim(shape[0]) else shape
        if tuple(np.atleast_1d(shape)) != self.shape:
            raise ValueError("cannot resize this array: it does not own its data")

    def setflags(self, **kwargs):
        pass

    # ---- numbers

    def conj(self):
        return self if self.dtype.kind != "c" else np.conjugate(self)

    conjugate = conj

    def is_integer(self):
        return self == np.floor(self)

    def bit_length(self):
        known = abs(places.to_jax(self.value))
        return type(self)(jnp.iinfo(known.dtype).bits - lax.clz(known), True)

    def _call_on(self, func, *args, **kwargs):
        return self.__array_function__(func, (), (self, *args), kwargs)


builtin_type = type


def _reshape(value, shape, order):
    if places.is_jax(value):
        return jax_function(np.reshape)(value, shape, order=order)
    return np.reshape(np.asarray(value), shape, order=order)


def _delegated(name):
    func = getattr(np, name)

    def method(self, *args, **kwargs):
        return self._call_on(func, *args, **kwargs)

    return functools.wraps(func)(method)


for _name in ("sum", "mean", "min", "max", "prod", "all", "any", "argmin", "argmax", "argsort"):
    setattr(Methods, _name, _delegated(_name))
for _name in ("clip", "dot", "nonzero", "put", "round", "searchsorted"):
    setattr(Methods, _name, _delegated(_name))
for _name in ("cumsum", "cumprod", "trace", "repeat", "std", "var", "choose", "take"):
    setattr(Methods, _name, _delegated(_name))
