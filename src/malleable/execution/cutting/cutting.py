"""One function under `jit`: its partition, traced and cut while it runs."""

import ast
import functools
import inspect
import threading
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from malleable.execution.common import anf, code_objects
from malleable.execution.common.breaks import Unsupported
from malleable.execution.common.leaves import flatten
from malleable.execution.common.listeners import is_heard
from malleable.execution.common.options import Options
from malleable.execution.common.sizes import trace_symbolic
from malleable.execution.cutting import announce, calls, functions, partition, writing
from malleable.execution.cutting.closures import python_only
from malleable.execution.cutting.partition import Region, Tree
from malleable.execution.host.host import is_raw
from malleable.execution.purity import callees, facts, scan
from malleable.execution.purity.digits import may_fail
from malleable.execution.purity.facts import ARRAY, NUMBER, NUMPY, Scope, Stays
from malleable.execution.regions import tracing
from malleable.execution.regions.families import over_sizes
from malleable.execution.regions.regions import Runner, State, Variant
from malleable.execution.regions.signatures import compiling, is_away, shapes_of
from malleable.execution.regions.tracing import UNSET, Failed
from malleable.frontend.syntax.rewrite import NoSource, mangle
from malleable.notes import note
from malleable.programs.cost import equations
from malleable.programs.equations import mentions
from malleable.programs.primitives import kind
from malleable.python_source import nodes, scopes, source
from malleable.rewriting.passes.passes import pipeline

LEAVES = 8  # in a key take as long as one equation without a program; benchmarks.cliffs
MOST_SHAPES = 8  # programs for sizes of arguments, before one for all sizes is made
FEW = 4  # equations that take Python no longer than it takes to find the program of a value
_CONVERSIONS = kind("cast", "same")
_OPERANDS = "unsupported operand", "not supported between", "non-tuple sequence", "not accept dtype"
_KNOWN_LATE = (tracing.Written, tracing.Shared)


@dataclass(frozen=True)
class Found:
    """The first statement of a region that Python has to run, by its number, and why."""

    cut: int
    stays: Stays
    raises: bool = False  # whether it raises in Python too


def fails_in_python(error: Exception) -> bool:
    """Whether a statement that was traced as it stands failed as it would in Python.

    Lifted, it may not fail: what is indexed by a traced number has no IndexError.
    """
    if isinstance(error, IndexError | KeyError | ZeroDivisionError):
        return not isinstance(error, calls.NEEDS_VALUE)
    return type(error) is TypeError and any(text in str(error) for text in _OPERANDS)


