"""What `explain` found: as text, as a table in colours, as plain data, and against another one."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from malleable.notes import Note, Told

try:
    from rich.table import Table
    from rich.text import Text
except ImportError:  # comes with the extra `show`
    Table = Text = None

WORDS = {
    "bool": "a branch on a value",
    "int": "an integer from an array",
    "array": "NumPy asks for an array",
    "numpy": "NumPy computes",
    "mask": "a size that depends on values",
    "value": "a value is needed",
    "text": "a value becomes text",
    "effect": "a side effect",
    "object": "an object of Python",
    "call": "a call that may do more than compute",
    "state": "a call that may change a state",
    "python": "Python's own statement",
    "error": "it does not trace",
    "pinned": "it does not trace",
}
MARKS = "Rn region n, L lifted, H host statement on arrays, P Python, . not run"
COLOURS = {"R": "green", "L": "cyan", "H": "yellow", "P": "dim", ".": "dim"}


@dataclass(frozen=True)
class RegionSeen:
    """A compiled part. calls, seconds: in one call of the function; equations: of its program.

    way: how it runs now; sizes: {symbol: sizes seen}; static: values that are part of its key;
    programs: how many signatures it was traced for; executables: how often XLA compiled it;
    compile_seconds: as far as this was measured.
    """

    number: int
    function: str
    lines: tuple[int, int]
    takes: tuple[str, ...]
    leaves: tuple[str, ...]
    equations: int
    way: str
    lifted: bool
    sizes: dict[str, tuple[int, ...]]
    static: tuple[str, ...]
    programs: int
    executables: int
    compile_seconds: float
    calls: int
    seconds: float
    flop: int


@dataclass(frozen=True)
class Suggestion:
    """Another way to write it that was tried on these arguments. checked: what came out."""

    before: str
    after: str
    checked: str

    def __str__(self):
        return f"{self.before}  ->  {self.after}  ({self.checked})"


@dataclass(frozen=True)
class BreakSeen:
    """A statement that Python runs. calls, seconds, bytes: in one call of the function.

    where: `file.py:12 in fun`; text: that line; kind, why: what breaks the graph; avals: the types
    of the arrays it asks for; inputs: the arguments these depend on; done: who ran it.
    """

    where: str
    line: int
    function: str
    text: str
    kind: str
    why: str
    avals: tuple[str, ...]
    inputs: tuple[str, ...]
    done: str
    calls: int = 0
    seconds: float = 0.0
    bytes: int = 0
    suggestion: Suggestion | None = None


@dataclass(frozen=True)
class Line:
    """A line of the source with its marks, such as ("R1", "H")."""

    number: int
    marks: tuple[str, ...]
    text: str


@dataclass(frozen=True)
class Source:
    """A function of the user's, line by line."""

    name: str
    filename: str
    lines: tuple[Line, ...]


