"""Growing a region: what an equation does with an axis that some of its operands carry."""

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from malleable import compat
from malleable.rewriting.axis.axes import flow
from malleable.rewriting.axis.picks import is_pick
from malleable.rewriting.graph.graph import Graph, Node, fingerprint
from malleable.rewriting.graph.slices import Ax, Flow, Running, Sunk
from malleable.rewriting.streaming.region import feedback
from malleable.rewriting.streaming.region.region import (
    Alias,
    Carried,
    Ended,
    Joined,
    Kept,
    Mapped,
    Mark,
    Region,
    Stream,
    Window,
    is_linear_sink,
    origin_of,
)
from malleable.rewriting.streaming.region.sinks import Sink, Spec

LONGEST = 2  # steps that an operand may wait for another one


def grow(
    graph: Graph,
    streams: dict[int, Stream],
    n: int,
    sinks: dict[str, Sink],
    *,
    after: Iterable[int] = (),
    start: dict[Node, Any] | None = None,
    beside: dict[int, Stream] | None = None,
    reverse: bool = False,
    pulled: frozenset = frozenset(),
    made: frozenset = frozenset(),
    allow: Callable[[Ended | Carried], bool] = lambda action: True,
) -> Region:
    """The region of an axis of length n that enters at `streams`.

    after: further values that are known only when the stream has ended; start, beside: actions that
    are decided already, and what they make on the way; pulled: equations that run outside as well;
    made: those whose results are the streams themselves; allow: which sinks may be used.
    """
    place = {node: i for i, node in enumerate(graph.order())}

    def once(forbidden: frozenset) -> tuple[Region, frozenset]:
        """The region without some equations, and which further ones must stay outside."""
        # where a value that depends on the stream without carrying it comes from: sinks, or None
        roots: dict[int, frozenset | None] = dict.fromkeys(after)
        actions, known, declined = dict(start or {}), {**(beside or {}), **streams}, []
        region = Region(graph, n, reverse, actions, known, declined, pulled)
        grower = _Grower(region, actions, known, declined, roots, sinks, forbidden, allow)
        queue, seen = [], {*actions, *made}

        def visit(values):
            for v in values:
                for user in graph.users(v):
                    if user not in seen and user in place:
                        seen.add(user)
                        heapq.heappush(queue, (place[user], user))

        visit([*streams, *roots])
        while queue:
            _, node = heapq.heappop(queue)
            grower.decide(node)
            visit(node.outs)
        return region, grower.unfinished()

    region, bad = once(frozenset())
    forbidden = bad
    while bad:
        region, bad = once(forbidden)
        forbidden |= bad
    return region


