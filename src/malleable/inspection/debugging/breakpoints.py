"""Where a stepped program stops: at a line, a function, a name, or when something holds.

A breakpoint says of each step whether to stop there, and of an equation with bodies whether it
could stop inside, so that what cannot matter runs whole.
"""

import ast
import builtins
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
from malleable.inspection import places
from malleable.inspection.debugging import variables
from malleable.inspection.debugging.stepping import Step
from malleable.inspection.show.rows.outline import Body, Row
from malleable.inspection.show.rows.renamed import rows_of
from malleable.notes import note

Evaluate = Callable[[Step, Any], Any]
Holds = Callable[[Step], Any]  # a key while it holds, else None; a new key is a new stop


@dataclass
class Breakpoint:
    """kind: breakpoint or watch; text: as the user gave it; error: what its condition raised last.

    missing: a variable that has not been there wherever it was asked for, so that it never held.
    """

    number: int
    kind: str
    text: str
    holds: Holds
    inside: Callable[[compat.Eqn], bool]
    temporary: bool = False
    hits: int = 0
    error: Exception | None = None
    missing: str = ""
    is_told: bool = True  # whether the error was shown
    _asked: bool = False
    _last: Any = field(default=None, repr=False)

    def stops(self, step: Step) -> bool:
        """Whether to stop at a step; a line or a function stops where it begins."""
        before, key = self._last, self.look(step)
        if key is None or key == before:
            return False
        self.hits += 1
        return True

    def look(self, step: Step | None) -> Any:
        """What holds at a step; with nothing more, it does not begin to hold at the next one."""
        self._last = None
        try:
            self._last = None if step is None else self.holds(step)
            self._asked, self.missing = step is not None or self._asked, ""
        except Absent as error:
            self.missing = "" if self._asked else str(error)
        except Exception as error:
            if repr(error) != repr(self.error):
                where = places.spell(step.place) if step else ""
                note(f"the condition `{self.text}` failed", where, repr(error))
                self.is_told = False
            self.error, self._asked, self.missing = error, True, ""
        return self._last

    def __str__(self):
        times = "once" if self.hits == 1 else f"{self.hits} times"
        failed = f"; it raises {type(self.error).__name__}: {self.error}" if self.error else ""
        failed += f"; there was no {self.missing} so far" * bool(self.missing)
        return f"{self.kind} {self.number}: {self.text} (stopped {times}){failed}"


class Absent(Exception):
    """A variable of a condition is not there yet."""


# ---------------------------------------------------------------- what a program has


class Index:
    """The lines, functions, primitives and names of a program, each with its equations."""

    def __init__(self, body: Body):
        self.program, self.rows = body.program, list(rows_of(body))
        self.bodies = list(_bodies(body, False))

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
        return {name for body in self.bodies for name in (*body.given, *body.arguments)}

    def roots(self) -> set[str]:
        """The variables that an expression may be about: `params` of params['w']."""
        return {variables.root(name) for name in self.names()} - {""}

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


@dataclass
class _Named:
    """A body. given: {name: its variables}, as equations make them; arguments: of the body."""

    body: Body
    given: dict[str, set]
    arguments: set[str]


def _bodies(body: Body, cotangents: bool) -> Iterator[_Named]:
    given: dict[str, set] = {}
    for v, _, name in [] if cotangents else variables.named(body.program):
        given.setdefault(name, set()).add(v)
    taken = set(body.program.jaxpr.invars)
    arguments = {name for name, vs in given.items() if vs & taken}
    yield _Named(body, given, arguments | set(variables.named_parameters(body.program)))
    for row in body.rows:
        back = cotangents or "transpose(" in str(row.eqn.source_info.name_stack)
        for inner in row.bodies:
            yield from _bodies(inner, back)


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
            frames = compat.user_places(eqn)
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
    """Stop after each equation that gives a variable of the user's its value.

    A variable that a body is given has it where the body begins to run: after its first equation.
    """
    given = {v for one in index.bodies for v in one.given.get(name, ())}
    bodies = [one.body for one in index.bodies if name in one.arguments]
    programs = {id(body.program) for body in bodies}
    rows = {id(row) for body in bodies for row in body.rows}
    began: dict[int, tuple[Any, int]] = {}  # {a run of such a body: its first step}

    def holds(step: Step):
        runs, program, before = [], step.program, step.before
        while True:
            if id(program) in programs:
                runs.append(before)
            if before is None:
                break
            before = before.before
            program = before.program if before else index.program
        first = {id(run): began.get(id(run), (run, step.number)) for run in runs}
        began.clear()
        began.update(first)
        starts = any(number == step.number for _, number in first.values())
        return step.number if starts or any(v in given for v in step.eqn.outvars) else None

    return holds, index.containing(
        lambda row: id(row) in rows or any(v in given for v in row.eqn.outvars)
    )


