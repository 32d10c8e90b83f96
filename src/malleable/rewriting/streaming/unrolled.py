"""Unrolled reductions: a sum over a short last dim written as its terms, x[0] + x[1] + x[2].

A sum of squared distances over three coordinates is scalar code where XLA reduces a last dim of
three; as three terms it is vector code, and no value is larger than the result. In the same order,
so the result is equal. A sum of three-dimensional forces over all points, which leaves these three,
becomes three sums likewise. What is spread out and how it is cut is for `axes` to say.
"""

import functools
import operator
from collections.abc import Sequence

from jax import lax
from jax import numpy as jnp

from malleable import compat
from malleable.rewriting.graph.graph import Graph, Node
from malleable.rewriting.graph.slices import Ax, unstack
from malleable.rewriting.machine import Machine
from malleable.rewriting.streaming.comparisons import Compared, behind
from malleable.rewriting.streaming.region.frontier import FUSIBLE, pull, size
from malleable.rewriting.streaming.region.region import Mapped, Region, Stream, Window
from malleable.rewriting.streaming.region.sinks import tied, won

SLOW = frozenset(("sin", "cos"))  # vector code in XLA:CPU only where it reduces what comes of them
SEARCHED = frozenset(("reduce_max", "reduce_min"))
COMBINE = {"reduce_sum": operator.add, "reduce_max": jnp.maximum, "reduce_min": jnp.minimum}


def combined(name: str, terms: list):
    """The reduction of a few arrays; a gradient is shared evenly by ties, as JAX has it."""
    first, *rest = terms
    if name == "reduce_sum" or first.dtype.kind != "f":
        return functools.reduce(COMBINE[name], terms)
    ahead = lax.ge if name == "reduce_max" else lax.le
    best, ties, count = lax.stop_gradient(first), first, jnp.ones_like(first)
    for x in rest:  # XLA may round x in two ways: it is compared with the best before, and once
        value = lax.stop_gradient(x)
        wins = ahead(best, value), ahead(value, best)
        ties, count = won(wins, (ties, count), (x, jnp.ones_like(x)))
        best = COMBINE[name](best, value)
    return tied(best, ties, count)


def unroll_reductions(
    graph: Graph, least: int, comparisons: Compared, stay: frozenset[int] = frozenset()
) -> dict[int, int]:
    """Unroll the short last dims of values of `least` bytes and more; {result: what it is now}.

    stay: results that stay reductions; so do those that are compared with the least of them.
    """
    found, stay = {}, stay | behind(graph, comparisons)
    for node in graph.order():
        if node.name not in COMBINE or node not in graph.nodes or not stay.isdisjoint(node.outs):
            continue
        if size(graph, node.ins[0]) >= least and (new := _unroll(graph, node, found)) is not None:
            found[node.outs[0]] = new
    return found


def is_searched(graph: Graph, value: int) -> bool:
    """Whether an extremum of a value is left, whose derivative looks for it in the value."""
    extrema = [n for n in _ends(graph, [graph.resolve(value)]) if n and n.name in SEARCHED]
    return any(_ends(graph, node.outs) for node in extrema)


def _ends(graph: Graph, values: Sequence[int]) -> list[Node | None]:
    """What takes what is made of values element by element; None: an output of the program.

    What stops gradients takes nothing, nor what is no float.
    """
    derived = lambda v: jnp.issubdtype(graph.avals[v].dtype, jnp.inexact)  # noqa: E731
    work, ends = list(values), []
    seen = set(work)
    while work:
        v = work.pop()
        ends += [None] if v in graph.outputs else []
        for user in graph.users(v):
            outs = set(filter(derived, user.outs)) - seen
            if user.name == "stop_gradient" or not outs:
                continue
            if user.name in FUSIBLE:
                work.extend(outs)
                seen |= outs
            else:
                ends.append(user)
    return ends


def _unroll(graph: Graph, node: Node, written: dict[int, int]) -> int | None:
    """What the result of a reduction is now, or None; written: those that were unrolled before."""
    (value,) = node.ins
    aval, axes = graph.avals[value], node.params["axes"]
    if aval.ndim < 2 or aval.dtype.itemsize < 4 or aval.dtype.kind not in "fiu":
        return None
    dim = aval.ndim - 1
    n, over, machine = aval.shape[dim], dim in axes, Machine.current()
    if not 1 < n <= machine.terms // (1 if over else 2) or (over and len(axes) > 1):
        return None
    if not over and len(axes) == dim:
        return None  # scalar code, a reduction to each number
    wanted = {value: Stream(Ax(dim), Window(0, 1, n))}
    actions, streams = pull(graph, wanted, n, size(graph, value) // n)
    if not actions or value not in streams or any(a.name not in FUSIBLE for a in actions):
        return None
    if n * len(actions) > machine.term_equations:
        return None
    if any(a.name in SLOW for a in actions) and not _is_reduced(graph, node):
        return None
    searched = node.name in SEARCHED and (
        len(graph.users(value)) > 1
        or (not over and any(graph.resolve(new) in streams for new in written.values()))
    )
    if searched or any(a.name in ("eq", "ne") for a in actions):
        return None  # worked out once more, it may be rounded to what is not its own minimum
    region = Region(graph, n, False, actions, streams)
    sources, wholes = [(v, ax) for v, ax, _ in region.sources()], region.wholes()
    given = list(dict.fromkeys([*(v for v, _ in sources), *wholes]))
    if max((graph.avals[v].size for v in given), default=0) >= aval.size:
        return None  # nothing is spread out

    def run(*values):
        at = dict(zip(given, values, strict=True))
        # as a split, of which the gradient is put together at once, and not n times added up
        cut = {key: lax.split(unstack(at[key[0]], key[1], n), (1,) * n) for key in sources}
        terms = []
        for i in range(n):
            here = {key: lax.squeeze(parts[i], (0,)) for key, parts in cut.items()}
            terms.append(_one(actions, here, at, jnp.int32(i), value))
        if over:
            return [combined(node.name, terms)]
        return [jnp.stack([compat.bind(node.eqn, [term])[0] for term in terms], -1)]

    (new,) = graph.trace(run, given, node, "unroll_reductions")
    graph.replace({node.outs[0]: new})
    return new


def _is_reduced(graph: Graph, node: Node) -> bool:
    """Whether the result goes into one reduction and nothing else."""
    while True:
        users = [u for v in node.outs for u in graph.users(v)]
        if len(users) != 1 or any(v in graph.outputs for v in node.outs):
            return False
        (node,) = users
        if node.name in COMBINE:
            return True
        if node.name not in FUSIBLE:
            return False


def _one(actions: dict[Node, Mapped], slices: dict, wholes: dict, t, wanted: int):
    """Slice t of a value, worked out from slices of the sources."""
    made: dict = {}
    for node, action in actions.items():
        args = [
            wholes[v] if ax is None else made[v] if v in made else slices[v, ax]
            for v, ax in zip(node.ins, action.flow.ins, strict=True)
        ]
        made.update(zip(node.outs, action.flow.run(t, *args), strict=True))
    return made[wanted]
