"""Which equations an axis can stream through: from where it enters to where it ends.

A region is grown forwards from the values that carry the axis. Each equation of it either maps
(each slice of its results needs one slice of its operands), or is where the axis ends: a sink. What
leaves the region with the axis on escapes, and stays stacked. Two kinds of feedback are allowed:
a sink whose result is known at the first step, and results that enter by `x - result` or
`x * result` and leave again by a linear reduction, as in a softmax over the axis.
"""

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from malleable import compat
from malleable.rewriting.axes import Ax, Flow, Running, Sunk, flow
from malleable.rewriting.axis_windows import Origin
from malleable.rewriting.graph import Graph, Node
from malleable.rewriting.sinks import Sink, Spec


class Window(NamedTuple):
    """Element j of a value is at hand when the stream is at t = start + j * step."""

    start: int
    step: int
    count: int


class Mark(NamedTuple):
    """What a value of the region still lacks, in terms of a result `by` known at the end.

    shift: the value is x - by, with `by` provisional; scale: it is proportional to exp(-by), of
    the provisional one; power: it is (x - by)**k; mul, div: it is to be multiplied, divided.
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
    """One element of the axis, number `at` in t; lead: the dim it leaves behind, or None."""

    at: Any
    window: Window


class Carried(NamedTuple):
    """A running sum and its like."""

    sink: Sink
    spec: Spec
    running: Running
    window: Window


class Fed(NamedTuple):
    """No axis: worked out at each step, from what the sinks have so far."""


@dataclass
class Region:
    """What to do at each equation, in order; what is known of each value; what leaves."""

    graph: Graph
    n: int
    reverse: bool
    actions: dict[Node, Any] = field(default_factory=dict)
    streams: dict[int, Stream] = field(default_factory=dict)
    declined: list[tuple[Node, str]] = field(default_factory=list)
    pulled: frozenset = frozenset()  # equations that run outside as well, if somebody needs them

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
        """The values from outside that every step sees whole."""
        made = {v for node in self.actions for v in node.outs}
        return {
            v: None
            for node, action in self.actions.items()
            for v, ax in zip(node.ins, axes_of(action, node), strict=True)
            if ax is None and v not in self.streams and v not in made
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
        case Joined():
            return tuple(None for _ in node.ins)
    return tuple(None for _ in node.ins)


def grow(
    graph: Graph,
    streams: dict[int, Stream],
    n: int,
    sinks: dict[str, Sink],
    *,
    after: Iterable[int] = (),
    start: dict[Node, Any] | None = None,
    reverse: bool = False,
    forbidden: frozenset = frozenset(),
    pulled: frozenset = frozenset(),
    made: frozenset = frozenset(),
    allow: Callable[[Ended | Carried], bool] = lambda action: True,
) -> Region:
    """The region of an axis of length n that enters at `streams`.

    after: further values that are known only when the stream has ended; start: actions that are
    decided already; forbidden: equations that stay outside; pulled: those that run outside as
    well; made: those whose results are the streams themselves; allow: which sinks may be used.
    """
    region = Region(graph, n, reverse, dict(start or {}), dict(streams), pulled=pulled)
    place = {node: i for i, node in enumerate(graph.order())}
    # where a value that depends on the stream without carrying it comes from: sinks, or None
    roots: dict[int, frozenset | None] = dict.fromkeys(after)
    queue, seen = [], {*region.actions, *made}

    def visit(values):
        for v in values:
            for user in graph.users(v):
                if user not in seen and user in place:
                    seen.add(user)
                    heapq.heappush(queue, (place[user], user))

    visit([*region.streams, *roots])
    grower = _Grower(region, roots, sinks, forbidden, allow)
    while queue:
        _, node = heapq.heappop(queue)
        grower.decide(node)
        visit(node.outs)
    bad = grower.unfinished()
    if bad:
        return grow(
            graph,
            streams,
            n,
            sinks,
            after=after,
            start=start,
            reverse=reverse,
            forbidden=forbidden | bad,
            pulled=pulled,
            made=made,
            allow=allow,
        )
    return region


@dataclass
class _Grower:
    region: Region
    roots: dict[int, frozenset | None]
    sinks: dict[str, Sink]
    forbidden: frozenset
    allow: Callable
    origin: dict[Mark, Node] = field(default_factory=dict)

    def decide(self, node: Node) -> None:
        """Find the action for an equation, or leave it outside."""
        region = self.region
        if not any(v in region.streams for v in node.ins):
            sources = [self.roots[v] for v in node.ins if v in self.roots]
            known = None not in sources and not node.eqn.effects
            joined = frozenset().union(*sources) if known else None
            self.roots.update(dict.fromkeys(node.outs, joined))
            return
        found = "it is used by a rewrite that does not work out"
        if node.eqn.effects:
            found = "it has effects"
        elif node not in self.forbidden:
            found = self.action(node)
        if isinstance(found, str):
            region.declined.append((node, found))
            self.roots.update(dict.fromkeys(node.outs))
            return
        action, streams = found
        region.actions[node] = action
        if streams is None:
            self.roots.update(dict.fromkeys(node.outs, frozenset([node])))
        else:
            region.streams.update(zip(node.outs, streams, strict=True))

    # ------------------------------------------------------------ one equation

    def action(self, node: Node):
        """(action, what is known of its results or None for a sink), or why there is none."""
        region = self.region
        known = [region.streams.get(v) for v in node.ins]
        late = [i for i, v in enumerate(node.ins) if v in self.roots]
        marked = [i for i, s in enumerate(known) if s and s.marks]
        if marked:
            return self.marked(node, known, marked, late)
        along = self.along_axis(node, known, late)
        if along is not None:
            return along
        unsettled = [i for i in late if not self.is_settled(node.ins[i])]
        if unsettled:
            return self.fed_back(node, known, unsettled)
        return self.mapped(node, known)

    def mapped(self, node, known, marks=()):
        region = self.region
        fitted = self.fit(known)
        if isinstance(fitted, str):
            return fitted
        window, delays = fitted
        found = flow(
            node.eqn,
            tuple(s and s.ax for s in known),
            (None,) * len(node.outs),
            window.count,
            origin_of(region.graph, node),
        )
        if isinstance(found, str):
            return found
        for v, s, ax in zip(node.ins, known, found.ins, strict=True):
            if s is not None and s.ax != ax:
                return "it uses one value slice by slice and as a whole"
            if s is None and ax is not None and v in self.roots:
                return "it joins the axis with a result that is known at its end only"
        match found:
            case Flow(outs=outs):
                if not any(ax is not None for ax in outs):
                    return "its result does not carry the axis"
                if any(ax is None for ax in outs):
                    return "some of its results do not carry the axis"
                made = [Stream(ax, window, marks) for ax in outs]
                return Mapped(found, window, delays), made
            case Sunk(ins, how):
                if any(delays):
                    return "its operands are shifted along the axis"
                return self.ended(node, ins, how, window, marks)
            case Running():
                if marks or any(delays):
                    return "a running sum of what is not final"
                sink = self.sinks.get(node.name)
                spec = self.spec(node, found.how, window)
                if sink is None:
                    return f"{node.name} along the axis has no running form"
                if not sink.fits(spec):
                    return f"{node.name} runs against the stream"
                action = Carried(sink, spec, found, window)
                if not self.allow(action):
                    return "its order of operations would change"
                return action, [Stream(ax, window) for ax in found.outs]
        raise TypeError(found)

    def ended(self, node, ins, how, window, marks):
        sink = self.sinks.get(self.sink_name(node))
        if sink is None:
            return f"{node.name} over the axis is no sink"
        action = Ended(sink, self.spec(node, how, window), ins, window, marks)
        if not self.allow(action):
            return "the order of its sum would change"
        return action, None

    def sink_name(self, node):
        return node.params.get("name", node.name) if node.name in ("jit", "pjit") else node.name

    def spec(self, node, how, window):
        outs = tuple(self.region.graph.avals[v] for v in node.outs)
        return Spec(how, outs, node.params, window.count, self.region.reverse)

    def fit(self, known):
        """(window, delays) of an equation whose operands are at hand at different times."""
        windows = [s.window for s in known if s is not None]
        first = windows[0]
        if any((w.step, w.count) != (first.step, first.count) for w in windows):
            return "its operands are different parts of the axis"
        last = (min if self.region.reverse else max)(w.start for w in windows)
        delays = tuple(abs(last - s.window.start) if s else 0 for s in known)
        if any(delays) and first.step != 1:
            return "its operands are different strided parts of the axis"
        if max(delays) > 2:
            return "its operands are shifted by more than two steps"
        return first._replace(start=last), delays

    # ------------------------------------------------------------ along the axis itself

    def along_axis(self, node, known, late):
        """Windows, joins and single elements; None where the axis is not touched."""
        stream = known[0]
        if late or not stream and node.name != "concatenate":
            return None
        if node.name == "concatenate":
            return self.joined(node, known)
        ax = stream.ax
        if ax.outer * ax.inner != 1 or sum(s is not None for s in known) != 1:
            return None
        shape = self.region.graph.avals[node.ins[0]].shape
        match node.name:
            case "slice":
                p = node.params
                strides = p["strides"] or (1,) * len(shape)
                here = (p["start_indices"][ax.dim], p["limit_indices"][ax.dim], strides[ax.dim])
                if here == (0, shape[ax.dim], 1):
                    return None
                rest = [i for i in range(len(shape)) if i != ax.dim]
                plain = all(
                    (p["start_indices"][i], p["limit_indices"][i], strides[i]) == (0, shape[i], 1)
                    for i in rest
                )
                return self.windowed(stream, *here) if plain else "it cuts several axes at once"
            case "dynamic_slice":
                sizes = node.params["slice_sizes"]
                if sizes[ax.dim] == shape[ax.dim]:
                    return None
                if sizes[ax.dim] != 1 or any(
                    a != b for i, (a, b) in enumerate(zip(sizes, shape)) if i != ax.dim
                ):
                    return "it cuts a part of unknown place"
                if stream.window != Window(0, 1, self.region.n):
                    return "it picks from a part of the axis"
                return Kept(node.ins[1 + ax.dim], stream.window), None
        return None

    def windowed(self, stream, start, limit, step):
        old = stream.window
        count = -(-(limit - start) // step)
        new = Window(old.start + start * old.step, old.step * step, count)
        if count == 1:
            return Kept(new.start, new), None
        if count < 1:
            return "it is empty"
        return Alias(0), [stream._replace(window=new)]

    def joined(self, node, known):
        dims = {s.ax.dim for s in known if s}
        dim = node.params["dimension"]
        if dims != {dim}:
            return None
        if sum(s is not None for s in known) != 1:
            return "it joins several parts of the axis"
        here = next(i for i, s in enumerate(known) if s)
        stream = known[here]
        if stream.ax.outer * stream.ax.inner != 1 or stream.window.step != 1:
            return "it joins a strided or merged axis"
        sizes = [self.region.graph.avals[v].shape[dim] for v in node.ins]
        before, whole = sum(sizes[:here]), sum(sizes)
        start = stream.window.start - before
        ends = (-start, start + whole - self.region.n)
        if max(ends) > 4:
            return "more than four steps are joined to the axis"
        starts = [start + sum(sizes[:i]) for i in range(len(sizes))]
        places = tuple(zip(starts, sizes, strict=True))
        return Joined(places), [Stream(stream.ax, Window(start, 1, whole))]

    # ------------------------------------------------------------ feedback

    def is_settled(self, value) -> bool:
        """Whether a result is known at the first step already."""
        found = self.roots[value]
        actions = self.region.actions
        first = self.region.n - 1 if self.region.reverse else 0
        return found is not None and all(
            isinstance(actions[node], Kept)
            and isinstance(actions[node].at, int)
            and (actions[node].at >= first if self.region.reverse else actions[node].at <= first)
            for node in found
        )

    def is_running(self, value) -> bool:
        """Whether a provisional result can be had at each step."""
        found = self.roots[value]
        full = Window(0, 1, self.region.n)
        actions = self.region.actions
        return found is not None and all(
            isinstance(actions[node], Ended)
            and not actions[node].marks
            and actions[node].window == full
            for node in found
        )

    def fed_back(self, node, known, late):
        if len(node.ins) != 2 or len(late) != 1 or node.name not in ("sub", "mul", "div"):
            return "it needs a result that is known at the end of the axis only"
        (i,) = late
        stream, by = known[1 - i], node.ins[i]
        if stream is None or (i == 0 and node.name != "mul"):
            return "it needs a result that is known at the end of the axis only"
        graph = self.region.graph
        shape, other = graph.avals[by].shape, graph.avals[node.ins[1 - i]].shape
        if len(shape) != len(other) or graph.avals[node.outs[0]].shape != other:
            return "it spreads over a result of the axis"
        if shape[stream.ax.dim] != 1 or not compat.differentiable(graph.avals[by]):
            return "it needs a result that is known at the end of the axis only"
        dims = tuple((d, Ax(d)) for d, extent in enumerate(shape) if extent != 1)
        if node.name == "sub":
            if not self.is_running(by) or stream.window != Window(0, 1, self.region.n):
                return "it needs a result that is known at the end of the axis only"
            mark = Mark("shift", by, dims)
            ins = tuple(s and s.ax for s in known)
            found = flow(node.eqn, ins, (None,), stream.window.count)
            if not isinstance(found, Flow):
                return "it cannot be cut"
            self.origin[mark] = node
            made = [Stream(ax, stream.window, (mark,)) for ax in found.outs]
            return Mapped(found, stream.window, (0, 0)), made
        mark = Mark(node.name, by, dims)
        self.origin[mark] = node
        return Alias(1 - i), [stream._replace(marks=(mark,))]

    def marked(self, node, known, marked, late):
        """An equation of a value that is not final: linear ones keep the marks."""
        if len(set(marked)) > 1 and node.name not in ("add", "sub", "mul"):
            return "several of its operands are not final"
        i = marked[0]
        marks = known[i].marks
        if late:
            if marks[0].kind == "shift" or any(v in self.roots for v in (node.ins[i],)):
                return "it uses two results of the axis"
            bare = [s and s._replace(marks=()) for s in known]
            found = self.fed_back(node, bare, late)
            if isinstance(found, str) or not isinstance(found[0], Alias):
                return "it uses two results of the axis"
            action, (made,) = found
            return action, [made._replace(marks=(*marks, *made.marks))]
        kinds = {m.kind for m in marks}
        if kinds == {"shift"}:
            return self.shifted(node, known, marks)
        if not self.is_linear(node, known, marked):
            return "it is not linear in a value that is not final yet"
        found = self.mapped(node, known, marks)
        if isinstance(found, str):
            return found
        action, made = found
        moved = []
        for mark in marks:
            dims = self.move(node, i, mark)
            if dims is None:
                return "it mixes the dims of a result that is not known yet"
            moved.append(mark._replace(dims=dims))
            self.origin.setdefault(moved[-1], self.origin[mark])
        if made is None:
            return action._replace(marks=tuple(moved)), None
        return action, [s._replace(marks=tuple(moved)) for s in made]

    def shifted(self, node, known, marks):
        """x - by: exp makes it proportional to exp(-by), powers make moments."""
        (mark,) = marks
        power = {"square": 2, "integer_pow": node.params.get("y"), "mul": 2}.get(node.name)
        if node.name == "exp":
            new = mark._replace(kind="scale")
        elif power and power > 0 and len(set(node.ins)) == 1:
            new = mark._replace(kind="power", power=power)
        else:
            return "it uses a difference to a result of the axis"
        found = self.mapped(node, known)
        if isinstance(found, str):
            return found
        self.origin.setdefault(new, self.origin[mark])
        return found[0], [s._replace(marks=(new,)) for s in found[1]]

    def is_linear(self, node, known, marked) -> bool:
        marks = known[marked[0]].marks
        if any(m.kind == "power" for m in marks):
            return node.name == "reduce_sum"
        match node.name:
            case "add" | "sub":
                both = len(marked) == 2 and known[0].marks == known[1].marks
                return both and node.ins[0] != node.ins[1]
            case "mul" | "dot_general":
                return len(marked) == 1
            case "div":
                return marked == [0]
            case "select_n":
                others = [i for i in (1, 2) if i not in marked]
                return 0 not in marked and all(self.is_zero(node.ins[i]) for i in others)
            case "convert_element_type":
                return compat.differentiable(self.region.graph.avals[node.outs[0]])
        return node.name in (
            "neg reduce_sum transpose reshape squeeze expand_dims broadcast_in_dim copy".split()
        )

    def is_zero(self, value) -> bool:
        """Whether a value is the constant 0, however spread."""
        graph = self.region.graph
        node = graph.maker[value]
        while node is not None and node.name in ("broadcast_in_dim", "convert_element_type"):
            (value,) = node.ins[:1]
            node = graph.maker[value]
        known = graph.value(value)
        return known is not None and np.ndim(known) == 0 and bool(known == 0)

    def move(self, node, operand, mark):
        """Where the dims of a mark go through an equation, or None where they are mixed."""
        graph, dims = self.region.graph, []
        for d, ax in mark.dims:
            extent = graph.avals[mark.by].shape[d]
            ins = [None] * len(node.ins)
            ins[operand] = ax
            found = flow(node.eqn, tuple(ins), (None,) * len(node.outs), extent)
            if not isinstance(found, Flow) or len(found.outs) != 1 or found.outs[0] is None:
                return None
            if found.outs[0].outer * found.outs[0].inner != 1:
                return None
            dims.append((d, found.outs[0]))
        return tuple(dims)

    def unfinished(self) -> frozenset:
        """The equations that left a mark on a value that escapes."""
        region = self.region
        bad = set()
        for v in region.escapes():
            for mark in region.streams[v].marks:
                bad.add(self.origin[mark])
        for action in region.actions.values():
            if isinstance(action, Ended) and action.marks and not is_linear_sink(action):
                bad.update(self.origin[m] for m in action.marks)
        return frozenset(bad)


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
