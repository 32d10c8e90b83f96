"""How much a program computes, and which engine suits it: by its equations and sizes alone."""

import math
from collections.abc import Callable
from typing import Any

from malleable import compat
from malleable.programs.primitives import has, kind
from malleable.rewriting.machine import Machine

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
    made = sum(_elements(v.aval, size) for v in eqn.outvars)
    first: Any = eqn.invars[0].aval
    read = _elements(first, size)
    if name == "dot_general":
        (contracted, _), _ = eqn.params["dimension_numbers"]
        return 2 * made * math.prod(size(first.shape[i]) for i in contracted)
    if name == "conv_general_dilated":
        channels = eqn.params["dimension_numbers"].rhs_spec[0]
        kernel: Any = eqn.invars[1].aval
        return 2 * made * _elements(kernel, size) // max(1, size(kernel.shape[channels]))
    if name == "sort":
        return math.ceil(read * math.log2(read + 1))
    if name in LINALG:
        return read * size(first.shape[-1])
    if name.startswith(("reduce_", "cum")) or name in READS:
        return max(read, made)
    return made


def _elements(aval, size) -> int:
    return math.prod(size(d) for d in getattr(aval, "shape", ()))


# ---------------------------------------------------------------- how long it takes, by a model

STEPS = 100  # of a loop whose count only a run knows


HASHES = has("draws") - {"random_gamma", "rng_bit_generator"} | {"random_wrap", "random_split"}
_PRICES = (
    dict.fromkeys(has("view"), "view")
    | dict.fromkeys(has("costly", "special"), "transcendental")
    | dict.fromkeys(LINALG, "solve")
    | dict.fromkeys(["sort", "top_k"], "sort")
    | dict.fromkeys(["gather", "dynamic_slice"], "read")
    | dict.fromkeys(["dynamic_update_slice"], "cheap")
    | dict.fromkeys(HASHES, "bits")
    | {"dot_general": "dot", "conv_general_dilated": "window"}
)


def suits_numpy(program: compat.Jaxpr, size: Callable = int, padded: bool = False) -> bool:
    """Whether a program is better run through NumPy on the CPU, by its equations and sizes alone.

    No clock and no count of calls: the choice decides the last bits of a result. padded: else it
    would run in a bucket.
    """
    engines, spent = Machine.current().engines, _seconds(program, size, "numpy")
    call, times = (engines.bucket, engines.padded) if padded else (engines.call, 1.0)
    return spent <= engines.small or spent <= call + times * _seconds(program, size, "xla")


def _seconds(program, size, engine: str) -> float:
    """About how long an engine, "numpy" or "xla", takes for a program, by its prices."""
    return sum(_price_of(eqn, size, engine) for eqn in program.jaxpr.eqns)


def _price_of(eqn: compat.Eqn, size, engine: str) -> float:
    name, inside, engines = eqn.primitive.name, compat.bodies(eqn.params), Machine.current().engines
    if inside and name not in FOLDS:
        parts = [_seconds(body, size, engine) for body in inside]
        if name == "cond":
            return max(parts)
        if name not in ("scan", "while"):
            return sum(parts)
        steps = size(eqn.params["length"]) if name == "scan" else STEPS
        return steps * (sum(parts) + getattr(engines.step, engine))
    price, units = _PRICES.get(name, "cheap"), flop_of(eqn, size)
    if name.startswith("scatter"):
        updates: Any = eqn.invars[-1].aval
        price, units = "write", _elements(updates, size)
    elif name.startswith("reduce_window") or name.startswith("select_and"):
        price = "window"
    elif name.startswith("reduce") or name in ("argmax", "argmin"):
        price = "reduction"
    elif name.startswith("cum"):
        price = "scanned"
    if not units:
        units = sum(_elements(v.aval, size) for v in eqn.outvars)
    price = getattr(engines, price)
    return (price.call if engine == "numpy" else 0) + units * getattr(price, engine)
