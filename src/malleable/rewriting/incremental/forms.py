"""Programs in forms whose dependence can be seen: writes as joins, merged dimensions apart."""

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from malleable import compat
from malleable.programs.evaluate import MOST_EQUATIONS, evaluate
from malleable.programs.evaluate import unrolled as turn_by_turn
from malleable.programs.primitives import kind
from malleable.rewriting.boxes.blocks import compute, identity_of
from malleable.rewriting.boxes.convolutions import from_spectra, of_rasters
from malleable.rewriting.boxes.dependence import SCATTERS, Along, Before, groups, rel, runs_bodies
from malleable.rewriting.boxes.moves import only_what_counts
from malleable.rewriting.boxes.spans import Box, whole, whole_span
from malleable.rewriting.graph.graph import Graph, Node

WRITES: dict[str, Callable] = {  # what is written, of what was there and the block
    "dynamic_update_slice": lambda old, new: new,
    "scatter": lambda old, new: new,
    "scatter-add": lax.add,
    "scatter-mul": lax.mul,
    "scatter-min": lax.min,
    "scatter-max": lax.max,
}
_OF_SCATTER = (
    "scatter_dims_to_operand_dims",
    "inserted_window_dims",
    "scatter_indices_batching_dims",
)
BATCHES: dict[str, Sequence[str]] = {  # how places, what they lack and their batches are called
    "gather": ("start_index_map", "collapsed_slice_dims", "start_indices_batching_dims"),
    **dict.fromkeys(SCATTERS, _OF_SCATTER),
}
MOST = 5  # ends of runs of rows that a constant chooses


def clarify(graph: Graph, known: Callable[[int], Any]) -> None:
    """Rewrite, in place, what hides which rows of a value depend on which others.

    A write of a block at a constant place is a `concatenate`, and so is a choice by a constant
    between rows that were joined; a slice of what was joined is one of its parts. What each row
    looks up or writes in itself, has rows for a batch. Row by row operations on (B * T, ...)
    between a reshape that merges (B, T) and one that parts it again are operations on (B, T, ...).
    known(value): the constant that a value is, or None.
    """
    for node in graph.order():
        empty = {v: graph.avals[v] for v in node.outs if 0 in getattr(graph.avals[v], "shape", ())}
        graph.replace({v: graph.constant(np.zeros(a.shape, a.dtype)) for v, a in empty.items()})
        if node.name == "concatenate":
            _without_empty(graph, node)
        if node.name == "tile":
            graph.rewrite(node, functools.partial(_tiled, node.params["reps"]))
        if node.name == "optimization_barrier":
            graph.replace(dict(zip(node.outs, node.ins, strict=True)))
        if node.name == "reshape" and (order := node.params["dimensions"]) is not None:
            sizes = node.params["new_sizes"]
            graph.rewrite(
                node, lambda x, o=order, n=sizes: [lax.reshape(lax.transpose(x, o), n)]
            )  # in two steps, that a reshape takes the dimensions in another order
    for node in graph.order():
        if node.name in BATCHES:
            _with_batch(graph, node, known)
    for node in graph.order():
        if node.name in WRITES:
            _join(graph, node, known)
        elif node.name == "select_n":
            _choose(graph, node, known)
        elif node.name == "scan":
            _turn_around(graph, node)
        elif node.name in kind("cumulative"):
            _turn_sums_around(graph, node)
    for node in graph.order():
        if node.name == "slice":
            _slice_of_joined(graph, node)
        elif node.name == "reshape":
            _merge_joined(graph, node)
        elif node.name == "rev" and _is_reversed(graph, node.ins[0], node.params["dimensions"]):
            made: Any = graph.maker[node.ins[0]]
            graph.replace({node.outs[0]: made.ins[0]})
        elif node.name == "stack" and "concatenate" in {u.name for u in graph.users(node.outs[0])}:
            axis = node.params["axis"]
            rows = lambda *xs, d=axis: [lax.concatenate([jnp.expand_dims(x, d) for x in xs], d)]  # noqa: E731
            graph.rewrite(node, rows)
    for node in graph.order():
        if node.name == "concatenate":
            _flatten(graph, node)
    parted: dict[int, tuple[int, tuple[int, ...], int]] = {}  # (dim, its sizes, the value)
    for node in graph.order():
        if node.name == "reshape" and node.params.get("dimensions") is None:
            _part_reshape(graph, node, parted)
        elif any(v in parted for v in node.ins) and not runs_bodies(node.eqn):
            _part_rows(graph, node, parted)


