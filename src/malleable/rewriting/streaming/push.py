"""Reductions over what a scan stacks, pushed up into the scan: jax#4968.

    def loss(params, xs):
        _, ys = lax.scan(cell, init, xs)
        return jnp.mean((ys - targets) ** 2)

    optimize(loss, push_up_reductions)     # ys is never there as a whole

The scan is rebuilt with the tail of the program in its body, step by step or in chunks of steps;
what it stacked and only reductions used is not stacked any more.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from jax import lax

from malleable import compat
from malleable.notes import note
from malleable.programs.equations import every
from malleable.rewriting.graph.graph import Graph, Node
from malleable.rewriting.graph.slices import Ax
from malleable.rewriting.machine import Machine, decided_for
from malleable.rewriting.passes.buffers import unbuffer
from malleable.rewriting.passes.passes import (
    LEVELS,
    configurable,
    dce,
    each_body,
    is_sized,
    or_say,
    settled,
)
from malleable.rewriting.rules.traced import below
from malleable.rewriting.sharding.local import on_parts
from malleable.rewriting.streaming.cost import (
    chunk_of,
    free_slice,
    gains,
    is_better_behind,
    is_slow,
    steps_of,
)
from malleable.rewriting.streaming.emit.as_written import is_as_written
from malleable.rewriting.streaming.emit.rebuild import (
    NAME,
    Parts,
    carried,
    is_ours,
    is_tail,
    rebuild,
    rebuild_batched,
    rebuild_behind,
)
from malleable.rewriting.streaming.region.frontier import finish, pull_sources, retreat
from malleable.rewriting.streaming.region.grow import grow
from malleable.rewriting.streaming.region.region import Region, Stream, Window
from malleable.rewriting.streaming.region.reversal import unreverse
from malleable.rewriting.streaming.region.sinks import RUNNERS, SINKS, Sink
from malleable.rewriting.streaming.schedule.deferred import defer_sums, deferred_sums
from malleable.rewriting.streaming.schedule.plan import Plan
from malleable.rewriting.streaming.schedule.residuals import is_better_again, is_heavy
from malleable.rewriting.streaming.strategy import Options, Strategy, decided

STAYS = "a reduction stays outside its scan"
ROUNDS = 4  # a scan may find its reduction only when another user of what it stacks is gone


@configurable
def push_up_reductions(
    jaxpr: compat.Jaxpr,
    *,
    chunk: int | str = "auto",
    remat: str | None = "auto",
    sinks: Sequence[Sink] = SINKS,
    level: str = "reassoc",
    threshold: int | None = None,
    machine: Machine | None = None,
) -> compat.Jaxpr:
    """Reduce what scans stack inside the scans: memory / length, and time, where it pays.

    chunk: steps per reduction, for `argmax` and `argmin` at most so many and a divisor of them
    all, "auto" by cost; remat: what a gradient computes again instead of keeping: "tail" (the part
    that was pushed), "body" (the whole step), None, or "auto", which also leaves the gradient as
    it was written where that is better;
    level: "exact" for sums of floats in their old order only; threshold: bytes a scan must stack
    to be worth it (default: 1 MiB, 128 KiB for mere sums, 12 MiB where its steps take no time and
    stack up to 4 KiB; 0: push whatever can be); machine: what to decide for, the default backend
    if None. Declined scans leave a note.
    Source: jax#4968.

    >>> from jax import numpy as jnp
    >>> from malleable import stage
    >>> def total(x):
    ...     _, ys = lax.scan(lambda c, _: (jnp.sin(c), jnp.sin(c)), x, length=9)
    ...     return ys.sum()
    >>> before = stage(total)(jnp.ones(4)).jaxpr
    >>> after = push_up_reductions(before, threshold=0)
    >>> scans = [e for p in (before, after) for e in p.eqns if e.primitive.name == "scan"]
    >>> [[v.aval.shape for v in e.outvars] for e in scans]
    [[(4,), (9, 4)], [(4,), (4,)]]
    """
    check_options(level, threshold, sinks, "chunk", chunk)
    if remat not in ("auto", "tail", "body", None):
        raise ValueError(f'remat is "auto", "tail", "body" or None, not {remat!r}')
    if not is_sized(jaxpr, "push_up_reductions"):
        return jaxpr
    by_name, allow, may_inline = chosen(sinks, level)
    options = Options(chunk, remat, threshold)

    def inline(eqn: compat.Eqn) -> bool:
        """Calls in the way; also a tail that was pushed into this body, to be pushed further."""
        return is_tail(eqn) or may_inline(eqn)

    def push(body: compat.Jaxpr) -> compat.Jaxpr:
        graph = Graph.of(body, inline)
        large = Machine.current().core_cache // 8 if threshold is None else threshold
        changed = level != "exact" and unreverse(graph, large)
        for node in graph.order():
            if node.name == "scan" and node in graph.nodes:
                changed |= _push_one(graph, node, by_name, allow, options)
        return graph.jaxpr() if changed else body

    def rounds(jaxpr: compat.Jaxpr) -> compat.Jaxpr:
        for _ in range(ROUNDS):
            pushed = settled(jaxpr, each_body(push)(unbuffer(jaxpr)))
            if pushed is jaxpr:
                break
            jaxpr = dce(pushed)
        return jaxpr

    with decided_for(machine):
        scans = [e for e in every(jaxpr.jaxpr.eqns) if e.primitive.name == "scan"]
        why = "no reduction takes what a scan stacks" if scans else "the program has no scan"
        return or_say("nothing is pushed up", lambda: why, partial(on_parts, rounds), jaxpr)


def chosen(sinks, level):
    """The sinks by name; whether an action is within the level; which calls may be inlined."""
    yours = {s.name for s in sinks if s.fun is not None}

    def allow(action) -> bool:
        return LEVELS.index(action.sink.level(action.spec)) <= LEVELS.index(level)

    def may_inline(eqn: compat.Eqn) -> bool:
        return compat.is_transparent(eqn) and eqn.params.get("name") not in yours

    return {s.name: s for s in (*sinks, *RUNNERS)}, allow, may_inline


def check_options(level, threshold, sinks, name, count):
    """Raise ValueError for what is no option."""
    if level not in LEVELS:
        raise ValueError(f"level is one of {LEVELS}, not {level!r}")
    whole = isinstance(count, int | np.integer) and not isinstance(count, bool)
    if count != "auto" and not (whole and count > 0):
        raise ValueError(f'{name} is "auto" or a number from 1 on, not {count!r}')
    if threshold is not None and (not isinstance(threshold, int | float) or threshold < 0):
        raise ValueError(f"threshold is a number of bytes, not {threshold!r}")
    if not isinstance(sinks, tuple | list) or not all(isinstance(s, Sink) for s in sinks):
        raise ValueError(f"sinks is a tuple of sinks, not {sinks!r}")


class Entry(NamedTuple):
    """A scan, what it stacks and somebody uses, which carry each is, how a batched map joins it."""

    node: Node
    view: compat.Scan
    seeds: dict[int, Stream]
    carried: dict[int, int]
    parts: Parts | None
    grow: Callable[..., Region]


def _push_one(graph: Graph, node: Node, sinks, allow, options: Options) -> bool:
    """Push into one scan what may be: `grow -> trim -> schedule -> choose -> emit`."""
    view = compat.view(node.eqn)
    if not isinstance(view, compat.Scan) or view.length < 2 or is_ours(view.body):
        return False
    if compat.has_effects(node.eqn):
        note(STAYS, compat.where(node.eqn), "the scan has effects")
        return False
    taken = _take_last(graph, node, view)
    entry = _entry(graph, node, view, sinks, allow)
    if entry is None:
        return taken
    region = trim(entry, entry.grow(entry.seeds))
    if not region.results():
        for last, why in region.declined[-1:]:
            note(STAYS, compat.where(last.eqn, node.eqn), why)
        return taken
    plan = Plan(region, entry.carried)
    how = decided(choose(entry, plan, options))
    if how.why:
        note(STAYS, compat.where(node.eqn), how.why)
        return taken
    graph.replace(emit(entry, plan, how))
    return True


def _entry(graph: Graph, node: Node, view: compat.Scan, sinks, allow) -> Entry | None:
    """Where what a scan stacks enters; None where nobody uses it."""
    _, carry, _ = view.split(list(node.ins))
    carries, ys, n = node.outs[: len(carry)], node.outs[len(carry) :], view.length
    seeds = {v: Stream(Ax(0), Window(0, 1, n)) for v in ys if graph.is_used(v)}
    if not seeds:
        return None
    options = {"reverse": view.reverse, "allow": allow}
    options["after"] = carries
    if parts := _parts(graph, node, list(seeds), n):
        n = n * parts.width + parts.rest
        seeds = {v: Stream(Ax(0), Window(0, 1, n)) for v in parts.joined}
        options |= {"after": [*carries, *ys, *parts.between], "made": parts.nodes}
    grown = partial(grow, graph, n=n, sinks=sinks, **options)
    return Entry(node, view, seeds, carried(view, node), parts, grown)


def trim(entry: Entry, region: Region) -> Region:
    """The region that ends where it is narrow and starts where that is no more, all in order."""
    region = retreat(region)
    if not region.results():
        return region
    region = pull_sources(region)
    return finish(region if entry.parts else _with_windows(entry, region))


def choose(entry: Entry, plan: Plan, options: Options) -> Strategy:
    """How the region runs, or why it does not."""
    node, view, seeds, places, parts, _ = entry
    graph, region, (chunk, remat, least) = plan.graph, plan.region, options
    why = gains(region, list(seeds), least, free_slice(view.body))
    if parts and plan.single:
        why = "parts of a batched map are taken"
    elif plan.single and least != 0 and is_slow(region):
        why = "its steps are too small to reduce one by one"
    if why:
        return Strategy(why=why)
    light = not is_heavy(view.body)
    k = chunk_of(region, light) if chunk == "auto" else steps_of(region, node, chunk)
    k = 1 if plan.single else k
    written = ""
    if remat == "auto":
        count = len(view.split(list(node.ins))[1])
        carries, ys = node.outs[:count], node.outs[count:]
        if not parts and least != 0 and is_as_written(region, list(seeds), carries):
            written = "derivative"
        given = region.streams if not parts else {v for v in ys if graph.is_used(v)}
        wanted = [i for i, v in enumerate(ys) if v in given]
        remat = "body" if is_better_again(view, wanted, k) else "tail"
    deferred = deferred_sums(region) if k == 1 and not parts else []
    loop = "batched" if parts else "scan"
    if k == 1 and not parts and seeds.keys() <= places.keys():
        loop = "behind" if is_better_behind(plan, node, view, deferred) else "scan"
    return Strategy(loop, k, remat, bool(deferred), written)


def emit(entry: Entry, plan: Plan, how: Strategy) -> dict[int, int]:
    """The loop in which the region runs; {value outside: what it is now}."""
    graph, node, view = plan.graph, entry.node, entry.view
    if how.deferred:
        plan = Plan(defer_sums(plan.region), entry.carried)
    if entry.parts:
        return rebuild_batched(graph, node, view, plan, entry.parts, how)
    if how.loop == "behind":
        return rebuild_behind(graph, node, view, plan, entry.carried, how)
    return rebuild(graph, node, view, plan, how)


def _with_windows(entry: Entry, region: Region) -> Region:
    """The region where xs[1:], of an array as long as the scan, is a part of xs, and no copy.

    Only if what it meets a step later is a carry, which is still there then.
    """
    graph, n, cuts = region.graph, region.n, {}
    for v, ax, _ in region.sources():
        node = graph.maker[v]
        if node is not None and node.name == "slice" and ax == Ax(0):
            (whole,) = node.ins
            shape, p = graph.avals[whole].shape, node.params
            rows = p["limit_indices"][0] - p["start_indices"][0]
            same = p["strides"] is None and graph.avals[v].shape == (rows, *shape[1:])
            if same and shape[0] == n and whole not in region.streams:
                cuts[node] = whole
    if not cuts:
        return region
    wholes = {v: Stream(Ax(0), Window(0, 1, n)) for v in cuts.values()}
    users = {u for v in wholes for u in graph.users(v)}
    apart = frozenset(u for u in users if u not in region.actions and u not in cuts)
    pulled = frozenset(graph.maker[v] for v in wholes)
    found = entry.grow({**entry.seeds, **wholes}, made=apart, pulled=pulled)
    found = pull_sources(retreat(found))
    if found.results().keys() != region.results().keys() or len(found.escapes()) > len(
        region.escapes()
    ):
        return region
    plan = Plan(finish(found), entry.carried)
    return found if plan.delayed == plan.handed.keys() else region


def _take_last(graph: Graph, node: Node, view) -> bool:
    """The last element stacked is the last carry, if each step stacks its new carry."""
    taken = False
    count = len(view.split(list(node.ins))[1])
    program, last = view.body.jaxpr, 0 if view.reverse else view.length - 1
    for v, atom in zip(node.outs[count:], program.outvars[count:], strict=True):
        same = [
            c for c, new in zip(node.outs, program.outvars[:count], strict=False) if new is atom
        ]
        shape = graph.avals[v].shape
        for user in graph.users(v) if same else ():
            p = user.params
            whole = user.name == "slice" and p["limit_indices"][1:] == shape[1:]
            ends = whole and (p["start_indices"][0], p["limit_indices"][0]) == (last, last + 1)
            if ends and not any(p["start_indices"][1:]) and set(p["strides"] or (1,)) == {1}:
                graph.rewrite(user, lambda c: [lax.expand_dims(c, (0,))], same[:1], NAME)
                taken = True
    return taken


def _parts(graph: Graph, scan: Node, ys: list[int], n: int) -> Parts | None:
    """Whether all that a scan stacks is reshaped to rows, and joined with some more of them."""
    found = []
    for v in ys:
        shape = graph.avals[v].shape
        users = graph.users(v)
        if len(users) != 1 or users[0].name != "reshape" or v in graph.outputs or len(shape) < 2:
            return None
        (flat,) = users[0].outs
        joins = graph.users(flat)
        if graph.avals[flat].shape != (n * shape[1], *shape[2:]) or flat in graph.outputs:
            return None
        if len(joins) != 1 or joins[0].name != "concatenate" or joins[0].params["dimension"]:
            return None
        if len(joins[0].ins) != 2 or joins[0].ins[0] != flat:
            return None
        found.append((shape[1], joins[0].outs[0], joins[0].ins[1], users[0], joins[0], flat))
    widths = {(w, graph.avals[tail].shape[0]) for w, _, tail, *_ in found}
    if len(widths) != 1 or scan in below(graph, [f[2] for f in found]):
        return None
    ((width, rest),) = widths
    nodes = frozenset(node for f in found for node in f[3:5])
    return Parts(
        width, rest, [f[1] for f in found], [f[2] for f in found], nodes, [f[5] for f in found]
    )
