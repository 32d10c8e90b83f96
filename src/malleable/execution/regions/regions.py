"""One region at run time: which way it runs, for which arguments, and how that is chosen.

A region is traced once per signature of its arguments. Small work runs through NumPy on the CPU,
all else compiled: by the program and the sizes (see work.py), never by a clock or a count of calls,
so that one input has one result. Sizes that depend on values (see `Sizes`) are symbols of the
program, which then runs through NumPy or in padded buckets.
"""

import contextlib
import functools
import operator
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from malleable import compat
from malleable.execution.common import work
from malleable.execution.common.breaks import Cut, NeedsPython, OtherSignature, Unsupported
from malleable.execution.common.host_values import is_raw
from malleable.execution.common.leaves import flatten
from malleable.execution.common.listeners import is_heard
from malleable.execution.common.sizes import size_values
from malleable.execution.host.host import arrive, arrive_all
from malleable.execution.numpy.code import numpy_function
from malleable.execution.regions.families import Family, is_flat, of_jax, weak_outputs
from malleable.execution.regions.signatures import (
    ARRAY,
    CONCRETE,
    FIXED,
    NUMBERS,
    PLAIN,
    compiling,
    exactly,
    is_away,
    is_log,
    orders,
    shape_of,
    signature,
    without_sizes,
)
from malleable.execution.regions.tracing import UNSET, Traced, reordered
from malleable.programs.evaluate import evaluate


class Whole(Exception):
    """Nothing has run, and the function may be one program: it need not be compiled twice."""


HASHED = frozenset([bool, int, float, complex, str, bytes, tuple])
UNCOMPILED = 1024  # signatures kept that run through NumPy
NONE: frozenset = frozenset()
LASTS = 4  # variants that a look at the arguments finds, without a key
MOST_VALUES = 8  # programs for values of one number, where the program does not need its value
PADDED = 16  # the least size that goes in a bucket: below, padding may be most of the work
SIZES = 256  # how many signatures over symbolic sizes are kept


class Sizes(threading.local):
    """The sizes that may be others in another call, of the call that is running in this thread.

    `given` are the leading sizes of its arguments; `new` are dimensions of what a host statement
    gave that none of its arguments had: how many elements a mask selects. They are found anew in
    each call, so that nothing depends on what was called before.
    """

    def __init__(self):
        self.new: set[int] = set()
        self.given: frozenset[int] = frozenset()
        self.fixed: frozenset[int] = frozenset()  # every size of an argument
        self.whole = False  # whether a region that is compiled may be all of the function: `Whole`

    def begin(self, args, padded: bool = False) -> tuple:
        """A call with these arguments begins; what `end` takes. padded: all sizes go in buckets."""
        outer = self.new, self.given, self.fixed
        shapes, held = [], ()
        for x in args:
            kind = type(x)
            if kind is ARRAY or kind is np.ndarray:
                shapes.append(x.shape)
            elif kind not in PLAIN and not is_log(x):
                if isinstance(x, np.ndarray | ARRAY):
                    shapes.append(x.shape)
                    continue
                found = flatten(x)[0]
                if not PLAIN.issuperset(map(type, found)):
                    held = (*held, *found)
        self.given, self.fixed = leading(tuple(shapes))
        if held:
            self.fixed = self.fixed.union(*map(shape_of, held))
        self.new = set(self.given) if padded else set()
        return outer

    def end(self, outer: tuple) -> None:
        self.new, self.given, self.fixed = outer

    def meet(self, out, args) -> None:
        """Note the sizes of an array that was made of others."""
        if isinstance(out, np.ndarray | ARRAY) and not self.fixed.issuperset(out.shape):
            known = self.fixed.union(*map(shape_of, args))
            self.new.update([d for d in out.shape if d > 1 and d not in known])


@functools.lru_cache(1024)
def leading(shapes: tuple) -> tuple[frozenset[int], frozenset[int]]:
    """The sizes of arguments that may vary, the leading ones, and all their sizes."""
    inner = frozenset([d for shape in shapes for d in shape[1:]])  # of features
    given = frozenset([s[0] for s in shapes if s and s[0] > 1 and s[0] not in inner])
    return given, given | inner


