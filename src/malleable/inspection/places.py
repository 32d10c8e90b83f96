"""Lines of the user's own: which frame of an equation to name, and how."""

import functools
import linecache
import os
import sys
from typing import Any

from malleable import compat
from malleable.compat import Place, is_own
from malleable.execution.regions import tracing


def own(places: list[Place]) -> Place | None:
    """The first place in a file of the user's own, else the first, else None."""
    return next((p for p in places if is_own(p.file)), places[0] if places else None)


def of(*eqns: compat.Eqn) -> Place | None:
    """The line of the user's own behind an equation; then those around it, innermost first."""
    return own(frames(*eqns))


def frames(*eqns: compat.Eqn) -> list[Place]:
    """As `compat.user_places`; in a region of `malleable.jit`, the lines that it was cut from."""
    return list(map(_place_as_written, compat.user_places(*eqns)))


def _place_as_written(place: Place) -> Place:
    if not place.file.startswith("<region "):
        return place
    where, _, function = tracing.user_line(f"{place.file}:{place.line}").rpartition(" in ")
    file, _, line = where.rpartition(":")
    return Place(file, int(line), function, 0, int(line), 0) if file else place


def spell(place: Place | None) -> str:
    """`file.py:12 in fun`, or "" for none; the file as seen from the working directory.

    >>> spell(Place("model.py", 12, "net", 1, 12, 9))
    'model.py:12 in net'
    """
    if place is None:
        return ""
    function = place.function.rpartition("<locals>.")[2]
    return f"{relative(place.file)}:{place.line} in {function}"


def relative(file: str) -> str:
    """A path as seen from the working directory, if it is in there."""
    if cell := _cell(file):
        return cell
    return _seen_from(os.getcwd(), file)


@functools.cache
def _seen_from(folder: str, file: str) -> str:
    near = os.path.relpath(file, folder) if os.path.isabs(file) else file
    return file if near.startswith("..") else near


def _cell(file: str) -> str:
    """`In [2]` for the file that IPython makes of a cell, "" for any other."""
    ipython: Any = sys.modules.get("IPython")
    shell = ipython and ipython.get_ipython()
    number = getattr(getattr(shell, "compile", None), "_filename_map", {}).get(file)
    return "" if number is None else f"In [{number}]"


def line_of(place: Place | None) -> str:
    """The text of the user's line, or "" where it cannot be read."""
    return linecache.getline(place.file, place.line).strip() if place else ""
