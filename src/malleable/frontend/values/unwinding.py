"""A `raise` under a traced test: which handler gets it, and what was so when it happened.

Such a raise cannot unwind anything. It sets a flag of the `try` that catches it, and what runs from
there to the end of the statement in that `try` is for the other path only: `rewind` takes it back.
"""

import contextlib
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import jax
from jax import numpy as jnp

from malleable import compat
from malleable.arrays import journal
from malleable.arrays.box import Box
from malleable.arrays.journal import Journal, Place
from malleable.errors import TransformError
from malleable.frontend.common.decisions import decided, implied
from malleable.frontend.common.session import session
from malleable.frontend.values.leaves import inject
from malleable.frontend.values.packing import HELD, Leaving, Packed, link, packed, restored
from malleable.frontend.values.references import AllKnown
from malleable.frontend.values.trees import UNSET, Either, Static, join, spell
from malleable.frontend.values.values import CannotStage, flatten, rebuild

OURS = (TransformError, CannotStage)  # no handler of the user's gets these
FIXED = ("list", "dict", "set", "object")  # what must have one length on all paths


@dataclass(eq=False)
class Caught:
    """A `raise` for a handler, which may ignore it. contents: all that it holds, packed."""

    handler: Callable
    kind: type
    ignored: bool = False
    flag: Box = field(default_factory=lambda: Box(False, True))
    contents: types.CellType = field(default_factory=lambda: types.CellType(UNSET))

    late: bool = False  # a `finally` raised it, where another may have been under way

    def handle(self) -> None:
        """Run the handler, as Python does: the exception is the one being handled."""
        if self.ignored:
            return self.handler(None)
        held = self.contents.cell_contents
        if type(held) is not Packed:
            held = Packed(self.kind, (), (), (), (None, None, False))
        cause, context, quiet = held.links
        try:
            raise restored(held)
        except self.kind as e:
            link(e, (cause, UNSET if self.late else context, quiet))
            try:
                self.handler(e)
            finally:
                e.with_traceback(None)  # who keeps it does not keep the values of this block


class Attempt:
    """A `try` whose body runs. handlers: (what gives the types, or None; handler; ignores)."""

    def __init__(self, handlers: tuple, places: list[Place]):
        self.handlers, self.places, self.level = handlers, places, level()
        self.caught: dict[Any, Caught] = {}

    def number_of(self, e: BaseException) -> int | None:
        """Which handler an exception is for."""
        if isinstance(e, OURS):
            return None
        for number, (kinds, *_) in enumerate(self.handlers):
            if kinds is None or catches(kinds(), e):
                return number
        return None

    def kinds(self) -> tuple:
        """All that the handlers are for."""
        named = [kinds() if kinds else BaseException for kinds, *_ in self.handlers]
        return tuple(x for one in named for x in (one if isinstance(one, tuple) else (one,)))

    def take(self, e: BaseException) -> bool:
        """Note on this path that an exception was raised, if a handler is there for it."""
        number = self.number_of(e)
        if number is None:
            return False
        caught = self.caught_by(number, e)
        journal.before_write(caught.flag)
        caught.flag._value = True
        if not caught.ignored:
            journal.touch_cell(caught.contents)
            caught.contents.cell_contents = packed(e)
        e.with_traceback(None).__context__ = None  # these know the values of this block
        return True

    def caught_by(self, number: int, e: BaseException) -> Caught:
        """What is known of such exceptions: one for each line, or for all that are ignored."""
        _, handler, ignored = self.handlers[number]
        key = number if ignored else (number, type(e), getattr(e, "__malleable_where__", ""))
        return self.caught.setdefault(key, Caught(handler, type(e), ignored))

    def taken(self) -> list[Caught]:
        return [caught for caught in self.caught.values() if caught.flag._value is not False]


def catches(kinds, e: BaseException) -> bool:
    """Whether `except kinds` is for this exception."""
    kinds = kinds if isinstance(kinds, tuple) else (kinds,)
    if not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds):
        raise TypeError("catching classes that do not inherit from BaseException is not allowed")
    return any(kind in type(e).__mro__ for kind in kinds)


