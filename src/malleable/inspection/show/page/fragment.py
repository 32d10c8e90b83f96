"""What `show` gave, as HTML for a page that is there already, such as a notebook: no script."""

import html
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from malleable.inspection import places
from malleable.inspection.show.page.located import located
from malleable.inspection.show.rows.aligned import Change
from malleable.inspection.show.rows.lines import equations
from malleable.inspection.show.rows.outline import Body, Named, Row

_MOST = 500  # equations that are written out: a notebook keeps all of this in its file
_UNFOLDED = 40  # equations of a body that is unfolded
_LINES = 100  # of a text
_FEW = 8  # operands, results or arguments; the others are counted
_SIGNS = {"removed": "- ", "added": "+ ", "changed": "~ "}

# Colours that can be read on white and on black: a notebook may be either.
_STYLE = (
    "<style>"
    ".malleable{font:12px/1.55 ui-monospace,Menlo,Consolas,monospace;max-height:36em;overflow:auto}"
    ".malleable details>*:not(summary){margin-left:1.3em}"
    ".malleable summary{cursor:pointer}"
    ".malleable p{margin:0 0 0 1.05em;padding:0}"
    ".malleable pre{margin:0;padding:0;background:none;color:inherit;font:inherit}"
    ".malleable .m-at{opacity:.6}"
    ".malleable .m-type{color:#6f8bb3}"
    ".malleable .m-params{color:#b5703f}"
    ".malleable .m-removed{color:#c9504a}"
    ".malleable .m-added{color:#3f9a62}"
    ".malleable .m-changed{color:#b5852f}"
    "</style>"
)


def of_shown(shown: Any) -> str:
    """Stages that fold, the first program unfolded, with the lines that equations come from."""
    room, seen = _Room(), None
    parts = [_STYLE, '<div class="malleable">', f"<b>{_text(shown.name)}</b>"]
    for stage in shown.stages:
        first = bool(stage.body) and seen is None
        head = f": {equations(stage.size)}" if stage.body else ""
        head += f", {stage.before:,} before" if stage.before is not None else ""
        parts.append(f"<details{' open' * first}><summary><b>{_text(stage.name)}</b>")
        parts.append(f"{head}</summary>")
        if stage.body is None:
            parts += _lines(stage)
        elif stage.before is None:
            parts += _body(stage.body, room)
        else:
            parts += _changes(stage.changes, room)
        parts.append("</details>")
        seen = stage.body or seen
    return "".join((*parts, *_notes(shown.notes), "</div>"))


def of_difference(difference: Any) -> str:
    """The equations that are not as they were."""
    old, new = map(_text, difference.names)
    marks = ", ".join(f"{n:,} {mark}" for mark, n in difference.marks.items())
    parts = [_STYLE, '<div class="malleable">', f"<b>{old}</b> → <b>{new}</b>: {marks}"]
    parts += _changes(difference.changes, _Room())
    return "".join((*parts, *_notes(difference.notes), "</div>"))


class _Room:
    """How many equations may still be written out."""

    def __init__(self):
        self.left = _MOST

    def take(self) -> bool:
        self.left -= 1
        return self.left >= 0


_CUT = "<p>… all of it is in <code>.html(path)</code></p>"


def _body(body: Body, room: _Room) -> Iterator[str]:
    yield f"<p>{_named_html(body.ins)} → {_named_html(body.outs)}</p>"
    last = None
    for row in body.rows:
        if not room.take():
            yield _CUT
            return
        if row.place and row.place[:2] != last:
            last = row.place[:2]
            yield _place(row)
        yield from _row(row, room)


def _row(row: Row, room: _Room) -> Iterator[str]:
    if not row.bodies:
        yield f"<p>{_equation(row)}</p>"
        return
    size = sum(body.size for body in row.bodies)
    yield f"<details{' open' * (size <= _UNFOLDED)}><summary>{_equation(row)}"
    yield f' <span class="m-at">{equations(size)}</span></summary>'
    for body in row.bodies:
        yield f"<p><i>{_text(body.role)}</i></p>" if row.bodies[1:] else ""
        yield from _body(body, room)
    yield "</details>"


def _changes(changes: Iterable[Change], room: _Room) -> Iterator[str]:
    last = None
    for change in changes:
        if not change.is_moved:
            continue
        if not room.take():
            yield _CUT
            return
        row = change.row
        if row and row.place and row.place[:2] != last:
            last = row.place[:2]
            yield _place(row)
        both = change.mark == "changed" and change.was != change.now
        texts = [("removed", change.was), ("added", change.now)]
        for mark, text in texts if both else [(change.mark, change.now or change.was)]:
            sign = _SIGNS.get(mark, "  ")
            yield f'<p class="m-{mark}">{sign}{_text(text)}</p>'
        if any(c.is_moved for _, inner in change.inner for c in inner):
            yield "<details open><summary>inside</summary>"
            for _, inner in change.inner:
                yield from _changes(inner, room)
            yield "</details>"


def _lines(stage: Any) -> Iterator[str]:
    lines = stage.text.splitlines()
    if stage.kind == "hlo":
        lines = [text for text, _ in located(stage.text)]
    yield f"<pre>{_text(chr(10).join(lines[:_LINES]))}</pre>"
    yield _CUT if lines[_LINES:] else ""


def _notes(notes: Sequence[Any]) -> Iterator[str]:
    for note in dict.fromkeys(notes):
        rest = "  ".join(filter(None, (note.where, note.why)))
        yield f'<p>{_text(note.what)} <span class="m-at">{_text(rest)}</span></p>'


def _place(row: Row) -> str:
    line = f"{places.spell(row.place)}: {places.line_of(row.place)}"
    return f'<p class="m-at">{_text(line)}</p>'


def _equation(row: Row) -> str:
    params = ", ".join(f"{k}={v}" for k, v in row.params)
    params = f'<span class="m-params">[{_text(params)}]</span>' if params else ""
    equals = " = " * bool(row.outs)
    ins = "".join(f" {_text(name)}" for name in row.ins[:_FEW]) + _more(row.ins)
    return f"{_named_html(row.outs)}{equals}<b>{_text(row.primitive)}</b>{params}{ins}"


def _named_html(named: tuple[Named, ...]) -> str:
    return " ".join(
        f'{_text(one.name)}<span class="m-type">:{_text(one.type)}</span>' for one in named[:_FEW]
    ) + _more(named)


def _more(things: Sequence) -> str:
    return f' <span class="m-at">+{len(things) - _FEW}</span>' if things[_FEW:] else ""


def _text(text: str) -> str:
    return html.escape(text)
