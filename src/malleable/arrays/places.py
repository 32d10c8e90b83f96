"""Where in an array something lies: what an index, a transpose or a reshape reads and writes.

Everything here works on plain values of NumPy and JAX. A step leads from an array to a part of
it that shares its memory: `read` gives the part, `put` the whole array with another part.
"""

import functools
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from malleable import compat
from malleable.errors import TransformError

INTEGERS = (int, np.integer)


@functools.lru_cache(4096)
def traces(kind: type) -> bool:
    """Whether values of this type are being traced."""
    return issubclass(kind, compat.Tracer)


@functools.lru_cache(4096)
def belongs_to_jax(kind: type) -> bool:
    """Whether values of this type are arrays of JAX."""
    return issubclass(kind, compat.Tracer | jax.Array)


def is_jax(x) -> bool:
    return belongs_to_jax(type(x))


def is_tracer(x) -> bool:
    return traces(type(x))


def own(x):
    """A value JAX may keep: it holds on to NumPy's memory, which may be written to later."""
    return x.copy() if type(x) is np.ndarray and x.flags.writeable else x


def to_jax(x):
    """An array of JAX that later writes to `x` do not change."""
    return x if is_jax(x) else compat.as_array(own(x))


def has_tracer(index) -> bool:
    """Whether an index (no boxes in it) holds a value that is being traced."""
    match index:
        case tuple() | list():
            return any(map(has_tracer, index))
        case slice():
            return has_tracer((index.start, index.stop, index.step))
    return is_tracer(index)


def is_basic(index) -> bool:
    """Whether NumPy answers this index with a view: integers, slices, None and Ellipsis."""
    if isinstance(index, tuple):
        return all(map(is_basic, index))
    return index is None or index is ... or isinstance(index, slice) or is_int(index)


def is_int(x) -> bool:
    if isinstance(x, INTEGERS):
        return not isinstance(x, bool)
    return is_array(x) and x.ndim == 0 and np.issubdtype(x.dtype, np.integer)


def is_array(x) -> bool:
    return isinstance(x, np.ndarray | np.generic | jax.Array)


def is_element(index, ndim: int) -> bool:
    """Whether the index names one element, which is a scalar and no view."""
    if isinstance(index, tuple):
        return len(index) == ndim and all(map(is_int, index))
    return ndim == 1 and is_int(index)


def is_mask(index) -> bool:
    """Whether this is a boolean array that is being traced: what it selects has no size yet."""
    return is_tracer(index) and index.dtype == bool


UNKNOWN = 1 << 20  # stands for a size that is a symbol


def selected_shape(shape, index) -> tuple:
    """The shape of what an index without tracers selects; raises IndexError where NumPy does."""
    sizes = [n if isinstance(n, int) else UNKNOWN for n in shape]
    return np.broadcast_to(np.int8(0), sizes)[index].shape


def modelled(index):
    """The index with 0 in place of each traced integer: it selects something of the same shape."""
    match index:
        case tuple():
            return tuple(map(modelled, index))
        case list():
            return [modelled(i) for i in index]
    if is_tracer(index):
        return np.zeros(index.shape, np.intp) if index.ndim else 0
    return index


def _plan(index, shape):
    """Per axis (start, size, step), and the shape of the part; None if slices do not do it."""
    parts = index if isinstance(index, tuple) else (index,)
    if not is_basic(parts) or any(isinstance(p, slice) and has_tracer(p) for p in parts):
        return None
    selected_shape(shape, modelled(parts))
    parts = parts if any(p is ... for p in parts) else (*parts, ...)
    rest = len(shape) - sum(p is not None and p is not ... for p in parts)
    axes: list[Any] = []
    out: list[Any] = []
    for part in parts:
        at = len(axes)
        if part is ...:
            axes.extend((0, n, 1) for n in shape[at : at + rest])
            out += shape[at : at + rest]
        elif isinstance(part, slice):
            r = range(*part.indices(shape[at]))
            axes.append((r.start, len(r), r.step))
            out.append(len(r))
        elif part is None:
            out.append(1)
        else:
            axes.append((part if is_tracer(part) else int(part) % shape[at], 1, 1))
    return axes, tuple(out)


