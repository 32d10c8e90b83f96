"""Where a region had better end: what leaves it small stays, what leaves it big goes back."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from malleable.programs.primitives import has
from malleable.programs.types import bytes_of
from malleable.rewriting.axis.axes import flow
from malleable.rewriting.graph.graph import Graph, Node
from malleable.rewriting.graph.slices import Flow
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


def without(region: Region, nodes: Iterable[Node]) -> Region:
    """The region with these equations outside, and all that need their results."""
    actions, streams, work = dict(region.actions), dict(region.streams), list(nodes)
    while work:
        node = work.pop()
        if actions.pop(node, None) is not None:
            for v in node.outs:
                streams.pop(v, None)
                work.extend(u for u in region.graph.users(v) if u in actions)
    return replace(region, actions=actions, streams=streams)


def pull(
    graph: Graph, wanted: Mapping[int, Stream], n: int, small: int, known: Region | None = None
) -> tuple[dict[Node, Mapped], dict[int, Stream]]:
    """The equations that make values larger than `small`, to be run slice by slice as well.

    wanted: values that are to be cut. Gives the actions, in order, and all that they make: what is
    wanted, where it can be cut, and what is made on the way.
    """
    streams = dict(wanted)
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
    return dict(sorted(actions.items(), key=lambda item: place[item[0]])), streams


def _uses(region: Region) -> dict[int, set]:
    """By value, where the equations of a region take the axis to be in it: None for nowhere."""
    found: dict[int, set] = {}
    for node, action in region.actions.items():
        for v, ax in zip(node.ins, axes_of(action, node), strict=True):
            found.setdefault(v, set()).add(ax)
    return found


def pull_sources(region: Region) -> Region:
    """The region that cuts what a source is worked out from instead, where that is no more."""
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
            action = Mapped(found, window, (0,) * len(node.ins))
            region = replace(
                region,
                actions={**region.actions, node: action},
                streams={**region.streams, v: Stream(ax, window)},
                pulled=region.pulled | {node},
            )
            again = True
            break
    return region


def retreat(region: Region) -> Region:
    """The region without its last equations before an escape, where they give no less.

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
                region, again = without(region, [node]), True
    return region


def keep_big(region: Region, small: int) -> Region:
    """The region without what only comes after the last big value: it needs no streaming."""
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
    return without(region, [node for node in region.actions if node not in useful])


def follow(region: Region, grown: Mapping) -> Region:
    """The region with cheap equations of `grown` that come after the last big value.

    A gradient computes a block again; what is nonlinear behind it would need the block's results
    from a pass of their own.
    """
    graph, most = region.graph, len(region.actions) + Machine.current().tail_equations
    actions, streams = dict(region.actions), dict(region.streams)
    late = graph.reach((v for node in grown for v in node.outs), forward=True)
    for node, action in grown.items():
        if node in actions or not isinstance(action, Mapped) or node.name not in FUSIBLE:
            continue
        taken = {v for v in node.ins if v in streams}
        if not taken or not late.isdisjoint({*node.ins} - taken) or len(actions) == most:
            continue
        axes = [ax for v, ax in zip(node.ins, action.flow.ins, strict=True) if v in taken]
        if axes != [streams[v].ax for v in node.ins if v in taken]:
            continue
        (out,), (ax,) = node.outs, action.flow.outs
        if ax is not None and size(graph, out) <= sum(size(graph, v) for v in taken):
            actions[node], streams[out] = action, Stream(ax, action.window)
    return replace(region, actions=actions, streams=streams)


def finish(region: Region) -> Region:
    """With the equations without the axis that its steps need, all in order."""
    graph, actions = region.graph, dict(region.actions)
    marks = [m.by for s in region.streams.values() for m in s.marks]
    marks += [m.by for a in region.actions.values() for m in getattr(a, "marks", ())]
    needed = [v for node in region.actions for v in node.ins if v not in region.streams]
    late: set[int] = set()  # the values that come from a sink of the region
    for node in graph.order():
        if isinstance(actions.get(node), Ended | Kept) or not late.isdisjoint(node.ins):
            late.update(node.outs)
    work = [v for v in (*marks, *needed) if v in late]
    while work:
        node = graph.maker[work.pop()]
        if node is None or node in actions:
            continue
        actions[node] = Fed()
        work.extend(v for v in node.ins if v in late)
    place = {node: i for i, node in enumerate(graph.order())}
    return replace(region, actions=dict(sorted(actions.items(), key=lambda it: place[it[0]])))
