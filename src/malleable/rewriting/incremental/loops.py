"""Scans in an update: over rows of which some change, or over layers, whose values are stacked."""

from collections.abc import Sequence
from typing import Any

from jax import lax
from jax import numpy as jnp

from malleable.programs.evaluate import evaluate
from malleable.rewriting.boxes.blocks import cut
from malleable.rewriting.boxes.spans import Span, Start, whole_span
from malleable.rewriting.graph.graph import Node
from malleable.rewriting.incremental.plan import Plan, asked_for, opened
from malleable.rewriting.incremental.run import Run, zeros

TIME = "t"  # the symbol of the row that is new
FAR = 9  # steps after which a state has forgotten, if it ever does
ROUNDS = 3  # until what is found of a state is at rest, or is everything


class Rows:
    """A scan whose state forgets: the rows that change are steps again, and as many behind them.

    What stands before each step is kept, so that the steps may begin at any row.
    """

    def __init__(self, plan: Plan, node: Node, view: Any, span: Span):
        self.view, self.span = view, span.clipped(view.length, plan.limits)

    def start(self, xs: Sequence) -> tuple[list, Any]:
        consts, carry, rows = self.view.split(xs)
        last, ys, before = self._run(consts, carry, rows, self.view.length)
        return [*last, *ys], (before, last)

    def step(self, run: Run, node: Node, kept: Any) -> tuple[list, Any]:
        before, last = kept
        consts, _, xs = self.view.split(node.ins)
        rows = [run.read(v, (self.span, *run.plan.whole(v)[1:])) for v in xs]
        first = self.span.start.value(run.at)
        carry = [lax.dynamic_index_in_dim(x, first, keepdims=False) for x in before]
        carry, ys, new = self._run([*map(run.clean, consts)], carry, rows, self.span.size)
        before = [
            lax.dynamic_update_slice_in_dim(x, y, first, 0)
            for x, y in zip(before, new, strict=True)
        ]
        is_last = first + self.span.size == self.view.length
        last = [jnp.where(is_last, x, y) for x, y in zip(carry, last, strict=True)]
        return [*([x] for x in last), *([y] for y in ys)], (before, last)

    def _run(self, consts: Sequence, carry: Sequence, xs: Sequence, length: int) -> tuple:
        """The last state, the rows of the results, and the states before each row."""
        n, reverse = len(carry), self.view.reverse and not carry

        def body(c, x):
            outs = evaluate(self.view.body, [*consts, *c, *x])
            return outs[:n], (outs[n:], c)

        last, (ys, before) = lax.scan(body, list(carry), list(xs), length=length, reverse=reverse)
        return last, ys, before


def forgets(view: Any, changed: Sequence[bool]) -> int | None:
    """After how many steps the state of a scan is what it was, when some of its rows change.

    changed: which of the operands that have rows do; None where it may never be.

    >>> from malleable import compat, stage
    >>> def of(cell):
    ...     f = lambda xs: lax.scan(cell, 0.0, xs)
    ...     (eqn,) = stage(f)(jnp.ones(9)).jaxpr.eqns
    ...     return forgets(compat.view(eqn), [True])
    >>> of(lambda before, x: (x, x - before)), of(lambda total, x: (total + x, x))
    (1, None)
    """
    graph = opened(view.body)
    _, carry, rows = view.split(graph.inputs)
    moving = [v for v, is_new in zip(rows, changed, strict=True) if is_new]
    for steps in range(FAR):
        reached = graph.reach(moving, forward=True)
        ends = zip(carry, graph.outputs, strict=False)
        moving = [a for a, b in ends if b in reached]
        if not moving:
            return steps
    return None


