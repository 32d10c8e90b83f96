"""A `Program` as lines of JSON, one equation a line, and back; what every line may say is here."""

import json
from collections.abc import Iterator
from typing import Any

from malleable.compat import Place
from malleable.errors import MalleableError
from malleable.inspection.files.format import places, types, values
from malleable.inspection.files.format.program import Atom, Body, Equation, Number, Program

_FARTHEST = 10**6  # the last line of a file that is taken for real
HINT = "load the file as it was written; what was edited by hand has to keep the form of a line"


def spell_program(program: Program) -> Iterator[str]:
    """The lines of a program: frames, constants, then body after body."""
    frames: dict[Place, int] = {}
    for body in program.bodies.values():
        for eqn in body.equations:
            for place in eqn.at:
                frames.setdefault(place, len(frames))
    for place, number in frames.items():
        span = [place.line, place.column, place.end_line, place.end_column]
        where = {"file": place.file, "function": place.function, "span": span}
        yield _json_line({"line": number, **where, "text": places.text_of(place)})
    for name, constant in program.constants.items():
        yield _json_line({"constant": name, **values.encode_array(constant)})
    for body in program.bodies.values():
        main = {"main": True} if body.name == program.main else {}
        takes = [f"{name}: {kind}" for name, kind in body.ins]
        yield _json_line({"body": body.name, "called": body.called, "takes": takes, **main})
        yield from (_json_line(_spell_equation(eqn, frames)) for eqn in body.equations)
        yield _json_line({"gives": [_spell_atom(a) for a in body.outs]})


def _json_line(content: dict) -> str:
    return json.dumps(content, ensure_ascii=False, allow_nan=False)


def _spell_equation(eqn: Equation, frames: dict[Place, int]) -> dict:
    params = {name: values.encode(p) for name, p in eqn.params.items()}
    found = {
        "let": [f"{name}: {kind}" for name, kind in eqn.outs],
        "be": eqn.operation,
        "of": [_spell_atom(a) for a in eqn.ins],
        "with": params,
        "at": [frames[place] for place in eqn.at],
        "in": [f"{kind} {name}" for kind, name in eqn.names],
        "under": {name: values.encode(p) for name, p in eqn.context.items()},
    }
    return {key: x for key, x in found.items() if x or key in ("let", "be", "of")}


def _spell_atom(atom: Atom) -> Any:
    return values.encode_number(atom) if isinstance(atom, Number) else atom


# ---------------------------------------------------------------- and back


def parse(lines: list[str]) -> Program:
    """The program of some lines. Raises MalleableError for lines that are none."""
    reader = _Parser()
    for number, line in enumerate(lines, 3):
        try:
            reader.take(json.loads(line, parse_constant=_no_constant))
        except MalleableError as err:
            raise MalleableError(f"line {number}: {err.what}", hint=err.hint or HINT) from err
        except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError) as err:
            raise MalleableError(f"line {number} says nothing of a program", hint=HINT) from err
    return reader.finished()


def _no_constant(text):
    raise ValueError(text)


class _Parser:
    """Takes line after line."""

    def __init__(self):
        self.frames: list[Place] = []
        self.text: dict[tuple[str, int], str] = {}
        self.files: dict[str, str] | None = None
        self.constants: dict = {}
        self.bodies: dict[str, Body] = {}
        self.main: str | None = None
        self.open: Body | None = None

    def take(self, found: dict) -> None:
        kinds = [k for k in ("line", "constant", "body", "let", "gives") if k in found]
        if len(kinds) != 1:
            raise MalleableError("a line that says nothing of a program")
        getattr(self, f"take_{kinds[0]}")(found)

    def take_line(self, found):
        _only(found, "line file function span text")
        numbers = [_integer(n) for n in found["span"]]
        line, column, end_line, end_column = numbers
        sound = 1 <= line <= end_line <= _FARTHEST and min(column, end_column) >= 0
        sound = sound and (line < end_line or column <= end_column)
        if not sound or found["line"] != len(self.frames) or self.bodies:
            raise MalleableError("a source line that cannot be")
        place = Place(_string(found["file"]), line, _string(found["function"]), *numbers[1:])
        if "\0" in place.file or max(column, end_column) > _FARTHEST:
            raise MalleableError("a source line that cannot be")
        self.frames.append(place)
        self.text[place.file, line] = _string(found["text"])

    def take_constant(self, found):
        _only(found, "constant array base64")
        name = _string(found["constant"])
        if name in self.constants:
            raise MalleableError(f"there are two constants {name!r}")
        self.constants[name] = values.decode_array({k: found[k] for k in ("array", "base64")})

    def take_body(self, found):
        _only(found, "body called takes", "main")
        name = _string(found["body"])
        if self.open or name in self.bodies:
            raise MalleableError(f"there are two bodies {name!r}, or one inside the other")
        if found.get("main") is True:
            if self.main is not None:
                raise MalleableError("there are two main bodies")
            self.main = name
        ins = [_typed(text) for text in found["takes"]]
        self.open = Body(name, ins, [], [], _string(found["called"]))

    def take_let(self, found):
        _only(found, "let be of", "with at in under")
        if self.open is None:
            raise MalleableError("an equation outside of any body")
        if self.files is None:
            self.files = places.remember(self.text)
        at = tuple(self._place(_integer(i)) for i in found.get("at", []))
        names = tuple(_scope(text) for text in found.get("in", []))
        params, context = (
            {_string(n): values.decode(p) for n, p in found.get(key, {}).items()}
            for key in ("with", "under")
        )
        outs = tuple(_typed(text) for text in found["let"])
        ins = tuple(_parse_atom(a) for a in found["of"])
        eqn = Equation(_string(found["be"]), outs, ins, params, at, names, context)
        self.open.equations.append(eqn)

    def take_gives(self, found):
        _only(found, "gives")
        if self.open is None:
            raise MalleableError("a body ends that never began")
        self.open.outs = [_parse_atom(a) for a in found["gives"]]
        self.bodies[self.open.name], self.open = self.open, None

    def _place(self, number: int) -> Place:
        place = self.frames[number] if 0 <= number < len(self.frames) else None
        if place is None:
            raise MalleableError(f"there is no source line {number}")
        return place._replace(file=(self.files or {}).get(place.file, place.file))

    def finished(self) -> Program:
        if self.open or self.main is None:
            raise MalleableError("the program has no end", hint=HINT)
        return Program(self.main, self.bodies, self.constants)


def _only(found: dict, required: str, optional: str = "") -> None:
    keys, needed = set(found), set(required.split())
    if keys - needed - set(optional.split()) or needed - keys:
        raise MalleableError(f"a line has {sorted(keys)}, and is to have {sorted(needed)}")


def _string(x) -> str:
    if not isinstance(x, str):
        raise MalleableError(f"{x!r} is no text")
    return x


def _integer(x) -> int:
    if type(x) is not int:
        raise MalleableError(f"{x!r} is no whole number")
    return x


def _typed(text) -> tuple[str, str]:
    name, colon, kind = _string(text).partition(": ")
    if not colon or not (name.isidentifier() or name == "_"):
        raise MalleableError(f"{text!r} names no value and its type")
    types.parse(kind)
    return name, kind


def _scope(text) -> tuple[str, str]:
    kind, _, name = _string(text).partition(" ")
    if kind not in ("scope", "transform"):
        raise MalleableError(f"{text!r} is no name around an equation")
    return kind, name


def _parse_atom(found) -> Atom:
    return found if isinstance(found, str) else values.decode_number(found)
