"""What holds for one call of a converted function: its options, and what was raised on the way."""

import contextvars
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

from malleable.arrays.box import Box
from malleable.errors import TransformError
from malleable.notes import note


@dataclass(frozen=True)
class Options:
    """How to convert. See `autograph` and `loop`.

    exact: refuse what has no one meaning once it is compiled: a `raise` that a value decides, a
    variable that is a number of one type here and of another there; and no array changes in place.
    """

    mode: str = "full"
    checked: bool = False
    strict: bool = False
    max_steps: int | None = None
    roll: bool | str = False
    exact: bool = False


class AutographOptions(TypedDict, total=False):
    """What `autograph` is told by name, as types have it: the fields of `Options`."""

    mode: str
    checked: bool
    strict: bool
    max_steps: int | None
    roll: bool | str
    exact: bool


@dataclass
class Session:
    """raised: whether a dropped `raise` would have happened; a loop stops there.

    attempts: each `try` whose body runs now.
    """

    options: Options
    call: Callable = lambda fun, *args: fun(*args)  # how the user's methods are run
    raised: Box = field(default_factory=lambda: Box(False, True))
    attempts: list = field(default_factory=list)
    names: bool = False  # whether a handler of NameError may ask which names a path has bound
    open_ended: bool = False  # in a loop of which nothing but an option says how long it is
    lanes: bool = False  # under vmap: numbers come in arrays, whatever they were
    inside: dict = field(default_factory=dict)  # by code of a block: in how many of it we are
    stdout: Any = field(default_factory=lambda: sys.stdout)
    defaults: set = field(default_factory=set)  # (class, attribute) that some instance may lack
    untested: dict = field(default_factory=dict)  # the lines of each thing that is not tested
    uncertain: dict = field(default_factory=dict)  # by id: (a dict, a key it may not have, where)

    def is_screen(self, file) -> bool:
        """Whether what is printed there is read by nobody in the program."""
        return file is self.stdout or file is sys.stderr


_session: contextvars.ContextVar[Session | None] = contextvars.ContextVar("session", default=None)


def session() -> Session:
    found = _session.get()
    return found if found is not None else Session(Options())


UNTESTED_LINES = 12  # of one kind that a note names


def leave_untested() -> None:
    """A note for each thing that Python would raise at, and the program does not: all its lines."""
    for what, lines in session().untested.items():
        note(what, folded(lines), "checked=True makes it an error at run time")


def folded(lines: Sequence[str]) -> str:
    """`a.py:3 in f`, `a.py:7 in f` and `a.py:9 in g` as `a.py:3, 7 in f; 9 in g`."""
    out, last = "", ("", "")
    for line in lines:
        (file, _, number), (_, _, name) = (
            line.partition(" in ")[0].rpartition(":"),
            line.partition(" in "),
        )
        if (file, name) == last:
            out = out.removesuffix(f" in {name}") + f", {number} in {name}"
        else:
            out += ("; " if out else "") + (number if file == last[0] else f"{file}:{number}")
            out += f" in {name}" if name else ""
        last = file, name
    return out


def active() -> bool:
    return _session.get() is not None


def run_in_session(new: Session, fun: Callable, *args, **kwargs) -> Any:
    """fun(*args), in a session."""
    token = _session.set(new)
    try:
        return fun(*args, **kwargs)
    finally:
        leave_untested()
        _session.reset(token)


def drop_raise(error, where: str) -> None:
    """A note that a `raise` does not happen; an error where exactly that is asked for."""
    if session().options.exact:
        raise TransformError(
            f"a value decides whether `{type(error).__name__}` is raised", where=where
        ) from error
    note(
        f"`raise {type(error).__name__}` does not happen in a compiled program",
        getattr(error, "__malleable_where__", where),
        "floating-point results are NaN there; checked=True makes it an error",
    )
