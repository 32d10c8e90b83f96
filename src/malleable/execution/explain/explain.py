"""What `jit` makes of a function, in words: `explain(f)(*args)`."""

import ast
import dataclasses
import functools
import inspect
import linecache
import sys
import time
import types
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from malleable.core.stage import stage
from malleable.errors import TransformError
from malleable.execution.cutting import partition
from malleable.execution.cutting.partition import Region
from malleable.execution.explain import rewrites
from malleable.execution.explain.discover import discover
from malleable.execution.explain.measuring import Host, Meter, Ran
from malleable.execution.explain.report import (
    BreakSeen,
    Line,
    RegionSeen,
    Report,
    Source,
    Suggestion,
)
from malleable.execution.jit import Selective, jit
from malleable.execution.purity import scan
from malleable.execution.regions import families
from malleable.notes import Note, first_line, listen
from malleable.programs import cost
from malleable.programs.types import is_key
from malleable.progress import working
from malleable.python_source import nodes, scopes
from malleable.python_source.changes import line_of_function, unchanged
from malleable.python_source.misuse import called_as
from malleable.signatures import P

RUNS = 4  # until nothing is cut any more


@called_as("explain(fun)(*args)")
def explain(f: Callable[P, Any]) -> Callable[P, Report]:
    """Return a function that calls `f` a few times on its arguments, and says how it ran.

    f: a function under `jit`, or one that is put under it. It is called twice at least, and
    what it changes in its arguments and elsewhere is put back after each call; printing and files
    are as they are. Each suggestion is tried on these values. `report.out` is what the last call
    gave. An exception of f goes through.

    >>> import jax.numpy as jnp
    >>> f = jit(lambda x: x[x > 0].sum(), control_flow="host")
    >>> report = explain(f)(jnp.array([1.0, -2.0, 3.0]))
    >>> [b.kind for b in report.breaks], report.breaks[0].suggestion.after
    (['mask'], 'jnp.where(x > 0, x, 0).sum()')
    """

    @functools.wraps(f, assigned=("__name__", "__qualname__", "__doc__"), updated=())
    def explained(*args, **kwargs) -> Report:
        name = f"explain {getattr(f, '__name__', 'it')}"
        with working(name):
            return _explained(f, args, kwargs)

    return explained


def _explained(f, args, kwargs) -> Report:
    """The report on one call."""
    own = f
    if isinstance(own, types.MethodType) and isinstance(own.__func__, Selective):
        own, args = own.__func__, (own.__self__, *args)
    selective: Any = own if isinstance(own, Selective) else jit(own)
    fun, before, named = selective.plain or (selective.fun, (), {})
    given = (*before, *args), {**named, **kwargs}
    with unchanged(fun, given, runs=True) as put_back:
        is_cut = selective.plain is not None and scan.reads_of(selective.fun) is None
        part = selective.engine_for(args, kwargs).partition(fun) if is_cut else None
        if part is None:
            return _report_on_whole(selective, selective.fun, args, kwargs)
        return _report_on_parts(part, fun, *given, put_back)


def _report_on_parts(part, fun, args, kwargs, put_back: Callable[[], None]) -> Report:
    """The report on a function that has a partition; put_back: what a call of it changed."""
    times, compile_seconds, failed = [], 0.0, None
    report = Report(fun.__qualname__)
    meter = Meter()
    with listen() as heard:
        for _ in range(RUNS):
            meter = Meter()
            padded = part.options.dynamic_sizes == "bucket"
            outer = part.engine.sizes.begin((*args, *kwargs.values()), padded)
            start = time.perf_counter()
            try:
                with meter.hearing():
                    out = jax.block_until_ready(meter.program(part, fun)(*args, **kwargs))
            except Exception as error:
                failed = error
            else:
                report.out = _apart(out)
            times.append(time.perf_counter() - start)
            put_back()
            part.engine.sizes.end(outer)
            compile_seconds += meter.compile
            if failed or (meter.settled and len(times) > 1):
                break
    report.first_seconds, report.seconds = times[0], times[-1]
    report.runs, report.compile_seconds = len(times), compile_seconds
    report.notes = [n for n in dict.fromkeys(heard) if n.why and "a break:" not in n.what]
    numbers = _numbered(meter)
    for part in meter.parts:
        report.regions += [_region(meter, part, r, numbers) for r in _regions(part)]
        report.breaks += _breaks(meter, part, numbers)
        report.sources.append(_source_of_part(meter, part, numbers))
    _weigh(report, meter)
    if failed is not None:
        failed.add_note(f"malleable, until it was raised:\n{report}")
        raise failed
    root = meter.parts[0]
    report.static = _statics(root, fun, args, kwargs)
    report.breaks = _with_options(report, root, fun, args, kwargs)
    report.breaks = _with_state(report.breaks, fun, args, kwargs, put_back)
    return report


