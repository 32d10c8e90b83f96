"""Collectives of a compiled program, read from its text: what is sent, how often, by which line."""

import collections
import functools
import itertools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from malleable.compat import Place
from malleable.inspection.show.page import located

KINDS = ("all-gather", "all-reduce", "reduce-scatter", "collective-permute", "all-to-all")
WIDTHS = {"pred": 1, "bf16": 2, "c64": 8, "c128": 16}  # bytes; of others the digits say it, in bits
DEPTH = 6  # users that are looked through for one with a line


class Sent(NamedTuple):
    """A collective: its kind, how often it runs, bytes of its result on a device each time.

    groups: numbers of the devices that take part together; places: the frames of Python behind it,
    innermost first; operation: what JAX calls the equation.
    """

    kind: str
    times: float
    bytes: int
    groups: frozenset[frozenset[int]]
    places: tuple[Place, ...]
    operation: str


class _Line(NamedTuple):
    name: str
    type: str
    operation: str
    operands: tuple[str, ...]
    text: str


def collectives(text: str) -> list[Sent]:
    """The collectives of a module of HLO, in its order; those in loops with their trips.

    A `while` whose trips are not known counts once.
    """
    bodies, entry = _computations(text)
    frames = located.apart(text)[1]
    found: list[Sent] = []

    def visit(name: str, times: float) -> None:
        lines = bodies.get(name, {})
        users = functools.cache(lambda: _users(lines))
        for line in lines.values():
            kind = line.operation.removesuffix("-start")
            if kind in KINDS:
                found.extend(_sent(line, kind, times, lines, users(), frames))
                continue
            trips = 1.0
            if line.operation == "while":
                known = re.search(r"known_trip_count[^\d]*(\d+)", line.text)
                trips = float(known[1]) if known else 1.0
            for called in _computations_of(line.text):
                visit(called, times * trips)

    visit(entry, 1.0)
    return found


def bytes_of_type(spelled: str) -> int:
    """The bytes of a type as HLO spells it, all elements of a tuple together.

    >>> bytes_of_type("(f32[64,2]{1,0}, pred[], bf16[4])")
    521
    """
    total = 0
    for kind, dims in re.findall(r"\b([a-z]+\d*)\w*\[([\d,]*)\]", spelled):
        bits = re.search(r"\d+$", kind)
        width = WIDTHS.get(kind, int(bits[0]) / 8 if bits else 0)
        total += int(width * math.prod(int(d) for d in dims.split(",") if d))
    return total


def axis_of(groups: frozenset[frozenset[int]], shape: dict[str, int]) -> str:
    """The axes of a mesh along which groups of devices are, as few as do, or "" for no groups.

    >>> axis_of(frozenset([frozenset([0, 2]), frozenset([1, 3])]), {"data": 2, "model": 2})
    'data'
    """
    numbers = np.arange(math.prod(shape.values())).reshape(tuple(shape.values()))
    names = list(shape)
    for count in range(1, len(names) + 1):
        for some in itertools.combinations(range(len(names)), count):
            rows = _groups_along(numbers, some)
            if groups and all(any(group <= row for row in rows) for group in groups):
                return ", ".join(names[i] for i in some)
    return ""


def _groups_along(numbers, axes: Sequence[int]) -> frozenset[frozenset[int]]:
    moved = np.moveaxis(numbers, axes, range(-len(axes), 0))
    rows = moved.reshape(-1, math.prod(numbers.shape[a] for a in axes))
    return frozenset(frozenset(map(int, row)) for row in rows)


# ---------------------------------------------------------------- reading


def _computations(text: str) -> tuple[dict[str, dict[str, _Line]], str]:
    bodies: dict[str, dict[str, _Line]] = collections.defaultdict(dict)
    name, entry = "", ""
    for line in text.splitlines():
        head = re.match(r"^(ENTRY )?%?([\w.\-]+) \(.*->.*\{\s*$", line)
        if head:
            name = head[2]
            entry = name if head[1] else entry
        elif line.startswith("}"):
            name = ""
        elif name and (found := _instruction(line)):
            bodies[name][found.name] = found
    return bodies, entry


def _instruction(text: str) -> _Line | None:
    found = re.match(r"\s*(?:ROOT )?%?([\w.\-]+) = (.*?) ([\w\-]+)\((.*)", text)
    if not found:
        return None
    rest = found[4]
    inside = rest.partition("), ")[0]
    operands = tuple(re.findall(r"%([\w.\-]+)", inside))
    return _Line(found[1], found[2], found[3], operands, text)


def _computations_of(text: str) -> Iterator[str]:
    yield from re.findall(r"(?:body|condition|to_apply|calls)=%?([\w.\-]+)", text)
    for group in re.findall(r"branch_computations=\{([^}]*)\}", text):
        yield from (c.strip().lstrip("%") for c in group.split(","))
    yield from re.findall(r"(?:true_computation|false_computation)=%?([\w.\-]+)", text)


