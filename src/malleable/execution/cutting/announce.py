"""What is said while a function is cut: each break once, and programs that are made on and on."""

import warnings

from malleable.errors import BreakWarning, TransformError
from malleable.execution.common.breaks import nearest
from malleable.execution.purity.facts import Stays
from malleable.execution.regions import families
from malleable.execution.regions.signatures import shape_of
from malleable.notes import note

STATICS = 9  # values of one static argument from which on one wonders


def met(part, stays: Stays, line: int) -> None:
    """A statement goes to Python. Raises TransformError under on_break="error"."""
    where = f"{part.filename}:{line} in {part.name}"
    if part.options.on_break == "error":
        raise TransformError(
            f"this breaks the graph: {stays.why}", where=where, hint="; ".join(nearest(stays.kind))
        )
    note("a break: Python runs this statement", where, stays.why)
    if part.options.on_break == "warn":
        _warn(f"{where} breaks the graph: {stays.why}", part.filename, line)


def uncut(selective) -> None:
    """A function is run by Python as a whole. Raises TransformError under on_break="error"."""
    fun, how = selective.fun, selective.options.on_break
    if how == "split" or (how == "warn" and selective.said):
        return
    selective.said = True
    why = next(iter(selective.engine.failed.values()), "it is no function of Python")
    name = getattr(fun, "__qualname__", None) or repr(fun)
    code = getattr(fun, "__code__", None)
    file, line = (code.co_filename, code.co_firstlineno) if code else ("", 0)
    where = f"{file}:{line} in {name}" if code else name
    if how == "error":
        raise TransformError(
            f"`{name}` is not compiled: {why}", where=where, hint="a function with its source"
        )
    _warn(f"{where} is run by Python as a whole: {why}", file or "<unknown>", line)


def many(part, region, state, counts, values, leaves) -> None:
    """A region is about to get one more program: say once if there is no end of them."""
    made = len(state.variants) + 1
    seen = state.seen
    for i in state.static:
        if isinstance(values[i], bool | int | float | complex | str):
            seen.setdefault(i, {})[values[i]] = None
    shapes = tuple(map(shape_of, leaves))
    if shapes not in seen.setdefault("shapes", []) and len(seen["shapes"]) < 32:
        seen["shapes"].append(shapes)
    changing = [i for i in state.static if len(seen.get(i, ())) >= STATICS]
    if state.said or not (changing or made >= part.options.max_compiles):
        return
    state.said = True
    where = f"{part.filename}:{region.lineno} in {part.name}"
    if changing:
        why = "; ".join(
            f"`{state.ins[i]}` had {len(seen[i])} values: {', '.join(map(repr, seen[i]))}"
            for i in changing
        )
    else:
        why = _what_changes(state.ins, seen["shapes"], counts)
    what = f"one program after the other is made for this region, {made} by now"
    note(what, where, why)
    if part.options.on_break == "warn":
        _warn(f"{where}: {what}: {why}", part.filename, region.lineno)


def _what_changes(ins, shapes, counts) -> str:
    """Which sizes were different each time, and the argument they are of."""
    owners = [name for name, count in zip(ins, counts, strict=True) for _ in range(count)]
    alike = [s for s in shapes if list(map(len, s)) == list(map(len, shapes[0]))]
    found = [
        f"axis {axis} of `{owners[leaf]}` was {', '.join(str(s[leaf][axis]) for s in alike)}"
        for leaf, axis in families.varying(alike)
    ]
    return "; ".join(found) or "the types of its arguments change"


def _warn(text: str, file: str, line: int) -> None:
    warnings.warn_explicit(text, BreakWarning, file, line)