def read(whole, index):
    """whole[index], as NumPy raises and as JAX traces."""
    if isinstance(whole, np.ndarray) and not has_tracer(index):
        return whole[index]
    whole = to_jax(whole)
    plan = _plan(index, whole.shape)
    if plan is None:
        selected_shape(whole.shape, modelled(index))
        return whole[as_arrays(index)]
    axes, shape = plan
    if any(is_tracer(at) for at, _, _ in axes):
        if any(step != 1 for _, _, step in axes):
            return whole[index]
        sizes = [n for _, n, _ in axes]
        return lax.dynamic_slice(whole, [at for at, _, _ in axes], sizes).reshape(shape)
    if not all(shape):
        return jnp.zeros(shape, whole.dtype)
    ends = [(at, at + (n - 1) * step) for at, n, step in axes]
    back = [i for i, (_, _, step) in enumerate(axes) if step < 0]
    if ends != [(0, n - 1) for n in whole.shape]:
        starts = [min(e) for e in ends]
        stops = [max(e) + 1 for e in ends]
        whole_part = lax.slice(whole, starts, stops, [abs(step) for _, _, step in axes])
    else:
        steps = [abs(step) for _, _, step in axes]
        whole_part = (
            whole
            if max(steps, default=1) == 1
            else lax.slice(whole, [0] * whole.ndim, whole.shape, steps)
        )
    if back:
        whole_part = lax.rev(whole_part, back)
    return whole_part if whole_part.shape == shape else whole_part.reshape(shape)


def written(whole, index, new):
    """The array of JAX that results from whole[index] = new, broadcast and cast as NumPy does."""
    whole = to_jax(whole)
    new = to_jax(new)
    if new.dtype != whole.dtype:
        new = cast(new, whole.dtype)
    plan = _plan(index, whole.shape)
    room = selected_shape(whole.shape, modelled(index)) if plan is None else plan[1]
    new = fitted(new, room)
    if plan is None or any(step != 1 for _, _, step in plan[0]):
        return whole.at[as_arrays(index)].set(new)
    axes = plan[0]
    if new.size == 0:
        return whole
    sizes = tuple(n for _, n, _ in axes)
    new = jnp.broadcast_to(new, plan[1]).reshape(sizes)
    if sizes == whole.shape and not any(is_tracer(at) for at, _, _ in axes):
        return new
    return lax.dynamic_update_slice(whole, new, [at for at, _, _ in axes])


def fitted(new, room):
    """The new content without NumPy's superfluous leading axes; ValueError if it does not fit."""
    shape = new.shape
    while len(shape) > len(room) and shape[0] == 1:
        shape = shape[1:]
    fits = all(a in (1, b) for a, b in zip(shape[::-1], room[::-1], strict=False))
    if len(shape) > len(room) or not fits:
        np.empty(room, np.int8)[...] = np.broadcast_to(np.int8(0), new.shape)
    return new if shape == new.shape else new.reshape(shape)


def cast(new, dtype):
    """`new` as the type of the array it is written to; a complex number does not fit a real one."""
    if new.dtype.kind == "c" and np.dtype(dtype).kind != "c":
        raise TypeError(
            f"cannot write {new.dtype} into an array of {np.dtype(dtype)}: take its real part"
        )
    return retyped(new, dtype)


def retyped(x, dtype):
    """`x` in another type, as on x86-64: a float by way of a signed word, its least if outside."""
    kind = np.dtype(dtype)
    if not is_jax(x) or kind.kind not in "iu" or not jnp.issubdtype(x.dtype, jnp.floating):
        return x.astype(kind)
    least = float(np.iinfo(word := f"i{max(kind.itemsize, 4)}").min)
    cut = jnp.where((x >= least) & (x < -least), x, least).astype(word).astype(kind)
    if kind not in (np.uint32, np.uint64):
        return cut
    return jnp.where(x >= -least, jnp.where(x < -2 * least, x, 0).astype(kind), cut)


def as_arrays(index):
    """The index in the form JAX wants: arrays in place of lists."""
    if isinstance(index, tuple):
        return tuple(map(as_arrays, index))
    if isinstance(index, list | range):
        index = list(index)
        if not index:
            return np.zeros(0, np.intp)
        return jnp.stack(list(map(jnp.asarray, index))) if has_tracer(index) else np.asarray(index)
    return own(index)


class Item:
    """The part that a basic index selects."""

    __slots__ = ("index",)

    def __init__(self, index):
        self.index = index

    def read(self, whole):
        return read(whole, self.index)

    def put(self, whole, part):
        return written(whole, self.index, part)

    def fill(self, whole: np.ndarray, part) -> None:
        whole[self.index] = part

    @property
    def static(self) -> bool:
        return not has_tracer(self.index)

    @property
    def traced(self) -> tuple:
        """The numbers in it, of which some may be traced."""
        return self.index if type(self.index) is tuple else (self.index,)

    def model(self, whole: np.ndarray):
        return whole[modelled(self.index)]


