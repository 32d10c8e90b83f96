"""Reductions over what a scan stacks, pushed up into the scan: jax#4968.

    def loss(params, xs):
        _, ys = lax.scan(cell, init, xs)
        return jnp.mean((ys - targets) ** 2)

    optimize(loss, push_up_reductions)     # ys is never there as a whole

The scan is rebuilt with the tail of the program in its body, step by step or in chunks of steps;
what it stacked and only reductions used is not stacked any more.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
from jax import lax
from jax import numpy as jnp

from malleable import compat
from malleable.notes import note
from malleable.rewriting.axes import Ax, restack
from malleable.rewriting.cost import CACHE, LARGE, chunk_of, gains, residuals
from malleable.rewriting.frontier import finish, pull_sources, retreat
from malleable.rewriting.graph import Graph, Node
from malleable.rewriting.passes import configurable, each_body, settled
from malleable.rewriting.plan import Plan, cut, join
from malleable.rewriting.region import Region, Stream, Window, grow
from malleable.rewriting.sinks import RUNNERS, SINKS, Sink

REMAT = ("remat", "remat2", "checkpoint")
LEVELS = ("exact", "reassoc", "fast")


@configurable
def push_up_reductions(
    jaxpr: compat.Jaxpr,
    *,
    chunk: int | str = "auto",
    remat: str | None = "auto",
    sinks: Sequence[Sink] = SINKS,
    level: str = "reassoc",
    threshold: int | None = None,
) -> compat.Jaxpr:
    """Reduce what scans stack inside the scans: memory / length, and time, where it pays.

    chunk: steps per reduction, "auto" by cost; remat: what a gradient computes again instead of
    keeping: "tail" (the part that was pushed), "body" (the whole step), None, or "auto";
    level: "exact" for sums of floats in their old order only; threshold: bytes a scan must stack
    to be worth it (default: one cache). Declined scans leave a note.
    Source: jax#4968.

    >>> from malleable import stage
    >>> def total(x):
    ...     _, ys = lax.scan(lambda c, _: (jnp.sin(c), jnp.sin(c)), x, length=9)
    ...     return ys.sum()
    >>> before = stage(total)(jnp.ones(4)).jaxpr
    >>> after = push_up_reductions(before, threshold=0)
    >>> [len(e.outvars) for p in (before, after) for e in p.eqns if e.primitive.name == "scan"]
    [2, 1]
    """
    check_options(level, chunk, remat)
    by_name = {s.name: s for s in (*sinks, *RUNNERS)}
    yours = {s.name for s in sinks if s.fun is not None}
    least = CACHE if threshold is None else threshold
    allow = lambda action: LEVELS.index(action.sink.level(action.spec)) <= LEVELS.index(level)  # noqa: E731

    def inline(eqn: compat.Eqn) -> bool:
        """Calls in the way; also a tail that was pushed into this body, to be pushed further."""
        tail = eqn.primitive.name in REMAT and compat.is_named(eqn, "push_up_reductions")
        return tail or compat.is_transparent(eqn) and eqn.params.get("name") not in yours

    def push(body: compat.Jaxpr) -> compat.Jaxpr:
        graph = Graph.of(body, inline)
        changed = False
        for node in graph.order():
            if node.name == "scan" and node in graph.nodes:
                changed |= _push_one(graph, node, by_name, allow, chunk, remat, least)
        return graph.jaxpr() if changed else body

    return settled(jaxpr, each_body(push)(jaxpr))


def check_options(level, chunk, remat=None):
    """Raise ValueError for what is no option."""
    if level not in LEVELS:
        raise ValueError(f"level is one of {LEVELS}, not {level!r}")
    if chunk != "auto" and (not isinstance(chunk, int) or chunk < 1):
        raise ValueError(f'a chunk is "auto" or a number of steps from 1 on, not {chunk!r}')
    if remat not in ("auto", "tail", "body", None):
        raise ValueError(f'remat is "auto", "tail", "body" or None, not {remat!r}')


def _push_one(graph, node, sinks, allow, chunk, remat, least) -> bool:
    """Push into one scan what may be; whether there was anything."""
    view = compat.view(node.eqn)
    if view.length < 2:
        return False
    _, carry, _ = view.split(list(node.ins))
    carries, ys = node.outs[: len(carry)], node.outs[len(carry) :]
    n = view.length
    seeds = {v: Stream(Ax(0), Window(0, 1, n)) for v in ys if graph.is_used(v)}
    if not seeds:
        return False
    options = {"after": carries, "reverse": view.reverse, "allow": allow}
    parts = _parts(graph, node, list(seeds), n)
    if parts:
        window = Window(0, 1, n * parts.width + parts.rest)
        streams = {v: Stream(Ax(0), window) for v in parts.joined}
        options |= {"after": [*carries, *ys, *parts.between], "made": parts.nodes}
        region = grow(graph, streams, window.count, sinks, **options)
    else:
        region = grow(graph, seeds, n, sinks, **options)
    retreat(region)
    if not region.results():
        return False
    pull_sources(region)
    region = finish(region)
    verdict = gains(region, list(region.streams)[: len(parts.joined) if parts else len(ys)], least)
    plan = Plan(region)
    if parts and plan.single:
        verdict = "parts of a batched map are taken"
    if verdict:
        note("a reduction stays outside its scan", compat.where(node.eqn), verdict)
        return False
    if remat == "auto":
        remat = "body" if n * residuals(view.body) > LARGE else "tail"
    if parts:
        new = _rebuild_batched(graph, node, view, plan, parts, remat)
    else:
        k = 1 if plan.single else chunk_of(region) if chunk == "auto" else min(chunk, n)
        new = _rebuild(graph, node, view, plan, k, remat)
    graph.replace(new)
    return True


def _rebuild(graph: Graph, node: Node, view, plan: Plan, k: int, remat) -> dict[int, int]:
    """The scan with the plan in it; {value outside: what it is now}."""
    consts, carry, xs = view.split(list(node.ins))
    region: Region = plan.region
    carries, ys = node.outs[: len(carry)], node.outs[len(carry) :]
    kept = [i for i, v in enumerate(ys) if v in plan.escapes]
    streams = [i for i, v in enumerate(ys) if v in region.streams]
    given = list(dict.fromkeys([*node.ins, *(s[0] for s in plan.sources), *plan.wholes]))
    escaping = [v for v in plan.escapes if v not in ys]
    n = plan.n

    def run(*values):
        at = dict(zip(given, values, strict=True))
        read = lambda vs: [at[v] for v in vs]  # noqa: E731
        wholes = {v: at[v] for v in plan.wholes}
        fixed = read(consts)

        def advance(state, slices, feeds, t, k):
            blocks = dict(zip([ys[i] for i in streams], slices, strict=True))
            blocks |= dict(zip(plan.sources, feeds, strict=True))
            return plan.step(state, blocks, wholes, t, k)

        tail = advance
        if remat is not None:
            tail = jax.checkpoint(advance, static_argnums=(4,), prevent_cse=False)

        def one(c, x, t):
            outs = compat.replay(view.body, [*fixed, *c, *x])
            return outs[: len(c)], outs[len(c) :]

        def single(loop, step):
            (c, state), (x, feeds, t) = loop, step
            c, y = one(c, x, t)
            state, gone = tail(state, [y[i] for i in streams], feeds, t, None)
            return (c, state), ([y[i] for i in kept], [gone[v] for v in escaping])

        def block(loop, step):
            (c, state), (x, feeds, t) = loop, step
            size = t.shape[0]
            c, y = lax.scan(
                lambda c, x: one(c, x, None), c, x, length=size, reverse=view.reverse
            )
            state, gone = tail(state, [y[i] for i in streams], feeds, t[0], size)
            return (c, state), ([y[i] for i in kept], [gone[v] for v in escaping])

        init = plan.init({}, wholes)
        state, rows = plan.prologue(init, at, wholes, range(-plan.before, 0))
        feeds = [cut(at[v], ax, w, n) for v, ax, w in plan.sources]
        every = (read(xs), feeds, jnp.arange(n, dtype=jnp.int32))
        loop = (read(carry), state)
        step = single if k == 1 else block
        if remat == "body":
            step = jax.checkpoint(step, prevent_cse=False)
        if k == 1:
            how = {"reverse": view.reverse, "unroll": view.unroll, "length": n}
            loop, stacked = lax.scan(step, loop, every, **how)
        else:
            loop, stacked = in_chunks(step, loop, every, n, k, view.reverse)
        final, state = loop
        state, more = plan.prologue(state, at, wholes, range(n, n + plan.behind))
        results = plan.final(state, wholes)
        whole = []
        for v, rows_of in zip(escaping, stacked[1], strict=True):
            blank = jnp.zeros_like(rows_of[0])
            parts = [[r.get(v, blank)[None] for r in part] for part in (rows, more)]
            if plan.before or plan.behind:
                rows_of = jnp.concatenate([*parts[0], rows_of, *parts[1]])
            s = region.streams[v]
            whole.append(join(rows_of, s.ax, s.window, graph.avals[v].shape, plan.before))
        return [*final, *stacked[0], *whole, *(results[v] for v in plan.results)]

    old = [*carries, *(ys[i] for i in kept), *escaping, *plan.results]
    return dict(zip(old, graph.trace(run, given, node, "push_up_reductions"), strict=True))


class Parts(NamedTuple):
    """What `lax.map(..., batch_size=width)` stacks, joined with what it does not divide evenly.

    joined: per stacked value, the whole; tails: its last `rest` rows; nodes, between: the equations
    that join them, and the values on the way.
    """

    width: int
    rest: int
    joined: list[int]
    tails: list[int]
    nodes: frozenset
    between: list[int]


def _parts(graph: Graph, scan: Node, ys: list[int], n: int) -> Parts | None:
    """Whether all that a scan stacks is reshaped to rows, and joined with some more of them."""
    found = []
    for v in ys:
        shape = graph.avals[v].shape
        users = graph.users(v)
        if len(users) != 1 or users[0].name != "reshape" or v in graph.outputs:
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
    if len(widths) != 1 or _depends(graph, scan, {f[2] for f in found}):
        return None
    ((width, rest),) = widths
    nodes = frozenset(node for f in found for node in f[3:5])
    return Parts(width, rest, [f[1] for f in found], [f[2] for f in found], nodes, [f[5] for f in found])


def _depends(graph: Graph, node: Node, values: set[int]) -> bool:
    """Whether one of the values is worked out from the results of an equation."""
    work, seen = list(node.outs), set()
    while work:
        v = work.pop()
        if v in values:
            return True
        for user in graph.users(v):
            if user not in seen:
                seen.add(user)
                work.extend(user.outs)
    return False


def _rebuild_batched(graph, node, view, plan, parts: Parts, remat) -> dict[int, int]:
    """As `_rebuild`, for a loop whose steps each give a block of rows; the rest is one block more."""
    consts, carry, xs = view.split(list(node.ins))
    carries, ys = node.outs[: len(carry)], node.outs[len(carry) :]
    used = [i for i, v in enumerate(ys) if graph.is_used(v)]
    given = [*node.ins, *parts.tails, *(s[0] for s in plan.sources), *plan.wholes]
    given = list(dict.fromkeys(given))
    n, w = view.length, parts.width

    def run(*values):
        at = dict(zip(given, values, strict=True))
        wholes = {v: at[v] for v in plan.wholes}

        def step(state, rows, feeds, t, size):
            blocks = dict(zip(parts.joined, rows, strict=True))
            blocks |= dict(zip(plan.sources, feeds, strict=True))
            return plan.step(state, blocks, wholes, t, size)

        if remat is not None:
            step = jax.checkpoint(step, static_argnums=(4,), prevent_cse=False)

        def one(loop, every):
            (c, state), (x, feeds, t) = loop, every
            outs = compat.replay(view.body, [*(at[v] for v in consts), *c, *x])
            rows = [outs[len(c) + i] for i in used]
            state, gone = step(state, rows, feeds, t, w)
            return (outs[: len(c)], state), [gone[v] for v in plan.escapes]

        if remat == "body":
            one = jax.checkpoint(one, prevent_cse=False)
        feeds = [cut(at[v], ax, window, plan.n) for v, ax, window in plan.sources]
        heads = [x[: n * w].reshape(n, w, *x.shape[1:]) for x in feeds]
        every = ([at[v] for v in xs], heads, w * jnp.arange(n, dtype=jnp.int32))
        loop = ([at[v] for v in carry], plan.init({}, wholes))
        (final, state), stacked = lax.scan(one, loop, every, reverse=view.reverse, length=n)
        tails = [at[v] for v in parts.tails]
        state, gone = step(state, tails, [x[n * w :] for x in feeds], jnp.int32(n * w), parts.rest)
        whole = []
        for v, rows in zip(plan.escapes, stacked, strict=True):
            rows = jnp.concatenate([rows.reshape(n * w, *rows.shape[2:]), gone[v]])
            whole.append(restack(rows, plan.region.streams[v].ax, graph.avals[v].shape))
        results = plan.final(state, wholes)
        return [*final, *whole, *(results[v] for v in plan.results)]

    old = [*carries, *plan.escapes, *plan.results]
    return dict(zip(old, graph.trace(run, given, node, "push_up_reductions"), strict=True))


def in_chunks(block, loop, every, n, k, reverse):
    """A scan over chunks of k steps; what is left over goes where it belongs."""
    many, rest = divmod(n, k)
    head = jax.tree.map(lambda x: x[: many * k].reshape(many, k, *x.shape[1:]), every)
    tail = jax.tree.map(lambda x: x[many * k :], every)
    last = None
    if rest and reverse:
        loop, last = block(loop, tail)
    loop, stacked = lax.scan(block, loop, head, reverse=reverse, length=many)
    stacked = jax.tree.map(lambda x: x.reshape(many * k, *x.shape[2:]), stacked)
    if rest and not reverse:
        loop, last = block(loop, tail)
    if last is not None:
        stacked = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), stacked, last)
    return loop, stacked