def _without_empty(graph: Graph, node: Node) -> None:
    """Leave out, of what is joined, what is empty."""
    parts = [v for v in node.ins if 0 not in graph.avals[v].shape]
    if 0 < len(parts) < len(node.ins) or len(node.ins) == 1:
        d = node.params["dimension"]
        made = graph.trace(lambda *xs: lax.concatenate(xs, d), parts, node) if parts[1:] else parts
        graph.replace({node.outs[0]: made[0]})


def _tiled(reps: Sequence[int], x: Any) -> list:
    rows = [n for pair in zip(reps, x.shape, strict=True) for n in pair]
    full = lax.broadcast_in_dim(x, rows, range(1, len(rows), 2))
    return [full.reshape(*(r * n for r, n in zip(reps, x.shape, strict=True)))]


def _flatten(graph: Graph, node: Node) -> None:
    """Join, with others, at once what was joined before."""
    d, joins = node.params["dimension"], [graph.maker[v] for v in node.ins]
    inner = [j and j.name == "concatenate" and j.params["dimension"] == d for j in joins]
    if any(inner):
        parts = zip(node.ins, joins, inner, strict=True)
        ins = [u for v, j, is_joined in parts for u in (j.ins if j and is_joined else [v])]
        graph.rewrite(node, lambda *xs: [lax.concatenate(xs, d)], ins)


def map_at_once(graph: Graph, length: int) -> None:
    """Write, in place, loops over all rows that have no state as maps over them, as vmap does.

    So a row that looks at all rows, as a query at its keys, is seen to be a row of scores, and
    one that looks at a place, as at the rows of a window, to be looked up there.
    """
    moving = graph.reach(graph.inputs, forward=True)
    for node in graph.order():
        if node.name == "scan":
            view: Any = compat.view(node.eqn)
            consts, carry, _ = view.split(node.ins)
            if not carry and view.length == length and not moving.isdisjoint(consts):
                _map(graph, node, view)


def _map(graph: Graph, node: Node, view: Any) -> None:
    consts, _, xs = view.split(node.ins)
    axes = [None] * len(consts) + [0] * len(xs)
    run = lambda *xs: evaluate(view.body, xs)  # noqa: E731
    body = jax.vmap(run, axes, axis_size=view.length)
    graph.rewrite(node, body)


def unrolled(graph: Graph, v: int) -> bool:
    """Write, in place, the loop that makes a value turn by turn, or as a map; whether it was one.

    So what differs from turn to turn, as the masks of layers or of blocks of keys do, is known.
    """
    node = graph.maker[v]
    if node is None or node.name != "scan":
        return False
    view: Any = compat.view(node.eqn)
    if not view.split(node.ins)[1]:
        _map(graph, node, view)
        return True
    if view.length * len(view.body.eqns) > MOST_EQUATIONS:
        return False
    graph.rewrite(node, functools.partial(turn_by_turn, view))
    return True


def leave_out_zeros(graph: Graph, known: Callable) -> list[Node]:
    """Leave out, in place, ends of kernels that are 0; the convolutions that had some.

    So one that is masked reaches no further than its mask lets it.
    """
    every = graph.order()
    return [n for n in every if n.name == "conv_general_dilated" and _trim(graph, n, known)]


def in_other_words(graph: Graph, inputs: Sequence[int], length: int, known: Callable) -> list[Node]:
    """Rewrite, in place, what hides that some rows do not count; what masks them by numbers.

    inputs: those that run in time.
    """
    moving = graph.reach(inputs, forward=True)
    done = from_spectra(graph, moving, known) + _without_own(graph)
    of_rasters(graph, moving, length, functools.partial(_is_zero, graph, known=known))
    return done + only_what_counts(graph, known)


