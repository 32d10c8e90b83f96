"""What `try`, `except`, `finally` and `with` do: Python, unless a raise hangs on a traced value."""

import contextlib
import types
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from malleable import compat
from malleable.errors import TransformError
from malleable.frontend.operators import callables
from malleable.frontend.values import unwinding
from malleable.frontend.values.conditions import as_local, forget_dead, line_of, nothing, places_of
from malleable.frontend.values.staging import merge, trace_block
from malleable.frontend.values.unwinding import Attempt, Leaving, attempting, failed, freeze, rewind


def try_(statements: tuple, handlers: tuple, orelse: Callable | None, state, live) -> None:
    """`try: statements  except ...: handler  else: orelse`."""
    attempt, left = Attempt(handlers, places_of(state)), False
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
        handlers[number][1](e)
        return
    finish(attempt.taken(), nothing if left or orelse is None else orelse, state, live)
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
            step(statement, state)
        except Exception as e:
            stopped = failed()
            known = unwinding.is_raised(e) or attempt.number_of(e) is not None
            if stopped is False or not known:
                raise
            rewind(mark)
            again = e.with_traceback(None)
            return unless(stopped, catching(attempt, throw, again), left, state)
        finally:
            rewind(mark)


def step(statement: Callable, state) -> None:
    try:
        statement()
    except NameError as e:
        local = as_local(e, state)
        if local is e:
            raise
        raise local from None


def throw(e: BaseException):
    raise e


def catching(attempt: Attempt, body: Callable, *args) -> Callable:
    """body(*args), where each exception that the `try` catches is one of this path only."""

    def now():
        try:
            body(*args)
        except Exception as e:
            if not attempt.take(e):
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

    places = places_of(state)
    yes, no = trace_block(going, places), trace_block(nothing, places)
    merge(jnp.logical_not(stopped), yes, no, line_of(statements[0]))


def finish(taken: list, orelse: Callable, state, live) -> None:
    """The handler of the exception that was raised, or the else clause."""
    if not taken:
        stopped = failed()
        if stopped is False:
            step(orelse, state)
        elif orelse is not nothing:
            unless(stopped, orelse, (orelse,), state)
        return
    first, *rest = taken
    flag = first.flag._value
    if flag is True:
        return first.handle()
    places = places_of(state)
    yes = trace_block(first.handle, places)
    no = trace_block(lambda: finish(rest, orelse, state, live), places)
    forget_dead(places, live, yes, no)
    merge(flag, yes, no, line_of(first.handler))


# ---------------------------------------------------------------- finally, with


def finally_(mark: int) -> None:
    """A `finally` begins: it runs on the paths that raised, too, on what they left."""
    rewind(mark)


def after_finally() -> None:
    """A `finally` ends."""
    freeze()


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
    """A context manager of the user's, its methods converted."""

    def __init__(self, call: Callable, manager):
        self.call, self.manager, self.mark = call, manager, 0

    def __enter__(self):
        self.mark = unwinding.entered()
        return self.call(type(self.manager).__enter__, self.manager)

    def __exit__(self, *error):
        finally_(self.mark)
        swallow = self.call(type(self.manager).__exit__, self.manager, *error)
        after_finally()
        return swallow


def with_(call: Callable, manager) -> Any:
    """What `with` enters: the manager itself, unless its methods are code to convert."""
    kind = type(manager)
    methods = getattr(kind, "__enter__", None), getattr(kind, "__exit__", None)
    plain = all(isinstance(m, types.FunctionType) for m in methods)
    convertible = plain and any(map(callables.convertible, methods))
    return Context(call, manager) if convertible else manager
