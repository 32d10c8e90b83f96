"""Equations that compute the same in other words: squares, unit axes, products of transposes."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from malleable import compat
from malleable.programs.primitives import has, kind

SQUARES = has("squares")
UNIT_AXES = kind("dims") - {"transpose"}


class Transposed(NamedTuple):
    """A transpose that the graph does not have: a product may have it in its dimension numbers."""

    base: int
    axes: tuple[int, ...]  # of the base, one for each of the transpose


def squared(name: str, ins: Sequence, params: dict[str, Any]) -> Any:
    """The operand that an equation multiplies by itself; None of any other."""
    if name == "square" or (name == "integer_pow" and params["y"] == 2):
        return ins[0]
    return ins[0] if name == "mul" and ins[0] == ins[1] else None


def respelled(graph: Any, eqn: compat.Eqn, ins: tuple) -> tuple | None:
    """The results of an equation of the graph that computes what this one would."""
    name = eqn.primitive.name
    if name == "dot_general":
        found = _contractions(graph, eqn.params, ins)
    elif any(isinstance(x, Transposed) for x in ins):
        return None
    elif name == "transpose":
        return (Transposed(ins[0], tuple(eqn.params["permutation"])),)
    elif name in SQUARES and (x := squared(name, ins, eqn.params)) is not None:
        found = (n for n in graph.users(x) if squared(n.name, n.ins, n.params) == x)
    elif name in UNIT_AXES and keeps_order(name, eqn.params, graph.avals[ins[0]], _out(eqn)):
        found = (
            n
            for n in graph.users(ins[0])
            if n.name in UNIT_AXES
            and n.ins == ins
            and keeps_order(n.name, n.params, graph.avals[ins[0]], graph.avals[n.outs[0]])
        )
    else:
        return None
    same = (n for n in found if _same_type(graph.avals[n.outs[0]], _out(eqn)))
    return next((n.outs for n in same), None)


def keeps_order(name: str, params: dict[str, Any], before: Any, after: Any) -> bool:
    """Whether no element is moved, repeated or dropped: only axes of one element come or go."""
    if math.prod(before.shape) != math.prod(after.shape) or params.get("sharding") is not None:
        return False
    if name == "reshape":
        return params.get("dimensions") is None
    dims = params.get("broadcast_dimensions", ())
    return name == "squeeze" or list(dims) == sorted(dims)


def _contractions(graph: Any, params: dict[str, Any], ins: tuple) -> Iterator[Any]:
    """The products of a graph that contract the same axes of the same values."""
    wanted = _contraction(graph, params, ins)
    base = wanted[0]
    near = [base, *(n.outs[0] for n in graph.users(base) if n.name == "transpose")]
    for node in (n for v in near for n in graph.users(v) if n.name == "dot_general"):
        if _contraction(graph, node.params, node.ins) == wanted:
            yield node


def _contraction(graph: Any, params: dict[str, Any], ins: tuple) -> tuple:
    """A product, told by the values behind transposes and by their axes."""
    contracted, batch = params["dimension_numbers"]
    (left, axes), (right, others) = (_base(graph, x) for x in ins)
    pairs = {(axes[i], others[j]) for i, j in zip(*contracted, strict=True)}
    lanes = [(axes[i], others[j]) for i, j in zip(*batch, strict=True)]
    rest = [
        [a for i, a in enumerate(own) if i not in (*gone, *lane)]
        for own, gone, lane in zip((axes, others), contracted, batch, strict=True)
    ]
    kept = params["preferred_element_type"] or graph.avals[left].dtype  # None: that of both
    how = params["precision"], kept, params.get("out_sharding")
    return left, right, pairs, lanes, rest, how


def _base(graph: Any, x: Any) -> tuple[int, tuple[int, ...]]:
    """The value behind a transpose, and its axes in the order of the transpose."""
    if isinstance(x, Transposed):
        return x
    node = graph.maker[x]
    if node is not None and node.name == "transpose":
        return node.ins[0], tuple(node.params["permutation"])
    return x, tuple(range(len(graph.avals[x].shape)))


def _out(eqn: compat.Eqn) -> Any:
    return eqn.outvars[0].aval


def _same_type(one: Any, other: Any) -> bool:
    weak = getattr(one, "weak_type", False) == getattr(other, "weak_type", False)
    return weak and (one.shape, one.dtype) == (other.shape, other.dtype)
