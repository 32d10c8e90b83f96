"""Chains of matrix products in the cheapest order: `(A @ B) @ v` becomes `A @ (B @ v)`.

Source: Cormen, Leiserson, Rivest, Stein, "Introduction to Algorithms", 3rd edition, section 15.2.
"""

from itertools import pairwise
from math import prod
from typing import NamedTuple

from jax import lax
from jax import numpy as jnp

from malleable import compat
from malleable.notes import note
from malleable.rewriting.graph.graph import Graph, Node
from malleable.rewriting.passes.passes import configurable, in_bodies

LONG = 32  # a chain of more factors gets an order that is nearly the best


class Factor(NamedTuple):
    """A value as a matrix: which of its dims count batches, rows and columns, each in order."""

    value: int
    batch: tuple[int, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]


@configurable
def matmul_order(jaxpr: compat.Jaxpr) -> compat.Jaxpr:
    """Multiply chains of matrices in the order that takes the fewest operations, in every body.

    A chain is made of `dot_general`s of one dtype and precision, each used by the next one only,
    directly or transposed; the first factor may have any number of rows, the last of columns, and
    all of them the same batch dims. Results differ by rounding: level "reassoc". Products in
    float16, which overflows soon, stay in their order.

    >>> import jax.numpy as jnp
    >>> from malleable import stage
    >>> chain = lambda a, b, v: (a @ b) @ v
    >>> program = stage(chain)(jnp.ones((9, 9)), jnp.ones((9, 9)), jnp.ones(9)).jaxpr
    >>> [eqn.outvars[0].aval.shape for eqn in matmul_order(program).eqns]
    [(9,), (9,)]
    """
    return in_bodies(_reorder)(jaxpr)


def _reorder(jaxpr):
    graph, changed, seen = Graph.of(jaxpr), False, set()
    for root in reversed(list(graph.by_name.get("dot_general", ()))):
        if root not in seen and _is_simple_product(graph, root):
            changed = _reorder_chain(graph, root, seen) or changed
    return graph.jaxpr() if changed else jaxpr


def _reorder_chain(graph: Graph, root: Node, seen: set) -> bool:
    """Put the products that end in `root` in their best order; whether it was another one."""
    factors, now = _chain(graph, root, seen)
    if len(factors) < 3:
        return False
    shapes = [graph.avals[f.value].shape for f in factors]
    extent = lambda i, dims: prod(shapes[i][d] for d in dims)  # noqa: E731
    sizes = [extent(i, f.rows) for i, f in enumerate(factors)]
    sizes.append(extent(-1, factors[-1].columns))
    best = _cheapest(sizes) if len(factors) <= LONG else _nearly_cheapest(sizes)
    if _cost(sizes, best) >= _cost(sizes, now):
        return False
    dtype = graph.avals[root.outs[0]].dtype
    if is_narrow(dtype):
        why = f"{dtype} may overflow in another order"
        note("products stay in their order", compat.where(root.eqn), why)
        return False

    def product(*arrays):
        made = {(i, i + 1): both for i, both in enumerate(zip(arrays, factors, strict=True))}
        for lo, mid, hi in best:
            (a, f), (b, g) = made.pop((lo, mid)), made.pop((mid, hi))
            dims = ((f.columns, g.rows), (f.batch, g.batch))
            out = lax.dot_general(a, b, dims, **_options(root))
            n, r = len(f.batch), len(f.batch) + len(f.rows)
            rows = tuple(n + sorted(f.rows).index(d) for d in f.rows)
            columns = tuple(r + sorted(g.columns).index(d) for d in g.columns)
            made[lo, hi] = out, Factor(-1, tuple(range(n)), rows, columns)
        out, whole = made[0, len(arrays)]
        to = (*whole.batch, *whole.rows, *whole.columns)
        return [out if to == tuple(range(out.ndim)) else lax.transpose(out, to)]

    new = graph.trace(product, [f.value for f in factors], root, "matmul_order")
    if graph.avals[new[0]] != graph.avals[root.outs[0]]:
        return False
    graph.replace(dict(zip(root.outs, new, strict=True)))
    return True


# ---------------------------------------------------------------- the order
#
# Matrices of sizes[i] x sizes[i + 1] are multiplied in an order: a list of (lo, mid, hi), operands
# first. Each multiplies what came of the matrices lo..mid-1 by what came of mid..hi-1.


def is_narrow(dtype) -> bool:
    """Whether numbers of this type overflow soon: float16, and what has 8 bits."""
    return jnp.issubdtype(dtype, jnp.inexact) and jnp.finfo(dtype).maxexp < 100


def _cost(sizes, order) -> int:
    """Multiplications of an order."""
    return sum(sizes[lo] * sizes[mid] * sizes[hi] for lo, mid, hi in order)


def _cheapest(sizes):
    """The best order; its time grows with the third power."""
    n = len(sizes) - 1
    cost, cut = {(i, i + 1): 0 for i in range(n)}, {}
    for width in range(2, n + 1):
        for lo in range(n - width + 1):
            hi = lo + width
            price = {
                mid: cost[lo, mid] + cost[mid, hi] + sizes[lo] * sizes[mid] * sizes[hi]
                for mid in range(lo + 1, hi)
            }
            cut[lo, hi] = min(price, key=price.__getitem__)
            cost[lo, hi] = price[cut[lo, hi]]
    return _operands_first(cut, n)