def _apart(out):
    """A result that stays as it is when the caller's own containers and arrays are put back."""
    return jax.tree.map(lambda x: x.copy() if isinstance(x, np.ndarray) else x, out)


def _report_on_whole(selective, fun, args, kwargs) -> Report:
    """The report on a function that is compiled or run by Python as a whole."""
    report = Report(getattr(fun, "__qualname__", None) or repr(fun))
    if scan.reads_of(selective.fun) is not None:
        return _of_jax(report, selective, args, kwargs)
    why = next(iter(selective.engine.failed.values()), "it is no function of Python")
    start = time.perf_counter()
    seen = discover(fun)(*args, **kwargs)
    report.out, report.first_seconds = seen.out, time.perf_counter() - start
    report.seconds = report.first_seconds
    report.ops = report.flop = {"compiled": 0, "numpy": 0, "host": seen.ops}
    for demand in seen.breaks:
        place = demand.where.rpartition(" in ")[0]
        line = int(number) if (number := place.rpartition(":")[2]).isdigit() else 0
        text = linecache.getline(place.rpartition(":")[0], line).strip()
        avals = _spelled_types([(str(demand.aval.dtype), demand.aval.shape)])
        report.breaks.append(
            BreakSeen(
                demand.where, line, report.function, text, demand.kind, why, avals,
                demand.inputs, "Python, with the whole function", 1,
            )
        )  # fmt: skip
    return report


def _of_jax(report: Report, selective, args, kwargs) -> Report:
    """The report on a function of JAX, or one made by it, which is one program or none."""
    times, meter = [], Meter()
    with listen() as heard, meter.hearing():
        for _ in range(2):
            start = time.perf_counter()
            report.out = jax.block_until_ready(selective(*args, **kwargs))
            times.append(time.perf_counter() - start)
    report.first_seconds, report.seconds = times
    report.compile_seconds, whole = meter.compile, True
    ops, flop, way = 1, 1, "compiled"
    try:
        made = stage(selective.fun)(*args, **kwargs).jaxpr
    except Exception as error:  # Python alone runs it
        whole, why = False, first_line(error)
        report.notes = [*heard, Note("it is not one program", line_of_function(selective.fun), why)]
    else:  # or one that compiles by itself what it is given, as equinox.filter_jit
        report.notes = [n for n in heard if "not compiled" not in f"{n.what} {n.why}"]
        ops, flop = cost.equations(made), cost.flop(made)
    report.ops = {"compiled": ops * whole, "numpy": 0, "host": ops * (not whole)}
    report.flop = {"compiled": flop * whole, "numpy": 0, "host": flop * (not whole)}
    if whole:
        span, name = (0, 0), report.function
        report.regions = [
            RegionSeen(
                1, name, span, (), ("what is returned",), ops, way, False, {}, (), 1, 1,
                meter.compile, 1, times[1], flop,
            )
        ]  # fmt: skip
    return report


def _regions(part) -> list[Region]:
    return list(partition.regions(part.tree.body))


def _numbered(meter: Meter) -> dict[int, int]:
    """A number for each region, over all functions; by id."""
    every = [r for part in meter.parts for r in _regions(part)]
    return {id(region): number for number, region in enumerate(every, 1)}


def _weigh(report: Report, meter: Meter) -> None:
    """How much ran where."""
    ran, hosts = meter.regions.values(), meter.hosts.values()
    touched = [h for h in hosts if h.elements]
    report.ops = {
        "compiled": sum(r.compiled for r in ran),
        "numpy": sum(r.numpy for r in ran),
        "host": sum(h.calls for h in touched),
    }
    numpy = sum(r.flop for r in ran if r.numpy > r.compiled)
    report.flop = {
        "compiled": sum(r.flop for r in ran) - numpy,
        "numpy": numpy,
        "host": sum(h.elements for h in touched),
    }


# ---------------------------------------------------------------- regions


