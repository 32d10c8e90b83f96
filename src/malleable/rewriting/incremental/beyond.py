"""What stands in a value at places that are not known yet, and whether it counts."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from jax import numpy as jnp

from malleable.rewriting.graph.graph import Node
from malleable.rewriting.incremental.masks import (
    ALL_MASKED,
    FINITE,
    MOVES,
    NEGATIVES,
    NO_NUMBER,
    OPEN,
    SURE,
    Beyond,
    as_if,
    is_high,
    is_low,
    is_one,
    is_taken_away,
    is_zero,
    masked,
    needs_finite,
    sort_of,
    sort_of_negative,
)
from malleable.rewriting.incremental.plan import Plan
from malleable.rewriting.incremental.times import Part, Rows, refuse


def check_gone(plan: Plan, node: Node, gone: Sequence[Part]) -> None:
    """Dimensions in time that a node adds up: what is beyond must not count."""
    pairs = {}
    if node.name == "dot_general":
        (c1, c2), _ = node.params["dimension_numbers"]
        pairs = {(0, a): (1, b) for a, b in zip(c1, c2, strict=True)}
        pairs |= {b: a for a, b in pairs.items()}
    for part in gone:
        other = pairs.get((part.operand, part.source))
        partner = next((p for p in gone if (p.operand, p.source) == other), None)
        if partner is None:
            if part.beyond in SURE or (part.beyond == Beyond.LOW and node.name == "reduce_max"):
                continue
            raise refuse(node, f"`{node.name}` takes in rows that are not known yet")
        small, large = sorted((part, partner), key=lambda p: p.lag)
        both = {part.beyond, partner.beyond}
        if (
            not (Beyond.ZERO in both or both <= SURE)
            or Beyond.ODD in both
            or (small.lag < large.lag and small.beyond not in SURE)
        ):
            error = refuse(node, "what is not known yet has weights that are not known to be 0")
            error.level = small.lag if small.lag < large.lag else None
            raise error
        if needs_finite([part.beyond, partner.beyond], node.name):
            plan.assume(FINITE, node, NO_NUMBER)


def what_is_beyond(plan: Plan, node: Node, found, mine: Sequence[Part], out: Rows, column: Part):
    """What a value holds at the places of a loose dimension that are not known yet.

    column: the dimension and the lag of it in the result; mine: where it comes from.
    """
    parts = {p.operand: p for p in mine}

    def of(k: int) -> Beyond | None:
        if node.ins[k] not in found:
            ask = sort_of_negative if is_taken_away(plan, node, k) else sort_of
            return _of_constant(plan, node, k, out, column, ask)
        if k not in parts:
            return Beyond.KNOWN
        return parts[k].beyond if parts[k].lag == column.lag else None

    kinds = _of_later(plan, node, out, column, [of(k) for k in range(len(node.ins))])
    name, is_open = as_if(plan, node), False
    if name == "sub" and kinds[0] == Beyond.SHUT and _is_a_score(plan, found, node.ins[1]):
        kinds[0], is_open = Beyond.NEGATIVE, True
    made = masked(node, kinds, name)
    if made is not None and needs_finite(kinds, name):
        plan.assume(FINITE, node, NO_NUMBER)
    if made == Beyond.ODD and Beyond.ODD not in kinds:
        plan.odd = plan.odd or node.eqn
    if made in (Beyond.NEGATIVE, Beyond.LOW):
        # A row of which all is masked, by finite numbers, weighs what is masked.
        checked = is_open or any(p.beyond in NEGATIVES for p in mine)
        for at, k, masks in _masks(plan, node, kinds):
            if not plan.is_constant(at.ins[k]):
                continue
            checked = checked or at is node
            if not _of_constant(plan, at, k, out, column, masks, known=True):
                return Beyond.SHUT if made == Beyond.NEGATIVE else None
        if not checked:
            plan.assume(OPEN, node, ALL_MASKED)
    return made


def _is_a_score(plan: Plan, found, v: int) -> bool:
    """Whether a value is the largest of some scores, of which at least one is not masked.

    So is the largest score so far, of attention that goes through blocks of keys.
    """
    waiting = [v]
    while waiting:
        node = plan.graph.maker[waiting.pop()]
        if node is None:
            continue
        if node.name == "reduce_max" and (rows := found.get(node.ins[0])):
            loose = [x for d, x in rows.loose.items() if d in node.params["axes"]]
            if any(x.beyond == Beyond.NEGATIVE for x in loose):
                return True
        elif node.name == "max" or node.name in MOVES:
            waiting += node.ins
    return False


def _of_later(plan: Plan, node: Node, out: Rows, column: Part, kinds: list) -> list:
    """The kinds of operands; of what is joined, that of those which reach beyond the present."""
    if node.name != "concatenate" or node.params["dimension"] != column.dim:
        return kinds
    dim: Any = column.dim
    ends = itertools.accumulate(plan.shape(v)[dim] for v in node.ins)
    later = [(end - 1) * column.chunk > column.lag - out.lag for end in ends]
    of = next(itertools.compress(kinds, later), Beyond.KNOWN)
    return [kind if is_later else of for kind, is_later in zip(kinds, later, strict=True)]


def _masks(plan: Plan, node: Node, kinds: Sequence) -> Iterator[tuple[Node, int, Callable]]:
    """What of a node's operands masks: (node, operand, where it does), those of `and` each."""
    if node.name == "select_n":
        waiting = [(node, 0, is_one if kinds[0] == Beyond.ONE else is_zero)]
    else:
        low = [k for k, v in enumerate(node.ins) if kinds[k] == Beyond.NEGATIVE and plan.shape(v)]
        waiting = [(node, k, is_high if is_taken_away(plan, node, k) else is_low) for k in low]
    while waiting:
        at, k, masks = waiting.pop()
        inner = plan.graph.maker[at.ins[k]]
        if plan.is_constant(at.ins[k]) or inner is None:
            yield at, k, masks
        elif inner.name == "not":
            waiting.append((inner, 0, is_zero if masks is is_one else is_one))
        elif inner.name == {is_zero: "and", is_one: "or"}.get(masks):
            waiting += [(inner, i, masks) for i in range(len(inner.ins))]
        else:
            yield at, k, masks


