"""An update: new blocks from new blocks, what is kept, and constants."""

from collections.abc import Mapping
from typing import Any

from jax import lax
from jax import numpy as jnp

from malleable import compat
from malleable.rewriting.boxes.blocks import compute, cut, filled, identity_of, put, rows_at
from malleable.rewriting.boxes.dependence import CUMULATIVE, runs_bodies
from malleable.rewriting.boxes.spans import Box, Span, offsets, sizes_of, whole_span
from malleable.rewriting.graph.graph import Node
from malleable.rewriting.incremental.plan import CHEAP, Plan, Seen, execute

GOES_ON: dict[str, Any] = {  # from its last row
    "cumsum": jnp.add,
    "cumprod": jnp.multiply,
    "cummax": jnp.maximum,
    "cummin": jnp.minimum,
    "cumlogsumexp": jnp.logaddexp,
}


class Run:
    """One update. kept: whole values of before; fresh: the blocks of the inputs that change.

    at: the values of the symbols; loops: what the loops keep; given: inputs that do not change.
    """

    def __init__(
        self, plan: Plan, kept: Mapping, loops: Mapping, at: Mapping, fresh: Mapping, given: Mapping
    ):
        self.plan, self.kept, self.loops, self.at = plan, kept, loops, at
        self._blocks = {v: list(blocks) for v, blocks in fresh.items()}
        self._clean, self._new, self.new_loops = dict(given), {}, {}
        for node in plan.nodes:
            if any(v in plan.boxes for v in node.outs):
                self._step(node)

    def _step(self, node: Node) -> None:
        plan, (first, *_) = self.plan, node.outs
        if (loop := plan.loops.get(first)) is not None:
            blocks, self.new_loops[first] = loop.step(self, node, self.loops[first])
            self._blocks.update(zip(node.outs, blocks, strict=True))
            return
        if first in plan.deltas:
            self._blocks[first] = [self._followed(node, plan.deltas[first])]
            return
        rows = [
            self._running(node, box)
            if node.name in CUMULATIVE
            and box[axis := node.params["axis"]] != plan.whole(first)[axis]
            else self._compute(node, box)
            for box in plan.boxes[first]
        ]
        self._blocks.update(zip(node.outs, map(list, zip(*rows, strict=True)), strict=True))

    def _compute(self, node: Node, box: Box) -> list:
        if runs_bodies(node.eqn) and box == self.plan.whole(node.outs[0]):
            return execute(node, [self.whole(v) for v in node.ins])
        ins = node.ins
        return compute(
            node.eqn,
            box,
            lambda k, part, fill: self._operand(node, k, self._narrowed(node, k, part), fill),
            self.at,
            lambda k: self.plan.small_constant(ins[k]),
        )

    def _operand(self, node: Node, k: int, box: Box, fill: Any) -> Any:
        x = self.read(node.ins[k], box, fill)
        poisoned = self.plan.poison and node.outs[0] in self.plan.masking
        if poisoned and node.name != "select_n" and jnp.issubdtype(x.dtype, jnp.inexact):
            return jnp.where(jnp.isnan(x), jnp.zeros((), x.dtype), x)
        return x

    def _narrowed(self, node: Node, k: int, part: Box) -> Box:
        if (window := self.plan.narrowed.get((node.outs[0], k))) is None:
            return part
        dim, span = window
        return (*part[:dim], span, *part[dim + 1 :])

    def _running(self, node: Node, box: Box) -> list:
        """A cumulative operation goes on from its own last row."""
        (out,), axis = node.outs, node.params["axis"]
        start = box[axis].start.moved(1, -1)
        last = tuple(Span(start, 1) if d == axis else span for d, span in enumerate(box))
        unit = identity_of(node.name, self.plan.graph.avals[out].dtype)
        before = self._old(out, last, unit)
        with compat.source(node.eqn):
            (rows,) = compat.bind(node.eqn, [self.read(node.ins[0], box)])
            return [GOES_ON[node.name](before, rows).astype(rows.dtype)]

    def _followed(self, node: Node, k: int) -> Any:
        """A sum, and what new less old numbers of the part of operand k that changes add to it."""
        (out,), v = node.outs, node.ins[k]
        (part,), (box,) = self.plan.boxes[v], self.plan.boxes[out]
        before, new = self._old(out, box, 0), self.block(v)

        def operand(i: int, of: Box, fill: Any) -> Any:
            if i == k:
                return new - self._old(v, part, fill)
            (c1, c2), _ = node.params["dimension_numbers"]
            mine, theirs = (c1, c2) if i == 0 else (c2, c1)
            at = dict(zip(mine, theirs, strict=True))
            there = tuple(part[at[d]] if d in at else span for d, span in enumerate(of))
            return self.read(node.ins[i], there, fill)

        (more,) = compute(node.eqn, box, operand, self.at, lambda i: None)
        return before + more

    def clean(self, v: int) -> Any:
        """A value that does not change, whole."""
        if self.plan.is_constant(v):
            return self.plan.constant(v)
        if v in self.kept:
            return self.kept[v]
        return self.plan.value(v, self._clean)

    def block(self, v: int, k: int = 0) -> Any:
        return self._blocks[v][k]

    def whole(self, v: int) -> Any:
        """A value as it is now: what is kept of it, with its new blocks."""
        if v not in self.plan.boxes:
            return self.clean(v)
        self._note(v, self.plan.whole(v))
        return self._put(v)

    def before(self, v: int) -> Any:
        """A value as it was."""
        self._note(v, self.plan.whole(v))
        return self.kept[v]

    def carried(self, v: int) -> Any:
        """What is kept of a value from now on."""
        if (size := self.plan.rings.get(v)) is None:
            return self.whole(v)
        if v not in self._new:
            self._new[v] = self._ring(v, size)
        return self._new[v]

    def _ring(self, v: int, size: int) -> Any:
        plan = self.plan
        dim, block, kept = plan.rows[v][0], self.block(v), self.kept[v]
        start, n = plan.boxes[v][0][dim]
        latest = min(n, size)
        block = lax.slice_in_dim(block, n - latest, n, axis=dim)
        first = start.value(self.at) + (n - latest)
        if latest == 1 == size:
            return block
        if latest == 1:
            return lax.dynamic_update_slice_in_dim(kept, block, first % size, dim)
        slots = (first + jnp.arange(latest)) % size
        return kept.at[(slice(None),) * dim + (slots,)].set(block, unique_indices=True)

    def _note(self, v: int, box: Box) -> None:
        if isinstance(self.kept, Seen):
            self.kept.parts.setdefault(v, []).append(box)

    def _old(self, v: int, box: Box, fill: Any) -> Any:
        """The block of a value as it was."""
        self._note(v, box)
        if v in self.plan.rings:
            return self._turned(v, box, fill, None)
        return cut(self.kept[v], box, fill, self.at, self.plan.limits)

    def _turned(self, v: int, box: Box, fill: Any, block: Any) -> Any:
        """The block of a value of which the latest rows are kept, and `block` is new."""
        plan, size, kept = self.plan, self.plan.rings[v], self.kept[v]
        (dim, _), span = plan.rows[v], box[plan.rows[v][0]]
        place = span.start.value(self.at) + jnp.arange(span.size)
        first, width = plan.boxes[v][0][dim]
        behind = first.offset - span.start.offset
        if block is not None and width == 1 < size:
            x = rows_at(self.carried(v), place % size, dim)
        elif block is None or (
            first[:2] == span.start[:2] and behind >= 0 and span.size <= behind + width
        ):  # so many rows of before, and then new ones
            old = place[: span.size if block is None else behind]
            x = [kept if size == 1 == len(old) else rows_at(kept, old % size, dim)]
            if block is not None and len(old) < span.size:
                x.append(lax.slice_in_dim(block, 0, span.size - len(old), axis=dim))
            x = lax.concatenate(x, dim) if len(old) else x[-1]
        else:
            x, since = rows_at(kept, place % size, dim), place - first.value(self.at)
            if width > 1:
                block = rows_at(block, jnp.clip(since, 0, width - 1), dim)
            along = [-1 if d == dim else 1 for d in range(x.ndim)]
            x = jnp.where((since >= 0).reshape(along), block, x)
        x = filled(x, dim, place, plan.shape(v)[dim], span.start.bounds(plan.limits), fill)
        rest = tuple(whole_span(s.size) if d == dim else s for d, s in enumerate(box))
        return cut(x, rest, fill, self.at, plan.limits)

    def _put(self, v: int) -> Any:
        if v not in self._new:
            boxes = self.plan.boxes[v]
            if boxes[0] == self.plan.whole(v):
                self._new[v] = self.block(v)
            else:
                x = self.kept[v]
                for k, box in enumerate(boxes):
                    x = put(x, self.block(v, k), box, self.at)
                self._new[v] = x
        return self._new[v]

    def read(self, v: int, box: Box, fill: Any = 0) -> Any:
        """The block of a value at a box; `fill` where it reaches over the edge."""
        plan = self.plan
        if v not in plan.boxes:
            if box == plan.whole(v):
                return self.clean(v)
            node, shape = plan.graph.maker[v], plan.shape(v)
            inside = all(s.is_inside(n, plan.limits) for s, n in zip(box, shape, strict=True))
            if plan.is_constant(v) and node is not None and inside and node.name in CHEAP:
                return self._compute(node, box)[node.outs.index(v)]
            return cut(self.clean(v), box, fill, self.at, plan.limits)
        for k, of in enumerate(plan.boxes[v]):
            if (first := offsets(box, of)) is not None:
                block, sizes = self.block(v, k), sizes_of(box)
                ends = [at + size for at, size in zip(first, sizes, strict=True)]
                return block if block.shape == sizes else lax.slice(block, first, ends)
        self._note(v, box)
        if v in plan.rings:
            return self._turned(v, box, fill, self.block(v))
        return cut(self._put(v), box, fill, self.at, plan.limits)


def zeros(plan: Plan, v: int) -> list:
    """Blocks of the types of those of a value."""
    return [jnp.zeros(sizes_of(box), plan.graph.avals[v].dtype) for box in plan.boxes[v]]