@dataclass
class Variant:
    """A region for one signature, and the engine that its program and sizes chose for it.

    host: whether NumPy may run it.
    """

    traced: Traced
    program: compat.Jaxpr
    host: bool
    held: list  # static leaves whose identity is in the key
    counts: list[int]  # how many leaves each input has
    name: str  # what profiles and jaxprs call it
    run: Callable = lambda *xs: ()
    jitted: Any = None
    by_numpy: Any = None
    known = None
    dims = frozenset()

    def __post_init__(self):
        self.all_dynamic = all(self.traced.dynamic)
        self.jitted = compiled_region(self.program, self.traced.form, self.name)
        self.run = self.jitted
        self.is_flat = is_flat(self.traced)
        self.weak = weak_outputs(self.traced, self.program)
        if self.host and work.suits_numpy(self.program):
            with contextlib.suppress(Unsupported):
                self.by_numpy = numpy_function(self.program)
                self.run = self.through_numpy

    @property
    def all_outs(self) -> tuple:
        """The outputs of a program that is all there is to hand out."""
        return tuple(range(len(self.program.jaxpr.outvars)))

    def through_numpy(self, *xs):
        outs = of_jax(self.by_numpy(*xs), self.weak, xs)
        return outs[0] if self.traced.form == "leaf" else tuple(outs)


def compiled_region(program: compat.Jaxpr, form: str, name: str) -> Callable:
    """The program under jit. For other arguments it raises OtherSignature."""
    expected = [(v.aval.shape, v.aval.dtype, v.aval.weak_type) for v in program.jaxpr.invars]

    def region(*xs):
        avals: list[Any] = list(map(jax.typeof, xs))  # of Python's numbers too: defaults
        if [(a.shape, a.dtype, a.weak_type) for a in avals] != expected:
            raise OtherSignature
        outs = evaluate(program, list(map(compat.as_array, xs)))
        return outs[0] if form == "leaf" else tuple(outs)

    region.__name__ = region.__qualname__ = name
    return jax.jit(region)


def inlined(run):
    """A compiled region as a part of a whole that is being compiled."""
    return run.__wrapped__ if compiling.get() else run


@dataclass
class State:
    """What is known of a region that takes `ins` and leaves `outs`.

    instead: the program of its parts, once it was cut; parts: the same for kinds of arguments that
    came when others had a program already, by kind; static: the numbers of the inputs whose
    value is part of the key; bodies: its functions, by the inputs that have no value.
    """

    ins: list
    outs: list
    unsure: set
    variants: OrderedDict = field(default_factory=OrderedDict)
    instead: Callable | None = None
    parts: dict = field(default_factory=dict)
    safe: Callable | None = None  # the same, giving back an exception and what was done before
    make_safe: Callable = lambda: None
    bodies: dict = field(default_factory=dict)
    static: set = field(default_factory=set)
    plain: Any = None  # its statements as a function of Python
    by_value: bool = False  # whether values are compiled in though no shape and no branch needs it
    made: dict = field(default_factory=dict)  # how many such programs, by signature but for values
    how: Any = None  # its body, the kinds of its outputs, what was lifted, which leaves are dynamic
    dims: dict = field(default_factory=dict)  # all sizes of a signature
    sized: OrderedDict = field(default_factory=OrderedDict)  # those over symbolic sizes, by key
    families: dict = field(default_factory=dict)  # by a signature with symbols for sizes
    lists: dict = field(default_factory=dict)  # values of lists of numbers, by the input
    changing: set = field(default_factory=set)  # the inputs whose lists are others in each call
    seen: dict = field(default_factory=dict)  # shapes, and values of static inputs by number
    said: bool = False  # whether it was said that programs are made on and on

    def join(self) -> None:
        """Make the region one again."""
        self.instead = self.safe = None


def with_symbols(part, names: dict):
    """A part of a key, with symbols for the sizes that depend on values."""
    if type(part) is tuple and all(type(d) is int for d in part):
        return tuple([names.get(d, d) for d in part])
    return part


