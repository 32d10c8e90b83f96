"""The evaluator: run a program, equation by equation.

The one loop over equations that computes values. What an equation computes is a function given to
it: interpreters, replays, and back ends are such functions.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax

from malleable import compat

MOST_EQUATIONS = 4000  # that a loop may be once it is written turn by turn


def evaluate(
    program: compat.Jaxpr,
    args: Sequence,
    step: Callable[[compat.Eqn, list], Sequence] = compat.copy,
    *,
    consts: Sequence | None = None,
    literal: Callable[[Any], Any] | None = None,
) -> list:
    """The results of a program on flat `args`.

    step(eqn, operands) gives the results of one equation, and enters its bodies if it wants to;
    by default the equation runs as it is, under its own line. consts: values for the constants,
    instead of the program's own; literal(atom): the value of a literal, which may be of any type,
    as the others may.

    >>> from malleable import stage
    >>> program = stage(lambda x, y: (x + 1) * y)(2.0, 5.0).jaxpr
    >>> float(evaluate(program, [2.0, 5.0])[0])
    15.0
    >>> spell = lambda eqn, xs: [f"{eqn.primitive}({', '.join(xs)})"]
    >>> evaluate(program, ["x", "y"], spell, literal=lambda atom: str(atom.val))
    ['mul(add(x, 1.0), y)']
    """
    raw = program.jaxpr
    known = program.consts if consts is None else consts
    env = dict(zip((*raw.constvars, *raw.invars), (*known, *args), strict=True))

    def read(atom):
        if isinstance(atom, compat.Literal):
            return atom.val if literal is None else literal(atom)
        return env[atom]

    for eqn in raw.eqns:
        env.update(zip(eqn.outvars, step(eqn, [read(v) for v in eqn.invars]), strict=True))
    return [read(v) for v in raw.outvars]


def one_step(
    loop: compat.Scan, consts: Sequence, carry: Sequence, xs: Sequence, step: Callable = compat.copy
) -> tuple[list, list]:
    """(carry, what is stacked) of one step of a scan, on what the step takes."""
    outs = evaluate(loop.body, [*consts, *carry, *xs], step)
    return outs[: len(carry)], outs[len(carry) :]


def unrolled(loop: compat.Scan, *args: Any) -> list:
    """The results of a scan on its operands, written turn by turn."""
    consts, carry, xs = loop.split(args)
    order = range(loop.length)
    rows: list[Any] = [None] * loop.length
    for k in reversed(order) if loop.reverse else order:
        row = [lax.index_in_dim(x, k, 0, keepdims=False) for x in xs]
        carry, rows[k] = one_step(loop, consts, carry, row)
    stacked = [lax.concatenate([y[None] for y in ys], 0) for ys in zip(*rows, strict=True)]
    return [*carry, *stacked]


def inlined(fun: Callable) -> Callable:
    """`fun`, traced once per signature and trace context; leaves no call in the program.

    Compiled where values are at hand; put in place, each equation with its own line, elsewhere.
    """
    jitted = jax.jit(fun, inline=compat.INLINE)

    def call(*args):
        if not compat.is_staging():
            return jitted(*args)
        traced = jitted.trace(*args)
        leaves = list(map(compat.as_array, jax.tree.leaves(args)))
        if len(traced.jaxpr.jaxpr.invars) != len(leaves):  # it closes over a value being traced
            return jitted(*args)
        tree = jax.tree.structure(traced.out_info)
        return jax.tree.unflatten(tree, evaluate(traced.jaxpr, leaves))

    return call