def ends_first(graph: Graph, length: int, known: Callable[[int], Any]) -> None:
    """Put, in place, what is joined behind rows, or behind the columns of scores, in front of them.

    So what each row knows, as a sink of attention, is none of a later row. What is made of them
    goes on in this order, up to sums, and to slices of one or the other.
    """
    turned: dict[int, tuple[int, int, int]] = {}  # (dim, size of the end, the value with it first)
    moving = graph.reach(graph.inputs, forward=True)
    for node in graph.order():
        if node.name == "concatenate":
            d, shapes = node.params["dimension"], [graph.avals[v].shape for v in node.ins]
            is_known = shapes[0].count(length) > 1 or moving.isdisjoint(node.ins[1:])
            if is_known and shapes[0][d] == length:
                join = lambda x, *ends, d=d: lax.concatenate([*ends, x], d)  # noqa: E731
                (new,) = graph.trace(join, node.ins, node)
                turned[node.outs[0]] = d, sum(shape[d] for shape in shapes[1:]), new
        elif any(v in turned for v in node.ins) and not runs_bodies(node.eqn):
            _with_end_first(graph, node, turned, known)


def _with_end_first(graph: Graph, node: Node, turned: dict, known: Callable) -> None:
    tables = rel(node.eqn)
    found = {
        (tables[k][turned[v][0]], *turned[v][:2]) for k, v in enumerate(node.ins) if v in turned
    }
    (entry, d, by), *others = found
    ins = [turned[v][2] if v in turned else v for v in node.ins]
    again = lambda: graph.trace(lambda *xs: compat.bind(node.eqn, xs), ins, node)  # noqa: E731
    n, p = graph.avals[ins[0]].shape[d] - by if node.name == "slice" else 0, node.params
    match entry:
        case None if node.name in kind("reduce") - {"reduce"} or _are_contracted(node, turned):
            graph.replace(dict(zip(node.outs, again(), strict=True)))
        case Along() if n and (p["limit_indices"][d] <= n or p["start_indices"][d] >= n):
            ends = ("start_indices", "limit_indices")
            move = by if p["limit_indices"][d] <= n else -n
            cut = {end: _with(p[end], d, p[end][d] + move) for end in ends}
            eqn = node.eqn.replace(params={**p, **cut})
            graph.rewrite(node, lambda x: compat.bind(eqn, [x]), ins)
        case Along(o, 1, 0, 0) if not others and all(
            graph.avals[u].shape[o] == graph.avals[v].shape[d]
            for u in node.outs
            for v in node.ins
            if v in turned
        ):
            for k, v in enumerate(node.ins):
                for a in [a for a, e in enumerate(tables[k]) if v not in turned and e == Along(o)]:
                    if known(v) is None:
                        return
                    ins[k] = graph.trace(lambda x, a=a: jnp.roll(x, by, a), [v], node)[0]
            turned.update({v: (o, by, new) for v, new in zip(node.outs, again(), strict=True)})


def _are_contracted(node: Node, turned: Mapping) -> bool:
    """Whether a product adds up, of both operands, the dimension that was turned."""
    if node.name != "dot_general":
        return False
    pairs = zip(*node.params["dimension_numbers"][0], strict=True)
    return tuple(turned[v][0] for v in node.ins if v in turned) in pairs


def _trim(graph: Graph, node: Node, known: Callable) -> bool:
    numbers, kernel = node.params["dimension_numbers"], node.ins[1]
    zero = _is_zero(graph, kernel, known)
    if zero is None:
        return False
    spatial, cuts = numbers.rhs_spec[2:], []
    for d in spatial:
        taps = np.flatnonzero(~zero.all(axis=tuple(a for a in range(zero.ndim) if a != d)))
        cuts.append((int(taps[0]), int(taps[-1]) + 1) if len(taps) else (0, zero.shape[d]))
    if all(cut == (0, zero.shape[d]) for cut, d in zip(cuts, spatial, strict=True)):
        return False
    padding = [
        (lo - step * a, hi - step * (zero.shape[d] - b))
        for (lo, hi), step, d, (a, b) in zip(
            node.params["padding"], node.params["rhs_dilation"], spatial, cuts, strict=True
        )
    ]
    eqn = node.eqn.replace(params={**node.params, "padding": tuple(padding)})

    def trimmed(x, w):
        for d, (a, b) in zip(spatial, cuts, strict=True):
            w = lax.slice_in_dim(w, a, b, axis=d)
        return compat.bind(eqn, [x, w])

    graph.rewrite(node, trimmed)
    return True


