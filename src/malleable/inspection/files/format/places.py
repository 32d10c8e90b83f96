"""Source lines in a file: tables of frames; the text of the lines, shown where the file is gone."""

import linecache
import os
from collections.abc import Sequence

from malleable import compat
from malleable.compat import Place


def outside() -> tuple[Place, ...]:
    """The frames around the caller, which say nothing about the program: see `without`."""
    return compat.places_now()


def without(frames: Sequence[Place], around: Sequence[Place]) -> tuple[Place, ...]:
    """Frames but for those that the traced function was called from."""
    inner, outer = list(frames), list(around)
    while inner[1:] and outer and _is_same_line(inner[-1], outer[-1]):
        inner.pop()
        outer.pop()
    return tuple(inner)


def _is_same_line(a: Place, b: Place) -> bool:
    return (a.file, a.function, a.line) == (b.file, b.function, b.line)


def text_of(place: Place) -> str:
    """The text of a line, indentation included, or ""."""
    return linecache.getline(place.file, place.line).rstrip("\n")


def remember(lines: dict[tuple[str, int], str]) -> dict[str, str]:
    """Make saved lines readable to Python: {file: the name under which its lines are found}.

    A file that still says the same keeps its name. One that changed since is not to be shown
    beside a program of old: its lines are found under another name.
    """
    names = {}
    for file in {file for file, _ in lines}:
        mine = {line: text for (name, line), text in lines.items() if name == file}
        known = os.path.exists(file) or file in linecache.cache
        now = {line: linecache.getline(file, line).rstrip("\n") for line in mine} if known else mine
        names[file] = name = file if now == mine else f"{file} (as saved)"
        if not known or name != file:
            rows = [f"{mine.get(i, '')}\n" for i in range(1, max(mine) + 1)]
            linecache.cache[name] = (sum(map(len, rows)), None, rows, name)
    return names
