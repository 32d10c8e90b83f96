"""What `show` and `diff` print: stages under headings, changes as a tree, notes."""

import functools
import itertools
import os
import pathlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from malleable.inspection.show.rows import lines
from malleable.inspection.show.rows.lines import Line, Node

_SHORT_RUN = 3  # kept equations that are not worth folding
_COLORS = {"removed": "red", "added": "green", "changed": "yellow", "kept": "dim"}
_SIGNS = {"removed": "- ", "added": "+ ", "changed": "~ ", "kept": "  "}


def of_shown(shown: Any, limit: int | None, *, brief: bool = False) -> Iterator[Line]:
    """All stages and notes; brief: without source, and of passes what they did and what is left."""
    stages = [s for s in shown.stages if not (brief and s.name == "source")]
    passes = [s for s in stages if s.before is not None]
    for stage in stages:
        if len(stages) > 1:
            yield _heading(stage)
        if stage.kind != "program":
            yield from _code(stage)
        elif stage.before is not None and brief:
            yield from of_changes(stage.changes)
            if stage is passes[-1] and any(s.changes for s in passes):
                yield _bar("the program after all passes")
                yield from lines.of_body(stage.body, stage.costs, limit)
        elif not passes or stage.before is None or stage.changes:
            yield from _inputs(stage)
            yield from lines.of_body(stage.body, stage.costs, limit)
    if shown.notes:
        yield from _notes(shown.notes)


def _inputs(stage) -> Iterator[Line]:
    """Which input is which, where they come in trees: `a = params['w']`."""
    names = [x.name for x in stage.body.ins] if stage.arguments else []
    if not all(map(str.isidentifier, stage.arguments)):
        for name, path in zip(names, stage.arguments, strict=True):
            yield Line("", "", [(f"{name} = ", "dim"), (path, "cyan")])


def _bar(text) -> Line:
    return Line("", "", [(f"── {text}", "bold")])


def _heading(stage) -> Line:
    if stage.before is not None:
        return _bar(f"{stage.name}: {became(stage)}")
    if stage.body:
        return _bar(f"{stage.name}, {lines.equations(stage.size)}")
    return _bar(
        f"{stage.name}, {lines.spell_at(stage.file, stage.line)}" if stage.file else stage.name
    )


def became(stage: Any) -> str:
    """What a pass made of the program, in words: `5 equations, now 3: -2 sin, +1 mul`."""
    if not stage.changes:
        return f"{lines.equations(stage.before)}, nothing to do"
    found = [c for change in stage.changes for c in change.all()]
    counts = Counter((c.mark, c.row.primitive) for c in found if c.row)
    told = [
        f"{sign}{n} {name}"
        for mark, sign in (("removed", "-"), ("added", "+"))
        for (marked, name), n in counts.most_common()
        if marked == mark
    ]
    told = [*told[:6], "..."] if told[6:] else told
    changed = sum(c.mark == "changed" for c in found)
    told += [f"{changed} changed"] * bool(changed)
    return f"{change_of(stage.before, stage.size)}: {', '.join(told)}"


def _code(stage) -> Iterator[Line]:
    texts = stage.text.rstrip().splitlines()
    wide = len(str(stage.line + len(texts)))
    for number, text in enumerate(texts, stage.line):
        guide = f"{number:{wide}} │ " if stage.line else "│ "
        yield Line(guide, " " * (len(guide) - 2) + "│ ", [(text, "")])


def _notes(notes) -> Iterator[Line]:
    yield _bar("notes")
    for note, times in Counter(notes).items():
        text = note.what + (f" ({times} times)" if times > 1 else "")
        where = f"  {note.where}" if note.where else ""
        yield Line(
            "", "    ", [(text, ""), (where, "cyan"), (f"  {note.why}" * bool(note.why), "dim")]
        )


def of_difference(difference: Any) -> Iterator[Line]:
    """Totals, then the changes as a tree, then notes."""
    (old, new), before, after = difference.names, difference.before, difference.after
    yield _bar(f"{old} and {new}" if old != new else f"{old}, before and after")
    yield Line("", "    ", [(change_of(before.equations, after.equations), "")])
    work = [
        f"{label} {lines.quantity(a, unit)}"
        + (f", now {lines.quantity(b, unit)}" if a != b else "")
        for label, unit, a, b in (
            ("work", "flop", before.flops, after.flops),
            ("moved", "B", before.bytes, after.bytes),
        )
    ]
    yield Line("", "    ", [("; ".join(work), "")])
    marks = difference.marks
    if set(marks) <= {"kept"}:
        yield Line("", "", [("nothing changed", "bold")])
    else:
        yield Line("", "", [(", ".join(f"{n:,} {mark}" for mark, n in marks.items()), "")])
        yield from of_changes(difference.changes)
    if difference.notes:
        yield from _notes(difference.notes)


def change_of(before: int, after: int) -> str:
    return lines.equations(before) + (f", now {after:,}" if after != before else "")


def of_changes(changes: Sequence[Any]) -> Iterator[Line]:
    """Changes as a tree, what is kept folded; each line begins with -, +, ~ or two spaces."""
    return lines.drawn(*_changed(changes, None), signed=True)


def _changed(changes, last) -> list[Node]:
    items: list = []
    for kept, run in itertools.groupby(changes, lambda c: c.mark == "kept"):
        run = list(run)
        if kept and len(run) > _SHORT_RUN:
            items.append((None, functools.partial(_folded, len(run))))
        else:
            items += [(lines.at(c.row), functools.partial(_change, c)) for c in run]
    return lines.under_lines(items, last)


def _folded(n, last) -> Node:
    return Node([[(f"… {lines.equations(n)} kept", "italic dim")]])


def _change(change, last) -> Node:
    text, why = change.now or change.was, "" if change.why == "inside" else change.why
    if why and change.mark == "changed":
        was = change.was.partition(" = ")[2] if why == "operands" else change.was
        why += f", was {was}"
    inside = [
        Node([[(f"{role}:", "italic")]], _changed(changes, last))
        for role, changes in change.inner
        if any(c.mark != "kept" for c in changes)
    ]
    spans = [(text, _COLORS[change.mark]), (f"  # {why}" * bool(why), "dim")]
    return Node([spans], inside if change.mark == "changed" else [], _SIGNS[change.mark])


def written(text: str, path: str | os.PathLike | None) -> str:
    """The text, after writing it to `path`, if there is one."""
    if path is not None:
        pathlib.Path(path).write_text(text, encoding="utf-8")
    return text