def _is_zero(graph: Graph, v: int, known: Callable) -> np.ndarray | None:
    """Where a value is 0 whatever else it is made of; None where nothing is known."""
    shape, node = graph.avals[v].shape, graph.maker[v]
    if (c := known(v)) is not None:
        return np.broadcast_to(c == 0, shape)
    if node is None or node.name not in ("mul", "convert_element_type"):
        return None
    found = [zero for u in node.ins if (zero := _is_zero(graph, u, known)) is not None]
    return functools.reduce(np.logical_or, found) if found else None


def _with_batch(graph: Graph, node: Node, known: Callable) -> None:
    """What each row looks up, or writes, in itself, as x[arange(n), i]: rows are a batch of it."""
    numbers, (x, indices, *_) = node.params["dimension_numbers"], node.ins
    to_dims, gone, batches = (getattr(numbers, name) for name in BATCHES[node.name])
    shape, of = graph.avals[x].shape, graph.avals[indices].shape
    pairs = dict(zip(numbers.operand_batching_dims, batches, strict=True))
    rest = []
    for c, (d, places) in enumerate(zip(to_dims, _columns(graph, indices, known), strict=True)):
        free = [k for k in range(len(of) - 1) if of[k] == shape[d] > 1 and k not in pairs.values()]
        rows = [np.indices(of[:-1], sparse=True)[k] for k in free] if places is not None else []
        same = [k for k, row in zip(free, rows, strict=False) if (places == row).all()]
        if d in gone and same:
            pairs[d] = same[0]
        else:
            rest.append(c)
    if len(rest) == len(to_dims):
        return
    values = [to_dims[c] for c in rest], [d for d in gone if d not in pairs]
    every = (*values, [pairs[d] for d in sorted(pairs)])
    named = dict(zip(BATCHES[node.name], map(tuple, every), strict=True))
    new = numbers._replace(operand_batching_dims=tuple(sorted(pairs)), **named)
    eqn = node.eqn.replace(params={**node.params, "dimension_numbers": new})

    def batched(x, places, *blocks):
        cut = [lax.slice_in_dim(places, c, c + 1, axis=-1) for c in rest]
        left = lax.concatenate(cut, len(of) - 1) if cut else jnp.zeros((*of[:-1], 0), places.dtype)
        return compat.bind(eqn, [x, left, *blocks])

    graph.rewrite(node, batched)


def _columns(graph: Graph, v: int, known: Callable) -> list[np.ndarray | None]:
    """Of places in several dimensions, those in each of them; None where they are not known."""
    *batch, n = graph.avals[v].shape
    if (c := known(v)) is not None:
        return list(np.moveaxis(np.broadcast_to(c, (*batch, n)), -1, 0))
    join = graph.maker[v]
    if join is None or join.name != "concatenate" or len(join.ins) != n:
        return [None] * n
    each = map(known, join.ins)
    return [None if c is None else np.broadcast_to(c, (*batch, 1))[..., 0] for c in each]


def _join(graph: Graph, node: Node, known: Callable) -> None:
    x, block, starts = _block_and_place(graph, node, known)
    shape, write = tuple(graph.avals[x].shape), WRITES[node.name]
    if starts is None or block is None:
        return
    sizes = _block_sizes(graph, node, block)
    starts = [min(max(s, 0), n - k) for s, n, k in zip(starts, shape, sizes, strict=True)]
    dims = [d for d, (k, n) in enumerate(zip(sizes, shape, strict=True)) if k < n]
    if len(dims) > 1 or 0 in shape or 0 in sizes:
        return

    def joined(x, y):
        y = lax.reshape(y.astype(x.dtype), sizes)
        if not dims:
            return [write(x, y)]
        (d,) = dims
        old = lax.slice_in_dim(x, starts[d], starts[d] + sizes[d], axis=d)
        parts = [
            lax.slice_in_dim(x, 0, starts[d], axis=d),
            write(old, y),
            lax.slice_in_dim(x, starts[d] + sizes[d], shape[d], axis=d),
        ]
        return [lax.concatenate([p for p in parts if p.shape[d]], d)]

    graph.rewrite(node, joined, [x, block])