def is_raised(e: BaseException) -> bool:
    """Whether an exception comes from a `raise` in converted code, or from `sys.exit`."""
    return getattr(e, "__malleable_raised__", False) or type(e) is SystemExit


def is_of_a_path(e: BaseException) -> bool:
    """Whether an exception may be one of the program traced; Ctrl-C stops the tracing itself.

    JAX's own errors say that something cannot be traced: they are of no path.
    """
    if isinstance(e, jax.errors.JAXTypeError | jax.errors.JAXIndexError | Leaving):
        return False
    return isinstance(e, Exception) or is_raised(e)


def hand_over(e: BaseException) -> bool:
    """Leave an exception of one path to the innermost `try` around us that catches it, if any."""
    if isinstance(e, Leaving):
        return True
    return is_of_a_path(e) and any(attempt.take(e) for attempt in reversed(session().attempts))


def catcher(e: BaseException) -> tuple[Attempt, int] | None:
    """The innermost `try` around us that is for such an exception, and which handler of it."""
    found = ((attempt, attempt.number_of(e)) for attempt in reversed(session().attempts))
    return next(((attempt, n) for attempt, n in found if n is not None), None)


def hand_over_where(test, e: BaseException, attempt: Attempt, number: int) -> bool:
    """Hand over what is raised where a traced test says so, if its handler does not look at it."""
    if not attempt.handlers[number][2]:
        return False
    flag = attempt.caught_by(number, e).flag
    mark_as(flag, decided(test, True, flag._value))
    freeze()
    return True


def flags() -> list[Place]:
    """What stops a loop, once it is set: the flag of each handler, and of raises without one."""
    found = session()
    taken = [c.flag for a in found.attempts for c in a.caught.values()]
    return [Place("box", flag) for flag in (found.raised, *taken)]


def failed() -> Any:
    """Whether this path has raised, to a handler around us: True, False, or a traced boolean."""
    return any_of(place.read() for place in flags()[1:])


def any_of(flags: Iterable) -> Any:
    """Whether one of these is set: True, False, or a traced boolean."""
    either: Any = False
    for flag in flags:
        if flag is True:
            return True
        if flag is not False:
            either = flag if either is False else decided(flag, True, either)
    return either


def under_way() -> list[tuple[Box, Any]]:
    """The flags of what some paths have raised for handlers around us, each with these paths."""
    return [(p.owner, p.read()) for p in flags()[1:] if p.read() is not False]


def mark_as(flag: Box, value) -> None:
    journal.before_write(flag)
    flag.write(value)


def clear() -> None:
    """Begin a block that runs only where nothing was raised."""
    for flag, _ in under_way():
        mark_as(flag, False)


class Finally:
    """What stands under `finally`: it runs on the paths that raised, too, on what they left.

    What is under way goes on at its end, on the paths that come there: an exception takes the place
    of the one before, and a `return` or `break` ends it. mark: where the `try` began.
    """

    def __init__(self, mark: tuple):
        rewind(mark)
        moment = mark[-1] if mark else None
        self.gone = moment.pred if type(moment) is Moment else False  # paths that left before
        self.held, self.open = under_way(), True
        clear()

    def __enter__(self):
        return self

    def end(self) -> None:
        self.tell()
        raised = failed()
        self.go_on(True if raised is False else ~jnp.asarray(raised))
        freeze()

    def __exit__(self, kind, e, traceback):
        if self.open:
            self.tell()
            if self.held and e is not None:
                vars(e).setdefault(HELD, {})["__context__"] = UNSET
            self.go_on(self.gone)

    def tell(self) -> None:
        """Note what was raised here: its context is what was under way, on some paths."""
        for caught in (c for a in session().attempts for c in a.caught.values()):
            caught.late |= bool(self.held) and caught.flag._value is not False

    def go_on(self, where) -> None:
        """Where this is so, what was under way is so again."""
        self.open = False
        for flag, value in self.held if where is not False else ():
            held = value if where is True else jnp.logical_and(value, where)
            mark_as(flag, any_of((flag._value, held)))


# ---------------------------------------------------------------- what was so at the raise


