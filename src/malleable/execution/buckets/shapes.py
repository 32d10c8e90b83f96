"""Mask rules of what moves values about: broadcast, reshape, concatenate, slice, pad, reverse."""

import math

from jax import lax
from jax import numpy as jnp

from malleable import compat
from malleable.execution.buckets.values import Padded, filled, fit_dim, fit_shape, mask_rule, window
from malleable.execution.common.breaks import Unsupported
from malleable.execution.common.sizes import LARGEST, is_symbolic, same_size


@mask_rule("broadcast_in_dim")
def broadcast_in_dim(sizes, eqn, p, *_):
    shape = sizes.shape(eqn.params["shape"])
    x = lax.broadcast_in_dim(p.x, shape, eqn.params["broadcast_dimensions"])
    return Padded(x, (), p.fill if not p.dims else None)


@mask_rule("iota")
def iota(sizes, eqn, *_):
    shape = sizes.shape(eqn.params["shape"])
    return lax.broadcasted_iota(eqn.params["dtype"], shape, eqn.params["dimension"])


@mask_rule("transpose", "squeeze")
def same_elements(sizes, eqn, p):
    (x,) = compat.bind(eqn, [p.x])
    return Padded(x, (), p.fill)


@mask_rule("reshape")
def reshape(sizes, eqn, p, *_):
    if eqn.params["dimensions"] is not None:
        raise Unsupported("reshape in another order")
    old, new = list(p.dims), list(eqn.outvars[0].aval.shape)
    if 0 in old or 0 in new:
        return jnp.zeros(sizes.shape(new), p.x.dtype)
    start = end = 0
    while start < min(len(old), len(new)) and same_size(old[start], new[start]):
        start += 1
    while end < min(len(old), len(new)) - start and same_size(old[-1 - end], new[-1 - end]):
        end += 1
    ins, outs = old[start : len(old) - end], new[start : len(new) - end]
    head, tail = p.x.shape[:start], p.x.shape[p.x.ndim - end :]
    if not (_leads(ins) and _leads(outs)):
        return _reorder(sizes, p.x, start, ins, outs)
    flat = p.x.reshape(*head, math.prod(sizes.shape(ins)), *tail)
    flat = fit_dim(flat, start, math.prod(sizes.shape(outs)))
    return Padded(flat.reshape(*head, *sizes.shape(outs), *tail), (), 0 if p.fill == 0 else None)


def _leads(dims) -> bool:
    """Whether the values come first when the axes are flattened: only the outermost is padded."""
    long = [d for d in dims if is_symbolic(d) or d != 1]
    return not any(map(is_symbolic, long[1:]))


def _reorder(sizes, x, start, ins, outs):
    """Reshape by the place of every element, for rows that have padding in them."""
    place, index = _places(sizes, outs), []
    for dim in reversed(ins):
        size = jnp.maximum(sizes.true(dim), 1)
        index.append(place % size)
        place = place // size
    where = (*(slice(None),) * start, *reversed(index))
    return x.at[where].get(mode="clip")


def arrange(sizes, flat, dims):
    """A flat array, its padding at the end, as one of these sizes."""
    return flat.at[_places(sizes, dims)].get(mode="clip")


def _places(sizes, dims):
    """For each element, how many come before it, were there no padding."""
    shape = sizes.shape(dims)
    if math.prod(shape) > LARGEST:
        raise Unsupported("reshape of more than 2**31 elements")
    place, stride = jnp.zeros(shape, jnp.int32), 1
    for axis in reversed(range(len(dims))):
        place += lax.broadcasted_iota(jnp.int32, shape, axis) * stride
        stride = stride * sizes.true(dims[axis])
    return place


@mask_rule("stack")
def stack(sizes, eqn, *ins):
    return compat.bind(eqn, [p.x for p in ins])