def _of_constant(plan: Plan, node: Node, k: int, out: Rows, column: Part, ask, known=False):
    """ask(what a value that does not change holds beyond the present).

    known: instead, whether each row has something up to the present for which ask(it) is false.
    """
    v, shape = node.ins[k], plan.shape(node.outs[0])
    c = plan.small_constant(v)
    if c is not None and c.dtype.kind == "V" and jnp.issubdtype(c.dtype, jnp.floating):
        c = c.astype(np.float32)  # bfloat16, which NumPy does not know
    if c is None or c.dtype.kind not in "bfiuc" or c.ndim not in (0, len(shape)):
        return Beyond.KNOWN
    dims = [d for d in (out.dim, out.inner, column.dim) if d is not None]
    sizes = tuple(shape[d] for d in dims)
    time = out.chunk, column.chunk, column.within, out.lag - column.lag
    key = (v, sizes, tuple(dims), time, known, ask)
    if key in plan.memo:
        return plan.memo[key]
    if known or (c.ndim and max(c.shape[d] for d in dims) > 1):
        c = c.reshape([1] * len(shape)) if c.ndim == 0 else c
        n, *i, j = np.ogrid[tuple(slice(size) for size in sizes)]
        row, place = out.chunk * n + sum(i), column.chunk * j + out.chunk * n * column.within
        later = np.broadcast_to(place - column.lag > row - out.lag, sizes)
        c = np.moveaxis(c, dims, range(len(dims)))
        if known:
            there = ~later.reshape(*sizes, *[1] * (c.ndim - len(dims)))
            free = ~ask(np.broadcast_to(c, [*sizes, *c.shape[len(dims) :]])) & there
            plan.memo[key] = bool(free.any(axis=len(dims) - 1).all())
            return plan.memo[key]
        c = np.broadcast_to(c, (*sizes, *c.shape[len(dims) :]))[later]
    plan.memo[key] = ask(c)
    return plan.memo[key]
