"""Large intermediates that need not exist: `stream` works through them block by block.

    def smooth(x, y, b):                                   # (m, d), (n, d), (n, 1) -> (m, 1)
        return jnp.exp(-((x[:, None] - y[None]) ** 2).sum(-1)) @ b

    optimize(smooth, stream)     # the m x n matrix is never there as a whole

One axis of the large value is chosen. The equations that carry it run on a few rows at a time, from
where small arrays are spread out to where it is reduced again; a gradient runs them once more.
Source: Charlier et al., "Kernel operations on the GPU, with autodiff, without memory overflows"
(KeOps), JMLR 22, 2021; Rabe and Staats, "Self-attention does not need O(n^2) memory", 2021.
"""

from collections.abc import Sequence
from dataclasses import replace

from jax import lax
from jax import numpy as jnp

from malleable import compat
from malleable.notes import note
from malleable.programs.equations import every
from malleable.programs.types import bytes_of
from malleable.rewriting.graph.graph import Graph, Node
from malleable.rewriting.graph.slices import Ax, restack, unstack
from malleable.rewriting.machine import Machine, decided_for
from malleable.rewriting.passes.passes import configurable, in_bodies, is_sized, or_say, settled
from malleable.rewriting.sharding.local import on_parts
from malleable.rewriting.streaming.comparisons import Compared, compared, torn
from malleable.rewriting.streaming.cost import (
    WHOLE,
    even,
    is_fused,
    is_kept,
    steps_of,
    takes_longer,
)
from malleable.rewriting.streaming.emit.as_written import is_value
from malleable.rewriting.streaming.emit.rebuild import (
    checkpointed,
    emitted,
    in_chunks,
    is_ours,
    means_of_one,
)
from malleable.rewriting.streaming.push import ROUNDS, check_options, chosen
from malleable.rewriting.streaming.region.frontier import (
    FUSIBLE,
    finish,
    follow,
    keep_big,
    pull,
    retreat,
    size,
)
from malleable.rewriting.streaming.region.grow import grow
from malleable.rewriting.streaming.region.region import Ended, Kept, Mapped, Region, Stream, Window
from malleable.rewriting.streaming.region.sinks import SINKS, Sink
from malleable.rewriting.streaming.schedule.plan import Plan
from malleable.rewriting.streaming.schedule.separable import is_separable
from malleable.rewriting.streaming.strategy import Options, Strategy, decided
from malleable.rewriting.streaming.unrolled import is_searched, unroll_reductions

END = Ended | Kept
SPREAD = 4  # so many times its largest operand is a value that is spread out


