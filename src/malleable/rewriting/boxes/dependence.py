"""The one map of dependence: which part of each operand an equation needs.

    rel(eqn)[operand][dim]     Along(d, scale, lo, hi): places scale * i + lo ... scale * i + hi
                               Before(d): the places up to i
                               Group(d, size): the places i * size ... i * size + size - 1
                               Place(d, size): the place i // size
                               ALL: any of them
                               for place i of dimension d of the result

A dimension of the result that no entry of an operand names does not depend on that operand.
Backwards it says what has to be read, forwards what a change makes dirty.
Source: bounds inference, Ragan-Kelley et al., "Halide", PLDI 2013.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from malleable import compat
from malleable.programs.primitives import has, kind
from malleable.rewriting.boxes.spans import Box, Remainder, Span, whole, whole_span
from malleable.rewriting.graph.slices import shapes


class Along(NamedTuple):
    """Places scale * i + lo ... scale * i + hi, for place i of dimension `dim` of the result."""

    dim: int
    scale: int = 1
    lo: int = 0
    hi: int = 0


class Before(NamedTuple):
    """All places up to i."""

    dim: int


class Group(NamedTuple):
    """The places of group i: i * size ... i * size + size - 1."""

    dim: int
    size: int


class Place(NamedTuple):
    """The place i // size; this dimension is the outer one of those that were merged."""

    dim: int
    size: int


ALL = None
Entry = Along | Before | Group | Place | None
Known = Callable[[int], Any]  # the constant that an operand is, or None

DERIVED = "own_derivative"  # its first operand, whose derivative is told by the others
ELEMENTWISE = kind("elementwise", "complex", "cast", "same") | {"name", DERIVED}
ELEMENTWISE |= {"sharding_constraint", "device_put"}  # where all of it is kept
CUMULATIVE = kind("cumulative")
WINDOWS = kind("window") & has("sum", "extremum")
SCATTERS = frozenset(name for name in kind("write") if name.startswith("scatter"))
REDUCTIONS = kind("reduce", "search") - {"reduce"}


def rel(eqn: compat.Eqn, known: Known = lambda operand: None) -> Sequence[Sequence[Entry]]:
    """For each operand and each of its dimensions, the places that a place of the result needs.

    known(i): the constant that operand i is, if it is one. All results have the entries of the
    first; a dimension that is ALL is ALL for each of them.

    >>> from malleable import stage
    >>> from jax import numpy as jnp
    >>> (eqn,) = stage(lambda x, w: x @ w)(jnp.ones((2, 3)), jnp.ones((3, 4))).jaxpr.eqns
    >>> rel(eqn)
    [[Along(dim=0, scale=1, lo=0, hi=0), None], [None, Along(dim=1, scale=1, lo=0, hi=0)]]
    """
    ins = [tuple(shape) for shape in shapes(eqn.invars)]
    out, *others = (tuple(shape) for shape in shapes(eqn.outvars))
    relation, found = _RELATIONS.get(eqn.primitive.name), None
    if relation is not None and not (others and relation is _elementwise):
        found = relation(eqn.params, ins, out, known)
    return found or [[ALL] * len(shape) for shape in ins]


def runs_bodies(eqn: compat.Eqn) -> bool:
    """Whether an equation runs programs of which `rel` knows nothing."""
    return bool(compat.bodies(eqn.params)) and eqn.primitive.name not in {"reduce", *SCATTERS}


def same(dims: Sequence[int]) -> list[Entry]:
    return [Along(d) for d in dims]


def _reaching(dim: int, scale: Any, lo: Any, hi: Any) -> Along:
    """An entry of Python's integers: parameters of equations may be NumPy's, of 64 bits."""
    return Along(dim, int(scale), int(lo), int(hi))


def _but(n: int, gone: Sequence[int]) -> list[Entry]:
    """The entries of n dimensions, of which some are not in the result."""
    left = [d for d in range(n) if d not in gone]
    return [Along(left.index(d)) if d in left else ALL for d in range(n)]


def _elementwise(p, ins, out, known):
    if any(len(shape) not in (0, len(out)) for shape in ins):
        return None
    return [[Along(d) if n == out[d] else ALL for d, n in enumerate(shape)] for shape in ins]