def _nearly_cheapest(sizes):
    """An order that takes at most a quarter more than the best one, in linear time.

    An order is a division of a polygon with one corner per size into triangles: corners that are
    large beside their neighbours are cut off, what is left is cut from the least one.
    Source: Chin, "An O(n) algorithm for determining a near-optimal computation order of matrix
    chain products", CACM 21(7), 1978.
    """
    first = min(range(len(sizes)), key=sizes.__getitem__)
    least, cut, corners = sizes[first], {}, [first]

    def triangle(*three):
        lo, mid, hi = sorted(three)
        cut[lo, hi] = mid

    def is_peak(a, v, b):
        a, v, b = sizes[a], sizes[v], sizes[b]
        return a * b * (v + least) < least * v * (a + b)

    for k in (*range(first + 1, len(sizes)), *range(first)):
        while len(corners) > 2 and is_peak(corners[-2], corners[-1], k):
            triangle(corners[-2], corners.pop(), k)
        corners.append(k)
    for a, b in pairwise(corners[1:]):
        triangle(first, a, b)
    return _operands_first(cut, len(sizes) - 1)


def _operands_first(cut, n):
    """The order with these cuts: {(lo, hi): mid}."""
    order, work = [], [(0, n)]
    while work:
        lo, hi = work.pop()
        if hi - lo > 1:
            mid = cut[lo, hi]
            order.append((lo, mid, hi))
            work += [(lo, mid), (mid, hi)]
    return order[::-1]


# ---------------------------------------------------------------- the chain


def _chain(graph: Graph, root: Node, seen: set):
    """The factors of a product, and the order in which they are multiplied now."""
    n, r = _layout(graph, root)
    whole = range(len(graph.avals[root.outs[0]].shape))
    factors, order = [], []
    work: list = [(Factor(root.outs[0], *map(tuple, (whole[:n], whole[n:r], whole[r:]))), root)]
    while work:
        item, made = work.pop()
        if not isinstance(item, Factor):  # a product, of which both factors are found, or one
            item.append(len(factors))
            order += [tuple(item)] if len(item) == 3 else []
        elif made is None:
            factors.append(item)
        else:
            seen.add(made)
            left, right = _factors(graph, item, made)
            product = [len(factors)]
            for f in (product, right, product, left):
                work.append(_product(graph, f, root) if isinstance(f, Factor) else (f, None))
    return factors, order


def _product(graph: Graph, factor: Factor, root: Node):
    """(a factor, the product of the same chain that makes it, or None)."""
    v, *dims = factor
    made = graph.maker[v]
    while made is not None and made.name == "transpose" and _has_one_user(graph, made):
        to = made.params["permutation"]
        dims = [tuple(to[d] for d in group) for group in dims]
        made = graph.maker[made.ins[0]]
    if made is None or made.name != "dot_general" or not _has_one_user(graph, made):
        return factor, None
    if not _is_simple_product(graph, made) or _options(made) != _options(root):
        return factor, None
    n, r = _layout(graph, made)
    batch, rows, columns = map(set, dims)
    ends = [set(range(n, r)), set(range(r, n + len(rows) + len(columns)))]
    if batch != set(range(n)) or rows not in ends:
        return factor, None
    return Factor(made.outs[0], *dims), made


def _factors(graph: Graph, whole: Factor, made: Node) -> tuple[Factor, Factor]:
    """The two factors of a factor that a product makes."""
    sides = zip(made.ins, *made.params["dimension_numbers"], strict=True)
    (a, inner_a, batch_a), (b, inner_b, batch_b) = sides
    n, r = _layout(graph, made)
    ends = dict(enumerate(_others(graph.avals[a], inner_a, batch_a), n))
    ends |= dict(enumerate(_others(graph.avals[b], inner_b, batch_b), r))
    rows, columns = (tuple(ends[d] for d in dims) for dims in (whole.rows, whole.columns))
    batch_a, batch_b = (tuple(dims[d] for d in whole.batch) for dims in (batch_a, batch_b))
    inner_a, inner_b = tuple(inner_a), tuple(inner_b)
    if all(n <= d < r for d in whole.rows) and not any(n <= d < r for d in whole.columns):
        return Factor(a, batch_a, rows, inner_a), Factor(b, batch_b, inner_b, columns)
    return Factor(b, batch_b, rows, inner_b), Factor(a, batch_a, inner_a, columns)  # transposed


def _layout(graph, node) -> tuple[int, int]:
    """Where the rows of a product begin among its dims, and where its columns do."""
    (inner, _), (batch, _) = node.params["dimension_numbers"]
    return len(batch), len(graph.avals[node.ins[0]].shape) - len(inner)


def _others(aval, *taken) -> tuple[int, ...]:
    return tuple(d for d in range(len(aval.shape)) if not any(d in dims for dims in taken))


def _is_simple_product(graph, node) -> bool:
    """Whether a product is of one dtype, contracts something, and does not say where it is."""
    values, contracts = (*node.ins, *node.outs), node.params["dimension_numbers"][0][0]
    types = {graph.avals[v].dtype for v in values}
    return bool(contracts) and len(types) == 1 and not any(map(graph.is_placed, values))


def _has_one_user(graph, node) -> bool:
    """Whether a value is no result, and one equation uses it, once."""
    value = node.outs[0]
    users = graph.users(value)
    return value not in graph.outputs and len(users) == 1 and users[0].ins.count(value) == 1


def _options(node) -> dict:
    return {k: v for k, v in node.params.items() if k != "dimension_numbers"}
