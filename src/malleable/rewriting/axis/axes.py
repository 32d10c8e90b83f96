"""Stream one axis through a program: which dimension of each value carries it, and how to run
one slice of an equation at a time.
"""

import functools
from collections.abc import Callable, Sequence

from malleable import compat
from malleable.rewriting.axis import bodies as axis_bodies
from malleable.rewriting.axis import contractions as axis_contractions
from malleable.rewriting.axis import derivatives as axis_derivatives
from malleable.rewriting.axis import shapes as axis_shapes
from malleable.rewriting.axis import windows as axis_windows
from malleable.rewriting.graph.slices import Ax, Flow, Running, Sunk, typed


def flow(
    eqn: compat.Eqn,
    ins: Sequence[Ax | None],
    outs: Sequence[Ax | None],
    n: int,
    origin: Callable[[int], object] = lambda i: None,
) -> Flow | Sunk | Running | str:
    """How an axis of length n goes through an equation, given some of the places it is at.

    ins, outs: where operands and results carry it, None for unknown; one at least is known.
    """
    ins, outs = tuple(ins), tuple(outs)
    if eqn.effects:
        return f"{eqn.primitive} has a side effect"
    rule = RULES.get(eqn.primitive.name, axis_contractions.batched)
    found = rule(eqn, ins, outs, n, origin)
    if isinstance(found, str):
        return found
    results = outs if isinstance(found, Sunk) else found.outs
    told = zip((*ins, *outs), (*found.ins, *results), strict=True)
    if any(given is not None and given != due for given, due in told):
        return f"the operands of {eqn.primitive} carry the axis at places that do not match"
    if isinstance(found, Sunk) and any(outs):
        return f"{eqn.primitive} reduces the axis that its result should carry"
    if not isinstance(found, Flow):
        return found

    def run(t, *slices):
        with compat.source(eqn):
            return typed(found.run(t, *slices), eqn.outvars)

    return found._replace(run=run)


RULES: dict[str, Callable] = {
    **axis_shapes.RULES,
    **axis_windows.RULES,
    **axis_contractions.RULES,
    **{
        name: functools.partial(rule, flow)
        for name, rule in (axis_bodies.RULES | axis_derivatives.RULES).items()
    },
}