def _reduce(p, ins, out, known):
    arrays = ins[: len(ins) // 2]  # the others are what each begins with
    return [_but(len(shape), p["dimensions"]) for shape in arrays] + [[] for _ in arrays]


def _cumulative(p, ins, out, known):
    entries = same(range(len(out)))
    entries[p["axis"]] = ALL if p["reverse"] else Before(p["axis"])
    return [entries]


def _window(p, ins, out, known):
    reach = zip(p["window_dilation"], p["window_dimensions"], strict=True)
    rows = zip(p["window_strides"], p["padding"], p["base_dilation"], reach, strict=True)
    return [
        [
            ALL if base > 1 else _reaching(d, stride, -lo, -lo + step * (size - 1))
            for d, (stride, (lo, _), base, (step, size)) in enumerate(rows)
        ]
    ]


def _window_back(p, ins, out, known):
    rows = zip(p["window_dimensions"], p["window_strides"], p["padding"], strict=True)
    ones = [(size, step, *pad) == (1, 1, 0, 0) for size, step, pad in rows]
    return [[Along(d) if one else ALL for d, one in enumerate(ones)]] * 2


def _broadcast(p, ins, out, known):
    pairs = zip(ins[0], map(int, p["broadcast_dimensions"]), strict=True)  # vmap gives NumPy's
    return [[Along(d) if n == out[d] else ALL for n, d in pairs], *([] for _ in ins[1:])]


def groups(before: Sequence[int], after: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """The dimensions of a reshape that hold the same numbers, the fewest at a time.

    >>> groups((2, 3, 4), (6, 4))
    [([0, 1], [0]), ([2], [1])]
    """
    found, i, j = [], 0, 0
    while i < len(before) or j < len(after):
        mine, theirs = list(range(i, i + 1))[: len(before) - i], list(range(j, j + 1))
        theirs = theirs[: len(after) - j]
        i, j = i + len(mine), j + len(theirs)
        while (a := math.prod(before[d] for d in mine)) != (
            b := math.prod(after[d] for d in theirs)
        ):
            if a < b:
                mine, i = [*mine, i], i + 1
            else:
                theirs, j = [*theirs, j], j + 1
        found.append((mine, theirs))
    return found


def _reshape(p, ins, out, known):
    (shape,) = ins
    entries: list[Entry] = [ALL] * len(shape)
    if p.get("dimensions") is not None or 0 in shape:
        return None
    for mine, theirs in groups(shape, out):
        mine = [d for d in mine if shape[d] > 1]
        theirs = [d for d in theirs if out[d] > 1]
        if not mine or not theirs:
            continue
        if len(mine) == 1 == len(theirs):
            entries[mine[0]] = Along(theirs[0])
        elif len(mine) == 1:
            entries[mine[0]] = Group(theirs[0], shape[mine[0]] // out[theirs[0]])
        elif len(theirs) == 1:
            entries[mine[0]] = Place(theirs[0], out[theirs[0]] // shape[mine[0]])
    return [entries]


def _dot(p, ins, out, known):
    (c1, c2), (b1, b2) = p["dimension_numbers"]
    sides = zip(ins, (c1, c2), (b1, b2), strict=True)
    free = [[d for d in range(len(shape)) if d not in (*c, *b)] for shape, c, b in sides]

    def entries(shape, batch, free, first):
        place = {d: k for k, d in enumerate(batch)} | {d: first + k for k, d in enumerate(free)}
        return [Along(place[d]) if d in place else ALL for d in range(len(shape))]

    n = len(b1)
    return [entries(ins[0], b1, free[0], n), entries(ins[1], b2, free[1], n + len(free[0]))]


def _conv(p, ins, out, known):
    numbers = p["dimension_numbers"]
    entries: list[Entry] = [ALL] * len(ins[0])
    if p["batch_group_count"] == 1:
        entries[numbers.lhs_spec[0]] = Along(numbers.out_spec[0])
    for k, (d, o) in enumerate(zip(numbers.lhs_spec[2:], numbers.out_spec[2:], strict=True)):
        reach = p["rhs_dilation"][k] * (ins[1][numbers.rhs_spec[2 + k]] - 1)
        lo = -p["padding"][k][0]
        if p["lhs_dilation"][k] == 1:
            entries[d] = _reaching(o, p["window_strides"][k], lo, lo + reach)
    return [entries, [ALL] * len(ins[1])]


def _pad(p, ins, out, known):
    rows = enumerate(p["padding_config"])
    return [[ALL if inner else _reaching(d, 1, -lo, -lo) for d, (lo, _, inner) in rows], []]


def _slice(p, ins, out, known):
    rows = zip(p["start_indices"], p["strides"] or [1] * len(out), strict=True)
    return [[_reaching(d, step, lo, lo) for d, (lo, step) in enumerate(rows)]]


def _dynamic_slice(p, ins, out, known):
    """At constant places a slice; elsewhere any place of the dimensions that are cut."""
    starts = [known(k) for k in range(1, len(ins))]
    entries: list[Entry] = []
    for d, (start, n, m) in enumerate(zip(starts, ins[0], out, strict=True)):
        if n == m:
            entries.append(Along(d))
        elif start is None:
            entries.append(ALL)
        else:
            at = int(np.clip(start, 0, n - m))
            entries.append(_reaching(d, 1, at, at))
    return [entries, *([] for _ in starts)]


def _rev(p, ins, out, known):
    turned = {d: _reaching(d, -1, out[d] - 1, out[d] - 1) for d in p["dimensions"]}
    return [[turned.get(d, Along(d)) for d in range(len(out))]]


def _concatenate(p, ins, out, known):
    found, at, dim = [], 0, p["dimension"]
    for shape in ins:
        entries = same(range(len(shape)))
        entries[dim] = _reaching(dim, 1, -at, -at)
        found.append(entries)
        at += shape[dim]
    return found


def _stack(p, ins, out, known):
    return [same([d + (d >= p["axis"]) for d in range(len(ins[0]))])] * len(ins)


def _along_others(name):
    def relation(p, ins, out, known):
        dim = p.get(name, len(ins[0]) - 1)
        entries = same(range(len(ins[0])))
        entries[dim] = ALL
        return [list(entries) for _ in ins]

    return relation


def _gather(p, ins, out, known):
    """Looked up: a window for each index. What is taken as a whole, keeps its places."""
    numbers, (table, indices) = p["dimension_numbers"], ins
    batch = [d for d in range(len(out)) if d not in numbers.offset_dims]
    gone = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    left = [d for d in range(len(table)) if d not in gone]
    entries: list[Entry] = [ALL] * len(table)
    both = zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True)
    for d, k in both:
        entries[d] = Along(batch[k])
    for d, o in zip(left, numbers.offset_dims, strict=True):
        if p["slice_sizes"][d] == table[d] == out[o] and d not in numbers.start_index_map:
            entries[d] = Along(o)
    return [entries, [*same([batch[k] for k in range(len(indices) - 1)]), ALL]]


def _scatter(p, ins, out, known):
    """Written to at places that may be any. What is written as a whole, keeps its places."""
    numbers, (array, _, blocks) = p["dimension_numbers"], ins
    windows = numbers.update_window_dims
    batch = [d for d in range(len(blocks)) if d not in windows]
    batching = numbers.operand_batching_dims
    left = [d for d in range(len(array)) if d not in {*numbers.inserted_window_dims, *batching}]
    tables: list[list[Entry]] = [[ALL] * len(shape) for shape in ins]
    for d, k in zip(batching, numbers.scatter_indices_batching_dims, strict=True):
        tables[0][d] = tables[1][k] = tables[2][batch[k]] = Along(d)
    for d, o in zip(left, windows, strict=True):
        if array[d] == blocks[o] and d not in numbers.scatter_dims_to_operand_dims:
            tables[0][d] = tables[2][o] = Along(d)
    return tables


def _update_slice(p, ins, out, known):
    """A block at a place that may be any, of dimensions that it does not fill."""
    block = ins[1]
    entries = [Along(d) if n == m else ALL for d, (n, m) in enumerate(zip(out, block, strict=True))]
    return [entries, list(entries), *([] for _ in ins[2:])]


def _of_matrices(p, ins, out, known):
    """The dimensions in front of the matrices are a batch."""
    return [[*same(range(len(shape) - 2)), ALL, ALL] for shape in ins]


def _of_vectors(p, ins, out, known):
    """The dimensions that all have in front of vectors, and of matrices, are a batch."""
    n = min(map(len, ins)) - 1
    return [[*same(range(n)), *([ALL] * (len(shape) - n))] for shape in ins]


def _lacks(gone: Callable) -> Callable:
    """The relation of results that lack some dimensions: gone(params, rank)."""
    return lambda p, ins, out, known: [_but(len(ins[0]), gone(p, len(ins[0])))]


_RELATIONS = {
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    **dict.fromkeys(REDUCTIONS, _lacks(lambda p, n: p["axes"])),
    "reduce": _reduce,
    **dict.fromkeys(CUMULATIVE, _cumulative),
    **dict.fromkeys(WINDOWS, _window),
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "transpose": lambda p, ins, out, known: [same(np.argsort(p["permutation"]).tolist())],
    "squeeze": _lacks(lambda p, n: [d % n for d in p["dimensions"]]),
    "dot_general": _dot,
    "conv_general_dilated": _conv,
    "select_and_scatter_add": _window_back,
    "pad": _pad,
    "slice": _slice,
    "dynamic_slice": _dynamic_slice,
    "rev": _rev,
    "concatenate": _concatenate,
    "stack": _stack,
    "unstack": _lacks(lambda p, n: [p["axis"]]),
    "split": _along_others("axis"),
    "sort": _along_others("dimension"),
    "top_k": _along_others("axis"),
    "approx_top_k": _along_others("reduction_dimension"),
    "gather": _gather,
    "fft": _lacks(lambda p, n: range(n - len(p["fft_lengths"]), n)),
    **dict.fromkeys(SCATTERS, _scatter),
    **dict.fromkeys(("cholesky", "eigh", "lu", "qr", "geqrf", "svd"), _of_matrices),
    "triangular_solve": _of_matrices,
    "householder_product": _of_vectors,
    "lu_pivots_to_permutation": _of_vectors,
    "dynamic_update_slice": _update_slice,
}
PADDED = WINDOWS | (kind("join") - {"stack"}) | {"conv_general_dilated"}  # read over their edges


# ---------------------------------------------------------------- forwards and backwards


def dirty_box(entries: Sequence[Entry], box: Box, shape: Sequence[int]) -> Box:
    """What is dirty of a result of some shape, when a box of one operand is.

    >>> from malleable.rewriting.boxes.spans import Start
    >>> dirty_box([Along(0, 1, -1, 1)], (Span(Start("t", 1), 1),), (9,))
    (Span(start=Start(of='t', scale=1, offset=-1), size=3),)
    """
    found = list(whole(shape))
    for (start, size), entry in zip(box, entries, strict=True):
        match entry:
            case Along(dim, 1, lo, hi):
                found[dim] = Span(start.moved(1, -hi), size + hi - lo)
            case Along(dim, -1, lo, hi):
                found[dim] = Span(start.moved(-1, lo - size + 1), size + hi - lo)
            case Along(dim, scale, lo, hi):
                most = (size - 1 + hi - lo) // scale + 1
                found[dim] = Span(start.moved(1, scale - 1 - hi).divided(scale), most)
            case Group(dim, by):
                first = start.divided(by)
                exact = size % by == 0 and first.moved(by, 0) == start
                found[dim] = Span(first, size // by if exact else (size + by - 2) // by + 1)
            case Place(dim, by):
                found[dim] = Span(start.moved(by, 0), size * by)
    return tuple(
        span if span.size < n else whole_span(n) for span, n in zip(found, shape, strict=True)
    )


def needs(eqn: compat.Eqn, tables: Sequence[Sequence[Entry]], box: Box) -> list[Box]:
    """The box of each operand that a box of the result needs; it may reach over the edges."""
    name, (out, *_) = eqn.primitive.name, shapes(eqn.outvars)

    def span(entry: Entry, n: int) -> Span:
        if entry is None or isinstance(entry, Before):
            return whole_span(n)
        start, size = box[entry.dim]
        is_whole = box[entry.dim] == whole_span(out[entry.dim])
        match entry:
            case Along() if is_whole and name in PADDED:
                return whole_span(n)
            case Along(_, scale, lo, hi) if scale > 0:
                return Span(start.moved(scale, lo), (size - 1) * scale + hi - lo + 1)
            case Along(_, _, lo, hi):
                return Span(start.moved(-1, lo - size + 1), size + hi - lo)
            case Group(_, by):
                return Span(start.moved(by, 0), size * by)
        by = entry.size
        first = start.divided(by)
        exact = size % by == 0 and first.moved(by, 0) == start
        return Span(first, size // by if exact else min(n, (size + by - 2) // by + 1))

    rows = zip(tables, shapes(eqn.invars), strict=True)
    found = [tuple(map(span, entries, shape)) for entries, shape in rows]
    return [_at_a_place(eqn, found[0], box)] if name == "reshape" else found


def _at_a_place(eqn: compat.Eqn, needed: Box, box: Box) -> Box:
    """Of a reshape that merges or parts two dimensions: where it is one place, that is needed."""
    (before,), (after,) = shapes(eqn.invars), shapes(eqn.outvars)
    spans = list(needed)
    for mine, theirs in groups(before, after):
        mine, theirs = [d for d in mine if before[d] > 1], [d for d in theirs if after[d] > 1]
        match mine, theirs:
            case [a, b], [o] if box[o].size == 1:
                place, by = box[o].start, before[b]
                spans[a], spans[b] = Span(place.divided(by), 1), Span(place.remainder(by), 1)
            case [d], [a, b] if box[a].size == box[b].size == 1:
                rest = box[b].start.of
                if isinstance(rest, Remainder) and box[a].start == rest.start.divided(after[b]):
                    spans[d] = Span(rest.start, 1)
    return tuple(spans)
