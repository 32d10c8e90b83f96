"""NumPy functions that write, that return views, or whose result has no size while traced."""

from typing import Any

import numpy as np
from jax import lax
from jax import numpy as jnp
from numpy.lib.array_utils import normalize_axis_tuple

from malleable import compat
from malleable.arrays import functions, masked, places
from malleable.arrays.content import Box, any_jax, any_traced, as_box, held, rebox, unbox, wrap
from malleable.arrays.masked import Masked, tested, unknown_size
from malleable.arrays.places import is_jax
from malleable.errors import TransformError
from malleable.notes import note

DEFAULT: Any = type("Default", (), {"__repr__": lambda self: "DEFAULT"})()  # do as others do


def shape(a):
    return a.shape if type(a) in (Box, Masked) else np.shape(_whole(a))


def ndim(a):
    return a.ndim if type(a) in (Box, Masked) else np.ndim(_whole(a))


def _whole(a):
    return functions.nested_array(unbox(a)) if any_traced(a) else unbox(a)


def size(a, axis=None):
    if type(a) in (Box, Masked) and axis is None:
        return a.size
    return DEFAULT if axis is None else shape(a)[axis]


# ---------------------------------------------------------------- sizes known at run time


def nonzero(a):
    value = functions.nested_array(unbox(a))
    mask = value if value.dtype == np.bool_ else value != 0
    if not mask.ndim:
        raise ValueError("Calling nonzero on 0d arrays is not allowed.")
    places_of = np.indices(mask.shape)
    return tuple(Masked(p, mask, Box) for p in places_of)


def compress(condition, a, axis=None, out=None):
    if out is not None or not any_traced((condition, a)):
        return DEFAULT
    if not any_traced(condition):
        return as_box(a).take(np.flatnonzero(unbox(condition)), axis)
    box = as_box(a).ravel() if axis is None else as_box(a)
    mask = as_box(condition) != 0
    if axis not in (None, 0):
        raise unknown_size("np.compress along this axis")
    return box[: mask.size][mask]


def trim_zeros(filt, trim="fb", axis=None):
    """Traced coefficients all stay: how many are zero is known only at run time."""
    note("np.trim_zeros keeps all elements", compat.where(), "which are zero is not known yet")
    return as_box(filt)


def polydiv(u, v):
    """As trim_zeros: the remainder keeps the zeros that lead it."""
    why = "which are zero is not known yet"
    note("np.polydiv keeps the leading zeros of the remainder", compat.where(), why)
    divided = jnp.polydiv(*(functions.nested_array(unbox(p)) for p in (u, v)))
    return tuple(Box(part, False) for part in divided)


def distinct(ar, return_index=False, return_inverse=False, return_counts=False, axis=None, **how):
    """Of the sorted elements (n,) those that differ from the one before: a selection."""
    if type(ar) is Masked or not how.get("equal_nan", True):
        raise unknown_size("np.unique")
    whole = jnp.asarray(functions.nested_array(unbox(ar)))
    if axis is not None and (whole.ndim != 1 or axis not in (0, -1)):
        raise unknown_size("np.unique")
    n, order = whole.size, jnp.argsort(whole.ravel())
    if n == 0:
        return DEFAULT
    x = whole.ravel()[order]
    same = (x[1:] == x[:-1]) | (jnp.isnan(x[1:]) & jnp.isnan(x[:-1]))
    mask = jnp.concatenate([jnp.ones(1, bool), ~same])
    out: list = [Masked(x, mask, Box)]
    if return_index:
        out.append(Masked(order, mask, Box))
    if return_inverse:
        rank = jnp.zeros_like(order).at[order].set(jnp.cumsum(mask) - 1)
        out.append(Box(rank.reshape(whole.shape), False))
    if return_counts:
        at = jnp.arange(n)
        first = lax.cummin(jnp.where(mask, at, n), reverse=True)  # from here on
        out.append(Masked(jnp.append(first[1:], n) - at, mask, Box))
    return tuple(out) if len(out) > 1 else out[0]


