"""Docstrings as Markdown, for the API reference: prose as it stands, examples as code."""

import re
from typing import Any

import griffe


class Docstrings(griffe.Extension):
    """Runs while mkdocstrings reads the sources."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = markdown(obj.docstring.value)


def markdown(text: str) -> str:
    """A docstring with doctests in fences, and nothing in its prose taken for markup.

    >>> markdown("Of *args.\\n\\n>>> 1 + 1\\n2")
    'Of \\\\*args.\\n\\n```pycon\\n>>> 1 + 1\\n2\\n```'
    """
    parts = re.split(r"\n[ \t]*\n", text)
    return "\n\n".join(_example(part) if part.startswith(">>>") else _prose(part) for part in parts)


def _example(part: str) -> str:
    return f"```pycon\n{part}\n```"


def _prose(part: str) -> str:
    if part.startswith("    "):  # code already
        return part
    pieces = re.split(r"(`[^`]*`)", part)  # every other one is code
    return "".join(p if i % 2 else re.sub(r"([*_<\[\]])", r"\\\1", p) for i, p in enumerate(pieces))
