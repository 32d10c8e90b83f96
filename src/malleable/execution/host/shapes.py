"""Making, joining and reshaping arrays in NumPy as jax.numpy does it."""

import operator

import numpy as np
from jax import numpy as jnp

from malleable.execution.common.breaks import Unsupported
from malleable.execution.common.host_values import (
    HALF,
    NUMBERS,
    Array,
    Weak,
    default,
    finish,
    named_dtype,
    own,
    raw,
    stable,
    with_kind,
)
from malleable.execution.host.elementwise import common_kind

_INT, _FLOAT = np.dtype("int64"), np.dtype("float64")


def _shape(shape) -> tuple[int, ...]:
    """A `shape=` argument, whose sizes may be arrays, as integers."""
    if type(shape) is int:
        return (shape,)
    if type(shape) is tuple or type(shape) is list:
        return tuple([n if type(n) is int else operator.index(raw(n)) for n in shape])
    values = raw(shape)
    return tuple(values.tolist()) if values.ndim else (operator.index(values),)


def _dtype_or(dtype, otherwise) -> np.dtype:
    return default(otherwise) if dtype is None else named_dtype(dtype)


def zeros(shape, dtype=None):
    """jnp.zeros, and jnp.empty, which is zeros in JAX."""
    return own(np.zeros(_shape(shape), _dtype_or(dtype, _FLOAT)))


def ones(shape, dtype=None):
    """jnp.ones."""
    return own(np.ones(_shape(shape), _dtype_or(dtype, _FLOAT)))


def full(shape, fill_value, dtype=None):
    """jnp.full; of weak type where the value is a number and no dtype is given."""
    fill, kind = with_kind(fill_value)
    dtype, weak = common_kind(kind) if dtype is None else (named_dtype(dtype), False)
    return finish(np.full(_shape(shape), _filling(fill, kind, dtype)), weak)


def _filled_like(value):
    def like(a, /, dtype=None):
        a = raw(a)
        return own(np.full(a.shape, value, _dtype_or(dtype, a.dtype)))

    return like


def full_like(a, fill_value, dtype=None):
    """jnp.full_like."""
    a, (fill, kind) = raw(a), with_kind(fill_value)
    return own(np.full(a.shape, _filling(fill, kind, _dtype_or(dtype, a.dtype))))


def _filling(fill, kind, dtype) -> np.ndarray:
    if dtype.kind in "iu" and common_kind(kind)[0].kind not in "iub":
        raise Unsupported("a conversion that JAX does in its own way")
    return np.asarray(fill, dtype)


def arange(start, stop=None, step=None, dtype=None):
    """jnp.arange of integers."""
    limits = [_integer(limit) for limit in (start, stop, step) if limit is not None]
    if step is not None and stop is None:
        raise Unsupported("a step without a stop")
    return own(np.arange(*limits, dtype=_dtype_or(dtype, _INT)))


def _integer(limit) -> int:
    if type(limit) is not int:
        limit = raw(limit)
        if limit.dtype != default(_INT):
            raise Unsupported("no integer")
        limit = operator.index(limit)
    if not -2147483648 <= limit <= 2147483647:
        raise Unsupported("JAX refuses large numbers")
    return limit


def linspace(start, stop, num=50, endpoint=True, *, dtype=None):
    """jnp.linspace between two numbers, in its own arithmetic."""
    num = operator.index(num)
    (start, one), (stop, other) = with_kind(start), with_kind(stop)
    work = default(_FLOAT)
    if np.ndim(start) or np.ndim(stop) or num < 2 or dtype not in (None, work, float):
        raise Unsupported("linspace of arrays")
    if common_kind(one, other)[0] not in (work, default(_INT)):
        raise Unsupported("another dtype")
    parts = num - 1 if endpoint else num
    step = np.arange(parts, dtype=work) / work.type(parts)
    start, stop = np.asarray(start, work), np.asarray(stop, work)
    found = start * (work.type(1) - step) + stop * step
    return own(np.append(found, stop) if endpoint else found)


def eye(N, M=None, k=0, dtype=None):
    """jnp.eye."""
    M = N if M is None else M
    size = [operator.index(n if type(n) is int else raw(n)) for n in (N, M, k)]
    return own(np.eye(size[0], size[1], size[2], dtype=_dtype_or(dtype, _FLOAT)))


def identity(n, dtype=None):
    """jnp.identity."""
    return eye(n, dtype=dtype)


def tri(N, M=None, k=0, dtype=None):
    """jnp.tri."""
    return own(np.tri(operator.index(N), M, operator.index(k), dtype=_dtype_or(dtype, _FLOAT)))


# ---------------------------------------------------------------- arrays from Python


