"""Scans in an update: over rows of which some change, or over layers, whose values are stacked."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax
from jax import numpy as jnp

from malleable.programs.evaluate import one_step
from malleable.rewriting.boxes.blocks import cut
from malleable.rewriting.boxes.spans import Span, Start, whole_span
from malleable.rewriting.graph.graph import Node
from malleable.rewriting.incremental.plan import CHEAP, Plan, asked_for, execute, opened
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
        reverse = self.view.reverse and not carry

        def body(c, x):
            new, ys = one_step(self.view, consts, c, x)
            return new, (ys, c)

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


def read_from_before(inner: Plan, results: Callable[[Run], Any]) -> list[int]:
    """The values of a body that results(an update of it) reads from before."""
    every = {v: inner.type_of(v) for v in inner.boxes}
    ins = inner.graph.inputs
    if TIME not in inner.limits:  # what does not change is kept as well, where it costs something
        dear = [u for node in inner.nodes if node.name not in CHEAP for u in node.outs]
        every |= {u: inner.type_of(u) for u in dear if not inner.is_constant(u)}
    types = {v: inner.type_of(v) for v in ins}

    def trial(kept):
        given = {v: jnp.zeros(t.shape, t.dtype) for v, t in types.items()}
        loops = inner.values([given[v] for v in ins])[1]
        fresh = {v: zeros(inner, v) for v in ins if v in inner.boxes}
        at = dict.fromkeys(inner.limits, jnp.int32(0))
        clean = {v: given[v] for v in ins if v not in inner.boxes}
        return results(Run(inner, kept, loops, at, fresh, clean))

    keep, reads = asked_for(every, trial)
    if TIME in inner.limits:
        inner.keep_rings(reads, TIME)
    return keep


def operand(run: Run, inner: Plan, v: int, a: int, lead: int | None = None) -> Any:
    """What a body gets for its input a: the blocks of v that change, or v as it is."""
    if a not in inner.boxes:
        return run.whole(v)
    front = () if lead is None else (whole_span(lead),)
    return [run.read(v, (*front, *box)) for box in inner.boxes[a]]


def run_inside(inner: Plan, kept: Any, loops: Any, at: Any, operands: dict[int, Any]) -> Run:
    """An update of a body, whose inputs are blocks or, where they do not change, whole."""
    fresh = {v: blocks for v, blocks in operands.items() if v in inner.boxes}
    clean = {v: value for v, value in operands.items() if v not in inner.boxes}
    return Run(inner, kept, loops, at, fresh, clean)


class Layers:
    """A scan whose state changes in boxes that stay where they are: what it keeps is stacked.

    inner: the plan of the body; its inputs that change have boxes, and its state goes round as
    the blocks at these.
    """

    def __init__(self, node: Node, view: Any, inner: Plan):
        self.node, self.view, self.inner = node, view, inner
        self.ins, self.outs = inner.graph.inputs, inner.graph.outputs

    @functools.cached_property
    def keep(self) -> list[int]:
        """The values of the body that an update reads from before."""
        results = lambda run: [self._result(run, v, k) for k, v in enumerate(self.outs)]  # noqa: E731
        return read_from_before(self.inner, results)

    def start(self, xs: Sequence) -> tuple[list, Any]:
        """The results on whole operands, and what is kept."""
        consts, carry, rows = self.view.split(xs)
        keep, n = self.keep, len(carry)

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
        fixed = {a: operand(run, inner, v, a) for v, a in zip(consts, c, strict=True)}
        begin = [operand(run, inner, v, a) for v, a in zip(carry, h, strict=True)]
        rows = [operand(run, inner, v, a, run.plan.shape(v)[0]) for v, a in zip(xs, x, strict=True)]

        def body(carried, row):
            row, before, inside = row
            operands = fixed | dict(zip([*h, *x], [*carried, *row], strict=True))
            one = run_inside(inner, before, inside, run.at, operands)
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


class Choice:
    """A `cond` that new rows do not decide: each branch keeps what it needs, one of them runs.

    inners: the plans of the branches, whose inputs that change have boxes; plan: that around.
    """

    def __init__(self, plan: Plan, node: Node, inners: Sequence[Plan]):
        self.plan, self.node, self.inners = plan, node, inners

    @functools.cached_property
    def keep(self) -> list[list[int]]:
        of = functools.partial
        return [read_from_before(inner, of(self._results, inner)) for inner in self.inners]

    def _results(self, inner: Plan, run: Run) -> list[list]:
        """The blocks of the results that change; none of the others."""
        boxes = [self.plan.boxes.get(v, ()) for v in self.node.outs]
        outs = zip(inner.graph.outputs, boxes, strict=True)
        return [[run.read(v, box) for box in mine] for v, mine in outs]

    def start(self, xs: Sequence) -> tuple[list, Any]:
        """The results on whole operands, and what each branch keeps: of others, zeros."""
        which, *operands = xs

        def begin(inner: Plan, keep: Sequence[int], *operands) -> tuple:
            values, loops = inner.values(operands)
            outs = [values[v] for v in inner.graph.outputs]
            return outs, ({v: inner.begun(v, values[v]) for v in keep}, loops)

        begins = [
            functools.partial(begin, *pair) for pair in zip(self.inners, self.keep, strict=True)
        ]
        types = [jax.eval_shape(f, *operands)[1] for f in begins]
        none = [jax.tree.map(lambda t: jnp.zeros(t.shape, t.dtype), t) for t in types]

        def branch(k: int, *operands):
            outs, state = begins[k](*operands)
            return outs, [*none[:k], state, *none[k + 1 :]]

        branches = [functools.partial(branch, k) for k in range(len(begins))]
        return lax.switch(which.astype(jnp.int32), branches, *operands)

    def step(self, run: Run, node: Node, states: Any) -> tuple[list, Any]:
        which, *ins = node.ins

        def branch(k: int):
            inner, (kept, loops) = self.inners[k], states[k]
            pairs = zip(ins, inner.graph.inputs, strict=True)
            operands = {a: operand(run, inner, v, a) for v, a in pairs}

            def taken():
                one = run_inside(inner, kept, loops, run.at, operands)
                state = {v: one.carried(v) for v in kept}, loops | one.new_loops
                return self._results(inner, one), [*states[:k], state, *states[k + 1 :]]

            return taken

        index = run.whole(which).astype(jnp.int32)
        outs, states = lax.switch(index, [branch(k) for k in range(len(self.inners))])
        return outs, states


class Redecided(Choice):
    """A `cond` in an update that may decide anew: another branch starts, the same one goes on."""

    def start(self, xs: Sequence) -> tuple[list, Any]:
        outs, states = super().start(xs)
        return outs, (xs[0], states)

    def step(self, run: Run, node: Node, states: Any) -> tuple[list, Any]:
        before, of_branches = states
        index, *operands = map(run.whole, node.ins)

        def other() -> tuple[list, Any]:
            outs, new = super(Redecided, self).start([index, *operands])
            return [[x] for x in outs], new

        def same() -> tuple[list, Any]:
            return super(Redecided, self).step(run, node, of_branches)

        outs, new = lax.cond(index == before, same, other)
        return outs, (index, new)


class Turns:
    """A `while` whose turns go row by row: new rows take their own turns, and nothing is kept.

    inner, test: the plans of the body and of what decides; lanes: whether each row decides for
    itself, as a loop under vmap does.
    """

    def __init__(self, node: Node, view: Any, inner: Plan, test: Plan, lanes: bool):
        self.node, self.view, self.lanes = node, view, lanes
        self.inner, self.test = inner, test
        self.state = inner.graph.inputs[len(inner.graph.inputs) - len(inner.graph.outputs) :]

    def needs_more(self) -> bool:
        """Whether a turn reads more than the rows that are new."""
        for plan in (self.inner, self.test):
            if any(not isinstance(loop, Turns) for loop in plan.loops.values()):
                return True
        rows = read_from_before(self.inner, self._turn)
        return bool(rows or read_from_before(self.test, lambda run: self._read(run, self.test)))

    def _turn(self, run: Run) -> list:
        boxes = [self.inner.boxes.get(a) for a in self.state]
        outs = zip(self.inner.graph.outputs, boxes, strict=True)
        return [run.whole(v) if of is None else run.read(v, of[0]) for v, of in outs]

    def _read(self, run: Run, plan: Plan) -> Any:
        (v,) = plan.graph.outputs
        return run.read(v, plan.boxes[v][0]) if v in plan.boxes else run.whole(v)

    def start(self, xs: Sequence) -> tuple[list, Any]:
        return execute(self.node, xs), ()

    def step(self, run: Run, node: Node, state: Any) -> tuple[list, Any]:
        consts, fixed, carry = self.view.split(node.ins)
        inner, test = self.inner, self.test

        def given(plan: Plan, ins: Sequence[int]) -> dict[int, Any]:
            pairs = zip(ins, plan.graph.inputs, strict=False)
            return {a: operand(run, plan, v, a) for v, a in pairs}

        of_test, of_body = given(test, consts), given(inner, fixed)
        none = [dict.fromkeys(plan.loops, ()) for plan in (test, inner)]

        def together(plan: Plan, fixed: dict, loops: dict, carried: Sequence) -> Run:
            mine = plan.graph.inputs[len(plan.graph.inputs) - len(carried) :]
            blocks = {a: [x] if a in plan.boxes else x for a, x in zip(mine, carried, strict=True)}
            return run_inside(plan, {}, loops, run.at, fixed | blocks)

        def goes_on(carried) -> Any:
            return self._read(together(test, of_test, none[0], carried), test)

        def turn(carried) -> list:
            new = self._turn(together(inner, of_body, none[1], carried))
            if not self.lanes:
                return new
            goes = goes_on(carried)
            return [
                jnp.where(goes.reshape(*goes.shape, *[1] * (x.ndim - goes.ndim)), y, x)
                for x, y in zip(carried, new, strict=True)
            ]

        begin = []
        for v, a in zip(carry, self.state, strict=True):
            x = operand(run, inner, v, a)
            begin.append(x[0] if a in inner.boxes else x)
        last = lax.while_loop(lambda c: jnp.any(goes_on(c)), turn, begin)
        return [[x] for x in last], ()


class Recurrence:
    """A scan over rows that run in time: its state is kept, new rows are new steps."""

    def __init__(self, plan: Plan, node: Node, view: Any, lag: int, width: int):
        self.view, self.lag, self.width, self.n = view, lag, width, view.length
        self.nominal = Span(Start(TIME, 1, lag), width)
        self.span = self.nominal.clipped(self.n, plan.limits)

    def _steps(self, consts: Sequence, carry: Sequence, xs: Sequence, length: int) -> tuple:
        body = functools.partial(one_step, self.view, consts)
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
        consts, begin, xs = self.view.split(node.ins)
        fixed = [run.whole(v) for v in consts]
        rows = [run.read(v, (self.span, *run.plan.whole(v)[1:])) for v in xs]
        state = [  # of a state that begins with the first rows, not before them
            jnp.where(run.at[TIME] <= -self.lag, run.whole(v), x)
            if v in run.plan.boxes or run.plan.restarts
            else x
            for v, x in zip(begin, state, strict=True)
        ]
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
            new, made = one_step(self.view, fixed, carry, x)
            carry = [jnp.where(is_row, a, b) for a, b in zip(new, carry, strict=True)]
            pairs = zip(ys, made, strict=True)
            put = [lax.dynamic_update_index_in_dim(y, a, k, 0) for y, a in pairs]
            return carry, [jnp.where(is_row, a, b) for a, b in zip(put, ys, strict=True)]

        state = (list(carry), old)
        return one(0, state) if self.width == 1 else lax.fori_loop(0, self.width, one, state)
