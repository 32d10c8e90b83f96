"""Where a stepped program stops: at a line, a function, a name, or when something holds.

A breakpoint says of each step whether to stop there, and of an equation with bodies whether it
could stop inside, so that what cannot matter runs whole.
"""

import difflib
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from malleable import compat
from malleable.errors import MalleableError
from malleable.inspection import places, variables
from malleable.inspection.outline import Body, Row
from malleable.inspection.stepping import Step

Holds = Callable[[Step], Any]  # a key while it holds, else None; a new key is a new stop


@dataclass
class Breakpoint:
    """kind: breakpoint or watch; text: as the user gave it; error: what its condition raised."""

    number: int
    kind: str
    text: str
    holds: Holds
    inside: Callable[[compat.Eqn], bool]
    temporary: bool = False
    hits: int = 0
    error: Exception | None = None
    _last: Any = field(default=None, repr=False)

    def stops(self, step: Step) -> bool:
        """Whether to stop at a step; a line or a function stops where it begins."""
        try:
            key = self.holds(step)
            self.error = None
        except Exception as error:
            key, self.error = None, error
        again, self._last = key is not None and key == self._last, key
        if key is None or again:
            return False
        self.hits += 1
        return True

    def __str__(self):
        times = "once" if self.hits == 1 else f"{self.hits} times"
        failed = f"; it raises {type(self.error).__name__}: {self.error}" if self.error else ""
        return f"{self.kind} {self.number}: {self.text} (stopped {times}){failed}"


# ---------------------------------------------------------------- what a program has


class Index:
    """The lines, functions, primitives and names of a program, each with its equations."""

    def __init__(self, body: Body):
        self.rows = list(_rows(body))
        self.programs = list(_programs(body))

    def lines(self, file: str) -> set[int]:
        """The lines of a file that have equations."""
        return {p.line for row in self.rows for p in row.chain if matches(p.file, file)}

    def files(self) -> list[str]:
        found = dict.fromkeys(p.file for row in self.rows for p in row.chain)
        return sorted(found, key=lambda file: not places.is_own(file))

    def functions(self) -> set[str]:
        return {_short(p.function) for row in self.rows for p in row.chain}

    def primitives(self) -> set[str]:
        return {row.primitive for row in self.rows}

    def names(self) -> set[str]:
        return {name for program in self.programs for name in _names(program)}

    def containing(self, wanted: Callable[[Row], bool]) -> Callable[[compat.Eqn], bool]:
        """Whether something is in an equation, given what to look for: found out once."""
        found: set[int] = set()

        def look(row: Row) -> bool:
            inside = [look(inner) for body in row.bodies for inner in body.rows]
            if any(inside):
                found.add(id(row.eqn))
            return any(inside) or wanted(row)

        tops = {id(r) for row in self.rows for body in row.bodies for r in body.rows}
        for row in self.rows:
            if id(row) not in tops:
                look(row)
        return lambda eqn: id(eqn) in found


def _rows(body: Body) -> Iterator[Row]:
    for row in body.rows:
        yield row
        for inner in row.bodies:
            yield from _rows(inner)


def _programs(body: Body) -> Iterator[compat.Jaxpr]:
    yield body.program
    for row in body.rows:
        for inner in row.bodies:
            yield from _programs(inner)


def _names(program) -> set[str]:
    return {*variables.every(program).values(), *(name for _, _, name in variables.named(program))}


def _short(function: str) -> str:
    return function.rpartition(".")[2]


def matches(file: str, wanted: str) -> bool:
    """Whether a file is the one a user means: by its name, or the end of its path.

    >>> matches("/home/me/model.py", "model.py"), matches("/home/me/my_model.py", "model.py")
    (True, False)
    """
    return file == wanted or file.endswith(os.sep + wanted.lstrip("./"))


# ---------------------------------------------------------------- kinds of breakpoints


def at_line(index: Index, file: str, line: int) -> tuple[Holds, Callable]:
    """Stop where a line begins to run, once for each time that it does."""
    known = index.lines(file)
    if not known:
        near = ", ".join(places.relative(f) for f in index.files()[:4])
        raise MalleableError(
            f"no equation comes from a file {file!r}", hint=f"these have some: {near or 'none'}"
        )
    if line not in known:
        near = sorted(sorted(known, key=lambda at: (abs(at - line), at))[:4])
        raise MalleableError(
            f"no equation comes from line {line} of {os.path.basename(file)}",
            hint=f"the nearest lines that have some: {', '.join(map(str, near))}",
        )
    here = lambda p: p.line == line and matches(p.file, file)  # noqa: E731
    return _frame(index, here)