def array(object, /, dtype=None):
    """jnp.array, jnp.asarray: of numbers, arrays, and lists of them."""
    kind = type(object)
    if kind is np.ndarray or kind is Array or isinstance(object, np.generic):
        found = stable(object)
        return own(found if dtype is None else found.astype(_exactly(found, dtype), copy=False))
    if kind in NUMBERS:
        value, kind = with_kind(object)
        out, weak = common_kind(kind) if dtype is None else (named_dtype(dtype), False)
        return finish(_flat_numbers(value, out), weak)
    if kind is not list and kind is not tuple:
        raise Unsupported("no list")
    kinds: dict = {}
    values = _leaves(object, kinds)
    out = (_lists(*kinds) if kinds else default(_FLOAT)) if dtype is None else named_dtype(dtype)
    if any(k not in NUMBERS for k in kinds):
        return own(_nested_array(values, out))
    return own(_flat_numbers(values, out))


def _exactly(found, dtype) -> np.dtype:
    dtype = named_dtype(dtype)
    if found.dtype.kind == "c" or (found.dtype.kind not in "iub" and dtype.kind in "iu"):
        raise Unsupported("a conversion that JAX does in its own way")
    return dtype


def _flat_numbers(values, dtype) -> np.ndarray:
    found = np.asarray(values)
    if found.dtype.kind == "O" or (found.dtype.kind in "fc" and dtype.kind in "iu"):
        raise Unsupported("ragged lists, or numbers cut")
    found = np.asarray(values, dtype)
    if dtype in HALF and not np.isfinite(found).all():
        raise Unsupported("JAX warns of large numbers")
    return found


def _leaves(tree, kinds):
    if type(tree) is list or type(tree) is tuple:
        return [_leaves(value, kinds) for value in tree]
    value, kind = with_kind(tree)
    kinds[kind] = None
    return value


def _lists(*kinds) -> np.dtype:
    """The dtype of a list: that of its parts put together, a strong one."""
    return common_kind(*kinds)[0]


def _nested_array(values, dtype) -> np.ndarray:
    if type(values) is not list:
        return np.asarray(values, dtype)
    return np.stack([_nested_array(value, dtype) for value in values])


# ---------------------------------------------------------------- joining


def _in_one_dtype(arrays, dtype):
    """(values, weak) of a list of arrays, in one dtype."""
    if type(arrays) is not list and type(arrays) is not tuple:
        raise Unsupported("no list of arrays")
    values, kinds = [], {}
    for each in arrays:
        value, kind = with_kind(each)
        values.append(value)
        kinds[kind] = None
    weak = False
    if len(kinds) > 1 or type(kind) is Weak or kind in NUMBERS:
        common, weak = common_kind(*kinds)
        values = [np.asarray(value, common) for value in values]
    if dtype is not None:
        return [value.astype(_exactly(value, dtype)) for value in values], False
    return values, weak


def concatenate(arrays, axis=0, dtype=None):
    """jnp.concatenate."""
    return _joined_along(np.concatenate, arrays, axis, dtype)


def concat(arrays, /, *, axis=0):
    """jnp.concat."""
    return _joined_along(np.concatenate, arrays, axis, None)


def stack(arrays, axis=0, *, dtype=None):
    """jnp.stack."""
    return _joined_along(np.stack, arrays, axis, dtype)


def column_stack(tup):
    """jnp.column_stack."""
    values, weak = _in_one_dtype(tup, None)
    return finish(np.column_stack(values), weak)


def _joined_along(compute, arrays, axis, dtype):
    values, weak = _in_one_dtype(arrays, dtype)
    return finish(compute(values, axis), weak)


def _stacking(compute):
    """vstack and its kin."""

    def join(tup, dtype=None):
        values, weak = _in_one_dtype(tup, dtype)
        return finish(compute(values), weak)

    return join


def append(arr, values, axis=None):
    """jnp.append."""
    parts, weak = _in_one_dtype([arr, values], None)
    return finish(np.append(parts[0], parts[1], axis), weak)


def split(ary, indices_or_sections, axis=0):
    """jnp.split."""
    return [own(part) for part in np.split(stable(ary), _places(indices_or_sections), axis)]


def array_split(ary, indices_or_sections, axis=0):
    """jnp.array_split."""
    parts = np.array_split(stable(ary), _places(indices_or_sections), axis)
    return [own(part) for part in parts]


def _places(places):
    if type(places) is int:
        return places
    found = _shape(places)
    if type(places) is not list and type(places) is not tuple and not raw(places).ndim:
        return found[0]
    if any(place < 0 for place in found) or list(found) != sorted(found):
        raise Unsupported("places from the end, or not in order")
    return list(found)


# ---------------------------------------------------------------- shapes


def reshape(a, shape, order="C"):
    """jnp.reshape."""
    if order not in ("C", "F"):
        raise Unsupported("another order")
    return own(stable(a).reshape(_shape(shape), order=order))


def transpose(a, axes=None):
    """jnp.transpose."""
    return own(stable(a).transpose(axes if axes is None else _shape(axes)))


def permute_dims(a, /, axes):
    """jnp.permute_dims."""
    return transpose(a, axes)


def ravel(a, order="C"):
    """jnp.ravel."""
    if order != "C":
        raise Unsupported("another order")
    return own(stable(a).reshape(-1))


