"""Which equations an axis can stream through: from where it enters to where it ends.

A region is grown forwards from the values that carry the axis. Each equation of it either maps
(each slice of its results needs one slice of its operands), or is where the axis ends: a sink. What
leaves the region with the axis on escapes, and stays stacked. Two kinds of feedback are allowed:
a sink whose result is known at the first step, and results that enter by `x - result` or
`x * result` and leave again by a linear reduction, as in a softmax over the axis.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from malleable.rewriting.axis.windows import Origin
from malleable.rewriting.graph.graph import Graph, Node
from malleable.rewriting.graph.slices import Ax, Flow, Running
from malleable.rewriting.streaming.region.sinks import Sink, Spec


class Window(NamedTuple):
    """Element j of a value is at hand when the stream is at t = start + j * step."""

    start: int
    step: int
    count: int


class Mark(NamedTuple):
    """What a value of the region still lacks, in terms of a result `by` known at the end.

    shift: the value is x - by, with `by` provisional (power 0: a maximum, 1: a mean); scale: it is
    proportional to exp(-by), of the provisional one; power: it is (x - by)**k; mul, div: it is to
    be multiplied, divided.
    dims: for each dim of `by` that is longer than 1, where it is in the value.
    """

    kind: str
    by: int
    dims: tuple[tuple[int, Ax], ...]
    power: int = 1


class Stream(NamedTuple):
    """A value that carries the axis."""

    ax: Ax
    window: Window
    marks: tuple[Mark, ...] = ()


class Mapped(NamedTuple):
    """Slice by slice. delays: per operand, how many steps ago its slice was at hand."""

    flow: Flow
    window: Window
    delays: tuple[int, ...]


class Alias(NamedTuple):
    """The result is this operand, for the purposes of the stream."""

    operand: int


class Joined(NamedTuple):
    """A concatenation along the axis: at each operand its first index in t, and its length."""

    places: tuple[tuple[int, int], ...]


class Ended(NamedTuple):
    """The axis ends here. marks: what the accumulated value still lacks."""

    sink: Sink
    spec: Spec
    ins: tuple[Ax | None, ...]
    window: Window
    marks: tuple[Mark, ...] = ()


class Kept(NamedTuple):
    """One element of the axis: number `at` in t, or where the whole operand `index` says."""

    at: int | None
    window: Window
    index: int = 0


class Carried(NamedTuple):
    """A running sum and its like."""

    sink: Sink
    spec: Spec
    running: Running
    window: Window


class Fed(NamedTuple):
    """No axis: worked out at each step, from what the sinks have so far."""


@dataclass(frozen=True, eq=False)
class Region:
    """What to do at each equation, in order; what is known of each value; what leaves.

    A value: what grows, trims or schedules a region gives another one.
    """

    graph: Graph
    n: int
    reverse: bool
    actions: Mapping[Node, Any] = field(default_factory=dict)
    streams: Mapping[int, Stream] = field(default_factory=dict)
    declined: Sequence[tuple[Node, str]] = ()
    pulled: frozenset = frozenset()  # equations that run outside as well, if somebody needs them

    def __post_init__(self):
        object.__setattr__(self, "actions", MappingProxyType(self.actions))
        object.__setattr__(self, "streams", MappingProxyType(self.streams))

    @property
    def full(self) -> Window:
        """The window of a value that has an element for each step."""
        return Window(0, 1, self.n)

    def sources(self) -> dict[tuple[int, Ax, Window], None]:
        """The values from outside that are cut into slices."""
        found = {}
        for node, action in self.actions.items():
            for i, (v, ax) in enumerate(zip(node.ins, axes_of(action, node), strict=True)):
                if ax is not None and v not in self.streams:
                    window = action.window
                    found[v, ax, window] = None
                    assert not isinstance(action, Mapped) or not action.delays[i]
        return found

    def wholes(self) -> dict[int, None]:
        """The values from outside that every step sees whole; what is fed sees pulled ones so."""
        made = {v for node in self.actions for v in node.outs}
        return {
            v: None
            for node, action in self.actions.items()
            for v, ax in zip(node.ins, axes_of(action, node), strict=True)
            if (ax is None and v not in self.streams and v not in made)
            or (isinstance(action, Fed) and self.graph.maker[v] in self.pulled)
        }

    def escapes(self) -> dict[int, None]:
        """The values with the axis that somebody outside uses."""
        pinned = set(self.graph.outputs)
        return {
            v: None
            for v in self.streams
            if self.graph.maker[v] not in self.pulled
            and (v in pinned or any(u not in self.actions for u in self.graph.users(v)))
        }

    def results(self) -> dict[int, None]:
        """The values without the axis that somebody needs when the stream has ended."""
        pinned = set(self.graph.outputs)
        inside = {n for n, a in self.actions.items() if not isinstance(a, Fed)}
        return {
            v: None
            for node, action in self.actions.items()
            if isinstance(action, Ended | Kept)
            for v in node.outs
            if v in pinned or any(u not in inside for u in self.graph.users(v))
        }


def axes_of(action, node) -> tuple[Ax | None, ...]:
    """The axis of each operand, as an action wants it."""
    match action:
        case Mapped(f):
            return f.ins
        case Ended(ins=ins):
            return ins
        case Carried(running=running):
            return running.ins
    return tuple(None for _ in node.ins)


def origin_of(graph: Graph, node: Node):
    """Who makes the operands of an equation, for axis rules that must know."""

    def origin(i):
        value = node.ins[i]
        made = graph.maker[value]
        return graph.value(value) if made is None else Origin(made.eqn, origin_of(graph, made))

    return origin


def is_linear_sink(action: Ended) -> bool:
    """Whether what was accumulated may be scaled afterwards."""
    if any(m.kind == "power" for m in action.marks):
        return action.sink.name == "reduce_sum" and len(action.marks) == 1
    return action.sink.name in ("reduce_sum", "dot_general")