@dataclass(frozen=True)
class Last:
    """A variant that NumPy ran, with what arguments have to be for it to serve again.

    None where Python raises for such arguments.

    looks: of each argument its type, shape or value, dtype, and whether its type is weak or it can
    be written to; marks: those of its sizes that were new, or may vary; new: the sizes of its
    results, if they are symbols of the program; takes: which arguments the program takes.
    """

    variant: Any
    looks: tuple
    dims: frozenset
    marks: tuple
    new: frozenset
    takes: tuple

    @staticmethod
    def of(variant, values, static, sizes: Sizes) -> "Last | None":
        """None where a look at the types and shapes of arguments does not tell all."""
        looks = []
        for i, x in enumerate(values):
            kind = type(x)
            if kind is ARRAY or kind is np.ndarray:
                flag = x.weak_type if kind is ARRAY else x.flags.writeable
                looks.append((kind, x.shape, x.dtype, flag))
            elif kind is int and not -(2**31) <= x < 2**31:
                return None  # which is compiled in
            elif kind is int or (kind in NUMBERS and i not in static) or x is None:
                looks.append((kind, x if i in static else None, None, None))
            else:
                return None
        dims = frozenset([d for _, shape, dtype, _ in looks if dtype is not None for d in shape])
        leaves = [i for i, x in enumerate(values) if x is not None]
        marks = dims & sizes.new, dims & sizes.given
        if variant is None:
            return Last(variant, tuple(looks), dims, marks, NONE, ())
        takes = [i for i, d in zip(leaves, variant.traced.dynamic, strict=True) if d]
        return Last(variant, tuple(looks), dims, marks, variant.dims, tuple(takes))

    def serves(self, values, sizes: Sizes) -> bool:
        """Whether these arguments are as those were."""
        for value, (kind, shape, dtype, flag) in zip(values, self.looks, strict=True):
            if type(value) is not kind:
                return False
            if kind is ARRAY or kind is np.ndarray:
                own = value.weak_type if kind is ARRAY else value.flags.writeable
                if value.shape != shape or value.dtype != dtype or own is not flag:
                    return False
            elif kind is int and (not -(2**31) <= value < 2**31 or shape not in (None, value)):
                return False
        return (self.dims & sizes.new, self.dims & sizes.given) == self.marks


