"""The last pass before conversion: every body of a loop or branch ends in values of its own.

A graph of ONNX names its outputs. Where a body gives the same value twice, or a constant, two
outputs have one name, which onnxruntime takes without complaint, to leave one of them unset.
"""

import jax
from jax import numpy as jnp

from malleable import compat
from malleable.compat import Jaxpr, Literal
from malleable.programs.primitives import kind


def distinct(program: Jaxpr) -> Jaxpr:
    """The program with bodies whose results are copies where they are not their own.

    >>> from malleable import stage
    >>> twice = lambda p, x: jax.lax.cond(p, lambda: (x + 1, x + 2), lambda: (x, x))
    >>> (eqn,) = distinct(stage(twice)(True, 1.0).jaxpr).eqns[-1:]
    >>> [len(body.eqns) for body in compat.bodies(eqn.params)]
    [2, 2]
    """
    raw = program.jaxpr
    eqns = list(map(_with_own_results, raw.eqns))
    consts = dict(zip(raw.constvars, program.consts, strict=True))
    return compat.program(program, eqns, raw.outvars, consts)


def _with_own_results(eqn):
    if eqn.primitive.name not in kind("control"):
        return eqn
    return compat.with_bodies(eqn, [_own(distinct(body)) for body in compat.bodies(eqn.params)])


def _own(body: Jaxpr) -> Jaxpr:
    raw = body.jaxpr
    made = {v for eqn in raw.eqns for v in eqn.outvars}
    seen, eqns, outs = set(), list(raw.eqns), []
    for v in raw.outvars:
        if isinstance(v, Literal) or v not in made or v in seen:
            eqns.append(_copy(v))
            v = eqns[-1].outvars[0]
        seen.add(v)
        outs.append(v)
    consts = dict(zip(raw.constvars, body.consts, strict=True))
    return compat.program(body, eqns, outs, consts)


def _copy(v):
    """An equation that copies a variable, or a number."""
    (eqn,) = compat.trace(lambda x: jnp.array(x, copy=True), _type(v.aval)).jaxpr.eqns
    return eqn.replace(invars=[v], outvars=[compat.new_var(v.aval)])


def _type(aval):
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype)
