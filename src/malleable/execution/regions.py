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
from malleable.execution.breaks import Cut, NeedsPython, OtherSignature, Unsupported
from malleable.execution.families import Family, is_flat, of_jax, weak_outputs
from malleable.execution.host import arrive
from malleable.execution.numpy_code import numpy_function
from malleable.execution.numpy_runtime import TooLong
from malleable.execution.signatures import (
    ARRAY,
    BASE,
    CONCRETE,
    DISPATCH,
    FIXED,
    NUMBERS,
    PER_EQN,
    Stats,
    compiling,
    flatten,
    is_away,
    shape_of,
    signature,
)
from malleable.execution.sizes import size_values
from malleable.execution.tracing import Traced, ordered
from malleable.execution.work import equations

HASHED = frozenset([bool, int, float, complex, str, bytes, tuple])
UNCOMPILED = 1024  # signatures kept that run through NumPy
SIZES = 256  # how many signatures over symbolic sizes are kept
TRIALS = 8  # runs of a compiled region before it is compared with NumPy


@dataclass
class Variant:
    """A region for one signature."""

    traced: Traced
    program: compat.Jaxpr
    host: bool
    held: list  # static leaves whose identity is in the key
    counts: list[int]  # how many leaves each input has
    name: str  # what profiles and jaxprs call it
    stats: Stats = field(default_factory=Stats)
    run: Callable = lambda *xs: ()
    jitted: Any = None
    by_numpy: Any = None
    trials: int = 0
    known = None
    is_frequent = False

    def __post_init__(self):
        self.all_dynamic = all(self.traced.dynamic)
        self.jitted = compiled(self.program, self.traced.form, self.name)
        self.run = self.jitted
        self.is_flat = is_flat(self.traced)
        self.weak = weak_outputs(self.traced, self.program)
        self.cost = BASE + PER_EQN * equations(self.program)
        if not self.host:
            self.stats.way = "compiled"
            return
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

    def challenge(self, best: float) -> None:
        """Compile, and compare with what took `best` seconds."""
        self.stats.numpy_best = best
        if self.by_numpy is not None:
            self.run = self.try_compiled

    def try_numpy(self, *xs):
        start = time.perf_counter()
        out = self.through_numpy(*xs)
        if self.run != self.try_numpy:  # it took too long
            return out
        spent = time.perf_counter() - start
        stats = self.stats
        stats.calls += 1
        stats.numpy_total += spent
        stats.numpy_best = min(stats.numpy_best, spent)
        if stats.numpy_total > self.cost / 2 and stats.numpy_best > DISPATCH:
            self.run = self.try_compiled
        return out

    def through_numpy(self, *xs):
        try:
            outs = of_jax(self.by_numpy.within(self.cost, *xs), self.weak, xs)
        except TooLong:
            self.stats.numpy_best = float("inf")
            self.run = self.try_compiled
            return self.run(*xs)
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


def compiled(program: compat.Jaxpr, form: str, name: str) -> Callable:
    """The program under jit. For other arguments it raises OtherSignature."""
    expected = [(v.aval.shape, v.aval.dtype, v.aval.weak_type) for v in program.jaxpr.invars]

    def region(*xs):
        avals = [getattr(x, "aval", None) for x in xs]
        if [a and (a.shape, a.dtype, a.weak_type) for a in avals] != expected:
            raise OtherSignature
        outs = compat.replay(program, list(map(compat.as_array, xs)))
        return outs[0] if form == "leaf" else tuple(outs)

    region.__name__ = region.__qualname__ = name
    return jax.jit(region)


def inlined(run):
    """A compiled region as a part of a whole that is being compiled."""
    return run.__wrapped__ if compiling.get() else run


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
    safe: Callable | None = None  # the same, giving back an exception and what was done before
    make_safe: Callable = lambda: None
    bodies: dict = field(default_factory=dict)
    static: set = field(default_factory=set)
    how: Any = None  # its body, the kinds of its outputs, what was lifted, which leaves are dynamic
    sized: OrderedDict = field(default_factory=OrderedDict)  # those over symbolic sizes, by key
    families: dict = field(default_factory=dict)  # by all of a signature but the sizes
    seen: dict = field(default_factory=dict)  # shapes, and values of static inputs by number
    said: bool = False  # whether it was said that programs are made on and on


def without_sizes(part):
    """A part of a key, sizes of 2 and more left out: 0 and 1 broadcast."""
    if type(part) is tuple and all(type(d) is int for d in part):
        return tuple([min(d, 2) for d in part])
    return part


