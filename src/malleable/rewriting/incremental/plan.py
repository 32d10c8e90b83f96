"""What an update computes: for each value of a program that changes, the boxes that are new."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from malleable import compat
from malleable.errors import TransformError
from malleable.programs.primitives import kind
from malleable.rewriting.boxes.dependence import ELEMENTWISE
from malleable.rewriting.boxes.spans import Box, Span, whole
from malleable.rewriting.graph.graph import Graph, Node
from malleable.rewriting.incremental.derivatives import HIDDEN, marked
from malleable.rewriting.incremental.forms import clarify

CHEAP = ELEMENTWISE | kind("dims") | {"iota", "slice"}  # rather made again in part than kept
FOLDED = 1 << 27  # numbers: constants up to this size are worked out to look at them


class Plan:
    """A program and the boxes of it that an update computes; the rest is kept, or constant.

    limits: the smallest and the largest value of each symbol; boxes: of the values that change,
    inside of the arrays; loops: how a loop is gone through, by its first result; constants: what is
    known of the inputs; rows: the dimension that runs in time of a value, and how many rows of it
    are known before the first; chunks: how a value runs in time whose rows are in chunks; restarts:
    whether time begins anew, with other inputs that do not change; rings: how many of the latest
    rows are kept, where not all are; narrowed: by (result, operand), the span of a dimension that
    is read of it; deltas: of sums that are updated by a difference, which operand they follow; odd:
    what may be no number, or have no derivative, where rows are not known yet; by_masks: whether
    dimensions that constants mask are taken to run in time; told: notes (what,
    line, why): on what a step relies that cannot be proved, and what is computed whole.
    """

    def __init__(
        self,
        graph: Graph,
        limits: Mapping[str, tuple[int, int]],
        constants: Mapping[int, Any] | None = None,
        poison: bool = False,
    ):
        self.graph, self.limits, self.nodes = graph, limits, graph.order()
        self.boxes: dict[int, tuple[Box, ...]] = {}
        self.loops: dict[int, Any] = {}
        self.rows: dict[int, tuple[int, int]] = {}
        self.chunks: dict[int, Any] = {}
        self.rings: dict[int, int] = {}
        self.narrowed: dict[tuple[int, int], tuple[int, Span]] = {}
        self.deltas: dict[int, int] = {}
        self.poison, self.masking, self.restarts, self.by_masks = poison, set(), False, False
        self.odd: compat.Eqn | None = None
        self.told: dict[tuple[str, str, str], None] = {}
        self.memo: dict[Any, Any] = {}  # what was found out about constants
        self._folded: dict[int, Any] = dict(constants or {})
        self._constant: set[int] = {v for v in range(len(graph.avals)) if self._is_literal(v)}
        self._constant |= self._folded.keys()
        for node in self.nodes:
            if not node.eqn.effects and self._constant.issuperset(node.ins):
                self._constant.update(node.outs)

    def _is_literal(self, v: int) -> bool:
        value = self.graph.value(v)
        return value is not None and not isinstance(value, compat.Tracer)

    def tell(self, what: str, node: Node, why: str) -> None:
        """Say something of a line of the program in a note, once the plan is made."""
        self.told[what, compat.where(node.eqn), why] = None

    def assume(self, what: str, node: Node, why: str) -> None:
        self.tell(what, node, why)
        self.masking.add(node.outs[0])

    def rely_on(self, inner: "Plan") -> None:
        """What is odd, or told, inside of a loop or a branch is so around it."""
        self.odd, self.told = self.odd or inner.odd, self.told | inner.told

    def shape(self, v: int) -> tuple[int, ...]:
        return tuple(self.graph.avals[v].shape)

    def type_of(self, v: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(self.shape(v), self.graph.avals[v].dtype)

    def whole(self, v: int) -> Box:
        return whole(self.shape(v))

    def is_constant(self, v: int) -> bool:
        """Whether a value is known while the program is being made."""
        return v in self._constant

    def constant(self, v: int) -> Any:
        """The value, where it is known while the program is being made; else None."""
        if v not in self._constant:
            return None
        if v not in self._folded:
            with jax.ensure_compile_time_eval():
                self.value(v, self._folded)
        return self._folded[v]

    def small_constant(self, v: int) -> np.ndarray | None:
        """`constant` as an array of NumPy, unless it is too large to be looked at.

        Dimensions that it was broadcast along have extent 1.
        """
        if v not in self._constant:
            return None
        node = self.graph.maker[v]
        if node is not None and node.name == "broadcast_in_dim":
            if (before := self.small_constant(node.ins[0])) is None:
                return None
            shape = [1] * len(self.shape(v))
            for n, d in zip(before.shape, node.params["broadcast_dimensions"], strict=True):
                shape[d] = n
            return before.reshape(shape)
        if np.prod(self.shape(v)) > FOLDED:
            return None
        return np.asarray(self.constant(v))

    def value(self, v: int, memo: dict[int, Any]) -> Any:
        """The whole value, worked out from those in `memo`, which gets what was needed."""
        waiting = [v]
        while waiting:
            u = waiting[-1]
            node = self.graph.maker[u]
            if u in memo:
                waiting.pop()
            elif node is None:
                memo[u] = jnp.asarray(self.graph.value(u), self.graph.avals[u].dtype)
            elif missing := [w for w in node.ins if w not in memo]:
                waiting += missing
            else:
                memo.update(zip(node.outs, execute(node, [memo[w] for w in node.ins]), strict=True))
        return memo[v]

    def begun(self, v: int, x: Any) -> Any:
        """What is kept of a value before the first row.

        What stands where rows are not known yet is a number.
        """
        if v not in self.rows and v not in self.chunks:
            return x
        dim, known = self.rows[v] if v in self.rows else (self.chunks[v].dim, self.chunks[v].lag)
        if known <= 0:  # whatever is there is not read: a loop need not end on zeros
            t = self.kept_type(v)
            x = jnp.full(t.shape, self._unknown(t.dtype), t.dtype)
            return compat.match_devices(x, self.graph.avals[v])
        if jnp.issubdtype(x.dtype, jnp.inexact):
            place = lax.broadcasted_iota(jnp.int32, x.shape, dim)
            if (rows := self.chunks.get(v)) is not None:
                place *= rows.chunk
                if rows.inner is not None:
                    place += lax.broadcasted_iota(jnp.int32, x.shape, rows.inner)
            is_kept = (place < known) | (jnp.isfinite(x) & (not self.poison))
            x = jnp.where(is_kept, x, jnp.asarray(self._unknown(x.dtype), x.dtype))
        if (size := self.rings.get(v)) is not None:
            slots = np.arange(size)
            rounds = np.maximum((known - 1 - slots) // size, 0)
            x = jnp.take(x, slots + size * rounds, axis=dim)
        return x

    def _unknown(self, dtype) -> float:
        """What stands where rows are not known yet."""
        return float("nan") if self.poison and jnp.issubdtype(dtype, jnp.inexact) else 0

    def kept_type(self, v: int) -> jax.ShapeDtypeStruct:
        """The type of what is kept of a value."""
        shape = list(self.shape(v))
        if v in self.rings:
            shape[self.rows[v][0]] = self.rings[v]
        return jax.ShapeDtypeStruct(tuple(shape), self.graph.avals[v].dtype)

    def keep_rings(self, reads: Mapping[int, Sequence[Box]], symbol: str) -> None:
        """Keep, of values of which only rows near the latest are read, only these.

        Row p is in slot p % size, so that a row that is new takes the place of the oldest.
        """
        steps = np.arange(self.limits[symbol][1] + 1)
        for v, boxes in reads.items():
            if v not in self.rows:
                continue
            (dim, lag), n = self.rows[v], self.shape(v)[self.rows[v][0]]
            spans = [box[dim] for box in boxes]
            if any(span.size >= n for span in spans):
                continue
            lowest = [np.maximum(span.start.places({symbol: steps}), 0) for span in spans]
            size = max(1, *((steps + max(lag, 0) - p).max() for p in lowest))
            size = 1 if size == 1 else size + 1  # with a place for the new row, which is put first
            if size <= n // 2:
                self.rings[v] = int(size)

    def values(self, args: Sequence) -> tuple[dict[int, Any], dict[int, Any]]:
        """All values of the program on whole arguments, and what its loops keep."""
        found = dict(zip(self.graph.inputs, args, strict=True))
        for v in range(len(self.graph.avals)):
            if self.graph.value(v) is not None:
                found[v] = jnp.asarray(self.graph.value(v), self.graph.avals[v].dtype)
        kept = {}
        for node in self.nodes:
            xs = [found[v] for v in node.ins]
            if (loop := self.loops.get(node.outs[0])) is not None:
                outs, kept[node.outs[0]] = loop.start(xs)
            else:
                outs = execute(node, xs)
            found.update(zip(node.outs, outs, strict=True))
        return found, kept


def inside_of(plan: Plan, graph: Graph, outer: Sequence[int], inner: Sequence[int]) -> Plan:
    """The plan of a body, some of whose inputs are values of the plan around it."""
    pairs = [(a, v) for a, v in zip(inner, outer, strict=True) if plan.is_constant(v)]
    constants = {a: plan.constant(v) for a, v in pairs}
    inside = Plan(graph, plan.limits, constants, plan.poison)
    inside.restarts, inside.by_masks = plan.restarts, plan.by_masks
    return inside


class OpenedWhile:
    """The graphs of a `while`; of what is known outside, what holds inside.

    find(plan, known): what is known of all values of a body, given that of its inputs.
    h, state: what goes around, and what is known of it at first.
    """

    def __init__(self, plan: Plan, node: Node, known: Mapping[int, Any], find: Callable):
        view: Any = compat.view(node.eqn)
        self.plan, self.view, self.known, self.find = plan, view, known, find
        self.consts, self.fixed, carry = view.split(node.ins)
        self.body, self.cond = opened(view.body), opened(view.cond)
        self.h = self.body.inputs[len(self.fixed) :]
        self.state = handed_on(known, carry, self.h)

    def turn(self, state: dict[int, Any]) -> tuple[Plan, dict]:
        """A plan of the body, and what is known of its values."""
        inner = inside_of(self.plan, self.body, self.fixed, self.body.inputs[: len(self.fixed)])
        return inner, self.find(inner, handed_on(self.known, self.fixed, self.body.inputs) | state)

    def test(self, state: Mapping[int, Any]) -> tuple[Plan, Any]:
        """A plan of what decides, and what is known of that; () for nothing."""
        inputs, n = self.cond.inputs, len(self.consts)
        plan = inside_of(self.plan, self.cond, self.consts, inputs[:n])
        given = handed_on(self.known, self.consts, inputs) | handed_on(state, self.h, inputs[n:])
        return plan, self.find(plan, given).get(self.cond.outputs[0], ())


def handed_on(known: Mapping, outer: Sequence[int], inner: Sequence[int]) -> dict[int, Any]:
    """What is known of values outside a body, of the inputs that they become."""
    return {a: known[v] for v, a in zip(outer, inner, strict=False) if v in known}


def execute(node: Node, xs: Sequence) -> list:
    """The results of a node as it is."""
    with compat.source(node.eqn):
        return compat.bind(node.eqn, xs)


def opened(program: compat.Jaxpr) -> Graph:
    """The graph of a program with all calls in it opened; refuses side effects.

    A call with a derivative of its own is opened as well: see `marked`, and `own_derivative`.
    """

    def inline(eqn: compat.Eqn) -> bool:
        calls = compat.Call | compat.CustomJvp | compat.CustomVjp
        return bool(compat.bodies(eqn.params)) and isinstance(compat.view(eqn), calls)

    return cleared(Graph.of(program, inline, marked))


def cleared(graph: Graph) -> Graph:
    """The same graph, with hidden calls in it opened, and in a form that can be looked through."""
    while hidden := [node for node in graph.order() if node.name == HIDDEN]:
        for node in hidden:
            outs = graph.splice(compat.expanded(node.eqn), node.ins, node)
            graph.replace(dict(zip(node.outs, outs, strict=True)))
    while any(_decide(graph, node) for node in graph.order() if node.name == "cond"):
        pass  # in a branch there may be more of them
    for node in graph.nodes:
        if node.eqn.effects:
            raise TransformError(
                f"`{node.name}` has a side effect, which an update could not repeat",
                where=compat.where(node.eqn),
                hint="take it out of the function, or return what it is given",
            )
    clarify(graph, lambda v: Plan(graph, {}).small_constant(v))
    return graph


def _decide(graph: Graph, node: Node) -> bool:
    """Put the branch of a `cond` whose index is known in its place; whether it is."""
    index = Plan(graph, {}).small_constant(node.ins[0])
    if index is None:
        return False
    graph.take_branch(node, int(index))
    return True


class Seen(dict):
    """Values that remember which of them were asked for."""

    def __init__(self, values: Mapping, asked: set):
        super().__init__(values)
        self.asked = asked
        self.parts: dict[int, list[Box]] = {}  # the boxes that are read

    def __getitem__(self, v):
        self.asked.add(v)
        return super().__getitem__(v)


def asked_for(types: Mapping[int, Any], trial: Callable) -> tuple[list[int], dict]:
    """Which of the values of some types trial(values) asks for, and the boxes that it reads.

    Nothing is computed.
    """
    asked, reads = set(), {}

    def tried(values):
        seen = Seen(values, asked)
        out = trial(seen)
        reads.update(seen.parts)
        return out

    jax.eval_shape(tried, dict(types))
    return sorted(asked), reads
