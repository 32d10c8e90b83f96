"""Cooperative threads: functions that run in turn and wait for each other, `run(functions, spots)`.

One of them runs at a time, in a fixed order, each as far as it gets without the others. The first
runs where `run` was called; another gets a thread only when one before it stands and waits. So
what never waits never leaves the caller's thread, and a debugger works in all of them.
"""

import contextvars
import threading
from collections.abc import Callable, Sequence
from typing import Any

from malleable import compat
from malleable.inspection.debugging import lanes

PATIENCE = 5.0  # seconds that an interrupt waits for what runs in another thread

_current: contextvars.ContextVar["_Member | None"] = contextvars.ContextVar("member", default=None)


def run(functions: Sequence[Callable[[], Any]], spots: Sequence[lanes.Coords]) -> list:
    """The results of the functions, each of which may `ask`. spots: where in the mesh each is.

    An error of one ends them all; MalleableError where they wait for each other for ever.
    """
    around = _current.get()
    scheduler = _Scheduler() if around is None else around.scheduler
    group = _Group(scheduler, around, functions, spots)
    return group.results()


def ask(primitive: str, params, values: Sequence, under) -> list:
    """What a collective gives here: waits for the others. under: the context it is computed in."""
    member = _current.get()
    assert member is not None
    at = compat.place()
    where = "{}:{} in {}".format(*at) if at else ""
    request = lanes.Request(member.coords, primitive, params, tuple(values), where, under)
    return member.wait(request)


def coords() -> lanes.Coords:
    """Where in the mesh this is run."""
    member = _current.get()
    return {} if member is None else member.coords


class _Dismissed(BaseException):
    """Another lane failed: this one is not needed any more."""


class _Scheduler:
    """All that run in turn, groups within members of other groups included."""

    def __init__(self):
        self.members: list[_Member] = []
        self.groups: list[_Group] = []

    def next(self) -> "_Member | _Group":
        """Who goes on: the first in order who can."""
        ready = [x for x in (*self.members, *self.groups) if x.is_ready()]
        if not ready:
            waiting = {m.request: m for m in self.members if m.request is not None}
            for request, outs in lanes.answer(list(waiting)).items():
                waiting[request].answer = outs
                ready.append(waiting[request])
            if not ready:
                root = self.groups[0]
                root.error = lanes.stuck(list(waiting), len(root.members))
                return root
        return min(ready, key=lambda x: x.order)


class _Group:
    """The members of one call of `run`. gate: opened for the thread that called."""

    def __init__(self, scheduler, around, functions, spots):
        self.scheduler, self.around, self.error = scheduler, around, None
        self.order = () if around is None else around.order
        outer = {} if around is None else around.coords
        self.gate = threading.Semaphore(0) if around is None else around.gate
        self.tell = compat.thread_state()
        self.members = [
            _Member(self, fun, {**outer, **at}, (*self.order, i))
            for i, (fun, at) in enumerate(zip(functions, spots, strict=True))
        ]

    def is_ready(self) -> bool:
        return self.error is not None or all(m.done for m in self.members)

    def results(self) -> list:
        self.scheduler.groups.append(self)
        self.scheduler.members += self.members
        try:
            while not self.is_ready() and not self.is_dismissed():
                then = self.scheduler.next()
                if isinstance(then, _Member) and then.group is self and then.gate is None:
                    then.start_here(self.gate)
                elif then is not self:
                    then.go_on()
                    self.gate.acquire()
        except BaseException as error:  # a keyboard interrupt while others run
            self.error = error
            raise
        finally:
            for member in self.members:
                member.dismiss()
            self.scheduler.members = [m for m in self.scheduler.members if m.group is not self]
            self.scheduler.groups.remove(self)
        if self.is_dismissed():
            raise _Dismissed
        if self.error is not None:
            raise self.error
        return [m.result for m in self.members]

    def is_dismissed(self) -> bool:
        return self.around is not None and self.around.is_dismissed()

    def fail(self, error: BaseException) -> None:
        self.error = error if self.error is None else self.error

    def go_on(self) -> None:
        self.gate.release()


class _Member:
    """One of the functions. gate: opened for the thread it runs on, None before it runs."""

    def __init__(self, group, fun, coords, order):
        self.group, self.coords, self.order = group, coords, order
        self.fun: Any = fun
        self.scheduler, self.context = group.scheduler, contextvars.copy_context()
        self.gate: threading.Semaphore | None = None
        self.here = self.done = False
        self.request: Any = None
        self.answer: Any = None
        self.result: Any = None

    def is_ready(self) -> bool:
        return not self.done and (self.gate is None or self.answer is not None)

    def is_dismissed(self) -> bool:
        return self.group.error is not None or self.group.is_dismissed()

    def start_here(self, gate) -> None:
        """Run in this thread, which has nothing else to do."""
        self.gate, self.here = gate, True
        self.context.run(self.body)

    def go_on(self) -> None:
        if self.gate is not None:
            self.gate.release()
            return
        thread = threading.Thread(target=self.context.run, args=(self.in_thread,), daemon=True)
        self.gate = threading.Semaphore(0)
        try:
            thread.start()
        except BaseException:
            self.gate = None  # nobody is there to be dismissed
            raise

    def in_thread(self) -> None:
        """Run in a thread of its own, at whose end another goes on, whatever happens here."""
        with lanes.unguarded():
            self.body(self.group.tell)
        try:
            then = self.group if self.is_dismissed() else self.scheduler.next()
            then.go_on()
        except BaseException as error:
            self.group.fail(error)
            self.group.go_on()

    def body(self, first: Callable[[], None] = lambda: None) -> None:
        _current.set(self)
        try:
            first()
            self.result = self.fun()
        except _Dismissed:
            pass
        except BaseException as error:
            self.group.fail(error)
        finally:
            self.done, self.fun = True, None

    def wait(self, request) -> list:
        """Let the others run until there is an answer."""
        if self.is_dismissed():
            raise _Dismissed
        self.request = request
        while self.answer is None:
            then = self.scheduler.next()
            if then is self:
                break
            then.go_on()
            self.gate.acquire()  # type: ignore[union-attr]
            if self.is_dismissed():
                raise _Dismissed
        outs, self.request, self.answer = self.answer, None, None
        return outs or []

    def dismiss(self) -> None:
        """Unwind what still stands and waits on another thread."""
        interrupted = isinstance(self.group.error, KeyboardInterrupt)  # what ran goes on meanwhile
        while self.gate is not None and not self.here and not self.done:
            self.gate.release()
            if not self.group.gate.acquire(timeout=PATIENCE if interrupted else None):
                return