def _choose(graph: Graph, node: Node, known: Callable) -> None:
    """A choice by a constant: the same of all, or along one dimension, of rows joined along it."""
    which, *cases = node.ins
    if (c := known(which)) is not None and c.size and (c == (first := c.flat[0])).all():
        graph.replace({node.outs[0]: cases[int(first)]})
        return
    joins = [graph.maker[v] for v in cases]
    dims = {n.params["dimension"] for n in joins if n is not None and n.name == "concatenate"}
    if not dims or c is None or c.ndim != len(graph.avals[cases[0]].shape):
        return
    (d, *others), n = sorted(dims), graph.avals[cases[0]].shape[min(dims)]
    c = c.astype(int)
    if others or any(k > 1 for a, k in enumerate(c.shape) if a != d) or c.shape[d] != n:
        return
    c = c.reshape(n)
    ends = [0, *(np.flatnonzero(np.diff(c)) + 1).tolist(), n]
    if len(ends) > MOST:
        return

    def joined(*xs):
        runs = itertools.pairwise(ends)
        return [lax.concatenate([lax.slice_in_dim(xs[c[a]], a, b, axis=d) for a, b in runs], d)]

    graph.rewrite(node, joined, cases)


def _turn_around(graph: Graph, node: Node) -> None:
    """A loop that runs backwards over rows that were reversed, as one that runs forwards."""
    view: Any = compat.view(node.eqn)
    consts, carry, xs = view.split(node.ins)
    if not view.reverse or not any(_is_reversed(graph, v, (0,)) for v in xs):
        return
    n, m = len(consts), len(consts) + len(carry)
    eqn = node.eqn.replace(params={**node.params, "reverse": False})

    def forwards(*args):
        outs = compat.bind(eqn, [*args[:m], *(lax.rev(x, (0,)) for x in args[m:])])
        return [*outs[: m - n], *(lax.rev(y, (0,)) for y in outs[m - n :])]

    graph.rewrite(node, forwards)


def _turn_sums_around(graph: Graph, node: Node) -> None:
    """A cumulative operation over rows that were reversed, as one over them the other way round."""
    d, p = node.params["axis"], node.params
    if _is_reversed(graph, node.ins[0], (d,)):
        eqn = node.eqn.replace(params={**p, "reverse": not p["reverse"]})
        turned = lambda x: [lax.rev(compat.bind(eqn, [lax.rev(x, (d,))])[0], (d,))]  # noqa: E731
        graph.rewrite(node, turned)


def _without_own(graph: Graph) -> list[Node]:
    """Write a cumulative sum less its own last term, in place, as that of the terms before."""
    found = []
    for node in graph.order():
        made = graph.maker[node.ins[0]] if node.name == "sub" else None
        if made is None or made.name != "cumsum" or made.ins[0] != node.ins[1]:
            continue
        run, d = made.eqn, made.params["axis"]
        pads = [(0, 0, 0)] * len(graph.avals[node.ins[1]].shape)
        pads[d] = (-1, 1, 0) if made.params["reverse"] else (1, -1, 0)

        def before(_, x, run=run, pads=pads):
            return [lax.pad(compat.bind(run, [x])[0], jnp.zeros((), x.dtype), pads)]

        graph.rewrite(node, before)
        found.append(node)
    return found


def _is_reversed(graph: Graph, v: int, dims: tuple[int, ...]) -> bool:
    node = graph.maker[v]
    return node is not None and node.name == "rev" and tuple(node.params["dimensions"]) == dims


