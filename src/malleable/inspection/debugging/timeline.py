"""A program that runs forward and backward: the steps of a walk, kept, and run again if need be."""

import bisect
from collections.abc import Callable, Sequence
from typing import Any

from jax import numpy as jnp

from malleable import compat
from malleable.errors import MalleableError
from malleable.inspection import places
from malleable.inspection.debugging import stepping
from malleable.inspection.debugging.stepping import Path, Step


class Timeline:
    """The steps of a run, and where in it we are.

    wants(eqn) says whether to go into an equation that has bodies, where nobody steps into all;
    history: how many steps are kept. Further back, the program runs again from its beginning, in
    and out of the same bodies: a program gives the same values each time.
    """

    def __init__(self, ready: stepping.Prepared, wants: Callable, focus: Any, history: int):
        if compat.mutates(ready.program):
            history = 1  # what changes is as it was only where the program runs again up to there
        self._given = refs((*ready.args, *ready.program.consts))
        self.ready, self.wants, self.history = ready, wants, max(1, history)
        self.focus: tuple = ()
        self.look_at(focus)
        self.outputs: list | None = None
        self._answers: list[bool] = []  # whether to enter, in the order the walk asked
        self._restart()

    def _restart(self) -> None:
        for ref, value in self._given:
            ref[...] = value
        self.steps: list[Step] = []
        self.position, self._into = -1, True
        self._seen = self._asked = 0  # steps so far, of those in focus; and questions
        program, args = self.ready.program, self.ready.args
        self._walk = stepping.walk(program, args, enter=self._enter, whole=True)
        self._ended = False
        self._failed: Exception | None = None

    @property
    def at(self) -> Step | None:
        """The step that ran last; None before the first."""
        return self.steps[self.position] if self.position >= 0 else None

    @property
    def number(self) -> int:
        return self.at.number if self.at else 0

    @property
    def done(self) -> bool:
        return self._ended and self.position == len(self.steps) - 1

    @property
    def past(self) -> Sequence[Step]:
        """The steps up to this one, as far as they are kept."""
        return self.steps[: self.position + 1]

    # ------------------------------------------------------------ forward

    def advance(self, into: bool) -> bool:
        """To the next step, of those kept or a new one; False at the end."""
        self._into = into
        if self.position + 1 < len(self.steps):
            if not (into and _was_passed_over(self.steps[self.position + 1])):
                self.position += 1
                return True
            here = self.number
            self._again(lambda: self.number < here)  # what ran whole is gone into this time
            self._into = into
        return self._pull()

    def _pull(self) -> bool:
        """Let the program run on to its next step."""
        if self._failed:
            raise MalleableError(
                f"the program stopped with {type(self._failed).__name__}: {self._failed}",
                where=places.spell(self.at.place) if self.at else "",
                hint="go back from here, or begin a new session",
            )
        while not self._ended:
            try:
                event = next(self._walk)
            except StopIteration as stop:
                self._ended, self.outputs = True, stop.value
            except BaseException as error:
                self._failed = error if isinstance(error, Exception) else RuntimeError(repr(error))
                raise
            else:
                if isinstance(event, Step) and self._in_focus(event.path):
                    self._seen += 1
                    self.steps.append(event)
                    del self.steps[: -self.history]
                    self.position = len(self.steps) - 1
                    return True
        return False

    def _enter(self, eqn: compat.Eqn, path: Path) -> bool:
        if self._asked == len(self._answers):
            answer = self._in_focus(path) and (self._into or self.wants(eqn))
            self._answers.append(answer)
        self._asked += 1
        return self._answers[self._asked - 1]

    # ------------------------------------------------------------ backward

    def back(self, count: int) -> Step | None:
        """Undo `count` steps. None before the first."""
        lost = self._seen - len(self.steps)
        left = lost + self.position + 1 - count
        if count < 0 or left < 0:
            raise MalleableError(
                f"there are {left + count} steps to undo, not {count}",
                hint="goto(0) goes back to the beginning",
            )
        if left == 0 or left <= lost:
            self._again(lambda: self._seen < left)
            return self.at
        return self.go(left - lost - 1)

    def goto(self, number: int) -> Step | None:
        """To the step of a number, backward or forward; 0 is before the first."""
        if number < 0:
            raise MalleableError(f"there is no step {number}", hint="steps count from 1")
        if number == 0 and self._seen == len(self.steps):
            return self.go(-1)
        if not self.steps or number < self.steps[0].number:
            self._again(lambda: self.number < number)
        self.position = len(self.steps) - 1
        while self.number < number:
            if not self._pull():
                raise MalleableError(
                    f"there is no step {number}: the program is through after step {self.number}",
                    hint="goto an earlier one",
                )
        after = bisect.bisect_left([s.number for s in self.steps], number)
        return self.go(after if number else -1)

    def go(self, position: int) -> Step | None:
        """To one of the steps that are kept."""
        self.position = position
        return self.at

    def begin(self) -> None:
        """To the beginning, as if nothing had run."""
        self._answers.clear()
        self._restart()

    def _again(self, more: Callable[[], bool]) -> None:
        """Run the program again as far as is asked for, in and out of the same bodies."""
        self._restart()
        while more() and self._pull():
            pass
        del self._answers[self._asked :]

    # ------------------------------------------------------------ examples of a vmap

    def look_at(self, focus: Any) -> None:
        """Step through one example of each vmap, outermost first; None stands for all."""
        self.focus = () if focus is None else focus
        if not isinstance(self.focus, list | tuple):
            self.focus = (focus,)
        bad = [i for i in self.focus if i is not None and (not isinstance(i, int) or i < 0)]
        if bad:
            raise MalleableError(
                f"{bad[0]!r} is no example of a vmap", hint="they count from 0; None means all"
            )

    def _in_focus(self, path: Path) -> bool:
        lanes = [level.index for level in path if level.kind == "vmap"]
        return all(want in (None, i) for i, want in zip(lanes, self.focus, strict=False))


def refs(values: Sequence) -> list[tuple[Any, Any]]:
    """(reference, what it holds now) of the mutable ones among some values."""
    return [(x, jnp.array(x[...])) for x in values if _is_ref(x)]


def _was_passed_over(step: Step) -> bool:
    """Whether a step ran an equation whole that could have been gone into."""
    if step.entered or not compat.bodies(step.eqn.params):
        return False
    view = compat.view(step.eqn)
    return not isinstance(view, compat.Opaque) and getattr(view, "length", 1) != 0


def _is_ref(x) -> bool:
    """Whether this is a mutable reference; an argument may be of any type."""
    return not compat.is_array(x) and hasattr(x, "aval") and compat.is_ref(x.aval)