@dataclass
class _Grower:
    """Fills the region's tables, equation by equation; nobody else changes them."""

    region: Region
    actions: dict[Node, Any]
    streams: dict[int, Stream]
    declined: list[tuple[Node, str]]
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
            joined = frozenset().union(*filter(None, sources)) if known else None
            self.roots.update(dict.fromkeys(node.outs, joined))
            return
        found = "it is used by a rewrite that does not work out"
        if node.eqn.effects:
            found = "it has effects"
        elif node not in self.forbidden:
            found = self.action(node)
        if isinstance(found, str):
            self.declined.append((node, found))
            self.roots.update(dict.fromkeys(node.outs))
            return
        action, streams = found
        self.actions[node] = action
        if streams is None:
            self.roots.update(dict.fromkeys(node.outs, frozenset([node])))
        else:
            self.streams.update(zip(node.outs, streams, strict=True))

    # ------------------------------------------------------------ one equation

    def action(self, node: Node):
        """(action, what is known of its results or None for a sink), or why there is none."""
        region = self.region
        known = [region.streams.get(v) for v in node.ins]
        late = [i for i, v in enumerate(node.ins) if v in self.roots]
        marked = [i for i, s in enumerate(known) if s and s.marks]
        if marked:
            return feedback.marked(self, node, known, marked, late)
        along = self.along_axis(node, known, late)
        if along is not None:
            return along
        windows = [s.window for s in known if s]
        unsettled = [i for i in late if not feedback.is_settled(self, node.ins[i], windows)]
        if unsettled:
            return feedback.fed_back(self, node, known, unsettled)
        return self.mapped(node, known)

    def mapped(self, node, known, marks=()):
        region = self.region
        fitted = self.fit(known)
        if isinstance(fitted, str):
            return fitted
        window, delays = fitted
        own = self.sinks.get(self.sink_name(node))
        if getattr(own, "fun", None) is not None:
            found = self.yours(own, node, known)
        else:
            axes = tuple(s and s.ax for s in known)
            unknown = (None,) * len(node.outs)
            found = flow(node.eqn, axes, unknown, window.count, origin_of(region.graph, node))
        if isinstance(found, str):
            return found
        for v, s, ax in zip(node.ins, known, found.ins, strict=True):
            if s is not None and s.ax != ax:
                return "it uses one value slice by slice and as a whole"
            if s is None and ax is not None and v in self.roots:
                return "it joins the axis with a result that is known at its end only"
        match found:
            case Flow(outs=outs):
                if not marks:
                    window, delays = self.on_time(known, found.ins, window, delays)
                made = [Stream(ax, window, marks) for ax in outs if ax is not None]
                if len(made) < len(outs):
                    return "not all its results carry the axis"
                return Mapped(found, window, delays), made
            case Sunk(ins, how):
                if any(delays):
                    return "its operands are shifted along the axis"
                return self.ended(node, ins, how, window, marks)
            case Running():
                if marks or any(delays):
                    return "a running sum of what is not final"
                sink: Any = self.sinks.get(node.name)
                spec = self.spec(node, found.how, window)
                if sink is None:
                    return f"{node.name} along the axis has no running form"
                last = window.start + window.count
                if window.step > 1 or window.start > 0 or last < region.n:
                    return "it runs along a part of the axis"
                if not sink.fits(spec):
                    return f"{node.name} runs against the stream"
                action = Carried(sink, spec, found, window)
                if not self.allow(action):
                    return "its order of operations would change"
                return action, [Stream(ax, window) for ax in found.outs if ax]
        raise TypeError(found)

    def ended(self, node, ins, how, window, marks):
        sink = self.sinks.get(self.sink_name(node))
        if sink is None:
            return f"{node.name} over the axis is no sink"
        action = Ended(sink, self.spec(node, how, window), ins, window, marks)
        if not self.allow(action):
            return "the order of its sum would change"
        return action, None

    def yours(self, sink, node, known):
        """The axis in a reduction of the user's, which is over the leading axis of each operand."""
        if any(s.ax != Ax(0) for s in known if s is not None):
            return "a sink of yours takes the axis as the leading one"
        (call,) = compat.trace(sink.fun, *(self.region.graph.avals[v] for v in node.ins)).eqns
        asked, found = compat.bodies(call.params)[0], compat.bodies(node.params)[0]
        if fingerprint(compat.dce(asked)) != fingerprint(compat.dce(found)):
            return "a sink of yours was transformed before it got here"
        return Sunk((Ax(0),) * len(node.ins), None)

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
        if max(delays) > LONGEST:
            return "its operands are shifted by more than two steps"
        return first._replace(start=last), delays

    def on_time(self, known, axes, window, delays):
        """(window, delays) at the steps of the stream, for what is at hand a step or two early.

        So an operand from outside, as long as the stream, need not be copied to be as early.
        """
        outside = any(s is None and ax is not None for s, ax in zip(known, axes, strict=True))
        early = window.start if self.region.reverse else -window.start
        later = tuple(d + early if s else 0 for s, d in zip(known, delays, strict=True))
        whole = window._replace(start=0) == self.region.full
        fits = whole and early > 0 and max(later) <= LONGEST
        if outside and fits and not any(s.marks for s in known if s):
            return self.region.full, later
        return window, delays

    # ------------------------------------------------------------ along the axis itself

    def along_axis(self, node, known, late):
        """Windows, joins and single elements; None where the axis is not touched."""
        stream = known[0]
        if late or (not stream and node.name != "concatenate"):
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
                    a != b for i, (a, b) in enumerate(zip(sizes, shape, strict=True)) if i != ax.dim
                ):
                    return "it cuts a part of unknown place"
                if stream.window != self.region.full:
                    return "it picks from a part of the axis"
                return Kept(None, stream.window, 1 + ax.dim), None
            case "gather":
                if not is_pick(node.eqn, ax) or stream.window != self.region.full:
                    return None
                found = flow(node.eqn, (ax, None), (None,), stream.window.count)
                return (Kept(None, stream.window, 1), None) if isinstance(found, str) else None
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
        n = self.region.n
        if any(a < n and a + size > 0 for i, (a, size) in enumerate(places) if i != here):
            return "rows of the axis are replaced by others"
        return Joined(places), [Stream(stream.ax, Window(start, 1, whole))]

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
