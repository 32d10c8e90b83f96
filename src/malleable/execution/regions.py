"""One region at run time: which way it runs, for which arguments, and how that is chosen.

A region is traced once per signature of its arguments. Then it runs compiled, or, on the CPU while
that costs less than compiling, through NumPy; what is faster stays. See `Policy`.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from malleable import compat
from malleable.execution.breaks import NeedsPython, Unsupported
from malleable.execution.families import Family
from malleable.execution.host import arrive, own
from malleable.execution.numpy_code import numpy_function
from malleable.execution.signatures import (
    ARRAY,
    BASE,
    NUMBERS,
    PER_EQN,
    Stats,
    compiling,
    loops,
    rank,
    shape_of,
    signature,
)
from malleable.execution.sizes import size_values
from malleable.execution.tracing import UNSET, Traced

REPEATS = 8  # times a size comes before it has a program of its own
TRIALS = 3  # runs of a compiled region before it is compared with NumPy


@dataclass
class Variant:
    """A region for one signature."""

    traced: Traced
    program: compat.Jaxpr
    host: bool
    held: list  # static leaves whose identity is in the key
    counts: list[int]  # how many leaves each input has
    stats: Stats = field(default_factory=Stats)
    run: Callable = lambda *xs: ()
    jitted: Any = None
    by_numpy: Any = None

    def __post_init__(self):
        self.jitted = compiled(self.program, self.traced.form)
        self.run = self.jitted
        program = self.program.jaxpr
        self.weak = [v.aval.weak_type for v in program.outvars]
        if not self.host or not program.eqns:
            self.stats.way = "compiled"
            return
        if not loops(self.program):
            try:
                self.by_numpy = numpy_function(self.program)
            except Unsupported as e:
                self.stats.way = f"compiled: {e.reason}"
        if self.by_numpy is not None:
            self.stats.way = "numpy"
            self.run = self.try_numpy

    @property
    def all_outs(self) -> tuple:
        """The outputs of a program that is all there is to hand out."""
        return tuple(range(len(self.program.jaxpr.outvars)))

    @property
    def cost(self) -> float:
        """Seconds that compiling is expected to take."""
        return BASE + PER_EQN * len(self.program.jaxpr.eqns)

    def try_numpy(self, *xs):
        start = time.perf_counter()
        out = self.through_numpy(*xs)
        spent = time.perf_counter() - start
        stats = self.stats
        stats.calls += 1
        stats.numpy_total += spent
        stats.numpy_best = min(stats.numpy_best, spent)
        if stats.numpy_total > self.cost / 2:
            self.run = self.try_compiled
        return out

    def through_numpy(self, *xs):
        outs = self.by_numpy(*xs)
        outs = [
            compat.put(own(x), weak=True) if weak else own(x)
            for x, weak in zip(outs, self.weak, strict=True)
        ]
        return outs[0] if self.traced.form == "leaf" else tuple(outs)

    def try_compiled(self, *xs):
        stats, start = self.stats, time.perf_counter()
        out = jax.block_until_ready(self.jitted(*xs))
        spent = time.perf_counter() - start
        stats.calls += 1
        if not stats.compile:
            stats.compile = spent
            return out
        stats.jit_best = min(stats.jit_best, spent)
        stats.way = f"compiled, trial {stats.calls}"
        self.trials = getattr(self, "trials", 0) + 1
        if self.trials >= TRIALS:
            if stats.jit_best <= stats.numpy_best:
                stats.way, self.run = "compiled", self.jitted
            else:
                stats.way, self.run = "numpy", self.through_numpy
        return out


def compiled(program: compat.Jaxpr, form: str) -> Callable:
    """The program under jit."""

    def region(*xs):
        outs = compat.replay(program, list(map(compat.as_array, xs)))
        return outs[0] if form == "leaf" else tuple(outs)

    return jax.jit(region)


@dataclass
class State:
    """What is known of a region that takes `ins` and leaves `outs`.

    instead: the program of its parts, once it was cut; static: the numbers of the inputs whose
    value is part of the key; bodies: its functions, by the inputs that have no value.
    """

    ins: list
    outs: list
    unsure: set
    variants: OrderedDict = field(default_factory=OrderedDict)
    instead: Callable | None = None
    bodies: dict = field(default_factory=dict)
    static: set = field(default_factory=set)
    how: Any = None  # its body, the kinds of its outputs, what was lifted, which leaves are dynamic
    families: dict = field(default_factory=dict)  # by all of a signature but the sizes


class Runner:
    """What the residual program calls. prepare(state, values, ...) makes a variant, or cuts.

    raw: which outputs may be arrays of NumPy.
    """

    def __init__(self, state: State, prepare: Callable, options, raw: list[bool]):
        self.state, self.prepare, self.options = state, prepare, options
        self.raw = raw
        self.all_raw = bool(raw) and all(raw)

    def __call__(self, *values):
        state = self.state
        if state.instead is not None:
            return self.cut(values)
        leaves = []
        for value in values:
            kind = type(value)
            if kind is ARRAY or kind is np.ndarray or kind in NUMBERS:
                leaves.append(value)
            else:
                leaves.extend(jax.tree.leaves(value))
        key = tuple(map(signature, leaves)), tuple(map(_shape_of_tree, values))
        if state.static:
            key = (*key, tuple(values[i] for i in state.static))
        variant = state.variants.get(key)
        if variant is None:
            variant = self.specialize(values, leaves, key)
            if variant is None:
                return self.cut(values)
        traced = variant.traced
        if all(traced.dynamic):
            args = leaves
        else:
            args = [leaf for leaf, d in zip(leaves, traced.dynamic, strict=True) if d]
        run = variant.run
        if run is variant.jitted:
            outs = run(*args)
            return outs if traced.form != "tree" else assemble(traced, outs, leaves)
        if any(isinstance(x, compat.Tracer) for x in args):
            if variant.jitted is None:
                variant = self.exact(values, leaves, key)
                assert variant is not None
                return self(*values)
            outs = variant.jitted(*args)
            return outs if traced.form != "tree" else assemble(traced, outs, leaves)
        try:
            outs = run(*args)
        except Unsupported:  # a size at which the trace over symbols does not hold
            self.exact(values, leaves, key)
            return self(*values)
        if self.all_raw and traced.form != "tree":
            return outs
        return self.handed(traced, outs, leaves, getattr(variant, "known", None))

    def cut(self, values):
        if compiling.get():
            raise NeedsPython
        assert self.state.instead is not None
        return self.state.instead(*values)

    def specialize(self, values, leaves, key):
        """A variant for a signature that is new: over symbolic sizes if only sizes are."""
        state = self.state
        kind = tuple(map(rank, leaves)), *key[1:]
        family = state.families.get(kind)
        shapes = tuple(map(shape_of, leaves))
        traced = any(isinstance(x, compat.Tracer) for x in leaves)
        if family is None or traced:
            variant = self.exact(values, leaves, key)
            if variant is not None and family is None:
                state.families[kind] = Family([shapes])
            return variant
        if self.options.dynamic_sizes != "exact":
            variant = family.variant(shapes, lambda axes: self.prepare(state, values, leaves, axes))
            if variant is not None and variant.seen(shapes) <= REPEATS:
                return variant
        return self.exact(values, leaves, key)

    def exact(self, values, leaves, key):
        state = self.state
        variant = self.prepare(state, values, leaves)
        if variant is not None:
            state.variants[key] = variant
            if len(state.variants) > self.options.max_compiles:
                state.variants.popitem(last=False)
        return variant

    def handed(self, traced, outs, leaves, sizes=None):
        """What NumPy computed, as arrays of JAX where a reader needs that."""
        if traced.form == "leaf":
            return arrive(outs)
        raw = self.raw if traced.form == "tuple" and self.raw else [False] * len(outs)
        outs = tuple(x if r else arrive(x) for x, r in zip(outs, raw, strict=True))
        return outs if traced.form == "tuple" else assemble(traced, outs, leaves, sizes)


def _shape_of_tree(value):
    kind = type(value)
    if kind is ARRAY or kind is np.ndarray or kind in NUMBERS:
        return None
    return jax.tree.structure(value)


def assemble(traced: Traced, outs, leaves, sizes=None):
    """The outputs as the program's own code would leave them."""
    found = []
    for entry, number in zip(traced.outs, traced.numbers, strict=True):
        if isinstance(entry, int):
            x = outs[entry]
            if number and not isinstance(x, compat.Tracer):
                x = x.item()
        elif len(entry) == 2 and entry[0] == "in":
            x = leaves[entry[1]]
        elif len(entry) == 2:
            x = size_values((entry[1],), tuple(sizes))(sizes)[0]
        else:
            x = UNSET if entry[0] is ... else entry[0]
        found.append(x)
    out = jax.tree.unflatten(traced.tree, found)
    return out[0] if traced.single else out