def _slice_of_joined(graph: Graph, node: Node) -> None:
    join = graph.maker[node.ins[0]]
    if join is None or join.name != "concatenate" or {*(node.params["strides"] or ())} - {1}:
        return
    d, at, parts = join.params["dimension"], 0, []
    first, last = node.params["start_indices"][d], node.params["limit_indices"][d]
    for v in join.ins:
        n = graph.avals[v].shape[d]
        if first < at + n and at < last:
            parts.append((v, max(first - at, 0), min(last - at, n)))
        at += n
    if not parts:
        return
    eqn, p = node.eqn, node.params

    def sliced(*xs):
        cut = [
            compat.bind(eqn.replace(params={**p, "start_indices": lo, "limit_indices": hi}), [x])[0]
            for x, (_, a, b) in zip(xs, parts, strict=True)
            for lo, hi in [(_with(p["start_indices"], d, a), _with(p["limit_indices"], d, b))]
        ]
        return [lax.concatenate(cut, d)] if len(cut) > 1 else cut

    graph.rewrite(node, sliced, [v for v, *_ in parts])


def _merge_joined(graph: Graph, node: Node) -> None:
    """Chunks that were stacked, and are put one behind another: they are joined."""
    join, shape = graph.maker[node.ins[0]], tuple(graph.avals[node.outs[0]].shape)
    if join is None or join.name != "concatenate" or node.params["dimensions"] is not None:
        return
    before = tuple(graph.avals[node.ins[0]].shape)
    for mine, theirs in groups(before, shape) if 0 not in before else ():
        mine, theirs = [d for d in mine if before[d] > 1], [d for d in theirs if shape[d] > 1]
        if len(mine) == 2 and len(theirs) == 1 and mine[0] == join.params["dimension"]:
            o, by = theirs[0], before[mine[1]]

            def joined(*xs, d=mine[0], o=o, by=by):
                sizes = [(*shape[:o], x.shape[d] * by, *shape[o + 1 :]) for x in xs]
                return [lax.concatenate(list(map(lax.reshape, xs, sizes)), o)]

            graph.rewrite(node, joined, join.ins)
            return


def _with(places: Sequence[int], d: int, at: int) -> tuple[int, ...]:
    return (*places[:d], at, *places[d + 1 :])


def _block_sizes(graph: Graph, node: Node, block: int) -> list[int]:
    """The sizes of the block that is written, in all dimensions of the array."""
    sizes = list(graph.avals[block].shape)
    if node.name.startswith("scatter"):
        for d in sorted(node.params["dimension_numbers"].inserted_window_dims):
            sizes.insert(d, 1)
    return sizes


def _block_and_place(
    graph: Graph, node: Node, known: Callable
) -> tuple[int, int | None, list[int] | None]:
    """(the array, the block, the place that is written); None where it is not one known block."""
    if node.name == "dynamic_update_slice":
        x, block, *starts = node.ins
        found = [known(v) for v in starts]
        if any(s is None for s in found):
            return x, None, None
        shape = graph.avals[x].shape
        places = [int(s) for s in found]  # negative ones were counted from the end already
        return x, block, [min(max(s, 0), n) for s, n in zip(places, shape, strict=True)]
    x, indices, block = node.ins
    numbers, place = node.params["dimension_numbers"], known(indices)
    if place is None or place.ndim != 1 or numbers.operand_batching_dims:
        return x, None, None
    starts = [0] * len(graph.avals[x].shape)
    for s, d in zip(place, numbers.scatter_dims_to_operand_dims, strict=True):
        starts[d] = int(s)
    sizes = _block_sizes(graph, node, block)
    ends = zip(starts, sizes, graph.avals[x].shape, strict=True)
    if any(s < 0 or s + k > m for s, k, m in ends):
        return x, None, None
    return x, block, starts


# ---------------------------------------------------------------- merged dimensions


