"""One equation on a block of its result: the same primitive, with the sizes of the block."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jax import lax
from jax import numpy as jnp

from malleable import compat
from malleable.programs.types import identity
from malleable.rewriting.boxes.dependence import WINDOWS, Entry, Known, Place, needs, rel
from malleable.rewriting.boxes.spans import Box, Span, sizes_of, whole_span
from malleable.rewriting.graph.slices import shapes

MOST_TAPS = 8  # of a dilated convolution, that are read one by one

# read(operand, box, fill): the block of an operand; fill stands for what is beyond its edges
Read = Callable[[int, Box, Any], Any]


def compute(
    eqn: compat.Eqn, box: Box, read: Read, at: Mapping[str, Any], known: Known
) -> list[Any]:
    """The blocks of the results of an equation at a box; `at`: the values of the symbols."""
    name, p = eqn.primitive.name, eqn.params
    out = tuple(shapes(eqn.outvars)[0])
    tables = rel(eqn, known)
    boxes = needs(eqn, tables, box)
    sizes = sizes_of(box)
    part = [d for d, (span, n) in enumerate(zip(box, out, strict=True)) if span != whole_span(n)]

    def bind(xs: Sequence, **changed) -> list:
        with compat.source(eqn):
            return compat.bind(eqn.replace(params={**p, **changed}) if changed else eqn, xs)

    def operands(fill: Any = 0) -> list:
        return [read(k, b, fill) for k, b in enumerate(boxes)]

    match name:
        case "iota":
            dim = p["dimension"]
            rows = lax.broadcasted_iota(p["dtype"], sizes, dim)
            return [rows + jnp.asarray(box[dim].start.value(at)).astype(p["dtype"])]
        case "pad":
            fill = read(1, (), 0)
            x = read(0, boxes[0], fill)
            rows = [(0, 0, 0) if d in part else row for d, row in enumerate(p["padding_config"])]
            return [lax.pad(x, fill, rows)]
        case "broadcast_in_dim":
            return bind(operands(), shape=sizes)
        case "reshape":
            return [_reshape(operands()[0], eqn, tables[0], boxes[0], box, at)]
        case "conv_general_dilated":
            spatial = list(p["dimension_numbers"].out_spec[2:])
            if (taps := _taps(p, boxes, sizes, part)) is not None:
                d, places = taps
                x = lax.concatenate([read(0, one, 0) for one in places], d)
                rows = [(0, 0)] * len(spatial)
                y = _at_a_place(p | {"rhs_dilation": (1,)}, x, read(1, boxes[1], 0), rows, sizes)
                return [y]
            x, w = operands()
            padding = _padding(spatial, part, p["padding"])
            if (y := _at_a_place(p, x, w, padding, sizes)) is not None:
                return [y]
            return bind([x, w], padding=padding)
        case "slice":
            (x,), strides = operands(), p["strides"] or [1] * len(out)
            return [lax.slice(x, [0] * x.ndim, x.shape, strides) if {*strides} - {1} else x]
        case "dynamic_slice":
            x, *starts = operands()
            if None not in tables[0]:
                return [x]
            rows = zip(tables[0], starts, strict=True)
            starts = [s if e is None else jnp.zeros_like(s) for e, s in rows]
            return bind([x, *starts], slice_sizes=sizes)
        case "concatenate" if p["dimension"] in part:
            return [_concatenate(operands(), eqn, box, at)]
        case "dot_general" if _is_a_row_by_a_table(p, sizes, boxes):
            x, y = operands()
            return [_row_by_table(p, x, y, sizes)]
        case "gather":
            slices = [min(n, s.size) for n, s in zip(p["slice_sizes"], boxes[0], strict=True)]
            return bind(operands(), slice_sizes=tuple(slices))
        case _ if name in WINDOWS:
            first: Any = eqn.invars[0].aval
            least = identity_of(name, first.dtype)
            return bind(operands(least), padding=_padding(range(len(out)), part, p["padding"]))
    return bind(operands())


def identity_of(name: str, dtype) -> Any:
    """The identity of a reduction, a cumulative one, or one of windows, as an array.

    >>> float(identity_of("reduce_max", jnp.float32)), int(identity_of("cumprod", jnp.int32))
    (-inf, 1)
    """
    return jnp.asarray(identity(name, dtype), dtype)


def _is_a_row_by_a_table(p, sizes: Sequence[int], boxes: Sequence[Box]) -> bool:
    """Whether the second operand of a product is one row, and the first a table of rows of it."""
    ((contracted, _), (batch, _)), n = p["dimension_numbers"], len(boxes[0])
    free = len(batch) + n - len(contracted) - len(batch)
    rows, columns = math.prod(sizes[free:]), math.prod(sizes[len(batch) : free])
    is_placed = p.get("out_sharding") is not None
    return rows == 1 < columns and n - 1 not in (*contracted, *batch) and not is_placed


def _row_by_table(p, x, y, sizes: Sequence[int]) -> Any:
    """A product with its operands in the other order: XLA:CPU would transpose the table first."""
    ((c1, c2), (b1, b2)), precision = p["dimension_numbers"], p["precision"]
    precision = precision[::-1] if isinstance(precision, tuple) else precision
    made = lax.dot_general(
        y, x, ((c2, c1), (b2, b1)), precision, preferred_element_type=p["preferred_element_type"]
    )
    return lax.reshape(made, sizes)  # nothing moves: of one of both there is one


def _padding(dims, part, padding):
    """What is read over the edge is not padded again."""
    return tuple((0, 0) if d in part else pads for d, pads in zip(dims, padding, strict=True))


def _taps(
    p, boxes: Sequence[Box], sizes: Sequence[int], part: Sequence[int]
) -> tuple[int, list[Box]] | None:
    """Of a dilated convolution along one dimension, at a place: the places that it reads."""
    numbers, box = p["dimension_numbers"], boxes[0]
    (step, *others), (_, _, *dims) = p["rhs_dilation"], numbers.lhs_spec
    if others or step == 1 or sizes[numbers.out_spec[2]] > 1 or numbers.out_spec[2] not in part:
        return None
    n, plain = boxes[1][numbers.rhs_spec[2]].size, p["feature_group_count"] == 1
    plain = plain and p["lhs_dilation"] == (1,) and boxes[1][numbers.rhs_spec[1]].size > 0
    (d,), taps = dims, range(0, n * step, step)
    start, size = box[d]
    if not plain or p["batch_group_count"] > 1 or n > MOST_TAPS or size != taps[-1] + 1:
        return None
    return d, [(*box[:d], Span(start.moved(1, at), 1), *box[d + 1 :]) for at in taps]


def _at_a_place(p, x, w, padding, sizes: Sequence[int]) -> Any:
    """A convolution of which one place is computed is a product; None where it is not."""
    numbers, groups = p["dimension_numbers"], p["feature_group_count"]
    one = all(sizes[d] == 1 for d in numbers.out_spec[2:])
    plain = p["batch_group_count"] == 1 and {*padding} <= {(0, 0)} and {*p["lhs_dilation"]} <= {1}
    features = w.shape[numbers.rhs_spec[0]]
    if not one or not plain or groups not in (1, features) or w.shape[numbers.rhs_spec[1]] == 0:
        return None
    if groups > 1 and w.shape[numbers.rhs_spec[1]] > 1:
        return None
    (_, c, *dims), (o, i, *taps) = numbers.lhs_spec, numbers.rhs_spec
    for d, tap, step in zip(dims, taps, p["rhs_dilation"], strict=True):
        x = lax.slice_in_dim(x, 0, (w.shape[tap] - 1) * step + 1, step, d)
    if groups > 1:  # a channel at a time
        w = lax.squeeze(w, (i,))
        o, *taps = (d - (d > i) for d in (o, *taps))
        contracted, batch = (dims, taps), ((c,), (o,))
    else:
        contracted, batch = ((c, *dims), (i, *taps)), ((), ())
    y = lax.dot_general(
        x,
        w,
        (contracted, batch),
        precision=p["precision"],
        preferred_element_type=p["preferred_element_type"],
    )
    if (groups > 1) != (numbers.out_spec[0] > numbers.out_spec[1]):
        y = y.T
    return lax.reshape(y, sizes)


def _reshape(x, eqn, entries: Sequence[Entry], read: Box, box: Box, at):
    """Reshape the block that was read, and cut from it what it has too much of."""
    out = shapes(eqn.outvars)[0]
    if math.prod(sizes_of(box)) == x.size:
        return lax.reshape(x, sizes_of(box))
    sizes = list(out)
    starts: list = [jnp.int32(0)] * len(out)
    for d, entry in enumerate(entries):
        match entry:
            case Place(dim, by):
                sizes[dim] = read[d].size * by
                starts[dim] = box[dim].start.value(at) - read[d].start.value(at) * by
            case None:
                pass
            case _:
                sizes[entry.dim] = box[entry.dim].size
    wanted = sizes_of(box)
    y = lax.reshape(x, tuple(sizes))
    return (
        y
        if tuple(sizes) == wanted
        else lax.dynamic_slice(y, starts, wanted, allow_negative_indices=False)
    )


def _concatenate(xs, eqn, box: Box, at):
    """Of each operand the same rows, which lie in at most one of them."""
    dim = eqn.params["dimension"]
    place = box[dim].start.value(at) + lax.broadcasted_iota(jnp.int32, sizes_of(box), dim)
    first, *rest = xs
    low, *lengths = (shape[dim] for shape in shapes(eqn.invars))
    for x, n in zip(rest, lengths, strict=True):
        first = jnp.where(place < low, first, x)
        low += n
    return first


def cut(x: Any, box: Box, fill: Any, at: Mapping[str, Any], limits: Mapping) -> Any:
    """The block of an array at a box; `fill` where the box reaches over the edge."""
    inside = [span.is_inside(n, limits) for span, n in zip(box, x.shape, strict=True)]
    sizes = [s.size if here else n for s, here, n in zip(box, inside, x.shape, strict=True)]
    if tuple(sizes) != x.shape:
        starts = [
            s.start.value(at) if here else jnp.int32(0) for s, here in zip(box, inside, strict=True)
        ]
        x = lax.dynamic_slice(x, starts, sizes, allow_negative_indices=False)
    for dim, (span, here) in enumerate(zip(box, inside, strict=True)):
        if not here:
            n = x.shape[dim]
            if n == 0:
                shape = [span.size if d == dim else k for d, k in enumerate(x.shape)]
                x = jnp.full(shape, fill, x.dtype)
                continue
            place = span.start.value(at) + jnp.arange(span.size)
            x = rows_at(x, jnp.clip(place, 0, n - 1), dim)
            x = filled(x, dim, place, n, span.start.bounds(limits), fill)
    return x


def rows_at(x: Any, places: Any, dim: int) -> Any:
    """The rows of an array at places inside of it, along a dimension."""
    if places.shape == (1,):
        return lax.dynamic_slice_in_dim(x, places[0], 1, dim, allow_negative_indices=False)
    at = (*[slice(None)] * dim, places.astype(jnp.uint32))  # so that none is counted from the end
    return x.at[at].get(mode="promise_in_bounds")


def filled(x: Any, dim: int, places: Any, n: int, bounds: tuple[int, int], fill: Any) -> Any:
    """Rows of places from `bounds` on, with `fill` where a place is not one of 0 ... n - 1."""
    tests = [places >= 0] if bounds[0] < 0 else []
    tests += [places < n] if bounds[1] + places.size > n else []
    if not tests:
        return x
    is_there = tests[0] if len(tests) == 1 else tests[0] & tests[1]
    is_there = is_there.reshape([-1 if d == dim else 1 for d in range(x.ndim)])
    return jnp.where(is_there, x, jnp.asarray(fill, x.dtype))


def put(x: Any, block: Any, box: Box, at: Mapping[str, Any]) -> Any:
    """An array with a block at a box, which lies inside of it."""
    starts = [span.start.value(at) for span in box]
    return lax.dynamic_update_slice(x, block, starts, allow_negative_indices=False)
