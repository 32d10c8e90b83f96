"""A reversed axis whose order does not matter: `(h[::-1] * w).sum(0)` is `(h * w[::-1]).sum(0)`.

What a scan stacks and the program reverses can be reduced in the scan all the same, where each
reversed value ends in a reduction of the axis, or is reversed again. What it meets on the way is
reversed instead, as near to where it comes from as possible.
"""

from typing import NamedTuple

from jax import lax

from malleable import compat
from malleable.programs.primitives import kind
from malleable.rewriting.axis.axes import flow
from malleable.rewriting.axis.shapes import ELEMENTWISE
from malleable.rewriting.graph.graph import Graph, Node
from malleable.rewriting.graph.slices import Ax, Flow
from malleable.rewriting.streaming.region.frontier import size

NAME = "push_up_reductions"
CUMULATIVE = kind("cumulative")
REDUCTIONS = kind("reduce") - {"reduce", "reduce_xor"}
MOVES = kind("dims") | {"rev"}
MAPS = ELEMENTWISE | MOVES | REDUCTIONS | CUMULATIVE | {"dot_general"}  # slice by slice


class Turned(NamedTuple):
    """An equation on the same operands, not reversed."""

    node: Node
    params: dict  # those that change
    others: dict[int, Ax]  # operands that must be reversed instead
    outs: dict[int, Ax]  # the results that are reversed; none: it matters no more


def unreverse(graph: Graph, least: float) -> bool:
    """Undo what reverses `least` bytes that scans stack, where the order does not matter.

    Whether there was any. What is reversed instead is no larger.
    """
    if not graph.by_name.get("rev") or not graph.by_name.get("scan"):
        return False
    changed, stacked = False, _stacked(graph)
    for node in graph.order():
        if node.name != "rev" or node not in graph.nodes or len(node.params["dimensions"]) > 1:
            continue
        large = size(graph, node.outs[0]) >= max(1, least)
        if large and node.ins[0] in stacked and _unreverse(graph, node, stacked):
            changed, stacked = True, _stacked(graph)
    return changed


def _stacked(graph: Graph) -> set[int]:
    """The values that depend on what a scan stacks."""
    found: set[int] = set()
    for node in graph.order():
        if node.name == "scan":
            view = compat.view(node.eqn)
            carry = view.split(list(node.ins))[1] if isinstance(view, compat.Scan) else []
            found.update(node.outs[len(carry) :])
    return graph.reach(found, lambda node: node.name != "scan", forward=True)


def _unreverse(graph: Graph, start: Node, stacked: set[int]) -> bool:
    (dim,), (out,) = start.params["dimensions"], start.outs
    reversed_, turned = {out: Ax(dim)}, []
    for node in graph.order():
        if not any(v in reversed_ for v in node.ins):
            continue
        found = _turn(graph, node, reversed_)
        if found is None:
            return False
        for v, ax in found.others.items():
            source = _first(graph, v, ax)
            if source is None:
                continue
            if source in stacked or size(graph, source) > size(graph, out):
                return False
        turned.append(found)
        reversed_.update(found.outs)
    if any(v in reversed_ for v in graph.outputs):
        return False
    twins: dict[int, int] = {out: start.ins[0]}
    for node, params, others, still in turned:
        ins: list = [
            _reverse(graph, v, others[v], start) if v in others else twins.get(v, v)
            for v in node.ins
        ]
        eqn = node.eqn.replace(params=node.params | params) if params else node.eqn
        outs = ins if node.name == "rev" and not still else graph.add(eqn, ins)
        twins.update(zip(node.outs, outs, strict=True))
    ends = [v for node, _, _, still in turned if not still for v in node.outs]
    graph.replace({v: twins[v] for v in ends})
    return True


def _turn(graph: Graph, node: Node, known: dict[int, Ax]) -> Turned | None:
    """What to do at an equation, given the values that are reversed; None where the order stays."""
    if node.eqn.effects or node.name not in MAPS | {"slice"}:
        return None
    ins = tuple(known.get(v) for v in node.ins)
    value, ax = next((v, ax) for v, ax in zip(node.ins, ins, strict=True) if ax)
    n, p = graph.avals[value].shape[ax.dim] // ax.width, node.params
    whole = ax.width == 1
    if node.name == "rev" and ax.dim in p["dimensions"]:
        return Turned(node, {}, {}, {}) if whole and len(p["dimensions"]) == 1 else None
    if node.name == "slice":
        strides = p["strides"] or (1,) * len(p["start_indices"])
        first, last = p["start_indices"][ax.dim], p["limit_indices"][ax.dim]
        if not whole or strides[ax.dim] != 1:
            return None
        at = lambda key, i: (*p[key][: ax.dim], i, *p[key][ax.dim + 1 :])  # noqa: E731
        params = {
            "start_indices": at("start_indices", n - last),
            "limit_indices": at("limit_indices", n - first),
        }
        return Turned(node, params, {}, {} if last - first == 1 else {node.outs[0]: ax})
    if node.name in CUMULATIVE and p["axis"] == ax.dim:
        params = {"reverse": not p["reverse"]}
        return Turned(node, params, {}, {node.outs[0]: ax}) if whole else None
    found = flow(node.eqn, ins, (None,) * len(node.outs), n)
    if isinstance(found, str):
        return None
    if any(a != b for a, b in zip(ins, found.ins, strict=True) if a):
        return None
    pairs = [(v, a) for v, a in zip(node.ins, found.ins, strict=True) if a and v not in known]
    others = dict(pairs)
    if len(others) < len(set(pairs)):
        return None
    if not isinstance(found, Flow):
        return Turned(node, {}, others, {})
    outs = {v: ax for v, ax in zip(node.outs, found.outs, strict=True) if ax}
    return Turned(node, {}, others, outs) if len(outs) == len(node.outs) else None


def _source(graph: Graph, value: int, ax: Ax) -> tuple[Node, int, Ax | None] | None:
    """(the equation that only moves a value, from where, with which axis), if there is one."""
    node = graph.maker[value]
    if node is None or node.name not in MOVES - {"rev"} or len(node.ins) != 1:
        return None
    n = graph.avals[value].shape[ax.dim] // ax.width
    found = flow(node.eqn, (None,), (ax,), n)
    return (node, node.ins[0], found.ins[0]) if isinstance(found, Flow) else None


def _first(graph: Graph, value: int, ax: Ax | None) -> int | None:
    """What has to be reversed for this value to be; None for nothing."""
    while ax is not None and (made := _source(graph, value, ax)) is not None:
        _, value, ax = made
    return None if ax is None else value


def _reverse(graph: Graph, value: int, ax: Ax, like: Node) -> int:
    """A value with this axis reversed: as near to where it comes from as possible."""
    made = _source(graph, value, ax)
    if made is not None:
        node, source, before = made
        if before is not None:
            source = _reverse(graph, source, before, like)
        return graph.add(node.eqn, [source])[0]

    def run(x):
        if ax.width == 1:
            return [lax.rev(x, (ax.dim,))]
        n = x.shape[ax.dim] // ax.width
        shape = (*x.shape[: ax.dim], ax.outer, n, ax.inner, *x.shape[ax.dim + 1 :])
        return [lax.reshape(lax.rev(lax.reshape(x, shape), (ax.dim + 1,)), x.shape)]

    return graph.trace(run, [value], like, NAME)[0]