def concatenated(parts, *args, **kwargs):
    """np.concatenate, where a mask selects some of what is put together."""
    some = isinstance(parts, list | tuple) and any(type(x) is Masked for x in parts)
    return masked.put_together(parts, *args, **kwargs) if some else DEFAULT


def _unsized(func):
    def refuse(*args, **kwargs):
        if any_jax(unbox(args)) and any_traced((args, kwargs)):
            raise unknown_size(f"np.{func.__name__}")
        return DEFAULT

    return refuse


# ---------------------------------------------------------------- writing


def written_outside() -> TransformError:
    """What is raised where a traced value would be written into an array that is no box."""
    return TransformError(
        "a traced value is written into an array made outside of the converted function",
        where=compat.where(),
        hint="pass the array as an argument, or copy it inside with np.array(...)",
    )


def copyto(dst, src, casting="same_kind", where=True):
    if type(src) not in (bool, int, float):
        kind = (src if isinstance(src, Box) else np.asarray(src)).dtype
        np.copyto(np.empty(0, dst.dtype), np.empty(0, kind), casting)  # or TypeError
    dst[...] = src if where is True else np.where(where, src, dst)


def fill_diagonal(a, val, wrap=False):
    spots = np.zeros(a.shape, bool)
    np.fill_diagonal(spots, True, wrap)
    put(a, np.flatnonzero(spots), val)


def putmask(a, mask, values):
    values = np.resize(values, a.shape) if np.ndim(values) else values
    a[...] = np.where(mask, values, a).astype(a.dtype)


def place(arr, mask, vals):
    if type(vals) is Masked:
        arr[mask != 0] = vals
        return
    raw = unbox((mask, vals))
    if not any_jax((arr.value, *raw)):
        new = np.array(arr.value)
        np.place(new, *raw)
        arr[...] = new
        return
    values = jnp.ravel(functions.nested_array(raw[1]))
    mask = jnp.asarray(raw[0]).reshape(arr.shape).astype(bool)
    rank = jnp.cumsum(mask.ravel()) - 1  # the k-th true place takes the k-th value, round and round
    picked = values[rank % values.size].reshape(arr.shape)
    whole = places.to_jax(arr.value)
    arr.write(jnp.where(mask, places.cast(picked, whole.dtype), whole))


def _as_mode_says(at, n, mode):
    """An index into n items, moved inside as `mode` says; one that raises as it is."""
    return at % n if mode == "wrap" else at.clip(0, n - 1) if mode == "clip" else at


def taken(a, indices, axis=None, out=None, mode="raise"):
    a, at = as_box(a), unbox(indices)
    at = at if type(at) is Masked else functions.nested_array(at)
    a, before = (a.ravel(), 0) if axis is None else (a, axis % a.ndim)
    index = (*[slice(None)] * before, _as_mode_says(at, a.shape[before], mode))
    part = (tested(a, index) if mode == "raise" else a)[index].copy()
    if out is None:
        return part
    out[...] = part
    return out


def put(a, ind, v, mode="raise"):
    at, values = (functions.nested_array(unbox(x)).ravel() for x in (ind, v))
    at = _as_mode_says(at, a.size, mode)
    flat = tested(a.flat, at) if mode == "raise" else a.flat
    flat[at] = values[np.arange(at.size) % values.size]


def _lying_along(arr, indices, axis):
    """(an array, the index of what lies at these indices along an axis of it)"""
    arr, axis = (arr.ravel(), 0) if axis is None else (arr, axis)
    if np.ndim(indices) != arr.ndim:
        raise ValueError("`indices` and `arr` must have the same number of dimensions")
    grid = list(np.ogrid[tuple(map(slice, arr.shape))])
    grid[axis] = unbox(indices)
    return tested(arr, tuple(grid)), tuple(grid)


