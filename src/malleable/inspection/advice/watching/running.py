"""What runs while an `explain()` block is open: programs, their arguments, who called them.

Observers look at the first run of every program before it starts; each looks at the later runs of
those it follows: programs that take a random key, an index in user code, a 64-bit array of NumPy
or a donated argument, or that make a very large value. Such a call takes 0.1 to 0.2 ms longer
while the block is open, and 0.02 ms more for each array it is given, for JAX goes by way of Python
then; any other is as fast as ever. What was compiled before is compiled once more, in the first
block. An error keeps the runs it came out of.
"""

import contextlib
import contextvars
import functools
import sys
import threading
import traceback
import types
import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from malleable import compat
from malleable.compat import Place
from malleable.errors import HEADER, AdviceWarning
from malleable.inspection import places
from malleable.inspection.advice.evidence.trouble import place_of
from malleable.inspection.advice.evidence.wording import leaves
from malleable.inspection.advice.hint import Advice
from malleable.inspection.advice.watching import direct


@dataclass(eq=False)
class Run:
    """A program on its way; leaves: its flat arguments; names: their paths, as `params['w']`.

    fun, args, kwargs: the user's function and what it was called with, where JAX knows them.
    """

    program: compat.Jaxpr
    leaves: tuple
    donated: tuple[bool, ...]
    fun: Any = None
    args: tuple = ()
    kwargs: dict = field(default_factory=dict)
    within: bool = False  # it is the program of a call that was looked at

    @property
    def names(self) -> tuple[str, ...]:
        names = compat.argument_names(self.program)
        return names if len(names) == len(self.leaves) else ("",) * len(self.leaves)

    @property
    def own(self) -> bool:
        """Whether the program is a user function, and not one of a library."""
        place = compat.defined(self.program)
        return place is not None and places.is_own(place.file)


class Observer:
    """Looks at what runs in one block."""

    def __init__(self):
        self.told: set[tuple] = set()  # (file, line, what about) of what was said

    def tell(self, place: Place, advice: Advice, about: tuple = ()) -> None:
        """Warn at a line, once about one thing."""
        if (place.file, place.line, *about) not in self.told:
            self.told.add((place.file, place.line, *about))
            warn(advice, place)

    def called(self, run: Run, caller: types.FrameType | None) -> None:
        """Before a call of a jitted function; caller: the innermost frame of the user's own."""

    def met(self, run: Run, caller: types.FrameType | None) -> None:
        """A call of a jitted function under vmap or grad; its leaves are types."""

    def ran(self, run: Run, caller: types.FrameType | None) -> None:
        """Before anything compiled runs: such calls, and what runs without jit."""

    def narrowed(self, asked, given, caller: types.FrameType | None) -> None:
        """When a dtype of 64 bits is asked for by name, and 32 are given."""

    def converted(self, given, kept, caller: types.FrameType | None) -> None:
        """When a value is written into an array whose dtype holds less, x.at[i].add(y)."""

    def constant(self, frame: types.FrameType, out, caller: types.FrameType | None) -> None:
        """When the gradient of `out` is 0 for all values; frame: that of JAX which takes it."""

    def follows(self, running: compat.Running) -> bool:
        """Whether the program that has run is to be seen each time it runs."""
        return False

    def close(self) -> None:
        """At the end of the block."""


