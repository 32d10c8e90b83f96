"""Which lines of the user's are behind each line of StableHLO, and of what XLA made of it."""

import functools
import re
from collections.abc import Callable

from malleable.compat import Place

Located = list[tuple[str, tuple[Place, ...]]]  # text, and its frames, innermost first

_DEEPEST = 200  # of names for places within each other; a text may be made to have no end
_STRING = r'"(?:[^"\\]|\\.)*"'
_LOC = re.compile(rf"\s*\bloc\(((?:{_STRING}|[^()\"]|\((?:{_STRING}|[^()\"]|\([^()]*\))*\))*)\)")
_ALIAS = re.compile(r"(#loc\d*) = loc\((.*)\)$")
_FILE = re.compile(rf"({_STRING}):(\d+):(\d+)(?: to (\d*):(\d+))?$")
_NAME = re.compile(rf"({_STRING})\((.*)\)$")
_METADATA = re.compile(rf',? ?\bmetadata=\{{((?:{_STRING}|[^{{}}"])*)\}}')
_TABLE = re.compile(r"(\d+) (?:\{(.*)\}|(\".*\"))$")


def located(text: str) -> Located:
    """Each line of a program as text, without what says where it comes from; and that.

    Lines that say nothing else are left out. A frame has the function's name if that is known.

    >>> mlir = '%0 = stablehlo.sine %x : tensor<f32> loc(#loc1)'
    >>> ((text, (frame,)),) = located(mlir + '\\n#loc1 = loc("sin"("net"("net.py":3:4 to :9)))')
    >>> text, frame.file, frame.line, frame.function
    ('%0 = stablehlo.sine %x : tensor<f32>', 'net.py', 3, 'net')
    """
    return _of_xla(text) if text.startswith("HloModule") else _of_mlir(text)


def _of_mlir(text: str) -> Located:
    lines = text.splitlines()
    aliases = {found[1]: found[2] for found in map(_ALIAS.match, lines) if found}

    @functools.cache
    def frames(said: str, name: str = "", depth: int = 0) -> tuple[Place, ...]:
        chain: tuple[Place, ...] = ()
        for _ in range(_DEEPEST if depth < _DEEPEST else 0):
            if said in aliases:
                said = aliases[said]
            elif found := _FILE.match(said):
                return (*chain, _place(_unquoted(found[1]), name, *found.groups()[1:]))
            elif found := _NAME.match(said):
                said, name = found[2], _unquoted(found[1])
            elif said.startswith("callsite(") and " at " in said:
                inner, _, said = said[len("callsite(") : -1].partition(" at ")
                chain, name = chain + frames(inner, name, depth + 1), ""
            elif found := re.match(r"fused(?:<.*>)?\[(.*)\]$", said):
                each = (frames(part.strip(), "", depth + 1) for part in found[1].split(","))
                return chain + next(filter(None, each), ())
            else:
                return chain
        return ()

    plain = (line for line in lines if not _ALIAS.match(line))
    return [(_LOC.sub("", line), _last(line, frames)) for line in plain]


def _last(line: str, frames: Callable[[str], tuple[Place, ...]]) -> tuple[Place, ...]:
    """The place of an operation stands at its end; places before are those of its operands."""
    found = list(_LOC.finditer(line))
    return frames(found[-1][1]) if found and found[-1].end() == len(line.rstrip()) else ()


def _place(file, name, line, column, end_line=None, end_column=None) -> Place:
    end = int(end_line) if end_line else int(line)
    return Place(file, int(line), name, int(column), end, int(end_column or column))


def _of_xla(text: str) -> Located:
    lines, frames = apart(text)
    return [
        (_METADATA.sub("", line), frames.of(said[1]) if (said := _METADATA.search(line)) else ())
        for line in lines
    ]


def apart(text: str) -> tuple[list[str], "Frames"]:
    """A text of XLA without the tables at its head, and the frames that these tell."""
    tables: dict[str, dict[int, str]] = {}
    found, table = [], None
    for line in text.splitlines():
        if line in ("FileNames", "FunctionNames", "FileLocations", "StackFrames"):
            table = tables.setdefault(line, {})
        elif table is not None and (row := _TABLE.match(line)):
            table[int(row[1])] = row[2] or row[3]
        else:
            found.append(line)
            table = table if not line else None
    return found, Frames(tables)


class Frames:
    """The frames that numbers in the text of XLA stand for."""

    def __init__(self, tables: dict[str, dict[int, str]]):
        self.names, self.functions = (
            {n: _unquoted(text) for n, text in tables.get(what, {}).items()}
            for what in ("FileNames", "FunctionNames")
        )
        self.spots, self.frames = (
            {n: _numbers(text) for n, text in tables.get(what, {}).items()}
            for what in ("FileLocations", "StackFrames")
        )
        # Where a frame would be its own parent, parents are written one too high.
        self.shift = int(any(f.get("parent_frame_id") == n for n, f in self.frames.items()))

    def of(self, metadata: str) -> tuple[Place, ...]:
        said = _numbers(metadata)
        number, chain = said.get("stack_frame_id", 0), []
        while number in self.frames and len(chain) <= len(self.frames):
            frame = self.frames[number]
            chain.append(self.place(self.spots.get(frame.get("file_location_id", 0), {})))
            number = frame.get("parent_frame_id", 0) - self.shift
        file = re.search(rf"source_file=({_STRING})", metadata)
        if not chain and file and "source_line" in said:
            chain.append(_place(_unquoted(file[1]), "", said["source_line"], 0))
        return tuple(filter(None, chain))

    def place(self, spot: dict[str, int]) -> Place | None:
        file = self.names.get(spot.get("file_name_id", 0))
        if file is None or "line" not in spot:
            return None
        name = self.functions.get(spot.get("function_name_id", 0), "")
        ends = spot.get("end_line"), spot.get("end_column")
        return _place(file, name, spot["line"], spot.get("column", 0), *ends)


def _numbers(text: str) -> dict[str, int]:
    return {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", text)}


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:-1])
