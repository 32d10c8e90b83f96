"""Reductions over what a scan stacks, pushed up into the scan: jax#4968.

    def loss(params, xs):
        _, ys = lax.scan(cell, init, xs)
        return jnp.mean((ys - targets) ** 2)

    optimize(loss, push_up_reductions)     # ys is never there as a whole

The scan is rebuilt with the tail of the program in its body, step by step or in chunks of steps;
what it stacked and only reductions used is not stacked any more.
"""

from collections.abc import Sequence

import jax
from jax import lax
from jax import numpy as jnp

from malleable import compat
from malleable.notes import note
from malleable.rewriting.axes import Ax
from malleable.rewriting.cost import CACHE, LARGE, chunk_of, gains, residuals
from malleable.rewriting.frontier import finish, pull_sources, retreat
from malleable.rewriting.graph import Graph, Node
from malleable.rewriting.passes import configurable, each_body, settled
from malleable.rewriting.plan import Plan, cut, join
from malleable.rewriting.region import Region, Stream, Window, grow
from malleable.rewriting.sinks import RUNNERS, SINKS, Sink

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
    least = CACHE if threshold is None else threshold
    allow = lambda action: LEVELS.index(action.sink.level(action.spec)) <= LEVELS.index(level)  # noqa: E731

    def push(body: compat.Jaxpr) -> compat.Jaxpr:
        graph = Graph.of(body, keep=lambda eqn: eqn.params["name"] in by_name)
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
    region = grow(graph, seeds, n, sinks, **options)
    retreat(region)
    if not region.results():
        return False
    pull_sources(region)
    region = finish(region)
    verdict = gains(region, list(seeds), least)
    if verdict:
        note("a reduction stays outside its scan", compat.where(node.eqn), verdict)
        return False
    plan = Plan(region)
    k = 1 if plan.single else chunk_of(region) if chunk == "auto" else min(chunk, n)
    if remat == "auto":
        remat = "body" if n * residuals(view.body) > LARGE else "tail"
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

