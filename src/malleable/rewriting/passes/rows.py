"""Rows of an array, stacked again: `stack` takes them from the array at once."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from jax import lax
from jax import numpy as jnp

from malleable.rewriting.graph.graph import Graph
from malleable.rewriting.graph.slices import Ax, typed, unstack


def stack(graph: Graph, values: Sequence[int]):
    """(sources, fun) such that fun(*sources) is the values of a graph, stacked along axis 0.

    Consecutive rows of one array are taken from it at once.
    """
    groups: list[tuple[list, list]] = []
    for v in values:
        slab = _slab(graph, v)
        if groups and slab and _follows(groups[-1][1], slab):
            groups[-1][1].append(slab)
        else:
            groups.append(([v], [slab] if slab else []))
    if len(groups) == len(values):
        return list(values), lambda *xs: jnp.stack(xs)
    sources = [slabs[0].array if slabs[1:] else v for (v,), slabs in groups]

    def fun(*arrays):
        pairs = zip(arrays, groups, strict=True)
        parts = [_rows(x, slabs, graph.avals[values[0]].shape) for x, (_, slabs) in pairs]
        return parts[0] if len(parts) == 1 else lax.concatenate(parts, 0)

    return sources, fun


class Slab(NamedTuple):
    """A part of an array: where it starts, how big it is, whether unit dimensions were dropped."""

    array: int
    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    shape: tuple[int, ...]


def _slab(graph, v):
    """The array of which a value is a part, and which part; or None."""
    node, shape = graph.maker[v], graph.avals[v].shape
    if node is not None and node.name == "unstack":
        whole, axis = graph.avals[node.ins[0]].shape, node.params["axis"]
        starts = tuple(node.outs.index(v) if d == axis else 0 for d in range(len(whole)))
        sizes = tuple(1 if d == axis else s for d, s in enumerate(whole))
        return Slab(node.ins[0], starts, sizes, shape)
    if node is not None and node.name == "squeeze":
        node = graph.maker[node.ins[0]]
    if node is None or node.name != "slice" or set(node.params["strides"] or (1,)) != {1}:
        return None
    sizes = graph.avals[node.outs[0]].shape
    return Slab(node.ins[0], tuple(node.params["start_indices"]), sizes, shape)


def _step(one, two):
    """(dimension, distance) if the second part is the one next to the first, else None."""
    if (one.array, one.sizes, one.shape) != (two.array, two.sizes, two.shape):
        return None
    moved = [
        (d, b - a) for d, (a, b) in enumerate(zip(one.starts, two.starts, strict=True)) if a != b
    ]
    return moved[0] if len(moved) == 1 and abs(moved[0][1]) == one.sizes[moved[0][0]] else None


def _follows(slabs, slab):
    step = _step(slabs[-1], slab) if slabs else None
    return step is not None and (len(slabs) == 1 or step == _step(*slabs[:2]))


def _rows(x, slabs, shape):
    """The parts of an array, stacked; x itself as one row, if there is one part only."""
    if not slabs[1:]:
        return x[None]
    dim, distance = _step(*slabs[:2]) or (0, 0)
    first, last = sorted((slabs[0].starts, slabs[-1].starts))
    limits = [a + s for a, s in zip(last, slabs[0].sizes, strict=True)]
    if x.size != len(slabs) * math.prod(slabs[0].sizes):
        x = lax.slice(x, first, limits)
    x = unstack(x, Ax(dim, inner=abs(distance)), len(slabs))
    x = lax.reshape(x, (len(slabs), *shape))
    return lax.rev(x, (0,)) if distance < 0 else x


def restack(graph, rows):
    """Take an array as it is where its rows, some of `rows`, are stacked again."""
    for node in list(graph.by_name.get("stack", ())):
        if node.params["axis"] == 0 and not rows.isdisjoint(node.ins):
            values, fun = stack(graph, node.ins)
            if len(values) < len(node.ins):
                same = lambda *xs, fun=fun, eqn=node.eqn: typed([fun(*xs)], eqn.outvars)  # noqa: E731
                graph.rewrite(node, same, values, "reroll")
