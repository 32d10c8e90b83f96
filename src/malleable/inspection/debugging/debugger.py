"""Step through a staged program on concrete values: `step(fun)(*args)`.

Into and out of the bodies of jit, scan, vmap, cond, while, grad and shard_map, forward and
backward, with the user's lines and the user's variables. From a script by the methods of a
`Session`; by commands like those of pdb with `.interact()`; in a notebook a session shows itself.
"""

import html
import inspect
import pdb
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from malleable import compat
from malleable.errors import MalleableError
from malleable.inspection import places
from malleable.inspection.debugging import breakpoints, callers, stepping, variables
from malleable.inspection.debugging.breakpoints import Breakpoint
from malleable.inspection.debugging.callers import Frame
from malleable.inspection.debugging.commands import Commands
from malleable.inspection.debugging.stepping import Step
from malleable.inspection.debugging.timeline import Timeline
from malleable.inspection.show.arguments import argument_names
from malleable.inspection.show.rows.outline import outline
from malleable.python_source.misuse import called_as
from malleable.signatures import P

_MODULES = {"jax": jax, "jnp": jnp, "np": np, "lax": lax}


@called_as("step(fun)(*args)")
def step(
    fun: Callable[P, Any], *, focus: Any = None, history: int = 10_000
) -> Callable[P, "Session"]:
    """Return a function that stages `fun` on its arguments and gives a debugger of its program.

    focus: which example of a vmap to step through, the others run whole; a list has one for each
    vmap in another, None for all. history: how many steps are kept to go back to; going back
    further runs the program again from its beginning, callbacks in it too. What `fun` raises while
    it is traced goes through. Raises MalleableError on values being traced.

    >>> import jax
    >>> def net(x):
    ...     y = jax.numpy.sin(x)
    ...     return y * 2
    >>> session = step(net)(0.5)
    >>> print(session.step().eqn.primitive, session.step().eqn.primitive)
    sin mul
    >>> session.back().number, session.cont(), float(session.result) > 0.95
    (1, None, True)
    """

    def session(*args, **kwargs) -> Session:
        ready = stepping.prepare(fun)(*args, **kwargs)
        names = argument_names(fun, args, kwargs)
        return Session(fun, ready, names, focus, history)

    return session


