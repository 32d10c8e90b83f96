"""How a streamed axis passes what works element by element, moves dimensions, or reduces."""

import math

from jax import lax
from jax import numpy as jnp

from malleable.programs.primitives import has, kind
from malleable.rewriting.graph.slices import (
    Ax,
    Flow,
    Running,
    Sunk,
    extreme,
    in_memory,
    known,
    rebind,
    shapes,
    slice_shape,
    slots,
)
from malleable.rewriting.machine import Machine

ELEMENTWISE = kind("elementwise", "complex", "cast", "same") | {"pvary"}
ELEMENTWISE -= {"bitcast_convert_type"}  # one number as several smaller ones
ELEMENTWISE -= {"log2", "mulhi"} | {"one_minus_square", "polynomial"}  # later than this set

EXTREMES = {"reduce_max": lax.reduce_max, "reduce_min": lax.reduce_min}
SUMMED = kind("reduce") & has("sum", "extremum")  # those `unrolled` knows


def elementwise(eqn, ins, outs, n, origin):
    """Operands of rank 0, and of extent 1 along the axis, are whole."""
    ax, shape = known(ins, outs), eqn.outvars[0].aval.shape
    if shape[ax.dim] != ax.width * n:
        return "an axis of length 1 is broadcast"
    extents = [s[ax.dim] if s else 1 for s in shapes(eqn.invars)]
    axes = tuple(
        ax if s and e == shape[ax.dim] else None
        for s, e in zip(shapes(eqn.invars), extents, strict=True)
    )

    def run(t, *xs):
        if ax.width == 1:
            xs = [
                lax.squeeze(x, (ax.dim,)) if a is None and jnp.ndim(x) else x
                for x, a in zip(xs, axes, strict=True)
            ]
        return rebind(eqn, xs)

    return Flow(axes, (ax,) * len(eqn.outvars), run)


def one_by_one(eqn, ins, outs, n, origin):
    """Operand i becomes result i, each by itself (optimization_barrier)."""
    axes = tuple(i or o for i, o in zip(ins, outs, strict=True))
    return Flow(axes, axes, lambda t, *xs: rebind(eqn, xs))


def broadcast_in_dim(eqn, ins, outs, n, origin):
    """A dimension that is new, or was of extent 1, leaves the operand whole."""
    (before,), (after,) = shapes(eqn.invars), shapes(eqn.outvars)
    dims = list(eqn.params["broadcast_dimensions"])
    if ins[0]:
        ax = ins[0]._replace(dim=int(dims[ins[0].dim]))
        if before[ins[0].dim] != after[ax.dim]:
            return "an axis of length 1 is broadcast"
    else:
        ax = outs[0]
    at = dims.index(ax.dim) if ax.dim in dims else None
    kept = at is not None and before[at] == after[ax.dim]
    source = ax._replace(dim=at) if kept else None
    shape, moved = slice_shape(after, ax, n), slots(dims, ax)

    def run(t, x):
        if at is not None and not kept and ax.width == 1:
            x = lax.squeeze(x, (at,))
        return [lax.broadcast_in_dim(x, shape, moved)]

    return Flow((source,), (ax,), run)


def reshape(eqn, ins, outs, n, origin):
    """The axis may join its neighbours in one dimension, or part from them."""
    (before,), (after,) = shapes(eqn.invars), shapes(eqn.outvars)
    if eqn.params.get("dimensions") is not None:
        return "a reshape that also transposes"
    if ins[0]:
        source, ax = ins[0], regrouped(before, ins[0], after, n, outs[0])
    else:
        ax, source = outs[0], regrouped(after, outs[0], before, n, None)
    if ax is None or source is None:
        return "a reshape splits the axis"
    shape = slice_shape(after, ax, n)
    return Flow((source,), (ax,), lambda t, x: [lax.reshape(x, shape)])


def regrouped(before, ax, after, n, wanted):
    """The axis after a reshape; None if no single dimension holds all of it."""
    if not math.prod(before):
        return ax if before == after else None
    left = math.prod(before[: ax.dim]) * ax.outer
    right = math.prod(before[ax.dim + 1 :]) * ax.inner
    found = []
    for dim in range(len(after)):
        outer, odd = divmod(left, math.prod(after[:dim]))
        inner, rest = divmod(right, math.prod(after[dim + 1 :]))
        if not odd and not rest and outer * n * inner == after[dim]:
            found.append(Ax(dim, outer, inner))
    found.sort(key=lambda a: (a != wanted, a.width))  # of length 1, it may be in several places
    return found[0] if found else None


def _dims_left(gone, eqn, ins, outs) -> tuple[Ax, Ax | None]:
    """Where operands carry the axis, and where results do that lack some dimensions; None: gone."""
    left = [d for d in range(len(eqn.invars[0].aval.shape)) if d not in gone]
    given = next((ax for ax in ins if ax), None)
    source = given or known((), outs)._replace(dim=left[known((), outs).dim])
    return source, None if source.dim in gone else source._replace(dim=left.index(source.dim))


def squeeze(eqn, ins, outs, n, origin):
    gone = sorted(d % len(eqn.invars[0].aval.shape) for d in eqn.params["dimensions"])
    source, ax = _dims_left(gone, eqn, ins, outs)
    if ax is None:
        return "an axis of length 1 is squeezed"
    dims = slots(gone, source)
    return Flow((source,), (ax,), lambda t, x: [lax.squeeze(x, dims)])