class Block:
    """One open block: its observers, and what went wrong in them."""

    def __init__(self, observers: Iterable[Observer]):
        self.observers = list(observers)
        self.failures: list[Exception] = []
        self.seen: set[tuple[str, compat.Jaxpr]] = set()
        self.closed = False
        self.recent: deque[compat.Jaxpr] = deque(maxlen=32)
        self.busy = threading.local()

    def __call__(self, proceed, running: compat.Running):
        if getattr(self.busy, "now", False):  # an observer computes something of its own
            return proceed()
        args, kwargs = running.given or ((), {})
        program, leaves, donated, fun, *_ = running
        if running.traced:
            self.busy.now = True
            try:
                self.look(
                    "met", Run(program, tuple(leaves), tuple(donated), fun, args, kwargs), caller()
                )
            finally:
                self.busy.now = False
            return proceed()
        calls = self.busy.__dict__.setdefault("calls", [])
        within = running.given is None and any(c.program is program for c in calls)
        run = Run(program, tuple(leaves), tuple(donated), fun, args, kwargs, within)
        self.busy.now = True
        try:
            self.look_at(run, "ran" if running.given is None else "called", running)
        finally:
            self.busy.now = False
        calls.append(run)
        self.recent.append(program)
        try:
            out = proceed()
        except Exception as error:
            same = self.as_without(error, run) if run.fun else error
            vars(same).setdefault(_RUNS, list(runs_of(error))).append(run)
            if same is error:
                raise
            raise same from None
        finally:
            calls.pop()
        if run.fun:
            direct.has_run(program)
        return out

    def as_without(self, error: Exception, run: Run) -> Exception:
        """An error as it would be without this block."""
        self.busy.now = True
        try:
            return direct.as_called_directly(error, run.program, run.leaves)
        finally:
            self.busy.now = False

    def lets_go(self, running: compat.Running) -> bool:
        """Whether nothing more is to be seen of a program, so that JAX may call it directly."""
        if getattr(self.busy, "now", False):
            module = getattr(running.fun, "__module__", None) or ""
            return module.startswith(__name__.partition(".")[0])
        return not any(observer.follows(running) for observer in self.observers)

    def look_at(self, run: Run, how: str, running: compat.Running) -> None:
        """Have a run looked at: the first of a program by all, a later one by who follows it."""
        fresh = (how, run.program) not in self.seen
        self.seen.add((how, run.program))
        who = [o for o in self.observers if fresh or o.follows(running)]
        if who:
            self.look(how, run, caller(), who=who)

    def narrowed(self, asked, given) -> None:
        self.look("narrowed", asked, given, caller())

    def converted(self, given, kept) -> None:
        self.look("converted", given, kept, caller())

    def constant(self, frame: types.FrameType, out) -> None:
        self.look("constant", frame, out, caller())

    def look(self, how: str, *seen, who: Iterable[Observer] | None = None) -> None:
        for observer in self.observers if who is None else who:
            try:
                getattr(observer, how)(*seen)
            except Warning:  # the user has made errors of warnings
                raise
            except Exception as failure:  # what looks on may never stop the program
                self.failures.append(failure)

    def find(self, kind: type) -> Any:
        """The observer of a kind."""
        return next(o for o in self.observers if type(o) is kind)


_RUNS = "_malleable_runs"
_open: contextvars.ContextVar[tuple[Block, ...]] = contextvars.ContextVar("open", default=())


@contextlib.contextmanager
def observed(kinds: Iterable[type[Observer]]) -> Iterator[Block]:
    """Have everything that runs inside looked at; inside another such block, by the outer one."""
    outer = block()
    if outer is not None:
        yield outer
        return
    new = Block(kind() for kind in kinds)
    _open.set((*_open.get(), new))
    try:
        with compat.watched(new):
            yield new
    finally:
        new.closed = True
        _open.set(tuple(one for one in _open.get() if one is not new))
        with contextlib.suppress(Warning) if sys.exception() else contextlib.nullcontext():
            new.look("close")


@contextlib.contextmanager
def unobserved() -> Iterator[None]:
    """What an adviser computes is not looked at."""
    now = block()
    busy = now.busy if now else threading.local()
    before, busy.now = getattr(busy, "now", False), True
    try:
        yield
    finally:
        busy.now = before


def block() -> Block | None:
    """The open block, of this thread or task."""
    return next((one for one in reversed(_open.get()) if not one.closed), None)


def runs_of(error: BaseException) -> list[Run]:
    """The runs an error came out of, innermost first."""
    return list(vars(error).get(_RUNS, ()))


def caller() -> types.FrameType | None:
    """The innermost running frame of user code."""
    frames = (frame for frame, _ in traceback.walk_stack(sys._getframe(1)))
    return next((frame for frame in frames if _is_users(frame.f_code.co_filename)), None)


@functools.lru_cache(4096)
def _is_users(file: str) -> bool:
    return places.is_own(file) and not compat.is_hidden_file(file)


def place_in(frame: types.FrameType | None) -> Place | None:
    """Where a frame is."""
    if frame is None:
        return None
    known = (id(frame.f_code), frame.f_lasti)
    if known not in _places:
        if len(_places) >= MOST_PLACES:
            _places.clear()
        _places[known] = (frame.f_code, place_of(frame.f_code, frame.f_lasti))
    return _places[known][1]


MOST_PLACES = 4096
_places: dict[tuple[int, int], tuple[types.CodeType, Place]] = {}  # the code: its id stays its own


def name_in(frame: types.FrameType | None, value) -> str:
    """What the user calls a value: `state`, `params['w']`; "" where nothing of theirs holds it."""
    if frame is None:
        return ""
    for scope in (frame.f_locals, frame.f_globals):
        for name, held in list(scope.items()):
            if held is value:
                return name
        for name, held in list(scope.items()):
            if isinstance(held, dict | list | tuple) and not name.startswith("__"):
                for path, leaf in leaves(held, name):
                    if leaf is value:
                        return path
    return ""


def warn(advice: Advice, place: Place | None) -> None:
    """Say what JAX does without a word: a warning at the user's line."""
    text = HEADER + str(advice)
    if place is None:
        warnings.warn(text, AdviceWarning, stacklevel=2)
    else:
        warnings.warn_explicit(text, AdviceWarning, place.file, place.line)
