"""One region at run time: which way it runs, for which arguments, and how that is chosen.

A region is traced once per signature of its arguments. Then it runs compiled, or, on the CPU while
that costs less than compiling, through NumPy; what is faster stays.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from malleable import compat
from malleable.execution.breaks import NeedsPython, OtherSignature, Unsupported
from malleable.execution.families import Family
from malleable.execution.host import arrive, own
from malleable.execution.numpy_code import numpy_function
from malleable.execution.signatures import (
    ARRAY,
    BASE,
    CONCRETE,
    NUMBERS,
    PER_EQN,
    Stats,
    compiling,
    flatten,
    loops,
    shape_of,
    signature,
)
from malleable.execution.sizes import size_values
from malleable.execution.tracing import UNSET, Traced

SIZES = 256  # how many signatures over symbolic sizes are kept
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
    trials: int = 0
    known = None
    is_frequent = False

    def __post_init__(self):
        self.all_dynamic = all(self.traced.dynamic)
        self.jitted = compiled(self.program, self.traced.form)
        self.run = self.jitted
        program = self.program.jaxpr
        self.weak = [i for i, v in enumerate(program.outvars) if v.aval.weak_type]
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
    def settled(self) -> bool:
        return self.run is self.jitted

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
        outs = list(map(own, self.by_numpy(*xs)))
        for i in self.weak:
            outs[i] = compat.put(outs[i], weak=True)
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
        self.trials += 1
        if self.trials >= TRIALS:
            if stats.jit_best <= stats.numpy_best:
                stats.way, self.run = "compiled", self.jitted
            else:
                stats.way, self.run = "numpy", self.through_numpy
        return out


def compiled(program: compat.Jaxpr, form: str) -> Callable:
    """The program under jit. For other arguments it raises OtherSignature."""
    expected = [(v.aval.shape, v.aval.dtype, v.aval.weak_type) for v in program.jaxpr.invars]

    def region(*xs):
        avals = [getattr(x, "aval", None) for x in xs]
        if [a and (a.shape, a.dtype, a.weak_type) for a in avals] != expected:
            raise OtherSignature
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
    sized: OrderedDict = field(default_factory=OrderedDict)  # those over symbolic sizes, by key
    families: dict = field(default_factory=dict)  # by all of a signature but the sizes
    seen: dict = field(default_factory=dict)  # shapes, and values of static inputs by number
    said: bool = False  # whether it was said that programs are made on and on


class Runner:
    """What the residual program calls. prepare(state, values, ...) makes a variant, or cuts.

    raw: which outputs may be arrays of NumPy; fast: the compiled program, where there is one only.
    """

    __slots__ = ("all_raw", "fast", "options", "prepare", "raw", "state")

    def __init__(self, state: State, prepare: Callable, options, raw: list[bool]):
        self.state, self.prepare, self.options = state, prepare, options
        self.raw = raw
        self.all_raw = bool(raw) and all(raw)
        self.fast: Callable | None = None

    def __call__(self, *values):
        if self.fast is not None:
            try:
                return self.fast(*values)
            except OtherSignature:
                self.fast = None
        state = self.state
        if state.instead is not None:
            return self.cut(values)
        leaves, key = [], []
        for value in values:
            kind = type(value)
            if kind is ARRAY:
                key += (value.shape, value.dtype, value.weak_type)
                leaves.append(value)
            elif kind is np.ndarray:
                key += (value.shape, value.dtype)
                leaves.append(value)
            elif kind in NUMBERS:
                key.append(kind)
                leaves.append(value)
            else:
                found, tree = flatten(value)
                leaves += found
                key += (tree, *map(signature, found))
        if state.static:
            key += [values[i] for i in state.static]
        key = tuple(key)
        variant = state.variants.get(key) or state.sized.get(key)
        if variant is None or variant.is_frequent:
            variant = self.specialize(values, leaves, key)
            if variant is None:
                return self.cut(values)
        return self.run(variant, values, leaves, key)

    def run(self, variant, values, leaves, key):
        traced = variant.traced
        args = leaves
        if not variant.all_dynamic:
            args = [leaf for leaf, d in zip(leaves, traced.dynamic, strict=True) if d]
        run = variant.run
        if not CONCRETE.issuperset(map(type, args)) and any(
            isinstance(x, compat.Tracer) for x in args
        ):
            if variant.jitted is None:  # symbolic sizes are for values
                variant = self.exact(values, leaves, key)
                if variant is None:
                    return self.cut(values)
            run = variant.jitted
        if run is variant.jitted:
            outs = run(*args)
            if traced.form == "tree":
                return assemble(traced, outs, leaves)
            if len(self.state.variants) == 1 and len(args) == len(values) and variant.settled:
                self.fast = run
            return outs
        try:
            outs = run(*args)
        except Unsupported:  # a size at which the trace over symbols does not hold
            variant = self.exact(values, leaves, key)
            if variant is None:
                return self.cut(values)
            return self.run(variant, values, leaves, key)
        if self.all_raw and traced.form != "tree":
            return outs
        return self.handed(traced, outs, leaves, variant.known)

    def cut(self, values):
        if compiling.get():
            raise NeedsPython
        assert self.state.instead is not None
        return self.state.instead(*values)

    def specialize(self, values, leaves, key):
        """A variant for a signature that is new: over symbolic sizes if only sizes are."""
        state = self.state
        shapes = tuple(map(shape_of, leaves))
        kind = tuple(
            len(k) if type(k) is tuple and all(type(d) is int for d in k) else k for k in key
        )
        family = state.families.get(kind)
        traced = any(isinstance(x, compat.Tracer) for x in leaves)
        frequent = key in state.sized
        if family is None or traced or frequent or self.options.dynamic_sizes == "exact":
            variant = self.exact(values, leaves, key)
            if variant is not None and family is None:
                state.families[kind] = Family([shapes])
            return variant
        variant = family.variant(shapes, lambda axes: self.prepare(state, values, leaves, axes))
        if variant is None:
            return self.exact(values, leaves, key)
        state.sized[key] = variant = variant.copy()
        if len(state.sized) > SIZES:
            state.sized.popitem(last=False)
        return variant

    def exact(self, values, leaves, key):
        state = self.state
        variant = self.prepare(state, values, leaves)
        if variant is not None:
            state.variants[key] = variant
            state.sized.pop(key, None)
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
