"""How NaN spreads: what is made of a NaN by `mul` is NaN, so few values need a test to know of all.

    x -> exp -> mul -> where      a NaN in x or in exp(x) is one in the product, too

A test costs about as much to compile as the equation it looks at. Other tests, such as one for
Inf, say nothing of the values made of a bad one (1 / inf is 0).
"""

from collections.abc import Iterable, Sequence
from typing import Any

from jax import numpy as jnp

from malleable import compat
from malleable.programs.primitives import has

SPREADS = has("spreads")

Heirs = dict[Any, list]  # {value: those that are NaN where it is}


def has_nan(x):
    """The test of which `heirs` are those that inherit."""
    return jnp.isnan(x).any()


def spreads(eqn: compat.Eqn) -> bool:
    """Whether a NaN in an operand is in the result, whatever the other operands are."""
    if eqn.primitive.name not in SPREADS or eqn.params.get("y") == 0:  # x**0 is 1
        return False
    out: Any = eqn.outvars[0].aval
    wide = jnp.issubdtype(out.dtype, jnp.inexact) and out.dtype.itemsize > 1  # some have no NaN
    return wide and 0 not in out.shape


def heirs(eqns: Iterable[compat.Eqn]) -> Heirs:
    """What the equations of one body make of each value that is NaN where the value is."""
    found: Heirs = {}
    for eqn in filter(spreads, eqns):
        for v in eqn.invars:
            if not isinstance(v, compat.Literal):
                found.setdefault(v, []).append(eqn.outvars[0])
    return found


def needless(program: compat.Jaxpr) -> set[int]:
    """The equations at any depth, by `id`, whose results need no test: others have their NaN."""
    eqns = program.jaxpr.eqns
    known = heirs(eqns)
    found = {id(eqn) for eqn in eqns if all(v in known for v in eqn.outvars)}
    return found.union(*(needless(b) for eqn in eqns for b in compat.bodies(eqn.params)))


def infer(bad: dict, known: Heirs, values: Sequence) -> None:
    """Add to {value: whether it has a NaN} what follows for others; values: in program order."""
    for v in reversed(values):
        if v not in bad and any(bad.get(heir) is False for heir in known.get(v, ())):
            bad[v] = False
    for v in values:
        if bad.get(v):
            bad.update((heir, True) for heir in known.get(v, ()) if heir not in bad)
