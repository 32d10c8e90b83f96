"""Where a region had better end: what leaves it small stays, what leaves it big goes back."""

from malleable.programs.primitives import has
from malleable.programs.types import bytes_of
from malleable.rewriting.axis.axes import Flow, flow
from malleable.rewriting.graph.graph import Graph, Node
from malleable.rewriting.machine import Machine
from malleable.rewriting.streaming.region.region import (
    Ended,
    Fed,
    Kept,
    Mapped,
    Region,
    Stream,
    axes_of,
    origin_of,
)

FUSIBLE = has("fuses")


def size(graph: Graph, value: int) -> int:
    """Bytes of a value.

    >>> from malleable import stage
    >>> graph = Graph.of(stage(lambda x: x)(1.0).jaxpr)
    >>> size(graph, graph.inputs[0])
    4
    """
    return bytes_of(graph.avals[value])


def drop(region: Region, node: Node) -> None:
    """Leave an equation outside, and all that needs its results."""
    work = [node]
    while work:
        node = work.pop()
        if region.actions.pop(node, None) is None:
            continue
        for v in node.outs:
            region.streams.pop(v, None)
            work.extend(u for u in region.graph.users(v) if u in region.actions)


def pull(graph: Graph, streams: dict, n: int, small: int, known: Region | None = None):
    """The equations that make values larger than `small`, to be run slice by slice as well.

    streams: the values wanted, {value: Stream}; those made on the way are added. Gives the
    actions, in order, or why there are none.
    """
    uses: dict[int, set] = _uses(known) if known is not None else {}
    there = dict(known.streams) if known is not None else {}
    for v in [v for v in streams if uses.get(v, {streams[v].ax}) != {streams[v].ax}]:
        streams.pop(v)
    actions, work = {}, list(streams)
    while work:
        v = work.pop()
        node = graph.maker[v]
        if node in actions:
            continue
        if node is None:
            streams.pop(v)
            continue
        found = None
        if not node.eqn.effects and len(node.outs) == 1:
            unknown = (None,) * len(node.ins)
            found = flow(node.eqn, unknown, (streams[v].ax,), n, origin_of(graph, node))
        if not isinstance(found, Flow):
            streams.pop(v)
            continue
        taken = list(zip(node.ins, found.ins, strict=True))
        known_axes = {**there, **streams}
        if any(u in known_axes and known_axes[u].ax != ax for u, ax in taken):
            streams.pop(v)  # one value slice by slice and as a whole
            continue
        actions[node] = Mapped(found, streams[v].window, (0,) * len(node.ins))
        for u, ax in taken:
            uses.setdefault(u, set()).add(ax)
        for u, ax in taken:
            if ax is None or size(graph, u) <= small or u in known_axes or uses[u] != {ax}:
                continue
            if u not in streams:
                streams[u] = Stream(ax, streams[v].window)
                work.append(u)
    place = {node: i for i, node in enumerate(graph.order())}
    return dict(sorted(actions.items(), key=lambda item: place[item[0]]))


def _uses(region: Region) -> dict[int, set]:
    """By value, where the equations of a region take the axis to be in it: None for nowhere."""
    found: dict[int, set] = {}
    for node, action in region.actions.items():
        for v, ax in zip(node.ins, axes_of(action, node), strict=True):
            found.setdefault(v, set()).add(ax)
    return found


def pull_sources(region: Region) -> None:
    """Cut what a source is worked out from instead, where that is no more."""
    graph, again = region.graph, True
    while again:
        again = False
        users: dict[int, set] = {}
        for node in region.actions:
            for v in node.ins:
                users.setdefault(v, set()).add(node)
        for v, ax, window in list(region.sources()):
            node = graph.maker[v]
            if node is None or node.name not in FUSIBLE or set(graph.users(v)) != users[v]:
                continue
            if v in region.graph.outputs or v in region.streams or v in set(region.wholes()):
                continue
            if sum(u == v for u, *_ in region.sources()) > 1:
                continue
            found = flow(node.eqn, (None,) * len(node.ins), (ax,), window.count)
            if not isinstance(found, Flow) or any(u in region.streams for u in node.ins):
                continue
            here = [u for u, a in zip(node.ins, found.ins, strict=True) if a is not None]
            if sum(size(graph, u) for u in set(here)) > size(graph, v):
                continue
            region.actions[node] = Mapped(found, window, (0,) * len(node.ins))
            region.streams[v] = Stream(ax, window)
            region.pulled |= {node}
            again = True
            break


