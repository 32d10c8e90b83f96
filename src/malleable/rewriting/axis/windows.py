"""How a streamed axis passes what cuts, joins, pads, sorts or looks up along other dimensions."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from malleable import compat
from malleable.programs.primitives import kind
from malleable.programs.types import identity
from malleable.rewriting.graph.slices import Ax, Flow, Sunk, known, rebind, shapes, sized, slots

LARGEST = 1 << 22  # elements of a constant that is worked out to know its value


class Origin(NamedTuple):
    """The equation that makes a value; origin(i): who makes its operand i.

    origin(i) is an Origin, an array (a constant), or None (an argument of the program).
    """

    eqn: compat.Eqn
    origin: Callable[[int], object]


def _at_its_dim(eqn, ins, outs, arrays, run):
    """The axis stays at its dimension: the first `arrays` operands carry it, others are whole."""
    ax = known(ins, outs)
    axes = (ax,) * arrays + (None,) * (len(eqn.invars) - arrays)
    return Flow(axes, (ax,) * len(eqn.outvars), lambda t, *xs: run(*xs))


def _along_another(parameter: str, why: str):
    """What works along one dimension, another than the axis, which all operands carry."""

    def rule(eqn, ins, outs, n, origin):
        ax, along = known(ins, outs), eqn.params[parameter] % len(shapes(eqn.invars)[0])
        if along == ax.dim:
            return why
        there = {parameter: slots((along,), ax)[0]}
        return _at_its_dim(eqn, ins, outs, len(ins), lambda *xs: rebind(eqn, xs, **there))

    return rule


def pad(eqn, ins, outs, n, origin):
    ax, config = known(ins, outs), eqn.params["padding_config"]
    if any(config[ax.dim]):
        return "the axis is padded"
    config = tuple(sized(config, ax, (0, 0, 0)))
    return _at_its_dim(eqn, ins, outs, 1, lambda x, value: [lax.pad(x, value, config)])


def cut(eqn, ins, outs, n, origin):
    """A static slice."""
    ax, p = known(ins, outs), eqn.params
    (before,), (after,) = shapes(eqn.invars), shapes(eqn.outvars)
    if before[ax.dim] != after[ax.dim]:
        return "a window of the axis"
    starts = sized(p["start_indices"], ax, 0)
    limits = sized(p["limit_indices"], ax, ax.width)
    strides = p["strides"] and sized(p["strides"], ax, 1)
    return _at_its_dim(eqn, ins, outs, 1, lambda x: [lax.slice(x, starts, limits, strides)])


def rev(eqn, ins, outs, n, origin):
    ax, dims = known(ins, outs), eqn.params["dimensions"]
    if ax.dim in dims:
        return "the axis is reversed"
    moved = slots(dims, ax)
    return _at_its_dim(eqn, ins, outs, 1, lambda x: [lax.rev(x, moved)])


def _starts(starts, ax):
    """The start indices of a slice; along the axis, where all of it is taken, the start is 0."""
    return sized(starts, ax, np.zeros((), starts[ax.dim].dtype))


def dynamic_slice(eqn, ins, outs, n, origin):
    ax, sizes = known(ins, outs), eqn.params["slice_sizes"]
    if sizes[ax.dim] != eqn.invars[0].aval.shape[ax.dim]:
        return "a window of the axis"
    sizes = sized(sizes, ax, ax.width)
    run = lambda x, *starts: [lax.dynamic_slice(x, _starts(starts, ax), sizes)]  # noqa: E731
    return _at_its_dim(eqn, ins, outs, 1, run)


def dynamic_update_slice(eqn, ins, outs, n, origin):
    ax = known(ins, outs)
    whole, part = shapes(eqn.invars[:2])
    if whole[ax.dim] != part[ax.dim]:
        return "a window of the axis is written"
    run = lambda x, y, *starts: [lax.dynamic_update_slice(x, y, _starts(starts, ax))]  # noqa: E731
    return _at_its_dim(eqn, ins, outs, 2, run)


def pool(eqn, ins, outs, n, origin):
    """A sum, maximum or minimum over windows of other dimensions."""
    ax, p = known(ins, outs), eqn.params
    names = "window_dimensions", "window_strides", "padding", "base_dilation", "window_dilation"
    idle = dict(zip(names, (1, 1, (0, 0), 1, 1), strict=True))
    if any(tuple(np.ravel(p[k][ax.dim])) != tuple(np.ravel(idle[k])) for k in names):
        return "windows of the axis"
    params = {k: tuple(sized(p[k], ax, idle[k])) for k in names}
    return _at_its_dim(eqn, ins, outs, 1, lambda x: rebind(eqn, [x], **params))


def scatter(eqn, ins, outs, n, origin):
    """The axis is a dimension of the operand that each update spans; the indices are whole.

    Or it is one of the updates and their indices: then it ends here (see `scattered`).
    """
    d, ax = eqn.params["dimension_numbers"], ins[0] or outs[0]
    operand, _, updates = shapes(eqn.invars)
    if ax is None and (found := scattered(eqn, ins, origin)) is not None:
        return found
    gone = {int(i) for i in (*d.inserted_window_dims, *d.operand_batching_dims)}
    windows = [i for i in range(len(operand)) if i not in gone]  # <-> update_window_dims
    spans = [int(i) for i in d.update_window_dims]
    if ax is None and ins[2] and ins[2].dim in spans and not ins[1]:
        ax = ins[2]._replace(dim=windows[spans.index(ins[2].dim)])
    if ax is None or ins[1] or ax.dim in gone or ax.dim in d.scatter_dims_to_operand_dims:
        return "a scatter along the axis"
    update = ax._replace(dim=spans[windows.index(ax.dim)])
    if updates[update.dim] != operand[ax.dim]:
        return "a window of the axis is written"
    numbers = d._replace(
        update_window_dims=slots(spans, update),
        inserted_window_dims=slots(d.inserted_window_dims, ax),
        scatter_dims_to_operand_dims=slots(d.scatter_dims_to_operand_dims, ax),
        operand_batching_dims=slots(d.operand_batching_dims, ax),
    )
    run = lambda t, *xs: rebind(eqn, xs, dimension_numbers=numbers)  # noqa: E731
    return Flow((ax, None, update), (ax,), run)


def scattered(eqn, ins, origin):
    """A sum (a largest, a smallest) by index: a histogram, a segment_sum.

    The operand is full of what changes nothing. None where the axis is no axis of the updates.
    """
    d, name = eqn.params["dimension_numbers"], eqn.primitive.name
    updates = shapes(eqn.invars)[2]
    rows = [i for i in range(len(updates)) if i not in set(map(int, d.update_window_dims))]
    if ins[2]:
        if ins[2].dim not in rows:
            return None
        ax = ins[2]._replace(dim=rows.index(ins[2].dim))  # <-> dims of the indices, but the last
    else:
        ax = ins[1]
    if ax.dim >= len(rows) or ax.dim in set(map(int, d.scatter_indices_batching_dims)):
        return None
    if not name.endswith(("-add", "-max", "-min")):
        return "which of the updates is the last depends on the order of the axis"
    found, dtype = full_of(origin(0)), eqn.outvars[0].aval.dtype
    if found is None or found != identity(name, dtype):
        return "it is written into an array that holds something already"
    if name != "scatter-add" and jnp.issubdtype(dtype, jnp.inexact):
        return "which of equal elements has the derivative, only all of them tell"
    axes = (ax, ax._replace(dim=rows[ax.dim]))
    return Sunk((None, *axes), axes)


def full_of(found: Any):
    """The number that an array is full of, given its origin; None for another array."""
    while isinstance(found, Origin) and found.eqn.primitive.name in SPREAD:
        found = found.origin(0)
    known = found is not None and not isinstance(found, Origin) and np.ndim(found) == 0
    return found if known else None


SPREAD = kind("dims") - {"squeeze", "transpose"} | {"convert_element_type", "copy"}


def hidden(eqn, ins, outs, n, origin):
    """A searchsorted, from JAX 0.11 on: each query by itself, what is searched whole."""
    p = getattr(eqn.params["_prim"], "params", {})
    if type(eqn.params["_prim"]).__name__ != "SearchSorted":
        return "nothing is known about an axis in an object that hides its body"
    if ins[0] or p["batch_dims"] or len(shapes(eqn.invars)[0]) > 1:
        return "what is searched carries the axis"
    ax, out = known(ins, outs), eqn.outvars[0].aval
    options = {name: p[name] for name in ("side", "method")}

    def run(t, x, queries):
        return [jnp.searchsorted(x, queries, **options).astype(out.dtype)]

    return Flow((None, ax), (ax,), run)


# ---------------------------------------------------------------- gather


def gather(eqn, ins, outs, n, origin):
    """The axis is a window taken whole, one of the indices, both (a batch), or looked up in order.

    The last is `logits[arange(n), labels]`: slice t of the operand, without the dimension.
    """
    d, rank = eqn.params["dimension_numbers"], len(eqn.outvars[0].aval.shape)
    operand, indices = shapes(eqn.invars)
    offsets = [int(i) for i in d.offset_dims]
    batch = [i for i in range(rank) if i not in offsets]  # dims of the result <-> of the indices
    gone = {int(i) for i in (*d.collapsed_slice_dims, *d.operand_batching_dims)}
    windows = [i for i in range(len(operand)) if i not in gone]  # <-> offsets
    x_ax, i_ax = ins
    if outs[0] and not x_ax and not i_ax:
        (ax,) = outs
        if ax.dim in offsets:
            x_ax = ax._replace(dim=windows[offsets.index(ax.dim)])
        else:
            i_ax = ax._replace(dim=batch.index(ax.dim))
    if x_ax and x_ax.dim in windows:
        if i_ax:
            return "a lookup whose table and indices carry the axis at places that do not match"
        return _window(eqn, x_ax, offsets[windows.index(x_ax.dim)], n)
    if x_ax and not i_ax:
        i_ax = _index_axis(d, x_ax, indices, operand, n)
    if not i_ax:
        return "a lookup along the axis"
    if i_ax.dim == len(indices) - 1:
        return "the axis is made of the parts of one index"
    return _lookup(eqn, x_ax, i_ax, batch[i_ax.dim], n, origin)


def _index_axis(d, x_ax, indices, operand, n):
    """Where the indices carry the axis of the operand."""
    if x_ax.dim in d.operand_batching_dims:
        at = d.start_indices_batching_dims[list(d.operand_batching_dims).index(x_ax.dim)]
        return x_ax._replace(dim=int(at))
    if x_ax.width > 1:
        return None
    same = [i for i, s in enumerate(indices[:-1]) if s == n]
    return Ax(same[0]) if len(same) == 1 else None


def _window(eqn, ax, out, n):
    """The whole extent of a dimension of the operand goes into the result."""
    p, d = eqn.params, eqn.params["dimension_numbers"]
    if p["slice_sizes"][ax.dim] != eqn.invars[0].aval.shape[ax.dim]:
        return "a window of the axis"
    if ax.dim in d.start_index_map:
        return "a lookup along the axis"
    result = ax._replace(dim=out)
    offsets = slots(d.offset_dims, result)
    params = _params(p, d, ax, offsets, d.start_indices_batching_dims)
    return Flow((ax, None), (result,), lambda t, x, i: rebind(eqn, [x, i], **params))


def _params(p, d, ax, offsets, index_batch, sizes=None):
    """The params of a gather from an operand without the dimension of `ax`."""
    numbers = lax.GatherDimensionNumbers(
        offset_dims=tuple(offsets),
        collapsed_slice_dims=slots(d.collapsed_slice_dims, ax),
        start_index_map=slots(d.start_index_map, ax),
        operand_batching_dims=slots(d.operand_batching_dims, ax),
        start_indices_batching_dims=tuple(index_batch),
    )
    sizes = tuple(sized(p["slice_sizes"], ax, ax.width if sizes is None else sizes))
    return {"dimension_numbers": numbers, "slice_sizes": sizes}


def _lookup(eqn, x_ax, i_ax, out, n, origin):
    """The indices carry the axis: the operand is whole, batched along, or read in order."""
    p, d = eqn.params, eqn.params["dimension_numbers"]
    result = i_ax._replace(dim=out)
    offsets = slots(d.offset_dims, result)
    batch = [int(i) for i in d.start_indices_batching_dims]
    if i_ax.dim in batch:
        at = batch.index(i_ax.dim)
        if x_ax is None:
            x_ax = i_ax._replace(dim=int(d.operand_batching_dims[at]))
        if int(d.operand_batching_dims[at]) != x_ax.dim:
            return "a lookup whose table and indices carry the axis at places that do not match"
        params = _params(p, d, x_ax, offsets, slots(batch, i_ax), 1)
        return Flow((x_ax, i_ax), (result,), lambda t, x, i: rebind(eqn, [x, i], **params))
    if x_ax is None:
        numbers = d._replace(offset_dims=offsets, start_indices_batching_dims=slots(batch, i_ax))
        run = lambda t, x, i: rebind(eqn, [x, i], dimension_numbers=numbers)  # noqa: E731
        return Flow((None, i_ax), (result,), run)
    if i_ax.width > 1 or x_ax.width > 1 or p["slice_sizes"][x_ax.dim] != 1:
        return "a lookup along the axis"
    if x_ax.dim not in d.collapsed_slice_dims or x_ax.dim not in d.start_index_map:
        return "a lookup along the axis"
    part = list(d.start_index_map).index(x_ax.dim)
    if not _counts(origin(1), part, i_ax.dim, n):
        return "a lookup along the axis whose indices do not follow it in order"
    params = _params(p, d, x_ax, offsets, slots(batch, i_ax))

    def run(t, x, i):
        last, parts = i.ndim - 1, i.shape[-1]
        cuts = (0, part), (part + 1, parts)
        rest = [lax.slice_in_dim(i, low, high, axis=last) for low, high in cuts]
        return rebind(eqn, [x, lax.concatenate(rest, last)], **params)

    return Flow((x_ax, i_ax), (result,), run)


def _counts(made, part, dim, n) -> bool:
    """Whether one part of the indices is 0, 1, ... n - 1 along a dimension, whatever the data."""
    column = _column(made, part)
    if column is None or column.shape[dim] != n:
        return False
    steps = np.arange(n).reshape([n if i == dim else 1 for i in range(column.ndim)])
    return bool((column == steps).all())


def _column(made, part):
    """One column of some indices as an array, if nothing but constants goes into it."""
    if isinstance(made, Origin) and made.eqn.primitive.name == "convert_element_type":
        made = made.origin(0) if _evaluate(made) is None else made
    if isinstance(made, Origin) and made.eqn.primitive.name == "concatenate":
        ends = np.cumsum([shape[-1] for shape in shapes(made.eqn.invars)])
        if made.eqn.params["dimension"] == len(shapes(made.eqn.outvars)[0]) - 1:
            piece = int(np.searchsorted(ends, part, side="right"))
            part -= int(ends[piece - 1]) if piece else 0
            made = made.origin(piece)
    value = _evaluate(made)
    return None if value is None else np.asarray(value)[..., part]


def _evaluate(made, depth: int = 12):
    """The value of an expression of constants; None for others, and for big or deep ones."""
    if not isinstance(made, Origin):
        return made
    eqn = made.eqn
    big = any(math.prod(shape) > LARGEST for shape in shapes(eqn.outvars))
    if big or not depth or eqn.effects or compat.bodies(eqn.params) or len(eqn.outvars) != 1:
        return None
    args = [_evaluate(made.origin(i), depth - 1) for i in range(len(eqn.invars))]
    if any(x is None for x in args):
        return None
    with jax.ensure_compile_time_eval():
        return compat.bind(eqn, args)[0]


RULES = {
    "concatenate": _along_another("dimension", "a concatenation along the axis"),
    "pad": pad,
    "slice": cut,
    "rev": rev,
    "sort": _along_another("dimension", "the axis is sorted"),
    "top_k": _along_another("axis", "the largest elements along the axis"),
    "approx_top_k": _along_another("reduction_dimension", "the largest elements along the axis"),
    "split": _along_another("axis", "the axis is split"),
    "dynamic_slice": dynamic_slice,
    "dynamic_update_slice": dynamic_update_slice,
    "gather": gather,
    "call_hi_primitive": hidden,
    **{f"reduce_window_{name}": pool for name in ("sum", "max", "min")},
    **{f"scatter{name}": scatter for name in ("", "-add", "-mul", "-min", "-max", "-sub")},
    **{f"scatter_{name}": scatter for name in ("add", "mul", "min", "max", "sub")},
}
