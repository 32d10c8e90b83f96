"""Products whose neighbouring dims are merged: XLA transposes what contracts two dims at once."""

import functools
from collections.abc import Callable
from itertools import pairwise
from math import prod
from typing import Any

import jax
from jax import lax

from malleable import compat
from malleable.programs.evaluate import evaluate
from malleable.rewriting.graph.graph import Graph
from malleable.rewriting.graph.slices import rebind
from malleable.rewriting.passes.passes import configurable, in_bodies
from malleable.rewriting.sharding.local import on_parts


@configurable
def merge_dims(jaxpr: compat.Jaxpr) -> compat.Jaxpr:
    """Merge the dims that lie side by side in a product of matrices, in every body.

    `x @ w` of x (batch, time, features) becomes a product of two matrices. The derivative by w
    then contracts one dim; as JAX writes it, it contracts two, and XLA first copies an operand,
    transposed: gradients of dense layers over sequences take half the time on a CPU. It works on
    a function before or after `grad`. Bit by bit the same but for the order of sums in a dot.
    On a mesh the dims of what each device has are merged, where the program runs on such parts;
    elsewhere nothing is. Source: the DotDecomposer of XLA, whose transposes these are.

    >>> import jax.numpy as jnp
    >>> from malleable import stage
    >>> program = stage(jnp.matmul)(jnp.ones((8, 5, 3)), jnp.ones((3, 2))).jaxpr
    >>> [eqn.outvars[0].aval.shape for eqn in merge_dims(program).eqns]
    [(40, 3), (40, 2), (8, 5, 2)]
    """
    return on_parts(in_bodies(_merge_all), jaxpr)


def _merge_all(jaxpr):
    graph, changed = Graph.of(jaxpr), False
    for node in list(graph.by_name.get("dot_general", ())):
        sides, numbers = _groups(node.eqn)
        placed = any(map(graph.is_placed, (*node.ins, *node.outs)))
        if placed or not any(group[1:] for side in sides for group in side):
            continue
        run = functools.partial(_merged, node.eqn, sides, numbers)
        graph.rewrite(node, run, rule="merge_dims")
        changed = True
    return graph.jaxpr() if changed else jaxpr


def merging(fun: Callable) -> Callable:
    """fun of arrays, run with the dims of its products merged."""

    def run(*arrays):
        program = compat.trace(fun, *map(jax.typeof, arrays))
        return evaluate(in_bodies(_merge_all)(program), arrays)

    return run


def _merged(eqn, sides, numbers, *operands) -> list:
    """Run a product with its dims merged: see `_groups`."""
    flat = [
        lax.reshape(x, [prod(x.shape[d] for d in group) for group in side])
        for x, side in zip(operands, sides, strict=True)
    ]
    (out,) = rebind(eqn, flat, dimension_numbers=numbers, out_sharding=None)
    whole: Any = eqn.outvars[0].aval
    return [lax.reshape(out, whole.shape)]


def _groups(eqn):
    """The dims of both operands that become one, in order, and what dimension numbers that gives.

    Those are free dims side by side, and contracted ones that are side by side on both sides.
    """
    contract, batch = eqn.params["dimension_numbers"]
    pairs = list(zip(*contract, strict=True))
    apart = lambda one, two: any(b != a + 1 for a, b in zip(one, two, strict=True))  # noqa: E731
    starts = [0, *(i for i, (a, b) in enumerate(pairwise(pairs), 1) if apart(a, b))]
    sides, numbers = [], ([], [])
    for v, inner, outer in zip(eqn.invars, contract, batch, strict=True):
        kinds: dict = {d: max(s for s in starts if s <= i) for i, d in enumerate(inner)}
        kinds |= {d: ("batch", i) for i, d in enumerate(outer)}
        side: list[list[int]] = []
        for d in range(len(v.aval.shape)):
            if side and kinds.get(d, "free") == kinds.get(d - 1, "free"):
                side[-1].append(d)
            else:
                side.append([d])
        first = {group[0]: i for i, group in enumerate(side)}
        sides.append(side)
        numbers[0].append(tuple(first[inner[s]] for s in starts if s < len(inner)))
        numbers[1].append(tuple(first[d] for d in outer))
    return sides, tuple(map(tuple, numbers))