class Partition:
    """One function, cut into regions, and its residual program."""

    def __init__(self, fun: types.FunctionType, options: Options, engine, is_root: bool):
        self.is_root = is_root
        self.fun, self.options, self.engine = fun, options, engine
        self.lock = threading.RLock()
        found = source.find(fun.__code__, fun.__globals__)
        node = functions.as_def(found.node)
        if found.owner:
            mangle(node, found.owner)
        if "__class__" in fun.__code__.co_freevars:
            node = functions.WithoutSuper(node).visit(node)
        uses = scopes.uses(*node.body)
        self.filename, self.name = fun.__code__.co_filename, fun.__code__.co_name
        taken = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
        self.users = taken | scopes.arguments(node)
        self.taken = set(self.users)
        self.params, self.rebound = scopes.arguments(node), uses.binds
        self.locals = self.rebound | self.params
        self.lookup = facts.outside(fun)
        if why := python_only(node, uses, self.lookup, {*fun.__code__.co_freevars} - self.users):
            raise NoSource(f"{fun.__qualname__} {why}")
        names = anf.Names(self.taken, self.is_fixed, self.is_harmless, functions.definitions(node))
        body = nodes.copied(node.body)
        self.tree = Tree(node, partition.enclosed(body, True, names), names, taken=self.taken)
        self.tree.defs = names.defs
        self.tree.leave = "leave" if is_root else "keep"
        self.last: tuple = (None, -1, None)
        if is_root:
            self.engine.reads.function(fun)
        self.is_stale = self.engine.reads.are_others
        self.asked = functions.asked_static(fun, options)
        self.pass_ = pipeline(*options.passes) if options.passes else lambda program: program
        self.code, self.version = None, -1
        self.runs: dict = {}
        self.direct: Any = None  # all of it under `jax.jit`, where it is one program
        self.shapes: set | None = set()  # for which that is compiled; None: each has to be
        self.generic = False  # whether other shapes run in one program for all
        self.order: Any = None  # of the keys of the dicts that all of it gives; JAX sorts them
        self.refused: set = set()  # kinds of arguments for which it is not

    # ------------------------------------------------------------ the residual program

    def residual(self, fun) -> Callable:
        """The residual program as a function with the closure of `fun`."""
        same, version, made = self.last
        if (
            same is fun
            and version == self.tree.version
            and (
                made.__defaults__ is fun.__defaults__ and made.__kwdefaults__ is fun.__kwdefaults__
            )
        ):
            return made
        with self.lock:
            if self.version != self.tree.version:
                self.write()
            cells = code_objects.cells_of(fun)
            assert self.code is not None
            made = code_objects.function(
                self.code, fun.__globals__, cells | self.hooks(self.runs),
                fun.__defaults__, fun.__kwdefaults__,
            )  # fmt: skip
            self.last = fun, self.version, made
            return made

    def hooks(self, runs) -> dict:
        held = {name: types.CellType(runner) for name, runner in runs.items()}
        return held | {writing.HOST: types.CellType(self.engine.host)}

    def write(self) -> None:
        self.residual_tree, runs = self.written()
        self.runs = self.equip(runs)
        free = (*self.fun.__code__.co_freevars, writing.HOST, *self.runs)
        self.code = code_objects.compiled(
            self.residual_tree, self.filename, free, self.name, self.fun.__qualname__
        )
        self.version = self.tree.version

    def written(self, residual=writing.Residual) -> tuple:
        """The residual program as a tree, and the regions it calls, by name."""
        unset = writing.settle(self.tree, self.is_input, params=self.params)
        args = functions.bare_arguments(self.tree.node)
        return writing.write(self.tree, "residual", args, None, unset, residual)

    def equip(self, runs) -> dict:
        """A runner for each region; what is known of a region stays."""
        made = {}
        for name, region in runs.items():
            key = (*region.ins, "->", *region.outs)
            state = region.states.get(key)
            if state is None:
                state = State(list(region.ins), list(region.outs), set(region.unsure))
                region.states[key] = state
            prepare = functools.partial(self.prepare, region)
            raw = list(region.raw_outs)
            raw_ins = [n in region.raw_ins for n in region.ins]
            made[name] = Runner(
                state, prepare, self.options, raw, raw_ins, region.guarded, self.engine.sizes
            )
            made[name].all_raw |= region.tail and not self.is_root
        return made

    def block(self, region: Region, state: State, stmts: list, safe: bool = False) -> Callable:
        """What a region is cut into, as a function that stands in for it during this run.

        safe: it gives back an exception, and what was done before.
        """
        inner = Tree(self.tree.node, stmts, self.tree.names, taken=self.taken, defs=self.tree.defs)
        inner.breaks, inner.leave = self.tree.breaks, self.tree.leave
        tail = region.tail
        after = {*state.outs, *functions.captured(self.tree.defs, self.tree.defs)}
        have = set(state.ins) - region.absent
        unset = writing.settle(inner, self.is_input, after, have, safe)
        others = iter(self.tree.names)
        mine = self.locals | (self.taken - self.users)  # what else there is, is read when needed
        taken = tuple(n if n in mine else next(others) for n in state.ins)
        node, runs = writing.write(
            inner, "block", nodes.parameters(taken), None if tail else state.outs, unset,
            given=frozenset(region.raw_ins), safe=safe,
            absent=sorted(region.absent & set(state.ins)),
        )  # fmt: skip
        called = functions.names_read(node.body)
        node.body[:0] = functions.needed(called, self.tree.defs).values()
        runs = self.equip(runs)
        fun = self.fun
        cells = code_objects.cells_of(fun)
        free = (*cells, writing.HOST, *runs)
        code = code_objects.compiled(node, self.filename, free, self.name, self.fun.__qualname__)
        return code_objects.function(code, fun.__globals__, cells | self.hooks(runs))

    def is_one_region(self) -> bool:
        """Whether the residual program is `return _r1(...)`, so far."""
        return len(self.tree.body) == 1 and isinstance(self.tree.body[0], Region)

    def whole(self) -> list[str] | None:
        """If all of the function is one program of its arguments: which of these are static."""
        if not self.is_one_region():
            return None
        (state,) = list(self.tree.body[0].states.values()) or [None]
        if state is None or state.instead is not None or not set(state.ins) <= self.params:
            return None
        variants = list(state.variants.values())
        if any(v.traced.form == "tree" and v.traced.outs != v.all_outs for v in variants):
            return None
        orders = [v.traced.order for v in variants]
        if any(any(v.traced.numbers) for v in variants) or orders.count(orders[0]) < len(orders):
            return None
        self.order = orders[0]
        static = {state.ins[i] for i in state.static}
        for variant in variants:
            at = 0
            for name, count in zip(state.ins, variant.counts, strict=True):
                if not all(variant.traced.dynamic[at : at + count]):
                    static.add(name)
                at += count
        return sorted(static)

    def is_by_value(self) -> bool:
        """Whether a region has programs for values, of which there may be too many."""
        return any(state.by_value for state in self.states())

    def is_python(self, made: Callable, args, kwargs) -> bool:
        """Whether what is left of the function is the function itself: nothing is compiled."""
        if self.runs:
            return False
        given = inspect.signature(made).bind(*args, **kwargs).arguments
        arrays = {n for n, x in given.items() if isinstance(x, jax.Array | np.ndarray)}
        for call in (n for n in ast.walk(self.residual_tree) if isinstance(n, ast.Call)):
            match call:
                case ast.Call(func=ast.Attribute(ast.Name(id=writing.HOST), hook), args=[over]):
                    plain = (
                        isinstance(over, ast.Name) and over.id in given and over.id not in arrays
                    )
                    if hook not in ("leave", "keep") and not (plain and "iterate" in hook):
                        return False
                case ast.Call(func=ast.Attribute(ast.Name(id=writing.HOST))):
                    return False
        return True

    def compile_for(self, shapes: tuple) -> None:
        """Note that all of the function is compiled for these; NeedsPython if no more should be."""
        if self.shapes is None or shapes in self.shapes:
            return
        if len(self.shapes) < MOST_SHAPES or self.options.dynamic_sizes == "exact":
            self.shapes.add(shapes)
            return
        if not self.generic:
            note(
                "its sizes keep changing: new ones run in one program for all sizes",
                f"{self.filename}:{self.fun.__code__.co_firstlineno} in {self.name}",
                f"{MOST_SHAPES} programs were compiled for other sizes",
            )
            for state in self.states():
                state.families.clear()  # NumPy was not asked
        self.generic = True
        raise calls.NeedsPython

    def is_new_size(self, args, kwargs) -> bool:
        """Whether a program for all sizes is to run this."""
        held = self.shapes
        return held is not None and shapes_of(args, kwargs) not in held

    def is_sized(self) -> bool:
        """Whether a program for all sizes was found."""
        return any(state.sized for state in self.states())

    def states(self) -> list[State]:
        """What is known of the regions."""
        return [s for r in partition.regions(self.tree.body) for s in r.states.values()]

    def only_compiled(self, made, args, kwargs):
        """The residual program, refusing to run Python's part of it.

        Dicts have their keys in the order that they have in these arguments: JAX sorts them.
        """
        places, names = tracing.skeleton(args), tracing.skeleton(kwargs)

        @functools.wraps(made)
        def program(*args, **kwargs):
            self.compile_for(shapes_of(args, kwargs))
            if places or names:
                args = tuple(tracing.reordered(list(args), places))
                kwargs = tracing.reordered(kwargs, names)
            token = compiling.set(True)
            try:
                return made(*args, **kwargs)
            finally:
                compiling.reset(token)

        return program

    def title(self, region) -> str:
        """The name of a region for profiles: the function's, where it is all of it."""
        return self.name if self.tree.body == [region] else f"{self.name}_r{region.number}"

    def has_while(self) -> bool:
        """Whether a region may hold a loop of which nobody knows how often it runs."""
        if self.options.control_flow == "host":
            return False
        regions = list(partition.regions(self.tree.body))
        if not regions:
            return False
        states = [s for r in regions for s in r.states.values()]
        programs = [v.program for state in states for v in state.variants.values()]
        return not programs or any(mentions(program, ("while",)) for program in programs)

    def region_texts(self) -> dict[str, str]:
        """The statements of each region, by its name in the residual program."""
        numbered = [(writing.region_name(r.number), r) for r in partition.regions(self.tree.body)]
        return {
            name: "\n".join(ast.unparse(ast.fix_missing_locations(s)) for s in region.body)
            for name, region in numbered
        }

    def edited(self, fun, text: str) -> Callable:
        """A residual program that the user wrote, with the regions as they are now."""
        self.residual(fun)
        node = functions.edited_tree(text, self.residual_tree.args)
        free = (*fun.__code__.co_freevars, writing.HOST, *self.runs)
        code = code_objects.compiled(node, f"<edited {self.name}>", free, node.name)
        cells = code_objects.cells_of(fun)
        cells |= self.hooks(self.runs)
        return code_objects.function(
            code, fun.__globals__, cells, fun.__defaults__, fun.__kwdefaults__
        )

    def is_fixed(self, path: str) -> bool:
        """Whether a path leads through modules and classes, to what nobody writes to."""
        name, *attributes = path.split(".")
        if not name or name in self.locals or name in self.taken - self.users:
            return False
        try:
            value = self.lookup(name)
        except Stays:
            return False
        if not (isinstance(value, types.ModuleType | type) or callable(value)):
            return False
        for attribute in attributes:
            if facts.may_be_rebound(value, attribute):
                return False
            value = getattr(value, attribute, None)
        return True

    def is_harmless(self, path: str) -> bool:
        """Whether a path leads to a function of Python's, NumPy's or JAX's that only computes."""
        if not self.is_fixed(path):
            return False
        name, *attributes = path.split(".")
        value = functools.reduce(lambda x, a: getattr(x, a, None), attributes, self.lookup(name))
        return callees.is_pure(value) or callees.is_jax(value) or isinstance(value, np.ufunc)

    def is_input(self, name: str) -> bool:
        """Whether what a name of outside holds goes into a region as an argument."""
        if name in self.locals or name in self.taken - self.users:
            return True
        try:
            value = self.lookup(name)
        except Stays:
            return False
        if isinstance(value, types.ModuleType | type):
            return False
        kind = facts.kind_of(value)
        return kind in (ARRAY, NUMPY) or (kind == NUMBER and not isinstance(value, tuple))

    # ------------------------------------------------------------ a region that runs first

    def prepare(self, region, state: State, values, leaves, kind=(), axes=None, by_numpy=False):
        """A variant for these arguments; None where the region was cut, and `state.instead` is set.

        Where the region is one program for other arguments it stays so for them: `state.parts` has
        what stands in for it for arguments of this kind. axes: which sizes are symbols, through
        NumPy or in buckets. Raises Unsupported where that cannot be.
        """
        with self.lock:
            if axes is not None:
                return self.sized(region, state, values, leaves, axes, by_numpy)
            while state.instead is None:
                found = self.decide(region, state, values, leaves)
                if isinstance(found, Variant):
                    return found
                if isinstance(found, Found) and found.raises and state.plain and not region.guarded:
                    state.parts[kind] = State(state.ins, state.outs, state.unsure)  # to raise
                    self.engine.doubts.append(functools.partial(state.parts.pop, kind, None))
                    return None
                if state.variants or state.sized:
                    return self.apart(region, state, values, leaves, kind)
                self.act(region, state, found, dict(zip(state.ins, values, strict=True)))
            return None

    def apart(self, region, state, values, leaves, kind) -> Any:
        """Cut a copy of the region, for arguments of this kind alone."""
        copied = Region(nodes.copied(region.body), region.tail)
        for name in ("ins", "outs", "raw_outs", "raw_ins", "unsure", "absent", "guarded", "number"):
            setattr(copied, name, getattr(region, name))
        other = State(state.ins, state.outs, state.unsure)
        found = self.prepare(copied, other, values, leaves)
        if other.instead is not None:
            state.parts[kind] = other
            self.engine.doubts.append(lambda: state.parts.pop(kind, None))
        return found

    def decide(self, region: Region, state: State, values, leaves) -> "Variant | list | Found":
        """A variant, the statements that stand in for the region, or where to cut it."""
        if is_heard():
            return list(region.body)
        scanned = self.look(region, state, values)
        if scanned.cut is not None:
            assert scanned.stays is not None
            return Found(scanned.cut, scanned.stays)
        late = [i for i, s in enumerate(region.body) if state.changing & self.reads_of(s)]
        if late:
            return Found(late[0], Stays("number", "it reads a list of numbers that keeps changing"))
        how = self.reads_of, self.tree.names, region.guarded
        moved = partition.hoistable(region.body, scanned.plain, *how)
        if moved:  # Python's own arithmetic goes before the region
            kept = [i for i in range(len(region.body)) if i not in moved]
            rest, before = [region.body[i] for i in kept], [region.body[i] for i in moved]
            for at, i in enumerate(moved):
                others = [region.body[k] for k in kept if k < i]
                if others and partition.may_raise(before[at]):
                    before[at] = partition.overtaking(before[at], nodes.copied(others))
            return [*before, Region(rest, region.tail)] if rest else before
        stuck = [i for i in scanned.plain if any(map(may_fail, ast.walk(region.body[i])))]
        if stuck and len(region.body) > 1:
            return Found(stuck[0], Stays("number", "Python computes this, and may fail"))
        found = self.trace(region, state, values, scanned, leaves)
        if not isinstance(found, tracing.Traced):
            stays = calls.reason(found.error)
            if found.cut < 0:
                return Found(len(region.body) - 1, Stays("pinned", stays.why))
            return Found(found.cut, stays, fails_in_python(found.error))
        if not found.program.jaxpr.eqns and not partition.has_ways(region.body):
            return list(region.body)
        if not self.pays(state, found):
            return list(region.body)
        held = [x for x, d in zip(leaves, found.dynamic, strict=True) if not d]
        program = self.pass_(found.program)
        counts = [len(flatten(v)[0]) for v in values]
        announce.many(self, region, state, counts, values, leaves)
        on_host = self.may_be_numpy(region, leaves)
        return Variant(found, program, on_host, held, counts, self.title(region))

    def pays(self, state: State, found) -> bool:
        """Whether a program is worth the look at its arguments that finds it, at each call."""
        count = equations(found.program)
        made = {eqn.primitive.name for eqn in found.program.jaxpr.eqns}
        if found.numbers and all(found.numbers) and made <= _CONVERSIONS:
            return False  # `float(x)`
        fixed = found.dynamic.count(False)  # parts of the key: each item of a list of text
        return fixed <= LEAVES * count and not (state.by_value and count <= FEW)

    def act(self, region: Region, state: State, found: "list | Found", given: dict) -> None:
        """Cut the region as was decided. given: the values that came in."""
        if isinstance(found, list):
            return self.put(region, state, found)
        cut, stays = found.cut, found.stays
        line = region.body[cut].lineno
        where = f"{self.filename}:{line} in {self.name}"
        reads = stays.kind == "object" and functions.only_reads(region.body[cut], given)
        early = partition.hoisted_read(region, cut, self.tree.names) if reads else None
        if early is not None:  # `_t = self.w` in the midst of what only computes
            return self.put(region, state, early)
        new = partition.split_region(self.tree, region, cut, stays, where)
        if new is None:
            return state.bodies.clear()
        announce.met(self, stays, line)
        stood = self.tree.version
        self.put(region, state, new)
        if stays.kind == "error":
            forget = state.join if self.tree.version == stood else self.forget
            self.engine.doubts.append(forget)

    def may_be_numpy(self, region: Region, leaves) -> bool:
        """Whether NumPy may run a region: not where it is all of the function, as `jax.jit`."""
        whole = self.is_root and self.tree.body == [region] and not self.generic
        return self.options.on_host and not whole and not is_away(leaves)

    def reads_of(self, stmt) -> set:
        """The names a statement reads, those of the functions defined here that it calls too."""
        names = functions.names_read([stmt])
        return names | functions.captured(names, self.tree.defs)

    def sized(self, region, state, values, leaves, axes, by_numpy: bool):
        """The region over symbolic sizes."""
        made: Any = None

        def stage(flat, *arguments):
            nonlocal made
            avals = [jax.typeof(x) for x in arguments]
            made = trace_symbolic(flat, avals, functions.leaves_of(dynamic, axes))
            return made.jaxpr

        if state.how is None:
            raise Unsupported("it was not traced")
        if by_numpy and not self.may_be_numpy(region, leaves):
            raise Unsupported("it is compiled")
        body, kinds, lifted, dynamic = state.how
        absent = any(v is UNSET for v in values)
        if absent:
            raise Unsupported("a variable without a value")
        found = tracing.attempt(body, values, state.static.__contains__, kinds, lifted, stage)
        if isinstance(found, Failed):
            raise Unsupported(calls.reason(found.error).why)
        return over_sizes(found, made, by_numpy)

    def forget(self) -> None:
        """Cut the function anew when it is called next."""
        for key in [k for k, v in list(self.engine.known.items()) if v is self]:
            self.engine.known.pop(key, None)

    def put(self, region, state, new) -> None:
        if partition.replace(self.tree.body, region, new):
            self.tree.version += 1
        state.instead = self.block(region, state, new)
        state.dims.clear()  # whose keys hold what came in
        state.make_safe = functools.partial(self.block, region, state, new, True)

    def look(self, region: Region, state: State, values) -> scan.Scanned:
        kinds: dict = {}
        for name, value in zip(state.ins, values, strict=True):
            if value is UNSET:
                continue
            kind = facts.kind_of(value)
            if kind == NUMPY and name in region.raw_ins and is_raw(value):
                kind = ARRAY
            kinds[name] = kind
        kinds |= functions.needed(functions.names_read(region.body), self.tree.defs)
        reads, defs = self.engine.reads, dict(self.tree.defs)

        def lookup(name):
            if callable(value := self.lookup(name)):
                reads.variable(self.fun, name, value)
            return value

        known = dict(zip(state.ins, values, strict=True))
        inside = {n: flatten(v)[0] for n, v in known.items() if type(v) is not np.ndarray}
        holds = {n for n, parts in inside.items() if np.ndarray in map(type, parts)}
        mutable = holds | {n for n, v in known.items() if isinstance(v, list | dict | set)}
        scope = Scope(kinds, lookup, scan.statement, defs, region.tail, reads=reads)
        scope.values, scope.mutable = known, mutable
        scope.numpy_inside = bool(holds)
        scope.numpy_given = scope.numpy_inside or np.ndarray in map(type, known.values())
        scope.lenient = self.options.control_flow == "lift"
        return scan.scan_statements(region.body, scope, region.guarded)

    def trace(self, region, state, values, scanned, leaves):
        """Trace as it stands; else with branches and loops lifted; the one that comes farther."""
        scope = scanned.scope
        absent = frozenset(n for n, v in zip(state.ins, values, strict=True) if v is UNSET)
        kinds: Any = tuple(scope.given)
        if not region.tail:
            kinds = [k if isinstance(k, str) else "" for k in map(scope.kinds.get, state.outs)]
        args = [i for i, n in enumerate(state.ins) if n in self.params - self.rebound]  # fmt: skip
        lift = self.options.control_flow != "host" and not scope.plainly
        ways = ["masks", "loops"] if not scope.unrolled else ["masks unrolled", "unrolled"]
        tries = ["", *ways] if lift else [""]
        if lift and not scope.unrolled and any(isinstance(s, ast.For) for s in region.body):
            tries = [*ways, ""]
        best: Any = None
        for lifted in tries:
            for static in self.statics(state, values, args, scope.typed):
                body = self.body(region, state, absent, watched=not lifted)
                found = tracing.attempt(body, values, static.__contains__, kinds, lifted)
                if isinstance(found, Failed) and isinstance(found.error, UnboundLocalError):
                    body = self.body(region, state, absent, absent & state.unsure, not lifted)
                    found = tracing.attempt(body, values, static.__contains__, kinds, lifted)
                if isinstance(found, Failed) and not lifted and fails_in_python(found.error):
                    return found
                if isinstance(found, Failed) and isinstance(found.error, _KNOWN_LATE):
                    how = values, static.__contains__, [], lifted
                    return self.located(region, state, absent, found.error, how)
                if not isinstance(found, Failed):
                    state.by_value = bool(static) and scope.typed
                    numbers = {i for i, v in enumerate(values) if tracing.is_number(v)}
                    if not numbers <= static and tracing.from_numbers_only(found, leaves):
                        state.by_value = True
                        static = numbers
                        found = tracing.attempt(body, values, static.__contains__, kinds, lifted)
                        if isinstance(found, Failed):
                            return found
                    if scope.lenient or not found.narrows:
                        state.static = static
                        state.how = body, kinds, lifted, found.dynamic
                        state.plain = self.body(region, state, absent).fun
                        return found
                    found = Failed(-1, Stays("number", "a Python number comes out as an array"))
                if "masks" not in lifted and (best is None or found.cut > best.cut):
                    best = found
        return best

    def body(self, region, state, absent, missing=frozenset(), watched=False):
        """The region as a function without the inputs that have no value."""
        found = state.bodies.get((absent, missing, watched))
        if found is None:
            called = functions.names_read(region.body)
            prelude = list(functions.needed(called, self.tree.defs).values())
            ins = [n for n in state.ins if n not in absent]
            outs = [None if n in missing else n for n in state.outs]
            found = state.bodies[absent, missing, watched] = tracing.make_body(
                region.body, prelude, ins, outs, region.tail, self.name, self.fun, watched, absent,
                region.guarded, copies=region.tail and self.is_root,
            )  # fmt: skip
        return found

    def located(self, region, state, absent, error, how) -> Failed:
        """The statement that did what only the end of a trace showed: see `tracing.Written`."""
        if isinstance(error, tracing.Shared):
            names = set() if region.tail else {state.outs[i] for i in error.outs}
            made = [i for i, s in enumerate(region.body) if names & scopes.uses(s).binds]
            return Failed(made[-1] if made else len(region.body) - 1, error)
        first, last = 0, len(region.body) - 1
        while first < last:
            middle = (first + last) // 2
            start = Region(region.body[: middle + 1])
            start.guarded, known = region.guarded, State(state.ins, [], state.unsure)
            found = tracing.attempt(self.body(start, known, absent), *how)
            if isinstance(found, Failed) and isinstance(found.error, tracing.Written):
                last = middle
            else:
                first = middle + 1
        return Failed(first, error)

    def statics(self, state, values, args, typed: bool):
        """Which numbers to take as part of the key: none, then all arguments, then those needed."""
        if typed and (all_ := {i for i, x in enumerate(values) if tracing.is_number(x)}):
            return (yield all_)
        if self.asked is not None:
            for name, value in zip(state.ins, values, strict=True):
                if name in self.asked:
                    functions.hashable(name, value, f"{self.filename} in {self.name}")
            yield {i for i, n in enumerate(state.ins) if n in self.asked}
            return
        ints = [i for i in args if isinstance(values[i], int) and self.is_root]
        yield set(state.static)
        if ints and not state.static:
            yield set(ints)
