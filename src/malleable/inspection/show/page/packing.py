"""What a page shows, as little JSON as that takes: each word, line and chain of frames once.

`page.js` reads it. Places in a list are fixed; what is at its end and empty is left out.
"""

import base64
import itertools
import json
import math
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from malleable.compat import Place
from malleable.inspection import places
from malleable.inspection.show.rows.aligned import Change
from malleable.inspection.show.rows.outline import Body, Named, Row
from malleable.notes import Note

_PLAIN = 60_000  # characters of JSON that stand in a page as they are; more is compressed
_AROUND = 2  # kept equations that are shown beside one that is not

Sources = Mapping[str, Mapping[int, str]]
Costs = Mapping[int, Any]


class Packer:
    """Lists of numbers for programs, and the tables these numbers point into."""

    def __init__(self):
        self.words: dict[str, int] = {"": 0}
        self.files: dict[str, int] = {}
        self.places: dict[Place, int] = {}
        self.links: dict[tuple[int, int], int] = {}  # (place, link of the frames around it)
        self._chains: dict[tuple[Place, ...], int] = {}

    def word(self, text: str) -> int:
        return self.words.setdefault(text, len(self.words))

    def place(self, place: Place | None) -> int:
        if place is None:
            return -1
        self.files.setdefault(place.file, len(self.files))
        return self.places.setdefault(place, len(self.places))

    def chain(self, chain: tuple[Place, ...]) -> int:
        if chain not in self._chains:
            link = -1
            for place in reversed(chain):
                link = self.links.setdefault((self.place(place), link), len(self.links))
            self._chains[chain] = link
        return self._chains[chain]

    def named(self, named: Sequence[Named]) -> list:
        return [x for one in named for x in (one.name, self.word(one.type))]

    def body(self, body: Body, costs: Costs) -> list:
        """[role, inputs, results, rows]"""
        rows = [self.row(row, costs) for row in body.rows]
        return [self.word(body.role), self.named(body.ins), self.named(body.outs), rows]

    def row(self, row: Row, costs: Costs) -> list:
        """[primitive, place, chain, size, results, operands, parameters, flops, bytes, share,
        name, steps, bodies, module]"""
        cost = costs.get(row.number)
        return _trimmed(
            [
                *self._head(row),
                self.named(row.outs),
                list(row.ins),
                self.word(", ".join(f"{k}={v}" for k, v in row.params)),
                *(map(_short, (cost.flops, cost.bytes, cost.share)) if cost else (0, 0, 0)),
                *self._tail(row),
                [self.body(body, costs) for body in row.bodies],
                self.word(row.module),
            ]
        )

    def changes(self, changes: Sequence[Change], whole: bool = False) -> list:
        """Changes; a run of kept equations, far from others, as one row around them.

        Without `whole`, only their number takes the place of a run.
        """
        moved, packed = [change.is_moved for change in changes], []
        near = [any(moved[max(0, i - _AROUND) : i + _AROUND + 1]) for i in range(len(moved))]
        for shown, run in itertools.groupby(zip(near, changes, strict=True), lambda x: x[0]):
            rows = [change for _, change in run]
            if shown:
                packed += [self.change(change, whole) for change in rows]
            elif whole:
                inner = [0, [], [], [self.change(change, whole) for change in rows]]
                packed.append([0, -1, -1, 0, "run", "", "", "", 0, 0, 0, 0, [inner]])
            else:
                packed.append(sum(_changed_equations(change) for change in rows))
        return packed

    def change(self, change: Change, whole: bool) -> list:
        """As `row`, with [mark, was, now, why, 0, 0] from the results to the share."""
        row = change.row
        inner = [
            [self.word(role), [], [], self.changes(changes, whole)]
            for role, changes in change.inner
        ]
        if row and not inner and not change.why:  # it is kept, removed or added as a whole
            inner = [self._alike(body, change.mark, whole) for body in row.bodies]
        what = [change.mark, change.was, change.now, change.why]
        head, tail = (self._head(row), self._tail(row)) if row else ([0, -1, -1, 0], [0, 0])
        module = self.word(row.module) if row else 0
        return _trimmed([*head, *what, 0, 0, *tail, inner, module])

    def _alike(self, body: Body, mark: str, whole: bool) -> list:
        """A body all of whose equations have the same mark; their number, without `whole`."""
        rows: list = [body.size] if body.size else []
        if whole:
            each = ((row, _equation_text(row)) for row in body.rows)
            rows = [self.change(Change(mark, row, row, text, text), whole) for row, text in each]
        return [self.word(body.role), [], [], rows]

    def _head(self, row: Row) -> list:
        return [self.word(row.primitive), self.place(row.place), self.chain(row.chain), row.bytes]

    def _tail(self, row: Row) -> list:
        name = row.eqn.params.get("name")
        return [self.word(name if isinstance(name, str) else ""), row.steps or 0]

    def note(self, note: Note) -> list:
        """[what, where, why, file, line], -1 for a file that is not known"""
        found = re.match(r"(.*):(\d+)( in .*)?$", note.where)
        file, line = (found[1], int(found[2])) if found else ("", 0)
        known = (n for f, n in self.files.items() if file in (f, places.relative(f)))
        where = places.relative(file) + note.where[len(file) :]
        return [note.what, where, note.why, next(known, -1), line]

    def tables(self, sources: Sources) -> dict[str, Any]:
        for file in sources:
            self.files.setdefault(file, len(self.files))
        span = lambda p: (p.line, p.column, p.end_line, p.end_column)  # noqa: E731
        short = lambda function: function.rpartition("<locals>.")[2]  # noqa: E731
        return {
            "words": list(self.words),
            "files": [
                [places.relative(f), int(places.is_own(f)), sources.get(f, {})] for f in self.files
            ],
            "places": [[self.files[p.file], *span(p), short(p.function)] for p in self.places],
            "links": list(self.links),
        }


def as_script(data: Any) -> tuple[str, str]:
    """(type, text) of a script element that holds data: as JSON, or zlib in base64 if that is long.

    Nothing in the text ends the element or begins a comment.

    >>> print(*as_script({"name": "</script>"}))
    application/json {"name":"\\u003c/script>"}
    """
    text = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    if len(text) < _PLAIN:
        return "application/json", text
    packed = zlib.compress(text.encode(), 9)
    return "application/zlib", base64.b64encode(packed).decode()


def _changed_equations(change: Change) -> int:
    """How many equations a change is about."""
    return 1 + sum(body.size for body in change.row.bodies) if change.row else 1


def _equation_text(row: Row) -> str:
    """An equation as text, as in `Change.now`."""
    params = f"[{' '.join(f'{k}={v}' for k, v in row.params)}]" * bool(row.params)
    outs = " ".join(f"{one.name}:{one.type}" for one in row.outs) or "()"
    return " ".join((f"{outs} = {row.primitive}{params}", *row.ins))


def _trimmed(row: list) -> list:
    while row and row[-1] in (0, "", []):
        row.pop()
    return row


def _short(number: float) -> float:
    """A number without the digits that nobody reads."""
    if not math.isfinite(number):
        return 0
    return int(number) if number == int(number) else float(f"{number:.3g}")
