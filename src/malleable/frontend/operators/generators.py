"""Generators: Python's, until a traced test decides what they yield.

A generator that nobody has advanced may begin anew, as a function that returns the list of all it
yields: what asks for all at once takes that list, whose length may be traced, in its place.
"""

import inspect
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from malleable import compat
from malleable.arrays import journal
from malleable.arrays.box import Box
from malleable.errors import TransformError
from malleable.frontend.common.session import note_line, session
from malleable.frontend.counterparts.builtins import Steps, printed
from malleable.frontend.operators.hidden import Trial, born, is_iterator
from malleable.python_source.source import NoSource, closed_over

UNFIT = (TransformError, jax.errors.JAXTypeError, jax.errors.JAXIndexError)
DEEP = 5  # containers and functions within one another that are looked into for what is gone over

_begun: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class Beginning:
    """How a generator came about.

    as_list(): all that it yields, traced. Raises NoSource where nobody can say that.
    given: what it goes over or asks. anew: the ids of the iterators that begin anew with it.
    """

    as_list: Callable
    given: tuple
    anew: frozenset


def started(generator, as_list: Callable, args: tuple, kwargs: dict, held: Sequence = ()):
    """Remember how a generator began; returns it.

    as_list(args, kwargs): all that it yields, where each argument is as it was then. held: what
    else it asks.
    """
    known = {id(x): beginning(x) for x in (*args, *kwargs.values())}

    def anew(x):
        found = known[id(x)]
        if found is None and is_iterator(x) and not isinstance(x, Steps):
            raise NoSource("it goes over an iterator, and nobody knows how far that was")
        return x if found is None else found.as_list()

    def listed():
        return as_list([*map(anew, args)], {name: anew(x) for name, x in kwargs.items()})

    inner = (begun.anew for begun in known.values() if begun is not None)
    ids = frozenset([id(generator)]).union(*inner)
    _begun[generator] = Beginning(listed, (args, kwargs, held), ids)
    return generator


def passed_on(iterator):
    """An iterator of Python's as a generator, of which one can know how it began."""
    yield from iterator


def generated(items, plain: Callable, again: Callable):
    """A generator expression over `items`; plain(items) is Python's, again(items) a list of all."""
    try:
        made = plain(items)
    except UNFIT:  # it asks for an iterator at once, as nobody else may
        made = (x for make in (plain,) for x in make(items))
    return started(born(made), lambda args, _: again(*args), (items,), {}, (again,))


def beginning(x) -> Beginning | None:
    """How a generator began that nobody has advanced yet; None for anything else."""
    if not inspect.isgenerator(x) or inspect.getgeneratorstate(x) != inspect.GEN_CREATED:
        return None
    return _begun.get(x)


def tried(run: Callable, again: Callable, begun: Beginning) -> Any:
    """run(), or where a traced test is in its way, again(), as if nothing had happened.

    begun: of the generator that `again` begins anew. No other iterator can be put back.
    """
    within = journal.all_open()
    book = within[-1]
    kept, book.places, book.before = (book.places, book.before, book.tried), {}, {}
    book.tried = trial = Trial(frozenset(book.made or ()))
    try:
        try:
            return run()
        except UNFIT as e:
            if journal.all_open() != within or hasattr(e, "__malleable_final__"):
                raise
            book.undo()
            trial.said.clear()
            book.places, book.before, error = {}, {}, e.with_traceback(None)
            if any(id(x) not in begun.anew for x in trial.advanced):
                raise
    finally:
        book.places, book.before = {**book.places, **kept[0]}, {**book.before, **kept[1]}
        book.tried = kept[2]
        for say in trial.said:
            printed(say)
    try:
        return again()
    except NoSource:
        raise error from None


class Apart:
    """The items of a generator before a loop over it, which Python would run in turn with it.

    Refused where the one changes what the other knows.
    """

    def __init__(self, begun: Beginning):
        self.begun, self.old, known = begun, contents(begun), changed_globals()
        before = session().said
        self.items = begun.as_list()
        self.said = session().said
        self.prints = self.said > before
        self.check("changes what it is given")
        if changed_globals() != known:
            raise happens_in_turn("changes a global variable")

    def check(self, what: str = "goes over what the loop changes") -> None:
        """Call it after the loop."""
        new = contents(self.begun)
        if len(new) != len(self.old) or any(a is not b for a, b in zip(new, self.old, strict=True)):
            raise happens_in_turn(what)
        if self.prints and session().said > self.said:
            what = "a loop prints, and all that the generator prints comes first"
            note_line(what, compat.where(), "Python runs the two in turn")


def changed_globals() -> set:
    return {key for key, place in journal.all_open()[-1].places.items() if place.kind == "global"}


def contents(begun: Beginning) -> list:
    """What a generator is given: a change shows as another thing in the row."""
    return list(inside_of(begun.given, DEEP))


def happens_in_turn(what: str) -> TransformError:
    return TransformError(
        f"a generator with a traced test {what}, which happens in turn with the loop over it",
        where=compat.where(),
        hint="go over list(...) of it, if that means the same",
    )


def inside_of(x, depth: int) -> Iterator:
    if issubclass(type(x), Box):
        yield x._value
        return
    inside: list | tuple = ()
    if isinstance(x, types.FunctionType):
        inside = [*closed_over(x).values()]
    elif isinstance(x, list | tuple | set):
        inside = [*x]
    elif isinstance(x, dict):
        inside = [*x.values()]
    elif not isinstance(x, type):
        slots = [n for kind in type(x).__mro__ for n in vars(kind).get("__slots__", ())]
        inside = [*journal.fields(x).values(), *(getattr(x, n, None) for n in slots)]
    if not inside or not depth:
        yield x
    for one in inside if depth else ():
        yield from inside_of(one, depth - 1)