class Moment(Journal):
    """What changes after a raise under a traced test, until the statement of its `try` ends.

    pred: where it was raised, or something before it; level: the journal of the block around.
    """

    level: Any = None

    def __init__(self, pred, level: Journal):
        super().__init__()
        self.pred, self.level = pred, level
        places = [p for p in level.places.values() if p.kind == "cell"]
        for attempt in session().attempts:
            if attempt.level is level:
                places += attempt.places
        for place in places:
            self.record(place)
        self.variables = set(self.places)


def level() -> Journal | None:
    """The journal of the block being traced."""
    now = journal.current()
    return now and now.level


def open_here() -> list[Journal]:
    """The journals of the block being traced: its own, and what came after each raise in it."""
    here = level()
    return [book for book in journal.all_open() if book.level is here]


def freeze() -> None:
    """From now on, what changes is for the paths that have not raised."""
    around = level()
    if around is not None and session().attempts:
        pred = failed()
        if pred is not False:
            journal.push(Moment(pred, around))


def freeze_if(changed) -> None:
    """Freeze if the flag of a handler is among the keys of what a block has changed."""
    if session().attempts and any(place.key in changed for place in flags()[1:]):
        freeze()


def entered() -> tuple:
    """A mark for `rewind`."""
    return journal.all_open()


def rewind(mark: tuple) -> None:
    """Where a path raised after the mark, let all places hold what they did then."""
    opened = journal.all_open()
    if not all(type(book) is Moment for book in opened[len(mark) :]):
        return  # an unfinished generator that Python drops while something else is traced
    later, done = True, {}
    while len(opened) > len(mark):
        moment, opened = opened[-1], opened[:-1]
        done = done if implied(later, moment.pred, True) else {}  # its paths are among the later
        later = moment.pred
        for key, place in in_order(moment):
            now, before = place.read(), moment.before[key]
            new = now if done.get(key, done) is before else chosen(later, before, now, place)
            done[key] = before
            if new is not now:
                place.write(new)
            if key not in moment.variables and key not in opened[-1].places:
                opened[-1].places[key], opened[-1].before[key] = place, before
        journal.back_to(opened)


def undo_to(mark: tuple) -> None:
    """Put back what has changed since the mark, whatever the path."""
    for book in reversed(journal.all_open()[len(mark) :]):
        book.undo()
    journal.back_to(mark)


def in_order(moment: Journal) -> list:
    """The places, those last that may hold others."""
    order = {"box": 0, "cell": 2}
    return sorted(moment.places.items(), key=lambda item: order.get(item[1].kind, 1))


def chosen(pred, old, new, place: Place) -> Any:
    """The old content of a place where `pred` is true, else the new one."""
    if is_same(old, new):
        return new
    if pred is True:
        return old
    if place.kind == "box":
        old, new = Box(old), Box(new)
    xs: list = []
    ys: list = []
    content = place.kind in FIXED
    (one, xs), (other, ys) = (
        AllKnown().named(flatten(x, into), into, content) for x, into in ((old, xs), (new, ys))
    )
    target = join(one, other)
    if isinstance(target, Static) and target == other:
        return new
    where = compat.where()
    if isinstance(target, Either) and place.kind in FIXED:
        raise TransformError(
            f"a {place.kind} is {spell(one)} when an exception is raised, and {spell(other)} "
            "if it is not",
            where=where,
            hint="change it before or after the statement that raises",
        )
    columns = zip(inject(one, iter(xs), target), inject(other, iter(ys), target), strict=True)
    outs = [decided(pred, x, y) for x, y in columns]
    content = place.kind == "box"
    value = rebuild(target, iter(outs), where, None if content else pred, {})
    return value._value if place.kind == "box" else value


def is_same(old, new) -> bool:
    """Whether two contents of a place are one: the same thing, or a container of the same."""
    if old is new:
        return True
    if issubclass(type(old), dict) and issubclass(type(new), dict):
        return old.keys() == new.keys() and all(old[k] is new[k] for k in old)
    if issubclass(type(old), list) and issubclass(type(new), list):
        return len(old) == len(new) and all(a is b for a, b in zip(old, new, strict=True))
    return False


@contextlib.contextmanager
def attempting(attempt: Attempt):
    """The body of a `try`."""
    attempts = session().attempts
    attempts.append(attempt)
    try:
        yield
    finally:
        attempts.pop()
