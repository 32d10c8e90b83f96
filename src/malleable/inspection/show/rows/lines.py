"""Programs as lines of text: trees of equations, each under the source line it comes from."""

import functools
import heapq
import itertools
import linecache
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax

from malleable.inspection import places
from malleable.inspection.show.rows.outline import Body, Named, Row

Span = tuple[str, str]  # text, and its style as rich calls it
BIG = 1 << 20  # bytes of a result that is worth mentioning
HEAVY = 1e6  # flops or bytes of a program from which on shares are worth mentioning
SHARE = 0.01  # of the flops or bytes of the program
_LEAST = 24  # characters of a line behind its guide, however deep it is
_WIDEST = 60  # characters of a sharding


class Line(NamedTuple):
    """guide: what leads to it in a tree; rest: what leads to its continuation; spans: its text."""

    guide: str
    rest: str
    spans: Sequence[Span]


@dataclass
class Node:
    """An item of a tree: one or more lines, and what hangs from it. sign: before all guides."""

    lines: list[list[Span]]
    children: list["Node"] = field(default_factory=list)
    sign: str = ""


def as_text(found: Iterable[Line], width: int | None = None) -> str:
    """Lines as one text, those longer than `width` characters broken at spaces."""
    return "\n".join("".join(text for text, _ in line) for line in wrap_lines(found, width))


def wrap_lines(found: Iterable[Line], width: int | None) -> Iterator[list[Span]]:
    """The spans of each line; one longer than `width` is continued under its guide."""
    for guide, rest, spans in found:
        line: list[Span] = [(guide, "dim")] if guide else []
        used = len(guide)
        if width is None or used + sum(len(text) for text, _ in spans) <= width:
            yield [*line, *spans]
            continue
        room = max(width, len(rest) + _LEAST)
        for text, style in spans:
            for word in re.findall(r"\s*\S+|\s+$", text):
                if used + len(word) > room and word[0].isspace():
                    yield line
                    line, used, word = [(rest + "    ", "dim")], len(rest) + 4, word.lstrip()
                line.append((word, style))
                used += len(word)
        yield line


def of_body(body: Body, costs: dict, limit: int | None = None) -> Iterator[Line]:
    """A program as a tree: each equation under its source line, bodies inside equations.

    limit: how many equations; the deepest bodies are folded until it is kept.
    """
    opened = _opened(body, limit)
    root = Node([_signature(body)], _grow(body, costs, opened, None))
    hidden = body.size - sum(opened.values()) if limit is not None else 0
    yield from drawn(root)
    if hidden:
        told = f"{hidden:,} of {equations(body.size)} folded: all with limit=None, or .html(path)"
        yield Line("", "", [(f"… {told}", "italic")])


def _opened(body: Body, limit: int | None) -> dict[int, int]:
    """{id of a body: how many of its rows to show}, the outermost and smallest first."""
    found, count = {}, itertools.count()
    rest = limit if limit is not None else body.size
    todo = [(0, 0, next(count), body)]
    while todo and rest > 0:
        depth, _, _, body = heapq.heappop(todo)
        n = min(rest, len(body.rows))
        if depth and n < len(body.rows) and n < 10:  # a few rows of many tell nothing
            break
        found[id(body)], rest = n, rest - n
        for inside in (b for row in body.rows[:n] for b in row.bodies):
            heapq.heappush(todo, (depth + 1, len(inside.rows), next(count), inside))
    return found


def _grow(body, costs, opened, last) -> list[Node]:
    shown = opened.get(id(body), 0)
    items = [(at(row), _leaf(row, costs, opened)) for row in body.rows[:shown]]
    nodes = under_lines(items, last)
    left = len(body.rows) - shown
    if left:
        inside = sum(b.size for row in body.rows[shown:] for b in row.bodies)
        more = f" with {inside:,} inside" if inside else ""
        nodes.append(Node([[(f"… {left:,} {'more ' * bool(shown)}equations{more}", "italic")]]))
    return nodes


def _leaf(row: Row, costs, opened):
    """A function from the line above to the node of an equation."""

    def made(last) -> Node:
        inside = [Node([_signature(body)], _grow(body, costs, opened, last)) for body in row.bodies]
        about = remarks(row, costs.get(row.number))
        return Node([[*equation(row), (f"  # {about}" * bool(about), "dim cyan")]], inside)

    return made


def at(row: Row | None) -> tuple[str, int, str] | None:
    """(file, line, module) of an equation, None without a place."""
    return (*row.place[:2], row.module) if row and row.place else None


