"""What holds for one call of a converted function: its options, and what was raised on the way."""

import contextlib
import contextvars
import itertools
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

from malleable.arrays.box import Box
from malleable.errors import TransformError
from malleable.notes import listen, note, unheard


@dataclass(frozen=True)
class Options:
    """How to convert. See `autograph` and `loop`.

    exact: refuse what has no one meaning once it is compiled: a `raise` that a value decides, a
    variable that is a number of one type here and of another there; and no array changes in place.
    """

    mode: Literal["full", "explicit"] = "full"
    checked: bool = False
    strict: bool = False
    max_steps: int | None = None
    roll: bool | Literal["auto"] = False
    exact: bool = False


class AutographOptions(TypedDict, total=False):
    """What `autograph` is told by name, as types have it: the fields of `Options`."""

    mode: Literal["full", "explicit"]
    checked: bool
    strict: bool
    max_steps: int | None
    roll: bool | Literal["auto"]
    exact: bool


@dataclass
class Session:
    """raised: whether a dropped `raise` would have happened; a loop stops there.

    lost: whether that is one of Python's own, for what is not there: an integer is none then.
    attempts: each `try` whose body runs now.
    """

    options: Options
    call: Callable = lambda fun, *args: fun(*args)  # how the user's methods are run
    raised: Box = field(default_factory=lambda: Box(False, True))
    lost: Box = field(default_factory=lambda: Box(False, True))
    attempts: list = field(default_factory=list)
    names: bool = False  # whether a handler of NameError may ask which names a path has bound
    mixed: bool = False  # some number is an int on one path and a float on the other
    open_ended: bool = False  # in a loop of which nothing but an option says how long it is
    unrolls: bool = False  # in a compiled loop that is unrolled instead if a list in it grows
    lanes: bool = False  # under vmap: numbers come in arrays, whatever they were
    inside: dict = field(default_factory=dict)  # by code of a block: in how many of it we are
    again: dict = field(default_factory=dict)  # by code: how often it was met in itself since
    around: dict = field(default_factory=dict)  # what the loop around us carries
    written: dict = field(default_factory=dict)  # by code of a loop: places on the heap
    said: int = 0  # calls of print so far
    stdout: Any = field(default_factory=lambda: sys.stdout)
    defaults: set = field(default_factory=set)  # (class, attribute) that some instance may lack
    lines: dict = field(default_factory=dict)  # by (what, why) of a note: the lines that it is on
    wide: dict = field(default_factory=dict)  # notes for where there is a `narrow` float, too
    narrow: bool = False  # whether a float is of less precision than Python's
    looked: set = field(default_factory=set)  # ids of dicts, and of keys that they have
    keyed: list = field(default_factory=list)  # (what has traced keys, as it was, where)
    # see decisions: by id of a bool, of what it was chosen, and what it is together with others
    chosen: dict = field(default_factory=dict)
    joint: dict = field(default_factory=dict)
    path: list = field(default_factory=list)  # (test, answer, what it tells), of those around us
    uncertain: dict = field(default_factory=dict)  # by id: (a dict, a key it may not have, where)

    def is_screen(self, file) -> bool:
        """Whether what is printed there is read by nobody in the program."""
        return file is self.stdout or file is sys.stderr


_session: contextvars.ContextVar[Session | None] = contextvars.ContextVar("session", default=None)


def session() -> Session:
    found = _session.get()
    return found if found is not None else Session(Options())


LINES = 12  # of one kind that a note names


def note_line(what: str, where: str, why: str = "", wide: bool = False) -> None:
    """Leave a note when the function has been traced: one for all lines that it is on."""
    lines = (session().wide if wide else session().lines).setdefault((what, why), [])
    if where not in lines:
        lines.append(where)


@contextlib.contextmanager
def notes_aside() -> Iterator[Callable]:
    """Keep the notes of the block back; what it gives leaves them after all."""
    here = session()
    kept, here.lines = here.lines, (mine := {})

    def leave():
        for found in said:
            note(found.what, found.where, found.why)
        for (what, why), lines in mine.items():
            for line in lines:
                note_line(what, line, why)

    try:
        with unheard(), listen() as said:
            yield leave
    finally:
        here.lines = kept


def folded(lines: Sequence[str]) -> str:
    """`a.py:3 in f`, `a.py:7 in f` and `a.py:9 in g` as `a.py:3, 7 in f; 9 in g`."""
    found = [re.fullmatch(r"(.*):(\d+) in (.*)", line) for line in lines]
    if len(lines) == 1 or not all(found):
        return "; ".join(lines)
    known = sorted((m[1], int(m[2]), m[3]) for m in found if m)
    parts, last = [], ""
    for (file, name), group in itertools.groupby(known, lambda line: (line[0], line[2])):
        numbers = ", ".join(str(number) for _, number, _ in group)
        parts.append(f"{numbers} in {name}" if file == last else f"{file}:{numbers} in {name}")
        last = file
    return "; ".join(parts)


def active() -> bool:
    return _session.get() is not None


def run_in_session(new: Session, fun: Callable, *args, **kwargs) -> Any:
    """fun(*args), in a session."""
    token = _session.set(new)
    try:
        return fun(*args, **kwargs)
    finally:
        for (what, why), lines in (new.lines | (new.wide if new.narrow else {})).items():
            note(what, folded(lines), why)
        _session.reset(token)


def drop_raise(error, where: str) -> None:
    """A note that a `raise` does not happen; an error where exactly that is asked for."""
    if session().options.exact:
        raise TransformError(
            f"a value decides whether `{type(error).__name__}` is raised", where=where
        ) from error
    note_line(
        f"`raise {type(error).__name__}` does not happen in a compiled program",
        getattr(error, "__malleable_where__", where),
        "floating-point results are NaN there; checked=True makes it an error",
    )
