"""`unbuffer`: a loop that writes one row of an array per step puts the rows out instead.

The array is carried no longer: the rows are stacked by the scan, and what was not written of the
array it started with is joined to them. What follows the loop then sees the rows of a scan.
"""

import operator
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jax import lax
from jax import numpy as jnp

from malleable import compat
from malleable.rewriting.graph import Graph, Node
from malleable.rewriting.passes import configurable, in_bodies
from malleable.rewriting.slices import typed


@configurable
def unbuffer(jaxpr: compat.Jaxpr) -> compat.Jaxpr:
    """Turn buffers that a loop fills row by row into outputs of a scan.

    A buffer is carried by a scan, or by a `while` that counts from one known number to another;
    each step writes one row (`buf.at[i].set(row)`, `lax.dynamic_update_slice`, along any axis),
    one further or one back than the step before, and nothing in the loop reads the buffer.

    >>> import jax.numpy as jnp
    >>> from malleable import stage
    >>> squares = lambda buf: lax.fori_loop(2, 5, lambda i, buf: buf.at[i].set(i * i), buf)
    >>> [eqn.primitive.name for eqn in unbuffer(stage(squares)(jnp.zeros(9)).jaxpr).eqns]
    ['scan', 'slice', 'slice', 'concatenate']
    """
    return in_bodies(_unbuffer)(jaxpr)


def _unbuffer(jaxpr):
    if not any(eqn.primitive.name in ("scan", "while") for eqn in jaxpr.eqns):
        return jaxpr
    graph = Graph.of(jaxpr, inline=False)
    done = [_without_buffers(graph, n) for n in graph.order() if n.name in ("scan", "while")]
    return graph.jaxpr() if any(done) else jaxpr


class Steps(NamedTuple):
    """A loop of a known number of steps."""

    body: Graph  # inputs: constants, carry, rows; outputs: carry, rows
    consts: list[int]
    carry: list[int]
    xs: list[int]
    length: int
    reverse: bool = False
    unroll: int = 1


class Line(NamedTuple):
    """An integer or bool of a loop, known at each step t: start + t * step."""

    start: int
    step: int = 0

    def ends(self, steps: int) -> tuple[int, int]:
        """The least and the greatest value."""
        last = self.start + (steps - 1) * self.step
        return min(self.start, last), max(self.start, last)


class Write(NamedTuple):
    """A carried buffer, the row that is put into it, along which dimension, and where."""

    carry: int
    node: Node
    dim: int
    at: Line


def _without_buffers(graph, node):
    """Put a loop without buffers in the place of one; whether there were any."""
    steps = None if node.eqn.effects else _steps(graph, node)
    if steps is None:
        return False
    body, length = steps.body, steps.length
    lines = _lines(graph, steps)
    found = (_write(body, j + len(steps.consts), j, lines, length) for j in range(len(steps.carry)))
    writes = {write.carry: write for write in found if write}
    if not writes:
        return False
    rest = [j for j in range(len(steps.carry)) if j not in writes]
    count = len(steps.carry)
    body.outputs = [body.outputs[j] for j in (*rest, *range(count, len(body.outputs)))]
    body.outputs += [write.node.ins[1 if write.node.name == "dynamic_update_slice" else 2] for write in writes.values()]
    program = body.jaxpr()
    return program
