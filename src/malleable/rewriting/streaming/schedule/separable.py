"""Sums of all of a value that an operand comes into linearly: sum_ij x_i y_j, or (sum x) (sum y).

The derivative by y_j is one sum for all j. In blocks, XLA:CPU would work it out for each j of a
block, and under `vmap` it then reads operands where there are none (as in openxla/xla#49085); not
so where a weight that comes from outside goes into that sum as well.
"""

from malleable import compat
from malleable.programs.primitives import has, kind
from malleable.rewriting.graph.graph import Graph, Node
from malleable.rewriting.streaming.region.region import Region
from malleable.rewriting.streaming.schedule.blocks import ALIKE, SHAPING

Dims = frozenset[int]

LINEAR = SHAPING | (has("linear") & kind("elementwise", "same", "cast", "reduce")) - {"select_n"}


def is_separable(region: Region) -> bool:
    """Whether a derivative by an operand is one sum all along an axis that the operand has.

    region: its equations in order. Sums that are weighted from outside do not count.
    """
    graph, moving, varies = region.graph, _moving(region), _varies(region)
    turned = {v: _long(graph, v) for v in (*region.escapes(), *region.results())}
    for node in reversed(list(region.actions)):  # turned: the dims along which cotangents vary
        out = node.outs[0]
        if out not in turned or out not in moving:
            continue
        for i, v in enumerate(node.ins):
            if v not in moving:
                continue
            there = turned[out].union(*(varies[u] for u in _factors(node, i)))
            places = _places(graph, node, v)
            if places is None:
                back = _long(graph, v) if there else frozenset()
            else:
                back = frozenset(d for d, place in places.items() if place in there)
                if not turned[out] and there - {*places.values()} and len(back) < len(places):
                    return True
            turned[v] = turned.get(v, frozenset()) | back
    return False


def _moving(region: Region) -> set[int]:
    """The values that may be differentiated, or by which one may differentiate."""
    graph, made = region.graph, {v for node in region.actions for v in node.outs}
    outside = {v for node in region.actions for v in node.ins} - made
    moving = {v for v in outside if graph.value(v) is None}
    for node in region.actions:
        if node.name != "stop_gradient" and not moving.isdisjoint(node.ins):
            moving.update(node.outs)
    return {v for v in moving if compat.differentiable(graph.avals[v])}


def _varies(region: Region) -> dict[int, Dims]:
    """The dims along which each value may vary: not those along which it was spread out."""
    graph, varies = region.graph, {}
    for node in region.actions:
        for v in node.ins:
            varies.setdefault(v, _long(graph, v))
        for out in node.outs:
            varies[out] = frozenset() if node.ins else _long(graph, out)
            for v in node.ins:
                places = _places(graph, node, v)
                there = None if places is None else {places[d] for d in varies[v] if d in places}
                varies[out] |= _long(graph, out) if there is None else there
    return varies


def _factors(node: Node, i: int) -> list[int]:
    """The operands that are in a derivative by operand i."""
    if node.name in LINEAR:
        return []
    if node.name == "mul" or (node.name == "div" and i == 0):
        return [*node.ins[:i], *node.ins[i + 1 :]]
    return list(node.ins)


def _places(graph: Graph, node: Node, value: int) -> dict[int, int] | None:
    """Where the long dims of an operand are in the result; None if that cannot be said."""
    shape, out = graph.avals[value].shape, graph.avals[node.outs[0]].shape
    long, params = sorted(_long(graph, value)), node.params
    if node.name == "broadcast_in_dim":
        return {d: params["broadcast_dimensions"][d] for d in long}
    if node.name == "transpose":
        return {d: params["permutation"].index(d) for d in long}
    if node.name in ("reshape", "squeeze"):
        there = sorted(_long(graph, node.outs[0]))
        same = [shape[d] for d in long] == [out[d] for d in there]
        return dict(zip(long, there, strict=True)) if same else None
    if node.name == "reduce_sum":
        left = [d for d in range(len(shape)) if d not in params["axes"]]
        return {d: left.index(d) for d in long if d in left}
    if node.name in ALIKE and len(shape) in (0, len(out)):
        return {d: d for d in long}
    return None


def _long(graph: Graph, value: int) -> Dims:
    return frozenset(d for d, n in enumerate(graph.avals[value].shape) if n > 1)