@configurable
def stream(
    jaxpr: compat.Jaxpr,
    *,
    block: int | str = "auto",
    remat: bool = True,
    sinks: Sequence[Sink] = SINKS,
    level: str = "reassoc",
    threshold: int | None = None,
    machine: Machine | None = None,
) -> compat.Jaxpr:
    """Work through large intermediates in blocks of rows, where XLA would make them as a whole.

    block: rows at a time, for `argmax` and `argmin` at most so many and a divisor of them all,
    "auto" by cost; remat: whether a gradient computes a block again instead of keeping it;
    level: "exact" leaves sums of floats in their order; threshold: bytes from which on a value
    counts as large; machine: what to decide for, the default backend if None. Declined values leave
    a note.

    >>> from malleable import stage
    >>> def smooth(x, y):
    ...     return jnp.exp(-((x[:, None] - y[None]) ** 2)) @ y
    >>> before = stage(smooth)(jnp.ones(64), jnp.ones(32)).jaxpr
    >>> after = stream(before, threshold=1024, block=8)
    >>> shapes = lambda p: {v.aval.shape for e in p.eqns for v in e.outvars}
    >>> [(64, 32) in shapes(p) for p in (before, after)]
    [True, False]
    """
    check_options(level, threshold, sinks, "block", block)
    if not isinstance(remat, bool):
        raise ValueError(f"remat is True or False, not {remat!r}")
    if not is_sized(jaxpr, "stream"):
        return jaxpr
    by_name, allow, may_inline = chosen(sinks, level)

    options = Options(block, remat, threshold)

    def once(body: compat.Jaxpr, stay: frozenset[int] = frozenset()) -> compat.Jaxpr:
        graph = Graph.of(body, may_inline)
        comparisons = compared(graph)
        least = Machine.current().large if threshold is None else threshold
        written = {} if level == "exact" else unroll_reductions(graph, least, comparisons, stay)
        changed = bool(written)
        tried: set = set()
        while (node := _next(graph, tried, least)) is not None:
            tried.add(node)
            changed |= _stream_one(graph, node, by_name, allow, comparisons, options)
        if again := {old for old, new in written.items() if is_searched(graph, new)}:
            return once(body, stay | again)  # XLA may round these twice, and find no extremum
        return graph.jaxpr() if changed else body

    def pass_over(body: compat.Jaxpr) -> compat.Jaxpr:
        if is_value(body):
            return body
        for _ in range(ROUNDS):  # what is streamed may have been in the way of something
            after = once(body)
            if after is body:
                break
            body = compat.dce(after)
        return body

    def has_more_loops(before: compat.Jaxpr, after: compat.Jaxpr) -> bool:
        """Whether anything is streamed: what only came apart into terms may fuse worse."""
        names = [[eqn.primitive.name for eqn in every(p.jaxpr.eqns)] for p in (before, after)]
        return names[1].count("scan") > names[0].count("scan")

    with decided_for(machine):
        run = lambda p: settled(p, in_bodies(pass_over)(p))  # noqa: E731
        parts = lambda p: on_parts(run, p, has_more_loops)  # noqa: E731
        return or_say("nothing is streamed", lambda: _too_small(jaxpr, threshold), parts, jaxpr)


def _too_small(jaxpr: compat.Jaxpr, threshold: int | None) -> str:
    """Why nothing is streamed, for a note."""
    made = [(bytes_of(v.aval), e) for e in every(jaxpr.jaxpr.eqns) for v in e.outvars]
    least = Machine.current().large if threshold is None else threshold
    most, eqn = max(made, key=lambda one: one[0], default=(least, None))
    if eqn is None or most >= least:
        return "no large value is spread out from small ones and reduced again"
    where = compat.where(eqn)
    at = f", at {where}," if where else ""
    return f"its largest value{at} has {most} bytes: less than stream(threshold={least})"


def _next(graph: Graph, tried: set, least: int) -> Node | None:
    """The first equation that spreads small operands out to something large."""
    for node in graph.order():
        if node in tried or node.eqn.effects or len(node.outs) != 1 or compat.bodies(node.params):
            continue
        (out,) = node.outs
        whole = size(graph, out)
        most = max((size(graph, v) for v in node.ins), default=0)
        if whole >= max(1, least) and whole >= SPREAD * most and graph.is_used(out):
            return node
    return None