def _with_integers(compute, *names):
    """A function of an array whose other arguments are integers or tuples of them."""

    def view(a, /, *places):
        places = [p if type(p) is int or p is None else _shape(p) for p in places]
        return own(compute(stable(a), *places))

    def by_name(a, /, *places, **named_places):
        for name in names[len(places) :]:
            if name in named_places:
                places += (named_places.pop(name),)
        if named_places:
            raise Unsupported("other arguments")
        return view(a, *places)

    return by_name if names else view


def _triangle(compute):
    """tril, triu: of matrices."""

    def triangle(m, k=0):
        m = raw(m)
        if m.ndim < 2 or type(k) is not int:
            raise Unsupported("no matrix")
        return own(compute(m, k))

    return triangle


def _atleast(compute):
    def atleast(*arys):
        found = [own(compute(stable(each))) for each in arys]
        return found[0] if len(found) == 1 else found

    return atleast


def tile(A, reps):
    """jnp.tile."""
    return own(np.tile(stable(A), _shape(reps)))


def roll(a, shift, axis=None):
    """jnp.roll by integers."""
    shift = _shape(shift) if type(shift) is not int else shift
    if type(shift) is tuple and len(shift) == 1:
        shift = shift[0]
    return own(np.roll(stable(a), shift, axis))


def diff(a, n=1, axis=-1):
    """jnp.diff."""
    a = raw(a)
    return own(np.diff(a, n, axis))


def meshgrid(*xi, indexing="xy", sparse=False):
    """jnp.meshgrid."""
    values = [stable(x) for x in xi]
    if any(v.ndim != 1 for v in values) or indexing not in ("xy", "ij"):
        raise Unsupported("no vectors")
    return [own(v) for v in np.meshgrid(*values, indexing=indexing, sparse=sparse)]


def pad(array, pad_width, mode="constant", *, constant_values=0):
    """jnp.pad by a constant."""
    array = raw(array)
    value, kind = with_kind(constant_values)
    if mode != "constant" or np.ndim(value) or common_kind(array.dtype, kind)[0] != array.dtype:
        raise Unsupported("padding with other than one value")
    widths = raw(np.asarray(pad_width) if type(pad_width) is not Array else pad_width)
    if widths.dtype.kind != "i" or widths.shape not in ((), (2,), (1, 2), (array.ndim, 2)):
        raise Unsupported("no integers")
    return own(np.pad(array, widths.tolist(), constant_values=value))


def broadcast_to(array, shape):
    """jnp.broadcast_to."""
    return own(np.broadcast_to(stable(array), _shape(shape)))


def astype(x, dtype, /):
    """jnp.astype, where NumPy converts the same way."""
    x = stable(x)
    if dtype is None:
        raise Unsupported("no dtype")
    return own(x.astype(_exactly(x, dtype), copy=False))


def _scalar(name):
    """jnp.float32(x) and the like."""

    def make(x, /):
        return array(x, name)

    return make


SHAPES = {
    **{
        getattr(jnp, name): _scalar(name)
        for name in ["int32", "float32", "uint8", "int8", "float16"]
    },
    jnp.bool_: _scalar("bool"),
    jnp.zeros: zeros,
    jnp.empty: zeros,
    jnp.ones: ones,
    jnp.full: full,
    jnp.zeros_like: _filled_like(0),
    jnp.empty_like: _filled_like(0),
    jnp.ones_like: _filled_like(1),
    jnp.full_like: full_like,
    jnp.arange: arange,
    jnp.linspace: linspace,
    jnp.eye: eye,
    jnp.identity: identity,
    jnp.tri: tri,
    jnp.array: array,
    jnp.asarray: array,
    jnp.concatenate: concatenate,
    jnp.stack: stack,
    jnp.vstack: _stacking(np.vstack),
    jnp.hstack: _stacking(np.hstack),
    jnp.dstack: _stacking(np.dstack),
    jnp.column_stack: column_stack,
    jnp.append: append,
    jnp.split: split,
    jnp.array_split: array_split,
    jnp.reshape: reshape,
    jnp.transpose: transpose,
    jnp.ravel: ravel,
    jnp.squeeze: _with_integers(np.squeeze, "axis"),
    jnp.expand_dims: _with_integers(np.expand_dims, "axis"),
    jnp.swapaxes: _with_integers(np.swapaxes, "axis1", "axis2"),
    jnp.moveaxis: _with_integers(np.moveaxis, "source", "destination"),
    jnp.flip: _with_integers(np.flip, "axis"),
    jnp.flipud: _with_integers(np.flipud),
    jnp.fliplr: _with_integers(np.fliplr),
    jnp.diagonal: _with_integers(np.diagonal, "offset", "axis1", "axis2"),
    jnp.tril: _triangle(np.tril),
    jnp.triu: _triangle(np.triu),
    jnp.atleast_1d: _atleast(np.atleast_1d),
    jnp.atleast_2d: _atleast(np.atleast_2d),
    jnp.atleast_3d: _atleast(np.atleast_3d),
    jnp.tile: tile,
    jnp.roll: roll,
    jnp.diff: diff,
    jnp.meshgrid: meshgrid,
    jnp.pad: pad,
    jnp.broadcast_to: broadcast_to,
    jnp.astype: astype,
    jnp.permute_dims: permute_dims,
    jnp.concat: concat,
}
