"""How much a program computes, and which engine suits it: by its equations and sizes alone."""

import math
from collections.abc import Callable
from dataclasses import dataclass
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
    made = sum(_count(v.aval, size) for v in eqn.outvars)
    first: Any = eqn.invars[0].aval
    read = _count(first, size)
    if name == "dot_general":
        (contracted, _), _ = eqn.params["dimension_numbers"]
        return 2 * made * math.prod(size(first.shape[i]) for i in contracted)
    if name == "conv_general_dilated":
        channels = eqn.params["dimension_numbers"].rhs_spec[0]
        kernel: Any = eqn.invars[1].aval
        return 2 * made * _count(kernel, size) // max(1, size(kernel.shape[channels]))
    if name == "sort":
        return math.ceil(read * math.log2(read + 1))
    if name in LINALG:
        return read * size(first.shape[-1])
    if name.startswith(("reduce_", "cum")) or name in READS:
        return max(read, made)
    return made


def _count(aval, size) -> int:
    return math.prod(size(d) for d in getattr(aval, "shape", ()))


# ---------------------------------------------------------------- how long it takes, by a model

CALL = 15e-6  # seconds of one call of XLA; docs/benchmarks.md: "dispatch"
BUCKET = 2e-4, 1.25  # seconds to pad and to cut, and how much more the masked program does
SMALL = 100e-6  # seconds of NumPy that no compilation (COMPILE) would win back in 1,000 calls
COMPILE = 0.1  # seconds XLA takes to compile a region of ten to twenty equations
STEPS = 100  # of a loop whose count only a run knows
STEP = 1e-6, 1e-6  # seconds of one step of a loop: in NumPy, in XLA


@dataclass(frozen=True)
class Price:
    """Seconds of an equation: of a call of NumPy, then per unit of work in NumPy and in XLA.

    Estimates for one core, float32, arrays in L2, by hand until `benchmarks.selective_form` gained
    no more; what counts is which engine is cheaper, not the seconds.
    """

    call: float
    numpy: float
    xla: float


_VIEW = Price(4e-7, 0.0, 0.0)
_CHEAP = Price(1e-6, 4e-10, 2e-10)  # per number it makes
_TRANSCENDENTAL = Price(1.5e-6, 4e-9, 1.5e-9)  # per number
_REDUCTION = Price(4e-6, 4e-10, 3e-10)  # per number it reads
_SCANNED = Price(4e-6, 2e-9, 3e-9)  # a running sum, per number
_SORT = Price(4e-6, 3e-9, 8e-9)  # per comparison, n * log2(n)
_READ = Price(8e-6, 4e-9, 2e-9)  # a gather, per number
_WRITE = Price(2e-5, 2e-8, 5e-9)  # a scatter, per number of the updates
_DOT = Price(3e-6, 5e-11, 3e-11)  # per operation
_SOLVE = Price(2e-5, 5e-10, 5e-10)  # a factorization, per operation
_WINDOW = Price(3e-5, 1e-9, 2e-10)  # a convolution or a sliding window, per operation
_BITS = Price(1.5e-4, 2e-8, 5e-9)  # random bits, per number

HASHES = has("draws") - {"random_gamma", "rng_bit_generator"} | {"random_wrap", "random_split"}
_PRICES = (
    dict.fromkeys(has("view"), _VIEW)
    | dict.fromkeys(has("costly", "special"), _TRANSCENDENTAL)
    | dict.fromkeys(LINALG, _SOLVE)
    | dict.fromkeys(["sort", "top_k"], _SORT)
    | dict.fromkeys(["gather", "dynamic_slice"], _READ)
    | dict.fromkeys(["dynamic_update_slice"], _CHEAP)
    | dict.fromkeys(HASHES, _BITS)
    | {"dot_general": _DOT, "conv_general_dilated": _WINDOW}
)


def suits_numpy(program: compat.Jaxpr, size: Callable = int, padded: bool = False) -> bool:
    """Whether a program is better run through NumPy on the CPU, by its equations and sizes alone.

    No clock and no count of calls: the choice decides the last bits of a result. padded: else it
    would run in a bucket.
    """
    call, times = BUCKET if padded else (CALL, 1.0)
    spent = numpy_seconds(program, size)
    return spent <= SMALL or spent <= call + times * _seconds(program, size, _of_xla)


def numpy_seconds(program: compat.Jaxpr, size: Callable[[Any], int] = int) -> float:
    """About how long NumPy takes for a program, in seconds, by the prices above."""
    return _seconds(program, size, _of_numpy)


def _seconds(program, size, of: Callable) -> float:
    return sum(_price_of(eqn, size, of) for eqn in program.jaxpr.eqns)


def _of_numpy(price: Price, units: int) -> float:
    return price.call + units * price.numpy


def _of_xla(price: Price, units: int) -> float:
    return units * price.xla


def _price_of(eqn: compat.Eqn, size, of: Callable) -> float:
    name, inside = eqn.primitive.name, compat.bodies(eqn.params)
    if inside and name not in FOLDS:
        parts = [_seconds(body, size, of) for body in inside]
        if name == "cond":
            return max(parts)
        if name not in ("scan", "while"):
            return sum(parts)
        steps = size(eqn.params["length"]) if name == "scan" else STEPS
        return steps * (sum(parts) + STEP[of is _of_xla])
    price, units = _PRICES.get(name), flop_of(eqn, size)
    if name.startswith("scatter"):
        updates: Any = eqn.invars[-1].aval
        price, units = _WRITE, _count(updates, size)
    elif name.startswith("reduce_window") or name.startswith("select_and"):
        price = _WINDOW
    elif name.startswith("reduce") or name in ("argmax", "argmin"):
        price = _REDUCTION
    elif name.startswith("cum"):
        price = _SCANNED
    elif price is None:
        price = _CHEAP
    if not units:
        units = sum(_count(v.aval, size) for v in eqn.outvars)
    return of(price, units)
