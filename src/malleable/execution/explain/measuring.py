"""A residual program that measures itself: what each region and each host statement did.

The program is that of `cutting`, with calls of a meter around its host statements.
"""

import ast
import contextlib
import functools
import sys
import time
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from malleable import compat
from malleable.execution.common import code_objects
from malleable.execution.common.leaves import flatten
from malleable.execution.cutting import calls, writing
from malleable.execution.cutting.partition import Region
from malleable.execution.host.host import is_raw
from malleable.execution.regions.regions import Runner
from malleable.programs import cost
from malleable.python_source import nodes, scopes

_WHOLE = (ast.Lambda, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.Await, ast.Yield)
_COMPILES = ("backend_compile_duration", "jaxpr_to_mlir_module_duration")
KEPT = 1 << 20  # bytes of an array of the user's that is copied to try suggestions on


@dataclass
class Host:
    """What one host statement did. elements: numbers that it made or took, whichever is more."""

    part: Any
    stmt: ast.stmt
    calls: int = 0
    seconds: float = 0.0
    bytes: int = 0
    elements: int = 0
    avals: dict = field(default_factory=dict)
    ways: set = field(default_factory=set)
    values: dict | None = None  # the variables at its first run
    began: float = 0.0
    taken: int = 0


@dataclass
class Ran:
    """What one region did."""

    part: Any
    region: Region
    calls: int = 0
    seconds: float = 0.0
    flop: int = 0
    equations: int = 0
    compile: float = 0.0
    numpy: int = 0  # operations that ran through NumPy
    compiled: int = 0
    programs: int = 0
    weights: dict = field(default_factory=dict)  # by id of a variant, which is held with it


class Meter:
    """Everything that is measured during one run of a program."""

    def __init__(self):
        self.regions: dict[int, Ran] = {}
        self.hosts: dict[int, Host] = {}
        self.programs: dict[int, tuple] = {}
        self.parts: list = []
        self.running: list = []
        self.compile = 0.0

    def hears(self, event: str, duration_secs: float, **kwargs) -> None:
        """JAX compiled something."""
        if event.endswith(_COMPILES):
            self.compile += duration_secs
            if self.running and isinstance(self.running[-1], Ran):
                self.running[-1].compile += duration_secs

    @contextlib.contextmanager
    def hearing(self):
        jax.monitoring.register_event_duration_secs_listener(self.hears)
        try:
            yield
        finally:
            jax.monitoring.unregister_event_duration_listener(self.hears)

    def program(self, part, fun) -> Callable:
        """The residual program of a function, with the calls of this meter in it."""
        with part.lock:
            held = self.programs.get(id(part))
            if held is None or held[0] != part.tree.version:
                if part not in self.parts:
                    self.parts.append(part)
                how = functools.partial(_Measured, part, self)
                tree, regions = part.written(how)
                runs = {
                    name: Watched(runner, self, Ran(part, regions[name]))
                    for name, runner in part.equip(regions).items()
                }
                free = (*part.fun.__code__.co_freevars, writing.HOST, *runs)
                code = code_objects.compiled(tree, part.filename, free, part.name)
                held = self.programs[id(part)] = part.tree.version, code, runs
        _, code, runs = held
        engine = _Engine(part.engine, self)
        cells: dict[str, Any] = code_objects.cells_of(fun)
        cells |= {name: types.CellType(runner) for name, runner in runs.items()}
        cells[writing.HOST] = types.CellType(_Hooks(engine, self))
        return code_objects.function(
            code, fun.__globals__, cells, fun.__defaults__, fun.__kwdefaults__
        )  # fmt: skip

    @property
    def settled(self) -> bool:
        """Whether nothing was cut while it ran."""
        return all(self.programs[id(p)][0] == p.tree.version for p in self.parts)


class _Engine:
    """As the engine of a jit: callees are measured too."""

    def __init__(self, engine, meter: Meter):
        self.engine, self.meter, self.options = engine, meter, engine.options
        self.sizes = engine.sizes

    def selective(self, f):
        return calls.cut(f, self.residual)

    def residual(self, f) -> Callable | None:
        part = self.engine.partition(f)
        return part and self.meter.program(part, f)


class _Hooks(calls.Host):
    """The hooks of a residual program, and those of the meter."""

    def __init__(self, engine, meter: Meter):
        super().__init__(engine)
        self.meter = meter

    def begin(self, number, *values):
        seen = self.meter.hosts[number]
        seen.calls += 1
        if seen.values is None:
            seen.values = {k: _snapshot(v) for k, v in sys._getframe(1).f_locals.items()}
        seen.taken = _take(seen, values, True)
        self.meter.running.append(seen)
        seen.began = time.perf_counter()

    def end(self, number, *values):
        now = time.perf_counter()
        seen = self.meter.hosts[number]
        seen.seconds += now - seen.began
        seen.elements += max(seen.taken, _take(seen, values, False))
        while self.meter.running and self.meter.running.pop() is not seen:
            pass  # what an exception left

    def meet(self, number, *values):
        self.begin(number, *values)
        self.meter.running.pop()
        if seen_arrays := self.meter.hosts[number].taken:
            self.meter.hosts[number].elements += seen_arrays

    def test(self, number, value):
        seen = self.meter.hosts[number]
        seen.calls += 1
        if seen.values is None:
            seen.values = {k: _snapshot(v) for k, v in sys._getframe(1).f_locals.items()}
        seen.elements += _take(seen, (value,), True)
        start = time.perf_counter()
        try:
            return bool(value)
        finally:
            seen.seconds += time.perf_counter() - start

    def _noted(self, out):
        if self.meter.running and isinstance(seen := self.meter.running[-1], Host):
            leaves, _ = flatten(out)
            if any(map(is_raw, leaves)):
                seen.ways.add("NumPy")
            elif any(isinstance(x, jax.Array) for x in leaves):
                seen.ways.add("JAX, eagerly")
        return out

    def getitem(self, x, index):
        return self._noted(super().getitem(x, index))

    def method(self, x, name, *args, **kwargs):
        return self._noted(super().method(x, name, *args, **kwargs))

    def call(self, f, *args, **kwargs):
        return self._noted(super().call(f, *args, **kwargs))


