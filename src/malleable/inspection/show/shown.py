"""What `show` and `diff` give: the forms of a program, as data that prints and becomes a page."""

import itertools
import os
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from malleable.inspection.show import listing
from malleable.inspection.show.page import fragment, html
from malleable.inspection.show.rows import lines
from malleable.inspection.show.rows.aligned import MARKS, Change
from malleable.inspection.show.rows.outline import Body
from malleable.notes import Note

Sources = dict[str, dict[int, str]]  # {file: {line: text}}


class Cost(NamedTuple):
    """What an equation costs in one run of the program, all steps of the loops around it.

    flops, bytes: see `counting.count`; share: of the whole program, 0 to 1, the larger of the
    share of the flops and of the bytes.
    """

    flops: float
    bytes: float
    share: float


@dataclass(frozen=True)
class Stage:
    """One form of a program.

    name: "source", "converted", "jaxpr", "pass cse", "stablehlo" or "optimised hlo".
    kind: "code" (Python text), "program" (has a body) or "hlo" (text).
    text: of code and hlo; file, line: where code begins, "" and 0 for code that is in no file.
    arguments: where the inputs of the first program come from, as `params['w']`, in their order.
    body: the outline of a program; costs: {row.number: Cost} of its rows, at any depth.
    before: how many equations there were before a pass, None for what is no pass; changes: what
    the pass did, equation by equation; () for what is no pass, and where it did nothing.
    """

    name: str
    kind: str
    text: str = ""
    file: str = ""
    line: int = 0
    body: Body | None = None
    arguments: tuple[str, ...] = ()
    costs: dict[int, Cost] = field(default_factory=dict, repr=False)
    before: int | None = None
    changes: tuple[Change, ...] = field(default=(), repr=False)

    @property
    def size(self) -> int:
        """How many equations there are, at any depth; 0 for a text."""
        return self.body.size if self.body else 0


@dataclass(frozen=True, repr=False)
class Shown:
    """The program of a function after each stage. Displays itself; `html(path)` writes a page.

    name: of the function; stages: in order; sources: {file: {line: text}} of the lines that
    equations point at, with the functions around them; notes: what was decided on the way;
    limit: how many equations to print before bodies are folded, None for all.
    """

    name: str
    stages: tuple[Stage, ...]
    sources: Sources
    notes: tuple[Note, ...] = ()
    limit: int | None = 500

    def __repr__(self):
        parts = [f"{s.name} ({s.size})" if s.body else s.name for s in self.stages]
        return f"<program of {self.name}: {', '.join(parts)}>"

    def __str__(self):
        return self.text()

    def text(self, width: int | None = None, *, limit: int | None = None) -> str:
        """All stages as text; width: in characters, without it lines are as long as they are.

        limit: how many equations of each program before bodies are folded; all, if not given.
        """
        return lines.as_text(listing.of_shown(self, limit), width)

    def html(self, path: str | os.PathLike | None = None) -> str:
        """One page that needs nothing else, as text, and written to `path`."""
        return listing.written(html.page(self), path)

    def _repr_html_(self) -> str:
        return fragment.of_shown(self)


class Totals(NamedTuple):
    """Of a whole program: how many equations, flops, and bytes read and written."""

    equations: int
    flops: float
    bytes: float


@dataclass(frozen=True, repr=False)
class Difference:
    """What became of a program: `changes`, equation by equation.

    names: of the two; old, new: their outlines; before, after: their totals; marks: how many
    equations, at any depth, are "kept", "removed", "added" or "changed".
    """

    names: tuple[str, str]
    old: Body
    new: Body
    changes: tuple[Change, ...]
    before: Totals
    after: Totals
    sources: Sources
    notes: tuple[Note, ...] = ()

    @property
    def marks(self) -> dict[str, int]:
        counts: Counter = Counter()
        for change in itertools.chain.from_iterable(c.all() for c in self.changes):
            for mark, n in change.marks:
                counts[mark] += n
        return {mark: counts[mark] for mark in MARKS if counts[mark]}

    def __repr__(self):
        counted = ", ".join(f"{n} {mark}" for mark, n in self.marks.items())
        return f"<difference of {self.names[0]} and {self.names[1]}: {counted}>"

    def __str__(self):
        return self.text()

    def text(self, width: int | None = None) -> str:
        """The marked equations as text; width: in characters."""
        return lines.as_text(listing.of_difference(self), width)

    def html(self, path: str | os.PathLike | None = None) -> str:
        """One page that needs nothing else, as text, and written to `path`."""
        return listing.written(html.diff_page(self), path)

    def _repr_html_(self) -> str:
        return fragment.of_difference(self)