class Runner:
    """What the residual program calls. prepare(state, values, ...) makes a variant, or cuts.

    raw: which outputs may be arrays of NumPy; raw_ins: which inputs may stand for those of JAX;
    fast: the compiled program, where there is one only.
    """

    __slots__ = ("all_raw", "fast", "guarded", "options", "prepare", "raw", "raw_ins", "state")

    def __init__(self, state: State, prepare: Callable, options, raw: list, raw_ins, guarded):
        self.guarded = guarded  # see `safely`
        self.state, self.prepare, self.options = state, prepare, options
        self.raw, self.raw_ins = raw, raw_ins
        self.all_raw = bool(raw) and all(raw)
        self.fast: Callable | None = None

    def __call__(self, *values):
        if self.fast is not None and np.ndarray not in map(type, values):
            try:
                return inlined(self.fast)(*values)
            except OtherSignature:
                self.fast = None
        return self.choose(*values)

    def choose(self, *values):
        """Run the variant for these arguments."""
        state = self.state
        if state.instead is not None:
            return self.cut(values)
        leaves, key = [], []
        for value, may_be_raw in zip(values, self.raw_ins, strict=True):
            kind = type(value)
            if kind is ARRAY:
                key += (value.shape, value.dtype, value.weak_type)
                leaves.append(value)
            elif kind is np.ndarray:
                weak = False if may_be_raw and not value.flags.writeable else None
                key += (value.shape, value.dtype, weak)
                leaves.append(value)
            elif kind in NUMBERS:
                key.append(kind)
                if kind is int and not -(2**31) <= value < 2**31:
                    key.append(value)
                leaves.append(value)
            elif kind in FIXED and kind is not type(None):
                key += (kind, value)
                leaves.append(value)
            else:
                found, tree = flatten(value)
                leaves += found
                key.append(tree if kind is not dict else (tree, *value))
                for leaf in found:
                    key += signature(leaf, may_be_raw)
                    if type(leaf) in NUMBERS:  # kept in a list: Python's own
                        key.append(leaf)
        if state.static:
            key += [values[i] if type(values[i]) in HASHED else None for i in state.static]
        if is_away(leaves):
            key.append("away")
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
            outs = inlined(run)(*args)
            if traced.form == "tree":
                return assemble(variant, outs, leaves, (), self)
            state = self.state
            if len(state.variants) == 1 and not state.sized and len(args) == len(values):
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
        return self.handed(variant, outs, leaves)

    def cut(self, values):
        if compiling.get():
            raise NeedsPython
        if self.guarded:
            raise Cut
        assert self.state.instead is not None
        return self.state.instead(*values)

    def safely(self, *values):
        """(exception or None, *outputs): what was done before an exception is not lost."""
        cut = False
        try:
            outs = self(*values)
        except Cut:
            cut = True
        if not cut:
            return (None, *outs) if len(self.state.outs) > 1 else (None, outs)
        if self.state.safe is None:
            self.state.safe = self.state.make_safe()
        assert self.state.safe is not None
        return self.state.safe(*values)

    def specialize(self, values, leaves, key):
        """A variant for a signature that is new: over symbolic sizes if only sizes are."""
        state = self.state
        shapes = tuple(map(shape_of, leaves))
        kind = tuple(map(without_sizes, key))
        family = state.families.get(kind)
        traced = any(isinstance(x, compat.Tracer) for x in leaves)
        frequent = state.sized.get(key)
        compiled = sum(v.run is v.jitted for v in list(state.variants.values()))
        if frequent and compiled >= self.options.max_compiles:
            frequent.stay()
            return frequent
        if family is None or traced or frequent or self.options.dynamic_sizes == "exact":
            variant = self.exact(values, leaves, key)
            if variant is not None and family is None:
                state.families[kind] = Family([shapes])
            if variant is not None and frequent:
                variant.challenge(frequent.fastest)
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
            self.forget(state)
        return variant

    def forget(self, state) -> None:
        """Drop the oldest programs: `max_compiles` that XLA made, many that run through NumPy."""
        known = list(state.variants.items())  # other threads add to it
        made = [k for k, v in known if v.run is v.jitted or v.stats.compile]
        if len(made) > self.options.max_compiles:
            state.variants.pop(made[0], None)
        elif len(known) - len(made) > UNCOMPILED:
            state.variants.pop(next(k for k, _ in known if k not in made), None)

    def handed(self, variant, outs, leaves):
        """What NumPy computed, as arrays of JAX where a reader needs that."""
        form = variant.traced.form
        if form == "leaf":
            return arrive(outs)
        if form == "tree":
            return assemble(variant, outs, leaves, variant.known, self)
        if not self.raw:
            return tuple(map(arrive, outs))
        return tuple([x if r else arrive(x) for x, r in zip(outs, self.raw, strict=True)])


def assemble(variant, outs, leaves, sizes, runner: Runner):
    """The outputs as the program's own code would leave them."""
    traced, found = variant.traced, []
    raw = runner.raw if variant.is_flat else ()
    for i, (entry, number) in enumerate(zip(traced.outs, traced.numbers, strict=True)):
        if isinstance(entry, int):
            x = outs[entry]
            if number and not isinstance(x, compat.Tracer):
                x = x.item()
            elif type(x) is np.ndarray and not (raw and raw[i]):
                x = arrive(x)
        elif len(entry) == 2 and entry[0] == "in":
            x = leaves[entry[1]]
        elif len(entry) == 2:
            x = size_values((entry[1],), tuple(sizes))(sizes)[0]
        else:
            x = entry[0]
        found.append(x)
    if variant.is_flat:
        return found[0] if traced.single else tuple(found)
    out = ordered(jax.tree.unflatten(traced.tree, found), traced.order)
    return out[0] if traced.single else out