class Shape:
    """The same elements in another order or shape; `there` and `back` lead to it and from it."""

    __slots__ = ("back", "there")
    static, traced = True, ()

    def __init__(self, there, back):
        self.there, self.back = there, back

    def read(self, whole):
        return self.there(whole)

    def put(self, whole, part):
        part = jnp.broadcast_to(cast(to_jax(part), whole.dtype), self.there(whole).shape)
        return self.back(part)

    def fill(self, whole: np.ndarray, part) -> None:
        whole[...] = self.back(np.broadcast_to(part, self.there(whole).shape))

    def model(self, whole: np.ndarray):
        return self.there(whole)


def permuted(axes) -> Shape:
    axes = tuple(axes)
    return Shape(lambda x: x.transpose(axes), lambda x: x.transpose(tuple(np.argsort(axes))))


def reshaped(old, new, order="C") -> Shape:
    return Shape(lambda x: x.reshape(new, order=order), lambda x: x.reshape(old, order=order))


class Flat(Shape):
    """The elements one after the other, of which an index takes copies."""

    __slots__ = ()


class Bits(Shape):
    """The same memory taken for numbers of another type."""

    __slots__ = ()

    def put(self, whole, part):
        seen = self.there(whole)
        return self.back(jnp.broadcast_to(cast(to_jax(part), seen.dtype), seen.shape))

    def fill(self, whole: np.ndarray, part) -> None:
        self.there(whole)[...] = part


class Strided:
    """What `show`, a function of NumPy, shows of an array: a diagonal, windows, items repeated.

    of_jax: the same for arrays of JAX; without it their elements are gathered.
    """

    __slots__ = ("of_jax", "show")
    static, traced = True, ()

    def __init__(self, show, of_jax=None):
        self.show, self.of_jax = show, of_jax

    def _spots(self, whole) -> np.ndarray:
        """Where in the array, flattened, each element lies."""
        return self.show(np.arange(whole.size).reshape(whole.shape))

    def _written(self, whole) -> np.ndarray:
        at = self._spots(whole)
        if not at.flags.writeable:
            raise ValueError("assignment destination is read-only")
        if np.unique(at).size < at.size:
            raise TransformError(
                "a write to a view that shows elements of its array more than once",
                where=compat.where(),
                hint="write to the array itself, by an index",
            )
        return at

    def read(self, whole):
        if not is_jax(whole):
            return self.show(whole)
        return self.of_jax(whole) if self.of_jax else whole.reshape(-1)[self._spots(whole)]

    def put(self, whole, part):
        at = self._written(whole)
        part = jnp.broadcast_to(cast(to_jax(part), whole.dtype), at.shape)
        return whole.reshape(-1).at[at.ravel()].set(part.ravel()).reshape(whole.shape)

    def fill(self, whole: np.ndarray, part) -> None:
        new = whole.flatten()
        new[self._written(whole)] = part
        whole[...] = new.reshape(whole.shape)

    def model(self, whole: np.ndarray):
        return self.show(whole)


class Part:
    """The real or the imaginary part of a complex array."""

    __slots__ = ("name",)
    static, traced = True, ()

    def __init__(self, name):
        self.name = name

    def read(self, whole):
        return getattr(whole, self.name)

    def put(self, whole, part):
        part = jnp.broadcast_to(cast(to_jax(part), whole.real.dtype), whole.shape)
        real, imag = (part, whole.imag) if self.name == "real" else (whole.real, part)
        return lax.complex(real, imag) if whole.dtype.kind == "c" else part

    def fill(self, whole: np.ndarray, part) -> None:
        getattr(whole, self.name)[...] = part

    def model(self, whole: np.ndarray):
        return whole


class Outdated:
    """All of a copy whose original has been written to since."""

    __slots__ = ("where", "why")
    static, traced = True, ()

    def __init__(self, why: str, where: str):
        self.why, self.where = why, where

    def read(self, whole):
        raise TransformError(
            f"what is used here is a copy, of before a write at {self.where}: {self.why}",
            where=compat.where(),
            hint="use it before that write, or make it a copy() where Python has a part",
        )

    put = fill = lambda self, whole, part: self.read(whole)

    def model(self, whole: np.ndarray):
        return whole
