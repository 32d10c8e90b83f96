"""Chains of matrix products in the cheapest order: `(A @ B) @ v` becomes `A @ (B @ v)`.

Source: Cormen, Leiserson, Rivest, Stein, "Introduction to Algorithms", 3rd edition, section 15.2.
"""

from math import prod
from typing import NamedTuple

from jax import lax

from malleable import compat
from malleable.rewriting.graph import Graph, Node
from malleable.rewriting.passes import configurable, in_bodies


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
    all of them the same batch dims. Results differ by rounding: level "reassoc".

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
        if root not in seen and _is_plain(graph, root):
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
    best, cut = _cheapest(sizes)
    if best >= _cost(sizes, now):
        return False

    def product(*arrays):
        def between(i, j):  # the product of factors i to j, and which of its dims are what
            if i == j:
                return arrays[i], factors[i]
            (a, f), (b, g) = between(i, cut[i, j]), between(cut[i, j] + 1, j)
            dims = ((f.columns, g.rows), (f.batch, g.batch))
            out = lax.dot_general(a, b, dims, **_options(root))
            n, r = len(f.batch), len(f.batch) + len(f.rows)
            rows = tuple(n + sorted(f.rows).index(d) for d in f.rows)
            columns = tuple(r + sorted(g.columns).index(d) for d in g.columns)
            return out, Factor(-1, tuple(range(n)), rows, columns)

        out, whole = between(0, len(arrays) - 1)
        to = (*whole.batch, *whole.rows, *whole.columns)
        return [out if to == tuple(range(out.ndim)) else lax.transpose(out, to)]

    new = graph.trace(product, [f.value for f in factors], root, "matmul_order")
    if graph.avals[new[0]] != graph.avals[root.outs[0]]:
        return False
    graph.replace(dict(zip(root.outs, new, strict=True)))
    return True


# ---------------------------------------------------------------- the order


def _cheapest(sizes):
    """(multiplications, {(i, j): where to cut factors i..j}) for matrices of sizes[i:i+2]."""
    n = len(sizes) - 1
    cost, cut = {(i, i): 0 for i in range(n)}, {}
    for width in range(1, n):
        for i in range(n - width):
            j = i + width
            price = {
                k: cost[i, k] + cost[k + 1, j] + sizes[i] * sizes[k + 1] * sizes[j + 1]
                for k in range(i, j)
            }
            cut[i, j] = min(price, key=price.__getitem__)
            cost[i, j] = price[cut[i, j]]
    return cost[0, n - 1], cut


def _cost(sizes, tree) -> int:
    """Multiplications in the order of a tree: the index of a factor, or a pair of trees."""

    def visit(tree):  # -> (cost, first factor, last factor)
        if isinstance(tree, int):
            return 0, tree, tree
        (c, i, k), (d, _, j) = map(visit, tree)
        return c + d + sizes[i] * sizes[k + 1] * sizes[j + 1], i, j

    return visit(tree)[0]


# ---------------------------------------------------------------- the chain


def _chain(graph: Graph, root: Node, seen: set):
    """The factors of a product, and in which order they are multiplied now: a tree of indices."""
    seen.add(root)
    sides = zip(root.ins, *root.params["dimension_numbers"], strict=True)
    (a, inner_a, batch_a), (b, inner_b, batch_b) = sides
    rows = _others(graph.avals[a], inner_a, batch_a)
    columns = _others(graph.avals[b], inner_b, batch_b)
    left = _factors(graph, Factor(a, tuple(batch_a), rows, tuple(inner_a)), root, seen)
    right = _factors(graph, Factor(b, tuple(batch_b), tuple(inner_b), columns), root, seen)
    return [*left[0], *right[0]], (left[1], _shift(right[1], len(left[0])))


def _factors(graph: Graph, whole: Factor, user: Node, seen: set):
    """The factors of a factor; itself, where it is no product, or not of this chain."""
    alone = [whole], 0
    made = graph.maker[whole.value]
    if made is None or not _has_one_user(graph, made):
        return alone
    if made.name == "transpose":
        to = made.params["permutation"]
        dims = [tuple(to[d] for d in dims) for dims in whole[1:]]
        factors, tree = _factors(graph, Factor(made.ins[0], *dims), user, seen)
        return (factors, tree) if len(factors) > 1 else alone
    if made.name != "dot_general" or not _is_plain(graph, made) or _options(made) != _options(user):
        return alone
    n, r = _layout(graph, made)
    batch, rows, columns = set(range(n)), set(range(n, r)), set(range(r, sum(map(len, whole[1:]))))
    if set(whole.batch) != batch or set(whole.rows) not in (rows, columns):
        return alone
    factors, tree = _chain(graph, made, seen)
    if set(whole.rows) != rows:  # (a b)^T = b^T a^T
        factors = [f._replace(rows=f.columns, columns=f.rows) for f in reversed(factors)]
        tree, n, r = _reversed(tree, len(factors) - 1), r, n
    first, last = factors[0], factors[-1]
    factors[0] = first._replace(rows=tuple(first.rows[d - n] for d in whole.rows))
    factors[-1] = last._replace(columns=tuple(last.columns[d - r] for d in whole.columns))
    return [f._replace(batch=tuple(f.batch[d] for d in whole.batch)) for f in factors], tree


def _layout(graph, node) -> tuple[int, int]:
    """Where the rows of a product begin among its dims, and where its columns do."""
    (inner, _), (batch, _) = node.params["dimension_numbers"]
    return len(batch), len(graph.avals[node.ins[0]].shape) - len(inner)


def _others(aval, *taken) -> tuple[int, ...]:
    return tuple(d for d in range(len(aval.shape)) if not any(d in dims for dims in taken))


def _is_plain(graph, node) -> bool:
    """Whether a product is of one dtype, contracts something, and does not say where it is."""
    types = [graph.avals[v] for v in (*node.ins, *node.outs)]
    placed = any(s is not None for aval in types for s in aval.sharding.spec)
    contracts = node.params["dimension_numbers"][0][0]
    return bool(contracts) and len({aval.dtype for aval in types}) == 1 and not placed


def _has_one_user(graph, node) -> bool:
    """Whether a value is no result, and one equation uses it, once."""
    value = node.outs[0]
    users = graph.users(value)
    return value not in graph.outputs and len(users) == 1 and users[0].ins.count(value) == 1


def _options(node) -> dict:
    return {k: v for k, v in node.params.items() if k != "dimension_numbers"}


def _shift(tree, by: int):
    return tree + by if isinstance(tree, int) else tuple(_shift(t, by) for t in tree)


def _reversed(tree, last: int):
    return last - tree if isinstance(tree, int) else tuple(_reversed(t, last) for t in tree[::-1])