def everywhere(test: Callable[[Step], Any]) -> tuple[Holds, Callable]:
    """Stop wherever something holds of a step."""
    return (lambda step: step.number if test(step) else None), lambda eqn: True


def on_expression(
    index: Index, text: str, evaluate: Evaluate, known: set[str]
) -> tuple[Holds, Callable]:
    """Stop where an expression over the user's variables begins to hold.

    Where a variable is not there yet, it does not hold. known: what else there is; raises
    MalleableError for a name that is nowhere.
    """
    code = compile(text, "<breakpoint>", "eval")
    names = _free(text)
    own = sorted(index.roots())
    for name in sorted(names - {*own, *known, *vars(builtins)}):
        near = difflib.get_close_matches(name, [*own, *known], 4, 0.5) or own[:8]
        raise MalleableError(
            f"there is no variable {name!r} in the program, nor in the module of its function",
            hint=f"there is: {', '.join(near)}",
        )

    def holds(step: Step):
        try:
            value = evaluate(step, code)
        except NameError as error:
            if error.name not in names:
                raise
            raise Absent(f"variable {error.name!r}") from None
        except variables.NotHere as error:
            raise Absent(f"part {error} of a variable") from None
        except AttributeError as error:
            if not isinstance(error.obj, variables.Parts):
                raise
            raise Absent(f"part {error.name!r} of a variable") from None
        return True if bool(np.all(np.asarray(value))) else None

    return holds, lambda eqn: True


def _free(text: str) -> set[str]:
    """The names that an expression takes from outside."""
    nodes = list(ast.walk(ast.parse(text, mode="eval")))
    own = {n.id for n in nodes if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    own |= {n.arg for n in nodes if isinstance(n, ast.arg)}
    return {n.id for n in nodes if isinstance(n, ast.Name)} - own


def made(bad: Callable[[Any], Any]) -> Callable[[Step], bool]:
    """Whether a step gives a value that is bad, of values that are not."""

    def test(step: Step) -> bool:
        if step.entered:  # something inside of it did
            return False
        return any(map(bad, step.outputs)) and not any(map(bad, step.inputs))

    return test


def find(
    index: Index, text: str, file: str, evaluate: Evaluate, known: set[str]
) -> tuple[Holds, Callable]:
    """What the user means by `model.py:12`, `12`, `loss`, `sqrt`, or `loss > 10`.

    file: which one a bare line number is about; known: what an expression sees everywhere.
    """
    if match := re.fullmatch(r"(?:(.+):)?(\d+)", text):
        return at_line(index, match[1] or file, int(match[2]))
    kinds = (
        (index.functions, in_function),
        (index.names, at_name),
        (index.primitives, at_primitive),
    )
    for found, make in kinds:
        if text in found():
            return make(index, text)
    if text.isidentifier():
        every = sorted(set().union(*(found() for found, _ in kinds)))
        near = difflib.get_close_matches(text, every, 4, 0.5) or every[:8]
        raise MalleableError(
            f"there is no function, variable or primitive {text!r} in the program",
            hint=f"there is: {', '.join(near)}",
        )
    try:
        return on_expression(index, text, evaluate, known)
    except SyntaxError:
        raise MalleableError(
            f"{text!r} is no line, name or expression",
            hint="write file.py:12, 12, a name, or an expression such as loss > 10",
        ) from None


def is_nonfinite(x) -> bool:
    """Whether a value has a NaN or an Inf."""
    return _is_float(x) and not bool(np.isfinite(_as_floats(x)).all())


def is_nan(x) -> bool:
    return _is_float(x) and bool(np.isnan(_as_floats(x)).any())


def is_over(limit: float) -> Callable[[Any], bool]:
    return lambda x: _is_float(x) and not bool((np.abs(_as_floats(x)) <= limit).all())


def _is_float(x) -> bool:
    return jnp.issubdtype(jax.typeof(x).dtype, jnp.inexact)


def _as_floats(x):
    x = np.asarray(x)
    return x if x.dtype.kind in "fc" else x.astype(np.float32)  # bfloat16 and narrower
