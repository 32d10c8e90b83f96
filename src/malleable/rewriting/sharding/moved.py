"""Collectives of a loop that are linear, moved behind it: scan(c + scatter(x)) -> scatter(scan(x)).

    moved_behind(body)     # of the body of a shard_map: reduce_scatter, all_gather, ppermute, ...

`mapped.py` does it for sums, whose results all devices have. Here the steps add up what the
collective is given: one of it is left, of an accumulator of that shape.
"""

from typing import Any, NamedTuple

from jax import lax
from jax import numpy as jnp

from malleable import compat
from malleable.notes import note
from malleable.programs.equations import variables
from malleable.programs.evaluate import one_step
from malleable.programs.primitives import has, kind
from malleable.programs.types import bytes_of
from malleable.rewriting.graph.graph import Graph
from malleable.rewriting.graph.slices import rebind, typed
from malleable.rewriting.sharding.parts import ADDED, VARIED, is_number

EXTREMES = frozenset({"pmax", "pmin"})
MOVED = kind("collective") - has("sum", "local") - EXTREMES - {"axis_index"}
SCALED = frozenset({"mul", "div"})


def moved_behind(body: compat.Jaxpr) -> compat.Jaxpr:
    """The program of a device, with linear collectives behind the loops that add up what they give.

    A collective that a loop needs in each of its steps leaves a note at its line.
    """
    graph, changed = Graph.of(body), False
    for node in list(graph.by_name.get("scan", ())):
        view: Any = compat.view(node.eqn)
        if isinstance(view, compat.Opaque) or compat.has_effects(node.eqn):
            continue
        found = _accumulators(view)
        for eqn in view.body.eqns:
            if eqn.primitive.name in MOVED and all(eqn is not a.sent for a in found.values()):
                why = "its result is used in each step"
                note("a collective stays in a loop", compat.where(eqn), why)
        for a in found.values():
            _note_memory(a, view.length)
        if found:
            loop = _summing_loop(view, found, node.eqn)
            graph.rewrite(node, loop, rule="defer_collectives")
            changed = True
    return graph.jaxpr() if changed else body


class Accumulator(NamedTuple):
    """A carry to which each step adds what a collective gives, by way of some equations.

    add: the equation that adds; sent: the collective; scaled: what its result goes through, last
    first, with the numbers by which it is multiplied or divided (None: the result).
    """

    add: compat.Eqn
    sent: compat.Eqn
    scaled: tuple[tuple[compat.Eqn, list], ...]


def _note_memory(found: Accumulator, steps: int) -> None:
    """Say what fewer collectives cost, where what is added up is larger than what was."""
    held, before = (bytes_of(v.aval) for v in (found.sent.invars[0], found.add.outvars[0]))
    if held > before:
        why = f"it runs once, not {steps} times; each device adds up {held:,} bytes, not {before:,}"
        note("a collective moved behind its loop takes memory", compat.where(found.sent), why)


def _accumulators(view: compat.Scan) -> dict[int, Accumulator]:
    """{carry: how steps add to it}, of those that nothing else in a step looks at."""
    program = view.body.jaxpr
    _, carry, _ = view.split(program.invars)
    makers = {v: eqn for eqn in program.eqns for v in eqn.outvars}
    used: dict = {}
    for v in variables((*(v for eqn in program.eqns for v in eqn.invars), *program.outvars)):
        used[v] = used.get(v, 0) + 1
    found = {}
    for i, c in enumerate(carry):
        new = program.outvars[i]
        add = None if isinstance(new, compat.Literal) else makers.get(new)
        if add is None or add.primitive.name not in ADDED or add.primitive.name == "sub":
            continue
        if used[new] != 1 or used.get(c) != 1 or not any(v is c for v in add.invars):
            continue
        (given,) = [v for v in add.invars if v is not c] or [c]
        if (accumulator := _sent(add, given, makers, used)) is not None:
            found[i] = accumulator
    return found


def _sent(add, given, makers, used) -> Accumulator | None:
    scaled = []
    while not isinstance(given, compat.Literal) and used.get(given) == 1:
        eqn = makers.get(given)
        if eqn is None or len(eqn.outvars) != 1:
            return None
        if eqn.primitive.name in MOVED:
            return Accumulator(add, eqn, tuple(scaled)) if len(eqn.invars) == 1 else None
        numbers = [_number_written(v, makers) for v in eqn.invars]
        name, scaled_by = eqn.primitive.name, numbers.index(None) if None in numbers else -1
        fits = name == "neg" or (name in SCALED and numbers.count(None) == 1)
        if not fits or scaled_by < 0 or (name == "div" and scaled_by != 0):
            return None
        if not compat.differentiable(eqn.outvars[0].aval):
            return None  # a quotient of integers is rounded in each step
        scaled.append((eqn, numbers))
        given = eqn.invars[scaled_by]
    return None


def _number_written(v, makers):
    """The number that an operand is, as it is written there; None if it is none."""
    while not isinstance(v, compat.Literal) and v in makers:
        if makers[v].primitive.name not in VARIED | {"convert_element_type"}:
            return None
        (v,) = makers[v].invars
    return v.val if is_number(v) else None


def _summing_loop(view: compat.Scan, found: dict[int, Accumulator], eqn: compat.Eqn):
    """The same loop as a function of the same operands, with its collectives behind it."""
    skipped = {id(e) for a in found.values() for e in (a.sent, *(e for e, _ in a.scaled))}
    adds = {id(a.add): a for a in found.values()}

    def step(inner, operands):
        if id(inner) in skipped:  # what the collective was given goes on as it is
            given = [x for x in operands if isinstance(x, Given)]
            return given or [Given(operands[0])]
        if id(inner) in adds:
            (mine,) = [x for x in operands if not isinstance(x, Given)]
            (theirs,) = [x.x for x in operands if isinstance(x, Given)]
            return [mine + theirs]
        return compat.copy(inner, operands)

    def loop(*args):
        consts, carry, xs = view.split(args)
        start = list(carry)
        for i, a in found.items():
            aval: Any = a.sent.invars[0].aval
            start[i] = compat.match_layout(jnp.zeros(aval.shape, aval.dtype), aval)

        def body(carry, x):
            return one_step(view, consts, carry, x, step)

        last, ys = lax.scan(body, start, xs, **view.how)
        last = list(last)
        for i, a in found.items():
            (total,) = rebind(a.sent, [last[i]])
            for scale, numbers in reversed(a.scaled):
                operands = [total if x is None else jnp.asarray(x, total.dtype) for x in numbers]
                operands = [compat.match_devices(x, total) for x in operands]
                (total,) = rebind(scale, operands)
            last[i] = carry[i] + total
        return typed([*last, *ys], eqn.outvars)

    return loop


class Given:
    """What a collective was given, in the place of its result."""

    __slots__ = ("x",)

    def __init__(self, x):
        self.x = x
