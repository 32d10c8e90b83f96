"""Boxes: parts of an array, at positions that only a running program knows.

A position is a * symbol + b, where a symbol stands for an index that is given at run time; sizes
are known. So the arithmetic of intervals, done once, holds for every position.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jax import numpy as jnp


class Start(NamedTuple):
    """A position, scale * symbol + offset; of None: offset alone.

    of: the name of an index that is given at run time, or a Clipped or Divided position, or the
    Remainder of one.
    """

    of: Any = None
    scale: int = 0
    offset: int = 0

    def moved(self, scale: int, by: int) -> "Start":
        """The position scale * self + by.

        >>> Start("t", 2, 1).moved(3, -1)
        Start(of='t', scale=6, offset=2)
        """
        return Start(self.of, int(self.scale * scale), int(self.offset * scale + by))

    def divided(self, by: int) -> "Start":
        """The position self // by."""
        if self.of is None:
            return Start(offset=self.offset // by)
        if isinstance(self.of, Clipped) and self[1:] == (1, 0) and self.of.most % by == 0:
            inner = self.of.start.divided(by)
            if not isinstance(inner.of, Divided):
                return Start(Clipped(inner, self.of.most // by), 1)
        if self.scale % by == 0 and self.offset % by == 0:
            return Start(self.of, self.scale // by, self.offset // by)
        return Start(Divided(self, by), 1)

    def remainder(self, by: int) -> "Start":
        """The position self % by."""
        if self.of is None:
            return Start(offset=self.offset % by)
        return Start(Remainder(self, by), 1)

    def bounds(self, limits: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
        """The smallest and the largest value it may have, given those of the symbols."""
        match self.of:
            case None:
                lo, hi = 0, 0
            case Clipped(_, most):
                lo, hi = 0, most
            case Divided(start, by):
                lo, hi = (k // by for k in start.bounds(limits))
            case Remainder(_, by):
                lo, hi = 0, by - 1
            case name:
                lo, hi = limits[name]
        ends = sorted((self.scale * lo + self.offset, self.scale * hi + self.offset))
        return ends[0], ends[1]

    def places(self, at: Mapping[str, np.ndarray]) -> np.ndarray:
        """The positions for arrays of values of the symbols, of NumPy."""
        match self.of:
            case None:
                return np.asarray(self.offset)
            case Clipped(start, most):
                base = np.clip(start.places(at), 0, most)
            case Divided(start, by):
                base = start.places(at) // by
            case Remainder(start, by):
                base = start.places(at) % by
            case name:
                base = at[name]
        return base * self.scale + self.offset

    def value(self, at: Mapping[str, Any]) -> Any:
        """The position, of type int32, where the symbols have values."""
        match self.of:
            case None:
                return jnp.int32(self.offset)
            case Clipped(start, most):
                base = jnp.clip(start.value(at), 0, most)
            case Divided(start, by):
                base = start.value(at) // by
            case Remainder(start, by):
                base = start.value(at) % by
            case name:
                base = at[name]
        scaled = base if self.scale == 1 else base * self.scale
        return scaled + self.offset if self.offset else scaled


class Clipped(NamedTuple):
    """A position moved into 0 ... most."""

    start: Start
    most: int


class Divided(NamedTuple):
    """A position divided by a number, rounded down."""

    start: Start
    by: int


class Remainder(NamedTuple):
    """What a position divided by a number, rounded down, leaves."""

    start: Start
    by: int


FIRST = Start()


class Span(NamedTuple):
    """`size` places along a dimension, from a position on."""

    start: Start
    size: int

    def is_inside(self, n: int, limits: Mapping) -> bool:
        """Whether it never reaches over the ends of a dimension of extent n."""
        lo, hi = self.start.bounds(limits)
        return lo >= 0 and hi <= n - self.size

    def clipped(self, n: int, limits: Mapping) -> "Span":
        """A span of the same size within a dimension of extent n, around what it has of it."""
        if self.size >= n:
            return whole_span(n)
        if self.is_inside(n, limits):
            return self
        return Span(Start(Clipped(self.start, n - self.size), 1), self.size)


Box = tuple[Span, ...]


def whole_span(n: int) -> Span:
    return Span(FIRST, n)


def whole(shape: Sequence[int]) -> Box:
    return tuple(map(whole_span, shape))


def sizes_of(box: Box) -> tuple[int, ...]:
    return tuple(span.size for span in box)


def hull(one: Span, other: Span, n: int) -> Span:
    """The smallest span around two; all n places where their distance is not known.

    >>> hull(Span(Start("t", 1, 0), 1), Span(Start("t", 1, 2), 1), 9)
    Span(start=Start(of='t', scale=1, offset=0), size=3)
    """
    (a, k), (b, m) = one, other
    if a[:2] != b[:2]:
        return whole_span(n)
    lo = min(a.offset, b.offset)
    size = max(a.offset + k, b.offset + m) - lo
    return Span(a._replace(offset=lo), size) if size < n else whole_span(n)


def hull_of(boxes: Sequence[Box], shape: Sequence[int]) -> Box:
    """The smallest box around some."""
    first, *rest = boxes
    for box in rest:
        first = tuple(map(hull, first, box, shape))
    return first


def offsets(box: Box, other: Box) -> list[int] | None:
    """Where a box begins within another one, if it lies inside of it at any position.

    >>> offsets((Span(Start("t", 1, 2), 1),), (Span(Start("t", 1, 1), 3),))
    [1]
    """
    found = []
    for (a, k), (b, n) in zip(box, other, strict=True):
        if a[:2] != b[:2] or not 0 <= a.offset - b.offset <= n - k:
            return None
        found.append(a.offset - b.offset)
    return found


MOST = 3  # boxes of a value: a row, a column, and one more


def merged(boxes: Sequence[Box], shape: Sequence[int]) -> tuple[Box, ...]:
    """Boxes around all of these, at most MOST: two become one unless it holds twice as much."""
    kept = list(dict.fromkeys(boxes))
    while len(kept) > 1:
        hulls = {(a, b): hull_of([a, b], shape) for k, b in enumerate(kept) for a in kept[:k]}
        waste = {pair: volume(box) / sum(map(volume, pair)) for pair, box in hulls.items()}
        best = min(waste, key=lambda pair: waste[pair])
        if waste[best] > 2 and len(kept) <= MOST:
            break
        kept = [box for box in kept if box not in best] + [hulls[best]]
    return tuple(dict.fromkeys(kept))


def volume(box: Box) -> int:
    return max(1, math.prod(sizes_of(box)))