def put_along_axis(arr, indices, values, axis=-1):
    arr, index = _lying_along(arr, indices, axis)
    arr[index] = values


def take_along_axis(arr, indices, axis=-1):
    arr, index = _lying_along(as_box(arr), indices, axis)
    return arr[index]


def insert(arr, obj, values, axis=None):
    """The test of the index, which may be that of the end; JAX inserts."""
    n = np.prod(shape(arr), dtype=int) if axis is None else shape(arr)[axis]
    if any_traced(obj):
        tested(np.empty(n + 1, np.int8), abs(functions.nested_array(unbox(obj))))
    else:
        np.insert(np.empty(n, np.int8), unbox(obj), 0)
    return DEFAULT


def nan_to_num(x, copy=True, nan=0.0, posinf=None, neginf=None):
    if copy:
        return DEFAULT
    x[...] = np.nan_to_num(x, True, nan, posinf, neginf)
    return x


# ---------------------------------------------------------------- views


def _method(name):
    return lambda a, *args, **kwargs: getattr(a, name)(*args, **kwargs)


def reshape(a, /, shape=None, order="C", *, newshape=None, copy=None):
    return a.reshape(shape if newshape is None else newshape, order=order, copy=copy)


def _permuting(func):
    def call(a, *args, **kwargs):
        model = np.empty(tuple(range(2, 2 + a.ndim)), np.int8)
        return a.transpose([model.shape.index(n) for n in func(model, *args, **kwargs).shape])

    return call


def flip(m, axis=None):
    """A view, as every array that NumPy makes by an index."""
    axes = range(m.ndim) if axis is None else normalize_axis_tuple(axis, m.ndim)
    return m[tuple(slice(None, None, -1 if k in axes else None) for k in range(m.ndim))]


def rot90(m, k=1, axes=(0, 1)):
    np.rot90(m._model(), 1, axes)  # which may refuse the axes
    one, other = (a % m.ndim for a in axes)
    turned = flip(m, {1: other, 2: (one, other)}.get(k % 4, ()))
    turned = turned.swapaxes(one, other) if k % 2 else turned
    return flip(turned, other) if k % 4 == 3 else turned


def _reshaping(func):
    def call(a, *args, **kwargs):
        if args[1:]:
            return DEFAULT
        new = func(np.empty(a.shape, np.int8), *args, **kwargs).shape
        return a if new == a.shape and not a.scalar else a.reshape(new)

    return call


def _at_least(func):
    def call(*arrays):
        out = tuple(_at_least_one(func, a) for a in arrays)
        return out[0] if len(out) == 1 else out

    return call


def _at_least_one(func, a):
    if not isinstance(a, Box):
        a = functions.nested_array(unbox(a))
        if not is_jax(a):
            return held(func(a))
        a = Box(a, None)
    new = func(np.empty(a.shape, np.int8)).shape
    return a if new == a.shape and not a.scalar else a.reshape(new)


# ---------------------------------------------------------------- types and others


def _type_or_number(x):
    """What NumPy's type functions look at: a type, or a number of Python's."""
    if not isinstance(x, Box) and not is_jax(x):
        return x
    value = unbox(x)
    if is_jax(value) and value.weak_type and not value.ndim:
        return value.dtype.type(0).item()
    return np.asarray(value).dtype if not is_jax(value) else np.dtype(value.dtype)


def _on_types(func):
    return lambda *args, **kwargs: func(*map(_type_or_number, args), **kwargs)


def common_type(*arrays):
    return np.common_type(*(np.empty(0, a.dtype) if isinstance(a, Box) else a for a in arrays))


def apply_along_axis(func1d, axis, arr, *args, **kwargs):
    def row(r):
        return functions.nested_array(unbox(func1d(Box(r, False), *args, **kwargs)))

    return rebox(jnp.apply_along_axis(row, axis, functions.nested_array(unbox(arr))))


