"""Signatures that differ in sizes only: one program for all, through NumPy or in buckets."""

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from malleable.execution import masks
from malleable.execution.breaks import Unsupported
from malleable.execution.host import own
from malleable.execution.numpy_code import numpy_function
from malleable.execution.signatures import BASE, PER_EQN, Stats, loops
from malleable.execution.tracing import Traced

REPEATS = 8  # times a size comes before it has a program of its own


@dataclass
class Family:
    """Signatures that differ in sizes only: their shapes, and the variant over symbolic sizes."""

    shapes: list
    sized: Any = None
    axes: Any = None
    refused: set = field(default_factory=set)

    def variant(self, shapes, make: Callable):
        """The variant for these shapes, None where there is none. make(axes) traces one."""
        if len(self.shapes) < 8 and shapes not in self.shapes:
            self.shapes.append(shapes)
        axes = varying(self.shapes)
        if axes != self.axes and tuple(axes.items()) not in self.refused:
            self.axes = axes
            try:
                self.sized = make(axes)
            except Unsupported as e:
                self.refused.add(tuple(axes.items()))
                self.sized = None
                self.why = e.reason
        return self.sized


def varying(shapes: list) -> dict:
    """(leaf, axis) -> symbol, for each axis whose size is not always the same."""
    columns: dict = {}
    symbols: dict = {}
    for leaf, first in enumerate(shapes[0]):
        for axis in range(len(first)):
            column = tuple(s[leaf][axis] for s in shapes)
            if len(set(column)) > 1:
                columns[leaf, axis] = symbols.setdefault(column, f"n{len(symbols)}")
    return columns


@dataclass
class Sized:
    """A region over symbolic sizes: through NumPy, or in buckets."""

    traced: Traced
    symbolic: Any
    by_numpy: Any
    buckets: Any
    stats: Stats = field(default_factory=Stats)
    calls: int = 0
    spent: dict = field(default_factory=dict)  # seconds of NumPy, by bucket
    best: dict = field(default_factory=dict)  # seconds of a bucket
    jitted: Any = None
    known: Any = None
    settled = False

    def __post_init__(self):
        self.all_dynamic = all(self.traced.dynamic)

    def copy(self) -> "Sized":
        """The same for one signature, whose calls are counted by themselves."""
        return dataclasses.replace(self, calls=0)

    @property
    def is_frequent(self) -> bool:
        """Whether this very size came so often that a program of its own will pay."""
        return self.calls > REPEATS

    @property
    def cost(self) -> float:
        return 2 * (BASE + PER_EQN * len(self.symbolic.jaxpr.jaxpr.eqns))

    def run(self, *xs):
        self.calls += 1
        self.known = sizes = self.symbolic.sizes(xs)
        rooms = self.buckets.rooms(sizes) if self.buckets else None
        slow = self.spent.get(rooms, (0.0, float("inf")))
        if self.by_numpy is None or (
            self.buckets and slow[0] > self.cost / 2 and self.best.get(rooms, (0, 0.0))[1] < slow[1]
        ):
            return self.in_bucket(xs, rooms)
        start = time.perf_counter()
        outs = self.by_numpy(*xs)
        took = time.perf_counter() - start
        self.spent[rooms] = slow[0] + took, min(slow[1], took)
        return self.form([own(x) for x in outs])

    def in_bucket(self, xs, rooms):
        start = time.perf_counter()
        outs = masks.run(self.buckets, xs)
        calls, best = self.best.get(rooms, (0, 0.0))
        if calls and calls < 6:
            jax.block_until_ready(outs)
            took = time.perf_counter() - start
            best = took if calls == 1 else min(best, took)
        self.best[rooms] = calls + 1, best
        return self.form([own(x) if isinstance(x, np.ndarray) else x for x in outs])

    def form(self, outs):
        return outs[0] if self.traced.form == "leaf" else tuple(outs)


def over_sizes(traced: Traced, symbolic, host: bool) -> Sized:
    """A region over symbolic sizes. Raises Unsupported where neither way can run it."""
    by_numpy = buckets = None
    why = []
    weak = any(v.aval.weak_type for v in symbolic.jaxpr.jaxpr.outvars)
    if host and not weak and not loops(symbolic.jaxpr):
        try:
            by_numpy = numpy_function(symbolic.jaxpr)
        except Unsupported as e:
            why.append(e.reason)
    try:
        buckets = masks.bucketed(symbolic)
    except Unsupported as e:
        why.append(e.reason)
    if by_numpy is None and buckets is None:
        raise Unsupported("; ".join(why))
    return Sized(traced, symbolic, by_numpy, buckets)
