"""What an equation costs: operations and memory traffic, a loop counted by the steps it takes."""

import math
from collections.abc import Callable
from typing import NamedTuple

from malleable import compat
from malleable.programs.cost import flop_of
from malleable.programs.types import bytes_of


class Count(NamedTuple):
    """flops: operations on numbers; bytes: read and written, with nothing kept in between."""

    flops: float = 0
    bytes: float = 0

    def plus(self, other: "Count") -> "Count":
        return Count(self.flops + other.flops, self.bytes + other.bytes)

    def times(self, n: float) -> "Count":
        return Count(n * self.flops, n * self.bytes)


Trips = Callable[[compat.Eqn], float]  # how many steps a `while` takes


def once(eqn: compat.Eqn) -> float:
    """The steps of a `while` that nobody knows."""
    return 1


def count(eqn: compat.Eqn, trips: Trips = once) -> Count:
    """The cost of one run of an equation, all of its steps; of a cond, the dearest branch.

    A dot of (m, k) by (k, n) is 2*m*k*n flops, other rules as in `malleable.programs.cost`.
    Operands and results are counted as read and written once each, in bytes.

    >>> import jax.numpy as jnp
    >>> from jax import lax
    >>> f = lambda m: lax.scan(lambda c, _: (c @ m, None), m, None, length=100)[0]
    >>> (eqn,) = compat.trace(f, jnp.ones((64, 64))).eqns
    >>> count(eqn).flops == 100 * 2 * 64**3
    True
    """
    parts = bodies_of(eqn)
    if not parts:
        return Count(flop_of(eqn, as_number), traffic(eqn))
    inside = compat.bodies(eqn.params)
    each = [total(inside[i], trips).times(n(trips)) for i, n in parts]
    if eqn.primitive.name == "cond":
        return max(each)
    return Count(sum(c.flops for c in each), sum(c.bytes for c in each))


def total(program: compat.Jaxpr, trips: Trips = once) -> Count:
    """The cost of a whole program."""
    each = [count(eqn, trips) for eqn in program.jaxpr.eqns]
    return Count(sum(c.flops for c in each), sum(c.bytes for c in each))


def bodies_of(eqn: compat.Eqn) -> list[tuple[int, Callable[[Trips], float]]]:
    """(index, how often it runs) of the bodies an equation runs; none if it counts as a whole."""
    inside = compat.bodies(eqn.params)
    view = compat.view(eqn) if inside else None
    match view:
        case compat.Scan(length=length):
            return [(0, lambda trips: as_number(length))]
        case compat.While():
            return [(0, lambda trips: trips(eqn) + 1), (1, lambda trips: trips(eqn))]
        case compat.Map(axes=axes):
            return [(0, lambda trips: math.prod(axes.values()))]
        case compat.Branch(branches=branches):
            return [(i, lambda trips: 1) for i in range(len(branches))]
        case None | compat.Opaque():
            return []
        case _:
            return [(0, lambda trips: 1)]


def traffic(eqn: compat.Eqn) -> int:
    """Bytes of the operands and the results."""
    return sum(bytes_of(v.aval) for v in (*eqn.invars, *eqn.outvars))


def as_number(dim) -> int:
    """A size as a number: a symbolic one counts as 1."""
    return dim if isinstance(dim, int) else 1
