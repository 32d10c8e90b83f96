"""Windows: of attention that is masked beyond a distance, a step computes what lies within it."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from malleable.programs.reach import reach
from malleable.rewriting.boxes.dependence import Along, rel, runs_bodies
from malleable.rewriting.boxes.spans import Span, Start
from malleable.rewriting.graph.graph import Node
from malleable.rewriting.incremental.loops import TIME
from malleable.rewriting.incremental.masks import (
    FINITE,
    NEGATIVES,
    NO_NUMBER,
    Beyond,
    as_if,
    is_high,
    is_low,
    is_one,
    is_zero,
    masked,
    needs_finite,
    sort_of,
    sort_of_negative,
)
from malleable.rewriting.incremental.plan import Plan

Place = tuple[int, int]  # a value, and a dimension of it that runs in time beside its own
TESTS = (is_zero, is_one, is_low, is_high)
CLOSES = {"reduce_max": NEGATIVES, "reduce_sum": {Beyond.ZERO}, "dot_general": {Beyond.ZERO}}


def narrow(plan: Plan, found: Mapping[int, Any], width: int) -> None:
    """Compute, of scores that no result reads but within a window, only these.

    Where all that reads a second dimension in time adds it up, and constant masks leave nothing
    of what is further behind than w, the columns from w before the row to the present are enough.
    """
    plain = {v: rows for v, rows in found.items() if rows and rows.is_plain()}
    loose = {(v, d) for v, rows in plain.items() for d in rows.loose}
    edges: dict[Place, set[Place]] = {place: set() for place in loose}
    ends: dict[Place, list[tuple[Node, int]]] = {place: [] for place in loose}
    free = {place for place in loose if place[0] in plan.graph.outputs}
    for node in plan.nodes:
        moving = [v for v in node.ins if any((v, d) in loose for d in range(len(plan.shape(v))))]
        if not moving:
            continue
        tables = () if runs_bodies(node.eqn) else rel(node.eqn)
        for k, v in enumerate(node.ins):
            for d in plain[v].loose if v in moving else ():
                entry = tables[k][d] if tables else Along(0, 0)
                own = tables[k][found[v].dim] if tables else None
                match entry:
                    case None:
                        ends[v, d].append((node, k))
                    case Along(o, 1, 0, 0) if own == Along(getattr(own, "dim", 0)) and all(
                        (u, o) in loose for u in node.outs
                    ):
                        for u in node.outs:
                            edges[v, d].add((u, o))
                            edges[u, o].add((v, d))
                    case _:
                        free.add((v, d))
    done: set[Place] = set()
    for place in loose:
        if place not in done:
            part = set(reach([place], lambda p: list(edges[p])))
            done |= part
            if not part & free:
                _narrow(plan, found, width, part, [(p, *end) for p in part for end in ends[p]])


def _narrow(plan: Plan, found, width: int, part: set[Place], ends: list) -> None:
    lags = {(found[v].lag, found[v].loose[d].lag) for v, d in part}
    if len(lags) > 1 or len({v for v, _ in part}) < len(part) or not ends:
        return
    ((lag, other),) = lags
    dims = dict(part)
    partners = {}
    for (v, d), node, k in ends:
        if node.name not in CLOSES or found[v].loose[d].beyond not in CLOSES[node.name]:
            return
        if node.name == "dot_general":
            contracted = node.params["dimension_numbers"][0]
            u, e = node.ins[1 - k], contracted[1 - k][contracted[k].index(d)]
            rows = found.get(u)
            if rows is not None and (rows.loose or rows.dim != e or not rows.is_plain()):
                return
            partners[node.outs[0], 1 - k] = e
    n = {plan.shape(v)[d] for v, d in part}
    for w in _distances(plan, found, dims):
        low = min(lag - w, other)
        size = other + width - low
        if len(n) == 1 and size <= max(n) // 2 and _is_masked(plan, found, dims, w, ends):
            (length,) = n
            span = Span(Start(TIME, 1, low), size).clipped(length, plan.limits)
            for v, d in part:
                (box,) = plan.boxes[v]
                plan.boxes[v] = ((*box[:d], span, *box[d + 1 :]),)
            for (_, d), node, k in ends:
                plan.narrowed[node.outs[0], k] = d, span
            plan.narrowed |= {key: (e, span) for key, e in partners.items()}
            return


def _constants(plan: Plan, node: Node, i: int, j: int) -> list[tuple[int, np.ndarray]]:
    """The operands that are constants, (rows, columns, ...) of the result, by their places."""
    shape, found = plan.shape(node.outs[0]), []
    for k, v in enumerate(node.ins):
        c = plan.small_constant(v)
        if c is not None and c.ndim in (0, len(shape)) and c.dtype.kind in "bfiu":
            found.append((k, np.moveaxis(c, (i, j), (0, 1)) if c.ndim else c.reshape(1, 1)))
    return found


def _distances(plan: Plan, found, dims: Mapping[int, int]) -> list[int]:
    """How far behind its row the last column is that some constant mask leaves."""
    distances = set()
    for v, j in dims.items():
        node = plan.graph.maker[v]
        if node is None:
            continue
        for k, c in _constants(plan, node, found[v].dim, j):
            if min(c.shape[:2]) > 1:
                key = (node.ins[k], found[v].dim, j, "distances")
                if key not in plan.memo:
                    tests = (is_zero, is_one) if c.dtype.kind == "b" else TESTS
                    plan.memo[key] = {_reach(test(c)) for test in tests}
                distances |= plan.memo[key]
    return sorted(distances - {-1})


def _reach(is_masked: np.ndarray) -> int:
    """The largest i - j of what is not masked; -1 where no column is ever behind its row."""
    free: np.ndarray = ~np.all(is_masked.reshape(*is_masked.shape[:2], -1), axis=-1)
    rows = np.flatnonzero(np.any(free, axis=1))
    return int((rows - np.argmax(free[rows], axis=1)).max(initial=-1))


def _is_masked(plan: Plan, found, dims: Mapping[int, int], w: int, ends: list) -> bool:
    """Whether what is further behind than w is nothing, wherever it is added up."""
    kinds: dict[int, Beyond | None] = {}
    assumed = [node for _, node, _ in ends if node.name == "dot_general"]
    for node in plan.nodes:
        out = node.outs[0]
        if out not in dims:
            continue
        i, j = found[out].dim, dims[out]
        constants, tables = dict(_constants(plan, node, i, j)), rel(node.eqn)
        of = []
        for k, v in enumerate(node.ins):
            if v in dims:
                of.append(kinds.get(v))
            elif k in constants:
                ask = sort_of_negative if node.name == "sub" and k == 1 else sort_of
                key = v, i, j, w, ask
                if key not in plan.memo:
                    plan.memo[key] = _behind(constants[k], w, ask)
                of.append(plan.memo[key])
            else:
                goes = any(isinstance(e, Along) and e.dim == j for e in tables[k])
                of.append(None if goes and v in found else Beyond.KNOWN)
        name = as_if(plan, node)
        assumed += [node] * needs_finite(of, name)
        for u in node.outs:
            kinds[u] = masked(node, of, name)
    if not all(kinds.get(v) in CLOSES[node.name] for (v, _), node, _ in ends):
        return False
    for node in assumed:
        plan.assume(FINITE, node, NO_NUMBER)
    return True


def _behind(c: np.ndarray, w: int, ask) -> Beyond:
    if max(c.shape[:2]) > 1:
        n = max(c.shape[:2])
        i, j = np.ogrid[: c.shape[0], : c.shape[1]] if min(c.shape[:2]) > 1 else np.ogrid[:n, :n]
        c = np.broadcast_to(c, (*np.broadcast_shapes(i.shape, j.shape), *c.shape[2:]))
        c = c[j < i - w]
    return ask(c)