def clip(a, a_min=None, a_max=None, out=None, *, min=None, max=None, **kwargs):
    low = a_min if min is None else min
    high = a_max if max is None else max
    if not any_jax(unbox((a, low, high))):
        return DEFAULT
    if np.issubdtype(unbox(a).dtype, np.integer):  # a bound that the type has not is none
        low = None if type(low) is int and low <= np.iinfo(a.dtype).min else low
        high = None if type(high) is int and high >= np.iinfo(a.dtype).max else high
    result = +a if low is None and high is None else a
    if low is not None:
        result = np.maximum(result, low)
    if high is not None:
        result = np.minimum(result, high)
    if out is None:
        return result
    out[...] = result
    return out


def choose(a, choices, out=None, mode="raise"):
    if out is not None:
        return DEFAULT
    choices = [functions.as_operand(c) for c in unbox(choices)]
    at = functions.nested_array(unbox(a))
    inside = lambda at: ((at >= 0) & (at < len(choices))).all()  # noqa: E731
    error = ValueError("invalid entry in choice array")
    if mode == "raise" and not is_jax(at) and not inside(at):
        raise error
    if mode == "raise" and is_jax(at):
        masked.must_hold("what np.choose takes", error, inside, at)
    mode = "clip" if mode == "raise" else mode
    return wrap(jnp.choose(at, choices, mode=mode))


def _of_complex(last: bool):
    """argmax and argmin of complex numbers, which JAX does not put in order."""

    def call(a, axis=None, out=None, **kwargs):
        if a.dtype.kind != "c" or not any_jax(a.value) or out is not None:
            return DEFAULT
        value = a.value.ravel() if axis is None else a.value
        order = jnp.lexsort((value.imag, value.real), axis=-1 if axis is None else axis)
        return wrap(jnp.take(order, -1 if last else 0, axis=axis or 0))

    return call


def apply_over_axes(func, a, axes):
    for axis in np.atleast_1d(axes).tolist():
        new = func(a, axis)
        a = new if np.ndim(new) == np.ndim(a) else np.expand_dims(new, axis)
    return a


def _parted(func, ordered):
    """np.partition and its like: sorted all through, which is one of the partitions."""

    def call(a, kth, axis=-1, kind="introselect", order=None):
        if not any_traced(kth):
            func(np.zeros(size(a, axis), np.int8), unbox(kth), kind=kind)
        return ordered(a, axis)

    return call


def poly(seq_of_zeros):
    """Of a matrix of real numbers the coefficients are real."""
    value = functions.nested_array(unbox(seq_of_zeros))
    real = value.ndim == 2 and value.dtype.kind != "c"
    return wrap(jnp.poly(value).real if real else jnp.poly(value))


def _strided_view(func, of_jax=None):
    """A function of NumPy that gives a view, of which elements may be left out or repeated."""

    def call(a, *args, **kwargs):
        if a.scalar or any_traced((args, kwargs)):
            return DEFAULT
        args = unbox(args)
        then = of_jax and (lambda x: of_jax(x, *args, **kwargs))
        return a._view(places.Strided(lambda x: func(x, *args, **kwargs), then))

    return call


def astype(x, dtype, /, *, copy=True, device=None):
    return x.astype(dtype, copy=copy)


def unstack(x, /, *, axis=0):
    return tuple(np.moveaxis(x, axis, 0))