class Session:
    """A debugger of one run of a program.

    at: the step that ran last, None before the first; done: whether the program is through;
    result: what the function returns, then; stopped: why it stopped where it is.
    """

    def __init__(self, fun, ready: stepping.Prepared, names: list[str], focus, history: int):
        self.program, self._ready = ready.program, ready
        self._time = Timeline(ready, self._wants, focus, history)
        self._arguments = names
        self._globals = getattr(inspect.unwrap(fun), "__globals__", {})
        self._code = getattr(inspect.unwrap(fun), "__code__", None)
        self._frame = 0
        self._framed: tuple[Step, list[Frame]] | None = None
        self.breakpoints: list[Breakpoint] = []
        self._count = 0  # of breakpoints ever made
        self._indexed: breakpoints.Index | None = None
        self.stopped = "before the first equation"

    # ------------------------------------------------------------ where it is

    @property
    def at(self) -> Step | None:
        return self._time.at

    @property
    def number(self) -> int:
        """Of the step that ran last, from 1; 0 before the first."""
        return self._time.number

    @property
    def done(self) -> bool:
        return self._time.done

    @property
    def result(self):
        if self._time.outputs is None:
            raise MalleableError(
                "there is no result yet: the program is not through",
                where=places.spell(self.place),
                hint="run it to its end with .cont(), after .clear() if it stops on the way",
            )
        return self._ready.rebuild(self._time.outputs)

    @property
    def frames(self) -> list[Frame]:
        """The user's frames, innermost first."""
        step = self.at
        if step is None:
            return []
        if self._framed is None or self._framed[0] is not step:
            arguments = dict(zip(self._arguments, self.program.jaxpr.invars, strict=True))
            found = callers.frames(step, self.program, arguments)
            self._framed = step, found
        return self._framed[1]

    @property
    def place(self) -> compat.Place | None:
        """The user's line, of the frame chosen with `up` and `down`."""
        return self.frames[self._frame].place if self.at else None

    def where(self) -> str:
        """The bodies around, and the lines: innermost first, a `>` at the frame chosen."""
        if self.at is None:
            return "before the first equation"
        step = self.at
        head = f"step {step.number}: {step.eqn.primitive}"
        path = stepping.spell_path(step.path)
        lines = [head + f" in {path}" * bool(path)]
        for i, frame in enumerate(self.frames):
            mark = ">" if i == self._frame else " "
            spelled = places.spell(frame.place) or "no line of the user's"
            code = places.line_of(frame.place)
            lines.append(f"{mark} {spelled}" + f": `{code}`" * bool(code))
        return "\n".join(lines)

    def up(self) -> None:
        """To the frame that called this one."""
        if self._frame + 1 >= len(self.frames):
            raise MalleableError("this is the outermost frame", hint="go down, or step")
        self._frame += 1

    def down(self) -> None:
        if self._frame == 0:
            raise MalleableError("this is the innermost frame", hint="go up, or step")
        self._frame -= 1

    # ------------------------------------------------------------ forward

    def step(self) -> Step | None:
        """Run the next equation, into bodies. None at the end."""
        return self._run(lambda step: True, into=True)

    def next(self) -> Step | None:
        """Run the next equation of this body, or of one around it; bodies run whole."""
        path = self.at.path if self.at else ()
        return self._run(lambda step: not _is_inside(step.path, path))

    def out(self) -> Step | None:
        """Run until this body is left, and the loop it belongs to."""
        path = self.at.path if self.at else ()
        outer = path[:-1]
        return self._run(lambda step: bool(path) and not _is_inside(step.path, outer))

    def cont(self) -> Step | None:
        """Run to the next breakpoint or watch; None where the end came first."""
        return self._run(lambda step: False)

    run = cont

    def run_to(self, line: int | None = None, *, file: str | None = None) -> Step | None:
        """Run until a line of the user's begins to run."""
        self.break_at(f"{file or self._here()}:{line}", temporary=True)
        return self.cont()

    def _run(self, enough: Callable[[Step], bool], into: bool = False) -> Step | None:
        """Run until a step is enough, or a breakpoint stops; None at the end."""
        while self._time.advance(into):
            step = self._needed()
            hit = [b for b in self.breakpoints if b.stops(step)]
            self.breakpoints = [b for b in self.breakpoints if not (b in hit and b.temporary)]
            if hit:
                return self._stop(", ".join(f"{b.kind} {b.number}: {b.text}" for b in hit))
            if enough(step):
                return self._stop()
        self._stop("the program is through")
        return None

    def _stop(self, why: str = "") -> Step | None:
        self._frame = 0
        self.stopped = why or ("step" if self.at else "before the first equation")
        return self.at

    def _wants(self, eqn: compat.Eqn) -> bool:
        """Whether a breakpoint could stop inside an equation."""
        return any(b.inside(eqn) for b in self.breakpoints)

    # ------------------------------------------------------------ backward

    def back(self, count: int = 1) -> Step | None:
        """Undo `count` steps. None before the first."""
        self._time.back(count)
        return self._moved()

    def goto(self, number: int) -> Step | None:
        """To the step of a number, backward or forward; 0 is before the first."""
        self._time.goto(number)
        return self._moved()

    def _moved(self) -> Step | None:
        """Stop where nothing ran: what holds here does not begin to hold with the next step."""
        self._frame = 0
        for one in self.breakpoints:
            one.look(self.at)
        return self._stop()

    # ------------------------------------------------------------ examples of a vmap

    def lane(self, index: int) -> Step | None:
        """To the same equation in another example of the vmap around, and stay with that one."""
        time, step = self._time, self.at
        spots = [i for i, level in enumerate(step.path) if level.kind == "vmap"] if step else []
        if step is None or not spots:
            time.look_at(index)
            return step
        at, level = spots[-1], step.path[spots[-1]]
        size = level.size or 0
        if not 0 <= index < size:
            raise MalleableError(
                f"there is no example {index}: the vmap has {size}",
                where=places.spell(self.place),
                hint=f"they are 0 to {size - 1}",
            )
        focus = [*time.focus, *[None] * (len(spots) - len(time.focus))]
        focus[len(spots) - 1] = index
        time.look_at(focus)
        path = (*step.path[:at], level._replace(index=index), *step.path[at + 1 :])
        known = [i for i, s in enumerate(time.steps) if s.eqn is step.eqn and s.path == path]
        if known:
            time.go(known[-1])
            return self._moved()
        if index < (level.index or 0):  # it ran before, and nobody looked
            time.begin()
        elif time.steps:
            time.go(len(time.steps) - 1)
        while time.advance(into=True):
            now = self._needed()
            if now.eqn is step.eqn and now.path == path:
                return self._moved()
        self._stop("the program is through")
        return None

    def batch(self, name: str) -> dict[int, Any]:
        """{example: value} of a variable, in the examples of the vmap around that ran by now."""
        step, v = self._needed(), self._variable(name)
        spots = [i for i, level in enumerate(step.path) if level.kind == "vmap"]
        if not spots:
            raise MalleableError(
                "there is no vmap around this equation", hint=f"its value is session[{name!r}]"
            )
        at, found = spots[-1], {}
        inner = [(s.kind, s.name, s.index) for s in step.path[at + 1 :]]
        for other in self._time.past:
            path = other.path
            same = other.program is step.program and path[:at] == step.path[:at]
            same = same and [(s.kind, s.name, s.index) for s in path[at + 1 :]] == inner
            if same and v in other.env:
                found[path[at].index] = other.env[v]
        return found

    # ------------------------------------------------------------ values

    def values(self) -> dict[str, Any]:
        """{name: value} of what the body has computed by now.

        By the user's names, as the frame chosen sees them; what has none is called %a, %b, ...
        by the names that `show` prints.
        """
        if self.at is None:
            return dict(zip(self._arguments, self._ready.args, strict=True))
        frame = self.frames[self._frame]
        return {n: frame.env[v] for n, v in {**frame.names(), **frame.rest()}.items()}

    def __getitem__(self, name: str):
        if self.at is None:
            values = self.values()
            if name in values:
                return values[name]
            raise _unknown(name, values)
        return self.frames[self._frame].env[self._variable(name)]

    def _variable(self, name: str):
        self._needed()
        v = self.frames[self._frame].variable(name)
        if v is None:
            raise _unknown(name, self.values())
        return v

    def _needed(self) -> Step:
        if self.at is None:
            raise MalleableError("nothing has run yet", hint="step first")
        return self.at

    def evaluate(self, expression: Any):
        """The value of an expression over the variables here, with jnp, np, jax and lax."""
        code = (
            compile(expression, "<session>", "eval") if isinstance(expression, str) else expression
        )
        return eval(code, self.namespace())

    def namespace(self) -> dict[str, Any]:
        """What an expression sees: the user's module, arrays' modules, the variables here."""
        return {**self._globals, **_MODULES, **variables.nested(self.values())}

    # ------------------------------------------------------------ stopping

    def break_at(self, what: Any, *, temporary: bool = False) -> Breakpoint:
        """Stop at a place: "file.py:12", a line, a function, a variable, a primitive, a condition.

        A condition is a function of the step, or an expression over the user's variables such as
        "loss > 10". A line and a function stop where they begin. Raises MalleableError for a line
        without an equation, and for a name that the program does not have.
        """
        if callable(what):
            text, found = getattr(what, "__name__", "condition"), breakpoints.everywhere(what)
        else:
            text = str(what).strip()
            known = {*self._globals, *_MODULES, *map(variables.root, self._arguments)}
            run = lambda step, code: self.evaluate(code)  # noqa: E731  of the step that just ran
            found = breakpoints.find(self._index(), text, self._here(), run, known)
        return self._add("breakpoint", text, *found, temporary)

    def watch(self, what: Any = None, *, large: float | None = None) -> Breakpoint:
        """Stop at the first equation to make a bad value of values that are not.

        what: "nonfinite", "nan", or a function of a value that says whether it is bad; large: a
        magnitude beyond which a value is.
        """
        if large is not None:
            text, bad = f"larger than {large:g}", breakpoints.is_over(large)
        elif callable(what):
            text, bad = getattr(what, "__name__", "condition"), what
        elif what in (None, "nonfinite", "nan"):
            text = what or "nonfinite"
            bad = breakpoints.is_nan if what == "nan" else breakpoints.is_nonfinite
        else:
            raise MalleableError(
                f"there is nothing to watch called {what!r}",
                hint='watch "nonfinite", "nan", large=1e6, or a function of a value',
            )
        return self._add("watch", text, *breakpoints.everywhere(breakpoints.made(bad)), False)

    def clear(self, number: int | None = None) -> None:
        """Remove a breakpoint or watch by its number; all of them without one."""
        left = [b for b in self.breakpoints if number is not None and b.number != number]
        if number is not None and len(left) == len(self.breakpoints):
            known = ", ".join(str(b.number) for b in self.breakpoints) or "none"
            raise MalleableError(f"there is no breakpoint {number}", hint=f"there is: {known}")
        self.breakpoints = left

    def _add(self, kind, text, holds, inside, temporary) -> Breakpoint:
        self._count += 1
        made = Breakpoint(self._count, kind, text, holds, inside, temporary)
        self.breakpoints.append(made)
        return made

    def _index(self) -> breakpoints.Index:
        if self._indexed is None:
            self._indexed = breakpoints.Index(outline(self.program))
        return self._indexed

    def _here(self) -> str:
        """The file that a bare line number is about."""
        if self.place:
            return self.place.file
        return self._code.co_filename if self._code else next(iter(self._index().files()), "")

    # ------------------------------------------------------------ people

    def interact(self, stdin: Any = None, stdout: Any = None) -> "Session":
        """Commands like those of pdb, until `quit`; the program here does not end with it."""
        Commands(self, stdin, stdout).cmdloop()
        return self

    def pdb(self, stdin: Any = None, stdout: Any = None) -> None:
        """Python's own debugger on the user's line and variables: to look, not to step."""
        place = self.place
        if place is None:
            raise MalleableError("there is no line of the user's here", hint="step first")
        debugger = pdb.Pdb(stdin=stdin, stdout=stdout, nosigint=True)

        def stop():
            debugger.reset()
            debugger.interaction(sys._getframe(1), None)

        code = compile("\n" * (place.line - 1) + "__stop__()", place.file, "exec")
        exec(code, self._globals | {"__stop__": stop}, variables.nested(self.values()))

    def __repr__(self):
        after = "; through" if self.done else ""
        return f"<Session, {self.stopped}{after}>\n{self.where()}"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td><b>{html.escape(name)}</b></td><td>{html.escape(kind)}</td>"
            f"<td><code>{html.escape(text)}</code></td></tr>"
            for name, kind, text in variables.table(self.values())
        )
        return f"<pre>{html.escape(self.where())}</pre><table>{rows}</table>"


def _is_inside(path: Sequence, outer: Sequence) -> bool:
    """Whether a body is in another, at any depth; not whether it is that one."""
    return len(path) > len(outer) and tuple(path[: len(outer)]) == tuple(outer)


def _unknown(name: str, known) -> MalleableError:
    shown = [n for n in known if not n.startswith("%")] or list(known)
    return MalleableError(
        f"there is no variable {name!r} here", hint=f"there is: {', '.join(shown[:20]) or 'none'}"
    )