@mask_rule("tile")
def tile(sizes, eqn, p):
    x = p.x
    for axis, (dim, times) in enumerate(zip(p.dims, eqn.params["reps"], strict=True)):
        if is_symbolic(times) or (is_symbolic(dim) and times != 1):
            room = sizes.room(eqn.outvars[0].aval.shape[axis])
            place = jnp.arange(room, dtype=jnp.int32) % jnp.maximum(sizes.true(dim), 1)
            x = jnp.take(x, place, axis=axis, mode="clip")
        elif times != 1:
            x = jnp.tile(x, [times if a == axis else 1 for a in range(x.ndim)])
    return x


@mask_rule("rev")
def rev(sizes, eqn, p):
    x = lax.rev(p.x, eqn.params["dimensions"])
    for axis in eqn.params["dimensions"]:
        if is_symbolic(p.dims[axis]):  # the padding has come first
            room = x.shape[axis]
            x = window(x, axis, room - sizes.true(p.dims[axis]), room)
    return Padded(x, (), 0 if p.fill == 0 else None)


@mask_rule("concatenate")
def concatenate(sizes, eqn, *ins):
    """Each operand is written over the padding of the one before."""
    axis = eqn.params["dimension"]
    shape = sizes.shape(eqn.outvars[0].aval.shape)
    if not any(is_symbolic(p.dims[axis]) for p in ins[:-1]):
        return fit_shape(lax.concatenate([p.x for p in ins], axis), shape)
    room = sum(p.x.shape[axis] for p in ins)
    out, start = fit_dim(ins[0].x, axis, room), sizes.true(ins[0].dims[axis])
    for p in ins[1:]:
        out = lax.dynamic_update_slice_in_dim(out, p.x, start, axis)
        start = start + sizes.true(p.dims[axis])
    return fit_shape(out, shape)


@mask_rule("slice")
def slice_(sizes, eqn, p):
    params, shape = eqn.params, sizes.shape(eqn.outvars[0].aval.shape)
    strides = params["strides"] or (1,) * len(shape)
    x = p.x
    for axis, room in enumerate(shape):
        start, stride = params["start_indices"][axis], strides[axis]
        if is_symbolic(stride):
            raise Unsupported("slice with a stride that changes")
        long = (room - 1) * stride + 1 if room else 0
        x = window(x, axis, sizes.true(start), long)
        if stride != 1:
            x = lax.slice_in_dim(x, 0, long, stride, axis)
    return x


@mask_rule("split")
def split(sizes, eqn, p):
    axis, outs, start = eqn.params["axis"], [], 0
    for size in eqn.params["sizes"]:
        outs.append(window(p.x, axis, start, sizes.room(size)))
        start = start + sizes.true(size)
    return outs


@mask_rule("pad")
def pad(sizes, eqn, p, value):
    """What follows the values is the padding value already, so only where they start matters."""
    out = eqn.outvars[0].aval.shape
    config = eqn.params["padding_config"]
    x = p.x
    if p.axes:
        x = _filled_with(sizes, p, value.x)
    for axis, (low, _, interior) in enumerate(config):
        if is_symbolic(interior):
            raise Unsupported("pad inside by a number that changes")
        room = sizes.room(out[axis])
        if is_symbolic(low):
            if interior:
                raise Unsupported("pad inside and before by a number that changes")
            x = _shifted(sizes, x, axis, low, room, value.x)
            continue
        have = x.shape[axis] + max(x.shape[axis] - 1, 0) * interior
        widths = [(0, 0, 0)] * x.ndim
        widths[axis] = (low, room - have - low, interior)
        x = lax.pad(x, value.x, widths)
    return x


def _filled_with(sizes, p, value):
    ones = filled(sizes, Padded(jnp.ones(p.x.shape, bool), p.dims), False)
    return jnp.where(ones, p.x, value)


def _shifted(sizes, x, axis, low, room, value):
    """x[i - low], and `value` where there is none."""
    longer = lax.pad(x, value, [(room, room, 0) if i == axis else (0, 0, 0) for i in range(x.ndim)])
    return lax.dynamic_slice_in_dim(longer, room - sizes.true(low), room, axis=axis)