def as_strided(x, shape=None, strides=None, subok=False, writeable=True, **kwargs):
    """A view; strides are counted from the first element of `x`, and stay within it."""
    if not isinstance(x, Box):
        return np.lib.stride_tricks.as_strided(unbox(x), shape, strides)
    shape, strides = (
        np.broadcast_to(np.int8(0), x.shape if shape is None else shape).shape,
        (x.strides if strides is None else strides),
    )
    steps = [s // x.itemsize for s in strides]
    ends = [(n - 1) * s for n, s in zip(shape, steps, strict=True)]
    outside = 0 not in shape and (any(e < 0 for e in ends) or sum(ends) >= x.size)
    if outside or not x.flags.c_contiguous:
        raise TransformError(
            "as_strided of an array that is not contiguous, or beyond its ends",
            where=compat.where(),
            hint="take it of the whole array, or use an index or sliding_window_view",
        )

    def show(a):
        steps_of = [s * a.itemsize for s in steps]
        return np.lib.stride_tricks.as_strided(a, shape, steps_of, writeable=writeable)

    return x._view(places.Strided(show))


def broadcast_arrays(*args, subok=False):
    if not any(isinstance(a, Box) for a in args):
        return DEFAULT
    boxes = [as_box(a) for a in args]
    room = np.broadcast_shapes(*(x.shape for x in boxes))
    return tuple(x if x.shape == room else np.broadcast_to(x, room) for x in boxes)


def meshgrid(*xi, copy=True, sparse=False, indexing="xy"):
    if copy or not any(isinstance(x, Box) for x in xi):
        return DEFAULT
    axes = [*range(len(xi))]
    axes[:2] = axes[:2][::-1] if indexing == "xy" else axes[:2]
    shapes = [tuple(-1 if k == axis else 1 for k in range(len(xi))) for axis in axes]
    grids = tuple(as_box(x).reshape(s) for x, s in zip(xi, shapes, strict=True))
    return grids if sparse else broadcast_arrays(*grids)


def ix_(*args):
    if any(np.ndim(x) != 1 or not isinstance(x, Box) or x.dtype == bool for x in args):
        return DEFAULT
    return meshgrid(*args, copy=False, sparse=True, indexing="ij")


def _seen(x: Box, subscripts: str) -> Box | None:
    """The view that NumPy's einsum gives of one array, whose axes it orders, or the diagonal."""
    old, arrow, new = subscripts.partition("->")
    if not (arrow and old.isalpha() and len(old) == x.ndim and set(old) == set(new)):
        return None
    if old == new * 2:
        return x._view(places.Strided(lambda a: np.einsum("ii->i", a), jnp.diagonal))
    return x.transpose([*map(old.index, new)]) if len(set(old)) == len(old) == len(new) else None


def einsum(*operands, out=None, optimize=False, **kwargs):
    if out is None and len(operands) == 2 and isinstance(operands[1], Box):
        seen = _seen(operands[1], str(operands[0]).replace(" ", ""))
        if seen is not None:
            return seen
    if out is None or not isinstance(out, Box):
        return DEFAULT
    out[...] = np.einsum(*operands, **kwargs)
    return out


def _split_views(fun):
    """np.split and its kin: views, made as NumPy's own Python makes them."""
    own = fun._implementation
    known = lambda *given: not any_traced(given)  # noqa: E731
    return lambda ary, *at, **how: own(ary, *at, **how) if known(at, how) else DEFAULT


def _if_box(fun, writes=False):
    """Do as others do, unless the first argument is a box: it may be written to."""

    def call(*args, **kwargs):
        first = args[0] if args else next(iter(kwargs.values()), None)
        if isinstance(first, Box):
            return fun(first, *args[1:], **dict([*kwargs.items()][not args :]))
        if writes and isinstance(first, np.ndarray) and any_traced((args, kwargs)):
            raise written_outside()
        return DEFAULT

    return call


def _if_traced(fun):
    """Do as others do, unless something is traced."""

    def call(*args, **kwargs):
        return fun(*args, **kwargs) if any_traced((args, kwargs)) else DEFAULT

    return call


def _by_name(*functions) -> dict[Any, Any]:
    """{function of NumPy: what stands for it}, by name."""
    return {getattr(np, fun.__name__): fun for fun in functions if hasattr(np, fun.__name__)}


_WINDOWS = np.lib.stride_tricks.sliding_window_view
_OF_BOXES: dict[Any, Any] = {
    **{f: _split_views(f) for f in (np.split, np.array_split, np.hsplit, np.vsplit, np.dsplit)},
    **{f: _permuting(f) for f in (np.moveaxis, np.rollaxis)},
    **{f: _reshaping(f) for f in (np.squeeze, np.expand_dims)},
    **_by_name(nan_to_num, reshape, astype, flip, rot90, unstack),
    **{f: _method(f.__name__) for f in (np.ravel, np.diagonal)},
    np.transpose: lambda a, axes=None: a.transpose(axes),
    np.swapaxes: lambda a, axis1, axis2: a.swapaxes(axis1, axis2),
    **dict.fromkeys((np.matrix_transpose, np.linalg.matrix_transpose), lambda x: x.mT),
    np.linalg.diagonal: lambda x, offset=0: x.diagonal(offset, -2, -1),
    np.real_if_close: lambda a, tol=100: DEFAULT if a.dtype.kind == "c" else a,
    np.broadcast_to: _strided_view(
        np.broadcast_to, lambda x, shape, *_, **__: jnp.broadcast_to(x, shape)
    ),
    _WINDOWS: _strided_view(_WINDOWS),
    np.iscomplexobj: lambda x: x.dtype.kind == "c",
    np.isrealobj: lambda x: x.dtype.kind != "c",
    np.real: lambda val: val.real,
    np.imag: lambda val: val.imag,
    np.copy: lambda a, order="K", subok=False: (
        a.copy(order) if not a.scalar else Box(a.copy().value, False)
    ),
    np.fliplr: lambda m: flip(m, 1),
    np.flipud: lambda m: flip(m, 0),
    **dict.fromkeys(
        (np.shares_memory, np.may_share_memory),
        lambda a, b, max_work=None: a.root is b.root if isinstance(b, Box) else DEFAULT,
    ),
    np.diag: lambda v, k=0: v.diagonal(k) if v.ndim == 2 else DEFAULT,
    np.argmax: _of_complex(True),
    np.argmin: _of_complex(False),
}
_OF_TRACED = {
    np.unique: distinct,
    np.take: taken,
    **dict.fromkeys((np.concatenate, np.hstack), concatenated),
    **_by_name(nonzero, trim_zeros, polydiv, apply_along_axis),
    **_by_name(choose, poly, apply_over_axes, take_along_axis, insert),
    np.histogramdd: lambda x, *args, **kw: (  # a list is of columns
        np.histogramdd(np.stack(x, -1), *args, **kw) if type(x) in (list, tuple) else DEFAULT
    ),
    np.flatnonzero: lambda a: nonzero(np.ravel(a))[0],
    np.extract: lambda condition, arr: as_box(arr).ravel()[as_box(condition).ravel() != 0],
    np.partition: _parted(np.partition, np.sort),
    np.argpartition: _parted(np.argpartition, np.argsort),
    **dict.fromkeys((np.array_str, np.array_repr, np.array2string), lambda a, *_, **__: str(a)),
}
_UNSIZED = (
    *(np.argwhere, np.union1d, np.intersect1d, np.setdiff1d, np.setxor1d),
    *(np.unique_values, np.unique_counts, np.unique_inverse, np.unique_all),
)
_WRITING = _by_name(copyto, fill_diagonal, putmask, place, put, put_along_axis)
SPECIAL: dict[Any, Any] = {
    **_by_name(shape, ndim, size, compress, clip, broadcast_arrays, einsum, meshgrid, ix_),
    **{f: _at_least(f) for f in (np.atleast_1d, np.atleast_2d, np.atleast_3d)},
    **{f: _on_types(f) for f in (np.result_type, np.can_cast, np.min_scalar_type)},
    **{f: _unsized(f) for f in _UNSIZED},
    **{f: _if_box(fun) for f, fun in _OF_BOXES.items()},
    **{f: _if_box(fun, writes=True) for f, fun in _WRITING.items()},
    **{f: _if_traced(fun) for f, fun in _OF_TRACED.items()},
    np.common_type: common_type,
    np.where: lambda test, *xs: nonzero(test) if not xs and any_traced(test) else DEFAULT,
}