def retreat(region: Region) -> None:
    """Drop the last equations before an escape, where they take no more than they give.

    So the axis leaves the region where it is narrowest, or already did.
    """
    graph, again = region.graph, True
    while again:
        again = False
        for node in reversed(list(region.actions)):
            action = region.actions.get(node)
            if action is None or isinstance(action, Ended | Kept | Fed):
                continue
            users = [u for v in node.outs for u in graph.users(v)]
            if any(u in region.actions for u in users):
                continue
            escaping = region.escapes()
            fed = {v for v in node.ins if v in region.streams and v not in escaping}
            if sum(size(graph, v) for v in node.outs) >= sum(size(graph, v) for v in fed):
                drop(region, node)
                again = True


def keep_big(region: Region, small: int) -> None:
    """Drop what only comes after the last big value: it needs no streaming any more."""
    graph = region.graph
    useful: set = set()
    for node in reversed(list(region.actions)):
        big = any(
            size(graph, v) > small
            for v, ax in zip(node.ins, axes_of(region.actions[node], node), strict=True)
            if v in region.streams or ax is not None
        )
        onwards = any(u in useful for v in node.outs for u in graph.users(v))
        if big or onwards or any(size(graph, v) > small for v in node.outs):
            useful.add(node)
    for node in list(region.actions):
        if node not in useful:
            drop(region, node)


def follow(region: Region, grown: dict) -> None:
    """Take cheap equations back in that come after the last big value, in order, from `grown`.

    A gradient computes a block again; what is nonlinear behind it would need the block's results
    from a pass of their own.
    """
    graph, more, most = region.graph, 0, Machine.current().tail_equations
    late = graph.reach((v for node in grown for v in node.outs), forward=True)
    for node, action in grown.items():
        if node in region.actions or not isinstance(action, Mapped) or node.name not in FUSIBLE:
            continue
        taken = {v for v in node.ins if v in region.streams}
        if not taken or not late.isdisjoint({*node.ins} - taken) or more == most:
            continue
        axes = [ax for v, ax in zip(node.ins, action.flow.ins, strict=True) if v in taken]
        if axes != [region.streams[v].ax for v in node.ins if v in taken]:
            continue
        (out,), (ax,) = node.outs, action.flow.outs
        if ax is not None and size(graph, out) <= sum(size(graph, v) for v in taken):
            region.actions[node] = action
            region.streams[out] = Stream(ax, action.window)
            more += 1


def finish(region: Region) -> Region:
    """With the equations without the axis that its steps need, all in order."""
    graph = region.graph
    marks = [m.by for s in region.streams.values() for m in s.marks]
    marks += [m.by for a in region.actions.values() for m in getattr(a, "marks", ())]
    needed = [v for node in region.actions for v in node.ins if v not in region.streams]
    late: dict[int, bool] = {}

    def is_late(value) -> bool:
        """Whether a value comes from a sink of the region."""
        stack = [value]
        while stack:
            v = stack[-1]
            node = graph.maker[v]
            if v in late or node is None:
                late.setdefault(v, False)
                stack.pop()
            elif node in region.actions and isinstance(region.actions[node], Ended | Kept):
                late[v] = True
                stack.pop()
            else:
                rest = [u for u in node.ins if u not in late]
                if rest:
                    stack.extend(rest)
                else:
                    late[v] = any(late[u] for u in node.ins)
                    stack.pop()
        return late[value]

    work = [v for v in (*marks, *needed) if is_late(v)]
    while work:
        node = graph.maker[work.pop()]
        if node is None or node in region.actions:
            continue
        region.actions[node] = Fed()
        work.extend(v for v in node.ins if is_late(v))
    place = {node: i for i, node in enumerate(graph.order())}
    region.actions = dict(sorted(region.actions.items(), key=lambda item: place[item[0]]))
    return region
