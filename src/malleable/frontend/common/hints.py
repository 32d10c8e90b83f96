"""What a user says about one place of a program: `loop`, `skip`, and the explicit style."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax import numpy as jnp

from malleable import compat
from malleable.arrays.box import Box, rebox, unbox
from malleable.frontend.common.session import active
from malleable.python_source.misuse import called_as
from malleable.signatures import F


@dataclass(frozen=True)
class Hinted:
    """The items or the test of a loop, and what was said about it."""

    value: Any
    max_steps: int | None
    roll: bool | str | None

    def __iter__(self):  # in code that is not converted
        return iter(self.value)

    def __bool__(self):
        return bool(self.value)


@called_as("for x in loop(xs, max_steps=9):")
def loop(value: Any, *, max_steps: int | None = None, roll: bool | str | None = None) -> Any:
    """Say something about a loop: `for x in loop(xs, roll=True)`, `while loop(test, max_steps=9)`.

    max_steps: the most steps it can take, which reverse-mode gradients of a `while`, or of a
    range with a traced bound, need to know; beyond it they are NaN.
    roll: True makes one scan of a loop over a list of like things (layers, say) or over a range,
    instead of one copy of the body per item; "auto" does where it can and at least 8 items are
    left. Outside of converted code, `value` comes back.

    >>> [x for x in loop([1, 2, 3], roll=True)]
    [1, 2, 3]
    """
    if max_steps is not None and (not isinstance(max_steps, int) or max_steps < 0):
        raise ValueError(f"max_steps is a number of steps, not {max_steps!r}")
    if roll not in (None, True, False, "auto"):
        raise ValueError(f'roll is True, False or "auto", not {roll!r}')
    return Hinted(value, max_steps, roll) if active() else value


@called_as("skip(fun)")
def skip(fun: F) -> F:
    """Mark a function as one that converted code calls as it is.

    >>> @skip
    ... def log(x):
    ...     return x
    """
    fun.__malleable_skip__ = True  # type: ignore[attr-defined]
    return fun


def inline_cond(pred: Any) -> Any:
    """Mark an `if`: with `autograph(mode="explicit")` it becomes a cond. Else `pred` itself.

    >>> 1 if inline_cond(2 > 1) else 0
    1
    """
    return pred


def inline_while(test: Any) -> Any:
    """Mark a `while`: with `autograph(mode="explicit")` it becomes a while_loop. Else `test`."""
    return test


def inline_scan(xs: Iterable[Any]) -> Any:
    """Mark a `for`: with `autograph(mode="explicit")` it becomes a scan. Else `xs` itself.

    >>> [x for x in inline_scan(range(3))]
    [0, 1, 2]
    """
    return xs


@called_as("inline_stack(ys)")
def inline_stack(ys: list[Any]) -> Any:
    """The items that a loop appended to a list, as one array.

    >>> inline_stack([1.0, 2.0]).shape
    (2,)
    """
    traced = any(isinstance(unbox(y), compat.Tracer) for y in ys)
    if any(isinstance(y, Box) for y in ys):
        return rebox(jnp.stack([jnp.asarray(unbox(y)) for y in ys]), True)
    return jnp.stack(ys) if traced else np.stack(ys)
