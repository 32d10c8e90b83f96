"""Interval arithmetic: what each primitive makes of bounds; `intervals.py` has uses of it."""

from functools import reduce

import jax
import jax.numpy as jnp
from jax import lax

import malleable as mal


@mal.value
class Interval:  # of bool: what surely holds, and what may
    lo: jax.Array
    hi: jax.Array
    aval = property(lambda self: jax.typeof(self.lo))
    lift = classmethod(lambda cls, x, like: cls(x, x))  # a number becomes one in a loop


lo = lambda x: x.lo if isinstance(x, Interval) else x
hi = lambda x: x.hi if isinstance(x, Interval) else x


def between(frame, lows, highs):
    ends = frame.bind(*lows), frame.bind(*highs)
    return list(map(Interval, *ends)) if isinstance(ends[0], list) else Interval(*ends)


rising = lambda frame, *xs, **_: between(frame, map(lo, xs), map(hi, xs))
falling = lambda frame, *xs, **_: between(frame, map(hi, xs), map(lo, xs))
minus = lambda frame, x, y, **_: between(frame, (lo(x), hi(y)), (hi(x), lo(y)))
less = lambda frame, x, y, **_: between(frame, (hi(x), lo(y)), (lo(x), hi(y)))
hull = lambda *xs: Interval(reduce(jnp.minimum, map(lo, xs)), reduce(jnp.maximum, map(hi, xs)))
size = lambda x: Interval(hull(x.lo, -x.hi, jnp.zeros_like(x.lo)).hi, hull(-x.lo, x.hi).hi)
choice = lambda frame, p, *xs, **_: hull(rising(frame, lo(p), *xs), rising(frame, hi(p), *xs))


def equal(frame, x, y, **_):
    maybe = (lo(x) <= hi(y)) & (lo(y) <= hi(x))
    surely = maybe & (lo(x) == hi(x)) & (lo(y) == hi(y))
    return rising(frame, x, y) if x is y else Interval(surely, maybe)


def unequal(frame, x, y, **_):
    same = equal(frame, x, y)
    return same if x is y else Interval(~same.hi, ~same.lo)


def corners(frame, x, y, **_):
    x, y = (size(x), size(x)) if x is y else (x, y)
    ends = [(a, b) for a in (lo(x), hi(x)) for b in (lo(y), hi(y))]
    if frame.eqn.primitive is lax.div_p:
        return without_zero(y, hull(*(frame.bind(*end) for end in ends)))
    return hull(*(jnp.where((a == 0) | (b == 0), 0, frame.bind(a, b)) for a, b in ends))


def without_zero(y, out):
    bad = (lo(y) <= 0) & (hi(y) >= 0)
    return Interval(jnp.where(bad, -jnp.inf, out.lo), jnp.where(bad, jnp.inf, out.hi))


def power(frame, x, y=2, **_):
    out = (rising if y > 0 else falling)(frame, x if y % 2 else size(x))
    return out if y > 0 else without_zero(x, out)


def moved(frame, x, *rest, num_keys=0, **_):
    places = [i for i in rest if isinstance(i, Interval) and i.aval.dtype.kind in "iu"]
    if places or (num_keys and rest):
        raise frame.error("a place depends on an interval", "index, or sort, by arrays")
    return rising(frame, x, *rest)


def main():
    print("a size of -1 to 2:", *jax.tree.leaves(size(Interval(jnp.array(-1.0), jnp.array(2.0)))))


if __name__ == "__main__":
    main()
