"""Programs in forms whose dependence can be seen: writes as joins, merged dimensions apart."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax

from malleable.rewriting.boxes.blocks import compute
from malleable.rewriting.boxes.dependence import Along, groups, rel, runs_bodies
from malleable.rewriting.boxes.spans import whole, whole_span
from malleable.rewriting.graph.graph import Graph, Node

WRITES = {"dynamic_update_slice", "scatter"}


def clarify(graph: Graph, known: Callable[[int], Any]) -> None:
    """Rewrite, in place, what hides which rows of a value depend on which others.

    A write of a block at a constant place is a `concatenate`; row by row operations on
    (B * T, ...) between a reshape that merges (B, T) and one that parts it again are operations
    on (B, T, ...). known(value): the constant that a value is, or None.
    """
    for node in graph.order():
        if node.name in WRITES:
            _join(graph, node, known)
    _of_form(graph)


def _join(graph: Graph, node: Node, known: Callable) -> None:
    x, block, starts = _block_and_place(graph, node, known)
    shape = tuple(graph.avals[x].shape)
    if starts is None or block is None:
        return
    sizes = tuple(graph.avals[block].shape)
    starts = [min(max(s, 0), n - k) for s, n, k in zip(starts, shape, sizes, strict=True)]
    dims = [d for d, (k, n) in enumerate(zip(sizes, shape, strict=True)) if k < n]
    if len(dims) > 1 or 0 in shape or 0 in sizes:
        return

    def joined(x, y):
        y = y.astype(x.dtype)
        if not dims:
            return y
        (d,) = dims
        parts = [
            lax.slice_in_dim(x, 0, starts[d], axis=d),
            y,
            lax.slice_in_dim(x, starts[d] + sizes[d], shape[d], axis=d),
        ]
        return lax.concatenate([p for p in parts if p.shape[d]], d)

    (new,) = graph.trace(joined, [x, block], node)
    graph.replace({node.outs[0]: new})


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
    n = len(graph.avals[x].shape)
    if place is None or place.ndim != 1:
        return x, None, None
    if numbers.inserted_window_dims or numbers.operand_batching_dims:
        return x, None, None
    starts = [0] * n
    for s, d in zip(place, numbers.scatter_dims_to_operand_dims, strict=True):
        starts[d] = int(s)
    ends = zip(starts, graph.avals[block].shape, graph.avals[x].shape, strict=True)
    if any(s < 0 or s + k > m for s, k, m in ends):
        return x, None, None
    return x, block, starts


# ---------------------------------------------------------------- merged dimensions


def _of_form(graph: Graph) -> None:
    parted: dict[int, tuple[int, tuple[int, ...], int]] = {}  # (dim, its sizes, the value)
    for node in graph.order():
        if node.name == "reshape" and node.params.get("dimensions") is None:
            _part_reshape(graph, node, parted)
        elif any(v in parted for v in node.ins) and not runs_bodies(node.eqn):
            _part_rows(graph, node, parted)


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


def _with_shape(graph: Graph, node: Node, v: int, shape: Sequence[int]) -> int:
    return graph.trace(lambda x: lax.reshape(x, shape), [v], node)[0]


def _part_rows(graph: Graph, node: Node, parted: dict) -> None:
    """The node on operands whose merged dimension is apart, if it goes along that row by row."""
    tables = rel(node.eqn)
    ends = {(tables[k][parted[v][0]], parted[v][1]) for k, v in enumerate(node.ins) if v in parted}
    (entry, sizes), *others = ends
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
        return compute(node.eqn, tuple(box), lambda k, part, fill: xs[k], {}, lambda k: None)

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