def _part_reshape(graph: Graph, node: Node, parted: dict) -> None:
    (x,), (y,) = node.ins, node.outs
    before, after = (tuple(graph.avals[v].shape) for v in (x, y))
    if 0 in before:
        return
    if x in parted:
        d, sizes, value = parted[x]
        for mine, theirs in groups(before, after):
            if d not in mine or [k for k in mine if before[k] > 1] != [d]:
                continue
            large = [k for k in theirs if after[k] > 1]
            if tuple(after[k] for k in large) == sizes:
                graph.replace({y: _with_shape(graph, node, value, after)})
            elif len(large) == 1:
                shape = (*after[: large[0]], *sizes, *after[large[0] + 1 :])
                parted[y] = large[0], sizes, _with_shape(graph, node, value, shape)
        return
    merged = [
        (theirs, [before[k] for k in mine if before[k] > 1])
        for mine, theirs in groups(before, after)
    ]
    merged = [
        ([k for k in theirs if after[k] > 1], sizes) for theirs, sizes in merged if len(sizes) > 1
    ]
    if len(merged) == 1 and len(merged[0][0]) == 1:
        ((d,), sizes) = merged[0]
        shape = (*after[:d], *sizes, *after[d + 1 :])
        parted[y] = d, tuple(sizes), _with_shape(graph, node, x, shape)


def _cumulative(node: Node, d: int, size: int, x: Any) -> Any:
    """A cumulative operation over two dimensions in a row: in groups of the second, then on."""
    run = lambda x, axis: compat.bind(  # noqa: E731
        node.eqn.replace(params={**node.params, "axis": axis}), [x]
    )[0]
    ends = run(lax.slice_in_dim(run(x, d + 1), size - 1, size, axis=d + 1), d)
    before = jnp.full_like(lax.slice_in_dim(ends, 0, 1, axis=d), identity_of(node.name, x.dtype))
    before = lax.concatenate([before, lax.slice_in_dim(ends, 0, -1, axis=d)], d)
    return lax.slice_in_dim(run(lax.concatenate([before, x], d + 1), d + 1), 1, None, axis=d + 1)


def _with_shape(graph: Graph, node: Node, v: int, shape: Sequence[int]) -> int:
    return graph.trace(lambda x: lax.reshape(x, shape), [v], node)[0]


def _part_rows(graph: Graph, node: Node, parted: dict) -> None:
    """The node on operands whose merged dimension is apart, if it goes along that row by row."""
    tables = rel(node.eqn)
    ends = {(tables[k][parted[v][0]], parted[v][1]) for k, v in enumerate(node.ins) if v in parted}
    (entry, sizes), *others = ends
    if isinstance(entry, Before) and len(sizes) == 2 and not node.params["reverse"]:
        run = functools.partial(_cumulative, node, entry.dim, sizes[1])
        (new,) = graph.trace(run, [parted[node.ins[0]][2]], node)
        parted[node.outs[0]] = entry.dim, sizes, new
    if others or not isinstance(entry, Along) or entry != Along(entry.dim):
        return
    o, axes = entry.dim, []
    for entries in tables:
        mine = [d for d, e in enumerate(entries) if e is not None and e.dim == o]
        if len(mine) > 1 or any(entries[d] != entry for d in mine):
            return
        axes.append(mine[0] if mine else None)
    outs = [tuple(graph.avals[v].shape) for v in node.outs]
    if any(len(shape) <= o or shape[o] != math.prod(sizes) for shape in outs):
        return
    box = list(whole(outs[0]))
    box[o] = whole_span(sizes[-1])

    def one(*xs):
        def read(k: int, part: Box, fill: Any) -> Any:  # all rows, and a part of other dimensions
            first = [span.start.offset for span in part]
            ends = [at + span.size for at, span in zip(first, part, strict=True)]
            return lax.slice(xs[k], first, ends)

        return compute(node.eqn, tuple(box), read, {}, lambda k: None)

    def apart(*xs):
        f = functools.reduce(lambda f, _: jax.vmap(f, axes, o), sizes[:-1], one)
        return f(*xs)

    def operand(v: int, d: int | None) -> int:
        if d is None or (v in parted and parted[v][0] == d):
            return v if d is None else parted[v][2]
        shape: Sequence[Any] = graph.avals[v].shape
        return _with_shape(graph, node, v, (*shape[:d], *sizes, *shape[d + 1 :]))

    ins = [operand(v, d) for v, d in zip(node.ins, axes, strict=True)]
    for v, new in zip(node.outs, graph.trace(apart, ins, node), strict=True):
        parted[v] = o, sizes, new
