"""Signatures that differ in sizes only: one program for all, through NumPy or in buckets."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from malleable import compat
from malleable.execution.buckets import masks
from malleable.execution.common import work
from malleable.execution.common.breaks import Unsupported
from malleable.execution.host.host import own
from malleable.execution.numpy.code import numpy_function
from malleable.execution.regions.signatures import owned
from malleable.execution.regions.tracing import Traced

SHAPES = 32  # signatures of a family that `explain` may name


@dataclass
class Family:
    """Signatures that differ in sizes of `axes` only. sized: the variant over symbols, if any."""

    axes: dict
    sized: Any
    shapes: list = field(default_factory=list)

    def variant(self, leaves: Sequence, shapes: tuple, padded: bool):
        """The variant for these arguments; None where they need a program of their own."""
        if shapes not in self.shapes and len(self.shapes) < SHAPES:
            self.shapes.append(shapes)
        return self.sized.at(leaves, padded)


def varying(shapes: list) -> dict:
    """(leaf, axis) -> symbol, for each axis whose size is not always the same."""
    columns: dict = {}
    symbols: dict = {}
    for leaf, first in enumerate(shapes[0] if shapes else ()):
        for axis in range(len(first)):
            column = tuple(s[leaf][axis] for s in shapes)
            if len(set(column)) > 1:
                columns[leaf, axis] = symbols.setdefault(column, f"n{len(symbols)}")
    return columns


@dataclass
class Sized:
    """A region over symbolic sizes: through NumPy, or in buckets. known: the sizes it runs at."""

    traced: Traced
    symbolic: Any
    by_numpy: Any  # None for buckets
    buckets: Any
    known: Any = None
    dims: frozenset = frozenset()  # sizes of its results
    jitted = None

    def __post_init__(self):
        self.all_dynamic = all(self.traced.dynamic)
        self.is_flat = is_flat(self.traced)
        self.weak = weak_outputs(self.traced, self.symbolic.jaxpr)

    def at(self, leaves: Sequence, padded: bool) -> "Sized | None":
        """The same for the sizes of these arguments; None where it does not hold for them.

        padded: what NumPy does not run is for a bucket.
        """
        args = [x for x, d in zip(leaves, self.traced.dynamic, strict=True) if d]
        try:
            known = self.symbolic.sizes(args)
            values = self.symbolic.flat_sizes(known)
        except Unsupported:
            return None
        sizes = dict(zip(self.symbolic.texts, values, strict=True))
        made = copy.copy(self)
        made.known = known
        shapes = [getattr(v.aval, "shape", ()) for v in self.symbolic.jaxpr.jaxpr.outvars]
        texts = {str(d) for shape in shapes for d in shape if not isinstance(d, int)}
        made.dims = frozenset(sizes[text] for text in texts if sizes[text] > 1)
        size = lambda d: d if isinstance(d, int) else sizes[str(d)]  # noqa: E731
        if self.buckets is None and not work.suits_numpy(self.symbolic.jaxpr, size, padded):
            return None
        return made

    def run(self, *xs):
        if self.by_numpy is not None:
            outs = of_jax(self.by_numpy(*xs), self.weak, xs)
        else:
            outs = masks.run_region(self.buckets, xs)
            outs = [own(x) if isinstance(x, np.ndarray) else x for x in outs]
        return outs[0] if self.traced.form == "leaf" else tuple(outs)


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


def over_sizes(traced: Traced, symbolic, by_numpy: bool) -> Sized:
    """A region over symbolic sizes, through NumPy or in buckets. Raises Unsupported."""
    if by_numpy:
        return Sized(traced, symbolic, numpy_function(symbolic.jaxpr), None)
    return Sized(traced, symbolic, None, masks.bucketed(symbolic))