def _state(region: Region):
    """What is known of a region as it stands now."""
    return region.states.get((*region.ins, "->", *region.outs))


def _region(meter: Meter, part, region: Region, numbers) -> RegionSeen:
    state, ran = _state(region), meter.regions.get(id(region)) or Ran(part, region)
    variants = list(state.variants.values()) if state else []
    sized = _sized(state)
    first = [s.lineno for s in region.body]
    last = [_last_line(s, _compound(part)) for s in region.body]
    leaves = tuple(region.outs) if not region.tail else ("what is returned",)
    return RegionSeen(
        number=numbers[id(region)],
        function=part.name,
        lines=(min(first), max(last)),
        takes=tuple(region.ins),
        leaves=leaves,
        equations=ran.equations,
        way=_way(ran, variants, sized),
        lifted=any(v.traced.lifted for v in variants),
        sizes=_sizes(state),
        static=tuple(state.ins[i] for i in sorted(state.static)) if state else (),
        programs=len(variants) + len(sized),
        executables=_executables(variants, sized),
        compile_seconds=ran.compile,
        calls=ran.calls,
        seconds=ran.seconds,
        flop=ran.flop,
    )


def _sized(state) -> list:
    """The variants over symbolic sizes."""
    found = [f.sized for f in state.families.values() if f.sized] if state else []
    return list({id(s): s for s in found}.values())


def _way(ran: Ran, variants, sized) -> str:
    if not ran.calls:
        return "not run"
    ways = []
    if ran.compiled:
        ways.append("compiled")
    if ran.numpy:
        ways.append("NumPy")
    rooms = sorted({r for s in sized if s.buckets for r in s.buckets.executables})
    if rooms:
        ways.append("buckets " + ", ".join("x".join(map(str, r)) for r in rooms))
    elif sized and ran.numpy:
        ways.append("any size")
    return ", ".join(ways) or "compiled"


def _executables(variants, sized) -> int:
    count = sum(v.jitted._cache_size() for v in variants if v.jitted is not None)
    return count + sum(s.buckets.compiled for s in sized if s.buckets)


def _sizes(state) -> dict:
    """{size of an argument: those seen}, for each size that changes."""
    found: dict = {}
    for family in state.families.values() if state else ():
        for leaf, axis in families.varying(family.shapes):
            column = dict.fromkeys(shapes[leaf][axis] for shapes in family.shapes)
            counts = [v.counts for v in state.variants.values()][:1] or [[]]
            owners = [n for n, c in zip(state.ins, counts[0], strict=False) for _ in range(c)]
            name = owners[leaf] if leaf < len(owners) else f"input {leaf}"
            found[f"axis {axis} of {name}"] = tuple(column)
    return found


def _statics(part, fun, args, kwargs) -> dict[str, str]:
    """The arguments that are part of the key of a region, and their values in this call."""
    names = {
        state.ins[i]
        for r in _regions(part)
        if (state := _state(r)) is not None
        for i in state.static
    }
    given = _given(fun, args, kwargs)
    return {n: repr(given[n]) for n in sorted(names & given.keys())}


def _given(fun, args, kwargs) -> dict[str, Any]:
    """The arguments by name, with defaults."""
    bound = inspect.signature(fun).bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.arguments


# ---------------------------------------------------------------- breaks


def _breaks(meter: Meter, part, numbers) -> list[BreakSeen]:
    """Every statement that breaks the graph, those of one line and kind together."""
    found: dict = {}
    hosts = {n: h for n, h in meter.hosts.items() if h.part is part}
    whole = rewrites.Whole(part)
    standing = {id(s): s for s in _standing(part.tree.body)}
    for number, stmt in standing.items():
        known, seen = part.tree.breaks.get(number), hosts.get(number) or Host(part, stmt)
        if known is None and not (seen.avals and isinstance(stmt, ast.If | ast.While)):
            continue
        kind = known.kind if known else "bool"
        key = stmt.lineno, kind, whole.text(stmt)
        why = known.why if known else "Python runs the loop around it, so it needs the value"
        found.setdefault(key, []).append((seen, kind, why))
    slices = rewrites.origins(part)
    made = []
    for (line, kind, _), several in sorted(found.items(), key=lambda item: item[0][0]):
        hosts_here = [seen for seen, _, _ in several]
        reads = set().union(*(scopes.uses(*nodes.heads(h.stmt)).reads for h in hosts_here))
        inputs = rewrites.sources(slices, reads) & part.params
        made.append(
            BreakSeen(
                where=f"{part.filename}:{line} in {part.name}",
                line=line,
                function=part.name,
                text=linecache.getline(part.filename, line).strip(),
                kind=kind,
                why=several[0][2],
                avals=_spelled_types({a: None for h in hosts_here for a in h.avals}),
                inputs=tuple(sorted(inputs)),
                done=_done(hosts_here, numbers),
                calls=max(h.calls for h in hosts_here),
                seconds=sum(h.seconds for h in hosts_here),
                bytes=sum(h.bytes for h in hosts_here),
                suggestion=rewrites.suggest(part, whole, hosts_here),
            )
        )
    return made


