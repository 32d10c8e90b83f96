"""A topic: an ordered list of diagnoses. Each says which error it knows, what finds out more about
it, and what is said then; the first that has something to say is heard.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar

from malleable.compat import Place
from malleable.inspection.advice.evidence.trouble import Step, Trouble, here
from malleable.inspection.advice.hint import Advice, Way

T = TypeVar("T")


class Unsure(Exception):
    """What a sentence would speak of is not known: nothing is said."""


def sure(x: T | Literal[False] | None) -> T:
    """What a sentence needs to be there, or to be so: no array; Unsure where it is not."""
    if not x:
        raise Unsure
    return x


class Said(NamedTuple):
    """What is found. at: the line to edit, else the user's last; weight: else that of the topic."""

    what: str
    hint: str | tuple[Way, ...]
    at: Place | str | None = None
    weight: float = 0.0
    instead: str = ""


Probe = Callable[[re.Match, Trouble, Step], "Said | tuple | dict | None"]


@dataclass(frozen=True)
class Diagnosis:
    """One error that is known by its text, its type and a frame of JAX, as far as these are given.

    match, kind: patterns; frame: functions of JAX, one of which the error came through; library:
    a package in whose files it is raised, or on the way. probe
    gives what is said, or the values for the templates what and hint, beside the groups of match,
    _1 and so on, and `at`; None, or Unsure raised, where it is not sure.
    """

    match: str
    probe: Probe = lambda found, trouble, step: {}
    what: str = ""
    hint: str = ""
    kind: str = ""
    frame: tuple[str, ...] = ()
    library: str = ""

    def said(self, trouble: Trouble) -> Said | None:
        """What this row says of an error, None if it is another one."""
        if self.kind and not re.fullmatch(self.kind, trouble.kind):
            return None
        found = re.search(self.match, trouble.text)
        if found is None or (step := trouble.last) is None:
            return None
        if self.library and self.library not in trouble.libraries:
            return None
        if self.frame and not trouble.within(*self.frame):
            return None
        try:
            told: Any = self.probe(found, trouble, step)
        except Unsure:
            return None
        if isinstance(told, dict):
            values = {f"_{i}": group for i, group in enumerate(found.groups(), 1)} | told
            return Said(self.what.format(**values), self.hint.format(**values), told.get("at"))
        return None if told is None else Said(*told)


def topic(*rows: Diagnosis, weight: float = 3) -> Callable[[Trouble], Iterator[Advice]]:
    """The advice of the first row that has some."""

    def advise(trouble: Trouble) -> Iterator[Advice]:
        for row in rows:
            said = row.said(trouble)
            if said is not None:
                at = said.at or (trouble.last.place if trouble.last else None)
                where = at if isinstance(at, str) else here(at)
                yield Advice(said.what, where, said.hint, said.weight or weight, said.instead)
                return

    return advise