class Runner:
    """What the residual program calls. prepare(state, values, ...) makes a variant, or cuts.

    raw: which outputs may be arrays of NumPy; raw_ins: which inputs may stand for those of JAX;
    fast: the compiled program, where there is one only.
    """

    __slots__ = (
        *("all_raw", "fast", "guarded", "lasts", "options", "prepare", "raw", "raw_ins"),
        *("sizes", "state"),
    )

    def __init__(self, state, prepare: Callable, options, raw: list, raw_ins, guarded, sizes):
        self.sizes: Sizes = sizes
        self.guarded = guarded  # see `safely`
        self.state, self.prepare, self.options = state, prepare, options
        self.raw, self.raw_ins = raw, raw_ins
        self.all_raw = bool(raw) and all(raw)
        self.fast: Callable | None = None
        self.lasts: list[Last] = []

    def __call__(self, *values):
        if is_heard() and self.state.plain is not None:
            return self.plainly(values)
        if self.fast is not None and np.ndarray not in map(type, values):
            try:
                return inlined(self.fast)(*values)
            except OtherSignature:
                self.fast = None
        for last in self.lasts:
            if last.serves(values, self.sizes):
                if last.variant is None:
                    return self.plainly(values)
                if last.new:
                    self.sizes.new |= last.new - self.sizes.fixed
                outs = last.variant.run(*[values[i] for i in last.takes])
                return self.left(last.variant, outs, values, [x for x in values if x is not None])
        return self.choose(*values)

    def choose(self, *values):
        """Run the variant for these arguments."""
        state = self.state
        if state.instead is not None:
            return self.cut(values)
        leaves, key, traced = [], [], False
        for value, may_be_raw in zip(values, self.raw_ins, strict=True):
            kind = type(value)
            if kind is ARRAY:
                key += (value.shape, value.dtype, value.weak_type)
                leaves.append(value)
            elif kind is np.ndarray:
                weak = False if may_be_raw and is_raw(value) else None
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
            elif isinstance(value, compat.Tracer):
                key += signature(value)
                leaves.append(value)
                traced = True
            else:
                found, tree = flatten(value)
                leaves += found
                key += (tree, orders(value))
                for leaf in found:
                    key += signature(leaf, may_be_raw)
                    traced = traced or isinstance(leaf, compat.Tracer)
                    if type(leaf) in NUMBERS:  # kept in a list: Python's own
                        key.append(exactly(leaf))
        but_for_values = tuple(key)
        key += [exactly(values[i]) if type(values[i]) in HASHED else None for i in state.static]
        if is_away(leaves):
            key.append("away")
        key = tuple(key)
        new = given = NONE
        if not traced:  # under a trace of JAX sizes are what they are
            dims = state.dims.get(key)
            if dims is None:
                dims = state.dims[key] = frozenset([d for x in leaves for d in shape_of(x)])
                if len(state.dims) > UNCOMPILED:
                    state.dims.pop(next(iter(state.dims)))
            new, given = dims & self.sizes.new, dims & self.sizes.given
            if new or given:
                key = (key, new, given)
        variant = state.variants.get(key) or state.sized.get(key)
        if variant is None:
            part = state.parts.get(family_of(key))
            if part is None:
                if state.by_value:
                    made = state.made[but_for_values] = state.made.get(but_for_values, 0) + 1
                    if made >= MOST_VALUES:  # programs that hold a value: those that are there stay
                        return self.plainly(values)
                self.note_lists(values)
                variant = self.specialize(values, leaves, key, new, given)
            if variant is None:
                part = part or state.parts.get(family_of(key))
                if part is not None and part.instead is None:
                    self.remember(None, values)
                return self.cut(values, part)
        if variant.dims:
            self.sizes.new |= variant.dims - self.sizes.fixed
        return self.run(variant, values, leaves, key)

    def note_lists(self, values) -> None:
        """After many programs for one list of numbers, the next look leaves its readers to Python.

        A history of losses is another list in each call.
        """
        state = self.state
        for i, value in enumerate(values):
            if type(value) in (list, tuple) and NUMBERS.issuperset(map(type, value)) and value:
                seen = state.lists.setdefault(i, set())
                seen.add(tuple(map(exactly, value)))
                if len(seen) == MOST_VALUES:
                    state.changing.add(state.ins[i])
                    for known in (state.variants, state.sized, state.families):
                        known.clear()

    def run(self, variant, values, leaves, key):
        traced = variant.traced
        args = leaves
        if not variant.all_dynamic:
            args = [leaf for leaf, d in zip(leaves, traced.dynamic, strict=True) if d]
        run = variant.run
        if not CONCRETE.issuperset(map(type, args)) and any(
            isinstance(x, compat.Tracer) for x in args
        ):
            run = variant.jitted
        if run is variant.jitted:
            if self.sizes.whole and not compiling.get():
                self.sizes.whole = False
                self.state.variants[without_marks(key)] = self.state.variants.pop(key)
                raise Whole
            outs = inlined(run)(*args)
            if traced.tested and is_false(outs[-1]):
                return self.plainly(values)
            if traced.form == "tree":
                return assemble(variant, outs, leaves, (), self)
            state = self.state
            single = len(state.variants) == 1 and not state.families
            if single and len(args) == len(values) and all(map(operator.is_, args, values)):
                self.fast = run
            return outs
        try:
            outs = run(*args)
        except Unsupported:  # a bucket that does not trace
            self.state.sized.pop(key, None)
            variant = self.exact(values, leaves, key)
            if variant is None:
                return self.cut(values, self.state.parts.get(family_of(key)))
            return self.run(variant, values, leaves, key)
        self.remember(variant, values)
        return self.left(variant, outs, values, leaves)

    def remember(self, variant, values) -> None:
        """Find this variant by a look at the arguments the next time."""
        if self.state.instead is None and jax.device_count() == 1:
            last = Last.of(variant, values, self.state.static, self.sizes)
            self.lasts = [*self.lasts[1 - LASTS :], last] if last else self.lasts

    def left(self, variant, outs, values, leaves):
        """What the region leaves, of what NumPy gave."""
        traced = variant.traced
        if traced.tested and is_false(outs[-1]):
            return self.plainly(values)
        if self.all_raw and traced.form != "tree":
            return outs
        return self.handed(variant, outs, leaves)

    def plainly(self, values):
        """Python's own way: it raises for an empty selection, needs no program, and is heard."""
        given = [arrive_all(x) for x in values if x is not UNSET]
        out = self.state.plain(*given)
        return out[0] if type(out) is tuple and len(self.state.outs) == 1 else out

    def cut(self, values, state: State | None = None):
        """Run the parts of the region: of all of it, or of its copy for arguments of one kind."""
        state = state or self.state
        self.sizes.whole = False  # a part that is compiled comes after others have run
        if compiling.get():
            raise NeedsPython
        if self.guarded:
            raise Cut(state)
        return self.plainly(values) if state.instead is None else state.instead(*values)

    def safely(self, *values):
        """(exception or None, *outputs): what was done before an exception is not lost."""
        try:
            outs = self(*values)
        except Cut as e:
            state = e.state
        else:
            return (None, *outs) if len(self.state.outs) > 1 else (None, outs)
        if state.safe is None:
            state.safe = state.make_safe()
        return state.safe(*values)

    def specialize(self, values, leaves, key, new, given):
        """A variant for a signature: over symbols where sizes may vary, else for these alone.

        All sizes that may vary are symbols to NumPy; in buckets those that depend on values are.
        """
        state, variant, shapes = self.state, None, tuple(map(shape_of, leaves))
        if (new or given) and self.options.dynamic_sizes != "exact":
            ways = [(new | given, True), (new, True)] if self.options.by_numpy else []
            room = frozenset([d for d in new if d >= PADDED])
            for symbols, by_numpy in [*dict.fromkeys(ways), (room, False)]:
                family = symbols and self.family(values, leaves, key, symbols, by_numpy)
                if state.instead is not None or family_of(key) in state.parts:
                    return None
                if family and family.sized is not None:
                    variant = family.variant(leaves, shapes, padded=bool(room))
                    if variant is not None:
                        break
        if variant is None:
            return state.variants.get(key) or self.exact(values, leaves, key)
        state.variants.pop(key, None)
        state.sized[key] = variant
        if len(state.sized) > SIZES:
            state.sized.popitem(last=False)
        return variant

    def family(self, values, leaves, key, symbols, by_numpy: bool) -> Family | None:
        """All signatures that differ in these sizes only; None where the region is cut."""
        state, axes, names = self.state, {}, {}
        for leaf, shape in enumerate(map(shape_of, leaves)):
            for axis, size in enumerate(shape):
                if size in symbols:
                    axes[leaf, axis] = names.setdefault(size, f"n{len(names)}")
        kind = (by_numpy, *[with_symbols(part, names) for part in key[0]])
        family = state.families.get(kind)
        if family is None:
            if key not in state.variants and self.exact(values, leaves, key) is None:
                return None  # it is cut; else it is known now how it traces
            try:
                family = Family(axes, self.prepare(state, values, leaves, (), axes, by_numpy))
            except Unsupported:
                family = Family(axes, None)
            state.families[kind] = family
        return family

    def exact(self, values, leaves, key):
        state = self.state
        variant = self.prepare(state, values, leaves, family_of(key))
        if variant is not None:
            state.variants[key] = variant
            self.forget(state)
        return variant

    def forget(self, state) -> None:
        """Drop the oldest programs: `max_compiles` that XLA made, many that run through NumPy."""
        known = list(state.variants.items())  # other threads add to it
        made = [k for k, v in known if v.run is v.jitted]
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


def family_of(key: tuple) -> tuple:
    """A key but for its sizes."""
    return without_sizes(without_marks(key))


def without_marks(key: tuple) -> tuple:
    """A key as under a trace of JAX; else it holds a second time the sizes that may vary."""
    return key[0] if key and type(key[-1]) is frozenset else key


def is_false(test) -> bool:
    """Whether a test failed; one that has no value did not."""
    if isinstance(test, compat.Tracer):
        test = compat.concrete(test)
    return test is not None and not test


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
    out = reordered(jax.tree.unflatten(traced.tree, found), traced.order)
    return out[0] if traced.single else out