def transpose(eqn, ins, outs, n, origin):
    order = [int(d) for d in eqn.params["permutation"]]
    source = ins[0] or outs[0]._replace(dim=order[outs[0].dim])
    ax, moved = source._replace(dim=order.index(source.dim)), slots(order, source)
    return Flow((source,), (ax,), lambda t, x: [lax.transpose(x, moved)])


def reduction(eqn, ins, outs, n, origin):
    """Over the axis: a sink, told the dimensions of a block to reduce. Over others: a flow."""
    axes = [int(a) for a in eqn.params["axes"]]
    source, ax = _dims_left(axes, eqn, ins, outs)
    over, best = slots(axes, source), EXTREMES.get(eqn.primitive.name)
    if ax is None:
        if best and eqn.invars[0].aval.dtype.kind == "c":
            return "complex numbers are compared along the axis"
        return Sunk((source,), (0, *(a + 1 for a in over)))
    if best and jnp.issubdtype(eqn.invars[0].aval.dtype, jnp.floating):
        return Flow((source,), (ax,), lambda t, x: [extreme(best, over, t, x)])
    return Flow((source,), (ax,), lambda t, x: rebind(eqn, [x], axes=over))


def extremum(eqn, ins, outs, n, origin):
    """argmax and argmin."""
    source, ax = _dims_left(eqn.params["axes"], eqn, ins, outs)
    if ax is None:
        return Sunk((source,), (source.dim + 1 if source.width > 1 else None, *source[1:]))
    over = slots(eqn.params["axes"], source)
    return Flow((source,), (ax,), lambda t, x: [first_extremum(eqn, t, x, *over)])


def first_extremum(eqn, t, x, axis):
    """argmax or argmin along one axis, in two passes where XLA:CPU is slow at one.

    The extremum, then the first place that equals it, or holds a NaN: 8 to 12 times faster than a
    reduction that carries an index along.
    """
    if x.shape[axis] < Machine.current().slow_places or x.dtype.kind not in "iuf":
        return rebind(eqn, [x], axes=(axis,))[0]
    best = lax.reduce_max if eqn.primitive.name == "argmax" else lax.reduce_min
    x, dtype, length = in_memory(lax.stop_gradient(x), t), eqn.params["index_dtype"], x.shape[axis]
    hit = x == lax.expand_dims(best(x, (axis,)), (axis,))
    places = lax.broadcasted_iota(dtype, x.shape, axis)
    if x.dtype.kind == "f":  # a NaN comes before all others
        places = places if 3 * length <= jnp.iinfo(dtype).max else places.astype(jnp.int32)
        places = lax.select(x != x, places, lax.select(hit, places + length, places + 2 * length))
        first = lax.reduce_min(places, (axis,))
        return lax.convert_element_type(lax.select(first < length, first, first - length), dtype)
    return lax.reduce_min(lax.select(hit, places, jnp.full(x.shape, length, dtype)), (axis,))


def iota(eqn, ins, outs, n, origin):
    """Made from the position in the stream."""
    (ax,), (whole,) = outs, shapes(eqn.outvars)
    dtype, along, shape = eqn.params["dtype"], eqn.params["dimension"], slice_shape(whole, ax, n)

    def run(t):
        if along != ax.dim:
            return [lax.broadcasted_iota(dtype, shape, slots((along,), ax)[0])]
        at = lax.convert_element_type(t, dtype) * jnp.asarray(ax.inner, dtype)
        if ax.width == 1:
            return [lax.broadcast(at, shape)]
        i = lax.broadcasted_iota(dtype, shape, along)
        outer, inner = i // ax.inner, i % ax.inner
        return [outer * jnp.asarray(ax.inner * n, dtype) + at + inner]

    return Flow((), outs, run)


def cumulative(eqn, ins, outs, n, origin):
    """Along the axis: a carry goes along."""
    ax, axis = known(ins, outs), eqn.params["axis"]
    if axis == ax.dim:
        if ax.width > 1:
            return "a cumulative operation runs over the axis and others as one"
        return Running((ax,), (ax,), bool(eqn.params["reverse"]))
    over = slots((axis,), ax)[0]
    return Flow((ax,), (ax,), lambda t, x: rebind(eqn, [x], axis=over))


def reduce_any(eqn, ins, outs, n, origin):
    """lax.reduce with a function of the user's: operands, then their initial values."""
    over, count = list(eqn.params["dimensions"]), len(eqn.outvars)
    source, ax = _dims_left(over, eqn, ins, outs)
    if ax is None:
        return "a lax.reduce over the axis: write it as a sink"
    dims = slots(over, source)
    ins = (source,) * count + (None,) * (len(eqn.invars) - count)
    return Flow(ins, (ax,) * count, lambda t, *xs: rebind(eqn, xs, dimensions=dims))


RULES = {
    **dict.fromkeys(ELEMENTWISE, elementwise),
    "optimization_barrier": one_by_one,
    "broadcast_in_dim": broadcast_in_dim,
    "reshape": reshape,
    "squeeze": squeeze,
    "transpose": transpose,
    **dict.fromkeys(kind("reduce"), reduction),
    "reduce": reduce_any,
    "argmax": extremum,
    "argmin": extremum,
    "iota": iota,
    **dict.fromkeys(kind("cumulative"), cumulative),
}
