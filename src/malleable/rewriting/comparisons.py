"""Values that are compared with one of themselves: x == max(x), as the gradient of a maximum does.

Both sides must come of one evaluation. Where x is worked out twice, in two loops, its last bit may
differ, and what was the largest element is equal to none.
"""

from jax import numpy as jnp

from malleable.rewriting.graph import Graph, Node
from malleable.rewriting.region import Region

COMPARED = frozenset(("eq", "ne", "lt", "le", "gt", "ge"))
MOVED = frozenset(
    (
        "broadcast_in_dim",
        "reshape",
        "squeeze",
        "transpose",
        "expand_dims",
        "rev",
        "neg",
        "abs",
        "copy",
        "stop_gradient",
        "convert_element_type",
        "select_n",
    )
)  # bit by bit what it was, in another place
PICKED = frozenset(
    (
        "reduce_max",
        "reduce_min",
        "max",
        "min",
        "clamp",
        "cummax",
        "cummin",
        "sort",
        "top_k",
        "slice",
        "dynamic_slice",
        "gather",
        "concatenate",
    )
)  # some of the elements


def compared(graph: Graph) -> dict[Node, frozenset[int]]:
    """Comparisons between elements of one value: {equation: what both sides have them from}.

    >>> from malleable import stage
    >>> graph = Graph.of(stage(lambda x: x**2 == (x**2).max())(jnp.ones(3)).jaxpr)
    >>> [node.name for node in compared(graph)]
    ['eq']
    """
    found = {}
    for name in COMPARED:
        for node in graph.by_name.get(name, ()):
            one, other = node.ins
            if one == other or not _is_float(graph, one):
                continue
            shared = _traced_back(graph, one) & _traced_back(graph, other)
            if any(_is_rounded(graph, v) for v in shared):
                found[node] = frozenset(shared)
    return found


def torn(region: Region, comparisons: dict[Node, frozenset[int]]) -> str:
    """Why a region must not be: it would work out one side of a comparison again; or ""."""
    graph = region.graph
    for node, shared in comparisons.items():
        again = {v for v in map(graph.resolve, shared) if v in region.streams}
        if not again or node not in graph.nodes:
            continue
        if node in region.actions:
            whole = all(v in region.streams for v in node.ins)
        else:
            whole = not any(graph.maker[v] in region.pulled for v in again)
        if not whole:
            return "it is compared with elements of its own, and would be worked out twice"
    return ""


def _is_float(graph: Graph, value: int) -> bool:
    return jnp.issubdtype(graph.avals[value].dtype, jnp.floating)


def _is_rounded(graph: Graph, value: int) -> bool:
    """Whether the value itself is worked out, and not just moved."""
    node = graph.maker[value]
    return node is not None and node.name not in MOVED | PICKED and _is_float(graph, value)


def _traced_back(graph: Graph, value: int) -> set[int]:
    """The values this one has its elements from, itself among them."""
    seen, work = {value}, [value]
    while work:
        node = graph.maker[work.pop()]
        if node is not None and node.name in MOVED | PICKED:
            more = [v for v in node.ins if v not in seen]
            seen.update(more)
            work.extend(more)
    return seen
