"""What the gradient of a scan keeps of each step, and whether to work it out again instead."""

from typing import Any

import jax

from malleable import compat
from malleable.programs.equations import mentions, variables
from malleable.programs.evaluate import evaluate
from malleable.programs.primitives import has, kind
from malleable.programs.types import bytes_of
from malleable.rewriting.machine import Machine

# What takes longer than to keep what it gave, or than to reduce it.
SLOW = has("draws") | kind("linalg") | {"while", "fft"}
LONG = has("long")

MOVING = kind("cut", "join") - {"stack", "unstack"} | {"rev", "transpose"}


def is_better_again(view: compat.Scan, wanted: list[int], chunk: int) -> bool:
    """Whether a gradient had better keep the carry of each chunk, and compute its steps again.

    wanted: which results that the scan stacks are reduced in it. Kept otherwise are the residuals
    of each step, and those results; where that is little, or about the carry, nothing is gained.
    """
    caches = Machine.current().shared_cache
    if view.length * _most(view.body) <= caches or is_heavy(view.body, SLOW):
        return False
    try:
        kept, carry = _kept(view, wanted)
    except Exception:  # whatever a derivative of the user's raises: it is not asked for here
        return False
    return view.length * kept > caches and 5 * kept * chunk > 6 * carry


def is_heavy(body: compat.Jaxpr, heavy: frozenset[str] = SLOW | LONG) -> bool:
    """Whether there is more in a step than elements and their sums: products, loops, systems."""
    return mentions(body, heavy)


def is_handed_on(body: compat.Jaxpr) -> bool:
    """Whether the derivative of a step uses a cotangent more than once, or elsewhere.

    XLA:CPU would work out each time what the reductions make of it; elsewhere a choice in a loop
    waits for the device.
    """
    given = [v for v in body.jaxpr.invars if compat.differentiable(v.aval)]
    many = len(given) > 1 or is_heavy(body, MOVING | LONG)
    return many and Machine.current().repeats_cotangents


def _most(body) -> int:
    """An upper bound of the bytes that are kept of a step: all floats in it."""
    made = [v.aval for eqn in body.jaxpr.eqns for v in eqn.outvars]
    inside = sum(_most(b) for eqn in body.eqns for b in compat.bodies(eqn.params))
    return inside + sum(map(_bytes, made)) + sum(_bytes(v.aval) for v in body.jaxpr.invars)


def _kept(view, wanted) -> tuple[int, int]:
    """(bytes kept of a step: residuals and what is wanted, bytes of the carry behind them)."""
    body = view.body
    avals = [v.aval for v in body.jaxpr.invars]
    _, carried, _ = view.split(avals)
    moving = [i for i, a in enumerate(avals) if compat.differentiable(a)]

    def forward(*xs):
        def fun(*some):
            args = list(xs)
            for i, x in zip(moving, some, strict=True):
                args[i] = x
            return evaluate(body, args)

        outs, back = jax.vjp(fun, *(xs[i] for i in moving))
        return [*jax.tree.leaves(back), *(outs[len(carried) + i] for i in wanted)]

    program = compat.trace(forward, *avals).jaxpr
    _, carry, xs = view.split(list(program.invars))
    needs: dict[Any, frozenset] = {v: frozenset([v]) for v in (*carry, *xs)}
    of = lambda atoms: frozenset().union(*(needs.get(v, ()) for v in variables(atoms)))  # noqa: E731
    for eqn in program.eqns:
        needs.update(dict.fromkeys(eqn.outvars, of(eqn.invars)))
    kept = [v for v in {*variables(program.outvars)} if needs.get(v) and v not in xs]
    return sum(_bytes(v.aval) for v in kept), sum(_bytes(v.aval) for v in of(kept) & set(carry))


def _bytes(aval) -> int:
    return bytes_of(aval) if compat.differentiable(aval) else 0
