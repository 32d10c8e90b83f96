"""Which engine suits a program: by its equations and sizes alone."""

from collections.abc import Callable
from typing import Any

from malleable import compat
from malleable.programs.cost import FOLDS, LINALG, elements, flop_of
from malleable.programs.primitives import has
from malleable.rewriting.machine import Machine

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
        price, units = "write", elements(updates, size)
    elif name.startswith("reduce_window") or name.startswith("select_and"):
        price = "window"
    elif name.startswith("reduce") or name in ("argmax", "argmin"):
        price = "reduction"
    elif name.startswith("cum"):
        price = "scanned"
    if not units:
        units = sum(elements(v.aval, size) for v in eqn.outvars)
    price = getattr(engines, price)
    return (price.call if engine == "numpy" else 0) + units * getattr(price, engine)