def _snapshot(x):
    """A variable's value, which the user may write to afterwards."""
    mine = type(x) is np.ndarray and x.flags.writeable and x.nbytes <= KEPT
    return x.copy() if mine else x


def _take(seen: Host, values, ask: bool) -> int:
    """Note the arrays among some values; how many numbers there are in the largest."""
    most = 0
    for x in flatten(values)[0]:
        if isinstance(x, jax.Array | np.ndarray):
            seen.bytes += 0 if isinstance(x, compat.Tracer) else int(x.nbytes)
            most = max(most, x.size, 1)
            if ask:
                seen.avals[str(x.dtype), x.shape] = None
    return most


class Watched(Runner):
    """A region that tells how it runs."""

    __slots__ = ("meter", "ran")

    def __init__(self, runner: Runner, meter: Meter, ran: Ran):
        for name in Runner.__slots__:
            setattr(self, name, getattr(runner, name))
        self.meter, self.ran = meter, ran
        meter.regions[id(ran.region)] = ran

    def __call__(self, *values):
        self.fast = None
        self.meter.running.append(self.ran)
        start = time.perf_counter()
        try:
            out = super().__call__(*values)
            jax.block_until_ready([x for x in flatten(out)[0] if isinstance(x, jax.Array)])
        finally:
            while self.meter.running and self.meter.running.pop() is not self.ran:
                pass
        self.ran.calls += 1
        self.ran.seconds += time.perf_counter() - start
        return out

    def run(self, variant, values, leaves, key):
        ran, by_numpy = self.ran, is_by_numpy(variant)
        before = ran.programs
        out = super().run(variant, values, leaves, key)
        if ran.programs != before:  # another one ran in its place
            return out
        ran.programs += 1
        ran.equations, flop = self.weight(variant, leaves)
        ran.flop += flop
        if by_numpy:
            ran.numpy += ran.equations
        else:
            ran.compiled += ran.equations
        return out

    def weight(self, variant, leaves) -> tuple[int, int]:
        """(equations, operations) of a program."""
        symbolic = getattr(variant, "symbolic", None)
        if symbolic is None:
            weights = self.ran.weights
            if id(variant) not in weights:
                found = cost.equations(variant.program), cost.flop(variant.program)
                weights[id(variant)] = *found, variant
            return weights[id(variant)][:2]
        args = [x for x, d in zip(leaves, variant.traced.dynamic, strict=True) if d]
        values = symbolic.flat_sizes(symbolic.sizes(args))
        known = dict(zip(symbolic.texts, values, strict=True))
        size = lambda d: d if isinstance(d, int) else known.get(str(d), 1)  # noqa: E731
        return cost.equations(symbolic.jaxpr), cost.flop(symbolic.jaxpr, size)


def is_by_numpy(variant) -> bool:
    """Whether a program is run through NumPy."""
    if getattr(variant, "symbolic", None) is not None:
        return variant.by_numpy is not None
    return variant.run is not variant.jitted


class _Measured(writing.Residual):
    """The residual program with the meter's calls around its host statements."""

    def __init__(self, part, meter: Meter, tree, runs):
        super().__init__(tree, runs)
        self.part, self.meter = part, meter

    def statement(self, stmt):
        new: list[Any] = super().statement(stmt)
        if isinstance(stmt, Region | ast.FunctionDef | ast.Pass):
            return new
        number = id(stmt)
        self.meter.hosts.setdefault(number, Host(self.part, stmt))
        if isinstance(stmt, ast.If | ast.While):
            new[0].test = nodes.placed(self.tested(number, new[0].test), stmt)
            return new
        reads = self.names(nodes.heads(stmt))
        before = self.told("begin", number, reads, stmt)
        if isinstance(stmt, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Expr):
            made = sorted(scopes.uses(stmt).surely)
            return [before, *new, self.told("end", number, made, stmt)]
        return [self.told("meet", number, reads, stmt), *new]

    def tested(self, number, test):
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return ast.UnaryOp(op=test.op, operand=self.tested(number, test.operand))
        return writing.host("test", ast.Constant(value=number), test)

    def told(self, hook, number, names, stmt):
        args = [ast.Constant(value=number), *map(nodes.load, names)]
        return nodes.placed(ast.Expr(value=writing.host(hook, *args)), stmt)

    def names(self, heads) -> list[str]:
        """The variables that a statement surely reads."""
        if any(isinstance(n, _WHOLE) for head in heads for n in ast.walk(head)):
            return []
        part = self.part
        return sorted(scopes.uses(*heads).reads & (part.locals | (part.taken - part.users)))
