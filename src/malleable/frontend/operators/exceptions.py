"""What `try`, `except`, `finally` and `with` do: Python, unless a raise hangs on a traced value."""

import builtins
import contextlib
import dis
import functools
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from malleable import compat
from malleable.errors import TransformError
from malleable.frontend.common.decisions import assuming, opposite
from malleable.frontend.common.session import session
from malleable.frontend.operators import callables
from malleable.frontend.values import conditions, unwinding
from malleable.frontend.values.packing import HELD
from malleable.frontend.values.staging import has_raised, merge, trace_block
from malleable.frontend.values.unwinding import Attempt, Leaving, attempting, failed, freeze, rewind


def try_(groups: tuple, handlers: tuple, orelse: Callable | None, state, live) -> None:
    """`try: groups  except ...: handler  else: orelse`."""
    attempt, left = Attempt(handlers, conditions.places_of(state)), False
    statements = sum(groups, ())
    if "raise" in np.geterr().values():  # each operation is tested: one branch for all of a group
        statements = tuple(lambda group=group: [one() for one in group] for group in groups)
    try:
        with attempting(attempt):
            run(attempt, statements, state)
    except Leaving:
        if not attempt.taken():
            raise
        left = True
    except BaseException as e:
        number = attempt.number_of(e)
        if number is None:
            raise
        vars(e).setdefault(HELD, {})
        conditions.step(handlers[number][1], e)
        return
    finish(attempt.taken(), conditions.nothing if left or orelse is None else orelse, state, live)
    if failed() is not False:
        freeze()


def run(attempt: Attempt, statements: tuple, state) -> None:
    """The statements in turn; those after a raise under a traced test where it did not happen."""
    for k, statement in enumerate(statements):
        mark, left = unwinding.entered(), statements[k:]
        stopped = failed()
        try:
            if stopped is not False:
                return unless(stopped, catching(attempt, run, attempt, left, state), left, state)
            conditions.step(statement)
        except BaseException as e:
            stopped = failed()
            known = unwinding.is_raised(e) or attempt.number_of(e) is not None
            if stopped is False or not known or not unwinding.is_of_a_path(e):
                raise
            rewind(mark)
            again = e.with_traceback(None)
            return unless(stopped, catching(attempt, throw, again), left, state)
        finally:
            rewind(mark)


def throw(e: BaseException):
    raise e


def catching(attempt: Attempt, body: Callable, *args) -> Callable:
    """body(*args), where each exception that the `try` catches is one of this path only."""

    def now():
        try:
            body(*args)
        except BaseException as e:
            if not unwinding.is_of_a_path(e) or not attempt.take(e):
                raise
            raise Leaving from None

    return now


def unless(stopped, body: Callable, statements: tuple, state) -> None:
    """`body()` where nothing was raised."""
    if stopped is True:
        return

    def going():
        unwinding.clear()
        body()

    places = conditions.places_of(state)
    yes = assuming(stopped, False, trace_block, going, places)
    no = trace_block(conditions.nothing, places)
    merge(opposite(stopped), yes, no, conditions.line_of(statements[0]))
    if has_raised(yes):  # and the others before
        raise Leaving


def finish(taken: list, orelse: Callable, state, live) -> None:
    """The handler of the exception that was raised, or the else clause."""
    if not taken:
        stopped = failed()
        if stopped is False:
            conditions.step(orelse)
        elif orelse is not conditions.nothing:
            unless(stopped, orelse, (orelse,), state)
        return
    first, *rest = taken
    flag = first.flag._value
    if flag is True:
        return first.handle()
    places = conditions.places_of(state)
    yes = assuming(flag, True, trace_block, first.handle, places)
    others = lambda: finish(rest, orelse, state, live)  # noqa: E731
    no = assuming(flag, False, trace_block, others, places)
    conditions.forget_dead(places, live, yes, no)
    merge(flag, yes, no, conditions.line_of(first.handler))


# ---------------------------------------------------------------- finally, with


def suppressed(manager: type, *kinds: type) -> tuple:
    """What `with manager(*kinds)` lets pass, a `try` in the program that was converted."""
    if manager is not contextlib.suppress:
        raise TransformError(
            f"`{getattr(manager, '__name__', manager)}` is no contextlib.suppress",
            where=compat.where(),
            hint="give it another name",
        )
    return kinds


