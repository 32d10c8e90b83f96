"""What cannot run part by part, because a function in it has a rule of its own."""

import contextvars
from collections.abc import Callable

from malleable import compat
from malleable.notes import note

_refused: contextvars.ContextVar[list[str]] = contextvars.ContextVar("refused")


class HasRule(BaseException):
    """A function is met that has a rule for all examples, or lanes, together."""

    def __init__(self, why: str):
        super().__init__(why)
        _refused.get().append(why)


def one_example():
    """Inside, one example is run: a function with a rule for all of them is refused."""
    return compat.one_example(_refuse)


def _refuse() -> None:
    if not compat.is_batched():
        raise HasRule("a function in it has a rule for batches")


def unless_refused(run: Callable, what: str):
    """What a construct gives, part by part; NotImplemented, with a note, where it has a rule.

    The error that says so may have got lost in the user's code.
    """
    why: list[str] = []
    token = _refused.set(why)
    try:
        outs = run()
    except (HasRule, Exception):
        if not why:
            raise
    finally:
        _refused.reset(token)
    if not why:
        return outs
    note(f"ran a {what} as a whole", compat.where(), why[0])
    return NotImplemented