def in_function(index: Index, name: str) -> tuple[Holds, Callable]:
    """Stop where a function begins to run."""
    return _frame(index, lambda p: _short(p.function) == name)


def _frame(index: Index, here: Callable[[compat.Place], bool]):
    def holds(step: Step):
        at: Any = step
        eqn, path, before = step.eqn, step.path, step.before
        while True:  # the frames of the equations around belong to the run of these
            frames = compat.frames(eqn)
            for i, p in enumerate(frames):
                if here(p):
                    return path, tuple(frames[i + 1 :])
            if before is None:
                break
            at = before
            eqn, path, before = at.eqn, at.path[:-1], at.before
        starts = [step.before.program] if step.before else []
        for program in starts:  # a body whose equations have no line of their own
            start = compat.defined(program)
            if start and here(start):
                return step.path, ()
        return None

    return holds, index.containing(lambda row: any(map(here, row.chain)))


def at_primitive(index: Index, name: str) -> tuple[Holds, Callable]:
    """Stop after each equation of a primitive."""

    def holds(step: Step):
        return step.number if step.eqn.primitive.name == name else None

    return holds, index.containing(lambda row: row.primitive == name)


def at_name(index: Index, name: str) -> tuple[Holds, Callable]:
    """Stop after each equation that gives a variable of the user's its value."""
    given = {
        v for program in index.programs for v, _, known in variables.named(program) if known == name
    }

    def holds(step: Step):
        return step.number if any(v in given for v in step.eqn.outvars) else None

    return holds, index.containing(lambda row: any(v in given for v in row.eqn.outvars))


def everywhere(test: Callable[[Step], Any]) -> tuple[Holds, Callable]:
    """Stop wherever something holds of a step."""
    return (lambda step: step.number if test(step) else None), lambda eqn: True


def on_expression(text: str, evaluate: Callable[[Step, Any], Any]) -> tuple[Holds, Callable]:
    """Stop where an expression over the user's variables begins to hold.

    Where a variable is not there yet, it does not hold.
    """
    code = compile(text, "<breakpoint>", "eval")

    def holds(step: Step):
        try:
            value = bool(np.all(np.asarray(evaluate(step, code))))
        except NameError:
            value = False
        return True if value else None

    return holds, lambda eqn: True


def made(bad: Callable[[Any], Any]) -> Callable[[Step], bool]:
    """Whether a step gives a value that is bad, of values that are not."""

    def test(step: Step) -> bool:
        if step.entered:  # something inside of it did
            return False
        return any(map(bad, step.outputs)) and not any(map(bad, step.inputs))

    return test


def find(index: Index, text: str, file: str, evaluate) -> tuple[Holds, Callable]:
    """What the user means by `model.py:12`, `12`, `loss`, `sqrt`, or `loss > 10`.

    file: which one a bare line number is about.
    """
    if match := re.fullmatch(r"(?:(.+):)?(\d+)", text):
        return at_line(index, match[1] or file, int(match[2]))
    kinds = (
        (index.functions, in_function),
        (index.names, at_name),
        (index.primitives, at_primitive),
    )
    for known, make in kinds:
        if text in known():
            return make(index, text)
    if text.isidentifier():
        every = sorted(set().union(*(known() for known, _ in kinds)))
        near = difflib.get_close_matches(text, every, 4, 0.5) or every[:8]
        raise MalleableError(
            f"there is no function, variable or primitive {text!r} in the program",
            hint=f"there is: {', '.join(near)}",
        )
    try:
        return on_expression(text, evaluate)
    except SyntaxError:
        raise MalleableError(
            f"{text!r} is no line, name or expression",
            hint="write file.py:12, 12, a name, or an expression such as loss > 10",
        ) from None


def is_nonfinite(x) -> bool:
    """Whether a value has a NaN or an Inf."""
    return _is_float(x) and not bool(np.isfinite(_numbers(x)).all())


def is_nan(x) -> bool:
    return _is_float(x) and bool(np.isnan(_numbers(x)).any())


def is_over(limit: float) -> Callable[[Any], bool]:
    return lambda x: _is_float(x) and not bool((np.abs(_numbers(x)) <= limit).all())


def _is_float(x) -> bool:
    return jnp.issubdtype(jax.typeof(x).dtype, jnp.inexact)


def _numbers(x):
    x = np.asarray(x)
    return x if x.dtype.kind in "fc" else x.astype(np.float32)  # bfloat16 and narrower
