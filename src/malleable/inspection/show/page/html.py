"""A program as a web page that needs nothing else, and as a piece of one for notebooks."""

import base64
import hashlib
import html
import importlib.resources
import re
from typing import Any

from malleable.inspection.places import own
from malleable.inspection.show.page.located import located
from malleable.inspection.show.page.packing import Packer, as_script

_ASSETS = importlib.resources.files("malleable.inspection.show.page")
_SCRIPTS = ("data", "equations", "outline", "source", "light", "page")  # in this order


def page(shown: Any) -> str:
    """The page of what `show` gave: source, program, passes and notes side by side.

    It needs nothing else, loads nothing, and runs no script but its own.

    >>> from malleable.inspection.show.stages import gather_stages
    >>> page(gather_stages(abs, (1.0,), {})).count("<script")
    2
    """
    packer, seen = Packer(), {}
    stages: list[dict] = []
    for stage in shown.stages:
        packed = {"name": stage.name, "kind": stage.kind}
        if stage.body is None:
            packed |= {"text": stage.text.rstrip(), "line": stage.line}
        else:
            first = seen.setdefault(id(stage.body), len(stages))
            again = first < len(stages)  # a pass that had nothing to do
            packed |= {"like": first} if again else {"body": packer.body(stage.body, stage.costs)}
            packed |= {"before": stage.before}
            packed |= {"changes": packer.changes(stage.changes), "marks": _marks(stage.changes)}
        stages.append(packed)
    lines = {(place.file, place.line) for place in packer.places}  # not those that called `show`
    for packed in (packed for packed in stages if packed["kind"] == "hlo"):
        texts, chains = zip(*located(packed["text"]), strict=True)
        chains = [tuple(p for p in chain if (p.file, p.line) in lines) for chain in chains]
        packed["text"] = "\n".join(texts)
        packed["at"] = [n for c in chains for n in (packer.place(own(list(c))), packer.chain(c))]
    return _filled_template(shown.name, {"stages": stages}, packer, shown)


def diff_page(difference: Any) -> str:
    """The page of what `diff` gave: source, and each equation with what became of it."""
    packer = Packer()
    old, new = difference.names
    packed = {
        "names": [old, new],
        "before": list(difference.before),
        "after": list(difference.after),
        "marks": difference.marks,
        "changes": packer.changes(difference.changes, whole=True),
    }
    return _filled_template(f"{old} and {new}", {"difference": packed}, packer, difference)


def _filled_template(title, data, packer, result) -> str:
    notes = [packer.note(note) for note in result.notes]
    data = {"title": title, **data, "notes": notes, **packer.tables(result.sources)}
    scripts = "\n".join(_asset(f"{name}.js") for name in _SCRIPTS)
    css, script = _asset("page.css"), f'"use strict";\n(async () => {{\n{scripts}}})();\n'
    kind, text = as_script(data)
    parts = {
        "title": html.escape(title),
        "css": css,
        "script": script,
        "css-hash": _hash(css),
        "script-hash": _hash(script),
        "kind": kind,
        "data": text,
    }
    return re.sub(r"\{\{([a-z-]+)\}\}", lambda found: parts[found[1]], _asset("page.html"))


def _marks(changes) -> dict[int, str]:
    """{row.number: mark} of the equations that a pass added or changed themselves."""
    found = {}
    for change in changes:
        if change.new and change.mark in ("added", "changed") and change.why != "inside":
            found[change.new.number] = change.mark
        for _, inner in change.inner:
            found |= _marks(inner)
    return found


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """What a browser compares an element with before it runs it; nothing else is run."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
