"""Misuse of a transformation: what is no function, and code that has not run yet."""

import reprlib
import types
from typing import Any

from malleable.errors import TransformError, text


def needs_function(fun: Any, call: str) -> None:
    """Raise TypeError unless `fun` can be called; call: how what got it is called.

    >>> needs_function(3, "reap(fun)(...)")
    Traceback (most recent call last):
    TypeError: reap takes a function, not 3
      hint: write reap(fun)(...)
    """
    if not callable(fun):
        what = f"{call.partition('(')[0]} takes a function, not {reprlib.repr(fun)}"
        raise TypeError(text(what, "", f"write {call}"))


def refuse_unrun(x: Any) -> None:
    """Raise TransformError for a result that is code which has not run yet."""
    if isinstance(x, types.GeneratorType | types.CoroutineType | types.AsyncGeneratorType):
        if isinstance(x, types.CoroutineType):
            x.close()  # else Python warns that it was never awaited
        raise TransformError(
            f"{x.__qualname__} gives a {type(x).__name__.replace('_', ' ')}: its code has not run "
            "yet, and is not transformed",
            hint="transform a function that runs it and returns arrays: `return list(...)`",
        )
