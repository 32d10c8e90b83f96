"""An update: new blocks from new blocks, what is kept, and constants."""

from collections.abc import Mapping
from typing import Any

from jax import numpy as jnp

from malleable import compat
from malleable.rewriting.boxes.blocks import compute, cut, identity_of, put
from malleable.rewriting.boxes.dependence import CUMULATIVE
from malleable.rewriting.boxes.spans import Box, Span, sizes_of
from malleable.rewriting.graph.graph import Node
from malleable.rewriting.incremental.plan import CHEAP, Plan, execute

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
        rows = [
            self._running(node, box)
            if node.name in CUMULATIVE
            and box[axis := node.params["axis"]] != plan.whole(first)[axis]
            else self._compute(node, box)
            for box in plan.boxes[first]
        ]
        self._blocks.update(zip(node.outs, map(list, zip(*rows, strict=True)), strict=True))

    def _compute(self, node: Node, box: Box) -> list:
        if compat.bodies(node.params) and box == self.plan.whole(node.outs[0]):
            return execute(node, [self.whole(v) for v in node.ins])
        ins = node.ins
        return compute(
            node.eqn,
            box,
            lambda k, part, fill: self.read(ins[k], part, fill),
            self.at,
            lambda k: self.plan.small_constant(ins[k]),
        )

    def _running(self, node: Node, box: Box) -> list:
        """A cumulative operation goes on from its own last row."""
        (out,), axis = node.outs, node.params["axis"]
        start = box[axis].start.moved(1, -1)
        last = tuple(Span(start, 1) if d == axis else span for d, span in enumerate(box))
        unit = identity_of(node.name, self.plan.graph.avals[out].dtype)
        before = cut(self.kept[out], last, unit, self.at, self.plan.limits)
        with compat.source(node.eqn):
            (rows,) = compat.bind(node.eqn, [self.read(node.ins[0], box)])
            return [GOES_ON[node.name](before, rows).astype(rows.dtype)]

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
        if box in plan.boxes[v]:
            return self.block(v, plan.boxes[v].index(box))
        return cut(self.whole(v), box, fill, self.at, plan.limits)


def zeros(plan: Plan, v: int) -> list:
    """Blocks of the types of those of a value."""
    return [jnp.zeros(sizes_of(box), plan.graph.avals[v].dtype) for box in plan.boxes[v]]