def _stream_one(graph: Graph, node: Node, sinks, allow, comparisons, options: Options) -> bool:
    """Stream what an equation spreads out: `grow -> trim -> schedule -> choose -> emit`."""
    (out,) = node.outs
    aval, most = graph.avals[out], max((size(graph, v) for v in node.ins), default=0)
    small = min(size(graph, out) // 8, max(4 * most, 64) if most else size(graph, out))
    dims = ((d, n) for d, n in enumerate(aval.shape) if n > 1)
    grown = [enter(graph, out, d, n, sinks, allow, small) for d, n in dims]
    regions = [r if isinstance(r, str) else trim(r, out, small) for r in grown]
    region, how = choose(node, regions, small, comparisons, options)
    how = decided(how)
    if region is None:
        if not _is_fill(graph, node):
            note("a large value is made as a whole", compat.where(node.eqn), how.why)
        return False
    if how.as_written:
        why = "XLA works its value out in one kernel, without what is large"
        note("only what is differentiated is streamed", compat.where(node.eqn), why)
    graph.replace(emit(graph, node, Plan(region), how))
    return True


def _is_fill(graph: Graph, node: Node) -> bool:
    """Whether a value is one number all over, which XLA never makes."""
    while node.name in ("broadcast_in_dim", "reshape"):
        maker = graph.maker[node.ins[0]]
        if not graph.avals[node.ins[0]].shape or maker is None:
            return not graph.avals[node.ins[0]].shape
        node = maker
    return False


def enter(graph: Graph, value: int, dim: int, n: int, sinks, allow, small: int) -> Region | str:
    """What an axis of a large value runs through, from small to small; or why it cannot."""
    start, streams = pull(graph, {value: Stream(Ax(dim), Window(0, 1, n))}, n, small)
    if value not in streams:
        return "it is made by what cannot be cut"
    seed = {value: streams.pop(value)}
    options = {"start": start, "beside": streams, "pulled": frozenset(start)}
    return grow(graph, seed, n, sinks, allow=allow, **options)


def trim(grown: Region, value: int, small: int) -> Region | str:
    """The region that starts and ends where values are small, or why there is none."""
    graph, region = grown.graph, retreat(grown)
    large = {
        v: Stream(ax, w)
        for v, ax, w in region.sources()
        if w == region.full and size(graph, v) > small
    }
    actions, streams = pull(graph, large, region.n, small, known=region)
    region = replace(
        region,
        actions={**region.actions, **actions},
        streams={**region.streams, **streams},
        pulled=region.pulled | frozenset(actions),
    )
    region = follow(keep_big(finish(region), small), grown.actions)
    return finish(region) if value in region.streams else "it is used as a whole"


def choose(
    node: Node, regions: list, small: int, comparisons: Compared, options: Options
) -> tuple[Region | None, Strategy]:
    """The best axis and how it runs; or None, and why none does."""
    block, remat, threshold = options
    found, reasons = [], []
    for region in regions:
        if isinstance(region, str):
            reasons.append(region)
            continue
        why = _verdict(region, small) or torn(region, comparisons)
        if why := why or ("" if threshold is not None else takes_longer(region)):
            reasons.append(why)
        else:
            found.append(region)
    for region in sorted(found, key=lambda region: _rank(region, small)):
        k = _rows(region, small) if block == "auto" else steps_of(region, node, block)
        if k < region.n:
            fused = threshold != 0 and block == "auto" and is_fused(region)
            again = "tail" if remat else None
            return region, Strategy("blocks", k, again, as_written="value" if fused else "")
        reasons.append("a block would be all of it")
    return None, Strategy(why=reasons[0] if reasons else "it has no axis to cut")


def _verdict(region: Region, small: int) -> str:
    """Why streaming does not pay, or ""."""
    graph = region.graph
    if any(map(graph.is_placed, (*region.streams, *(v for v, *_ in region.sources())))):
        return "its type says on which devices its parts are"
    if is_separable(region):
        return "a derivative of it is one sum all along an axis: sum each factor first"
    if Plan(region).single:
        return "parts of the axis are taken"
    escapes = region.escapes()
    if any(size(graph, v) > 4 * small for v in escapes):
        return "a large value is used as a whole"
    if not escapes and not region.results():
        return "nothing small comes of it"
    if any(is_ours(b) for node in region.actions for b in compat.bodies(node.params)):
        return "what it goes through is worked through in blocks already"
    return ""


def _rank(region: Region, small: int) -> tuple:
    """Axes whose results are equal to the last bit come first; then those that move least bytes.

    That is: accumulate nothing large, and that nothing reduces. Before all, no block is summed, in
    the gradient either, to what XLA sums badly, and nothing large is transposed.
    """
    graph, ends = region.graph, {n: a for n, a in region.actions.items() if isinstance(a, END)}
    rounded = sum(isinstance(a, Ended) and a.sink.level(a.spec) != "exact" for a in ends.values())
    added = sum(size(graph, v) for n, a in ends.items() if isinstance(a, Ended) for v in n.outs)
    cut = [v for v, ax, _ in region.sources() if ax.dim]
    moved, largest = sum(size(graph, v) for v in cut), max(size(graph, v) for v in region.streams)
    elements = max(graph.avals[v].size for v in region.streams)
    turned = 2 * sum(graph.avals[v].size for v in cut) >= elements  # booleans as well
    search = is_search(region)
    most = Machine.current().summed_columns
    wide = not search and any(graph.avals[v].size > most for v in _sums(region))
    count = -1 if search else len(ends)
    return wide, turned, rounded, added > small, 4 * moved >= largest, count, -region.n


def _sums(region: Region):
    """What blocks, or in a gradient their gradients, are summed to, and not by a product."""
    for node, action in region.actions.items():
        if isinstance(action, Ended) and node.name != "dot_general":
            yield from node.outs
        elif isinstance(action, Mapped) and node.name in FUSIBLE:
            yield from (v for v, ax in zip(node.ins, action.flow.ins, strict=True) if ax is None)


def is_search(region: Region) -> bool:
    """Whether all that comes of it are places of extrema, found along the axis itself."""
    ends = [a for a in region.actions.values() if isinstance(a, END)]
    found = all(isinstance(a, Ended) and a.sink.name in ("argmin", "argmax") for a in ends)
    return found and bool(ends) and not region.escapes()


def _rows(region: Region, small: int) -> int:
    """Rows of a block, so that the widest value that is really there fits the cache.

    In a gradient there is one for each operand: many make a block of many rows smaller.
    """
    graph = region.graph
    if is_search(region):
        return 1  # one row against all: a running best and its place, all vectors
    wanted = lambda v: any(user.name in WHOLE for user in graph.users(v))  # noqa: E731
    kept = [v for v in region.streams if is_kept(graph, v) or wanted(v)]
    kept = [v for v in kept if size(graph, v) > small]  # a number for each row is none of these
    widest = max(size(graph, v) for v in kept or region.streams) // region.n
    machine, k = Machine.current(), 1
    most, few = machine.block * 5 // max(5, len(region.sources())), machine.block_rows
    while 2 * k < region.n and 2 * k * widest <= (2 * machine.block if 2 * k <= few else most):
        k *= 2
    return even(k, region.n)


def emit(graph: Graph, node: Node, plan: Plan, how: Strategy) -> dict[int, int]:
    """A loop over blocks; {value outside: what it is now}."""
    k = how.chunk
    n = plan.n

    def loop(at, wholes):
        wholes |= means_of_one(plan, at, lambda steps: [{}])

        def step(state, feeds, t, size):
            return plan.step(state, dict(zip(plan.sources, feeds, strict=True)), wholes, t, size)

        again = step if how.remat is None else checkpointed(step)

        def advance(state, every):
            feeds, t = every
            state, gone = again(state, feeds, *((t, None) if k == 1 else (t[0], t.shape[0])))
            return state, [gone[v] for v in plan.escapes]

        feeds = [unstack(at[v], ax, n) for v, ax, _ in plan.sources]
        every = (feeds, jnp.arange(n, dtype=jnp.int32))
        if k == 1:
            unroll = _unrolled(plan.region)
            state, stacked = lax.scan(advance, plan.init(wholes), every, unroll=unroll)
        else:
            state, stacked = in_chunks(advance, plan.init(wholes), every, n, k, False)
        pairs, axes = zip(plan.escapes, stacked, strict=True), plan.region.streams
        whole = [restack(rows, axes[v].ax, graph.avals[v].shape) for v, rows in pairs]
        return whole, plan.final(state, wholes)

    return emitted(graph, node, plan, how, loop, list(plan.escapes), [], "stream")


def _unrolled(region: Region) -> int:
    """Steps of a loop that are written out: never all of them, and none are left behind it.

    XLA might work these out once more where they are compared with the least of them. Where only
    places of extrema are searched for, nothing is compared later: up to eight, as is fastest.
    """
    if is_search(region):
        return min(8, region.n)
    return max(d for d in range(1, 9) if region.n % d == 0 and d < region.n)