class Context:
    """A context manager of the user's: its methods converted, and told of what is raised.

    kinds: the exceptions that its `__exit__` is for. A `raise` of these under a traced test in the
    `with` is one for a handler, which calls `__exit__`. A generator cannot be asked on two paths.
    """

    def __init__(self, call: Callable, manager, state, kinds: tuple = ()):
        self.call, self.manager, self.state, self.kinds = call, manager, state, kinds
        self.generated = isinstance(manager, contextlib._GeneratorContextManager)
        self.attempt: Attempt | None = None
        self.mark: tuple = ()

    def __enter__(self):
        self.mark = unwinding.entered()
        kinds, given = self.kinds, self.ask("__enter__")
        if kinds:
            self.attempt = Attempt(
                ((lambda: kinds, self.handle, False),), conditions.places_of(self.state)
            )
            session().attempts.append(self.attempt)
        return given

    def ask(self, name: str, *args):
        return self.call(getattr(type(self.manager), name), self.manager, *args)

    def handle(self, e: BaseException) -> None:
        swallow = self.ask("__exit__", type(e), e, e.__traceback__)
        conditions.if_(conditions.not_(swallow), functools.partial(throw, e), None, None)

    def __exit__(self, *error):
        if self.attempt is not None:
            session().attempts.remove(self.attempt)
        with unwinding.Finally(self.mark) as block:
            swallow = self.leave(error, [] if self.attempt is None else self.attempt.taken())
            block.end()
            return swallow

    def leave(self, error: tuple, taken: list) -> Any:
        if taken and (self.generated or error[0] not in (None, Leaving)):
            raise TransformError(
                f"a traced value decides whether {taken[0].kind.__name__} is raised in this `with`",
                where=compat.where(),
                hint="write `try` and `except` inside of the `with`",
            )
        if taken:
            done = (
                conditions.nothing if error[0] else lambda: self.ask("__exit__", None, None, None)
            )
            finish(taken, done, self.state, [place.name for place in self.attempt.places])
            return error[0] is Leaving
        return self.ask("__exit__", *error)


def with_(call: Callable, manager, state) -> Any:
    """What `with` enters: the manager itself, unless its methods are code to convert."""
    kind = type(manager)
    if kind is contextlib._GeneratorContextManager:
        code, known = manager.gen.gi_code, manager.gen.gi_frame.f_globals
        found = [known.get(name, getattr(builtins, name, None)) for name in code.co_names]
        kinds = tuple(x for x in found if isinstance(x, type) and issubclass(x, BaseException))
        return Context(call, manager, state, kinds) if kinds else manager
    if kind is contextlib.suppress:  # made elsewhere: one that is written here is a `try`
        return Context(call, manager, state, manager._exceptions)
    methods = getattr(kind, "__enter__", None), getattr(kind, "__exit__", None)
    plain = all(isinstance(m, types.FunctionType) for m in methods)
    # errstate and printoptions set what holds while tracing: they are left once, on every path
    numpys = kind.__module__.partition(".")[0] == "numpy"
    if numpys or not (plain and any(map(callables.convertible, methods))):
        return manager
    return Context(call, manager, state, asked_of(methods[1]))


class Grouping(Attempt):
    """A `try` with `except*`, which no exception reaches whose test is traced."""

    def take(self, e: BaseException) -> bool:
        if self.number_of(e) is None:
            return False
        raise TransformError(
            f"a traced value decides whether {type(e).__name__} is raised for an `except*`",
            where=compat.where(),
            hint="write `except`",
        )


def grouping(kinds: Callable) -> contextlib.AbstractContextManager:
    """Around the body of a `try` with `except*`; kinds(): all that its handlers are for."""
    return attempting(Grouping(((kinds, None, False),), []))


def asked_of(leave: Any) -> tuple:
    """What an `__exit__` is for: any exception, if it may swallow one, or those of handlers."""
    last = None
    for line in dis.get_instructions(leave):
        given = line if line.opname == "RETURN_CONST" else last
        plain = given is not None and given.opname.endswith("_CONST") and not given.argval
        if line.opname in ("RETURN_CONST", "RETURN_VALUE") and not plain:
            return (BaseException,)
        last = line
    return tuple(kind for attempt in session().attempts for kind in attempt.kinds())