def under_lines(items, last) -> list[Node]:
    """Nodes under their source lines, and there under their modules, as far as these are new."""
    nodes: list[Node] = []
    branch = nodes
    for place, made in items:
        if place and place != last:
            nodes.append(Node(_source_line(place, last)))
            last = place
            branch = nodes[-1].children
        branch.append(made(last))
    return nodes


def drawn(*roots: Node, signed: bool = False) -> Iterator[Line]:
    """The lines of trees, with guides; signed: with the signs of their nodes before these."""

    def draw(node, first, rest) -> Iterator[Line]:
        sign, blank = (node.sign or "  ", "  ") if signed else ("", "")
        below = rest + ("│   " if node.children else "    ")
        for i, spans in enumerate(node.lines):
            yield Line((blank + rest) if i else (sign + first), blank + below, spans)
        for child in node.children:
            end = child is node.children[-1]
            corner, side = ("└── ", "    ") if end else ("├── ", "│   ")
            yield from draw(child, rest + corner, rest + side)

    for root in roots:
        yield from draw(root, "", "")


def _source_line(place, last) -> list[list[Span]]:
    file, line, module = place
    again = last and (file, line) == last[:2]
    code = "" if again else linecache.getline(file, line).strip()
    head = [(spell_at(file, line), "cyan"), (f"  of {module}" * bool(module), "bold dim")]
    return [head, [(f"│ {code}", "dim")]] if code else [head]


@functools.lru_cache(4096)
def spell_at(file: str, line: int) -> str:
    """`file.py:12`, the file as seen from the working directory."""
    return f"{places.relative(file)}:{line}"


def _signature(body: Body) -> list[Span]:
    return [(f"{body.role}: ", "italic"), (f"{_typed(body.ins)} -> {_typed(body.outs)}", "green")]


def equation(row: Row, outs: Sequence[str] | None = None, ins: Sequence[str] | None = None):
    """The spans of an equation; outs, ins: other names for its results and operands."""
    typed = [Named(name, x.type) for name, x in zip(outs or [x.name for x in row.outs], row.outs)]  # noqa: B905
    params = " ".join(f"{k}={v}" for k, v in told(row))
    return [
        (_typed(typed) or "()", "green"),
        (" = ", "dim"),
        (row.primitive, "bold"),
        (f"[{params}]" * bool(params), "magenta"),
        ("".join(f" {name}" for name in (row.ins if ins is None else ins)), ""),
    ]


def told(row: Row) -> Iterator[tuple[str, str]]:
    """The parameters worth reading: name of a call, where values are laid out, all short ones."""
    params = row.eqn.params
    name = params.get("name")
    if row.bodies and isinstance(name, str) and name != "<lambda>":
        yield "name", name
    yield from row.params
    given = dict(row.params)
    if row.steps and "length" not in given:
        yield "length", str(row.steps)
    for key, value in params.items():
        if key in given:
            continue
        laid = value if isinstance(value, tuple) else (value,)
        if any(isinstance(s, jax.sharding.NamedSharding) for s in laid):
            spelled = ",".join(str(getattr(s, "spec", "_")) for s in laid).replace(
                "PartitionSpec", "P"
            )
            yield key, spelled if len(spelled) <= _WIDEST else spelled[: _WIDEST - 3] + "..."


def remarks(row: Row, cost: Any = None) -> str:
    """What else to know of an equation: the size of its results, and what it costs, in all."""
    parts = [quantity(row.bytes, "B")] if row.bytes >= BIG else []
    if cost and cost.share >= SHARE and max(cost.flops, cost.bytes) >= HEAVY * cost.share:
        work = [quantity(cost.flops, "flop")] if cost.flops else []
        parts.append(" ".join([*work, quantity(cost.bytes, "B"), "moved", f"({cost.share:.0%})"]))
        parts += ["for one step"] * (row.primitive == "while")
    return ", ".join(parts)


def quantity(n: float, unit: str) -> str:
    """A number with its unit: 4.2 Gflop, 1.0 MiB.

    >>> quantity(4.2e9, "flop"), quantity(1 << 20, "B"), quantity(12, "flop")
    ('4.2 Gflop', '1.0 MiB', '12 flop')
    """
    step, units = (1024, ("", "Ki", "Mi", "Gi", "Ti", "Pi")) if unit == "B" else (1000, " kMGTP")
    power = 0
    while n >= step and power < len(units) - 1:
        n, power = n / step, power + 1
    return f"{n:.1f} {units[power].strip()}{unit}" if power else f"{n:.0f} {unit}"


def _typed(values: Sequence[Named]) -> str:
    return " ".join(f"{name}:{kind}" for name, kind in values)


def equations(n: int) -> str:
    return f"{n:,} equation" + "s" * (n != 1)
