"""`written_rows`: rows that Python writes to an array, one after the other, are stacked instead."""

from typing import Any

import numpy as np
from jax import lax
from jax import numpy as jnp

from malleable import compat
from malleable.rewriting.graph.graph import Graph, Node, never
from malleable.rewriting.graph.slices import typed
from malleable.rewriting.passes.buffers import SAME, row_places
from malleable.rewriting.passes.passes import configurable

MOST_ROWS = 4096  # of an array, that are looked at one by one


@configurable
def written_rows(jaxpr: compat.Jaxpr) -> compat.Jaxpr:
    """Stack rows that are written to all places of an array, known ones, one write after the other.

    A row that is read again is the one that was written last.

    >>> from malleable import stage
    >>> def squares(x):
    ...     y = jnp.zeros(3)
    ...     for t in range(3):
    ...         y = y.at[t].set(x * y[t - 1] if t else x)
    ...     return y
    >>> names = {eqn.primitive.name for eqn in written_rows(stage(squares)(2.0).jaxpr).eqns}
    >>> "scatter" in names, "slice" in names
    (False, False)
    """
    graph = Graph.of(jaxpr, never)
    known: dict[int, tuple[int, dict[int, int]]] = {}  # of an array: {place along dim: row}
    for node in graph.order():
        if node.name in ("scatter", "dynamic_update_slice"):
            _remember(graph, node, known)
        elif node.name == "slice" and node.ins[0] in known:
            _read_back(graph, node, *known[node.ins[0]])
    changed = False
    for v, (dim, rows) in known.items():
        n = graph.avals[v].shape[dim]
        if graph.is_used(v) and len(rows) == n and not all(u in known for u in _users(graph, v)):
            shape = (*graph.avals[v].shape[:dim], *graph.avals[v].shape[dim + 1 :])

            def stacked(*xs, shape=shape, dim=dim):
                return jnp.stack([lax.reshape(x, shape) for x in xs], dim)

            like: Any = graph.maker[v]
            new = graph.trace(stacked, [rows[k] for k in range(n)], like, "written_rows")
            graph.replace({v: new[0]})
            changed = True
    return graph.jaxpr() if changed else jaxpr


def _users(graph: Graph, v: int) -> list[int]:
    """What is made of a value; -1 for a result of the program."""
    return [u for node in graph.users(v) for u in node.outs] + [-1] * (v in graph.outputs)


def _remember(graph: Graph, node: Node, known: dict) -> None:
    """What is known of the rows of an array after a write."""
    row, places = row_places(graph, node)
    for dim, index in places.items():
        n = graph.avals[node.outs[0]].shape[dim]
        before = known.get(node.ins[0], (dim, {}))
        if n <= MOST_ROWS and before[0] == dim and 0 <= (at := _place_written(graph, index)) < n:
            known[node.outs[0]] = dim, {**before[1], at: row}
            return


def _read_back(graph: Graph, node: Node, dim: int, rows: dict[int, int]) -> None:
    """The row that was written, in the place of one that is read."""
    first, shape = node.params["start_indices"], graph.avals[node.outs[0]].shape
    of = graph.avals[node.ins[0]].shape
    is_row = shape[dim] == 1 and shape[:dim] + shape[dim + 1 :] == of[:dim] + of[dim + 1 :]
    if is_row and first[dim] in rows:
        same = lambda x: typed([lax.reshape(x, shape)], node.eqn.outvars)  # noqa: E731
        graph.rewrite(node, same, [rows[first[dim]]])


def _place_written(graph: Graph, v: int) -> int:
    """The integer that an index of one element is; -1 where it is not known."""
    while (node := graph.maker[v]) is not None and node.name in SAME:
        v = node.ins[0]
    x = graph.value(v)
    if node is not None or x is None or isinstance(x, compat.Tracer) or np.size(x) != 1:
        return -1
    return int(np.asarray(x).reshape(()))
