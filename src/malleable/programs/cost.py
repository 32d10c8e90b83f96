"""How much a program computes: operations on numbers, by its equations and sizes alone."""

import math
from collections.abc import Callable
from typing import Any

from malleable import compat
from malleable.programs.primitives import has, kind

MOVES = has("free")
READS = kind("search", "write")
LINALG = has("cubic")
FOLDS = kind("reduce", "window", "write")  # their bodies say how two numbers become one


def equations(program: compat.Jaxpr) -> int:
    """Equations at any depth; one that holds a body counts as what is in it."""
    return sum(sum(map(equations, compat.bodies(e.params))) or 1 for e in program.jaxpr.eqns)


def flop(program: compat.Jaxpr, size: Callable[[Any], int] = int) -> int:
    """About how many operations on numbers a program does. size(dim): what a symbolic size is.

    A dot of (m, k) by (k, n) counts 2*m*k*n; a reduction what it reads; a sort n*log2(n); a
    factorization of (n, n) counts n**3; what only moves numbers nothing; all else one per number
    it makes. A scan counts its steps, a `while` one pass, a `cond` its longest branch.
    """
    return sum(flop_of(eqn, size) for eqn in program.jaxpr.eqns)


def flop_of(eqn: compat.Eqn, size: Callable[[Any], int] = int) -> int:
    """`flop` of one equation."""
    name, inside = eqn.primitive.name, compat.bodies(eqn.params)
    if inside and name not in FOLDS:
        parts = [flop(body, size) for body in inside]
        if name == "cond":
            return max(parts)
        return sum(parts) * (size(eqn.params["length"]) if name == "scan" else 1)
    if name in MOVES or not eqn.invars:
        return 0
    made = sum(elements(v.aval, size) for v in eqn.outvars)
    first: Any = eqn.invars[0].aval
    read = elements(first, size)
    if name == "dot_general":
        (contracted, _), _ = eqn.params["dimension_numbers"]
        return 2 * made * math.prod(size(first.shape[i]) for i in contracted)
    if name == "conv_general_dilated":
        channels = eqn.params["dimension_numbers"].rhs_spec[0]
        kernel: Any = eqn.invars[1].aval
        return 2 * made * elements(kernel, size) // max(1, size(kernel.shape[channels]))
    if name == "sort":
        return math.ceil(read * math.log2(read + 1))
    if name in LINALG:
        return read * size(first.shape[-1])
    if name.startswith(("reduce_", "cum")) or name in READS:
        return max(read, made)
    return made


def elements(aval, size) -> int:
    return math.prod(size(d) for d in getattr(aval, "shape", ()))
