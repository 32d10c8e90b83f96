"""Rows in chunks: how values of shape (chunks, rows of each, ...) run in time, and loops over them.

Place (n, i) is row n * chunk + i, place n of a value of whole chunks is row n * chunk.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from jax import lax
from jax import numpy as jnp

from malleable import compat
from malleable.programs.evaluate import one_step
from malleable.rewriting.boxes.blocks import cut
from malleable.rewriting.boxes.dependence import Along, Before, groups, rel
from malleable.rewriting.boxes.spans import Box, Span, Start, whole_span
from malleable.rewriting.graph.graph import Graph, Node
from malleable.rewriting.incremental.beyond import check_gone, what_is_beyond
from malleable.rewriting.incremental.loops import TIME, read_from_before
from malleable.rewriting.incremental.masks import SURE
from malleable.rewriting.incremental.plan import Plan, inside_of, opened
from malleable.rewriting.incremental.run import Run
from malleable.rewriting.incremental.times import Loose, NotCausal, Part, Rows, Way, crossed, refuse


def is_in_chunks(plan: Plan, node: Node, found: dict) -> bool:
    """Whether rows are in chunks in what goes into an operation, or in its result."""
    if any(v in found and not found[v].is_plain() for v in node.ins):
        return True
    if node.name != "reshape" or (d := found[node.ins[0]].dim) is None:
        return False
    return any(
        mine == [d] and len(theirs) == 2 for mine, theirs in _in_groups(plan, node.ins[0], node)
    )


def box_in_chunks(plan: Plan, v: int, rows: Rows, width: int) -> Box:
    """The places of a value that a new row makes known."""
    if width > 1:
        error = refuse(plan.graph.maker[v], "rows in chunks come one by one")
        error.one_by_one = True
        raise error
    box, shape, chunk = list(plan.whole(v)), plan.shape(v), rows.chunk
    n, new = shape[rows.dim], Span(Start(TIME, 1, rows.lag), 1)
    size = chunk if rows.inner is None else shape[rows.inner]
    if rows.inner is not None and size == chunk:
        place = new.clipped(n * chunk, plan.limits).start
        box[rows.inner] = Span(place.remainder(chunk), 1)
        box[rows.dim] = Span(place.divided(chunk), 1)
    else:  # chunks that reach over each other: all that have the row
        first = new.start.moved(1, min(0, chunk - size)).divided(chunk)
        box[rows.dim] = Span(first, (size - 1) // chunk + 1).clipped(n, plan.limits)
    return tuple(box)


def _in_groups(plan: Plan, v: int, node: Node) -> list[tuple[list[int], list[int]]]:
    before, after = plan.shape(v), plan.shape(node.outs[0])
    if 0 in before:
        return []
    return [
        ([d for d in mine if before[d] > 1], [d for d in theirs if after[d] > 1])
        for mine, theirs in groups(before, after)
    ]


class Moved(NamedTuple):
    """Where the rows of an operand go: its chunks and the rows within; None: nowhere."""

    operand: int
    rows: Rows
    outer: int | None
    inner: int | None
    lag: int
    by: int  # of it, by chunks
    wide: int

    @property
    def is_split(self) -> bool:
        return self.rows.inner is not None


def in_chunks(plan: Plan, node: Node, found: dict, way: Way) -> Rows:
    """How the result of an operation on rows in chunks runs in time."""
    if node.name == "reshape":
        return _of_one_chunk(plan, node, _regrouped(plan, node, found[node.ins[0]]))
    tables = rel(node.eqn, lambda k: plan.small_constant(node.ins[k]))
    moved, is_fixed = [], False
    for k, (v, entries) in enumerate(zip(node.ins, tables, strict=True)):
        if v in found and found[v].dim is None:
            if found[v].lag < 0:
                raise refuse(node, "rows in chunks meet one that is known later")
            is_fixed = True
        elif v in found:
            rows = found[v]
            outer, by, wide = _along_chunks(node, entries[rows.dim], rows.chunk)
            inner, more = None, 0
            if rows.inner is not None:
                inner, more, wider = _along_chunks(node, entries[rows.inner], 1)
                wide += wider
            moved.append(Moved(k, rows, outer, inner, rows.lag - by - more, by, wide))
    o, i, chunk = _rows_of_own(node, moved, way)
    made = functools.partial(_made_of_chunks, plan, node, found, way, moved, is_fixed)
    tried, error = [], None
    for inner in dict.fromkeys((i, None)):  # row by row, or as what is known of whole chunks
        try:
            tried.append(made(Rows(o, 0, {}, inner, chunk)))
        except NotCausal as refused:
            error = error or refused
        if tried and tried[0].lag >= 0:
            break
    if not tried:
        assert error is not None
        raise error
    return max(reversed(tried), key=lambda rows: rows.lag)


def _made_of_chunks(
    plan: Plan, node: Node, found: dict, way: Way, moved, is_fixed: bool, own: Rows
) -> Rows:
    """The rows of a result that is computed along some dimensions."""
    (o, i), tables = (own.dim, own.inner), rel(node.eqn, lambda k: plan.small_constant(node.ins[k]))
    lags, columns, gone = _parts_of_chunks(plan, node, moved, (o, i), way)
    lag = min([*lags, 0] if is_fixed else lags)
    for m in moved:
        for d, x in m.rows.loose.items():
            entry = tables[m.operand][d]
            # whether its rows are not those of the result
            if m.outer != o or (m.is_split and i is None) or (m.inner != i and i is not None):
                if x.beyond not in SURE:
                    raise crossed(plan, node, node.ins[m.operand], found)
            else:
                part = _seen(node, m, d, x, entry, lag)
                (gone if part.dim is None else columns).append(part)
    if low := [p.lag for p in columns]:
        lag = min(lag, max(0, min(low)))
    sizes = [plan.shape(node.ins[p.operand])[p.source] for p in gone]
    open_ends = [p for p, n in zip(gone, sizes, strict=True) if not p.is_known(n, lag)]
    check_gone(plan, node, open_ends)
    out = own._replace(lag=lag, loose={})
    for d in sorted({p.dim for p in columns if p.dim is not None}):
        mine = [p for p in columns if p.dim == d]
        column = mine[0]._replace(lag=min(p.lag for p in mine))
        if d in (o, i) or len({(p.chunk, p.within) for p in mine}) > 1:
            raise refuse(node, "its rows depend on later ones")
        if not column.is_known(plan.shape(node.outs[0])[d], lag):
            beyond = what_is_beyond(plan, node, found, mine, out, column)
            out.loose[d] = Loose(column.lag, beyond, column.chunk, column.within)
    return _of_one_chunk(plan, node, out)


def _along_chunks(node: Node, entry: Any, unit: int) -> tuple[int | None, int, int]:
    """Where a dimension of rows goes, how many rows later, and over how many more it reaches."""
    match entry:
        case None:
            return None, 0, 0
        case Before(o):
            return o, 0, 0
        case Along(o, 1, lo, hi):
            return o, unit * hi, unit * (hi - lo)
    raise refuse(node, "rows in chunks come in another order, or not all of them")


def _rows_of_own(node: Node, moved: Sequence[Moved], way: Way) -> tuple[int, int | None, int]:
    """The dimensions along which the result is computed, of chunks and within them."""
    kept = [m for m in moved if m.outer is not None]
    kept = [m for m in kept if m.inner is not None] or kept
    outers = sorted({m.outer for m in kept if m.outer is not None})
    if not outers:
        raise refuse(node, f"`{node.name}` needs all rows")
    o = way.of_two(node.outs[0], outers)
    chunks = {m.rows.chunk for m in moved if m.outer == o}
    if len(chunks) > 1:
        raise refuse(
            node, "rows in chunks meet others that are in none, or in chunks of another size"
        )
    inners = sorted({m.inner for m in moved if m.outer == o and m.inner is not None})
    return o, way.of_two(node.outs[0], inners) if inners else None, min(chunks)


def _parts_of_chunks(plan: Plan, node: Node, moved: Sequence[Moved], own, way: Way):
    """(lags of the rows of the result, its columns, what is added up)."""
    (o, i), lags = own, []
    columns: list[Part] = []
    gone: list[Part] = []
    for m in moved:
        k, rows, low = m.operand, m.rows, m.lag if way.level is None else min(m.lag, way.level)
        within: Any = rows.inner
        if m.outer is None:
            if m.is_split:
                raise refuse(node, f"`{node.name}` takes in chunks of rows")
            gone.append(Part(k, rows.dim, None, m.lag, None, chunk=rows.chunk))
        elif m.outer != o:
            if m.is_split:
                raise refuse(node, "chunks of rows meet one another")
            columns.append(Part(k, rows.dim, m.outer, low, None, chunk=rows.chunk))
        elif not m.is_split or m.inner == i is not None:
            lags.append(m.lag)
        elif m.inner is not None and i is not None:
            columns.append(Part(k, within, m.inner, low, None, within=True))
        elif i is not None:
            gone.append(Part(k, within, None, m.lag, None, within=True))
        else:  # all rows of each chunk
            lags.append(m.lag - plan.shape(node.ins[k])[within] + 1)
    if not lags:
        raise refuse(node, f"`{node.name}` needs all rows of a chunk")
    return lags, columns, gone


def _seen(node: Node, m: Moved, d: int, x: Loose, entry: Any, lag: int) -> Part:
    """A loose dimension of an operand, as the rows of the result see it."""
    if isinstance(entry, Before) and x.beyond not in SURE:
        raise refuse(node, f"`{node.name}` takes in what is not known yet")
    dim, by, wide = _along_chunks(node, entry, x.chunk)
    beyond = x.beyond if by == 0 == wide or node.name in ("slice", "concatenate") else None
    low = x.lag - by - (m.by if x.within else 0) - (m.lag - lag)
    if m.wide and beyond not in SURE:
        low, beyond = low - m.wide, None
    return Part(m.operand, d, dim, low, beyond, wide, x.chunk, x.within)


def _of_one_chunk(plan: Plan, node: Node, rows: Rows) -> Rows:
    """Rows of one chunk are in none."""
    if rows.dim is None or rows.chunk == 1 or plan.shape(node.outs[0])[rows.dim] > 1:
        return rows
    loose = {d: x._replace(within=False) for d, x in rows.loose.items()}
    dim = rows.dim if rows.inner is None else rows.inner
    return Rows(dim, rows.lag, loose)


def _regrouped(plan: Plan, node: Node, rows: Rows) -> Rows:
    """How rows run in time that a reshape puts into chunks, or takes out of them."""
    before, after = plan.shape(node.ins[0]), plan.shape(node.outs[0])
    at: dict[Any, int] = {}
    parted, merged = None, None
    for mine, theirs in _in_groups(plan, node.ins[0], node):
        if len(mine) == len(theirs) == 1:
            at[mine[0]] = theirs[0]
        elif mine == [rows.dim] and len(theirs) == 2 and rows.chunk == 1:
            parted = theirs
        elif len(theirs) == 1 and mine[0] == rows.dim and len(mine) == 2 and rows.chunk > 1:
            is_whole = before[mine[1]] == rows.chunk and rows.inner in (mine[1], None)
            merged = theirs[0] if is_whole else None
    if any(d not in at for d in rows.loose):
        raise refuse(node, "columns are put into groups, or into one dimension with others")
    loose = {at[d]: x for d, x in rows.loose.items()}
    if parted is not None:
        return Rows(parted[0], rows.lag, loose, parted[1], after[parted[1]])
    if merged is not None and not any(x.within for x in loose.values()):
        return Rows(merged, rows.lag, loose)
    if rows.dim in at and (rows.inner is None or rows.inner in at):
        inner = None if rows.inner is None else at[rows.inner]
        return Rows(at[rows.dim], rows.lag, loose, inner, rows.chunk)
    raise refuse(node, "rows are put into groups, or into one dimension with others")


# ---------------------------------------------------------------- loops


SPLIT, EARLY, LATE = "of each row", "before the chunk", "after the chunk"


def loop_over_chunks(plan: Plan, node: Node, found: dict, prove: Callable) -> list:
    """How the results of a scan over chunks run in time; makes an entry in plan.loops.

    Within a chunk its rows are a sequence of their own, for a state that does not change; what the
    loop carries on is computed with the last row of the chunk.
    """
    view: Any = compat.view(node.eqn)
    consts, carry, xs = view.split(node.ins)
    moving = {v: found[v] for v in xs if v in found}
    chunks = {rows.chunk for rows in moving.values()}
    if view.reverse or any(v in found for v in (*consts, *carry)) or len(chunks) > 1:
        raise refuse(node, "a loop over chunks of rows needs more than these")
    (chunk,), kinds = chunks, {}
    for v, rows in moving.items():
        is_odd = rows.dim != 0 or rows.loose or rows.lag < (1 - chunk) * (rows.inner is None)
        if is_odd or (rows.inner is not None and plan.shape(v)[rows.inner] != chunk):
            raise refuse(node, "a loop takes rows of several times at once")
        early = EARLY if rows.lag >= 0 else LATE
        kinds[v] = early if rows.inner is None else SPLIT
    n = len(carry)

    def body(outputs: Sequence[int] | None = None) -> tuple[Graph, list[list[int]]]:
        graph = opened(view.body)
        if outputs is not None:
            graph.outputs = [graph.outputs[n + k] for k in outputs]
        return graph, list(view.split(graph.inputs))

    def inside(outputs: Sequence[int]) -> tuple[Plan, dict]:
        graph, (c, _, x) = body(outputs)
        inner = inside_of(plan, graph, consts, c)
        inner.limits, inner.restarts = {TIME: (0, chunk - 1)}, True
        given = {}
        for a, v in zip(x, xs, strict=True):
            if kinds.get(v) == SPLIT:
                inner_dim: Any = moving[v].inner
                given[a] = Rows(inner_dim - 1, 0, {})
        return inner, prove(inner, given)

    graph, (_, _, x) = body()
    reach = {
        kind: graph.reach(
            [a for a, v in zip(x, xs, strict=True) if kinds.get(v) == kind], forward=True
        )
        for kind in (SPLIT, EARLY, LATE)
    }
    ys: list[str] = []
    results: list[Rows] = []
    early = min([1, *(r.lag for v, r in moving.items() if kinds[v] == EARLY)])
    for k, y in enumerate(graph.outputs[n:]):
        of, lag = EARLY, early if y in reach[EARLY] else 1
        made = Rows(0, lag, {}, None, chunk)
        if y in reach[LATE] or y in reach[SPLIT]:
            of, made = LATE, Rows(0, 1 - chunk, {}, None, chunk)
        if y in reach[SPLIT] and y not in reach[LATE]:
            try:
                inner, known = inside([k])
                last = known[inner.graph.outputs[0]]
            except NotCausal:
                last = None
            if last and last == Rows(last.dim, 0, {}) and last.dim is not None:
                of, made = SPLIT, Rows(0, 0, {}, last.dim + 1, chunk)
                assert graph.avals[y].shape[last.dim] == chunk
        ys.append(of)
        results.append(made)
    split = [k for k, of in enumerate(ys) if of == SPLIT]
    inner, _ = inside(split) if split else (None, None)
    if inner is not None:
        plan.rely_on(inner)
    plan.loops[node.outs[0]] = Chunks(node, view, inner, ys, results, chunk)
    return [*[None] * n, *results]


class Chunks:
    """A scan over chunks of rows: a step goes on within one, and with its last row to the next.

    inner: the plan of what it computes of each row; kinds, rows: when each result is known, and how
    it runs in time.
    """

    def __init__(self, node: Node, view: Any, inner: Plan | None, kinds, rows, chunk: int):
        self.node, self.view, self.inner, self.chunk = node, view, inner, chunk
        self.kinds, self.rows = kinds, rows

    def _split(self, run: Run) -> list:
        """The new row of each result that has one."""
        outs = []
        split = [r for kind, r in zip(self.kinds, self.rows, strict=True) if kind == SPLIT]
        for v, rows in zip(run.plan.graph.outputs, split, strict=True):
            box = list(run.plan.whole(v))
            box[rows.inner - 1] = Span(Start(TIME, 1), 1)
            outs.append(run.read(v, tuple(box))[None])
        return outs

    @functools.cached_property
    def keep(self) -> list[int]:
        return read_from_before(self.inner, self._split) if self.inner else []

    def start(self, operands: Sequence) -> tuple[list, Any]:
        """The results on whole operands; the first state, and what is kept within a chunk."""
        consts, carry, xs = self.view.split(operands)

        body = functools.partial(one_step, self.view, consts)
        last, ys = lax.scan(body, list(carry), list(xs), length=self.view.length)
        kept, loops = {}, {}
        if self.inner is not None:
            first = [jax.tree.map(lambda x: x[0], x) for x in xs]
            values, loops = self.inner.values([*consts, *carry, *first])
            kept = {v: self.inner.begun(v, values[v]) for v in self.keep}
        return [*last, *ys], (list(carry), kept, loops)

    def step(self, run: Run, node: Node, state: Any) -> tuple[list, Any]:
        consts, begin, xs = self.view.split(node.ins)
        t, chunk, n = run.at[TIME], self.chunk, len(begin)
        carry, kept, loops = state
        if run.plan.restarts:
            first = [run.whole(v) for v in begin]
            carry = [jnp.where(t == 0, a, b) for a, b in zip(first, carry, strict=True)]
        fixed = [run.whole(v) for v in consts]
        now = Start(TIME, 1)

        def rows(at: Start) -> list:
            """The chunk of a position."""
            spans = [(Span(at, 1), *run.plan.whole(v)[1:]) for v in xs]
            return [run.read(v, span)[0] for v, span in zip(xs, spans, strict=True)]

        body = functools.partial(one_step, self.view, fixed)
        here = rows(now.divided(chunk))
        late = [
            cut(run.before(v), run.plan.boxes[v][0], 0, run.at, run.plan.limits)
            for v, kind in zip(node.outs[n:], self.kinds, strict=True)
            if kind == LATE
        ]

        def last() -> tuple:
            after, ys = body(carry, here)
            return after, [y[None] for y, of in zip(ys, self.kinds, strict=True) if of == LATE]

        after, late = lax.cond(t % chunk == chunk - 1, last, lambda: (carry, late))
        blocks: dict[str, list] = {LATE: late, EARLY: [], SPLIT: []}
        for k, (kind, of) in enumerate(zip(self.kinds, self.rows, strict=True)):
            if kind == EARLY:
                is_next = (of.lag > 0) & (t + 1 < chunk * self.view.length)
                one = [jnp.where(is_next, a, b) for a, b in zip(after, carry, strict=True)]
                (box,) = run.plan.boxes[node.outs[n + k]]
                blocks[EARLY].append(body(one, rows(box[0].start))[1][k][None])
        if self.inner is not None:
            blocks[SPLIT], kept, loops = self._within(run, node, (fixed, carry, here), kept, loops)
        order = {kind: iter(of) for kind, of in blocks.items()}
        ys = [[next(order[kind])] for kind in self.kinds]
        return [*([x] for x in after), *ys], (list(after), kept, loops)

    def _within(self, run: Run, node: Node, operands: tuple, kept, loops) -> tuple:
        """The rows of the results, and what is kept of the chunk."""
        inner: Any = self.inner
        fixed, carry, here = operands
        xs, (c, h, x) = self.view.split(node.ins)[2], self.view.split(inner.graph.inputs)
        place = Start(TIME, 1)
        clean = dict(zip([*c, *h], [*fixed, *carry], strict=True))
        fresh = {}
        for v, a, whole in zip(xs, x, here, strict=True):
            if a not in inner.boxes:
                clean[a] = whole
                continue
            box = [whole_span(k) for k in run.plan.shape(v)]
            d = inner.rows[a][0] + 1
            box[0], box[d] = (
                Span(place.divided(self.chunk), 1),
                Span(place.remainder(self.chunk), 1),
            )
            fresh[a] = [run.read(v, tuple(box))[0]]
        one = Run(inner, kept, loops, {TIME: run.at[TIME] % self.chunk}, fresh, clean)
        made = self._split(one)
        return made, {v: one.carried(v) for v in kept}, loops | one.new_loops