def _users(lines: dict[str, _Line]) -> dict[str, list[_Line]]:
    users: dict[str, list[_Line]] = collections.defaultdict(list)
    for line in lines.values():
        for operand in line.operands:
            users[operand].append(line)
    return users


def _sent(line: _Line, kind, times, lines, users, frames) -> Iterator[Sent]:
    """What one collective sends; of several arrays at once, each by the line that made it."""
    groups = _device_groups(line.text)
    parts = re.findall(r"[a-z]+\d*\w*\[[\d,]*\]", line.type)
    if line.operation.endswith("-start") and len(parts) > 1 and kind == "all-gather":
        parts = parts[len(parts) // 2 :]  # its operands stand beside its results
    if len(parts) > 1 and len(parts) == len(line.operands):
        makers = [lines.get(name) for name in line.operands]
    else:
        parts, makers = [" ".join(parts)], [None]
    found: collections.Counter = collections.Counter()
    for part, maker in zip(parts, makers, strict=True):
        told = next((x for x in (maker, line) if x is not None and frames.of(x.text)), None)
        told = told or _nearest(line, lambda x: users.get(x.name, []), frames)  # a gather has none
        told = told or _nearest(line, lambda x: _makers(x, lines), frames) or line
        name = re.search(r'op_name="([^"]*)"', told.text)
        found[tuple(frames.of(told.text)), name[1] if name else ""] += bytes_of_type(part)
    for (places, operation), size in found.items():
        yield Sent(kind, times, size, groups, places, operation)


def _makers(line: _Line, lines: dict[str, _Line]) -> list[_Line]:
    return [lines[name] for name in line.operands if name in lines]


def _nearest(line: _Line, beside: Callable, frames, depth: int = DEPTH) -> _Line | None:
    """The nearest instruction with a line, among those beside one, then beside these."""
    near = beside(line)
    further = (_nearest(x, beside, frames, depth - 1) for x in near if depth)
    return next((x for x in near if frames.of(x.text)), None) or next(filter(None, further), None)


def _device_groups(text: str) -> frozenset[frozenset[int]]:
    """The groups of devices of a collective, in any of the ways that XLA spells them."""
    if pairs := re.search(r"source_target_pairs=\{(.*?)\}\}", text):
        return _connected([tuple(map(int, p)) for p in re.findall(r"(\d+),\s*(\d+)", pairs[1])])
    if mesh := re.search(r"replica_groups=mesh\[([^\]]*)\]([^{]*)\{([^}]*)\}", text):
        shape = {name: int(n) for name, n in re.findall(r"'([^']+)'=(\d+)", mesh[1])}
        axes = re.findall(r"'([^']+)'", mesh[3])
        if ":" in mesh[3] or not all(a in shape for a in axes):
            return frozenset()
        numbers = _numbers_in_order(mesh[2], math.prod(shape.values()))
        if numbers is None:
            return frozenset()
        numbers = numbers.reshape(tuple(shape.values()))
        return _groups_along(numbers, [list(shape).index(a) for a in axes])
    if iota := re.search(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", text):
        shape, source = ([int(n) for n in iota[i].split(",")] for i in (1, 2))
        numbers = np.arange(math.prod(source)).reshape(source)
        if iota[3]:
            numbers = numbers.transpose([int(n) for n in iota[3].split(",")])
        rows = numbers.reshape(shape)
        return frozenset(frozenset(map(int, row)) for row in rows.reshape(-1, shape[-1]))
    if listed := re.search(r"replica_groups=\{(.*?)\}\}", text):
        rows = re.findall(r"\{([\d,\s]*)", listed[1])
        return frozenset(frozenset(int(n) for n in row.split(",") if n) for row in rows if row)
    return frozenset()


def _numbers_in_order(text: str, count: int):
    """The numbers of devices of a mesh in its order: `device_ids=([2,4]T(1,0))` or `(0,2,1,3)`.

    >>> _numbers_in_order(", device_ids=([2,2]T(1,0)) ", 4).tolist()
    [0, 2, 1, 3]
    """
    if "device_ids" not in text:
        return np.arange(count)
    if iota := re.search(r"\(\[([\d,]+)\](?:T\(([\d,]+)\))?\)", text):
        numbers = np.arange(count).reshape([int(n) for n in iota[1].split(",")])
        order = [int(n) for n in iota[2].split(",")] if iota[2] else None
        return numbers.transpose(order).ravel() if order else numbers.ravel()
    listed = re.search(r"device_ids=\(([\d,\s]+)\)", text)
    found = np.array([int(n) for n in listed[1].split(",")]) if listed else np.arange(0)
    return found if found.size == count else None


def _connected(pairs: Sequence[tuple[int, ...]]) -> frozenset[frozenset[int]]:
    """The groups in which devices send to each other."""
    groups: dict[int, set[int]] = {}
    for a, b in pairs:
        both = groups.get(a, {a}) | groups.get(b, {b})
        groups |= dict.fromkeys(both, both)
    return frozenset(map(frozenset, groups.values()))
