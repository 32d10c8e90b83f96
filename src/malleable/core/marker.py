"""Your own primitive: a place in a program where a transformation may act.

A marker exists only while a transformation with a rule for it is around: elsewhere calling
it is the identity, or an error that says what is missing. So a marked function costs nothing.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax import numpy as jnp

from malleable import compat
from malleable.errors import UnhandledError

LANES = ("front", "all", "each", "shared")
TANGENTS = ("pass", "none", "refuse")


class Marker(compat.Primitive):
    """A primitive that asks to be handled by a rule; made by `marker`.

    Unless it only supplies a value, its last operand is the `place` it is at, which rules do not
    see: JAX moves a place out of no loop, and so nothing that depends on one (jax#16637).
    """

    def __init__(self, name: str, missing: str, hint: str, out: Any, lanes: str):
        super().__init__(name)
        self.missing: str = missing
        self.hint: str = hint
        self.out: Any = out
        self.placed: bool = lanes not in ("each", "shared")
        self.shared: bool = lanes == "shared"

    @property
    def active(self) -> bool:
        """Whether a transformation around us has a rule for it."""
        return self in compat.handled.value

    def __call__(self, *args: Any, **params: Any) -> Any:
        """Mark `args`; a single result comes alone, several as a list."""
        outs = self.mark(*args, **params)
        return outs[0] if len(outs) == 1 else outs

    def mark(self, *args: Any, **params: Any) -> list[Any]:
        """Mark `args`; the results as a list."""
        if not self.active:
            return self.unhandled(*args, **params)
        return self.bind(*args, *(place.bind() if self.placed else ()), **params)

    def unhandled(self, *args: Any, **params: Any) -> list[Any]:
        """What it is where no rule waits for it: the identity, or an error."""
        if self.missing:
            raise UnhandledError(self.missing, where=compat.where(), hint=self.hint)
        if not self.placed:
            return [jnp.zeros(t.shape, t.dtype) for t in jax.tree.leaves(self.out(**params))]
        return list(args if self.out is None else self.out(*args, **params))


def marker(
    name: str,
    *,
    out: Callable[..., Any] | None = None,
    missing: str = "",
    hint: str = "",
    lanes: str = "front",
    tangents: str = "",
) -> Marker:
    """A new primitive for rules to act on.

    out(*avals, **params) -> the type of its result (anything with a shape and a dtype), or a
    list of them; without it the marker is the identity of its operands.
    missing: the error when no transformation around has a rule for it ("" if it may be left);
    hint: what to do then.
    lanes: what `vmap` makes of it. "front": the lane axis of mapped operands goes to the front;
    "all": every operand gets it; "each": one result per lane, by its parameter `shape`;
    "shared": one result for all lanes, and for all devices of a shard_map.
    tangents: "pass" hands them on (default for an identity), "none" has none (default for "each"
    and "shared"), "refuse" is an error (default otherwise).

    >>> loud = marker("loud")
    >>> float(loud(2.0))
    2.0
    >>> def double(frame, x):
    ...     return 2 * x
    >>> from malleable import interpret
    >>> float(interpret(lambda x: loud(x) + 1, {loud: double})(2.0)[0])
    5.0
    """
    new = Marker(name, missing, hint, out, lanes)
    if not tangents:
        tangents = "pass" if out is None else "refuse" if new.placed else "none"
    if lanes not in LANES or tangents not in TANGENTS:
        raise ValueError(f"lanes is one of {LANES}, tangents one of {TANGENTS}")

    def types(*avals, **params):
        operands = avals[:-1] if new.placed else avals
        given = operands if out is None else out(*operands, **params)
        return given if isinstance(given, list | tuple) else [given]

    def run(*args, **params):
        return new.unhandled(*(args[:-1] if new.placed else args), **params)

    compat.define_marker(new, types, run, lanes, tangents)
    return new


place = marker("place", out=lambda **_: jax.ShapeDtypeStruct((), bool), lanes="shared")
