"""Signatures that differ in sizes only: one program for all, through NumPy or in buckets."""

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from malleable import compat
from malleable.execution import masks
from malleable.execution.breaks import Unsupported
from malleable.execution.host import own
from malleable.execution.numpy_code import numpy_function
from malleable.execution.numpy_runtime import TooLong
from malleable.execution.signatures import BASE, DISPATCH, PER_EQN, Stats, owned
from malleable.execution.tracing import Traced
from malleable.execution.work import equations

PATIENCE = 4  # times the cost of compiling that one size may take before it has its own program
NEVER = 0.0, float("inf")


@dataclass
class Family:
    """Signatures that differ in sizes only: their shapes, and the variant over symbolic sizes."""

    shapes: list
    sized: Any = None
    axes: Any = None
    refused: set = field(default_factory=set)

    def variant(self, shapes, make: Callable):
        """The variant for these shapes, None where there is none. make(axes) traces one."""
        few = len(self.shapes) < 8  # after these, only what makes another size vary
        if shapes not in self.shapes and (few or varying([*self.shapes, shapes]) != self.axes):
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
    spent: dict = field(default_factory=dict)  # seconds of NumPy, by bucket
    best: dict = field(default_factory=dict)  # seconds of a bucket
    jitted: Any = None
    known: Any = None
    rooms: Any = None
    here: float = 0.0  # seconds at this very size
    fastest: float = float("inf")
    is_frequent = False  # whether this very size took so long that its own program will pay
    settled = False

    def __post_init__(self):
        self.all_dynamic = all(self.traced.dynamic)
        self.cost = BASE + PER_EQN * equations(self.symbolic.jaxpr)
        self.is_flat = is_flat(self.traced)
        self.weak = weak_outputs(self.traced, self.symbolic.jaxpr)
        self.limit = PATIENCE * self.cost

    def copy(self) -> "Sized":
        """The same for one signature, whose calls are counted by themselves."""
        made = copy.copy(self)
        made.known, made.here, made.fastest = None, 0.0, float("inf")
        return made

    def stay(self) -> None:
        """This size gets no program of its own."""
        self.is_frequent, self.limit = False, float("inf")

    def run(self, *xs):
        if self.known is None:
            self.known = self.symbolic.sizes(xs)
            self.rooms = self.buckets.rooms(self.known) if self.buckets else None
        start, rooms = time.perf_counter(), self.rooms
        slow = self.spent.get(rooms, NEVER)
        outs = None
        if self.by_numpy is not None and not self.takes_bucket(slow):
            try:
                outs = self.by_numpy.within(self.cost, *xs)
            except TooLong:
                self.spent[rooms] = float("inf"), float("inf")
                if self.buckets is None:
                    raise Unsupported("a loop that is long") from None
            else:
                took = time.perf_counter() - start
                self.spent[rooms] = slow[0] + took, min(slow[1], took)
                outs = of_jax(outs, self.weak, xs)
        if outs is None:
            outs = self.in_bucket(xs, rooms)
        took = time.perf_counter() - start
        self.here += took
        self.fastest = min(self.fastest, took)
        if self.here > self.limit and self.fastest > DISPATCH:
            self.is_frequent = True
        return outs[0] if self.traced.form == "leaf" else tuple(outs)

    def takes_bucket(self, slow) -> bool:
        """Whether the bucket is the way: compiled and faster, or NumPy took as long as that."""
        best = self.best.get(self.rooms)
        if best is not None:
            return best[1] < slow[1]
        if self.here > max(self.cost, slow[0]) / 2 and DISPATCH < self.fastest < self.limit:
            self.is_frequent = True  # it is always this size
            return False
        return self.buckets is not None and slow[0] > self.cost and slow[1] > 3 * DISPATCH

    def in_bucket(self, xs, rooms):
        start = time.perf_counter()
        outs = masks.run(self.buckets, xs)
        calls, best = self.best.get(rooms, (0, 0.0))
        if calls and calls < 6:
            jax.block_until_ready(outs)
            took = time.perf_counter() - start
            best = took if calls == 1 else min(best, took)
        self.best[rooms] = calls + 1, best
        return [own(x) if isinstance(x, np.ndarray) else x for x in outs]


def is_flat(traced: Traced) -> bool:
    """Whether what a region leaves is a tuple of its outputs."""
    return traced.tree == jax.tree.structure((0,) * len(traced.outs))


def weak_outputs(traced: Traced, program: compat.Jaxpr) -> list[int]:
    """Which outputs are arrays of a weak type to the user."""
    numbers = {e for e, n in zip(traced.outs, traced.numbers, strict=True) if n}
    outvars = program.jaxpr.outvars
    return [i for i, v in enumerate(outvars) if v.aval.weak_type and i not in numbers]


def of_jax(outs, weak: list[int], args) -> list:
    """What NumPy computed: raw arrays, and arrays of JAX where the type is weak."""
    outs = owned(outs, args)
    for i in weak:
        outs[i] = compat.put(outs[i], weak=True)
    return outs


def over_sizes(traced: Traced, symbolic, host: bool) -> Sized:
    """A region over symbolic sizes. Raises Unsupported where neither way can run it."""
    by_numpy = buckets = None
    why = []
    if host:
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
