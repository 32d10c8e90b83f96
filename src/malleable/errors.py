"""The errors users see, each with the user's line and one way out; `explain()` for JAX's own."""

import contextlib
import importlib
import traceback
from collections.abc import Callable, Iterable
from typing import Any, Never

from malleable.signatures import F


class MalleableError(Exception):
    """Base of every error this library raises on purpose.

    what: one sentence, in the user's words; where: `file.py:12 in fun`, or "" when no line of
    the user's is known; hint: one sentence telling what to do next.

    >>> print(MalleableError("'x' is fed nothing", where="model.py:3 in net", hint="feed it"))
    'x' is fed nothing
      at model.py:3 in net
      hint: feed it
    """

    def __init__(self, what: str, *, where: str = "", hint: str = ""):
        self.what: str = what
        self.where: str = where
        self.hint: str = hint
        super().__init__(text(what, where, hint))

    def at(self, where: str) -> None:
        """Name this line of the user's, if none is named yet."""
        self.where = self.where or where
        super().__init__(text(self.what, self.where, self.hint))


class TransformError(MalleableError):
    """A function and the transformation applied to it do not fit together."""


class BreakWarning(UserWarning):
    """A statement breaks the graph of a function under `jit`, or programs are made on and on."""


class AdviceWarning(UserWarning):
    """What JAX does without a word and is seldom meant, seen inside an `explain()` block."""


class RuleError(MalleableError):
    """A rule returned something that does not fit in the place of its equation."""


class UnhandledError(MalleableError):
    """A value was asked for that only a transformation can supply, and none is around."""


def text(what: str, where: str, hint: str) -> str:
    return what + f"\n  at {where}" * bool(where) + f"\n  hint: {hint}" * bool(hint)


# ---------------------------------------------------------------- JAX's own errors


# What an adviser makes of an error: a str, or an object with a weight, how sure and exact it is.
# The heaviest is shown. See `malleable.inspection.advice.hint.Advice`.
Adviser = Callable[[Exception], Iterable[Any]]

# Each makes a context that is entered with every `explain()` block and gives an Adviser. Those
# who know JAX append theirs with the first block: see malleable/inspection/advice/__init__.py.
advisers: list[Callable[[], contextlib.AbstractContextManager[Adviser]]] = []

# Each makes of (function, what opens a block) one that is watched in its steps, if it has any.
wrappers: list[Callable[[Callable[..., Any], Callable[..., Any]], Callable[..., Any] | None]] = []

HEADER = "malleable: "
MOST = 100  # errors that are looked at, of those that one was made of


def explain(*fun: Never, debug: bool = False) -> "Explaining":
    """While the block is open, an error of JAX says which line of yours to edit, and how.

    The exception goes on unchanged, with one note more (PEP 678); also a decorator. Blocks nest;
    an error is explained once. False words of JAX are put right, and kept as `error.jax_message`.
    A way out was tried on values of the same types, or else it says "perhaps"; those that were are
    data, `error.ways`, each with its `edits`.
    debug: an adviser that fails says so in a note of its own.

    >>> import jax
    >>> with explain():
    ...     float(jax.jit(lambda x: x + 1)(1.0))
    2.0
    """
    if fun:
        raise TypeError("explain takes no function\n  hint: `@explain()`, or `with explain():`")
    importlib.import_module("malleable.inspection.advice")
    return Explaining(debug)


class Explaining(contextlib.ContextDecorator):
    """An `explain()` block: `with` it, decorate with it, or ask it to `explain` one error."""

    def __init__(self, debug: bool):
        self.debug: bool = debug
        self._open: list[Any] = []

    def __enter__(self) -> "Explaining":
        """Start watching."""
        stack, advise, failures = contextlib.ExitStack(), [], []
        for make in advisers:
            with self._failing(failures):
                advise.append(stack.enter_context(make()))
        self._open.append((stack, advise, failures))
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        """Explain what was raised, if anything was."""
        try:
            if isinstance(error, Exception):
                self.explain(error)
        finally:
            with contextlib.suppress(Exception) if error else contextlib.nullcontext():
                self._open.pop()[0].close()

    def explain(self, error: Exception) -> None:
        """Add the best advice to an error, or to those it was made of: its cause, its members."""
        waiting, seen = [error], set()
        try:
            while waiting and len(seen) < MOST:
                one = waiting.pop(0)
                waiting += [] if id(one) in seen or self._explain(one) else _made_of(one)
                seen.add(id(one))
        except Exception as failure:  # of an odd error, which stays the one that the user sees
            with contextlib.suppress(Exception):
                error.add_note(f"the advice of malleable failed with {failure!r}")

    def _explain(self, error: Exception) -> bool:
        """Add the best advice to this error, unless it has some already; whether it has now."""
        if any(str(note).startswith(HEADER) for note in getattr(error, "__notes__", ())):
            return True
        _, advise, failures = self._open[-1]
        failures, found = list(failures), []
        for adviser in advise:
            with self._failing(failures):
                found.extend(adviser(error))
        if found:
            best = max(found, key=lambda one: getattr(one, "weight", 1.0))
            error.add_note(HEADER + str(best))
            error.ways = getattr(best, "sure", ())  # type: ignore[attr-defined]
            if instead := getattr(best, "instead", ""):
                error.jax_message = str(error)  # type: ignore[attr-defined]
                error.args = (instead, *error.args[1:])
        for failure in failures if self.debug else ():
            error.add_note(f"an adviser failed with {failure!r}")
        return bool(found)

    @contextlib.contextmanager
    def _failing(self, failures: list):
        try:
            yield
        except Exception as failure:  # an adviser may never stand before the user's own error
            failures.append(failure)

    def __call__(self, func: F) -> F:
        """A decorated generator or coroutine is watched in each of its steps, not between them."""
        made = (wrap(func, self._recreate_cm) for wrap in wrappers)
        return next(filter(None, made), None) or super().__call__(func)  # type: ignore[return-value]

    def _recreate_cm(self):
        return Explaining(self.debug)


def _made_of(error: Exception) -> list[Exception]:
    """The members of a group, and what an error that JAX did not raise was raised from."""
    members = error.exceptions if isinstance(error, ExceptionGroup) else ()
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    *_, last = [None, *(frame for frame, _ in traceback.walk_tb(error.__traceback__))]
    of_jax = last is not None and last.f_globals.get("__name__", "").startswith("jax.")
    return [one for one in (*members, None if of_jax else before) if isinstance(one, Exception)]
