"""The proof that a program is causal: row s of its result needs the rows up to s, and no others.

For each value that depends on the input: the dimension that runs in time, its lag (row s depends
on the input up to s - lag), and other dimensions that run in time as well, as the columns of
attention scores do. What lies in these beyond the present is not known yet; what is there instead
is known where a mask says so, and only then may a reduction take it in.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from malleable import compat
from malleable.rewriting.boxes.dependence import ELEMENTWISE, Along, Before, rel, runs_bodies
from malleable.rewriting.boxes.spans import Span, Start
from malleable.rewriting.graph.graph import Node
from malleable.rewriting.incremental.beyond import check_gone, what_is_beyond
from malleable.rewriting.incremental.chunks import (
    box_in_chunks,
    in_chunks,
    is_in_chunks,
    loop_over_chunks,
)
from malleable.rewriting.incremental.forms import in_other_words
from malleable.rewriting.incremental.loops import ROUNDS, TIME, Choice, Layers, Recurrence, Turns
from malleable.rewriting.incremental.masks import FINITE, NEGATIVES, NO_NUMBER, SURE, Beyond
from malleable.rewriting.incremental.plan import OpenedWhile, Plan, handed_on, inside_of, opened
from malleable.rewriting.incremental.times import Loose, NotCausal, Part, Rows, Way, crossed, refuse
from malleable.rewriting.incremental.windows import narrow

FIRST = 4  # rows that a state may begin with


def prove(plan: Plan, given: dict[int, Rows], width: int, way: Way) -> dict[int, Rows | None]:
    """How each value runs in time; puts what `width` new rows change into plan.boxes.

    None stands for the last state of a loop over time.
    """
    found: dict[int, Rows | None] = dict(given)
    for v, rows in given.items():
        boxed(plan, v, rows, width)
    for node in plan.nodes:
        moving = [v for v in node.ins if v in found]
        if not moving:
            continue
        if any(found[v] is None for v in moving):
            raise refuse(node, "the last state of a loop over all rows is used")
        fixed = [v for v in moving if (rows := found[v]) and rows.dim is None]
        if fixed and runs_bodies(node.eqn) and node.name != "scan":
            raise refuse(node, "one of the first rows goes into a loop or a branch")
        if node.name == "scan":
            try:
                made = _loop_in_time(plan, node, found, width, way)
            except NotCausal as refused:
                refused.loop = node.outs[0]
                raise
        elif node.name == "cond":
            made = _choice(plan, node, found, width, way)
        elif node.name == "while":
            made = _turns(plan, node, found, width, way)
        elif runs_bodies(node.eqn):
            raise refuse(node, f"what `{node.name}` decides or carries may change with any row")
        else:
            made = [_through(plan, node, found, way)] * len(node.outs)
        for v, rows in zip(node.outs, made, strict=True):
            if rows != ():
                if plan.restarts and rows and rows.lag > 0:  # its first rows are new ones as well
                    rows = rows._replace(lag=0)
                found[v] = rows
                if rows is not None:
                    boxed(plan, v, rows, width)
    return found


def boxed(plan: Plan, v: int, rows: Rows, width: int) -> None:
    """The rows of a value that new rows of the input make known."""
    if rows.dim is None:
        plan.boxes[v] = (plan.whole(v),)
        return
    if rows.chunk > 1:
        plan.boxes[v] = (box_in_chunks(plan, v, rows, width),)
        plan.chunks[v] = rows
        return
    plan.rows[v] = rows.dim, rows.lag
    box = list(plan.whole(v))
    box[rows.dim] = nominal(rows, width).clipped(plan.shape(v)[rows.dim], plan.limits)
    plan.boxes[v] = (tuple(box),)


def nominal(rows: Rows, width: int) -> Span:
    return Span(Start(TIME, 1, rows.lag), width)


def _through(plan: Plan, node: Node, found: dict, way: Way) -> Rows:
    if is_in_chunks(plan, node, found):
        return in_chunks(plan, node, found, way)
    tables = rel(node.eqn, lambda k: plan.small_constant(node.ins[k]))
    rows: dict[int, Part] = {}
    loose: list[Part] = []
    fixed: dict[int, int] = {}  # lags of operands that are known for good with one row
    for k, (v, entries) in enumerate(zip(node.ins, tables, strict=True)):
        if v in found:
            dim, lag, others = found[v][:3]
            at = _begins(plan, v, found[v])
            if at is not None and (dim is None or entries[dim] is None):
                fixed[k] = at
                continue
            rows[k] = _carried_to(node, k, dim, entries[dim], lag, None)
            if isinstance(entries[dim], Before) and any(
                x.beyond not in SURE for x in others.values()
            ):
                raise refuse(node, f"`{node.name}` takes in what is not known yet")
            for d, (low, beyond, *_) in others.items():
                if isinstance(entries[d], Before):
                    raise refuse(node, f"`{node.name}` runs over what is not known yet")
                loose.append(_carried_to(node, k, d, entries[d], low, beyond))
    if not rows:
        return Rows(None, min(fixed.values()), {})
    kept = [p for p in rows.values() if p.dim is not None]
    if dims := sorted({p.dim for p in kept if p.dim is not None}):
        own = dim = way.of_two(node.outs[0], dims)
        lag = min(p.lag for p in kept if p.dim == own)
        if way.across and len(dims) == 1 and not loose:
            dim = _rows_of_constant(plan, node, tables, own)
    else:
        dim, lag = _mixed(plan, node, rows)
    for k, at in fixed.items():
        joined = node.name == "concatenate" and node.params["dimension"] == dim
        before = sum(plan.shape(v)[dim] for v in node.ins[:k]) if joined else 0
        lag = min(lag, before + at)  # what is joined behind others is not asked for before them
    columns = [p.lag for p in loose if p.dim is not None] + [p.lag for p in kept if p.dim != dim]
    if columns:
        lag = min(lag, max(0, min(columns)))  # a row is made when the columns up to it are known
    loose = [part for p in loose if (part := _seen_from(plan, node, p, rows, dim, lag, found))]
    if kept:
        gone = [p for p in (*rows.values(), *loose) if p.dim is None]
        sizes = [plan.shape(node.ins[p.operand])[p.source] for p in gone]
        open_ends = [p for p, n in zip(gone, sizes, strict=True) if not p.is_known(n, lag)]
        check_gone(plan, node, open_ends)
    columns = [p for p in kept if p.dim != dim]
    loose += [p if way.level is None else p._replace(lag=min(p.lag, way.level)) for p in columns]
    if any(p.dim == dim for p in loose):
        raise refuse(node, "its rows depend on later ones")
    out = Rows(dim, lag, {})
    for o in sorted({p.dim for p in loose if p.dim is not None}):
        mine = [p for p in loose if p.dim == o]
        column = mine[0]._replace(lag=min(p.lag for p in mine))
        if not column.is_known(plan.shape(node.outs[0])[o], lag):
            kind = what_is_beyond(plan, node, found, mine, out, column)
            out.loose[o] = Loose(column.lag, kind)
    if plan.by_masks and node.name in ELEMENTWISE:
        _mask_columns(plan, node, found, out)
    return out


def _mask_columns(plan: Plan, node: Node, found: dict, out: Rows) -> None:
    """What each row knows all of, and a constant masks as it does columns in time, is as they."""
    shape = plan.shape(node.outs[0])
    for o, n in enumerate(shape):
        if o != out.dim and n == shape[out.dim] and o not in out.loose:
            column = Part(0, o, o, out.lag, None)
            kind = what_is_beyond(plan, node, found, [], out, column)
            if kind == Beyond.ZERO or kind in NEGATIVES:
                out.loose[o] = Loose(out.lag, kind)


def _begins(plan: Plan, v: int, rows: Rows) -> int | None:
    """The lag of a value all of which is known with one of the first rows; None of another one."""
    if rows.dim is None or rows.loose or rows.chunk > 1:
        return rows.lag if rows.dim is None else None
    n = plan.shape(v)[rows.dim]
    return min(rows.lag, 0) if n <= rows.lag + 1 or (n == 1 and rows.lag > -FIRST) else None


def _rows_of_constant(plan: Plan, node: Node, tables: Sequence, dim: int) -> int:
    """The dimension along which a constant has rows, where it meets columns; else their own."""
    shape = plan.shape(node.outs[0])
    if node.name not in ELEMENTWISE:
        return dim
    for v, entries in zip(node.ins, tables, strict=True):
        c = plan.small_constant(v)
        if c is None or c.ndim < len(shape) or c.shape[dim] == 1:
            continue
        for d, n in enumerate(c.shape):
            if d != dim and n == shape[dim] and entries[d] == Along(d):
                return d
    return dim


def _carried_to(node: Node, k: int, d: int, entry: Any, lag: int, beyond: Beyond | None) -> Part:
    """Where a dimension of operand k goes."""
    match entry:
        case None:
            return Part(k, d, None, lag, beyond)
        case Before(o):
            return Part(k, d, o, lag, beyond)
        case Along(o, 1, 0, 0):
            return Part(k, d, o, lag, beyond)
        case Along(o, 1, lo, hi):
            if lo < hi or node.name not in ("slice", "concatenate"):
                beyond = Beyond.KNOWN if beyond in SURE else None
            return Part(k, d, o, int(lag - hi), beyond, int(hi - lo))
        case Along():
            raise refuse(node, "rows come in another order, or not all of them")
    raise refuse(node, "rows are put into groups, or into one dimension with others")


def _seen_from(
    plan: Plan, node: Node, part: Part, parts: dict[int, Part], dim: int, lag: int, found: dict
) -> Part | None:
    """A loose dimension, as the rows of the result see it; None: all that is there is right.

    A row that was made before, for another lag or a window, has in it what was known then.
    """
    rows = parts[part.operand]
    if rows.dim != dim:
        if part.beyond in SURE:
            return None
        raise crossed(plan, node, node.ins[part.operand], found)
    low = part.lag - (rows.lag - lag)
    if rows.wide and part.beyond not in SURE:
        return part._replace(lag=low - rows.wide, beyond=None)
    return part._replace(lag=low)


def _mixed(plan: Plan, node: Node, rows: dict[int, Part]) -> tuple[int, int]:
    """A constant that mixes rows: their dimension, and the lag.

    A matrix, of which what is not 0 counts, or the places at which rows are looked up.
    """
    (k, part), *others = rows.items()
    if node.name == "gather" and not others and (found := _looked_up(plan, node, k, part)):
        return found
    if node.name == "dot_general" and not others:
        contracted = node.params["dimension_numbers"][0]
        matrix, entries = plan.small_constant(node.ins[1 - k]), rel(node.eqn)[1 - k]
        d = contracted[1 - k][contracted[k].index(part.source)]
        if matrix is not None:
            matrix = np.broadcast_to(matrix, plan.shape(node.ins[1 - k]))
            lags = []
            for a, entry in enumerate(entries):
                if isinstance(entry, Along) and matrix.shape[a] > 1:
                    i, j = np.nonzero(np.moveaxis(matrix, (a, d), (0, 1)))[:2]
                    lag = int((i - j).min()) if len(i) else 0
                    lags.append((lag, matrix.shape[a] == matrix.shape[d], -entry.dim))
            if lags:
                lag, _, dim = max(lags)
                plan.assume(FINITE, node, NO_NUMBER)
                return -dim, part.lag + lag
    raise refuse(node, f"`{node.name}` needs all rows")


def _looked_up(plan: Plan, node: Node, k: int, part: Part) -> tuple[int, int] | None:
    """Row i is row places[i] of the operand, so its lag is the least of i - places[i].

    Of a window that begins there, the last row counts.
    """
    numbers, places = node.params["dimension_numbers"], plan.small_constant(node.ins[1])
    if k > 0 or places is None or part.source not in numbers.start_index_map:
        return None
    n, size = plan.shape(node.ins[0])[part.source], node.params["slice_sizes"][part.source]
    if size == n:
        return None
    places = np.broadcast_to(places, plan.shape(node.ins[1]))
    places = places[..., numbers.start_index_map.index(part.source)].astype(int)
    places = np.clip(places, 0, n - size) + size - 1
    out = [d for d in range(len(plan.shape(node.outs[0]))) if d not in numbers.offset_dims]
    lags = [(int((at - places).min()), -k) for k, at in enumerate(np.indices(places.shape))]
    lags = [lag for lag in lags if places.shape[-lag[1]] > 1]
    if not lags:
        return None
    lag, k = max(lags)
    return out[-k], part.lag + lag


# ---------------------------------------------------------------- loops


def _loop_in_time(plan: Plan, node: Node, found: dict, width: int, way: Way) -> list:
    """How the results of a scan run in time; () for one that does not change.

    Over rows that run in time it goes on from its state; over anything else it is layers.
    """
    view: Any = compat.view(node.eqn)
    consts, carry, xs = view.split(node.ins)
    ahead = [found[v] for v in xs if v in found and found[v].dim == 0]
    if any(rows.chunk > 1 for rows in ahead):
        if any(found[v].dim is None and found[v].lag < 0 for v in node.ins if v in found):
            raise refuse(node, "a loop over chunks begins with a row that is known later")
        return loop_over_chunks(plan, node, found, functools.partial(prove, width=1, way=way))
    if ahead:
        lag = min(rows.lag for rows in ahead)
        others = [_begins(plan, v, found[v]) for v in (*consts, *carry) if v in found]
        if view.reverse or any(at is None or lag > at for at in others):
            raise refuse(node, "a loop over the rows needs all of them")
        if any(v in found and (found[v].dim or found[v].loose) for v in xs):
            raise refuse(node, "a loop takes rows of several times at once")
        lag = min(lag, 0) if plan.restarts else lag
        plan.loops[node.outs[0]] = Recurrence(plan, node, view, lag, width)
        n = len(carry)
        return [None] * n + [Rows(0, lag, {})] * (len(node.outs) - n)
    if any(v in found and found[v].dim is None for v in node.ins):
        raise refuse(node, "one of the first rows goes into a loop that is not over the rows")

    graph = opened(view.body)
    c, h, x = view.split(graph.inputs)
    given = handed_on(found, consts, c)
    for a, v in zip(x, xs, strict=True):
        if v in found:
            if 0 in found[v].loose or found[v].inner == 0:
                raise refuse(node, "a loop takes rows of several times at once")
            given[a] = _shifted(found[v], -1)
    state = handed_on(found, carry, h)
    if plan.by_masks and (moving := given | state):
        v, rows = next(iter(moving.items()))
        length = graph.avals[v].shape[rows.dim] * rows.chunk
        known = inside_of(plan, graph, consts, c).small_constant
        for mask in in_other_words(graph, list(moving), length, known):
            plan.tell(FINITE, mask, NO_NUMBER)

    def turn(state: dict) -> tuple[Plan, dict]:
        inner = inside_of(plan, graph, consts, c)
        return inner, prove(inner, given | state, width, way)

    inner, inside, state = _at_rest(node, graph, h, state, turn)
    narrow(inner, inside, width)
    plan.loops[node.outs[0]] = Layers(node, view, inner)
    plan.rely_on(inner)
    ys = [inside.get(b, ()) for b in graph.outputs[len(h) :]]
    return [*(state.get(a, ()) for a in h), *(_shifted(r, 1) if r else r for r in ys)]


def _at_rest(node: Node, graph: Any, h: Sequence[int], state: dict, turn: Callable) -> tuple:
    """(plan, what was found, state): how the state of a loop runs in time, before and after."""
    for _ in range(ROUNDS):
        inner, inside = turn(state)
        new = dict(state)
        for a, b in zip(h, graph.outputs, strict=False):
            if b in inside:
                if inside[b] is None:
                    raise refuse(node, "the last state of a loop over all rows is used")
                new[a] = _either(node, state.get(a, inside[b]), inside[b])
        if new == state:
            return inner, inside, state
        state = new
    raise refuse(node, "the state of a loop reaches further back in each turn")


def _choice(plan: Plan, node: Node, found: dict, width: int, way: Way) -> list:
    """How the results of a `cond` run in time, whichever branch is taken."""
    which, *ins = node.ins
    if which in found:
        raise refuse(node, "what `cond` decides may change with any row")
    inners: list[Plan] = []
    made: list[Any] = [()] * len(node.outs)
    view: Any = compat.view(node.eqn)
    for branch in view.branches:
        graph = opened(branch)
        inner = inside_of(plan, graph, ins, graph.inputs)
        inside = prove(inner, handed_on(found, ins, graph.inputs), width, way)
        narrow(inner, inside, width)
        for k, v in enumerate(graph.outputs):
            if v not in inside:
                continue
            if (rows := inside[v]) is None or rows.loose:
                raise refuse(node, "a branch gives more than rows")
            made[k] = _either(node, made[k] or rows, rows)
        inners.append(inner)
        plan.rely_on(inner)
    plan.loops[node.outs[0]] = Choice(plan, node, inners)
    return made


def _turns(plan: Plan, node: Node, found: dict, width: int, way: Way) -> list:
    """How the results of a `while` run in time, if each turn goes row by row.

    What decides is the same for all rows, or each row decides for itself.
    """
    find = functools.partial(prove, width=width, way=way)
    loop = OpenedWhile(plan, node, found, find)
    h, state = loop.h, loop.state
    for _ in range(2):
        inner, _, state = _at_rest(node, loop.body, h, state, loop.turn)
        test, decides = loop.test(state)
        if decides == () or len(state) == len(h):
            break
        if decides is None:
            raise refuse(node, "what `while` decides may change with any row")
        state = {a: state.get(a, Rows(decides.dim, decides.lag, {})) for a in h}
    same = {(rows.dim, rows.lag) for rows in [*state.values(), *([decides] if decides else [])]}
    if any(rows.loose or rows.chunk > 1 for rows in state.values()) or (
        decides != () and (len(same) > 1 or decides.loose or decides.lag < 0)
    ):
        raise refuse(node, "what `while` decides may change with any row")
    turns = Turns(node, loop.view, inner, test, decides != ())
    if turns.needs_more():
        raise refuse(node, "each turn of a `while` needs rows of before, and how many is not known")
    for part in (inner, test):
        plan.rely_on(part)
    plan.loops[node.outs[0]] = turns
    return [state.get(a, ()) for a in h]


def _shifted(rows: Any, by: int) -> Any:
    loose = {d + by: kind for d, kind in rows.loose.items()}
    inner = None if rows.inner is None else rows.inner + by
    return rows._replace(dim=rows.dim + by, loose=loose, inner=inner)


def _either(node: Node, one: Any, other: Any) -> Any:
    """What holds of a state that runs in time in one of two ways."""
    if one == other:
        return one
    times = [(rows.dim, rows.inner, rows.chunk) for rows in (one, other)]
    if times[0] != times[1] or one.loose or other.loose:
        raise refuse(node, "the state of a loop runs in time in several ways")
    return one._replace(lag=min(one.lag, other.lag))
