"""Buckets: a region traced over symbolic sizes, compiled once per bucket and run at any size.

Arguments are padded to the bucket; rules per primitive keep the padding out of every result.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from malleable.execution.buckets import control, indexing, linalg, random, reductions, shapes  # noqa: F401  (the rules register themselves)
from malleable.execution.buckets.values import Padded, Sizes, evaluate_padded
from malleable.execution.common.breaks import Unsupported
from malleable.execution.common.sizes import Symbolic, bucket_size, is_symbolic, pad_to


class Bucketed:
    """A region with one executable per bucket, `executables`: {rooms of the symbols: function}."""

    def __init__(self, symbolic: Symbolic, ratio: float, minimum: int):
        self.symbolic, self.ratio, self.minimum = symbolic, ratio, minimum
        self.executables: dict[tuple[int, ...], jax.stages.Wrapped] = {}
        program = symbolic.jaxpr.jaxpr
        self.out_sizes = [_size_names(getattr(v.aval, "shape", ())) for v in program.outvars]
        self.padded: dict[int, list[tuple[int, str]]] = {}
        for (leaf, axis), name in symbolic.dynamic.items():
            self.padded.setdefault(leaf, []).append((axis, name))

    @property
    def compiled(self) -> int:
        """How many buckets have an executable."""
        return len(self.executables)

    def rooms(self, sizes: dict[str, int]) -> tuple[int, ...]:
        """The bucket of these sizes."""
        return tuple(bucket_size(sizes[s], self.ratio, self.minimum) for s in self.symbolic.symbols)

    def executable(self, rooms: tuple[int, ...]):
        """The function (values of all sizes, consts, *padded) -> padded results, for a bucket."""
        if rooms not in self.executables:
            if any(getattr(jax.config, f"jax_debug_{what}") for what in ("nans", "infs")):
                raise Unsupported("padding may be NaN, which jax_debug_nans would report")
            self.executables[rooms] = jax.jit(self._at(rooms))
        return self.executables[rooms]

    def _at(self, rooms):
        symbolic = self.symbolic
        program = symbolic.jaxpr.jaxpr

        def region(values, consts, *padded):
            known = {text: values[i] for i, text in enumerate(symbolic.texts)}
            sizes = Sizes(known, dict(zip(symbolic.symbols, rooms, strict=True)))
            args = [
                Padded(x, v.aval.shape, 0 if i in self.padded else None)
                for i, (x, v) in enumerate(zip(padded, program.invars, strict=True))
            ]
            try:
                return [p.x for p in evaluate_padded(sizes, symbolic.jaxpr, args, consts)]
            except (TypeError, ValueError, NotImplementedError) as error:
                first = next(iter(str(error).splitlines()), "")
                raise Unsupported(f"{type(error).__name__}: {first}") from error

        return region

    def check(self) -> None:
        """Raise Unsupported for a primitive without a rule, before anything is compiled."""
        rooms = tuple(self.minimum for _ in self.symbolic.symbols)
        named = dict(zip(self.symbolic.symbols, rooms, strict=True))
        values = jax.ShapeDtypeStruct((len(self.symbolic.texts),), np.int32)
        avals = [v.aval for v in self.symbolic.jaxpr.jaxpr.invars]
        room = Sizes({}, named).shape
        args = [jax.ShapeDtypeStruct(room(a.shape), a.dtype, weak_type=a.weak_type) for a in avals]
        jax.eval_shape(self._at(rooms), values, self.symbolic.jaxpr.consts, *args)


def bucketed(symbolic: Symbolic, ratio: float = 1.25, minimum: int = 16) -> Bucketed:
    """The region, ready to run in buckets; Unsupported, with the primitive, where it cannot be."""
    made = Bucketed(symbolic, ratio, minimum)
    made.check()
    return made


def run_region(region: Bucketed, arrays: Sequence) -> tuple:
    """The results on these arguments (flat), exactly as large as they have to be.

    A result of symbolic size is a NumPy view, any other an array of JAX. Raises Unsupported for
    sizes at which the trace does not hold.
    """
    symbolic = region.symbolic
    sizes = symbolic.sizes(arrays)
    values = symbolic.flat_sizes(sizes)
    rooms = region.rooms(sizes)
    room = dict(zip(symbolic.symbols, rooms, strict=True))
    args = list(arrays)
    for leaf, axes in region.padded.items():
        widths = [room[name] for _, name in axes]
        args[leaf] = pad_to(np.asarray(args[leaf]), [axis for axis, _ in axes], widths)
    outs = region.executable(rooms)(np.array(values, np.int32), symbolic.jaxpr.consts, *args)
    known = dict(zip(symbolic.texts, values, strict=True))
    return tuple(crop(out, names, known) for out, names in zip(outs, region.out_sizes, strict=True))


def _size_names(dims: Sequence) -> tuple[str | int, ...] | None:
    """What the sizes of a result are called; None where none is symbolic."""
    if not any(map(is_symbolic, dims)):
        return None
    return tuple(str(d) if is_symbolic(d) else d for d in dims)


def crop(out, names: Sequence[Any] | None, known: dict[str, int]):
    """A result without its padding."""
    if names is None:
        return out
    return np.asarray(out)[tuple(slice(known.get(s, s)) for s in names)]
