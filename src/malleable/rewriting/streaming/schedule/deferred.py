"""Deferred reductions: accumulate whole slices in the loop, reduce the accumulator once after it.

To add a slice to a slice is one vector operation, which XLA fuses with what made the slice; to
reduce each slice of a few KiB first takes longer than to make it.
"""

from dataclasses import replace
from typing import NamedTuple

from jax import lax

from malleable.programs.equations import every
from malleable.programs.primitives import has
from malleable.rewriting.graph.slices import slice_shape
from malleable.rewriting.machine import Machine
from malleable.rewriting.streaming.region.frontier import size
from malleable.rewriting.streaming.region.region import Ended, Region
from malleable.rewriting.streaming.region.sinks import SUM, Sink, nothing, plus, rounds, total, wide

# What takes about as long for a few elements as for many.
COSTLY = has("costly")


def deferred_sums(region: Region) -> list:
    """The equations of a region that sum small slices, each for itself, to something smaller."""
    graph, found, machine = region.graph, [], Machine.current()
    narrow = machine.narrow_slice if is_costly(region) else 0
    for node, action in region.actions.items():
        if not is_plain_sum(action):
            continue
        used = any(u in region.actions for v in node.outs for u in graph.users(v))
        slice_size = size(graph, node.ins[0]) // max(1, action.window.count)
        there = graph.maker[node.ins[0]] not in region.actions  # in memory already
        most = machine.short_slice - 1 if there else machine.deferred_slice
        least = max(size(graph, node.outs[0]) + 1, narrow)
        if not used and action.sink is SUM and least <= slice_size <= most:
            found.append(node)
    return found


def is_costly(region: Region) -> bool:
    """Whether more than additions and products is worked out of each slice."""
    return any(eqn.primitive.name in COSTLY for eqn in every(n.eqn for n in region.actions))


def is_plain_sum(action) -> bool:
    """Whether an action adds up, and needs nothing else for it."""
    return isinstance(action, Ended) and action.sink in (SUM, DEFERRED_SUM) and not action.marks


class Dims(NamedTuple):
    """Those that are summed at each step, and those of the accumulator that are at the end."""

    now: tuple[int, ...]
    then: tuple[int, ...]


def defer_sums(region: Region) -> Region:
    """The region whose deferred sums accumulate slices, without the dims of one element."""
    actions = dict(region.actions)
    for node in deferred_sums(region):
        action = region.actions[node]
        spec, (ax,), shape = action.spec, action.ins, region.graph.avals[node.ins[0]].shape
        block = (1, *slice_shape(shape, ax, action.window.count))  # of one step
        now = tuple(d for d in spec.how if block[d] == 1)
        left = [d for d in range(len(block)) if d not in now]
        how = Dims(now, tuple(i for i, d in enumerate(left) if d in spec.how))
        actions[node] = action._replace(sink=DEFERRED_SUM, spec=spec._replace(how=how))
    return replace(region, actions=actions)


def _init(spec, aval):
    shape = [n for d, n in enumerate(aval.shape) if d not in spec.how.now]
    return nothing(spec, shape, wide(aval.dtype), aval)


def _step(spec, acc, start, block):
    return plus(acc, lax.reduce_sum(block.astype(acc[0].dtype), spec.how.now))


def _final(spec, acc):
    return total(spec, tuple(lax.reduce_sum(x, spec.how.then) for x in acc))


DEFERRED_SUM = Sink("reduce_sum", _init, _step, _final, SUM.merge, rounds)