def _spelled_types(avals) -> tuple[str, ...]:
    """Types as text, those that differ in sizes only as one: `int32[3-20]`."""
    kinds: dict = {}
    for dtype, shape in avals:
        kinds.setdefault((dtype, len(shape)), []).append(shape)
    found = []
    for (dtype, _), shapes in kinds.items():
        spans = [(min(axis), max(axis)) for axis in zip(*shapes, strict=True)]
        dims = [str(a) if a == b else f"{a}-{b}" for a, b in spans]
        found.append(f"{dtype}[{','.join(dims)}]")
    return tuple(found)


def _with_options(report: Report, part, fun, args, kwargs) -> list[BreakSeen]:
    """The breaks, with what an option or a number for an array would do about them.

    Each is tried by calling the function once more, unless Python does more in it than compute.
    """
    if any(b.kind in ("effect", "text", "call", "object", "state") for b in report.breaks):
        return report.breaks
    made = list(report.breaks)
    for i, b in enumerate(made):
        if b.suggestion or b.function != part.name:
            continue
        if b.kind == "bool" and part.options.control_flow == "host":
            options = dataclasses.replace(part.options, control_flow="lift")
            tried = _tried(report, part, Selective(fun, options), args, kwargs)
            texts = "control_flow='host'", "control_flow='lift'"
        elif b.inputs and b.kind in ("int", "error", "value") and b.function == part.name:
            given = _given(fun, args, kwargs)
            if not all(_is_count(given.get(name)) for name in b.inputs):
                continue
            numbers = [int(x) if n in b.inputs else x for n, x in zip(given, args, strict=False)]
            named = {n: int(x) if n in b.inputs else x for n, x in kwargs.items()}
            tried = _tried(report, part, Selective(fun, part.options), numbers, named)
            names = ", ".join(b.inputs)
            texts = names, ", ".join(f"int({n})" for n in b.inputs)
        else:
            continue
        if tried:
            made[i] = dataclasses.replace(b, suggestion=Suggestion(*texts, tried))
    return made


def _with_state(breaks: list[BreakSeen], fun, args, kwargs, put_back) -> list[BreakSeen]:
    """The breaks, the first that changes a state with what `nnx.jit` would do about it; tried."""
    nnx = sys.modules.get("flax.nnx")
    first = next((i for i, b in enumerate(breaks) if b.kind == "state"), None)
    if nnx is None or first is None:
        return breaks
    models = [x for x in (*args, *kwargs.values()) if isinstance(x, nnx.Module | nnx.Optimizer)]
    ends = []
    for run in (fun, nnx.jit(fun)):
        try:
            ends.append(_apart((run(*args, **kwargs), [nnx.state(x) for x in models])))
        except Exception:  # whatever the function does that nnx.jit refuses
            return breaks
        finally:
            put_back()
    if not rewrites.are_equal(*(jax.tree.map(_without_keys, end) for end in ends)):
        return breaks
    tried = Suggestion("mal.jit", "nnx.jit", "tried here: is equal, the state behind it too")
    new = dataclasses.replace(breaks[first], suggestion=tried)
    return [*breaks[:first], new, *breaks[first + 1 :]]


def _without_keys(x):
    return jax.random.key_data(x) if is_key(x) else x


def _is_count(x) -> bool:
    is_array = isinstance(x, jax.Array | np.ndarray | np.generic)
    return is_array and x.shape == () and np.issubdtype(x.dtype, np.integer)


