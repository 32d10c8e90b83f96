"""Where the numbers of a value come from, and which of them count: what masks leave in is told.

So a part of what is moved that no mask leaves in does not make a row depend on it.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from malleable import compat
from malleable.programs.primitives import kind
from malleable.rewriting.boxes.dependence import ELEMENTWISE, groups
from malleable.rewriting.graph.graph import Graph, Node

MOVES = kind("dims", "rearrange", "cut", "join")
MOST = 1 << 24  # numbers of a value that are looked at one by one


def only_what_counts(graph: Graph, known: Callable) -> list[Node]:
    """Leave out, in place, what is moved and masked away; the products and sums that mask.

    Of what is joined, the parts that never count are 0; what is looked up and never counts is the
    first; and where a reshape mixes rows of which,
    but for the masks, each goes to one row, as in a relative shift, each row looks its own up.
    """
    counts, masks = _what_counts(graph, known)
    before = graph.order()
    for node in before:
        where = counts.get(node.outs[0], True)
        if node.name in _LESS and where is not True:
            _LESS[node.name](graph, node, where, known)
    for node in graph.order():
        if node.name == "reshape" and _merges(graph, node):
            _look_up(graph, node, counts, known)
    return masks if graph.order() != before else []


def _merges(graph: Graph, node: Node, parts: int = 0) -> bool:
    """Whether a reshape makes one dimension of several, or as well several of one."""
    (x,), (y,) = node.ins, node.outs
    before, after = ([n for n in graph.avals[v].shape if n > 1] for v in (x, y))
    mixed = groups(before, after) if graph.avals[x].size else []
    return any(len(a) > 1 and len(b) > parts for a, b in mixed) and not graph.is_placed(y)


def _what_counts(graph: Graph, known: Callable) -> tuple[dict[int, Any], list[Node]]:
    """Where the numbers of each value count, True for everywhere; and what masks by a number."""
    found: dict[int, Any] = dict.fromkeys(graph.outputs, True)
    masks: list[Node] = []

    def add(v: int, where: Any) -> None:
        shape = graph.avals[v].shape
        if where is not True and len(shape) == where.ndim:
            same = tuple(d for d, n in enumerate(shape) if n < where.shape[d])
            where = where.any(same, keepdims=True)
        if where is not True and (where.shape != shape or where.all()):
            where = True
        old = found.get(v, False)
        found[v] = True if where is True or old is True else old | where

    for node in reversed(graph.order()):
        (out, *others), name = node.outs, node.name
        at, shape = found.get(out, True), graph.avals[out].shape
        if others or graph.avals[out].size > MOST:
            at = True
        ask: Any = _LEAVES_IN.get(name)
        for c in [known(v) for v in node.ins] if ask else ():
            if c is not None and c.ndim == len(shape) and not (left := ask(c)).all():
                masks += [node] * (name != "and")
                at = np.broadcast_to(left, shape) & at
        which = known(node.ins[0]) if name == "select_n" else None
        moved = _moved(graph, node, known) if name in MOVES and at is not True else None
        for k, v in enumerate(node.ins):
            if which is not None and k:
                add(v, np.broadcast_to(which.astype(int) == k - 1, shape) & at)
            elif moved is not None and moved[k] is not None:
                there = np.zeros(graph.avals[v].size, bool)
                places = moved[k][at]
                there[places[(places >= 0) & (places < there.size)]] = True
                add(v, there.reshape(graph.avals[v].shape))
            else:
                add(v, at if name in ELEMENTWISE else True)
    return found, masks


_LEAVES_IN: dict[str, Callable] = {  # where what a constant meets still counts
    "and": lambda c: c.astype(bool) if c.dtype == bool else np.ones(c.shape, bool),
    "mul": lambda c: c != 0,
    "add": lambda c: c != -np.inf,
}


def _moved(graph: Graph, node: Node, known: Callable) -> list | None:
    """Where the numbers of each operand of what moves are after, counted from the operand's first.

    None for an operand that says where others go, and for all of them where it is not known.
    """
    at, starts, args = 0, [], []
    for k, v in enumerate(node.ins):
        aval, places = graph.avals[v], None
        if k and node.name in ("gather", "dynamic_slice"):
            if (places := known(v)) is None:
                return None
        else:
            starts, at = [*starts, (k, at)], at + aval.size
        numbers = np.arange(at - aval.size, at, dtype=np.int32).reshape(aval.shape)
        args.append(jnp.asarray(numbers if places is None else places))
    with jax.ensure_compile_time_eval():
        after = np.asarray(compat.bind(node.eqn, args)[0])
    return [after - dict(starts)[k] if k in dict(starts) else None for k in range(len(args))]


def _join_less(graph: Graph, node: Node, where: np.ndarray, known: Callable) -> None:
    d = node.params["dimension"]
    ends = np.cumsum([0, *(graph.avals[v].shape[d] for v in node.ins)])
    rows: Any = where.any(tuple(a for a in range(where.ndim) if a != d))
    kept = [bool(rows[a:b].any()) for a, b in itertools.pairwise(ends)]
    if not all(kept) and any(kept):
        part = lambda x, keep: x if keep else jnp.zeros_like(x)  # noqa: E731
        graph.rewrite(node, lambda *xs: [lax.concatenate(list(map(part, xs, kept)), d)])


def _look_up_less(graph: Graph, node: Node, where: np.ndarray, known: Callable) -> None:
    """What is looked up at known places, and does not count there, is looked up at the first."""
    if (places := known(node.ins[1])) is not None:
        used: Any = where.any(tuple(node.params["dimension_numbers"].offset_dims))
        places = np.where(used[..., None], places, 0).astype(places.dtype)
        ins = [node.ins[0], graph.constant(places)]
        graph.rewrite(node, lambda *xs: compat.bind(node.eqn, xs), ins)


_LESS = {"concatenate": _join_less, "gather": _look_up_less}


def _look_up(graph: Graph, node: Node, counts: dict, known: Callable) -> None:
    """What is only moved, up to here and on, as looked up in what it was: row by row if it can."""

    def moving(made: Node) -> int | None:
        ins = [v for v in made.ins if known(v) is None]
        is_move = (
            made.name in MOVES - {"gather", "dynamic_slice"} and len(ins) == len(made.outs) == 1
        )
        return ins[0] if is_move else None

    def constant(v: int) -> jax.Array:
        return jnp.broadcast_to(known(v), graph.avals[v].shape)

    x, path = node.ins[0], [node]
    while (made := graph.maker[x]) is not None and (before := moving(made)) is not None:
        x, path = before, [made, *path]
    out = node.outs[0]
    while len(after := graph.users(out)) == 1 and moving(after[0]) is not None:
        out, path = after[0].outs[0], [*path, after[0]]
    given = graph.avals[x]
    names = [made.name for made in path]
    is_plain = names.count("reshape") < 2 and not _merges(graph, node, 1)
    is_plain = is_plain or not {*names} - kind("dims")
    if max(given.size, graph.avals[out].size) > MOST or is_plain or moving(node) is None:
        return
    numbers = {x: jnp.arange(given.size, dtype=jnp.int32).reshape(given.shape)}
    zeros = {x: jnp.zeros(given.shape, given.dtype)}
    with jax.ensure_compile_time_eval():
        for made in path:
            ins = [
                numbers[v] if v in numbers else jnp.full(graph.avals[v].shape, -1, jnp.int32)
                for v in made.ins
            ]
            zero = [zeros[v] if v in zeros else constant(v) for v in made.ins]
            (numbers[made.outs[0]],), (zeros[made.outs[0]],) = (
                compat.bind(made.eqn, ins),
                compat.bind(made.eqn, zero),
            )
    number, rest = np.asarray(numbers[out]), np.asarray(zeros[out])
    is_there = (number >= 0) & counts.get(out, True)
    found = _row_by_row(number, is_there, given.shape)
    if found is None:
        return
    take, places = found
    filled = (number < 0) & counts.get(out, True)

    def looked_up(x):
        y = take(x, places)
        return [jnp.where(filled, rest, y) if filled.any() else y]

    (new,) = graph.trace(looked_up, [x], node)
    graph.replace({out: new})


def _row_by_row(number: np.ndarray, is_there: np.ndarray, before: Sequence[int]) -> tuple | None:
    """(take(x, places), places): a lookup that goes along with as many dimensions as it can."""
    after, at = np.indices(number.shape), np.unravel_index(np.maximum(number, 0), before)
    along: dict[int, int] = {}  # dimensions of the operand, and those of the result
    for d, o in itertools.product(range(len(before)), range(number.ndim)):
        same = before[d] == number.shape[o] > 1 and d not in along and o not in along.values()
        if same and (at[d] == after[o])[is_there].all():
            along[d] = o
    gone = [d for d in range(len(before)) if d not in along]
    if not along or not gone:
        return None
    places = [np.where(is_there, at[d], -1) for d in gone]
    for o in along.values():  # the same all along: of one is enough
        most = [p.max(o, keepdims=True) for p in places]
        if all(((p == m) | ~is_there).all() for p, m in zip(places, most, strict=True)):
            places = [np.broadcast_to(m, p.shape) for p, m in zip(places, most, strict=True)]
    windows = {d: o for d, o in along.items() if all((p == p.take([0], o)).all() for p in places)}
    batch = [o for o in range(number.ndim) if o not in windows.values()]
    order = sorted(windows, key=lambda d: windows[d])
    turned = [*sorted(set(along) - set(windows), key=lambda d: along[d]), *gone, *order]
    first, last = len(along) - len(windows), len(turned) - len(windows)
    numbers = lax.GatherDimensionNumbers(
        offset_dims=tuple(sorted(windows.values())),
        collapsed_slice_dims=tuple(range(first, last)),
        start_index_map=tuple(range(first, last)),
        operand_batching_dims=tuple(range(first)),
        start_indices_batching_dims=tuple(batch.index(along[d]) for d in turned[:first]),
    )
    sizes = [1] * last + [before[d] for d in order]
    cut = [p[tuple(slice(None) if o in batch else 0 for o in range(p.ndim))] for p in places]
    indices = np.maximum(np.stack(cut, -1), 0).astype(np.int32)

    def take(x, places):
        mode = lax.GatherScatterMode.PROMISE_IN_BOUNDS
        return lax.gather(jnp.transpose(x, turned), places, numbers, tuple(sizes), mode=mode)

    return take, indices
