"""Texts as they stand on record: without places that move, addresses and times."""

import collections
import re

ADDRESS = re.compile(r"\b0x[0-9a-f]+")
SPACE = re.compile(r"<(python|array|selective) program -?[0-9a-f]+>")
PLACE = re.compile(r"(?:[^\s/:'\"()]*/)+([^\s/:'\"()]+\.py)(?::\d+(?:, \d+)*)?")
MORE = re.compile(r"(?<=; )\d+(?:, \d+)* in ")  # lines of the same file, of another function
LINE = re.compile(r"\b(line|lines) \d+")
OURS = re.compile(r"\bmalleable(?:\.[a-z_]\w*)+\.(?=[A-Za-z_])")


def said(text: str) -> str:
    """A text without folders, without the lines of files, and without names of our modules.

    >>> said("at /a/src/malleable/x.py:12 in f: malleable.compat.views.Call, line 3")
    'at x.py in f: malleable.Call, line n'
    """
    text = ADDRESS.sub("0x", SPACE.sub(r"<\1 program>", text))
    return OURS.sub("malleable.", LINE.sub(r"\1 n", MORE.sub("in ", PLACE.sub(r"\1", text))))


def noted(notes) -> list[str]:
    """One line for each decision that was noted, and how often."""
    texts = (" | ".join(filter(None, (n.what, n.where, n.why))) for n in notes)
    return counted("note", texts)


def counted(name, texts) -> list[str]:
    """Texts with a name, those that are equal as one.

    >>> counted("note", ["kept", "kept", "dropped"])
    ['note x 2: kept', 'note: dropped']
    """
    found = collections.Counter(map(said, texts)).items()
    return [f"{name}{f' x {n}' if n > 1 else ''}: {text}" for text, n in found]