def _tried(report: Report, part, selective: Selective, args, kwargs) -> str:
    """What came out of a call with other options or arguments; '' where that is no better."""
    try:
        out = selective(*args, **kwargs)
    except (TypeError, ValueError, IndexError, TransformError):
        return ""
    other = selective.engine.partition(part.fun)
    fewer = len(part.tree.breaks) - len(other.tree.breaks) if other else 0
    if fewer <= 0 or not rewrites.are_equal(report.out, out):
        return ""
    return f"tried here: is equal, {fewer} break{'s' * (fewer > 1)} fewer"


def _standing(stmts):
    """The statements that Python runs, at any depth."""
    for stmt in stmts:
        if not isinstance(stmt, Region):
            yield stmt
            for block in nodes.blocks(stmt):
                yield from _standing(block)


def _done(hosts, numbers) -> str:
    ways = set().union(*(h.ways for h in hosts))
    inside = sorted(numbers[id(r)] for h in hosts for r in partition.regions([h.stmt]))
    text = " and ".join(sorted(ways)) or "Python"
    return text + (f"; its blocks are {', '.join(f'R{n}' for n in inside)}" if inside else "")


# ---------------------------------------------------------------- the source, with marks


def _source_of_part(meter: Meter, part, numbers) -> Source:
    node, marks = part.tree.node, {}
    _mark(meter, part, part.tree.body, numbers, marks)
    last = node.end_lineno or node.lineno
    for line, found in marks.items():
        marks[line] = found - {"P", "."} or found - {"."} or found
    lines = [
        Line(n, tuple(sorted(marks.get(n, ()), key=_by_mark)), linecache.getline(part.filename, n))
        for n in range(node.lineno, last + 1)
    ]
    return Source(part.name, part.filename, tuple(_stripped(lines)))


def _by_mark(mark: str):
    return "RLHP.".index(mark[0]), int(mark[1:] or 0)


def _stripped(lines):
    """Without the indentation that all have."""
    depth = min((len(x.text) - len(x.text.lstrip()) for x in lines if x.text.strip()), default=0)
    return [Line(x.number, x.marks, x.text.rstrip()[depth:]) for x in lines]


def _compound(part) -> dict[int, int]:
    """{first line of a statement with blocks: the last line before its block}."""
    stmts = [s for s in ast.walk(part.tree.node) if isinstance(s, ast.stmt) and nodes.blocks(s)]
    return {s.lineno: max(s.lineno, nodes.blocks(s)[0][0].lineno - 1) for s in stmts}


def _last_line(stmt, compound) -> int:
    """The last line of a statement, or of the one that it is a piece of."""
    if nodes.blocks(stmt):
        return max(_last_line(s, compound) for block in nodes.blocks(stmt) for s in block)
    return compound.get(stmt.lineno, stmt.end_lineno or stmt.lineno)


def _mark(meter: Meter, part, stmts, numbers, marks) -> None:
    compound = _compound(part)
    for stmt in stmts:
        if isinstance(stmt, Region):
            state, ran = _state(stmt), meter.regions.get(id(stmt))
            variants = list(state.variants.values()) if state else []
            lifted = any(v.traced.lifted for v in variants)
            mark = f"R{numbers[id(stmt)]}" if ran and ran.calls else "."
            _cover(stmt.body, mark, lifted, marks, compound)
            continue
        if isinstance(stmt, ast.FunctionDef):
            _cover([stmt], "P", False, marks, compound)
            continue
        if isinstance(stmt, ast.Expr) and isinstance(stmt.value, ast.Constant):
            continue  # a docstring
        seen = meter.hosts.get(id(stmt))
        mark = "." if seen is None or not seen.calls else "H" if seen.elements else "P"
        _cover([stmt], mark, False, marks, compound, deep=False)
        for block in nodes.blocks(stmt):
            _mark(meter, part, block, numbers, marks)


def _cover(stmts, mark: str, lifted: bool, marks, compound, deep=True) -> None:
    """Put a mark on the lines of statements; of compound ones on their first line."""
    for stmt in stmts:
        inside = nodes.blocks(stmt)
        heads_only = inside or hasattr(stmt, "body")
        last = compound.get(stmt.lineno) if heads_only else _last_line(stmt, compound)
        for line in range(stmt.lineno, (last or stmt.lineno) + 1):
            marks.setdefault(line, set()).add(mark)
            if lifted and inside and mark != ".":
                marks[line].add("L")
        if deep:
            for block in inside or [getattr(stmt, "body", [])]:
                _cover(block, mark, lifted, marks, compound)
