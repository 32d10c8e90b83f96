"""Scans built anew, with the plan of a region in their bodies.

Three ways: step by step or in chunks of steps; with the loop's steps giving blocks of rows; and one
step behind, on the carry that comes in.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from jax import lax
from jax import numpy as jnp

from malleable import compat
from malleable.programs.evaluate import one_step
from malleable.rewriting.axis.bodies import REMATS
from malleable.rewriting.graph.graph import Graph, Node
from malleable.rewriting.graph.slices import Ax, handed_back, restack, unstack, weakened
from malleable.rewriting.streaming.emit.as_written import as_written
from malleable.rewriting.streaming.region.region import Region, Window
from malleable.rewriting.streaming.region.sinks import WINS
from malleable.rewriting.streaming.schedule.masks import last_of
from malleable.rewriting.streaming.schedule.plan import Plan
from malleable.rewriting.streaming.schedule.residuals import is_handed_on
from malleable.rewriting.streaming.strategy import Strategy

NAME = "push_up_reductions"
_ours = functools.partial(compat.made_by, NAME)  # every function whose program becomes a body


def is_ours(body: compat.Jaxpr) -> bool:
    """Whether a program was made here: what could be pushed into it has been."""
    return compat.is_made_by(NAME, body)


KEEP_WINS = jax.checkpoint_policies.save_only_these_names(WINS)  # one: programs are compared by it


def worked_out_again(fun):
    """fun, worked out again for a gradient, but for which sides won where two extrema met.

    Else the accumulators would be kept, several floats for each bit of that.
    """
    return jax.checkpoint(fun, prevent_cse=False, policy=KEEP_WINS)


def checkpointed(fun):
    """fun(*args, size), worked out again for a gradient; size is known while tracing.

    A static argument of `jax.checkpoint` would be remembered, and with it what fun closes over.
    """

    def run(*args):
        *arrays, size = args
        return worked_out_again(_ours(lambda *xs: fun(*xs, size)))(*arrays)

    return run


def is_tail(eqn: compat.Eqn) -> bool:
    """Whether this is a tail that was pushed into a scan."""
    return eqn.primitive.name in REMATS and is_ours(compat.bodies(eqn.params)[0])


def rebuild(graph: Graph, node: Node, view, plan: Plan, how: Strategy) -> dict[int, int]:
    """The scan with the plan in it; {value outside: what it is now}."""
    k, remat = how.chunk, how.remat
    consts, carry, xs = view.split(list(node.ins))
    region: Region = plan.region
    carries, ys = node.outs[: len(carry)], node.outs[len(carry) :]
    kept = [i for i, v in enumerate(ys) if v in plan.escapes]
    streams = [i for i, v in enumerate(ys) if v in region.streams]
    escaping = [v for v in plan.escapes if v not in ys]
    n = plan.n
    key = lambda s: s[0] if s[1:] == (Ax(0), plan.full) else s  # noqa: E731

    def run(at, wholes):
        read = lambda vs: [at[v] for v in vs]  # noqa: E731
        fixed = read(consts)
        wholes |= means_of_one(plan, at, functools.partial(stacked_at, view, node, at))

        def advance(state, slices, feeds, past, t, k):
            blocks = dict(zip([ys[i] for i in streams], slices, strict=True))
            blocks |= dict(zip(plan.sources, feeds, strict=True))
            blocks |= dict(zip(plan.handed, past, strict=True))
            return plan.step(state, blocks, wholes, t, k)

        tail = advance if remat is None else checkpointed(advance)
        one = functools.partial(one_step, view, fixed)
        again = is_handed_on(view.body)

        def single(loop, step):
            (c, state), (x, feeds, t) = loop, step
            past = [c[i] for i in plan.handed.values()]
            c, y = one(c, x)
            rows = [handed_back(t, y[i]) if again else y[i] for i in streams]
            state, gone = tail(state, rows, feeds, past, t, None)
            return (c, state), ([y[i] for i in kept], [gone[v] for v in escaping])

        def block(loop, step):
            (c, state), (x, feeds, t) = loop, step
            size = t.shape[0]
            turn = _ours(lambda c, x: one(c, x))
            c, y = lax.scan(turn, c, x, length=size, reverse=view.reverse)
            state, gone = tail(state, [y[i] for i in streams], feeds, [], t[0], size)
            return (c, state), ([y[i] for i in kept], [gone[v] for v in escaping])

        ahead, behind = range(-plan.before, 0), range(n, n + plan.behind)
        if view.reverse:
            ahead, behind = behind[::-1], ahead[::-1]
        state, first = plan.prologue(plan.init(wholes), at, wholes, ahead)
        rows = {v: at[v] for v in xs}
        rows |= {key(s): cut(at[s[0]], *s[1:], n) for s in plan.sources}
        every = (list(rows.values()), jnp.arange(n, dtype=jnp.int32))
        loop = (read(carry), state)
        inner = single if k == 1 else block

        @_ours
        def step(loop, every):
            row = dict(zip(rows, every[0], strict=True))
            x, feeds = [row[v] for v in xs], [row[key(s)] for s in plan.sources]
            return inner(loop, (x, feeds, every[1]))

        if remat == "body":
            step = worked_out_again(step)
        if k == 1:
            loop, stacked = lax.scan(step, loop, every, **view.how)
        else:
            loop, stacked = in_chunks(step, loop, every, n, k, view.reverse)
        final, state = loop
        state, more = plan.prologue(state, at, wholes, behind)
        if view.reverse:
            first, more = more[::-1], first[::-1]
        results, whole = plan.final(state, wholes), []
        for v, rows_of in zip(escaping, stacked[1], strict=True):
            blank = jnp.zeros_like(rows_of[0])
            parts = [[r.get(v, blank)[None] for r in part] for part in (first, more)]
            if plan.before or plan.behind:
                rows_of = jnp.concatenate([*parts[0], rows_of, *parts[1]])
            s = region.streams[v]
            whole.append(join(rows_of, s.ax, s.window, graph.avals[v].shape, plan.before))
        return [*final, *stacked[0], *whole], results

    old = [*carries, *(ys[i] for i in kept), *escaping]
    return emitted(graph, node, plan, how, run, old, node.ins)


def emitted(
    graph: Graph, node: Node, plan: Plan, how: Strategy, loop: Callable, old: list, given, by=NAME
) -> dict[int, int]:
    """{value of the graph: what it is now, as weakly typed}: `old`, and the results of the plan.

    loop(at, wholes) runs on values of the graph, `given` and the plan's, and gives `old` and the
    results. Numbers stay numbers, in bodies too: XLA simplifies these as it does those outside.
    """
    given = list(dict.fromkeys([*given, *(s[0] for s in plan.sources), *plan.wholes]))
    numbers, old = [graph.number(v) for v in given], [*old, *plan.results]

    @_ours
    def run(*values):
        values = [x if c is None else c for c, x in zip(numbers, values, strict=True)]
        at = dict(zip(given, values, strict=True))
        made, results = loop(at, {v: at[v] for v in plan.wholes})
        made = [*made, *(results[v] for v in plan.results)]
        return [weakened(x, graph.avals[v]) for x, v in zip(made, old, strict=True)]

    if how.as_written:
        run = as_written(graph, run, node, plan, how.as_written, given, old)
    return dict(zip(old, graph.trace(run, given, node, by), strict=True))


def stacked_at(view, node: Node, at: dict, steps: Sequence[int]) -> list[dict[int, Any]]:
    """What a scan stacks at consecutive steps, by value, worked out beside it, from its start."""
    consts, carry, xs = view.split(list(node.ins))
    fixed, c, rows = lax.stop_gradient([[at[v] for v in part] for part in (consts, carry, xs)])
    one = functools.partial(one_step, view, fixed)
    first, found = steps[0], []
    before = slice(first + 1, None) if view.reverse else slice(0, first)
    if count := (view.length - 1 - first if view.reverse else first):
        past = [row[before] for row in rows]
        advance = _ours(lambda c, x: (one(c, x)[0], None))
        c, _ = lax.scan(advance, c, past, length=count, reverse=view.reverse)
    for t in steps:
        c, y = one(c, [row[t] for row in rows])
        found.append(dict(zip(node.outs[len(c) :], y, strict=True)))
    return found


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


def rebuild_batched(graph, node, view, plan, parts: Parts, how: Strategy) -> dict[int, int]:
    """As `rebuild`, where each step of a loop gives a block of rows, and some more follow."""
    consts, carry, xs = view.split(list(node.ins))
    carries, ys = node.outs[: len(carry)], node.outs[len(carry) :]
    used = [i for i, v in enumerate(ys) if graph.is_used(v)]
    n, w = view.length, parts.width

    def run(at, wholes):
        tails = {v: at[x][0] for v, x in zip(parts.joined, parts.tails, strict=True)}
        wholes |= means_of_one(plan, at, lambda steps: [tails], n * w)

        def step(state, rows, feeds, t, size):
            blocks = dict(zip(parts.joined, rows, strict=True))
            blocks |= dict(zip(plan.sources, feeds, strict=True))
            return plan.step(state, blocks, wholes, t, size)

        again = step if how.remat is None else checkpointed(step)

        @_ours
        def one(loop, every):
            (c, state), (x, feeds, t) = loop, every
            c, y = one_step(view, [at[v] for v in consts], c, x)
            state, gone = again(state, [y[i] for i in used], feeds, t, w)
            return (c, state), [gone[v] for v in plan.escapes]

        if how.remat == "body":
            one = worked_out_again(one)
        feeds = [cut(at[v], ax, window, plan.n) for v, ax, window in plan.sources]
        heads = [x[: n * w].reshape(n, w, *x.shape[1:]) for x in feeds]
        every = ([at[v] for v in xs], heads, w * jnp.arange(n, dtype=jnp.int32))
        loop = ([at[v] for v in carry], plan.init(wholes))
        (final, state), stacked = lax.scan(one, loop, every, reverse=view.reverse, length=n)
        tails = [at[v] for v in parts.tails]
        state, gone = again(state, tails, [x[n * w :] for x in feeds], jnp.int32(n * w), parts.rest)
        whole = []
        for v, rows in zip(plan.escapes, stacked, strict=True):
            rows = jnp.concatenate([rows.reshape(n * w, *rows.shape[2:]), gone[v]])
            whole.append(restack(rows, plan.region.streams[v].ax, graph.avals[v].shape))
        return [*final, *whole], plan.final(state, wholes)

    old = [*carries, *plan.escapes]
    return emitted(graph, node, plan, how, run, old, [*node.ins, *parts.tails])


def carried(view, node: Node) -> dict[int, int]:
    """Which carry each stacked value is, of those that are the new carry of their step."""
    outs = Graph.of(view.body).outputs  # equal values are one there, even if written twice
    count = len(view.split(list(node.ins))[1])
    place = {value: i for i, value in reversed([*enumerate(outs[:count])])}
    pairs = zip(node.outs[count:], outs[count:], strict=True)
    return {v: place[value] for v, value in pairs if value in place}


def rebuild_behind(graph, node, view, plan: Plan, places: dict, how: Strategy) -> dict[int, int]:
    """One step behind: each step reduces the carry that comes in, which is in memory already.

    What a step works out would be worked out twice where XLA fuses it into the new carry and into
    what is accumulated. The first step goes before the loop, the last reduction after it.
    """
    consts, carry, xs = view.split(list(node.ins))
    carries, ys = node.outs[: len(carry)], node.outs[len(carry) :]
    streams = [v for v in ys if v in plan.region.streams]
    n, back = plan.n, view.reverse
    first, others = (n - 1, slice(0, n - 1)) if back else (0, slice(1, n))
    last, before = (0, slice(1, n)) if back else (n - 1, slice(0, n - 1))

    def run(at, wholes):
        at_once = lambda c: {v: c[places[v]] for v in streams}  # noqa: E731

        @_ours
        def advance(state, c, feeds, t):
            blocks = at_once(c) | dict(zip(plan.sources, feeds, strict=True))
            return plan.step(state, blocks, wholes, t, None)

        if how.remat is not None:
            advance = worked_out_again(advance)

        def one(c, x):
            return one_step(view, [at[v] for v in consts], c, x)[0]

        @_ours
        def step(loop, every):
            (c, state), (x, feeds, t) = loop, every
            state, gone = advance(state, c, feeds, t)
            return (one(c, x), state), [gone[v] for v in plan.escapes]

        if how.remat == "body":
            step = worked_out_again(step)
        every = [at[v] for v in xs]
        feeds = [cut(at[v], ax, window, n) for v, ax, window in plan.sources]
        c = one([at[v] for v in carry], [x[first] for x in every])
        wholes |= means_of_one(plan, at, lambda steps: [at_once(c)], first)
        times = jnp.arange(n, dtype=jnp.int32)
        steps = ([x[others] for x in every], [x[before] for x in feeds], times[before])
        loop = (c, plan.init(wholes))
        (c, state), stacked = lax.scan(step, loop, steps, length=n - 1, reverse=back)
        state, gone = advance(state, c, [x[last] for x in feeds], jnp.int32(last))
        whole = []
        for v, rows in zip(plan.escapes, stacked, strict=True):
            ends = (gone[v][None], rows) if back else (rows, gone[v][None])
            stream = plan.region.streams[v]
            whole.append(restack(jnp.concatenate(ends), stream.ax, graph.avals[v].shape))
        return [*c, *whole], plan.final(state, wholes)

    return emitted(graph, node, plan, how, run, [*carries, *plan.escapes], node.ins)


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


def cut(x, ax: Ax, window: Window, n: int):
    """The slices of a source, one for each step of a stream; zeros where it has none."""
    slices = unstack(x, ax, window.count)
    high = n - window.start - (window.count - 1) * window.step - 1
    if (window.start, window.step, high) == (0, 1, 0):
        return slices
    low = [(window.start, high, window.step - 1)]
    return lax.pad(slices, jnp.zeros((), slices.dtype), low + [(0, 0, 0)] * (slices.ndim - 1))


def join(stacked, ax: Ax, window: Window, shape: Sequence[int], before: int):
    """The value that escaped as `stacked`, whose first row is the step -before."""
    first = window.start + before
    last = first + window.step * (window.count - 1) + 1
    stacked = lax.slice_in_dim(stacked, first, last, window.step)
    return restack(stacked, ax, shape)


# ---------------------------------------------------------------- means of one step


def means_of_one(plan: Plan, at: dict, rows: Callable, first: int | None = None) -> dict:
    """{("near", mean): the mean of one step alone}, near which sums of squares round least.

    For `wholes`. at: all values; rows(steps): what the region gets from its scan at these steps, in
    the order of the stream; first: the step to take, if not the first one of what a mean is of. A
    mean of the data is never further away from one of them than a root of n deviations.
    """
    if not plan.near:
        return {}
    at = lax.stop_gradient(at)
    wholes, found = {v: at[v] for v in plan.wholes}, {}
    back, most = plan.region.reverse, max((d for _, d in plan.delayed), default=0)
    for v, key in plan.near.items():
        window = plan.windows[v]
        t = first if first is not None else last_of(window) if back else window.start
        steps = range(t + most, t - 1, -1) if back else range(t - most, t + 1)
        steps = [s for s in steps if 0 <= s < plan.n] if first is None else [t]
        steps = steps or [min(max(t, 0), plan.n - 1)]
        state, before = plan.init(wholes), None
        for step, blocks in zip(steps, lax.stop_gradient(rows(steps)), strict=True):
            there = blocks | plan.sources_at(at, step)
            there |= {(u, d): (before or there)[plan.carry_of(u)] for u, d in plan.handed}
            state, _ = plan.step(state, there, wholes, step, None)
            before = there
        env = plan.feed(dict(wholes), state, lambda w: jnp.float32(w.count))
        found[key] = jnp.where(jnp.isfinite(env[v]), env[v], jnp.zeros_like(env[v]))
    return found
