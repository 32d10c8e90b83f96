"""Values that are compared with one of themselves: x == max(x), as the gradient of a maximum does.

Both sides must come of one evaluation. Where x is worked out twice, in two loops, its last bit may
differ, and what was the largest element is equal to none.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from operator import or_

from jax import numpy as jnp

from malleable.programs.primitives import has
from malleable.rewriting.graph.graph import Graph, Node
from malleable.rewriting.streaming.region.frontier import FUSIBLE
from malleable.rewriting.streaming.region.region import Region

COMPARED = has("compares")
MOVED = has("exact")  # bit by bit what it was, in another place, or some of the elements


@dataclass(frozen=True)
class Compared:
    """Comparisons between elements of one value, and what both sides have them from."""

    values: list[int]  # a bit stands for each, in this order
    shared: dict[Node, int]  # per comparison, the bits of what both sides have their elements from


def compared(graph: Graph) -> Compared:
    """Comparisons between elements of one value; linear in the equations.

    >>> from malleable import stage
    >>> graph = Graph.of(stage(lambda x: x**2 == (x**2).max())(jnp.ones(3)).jaxpr)
    >>> [node.name for node in compared(graph).shared]
    ['eq']
    """
    order = graph.order() if COMPARED & graph.by_name.keys() else []
    nodes = [node for node in order if node.name in COMPARED and node.ins[0] != node.ins[1]]
    nodes = [node for node in nodes if _is_float(graph, node.ins[0])]
    traced = _traced_back(graph, [v for node in nodes for v in node.ins])
    origins = {v: 1 << i for i, v in enumerate(v for v in traced if graph.maker[v] is None)}
    rounded = 0
    for node in order if nodes else ():
        moved = node.name in MOVED
        for v in node.outs:
            if v in traced:
                bit = origins[v] = 1 << len(origins)
                if moved:
                    origins[v] = reduce(or_, (origins[u] for u in node.ins), bit)
                elif _is_float(graph, v):
                    rounded |= bit  # worked out, and not just moved
    both = {node: origins[node.ins[0]] & origins[node.ins[1]] for node in nodes}
    return Compared(list(origins), {node: bits for node, bits in both.items() if bits & rounded})


def torn(region: Region, comparisons: Compared) -> str:
    """Why a region must not be: it would work out one side of a comparison again; or "".

    So would XLA, for each piece into which what was found is cut.
    """
    graph = region.graph
    if not comparisons.shared:
        return ""
    cut = _traced_back(graph, (v for v, *_ in region.sources()))
    if any(not cut.isdisjoint(node.outs) for node in comparisons.shared):
        return "where it is equal to elements of its own is found outside"
    now = map(graph.resolve, comparisons.values)
    inside = [(1 << i, v) for i, v in enumerate(now) if v in region.streams]
    streamed = reduce(or_, (bit for bit, _ in inside), 0)
    remade = (bit for bit, v in inside if graph.maker[v] in region.pulled)
    pulled = reduce(or_, remade, 0)
    for node, shared in comparisons.shared.items():
        if not shared & streamed or node not in graph.nodes:
            continue
        if node in region.actions:
            whole = all(v in region.streams for v in node.ins)
        else:
            whole = not shared & pulled
        if not whole:
            return "it is compared with elements of its own, and would be worked out twice"
    return ""


def behind(graph: Graph, comparisons: Compared) -> set[int]:
    """The values that both sides of a comparison are worked out from, element by element.

    XLA works out such equations where it needs them, so maybe twice, and rounds them in two ways;
    a reduction it works out once.
    """
    bits = reduce(or_, comparisons.shared.values(), 0)
    sides = (graph.resolve(v) for i, v in enumerate(comparisons.values) if bits >> i & 1)
    return graph.reach(sides, lambda node: node.name in FUSIBLE)


def _is_float(graph: Graph, value: int) -> bool:
    return jnp.issubdtype(graph.avals[value].dtype, jnp.floating)


def _traced_back(graph: Graph, values: Iterable[int]) -> set[int]:
    """The values these have their elements from, themselves among them."""
    return graph.reach(values, lambda node: node.name in MOVED)