@dataclass(repr=False)
class Report(Told):
    """What one call of a function under `jit` did, and why.

    ops, flop: {"compiled", "numpy", "host"}: how many operations ran where, and about how much
    they computed; first_seconds: the first call of `explain`, with all compiling; seconds: the
    last, with every region waited for.
    """

    function: str
    regions: list[RegionSeen] = field(default_factory=list)
    breaks: list[BreakSeen] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)
    ops: dict[str, int] = field(default_factory=dict)
    flop: dict[str, int] = field(default_factory=dict)
    static: dict[str, str] = field(default_factory=dict)
    runs: int = 1
    first_seconds: float = 0.0
    seconds: float = 0.0
    compile_seconds: float = 0.0
    notes: list[Note] = field(default_factory=list)
    out: Any = None

    @property
    def share(self) -> float:
        """The part of all operations that ran in regions, 0 to 1."""
        return _share(self.ops)

    @property
    def flop_share(self) -> float:
        """The part of all arithmetic that was in regions, 0 to 1."""
        return _share(self.flop)

    @property
    def executables(self) -> int:
        return sum(r.executables for r in self.regions)

    def to_dict(self) -> dict[str, Any]:
        """All of it but the result, as dicts, lists, text and numbers."""
        names = [f.name for f in dataclasses.fields(self) if f.name != "out"]
        data = {name: _as_lists(getattr(self, name)) for name in names}
        return data | {"share": self.share, "flop_share": self.flop_share}

    def diff(self, other: "Report") -> str:
        """What is different in another report, which came later: one line each, '' for nothing."""
        lines = []
        for what, mine, theirs in (
            ("operations in regions", f"{self.share:.0%}", f"{other.share:.0%}"),
            ("arithmetic in regions", f"{self.flop_share:.0%}", f"{other.flop_share:.0%}"),
            ("regions", len(self.regions), len(other.regions)),
            ("breaks", len(self.breaks), len(other.breaks)),
            ("executables", self.executables, other.executables),
            ("static arguments", _static_text(self.static), _static_text(other.static)),
        ):
            if mine != theirs:
                lines.append(f"{what}: {mine} -> {theirs}")
        mine, theirs = ({(b.text, b.kind): b for b in r.breaks} for r in (self, other))
        lines += [f"- {_break_line(b)}" for key, b in mine.items() if key not in theirs]
        lines += [f"+ {_break_line(b)}" for key, b in theirs.items() if key not in mine]
        ways, now = ({r.number: r.way for r in report.regions} for report in (self, other))
        both = [n for n in ways if n in now and ways[n] != now[n]]
        lines += [f"R{n}: {ways[n]} -> {now[n]}" for n in both]
        return "\n".join(lines)

    def __str__(self) -> str:
        return "\n".join(text or "" for text, _ in self.styled())

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        if Table is None or Text is None:
            yield str(self)
            return
        table = Table("region", "lines", "equations", "calls", "ms", "way", box=None)
        for r in self.regions:
            cells = f"R{r.number}", _span(r.lines), r.equations, r.calls, _ms(r.seconds), r.way
            table.add_row(*map(str, cells))
        for text, style in self.styled(with_regions=False):
            if text is None:
                yield table
            else:
                yield Text(text, style or "")

    def styled(self, with_regions: bool = True) -> Iterator[tuple[Any, Any]]:
        """The report as (line, style); None where the table of regions stands."""
        yield from ((line, "bold" if i == 0 else None) for i, line in enumerate(self._header()))
        if self.regions:
            yield "", None
            if with_regions:
                yield from ((line, None) for line in _columns(self.regions))
            else:
                yield None, None
            for r in self.regions:
                yield from ((f"  {line}", "dim") for line in _details(r))
        for source in self.sources:
            yield "", None
            yield f"{source.name}  ({MARKS})", "bold"
            width = max(len(",".join(line.marks)) for line in source.lines)
            for line in source.lines:
                marks = ",".join(line.marks)
                style = COLOURS.get(marks[:1])
                yield f"{line.number:>5} {marks:<{width}} | {line.text}".rstrip(), style
        for number, b in enumerate(self.breaks, 1):
            yield "", None
            yield f"break {number}: {_break_line(b)}", "bold"
            yield from ((f"  {line}", None) for line in _break_details(b))
        if self.notes:
            yield "", None
            yield "notes", "bold"
            yield from ((f"  {n.where}: {n.what}. {n.why}".rstrip(), "dim") for n in self.notes)

    def _header(self):
        regions = _counted(len(self.regions), "region")
        yield (
            f"{self.function}: {self.share:.0%} of operations and {self.flop_share:.0%} of "
            f"arithmetic in {regions}, {_counted(len(self.breaks), 'break')}"
        )
        numpy = sum(self.ops.values()) and self.ops["numpy"] / sum(self.ops.values())
        if numpy:
            yield f"  {numpy:.0%} of operations in regions that run through NumPy, without XLA"
        yield (
            f"  {_ms(self.seconds)} ms now, {_ms(self.first_seconds)} ms the first time; XLA "
            f"compiled for {self.compile_seconds:.2f} s; {_counted(self.executables, 'executable')}"
        )
        if self.runs > 1 and any(b.kind in ("effect", "object") for b in self.breaks):
            yield f"  called {self.runs} times to see this, each time with its side effects"
        if self.static:
            yield f"  static arguments: {_static_text(self.static)}"


def _columns(regions):
    """The table of regions as text."""
    rows = [("region", "lines", "equations", "calls", "ms", "way")]
    for r in regions:
        rows.append(
            (
                f"R{r.number}",
                _span(r.lines),
                str(r.equations),
                str(r.calls),
                _ms(r.seconds),
                r.way + ", lifted" * r.lifted,
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(6)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        yield "  ".join(cells).rstrip()


def _details(r: RegionSeen):
    parts = [f"{name} = {', '.join(map(str, sizes))}" for name, sizes in r.sizes.items()]
    if parts:
        yield f"R{r.number} sizes seen: {'; '.join(parts)}"
    if r.static:
        yield f"R{r.number} static: {', '.join(r.static)}"
    if r.executables or r.programs > 1:
        text = f"R{r.number}: {_counted(r.programs, 'program')}"
        text += f", {_counted(r.executables, 'executable')}"
        yield text + (f", compiled for {r.compile_seconds:.2f} s" if r.compile_seconds else "")


def _break_line(b: BreakSeen) -> str:
    return f"{b.where}: {WORDS.get(b.kind, b.kind)}"


def _break_details(b: BreakSeen):
    yield b.text
    yield f"why: {b.why}"
    if b.avals:
        yield f"asks for: {', '.join(b.avals)}"
    if b.inputs:
        yield f"depends on: {', '.join(b.inputs)}"
    size = f", {_bytes(b.bytes)}" if b.bytes else ""
    yield f"done by: {b.done}; {_counted(b.calls, 'time')}, {_ms(b.seconds)} ms{size}"
    yield f"instead: {b.suggestion or 'nothing found that is equal here'}"


def _share(parts: dict) -> float:
    every = sum(parts.values())
    return (every - parts.get("host", 0)) / every if every else 0.0


def _as_lists(x):
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        return {f.name: _as_lists(getattr(x, f.name)) for f in dataclasses.fields(x)}
    if isinstance(x, dict):
        return {str(k): _as_lists(v) for k, v in x.items()}
    return [_as_lists(item) for item in x] if isinstance(x, list | tuple) else x


def _static_text(static: dict) -> str:
    return ", ".join(f"{k} = {v}" for k, v in static.items())


def _span(lines) -> str:
    return str(lines[0]) if lines[0] == lines[1] else f"{lines[0]}-{lines[1]}"


def _counted(n: int, what: str) -> str:
    return f"{n:,} {what}{'s' * (n != 1)}"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.2f}"


def _bytes(n: float) -> str:
    for unit in ("B", "kB", "MB"):
        if n < 1000:
            return f"{n:.3g} {unit}"
        n /= 1000
    return f"{n:.3g} GB"
