"""Scans whose gradient is better that of the program as it was written; or whose value is.

A gradient of a scan runs it backwards. Where it would not have to, as what is differentiated never
comes out of the scan (returns and advantages of reinforcement learning, behind a stop_gradient), or
where what was stacked fits in a cache while each step back costs a good deal (moments), the scan
with the reductions in it is for the value only. The other way round, where XLA fuses a large value
into its reduction, the scan over blocks that `stream` writes is for the derivative only.
"""

import functools
from collections.abc import Callable, Sequence

import jax
from jax import lax
from jax.custom_derivatives import SymbolicZero

from malleable import compat
from malleable.programs.evaluate import evaluate
from malleable.rewriting.graph.graph import Graph, Node
from malleable.rewriting.machine import Machine
from malleable.rewriting.streaming.region.frontier import FUSIBLE, size
from malleable.rewriting.streaming.region.region import Ended, Kept, Mapped, Region
from malleable.rewriting.streaming.schedule.plan import Plan

NAME = "as_written"


def is_value(body: compat.Jaxpr) -> bool:
    """Whether a program is what was left as it was written, for the value."""
    return compat.is_made_by(NAME, body)


def is_as_written(region: Region, seeds: Sequence[int], carries: Sequence[int]) -> bool:
    """Whether a gradient had better see the program before the push.

    seeds, carries: what the scan stacks, and its last carries.
    """
    graph = region.graph
    actions = region.actions.values()
    if any(mark.kind == "power" for a in actions for mark in getattr(a, "marks", ())):
        return sum(size(graph, v) for v in seeds) <= Machine.current().moments
    for node, action in region.actions.items():
        if isinstance(action, Mapped) and node.name not in FUSIBLE:
            return False  # XLA would keep it, and a gradient that works it out again does not
        if isinstance(action, Ended) and action.sink.name != "reduce_sum":
            return False
    moving = {v for v in (*seeds, *carries) if compat.differentiable(graph.avals[v])}
    ends = {v for v in moving if v in carries and graph.is_used(v)}
    for node, action in region.actions.items():
        if node.name != "stop_gradient" and any(v in moving for v in node.ins):
            made = {v for v in node.outs if compat.differentiable(graph.avals[v])}
            moving |= made
            ends |= made if isinstance(action, Ended | Kept) else set()
    return not ends and not any(v in moving for v in region.escapes())


def as_written(
    graph: Graph, run: Callable, node: Node, plan: Plan, which: str, given: list[int], results: list
) -> Callable:
    """`run`, on the values `given`; the value, or the derivative, of the equations before."""
    actions = plan.region.actions
    # XLA keeps what a kernel has in common with another one, be it as large as it was spread out
    alone = which == "value"
    nodes = actions if alone else (node, *actions)
    eqns = [(n.eqn, n.ins, n.outs) for n in nodes]  # as they are now
    known = {v: graph.value(v) for _, ins, _ in eqns for v in ins}

    @functools.partial(compat.made_by, NAME)
    def plain(*values):
        if alone:
            values = lax.optimization_barrier(values)
        env = known | dict(zip(given, values, strict=True))
        for eqn, ins, outs in eqns:
            env.update(zip(outs, compat.copy(eqn, [env[v] for v in ins]), strict=True))
        found = [env[v] for v in results]
        return lax.optimization_barrier(found) if alone else found

    value, derivative = run, plain
    if alone:  # traced now: the equations it is made from change with the graph
        streamed = compat.trace(run, *(graph.avals[v] for v in given))
        value, derivative = plain, lambda *values: evaluate(streamed, values)
    both = jax.custom_jvp(value)

    def jvp(primals, tangents):
        moved = [i for i, t in enumerate(tangents) if not isinstance(t, SymbolicZero)]

        def some(*values):
            args = dict(enumerate(primals)) | dict(zip(moved, values, strict=True))
            return derivative(*args.values())

        return jax.jvp(some, [primals[i] for i in moved], [tangents[i] for i in moved])

    both.defjvp(jvp, symbolic_zeros=True)
    return both