class Layers:
    """A scan whose state changes in boxes that stay where they are: what it keeps is stacked.

    inner: the plan of the body; its inputs that change have boxes, and its state goes round as
    the blocks at these.
    """

    def __init__(self, node: Node, view: Any, inner: Plan):
        self.node, self.view, self.inner = node, view, inner
        self.ins, self.outs = inner.graph.inputs, inner.graph.outputs
        self._keep: list[int] | None = None

    def keep(self) -> list[int]:
        """The values of the body that an update reads from before."""
        if self._keep is None:
            inner = self.inner
            every = {v: inner.type_of(v) for v in inner.boxes}
            types = {v: inner.type_of(v) for v in self.ins}

            def trial(kept):
                given = {v: jnp.zeros(t.shape, t.dtype) for v, t in types.items()}
                loops = inner.values([given[v] for v in self.ins])[1]
                fresh = {v: zeros(inner, v) for v in self.ins if v in inner.boxes}
                at = dict.fromkeys(inner.limits, jnp.int32(0))
                clean = {v: given[v] for v in self.ins if v not in inner.boxes}
                run = Run(inner, kept, loops, at, fresh, clean)
                return [self._result(run, v, k) for k, v in enumerate(self.outs)]

            self._keep, reads = asked_for(every, trial)
            if TIME in inner.limits:
                inner.keep_rings(reads, TIME)
        return self._keep

    def start(self, xs: Sequence) -> tuple[list, Any]:
        """The results on whole operands, and what is kept."""
        consts, carry, rows = self.view.split(xs)
        keep, n = self.keep(), len(carry)

        def body(c, x):
            values, loops = self.inner.values([*consts, *c, *x])
            outs = [values[v] for v in self.outs]
            kept = {v: self.inner.begun(v, values[v]) for v in keep}
            return outs[:n], (outs[n:], kept, loops)

        options = {"length": self.view.length, "reverse": self.view.reverse}
        last, (ys, kept, loops) = lax.scan(body, list(carry), list(rows), **options)
        return [*last, *ys], (kept, loops)

    def step(self, run: Run, node: Node, state: Any) -> tuple[list, Any]:
        """The blocks of the results, and what is kept from now on."""
        kept, loops = state
        inner, (consts, carry, xs) = self.inner, self.view.split(node.ins)
        c, h, x = self.view.split(self.ins)

        def operand(v: int, a: int, lead: int | None = None) -> Any:
            if a not in inner.boxes:
                return run.whole(v)
            front = () if lead is None else (whole_span(lead),)
            return [run.read(v, (*front, *box)) for box in inner.boxes[a]]

        fixed = {a: operand(v, a) for v, a in zip(consts, c, strict=True)}
        begin = [operand(v, a) for v, a in zip(carry, h, strict=True)]
        rows = [operand(v, a, run.plan.shape(v)[0]) for v, a in zip(xs, x, strict=True)]

        def body(carried, row):
            row, before, inside = row
            operands = fixed | dict(zip([*h, *x], [*carried, *row], strict=True))
            fresh = {v: blocks for v, blocks in operands.items() if v in inner.boxes}
            clean = {v: value for v, value in operands.items() if v not in inner.boxes}
            one = Run(inner, before, inside, run.at, fresh, clean)
            outs = [self._result(one, v, k) for k, v in enumerate(self.outs)]
            n = len(h)
            return outs[:n], (outs[n:], {v: one.carried(v) for v in before}, inside | one.new_loops)

        options = {"length": self.view.length, "reverse": self.view.reverse}
        last, (ys, kept, loops) = lax.scan(body, begin, (rows, kept, loops), **options)
        return [x if isinstance(x, list) else [x] for x in [*last, *ys]], (kept, loops)

    def _result(self, run: Run, v: int, k: int) -> Any:
        """What goes round: a state as its blocks, one that does not change as it is."""
        h = self.view.split(self.ins)[1]
        boxes = self.inner.boxes.get(h[k]) if k < len(h) else self.inner.boxes.get(v)
        return run.whole(v) if boxes is None else [run.read(v, box) for box in boxes]


class Recurrence:
    """A scan over rows that run in time: its state is kept, new rows are new steps."""

    def __init__(self, plan: Plan, node: Node, view: Any, lag: int, width: int):
        self.view, self.lag, self.width, self.n = view, lag, width, view.length
        self.nominal = Span(Start(TIME, 1, lag), width)
        self.span = self.nominal.clipped(self.n, plan.limits)

    def _steps(self, consts: Sequence, carry: Sequence, xs: Sequence, length: int) -> tuple:
        def body(c, x):
            outs = evaluate(self.view.body, [*consts, *c, *x])
            return outs[: len(c)], outs[len(c) :]

        if length == 1:
            last, ys = body(list(carry), [x[0] for x in xs])
            return last, [y[None] for y in ys]
        return lax.scan(body, list(carry), list(xs), length=length)

    def start(self, operands: Sequence) -> tuple[list, Any]:
        """The results on whole operands, and the state before the first row that is new."""
        consts, carry, xs = self.view.split(operands)
        last, ys = self._steps(consts, carry, xs, self.n)
        before = min(max(self.lag, 0), self.n)
        if before:
            carry, _ = self._steps(consts, carry, [x[:before] for x in xs], before)
        return [*last, *ys], list(carry)

    def step(self, run: Run, node: Node, state: Any) -> tuple[list, Any]:
        consts, _, xs = self.view.split(node.ins)
        fixed = [run.whole(v) for v in consts]
        rows = [run.read(v, (self.span, *run.plan.whole(v)[1:])) for v in xs]
        if self.span == self.nominal:
            carry, ys = self._steps(fixed, state, rows, self.width)
        else:
            carry, ys = self._at_the_edge(run, node, fixed, state, rows)
        return [*([x] for x in carry), *([y] for y in ys)], list(carry)

    def _at_the_edge(self, run: Run, node: Node, fixed, carry, rows) -> tuple:
        """Rows outside of the array are no steps, and leave what is there."""
        outs = node.outs[len(carry) :]
        box = [run.plan.boxes[v][0] for v in outs]
        old = [
            cut(run.before(v), b, 0, run.at, run.plan.limits)
            for v, b in zip(outs, box, strict=True)
        ]
        first, moved = self.nominal.start.value(run.at), self.span.start.value(run.at)

        def one(i, state):
            carry, ys = state
            place = first + i
            is_row = (place >= 0) & (place < self.n)
            k = jnp.clip(place - moved, 0, self.width - 1)
            x = [lax.dynamic_index_in_dim(r, k, keepdims=False) for r in rows]
            new = evaluate(self.view.body, [*fixed, *carry, *x])
            carry = [jnp.where(is_row, a, b) for a, b in zip(new, carry, strict=False)]
            put = [
                lax.dynamic_update_index_in_dim(y, a, k, 0)
                for y, a in zip(ys, new[len(carry) :], strict=True)
            ]
            return carry, [jnp.where(is_row, a, b) for a, b in zip(put, ys, strict=True)]

        state = (list(carry), old)
        return one(0, state) if self.width == 1 else lax.fori_loop(0, self.width, one, state)
