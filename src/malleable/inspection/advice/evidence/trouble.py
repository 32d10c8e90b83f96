"""An error as the topics see it: its text, and every frame with its variables."""

import functools
import linecache
import os
import pathlib
import types
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from malleable import compat, errors
from malleable.compat import Place, frames
from malleable.inspection import places


@dataclass(frozen=True)
class Step:
    """One frame of a traceback. jax: the code is JAX's or ours; own: it is the user's own."""

    frame: types.FrameType
    place: Place
    jax: bool

    @property
    def name(self) -> str:
        return self.frame.f_code.co_name

    @property
    def values(self) -> dict[str, Any]:
        """The variables of the frame, those of the enclosing functions that it uses included."""
        return self.frame.f_locals

    @property
    def held(self) -> frames.Held:
        """What the variables hold, of a function of JAX."""
        return frames.Held(self.values)

    @property
    def own(self) -> bool:
        compiled = self.place.file.endswith((".pyx", ".pxd"))  # of a library, as it was built
        lines = linecache.getlines(self.place.file) if self.place.file.startswith("<") else True
        named = self.place.file == "<string>"  # and so is what `python -c` runs
        if not lines or (named and self.frame.f_globals.get("__name__") != "__main__"):
            return False  # what a library wrote and compiled, the __init__ of a dataclass, say
        return not self.jax and not compiled and places.is_own(self.place.file)


class Trouble:
    """An error with all its frames, outermost first; look at it, do not keep it."""

    def __init__(self, error: BaseException):
        self.error = error
        self.kind = type(error).__name__
        self.text = str(error)

    @functools.cached_property
    def steps(self) -> list[Step]:
        whole = compat.whole_traceback(self.error)
        return [Step(frame, place_of(frame.f_code, at), jax) for frame, at, jax in whole]

    @functools.cached_property
    def own(self) -> list[Step]:
        """The steps in the user's own files, outermost first."""
        return [step for step in self.steps if step.own]

    @functools.cached_property
    def last(self) -> Step | None:
        """The innermost step in user code: the line Python points at."""
        return self.own[-1] if self.own else None

    @functools.cached_property
    def foreign(self) -> Step | None:
        """The innermost line of another library, if the user's own line called into one."""
        at = self.steps.index(self.last) + 1 if self.last else 0
        later = [s for s in self.steps[at:] if _is_foreign(s.place.file)]
        return later[-1] if later else None

    @functools.cached_property
    def callee(self) -> Step | None:
        """What the innermost line of user code calls: the first step after it."""
        at = self.steps.index(self.last) + 1 if self.last else 0
        later = (s for s in self.steps[at:] if not s.place.file.startswith(compat.HOOKS))
        return next((s for s in later if s.name not in frames.AROUND), None)

    @functools.cached_property
    def libraries(self) -> set[str]:
        """The folders of the files that the error came through: `optax` is one."""
        return {part for s in self.steps if not s.own for part in s.place.file.split(os.sep)[:-1]}

    def within(self, *names: str) -> Step | None:
        """The innermost step of a library in a function of one of these names."""
        return next((s for s in reversed(self.steps) if not s.own and s.name in names), None)

    def caller(self, step: Step | None) -> Step | None:
        """The innermost step of user code outside of a step."""
        before = self.steps[: self.steps.index(step)] if step else []
        return next((s for s in reversed(before) if s.own), None)

    def context(self) -> "Trouble | None":
        """The error that this one was raised from, if any."""
        inner = self.error.__cause__ or self.error.__context__
        return Trouble(inner) if inner is not None else None


_JAX = tuple(str(pathlib.Path(m.__file__ or "").parent) + os.sep for m in (jax, np, errors))


def _is_foreign(file: str) -> bool:
    """Whether a file is of an installed library other than JAX, what it calls, and this one."""
    return "-packages" in file and not file.startswith(_JAX) and not _CALLED & {*file.split(os.sep)}


_CALLED = {"opt_einsum", "scipy", "ml_dtypes"}


def place_of(code: types.CodeType, at: int) -> Place:
    """Where an instruction of some code is in the source; at: its index."""
    line, end, column, end_column = next(
        (p for i, p in enumerate(code.co_positions()) if i == at // 2), (None,) * 4
    )
    line = line or code.co_firstlineno
    end = end or line
    return Place(code.co_filename, line, code.co_qualname, column or 0, end, end_column or 0)


def here(place: Place | None) -> str:
    """`file.py:12 in fun: source text`, or "" for none."""
    if place is None:
        return ""
    text = linecache.getline(place.file, place.line).split("  #")[0].strip()
    return places.spell(place) + (f": {text}" if text else "")
