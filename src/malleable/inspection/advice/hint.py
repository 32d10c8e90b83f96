"""What is said of an error: the line, what disagrees there, and ways out that were tried."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

from malleable.errors import text


@dataclass(frozen=True)
class Edit:
    """New text for a span of a file; lines from 1, columns in bytes from 0, as `ast` counts them.

    >>> Edit("f.py", 2, 4, 2, 11, "jnp.where(x > 0, x, 0)").applied("def f(x):\\n    relu(x)")
    'def f(x):\\n    jnp.where(x > 0, x, 0)'
    """

    file: str
    line: int
    column: int
    end_line: int
    end_column: int
    new: str

    def applied(self, source: str) -> str:
        """The text of the file with this edit."""
        lines = source.encode().splitlines(keepends=True)
        before = b"".join(lines[: self.line - 1]) + lines[self.line - 1][: self.column]
        after = lines[self.end_line - 1][self.end_column :] + b"".join(lines[self.end_line :])
        return (before + self.new.encode() + after).decode()


@dataclass(frozen=True)
class Way:
    """A way out. edits: the source with it; tried: does the program then run, and mean the same?

    tried() is True or False, or None where it cannot be told here, as for a line with a side
    effect. What is False is not shown; what is not True is shown with "perhaps".
    """

    text: str
    edits: tuple[Edit, ...] = ()
    tried: Callable[[], bool | None] | None = None


@dataclass(frozen=True)
class Advice:
    """What an adviser makes of an error. weight: how sure and how exact; the heaviest is shown.

    where: `file.py:12 in fun: source text` of the line to edit. hint: text that nobody has tried,
    or ways out. instead: what the error should say, where its own words are false.
    """

    what: str
    where: str = ""
    hint: str | tuple[Way, ...] = ""
    weight: float = 1.0
    instead: str = ""

    @property
    def sure(self) -> list[Way]:
        """The same without what tried them, which would keep the frames alive."""
        return [Way(way.text, way.edits) for way in self.ways]

    @functools.cached_property
    def ways(self) -> tuple[Way, ...]:
        """The ways out that were tried and do."""
        return tuple(way for way, does in self._tried if does)

    @functools.cached_property
    def _tried(self) -> list[tuple[Way, bool | None]]:
        hint = (Way(self.hint),) if isinstance(self.hint, str) else self.hint
        does = lambda way: way.tried() if way.tried and way.edits else None  # noqa: E731
        return [(way, does(way)) for way in hint if way.text]

    def __str__(self):
        sure = "; or ".join(way.text for way in self.ways)
        said = {way.text for way in self.ways}
        more = (p for way, does in self._tried if does is None for p in way.text.split("; or "))
        rest = "; or ".join(part for part in more if part not in said)
        hint = "; or ".join(filter(None, (sure, rest and f"perhaps {rest}")))
        return text(self.what, self.where, hint)
