"""What devices send to each other, by source line: `communication(fun)(*args)`.

    assert mal.communication(step)(*args).bytes < 1e6          # in a test
    print(mal.communication(step, passes=[mal.defer_collectives])(*args))     # what a pass changes

The program is compiled, and its collectives are read: those that a program asks for, and those that
XLA adds where it partitions what `jit` gives it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from malleable import compat
from malleable.inspection import places
from malleable.inspection.costs.collectives import Sent, axis_of, collectives
from malleable.inspection.costs.cost import scaled
from malleable.programs.equations import every
from malleable.python_source.changes import unchanged
from malleable.python_source.misuse import called_as
from malleable.rewriting.passes.passes import optimize
from malleable.rewriting.sharding.placement import sharding_of

WHY = {
    "all-gather": "a value is in parts along {axis}, and used whole",
    "all-reduce": "a sum runs over what is in parts along {axis}",
    "reduce-scatter": "a sum runs over what is in parts along {axis}; its result is in parts",
    "collective-permute": "parts go from one device along {axis} to another",
    "all-to-all": "a value is in parts of one dimension along {axis}, and used in parts of another",
}


@dataclass(frozen=True)
class Transfer:
    """What one line sends by one kind of collective along one axis of the mesh.

    line: `file.py:12 in fun  text of the line`, None where no line is known; times: how often it
    runs; bytes: of results on a device, all times together; backward: of a derivative; why: what
    asks for it.
    """

    line: str | None
    kind: str
    axis: str
    times: float
    bytes: float
    backward: bool
    why: str


@dataclass(frozen=True)
class Communication:
    """What a program sends: rows, the dearest first; before: without the passes, if any."""

    name: str
    rows: list[Transfer]
    before: "Communication | None" = None

    @property
    def bytes(self) -> float:
        """Bytes of the results of all collectives on one device, loops by their trips."""
        return sum(row.bytes for row in self.rows)

    @property
    def times(self) -> float:
        """How many collectives run; one that sends for several lines counts for each."""
        return sum(row.times for row in self.rows)

    @property
    def saved(self) -> float:
        """Bytes that the passes save; negative for what they add; 0 without passes."""
        return 0 if self.before is None else self.before.bytes - self.bytes

    def __str__(self):
        told = [f"{self.name}: {self.times:g} collectives, {scaled(self.bytes)}B on a device"]
        if self.before is not None:
            was = self.before
            told[0] += f"; before the passes {was.times:g}, {scaled(was.bytes)}B"
        for row in self.rows:
            way = " (backward)" * row.backward
            told.append(
                f"{scaled(row.bytes):>9}B {row.times:>6g} x {row.kind:18} {row.axis or '?':12} "
                f"{row.line or '(no line)'}{way}: {row.why}"
            )
        return "\n".join(told)


@called_as("communication(fun, passes=[...])(*args)")
def communication(
    fun: Callable[..., Any],
    *,
    passes: Sequence[Callable[..., Any]] = (),
    shardings: Any = None,
) -> Callable[..., Communication]:
    """Return a function that tells what `fun` sends between devices on its arguments, by line.

    Nothing is run; the program is compiled for where its arguments are.
    passes: those of `optimize` that `fun` goes through first; `before` then has what it sends
    without; shardings: for `optimize`.
    Raises TypeError for passes that are no list.

    >>> import jax.numpy as jnp
    >>> communication(lambda x: x.sum())(jnp.ones(8)).bytes
    0
    """

    def counted(*args, **kwargs) -> Communication:
        with unchanged(fun, (args, kwargs)):
            return _both(args, kwargs)

    def _both(args, kwargs) -> Communication:
        plain = _read(fun, args, kwargs)
        if not passes:
            return plain
        treated = optimize(fun, *passes, shardings=shardings)
        return Communication(plain.name, _read(treated, args, kwargs).rows, plain)

    return counted


def _read(fun: Callable, args: tuple, kwargs: dict) -> Communication:
    staged: Any = fun if hasattr(fun, "lower") else jax.jit(fun)
    lowered = staged.lower(*args, **kwargs)
    shape = _mesh_shape(staged, args, kwargs)
    rows: dict[tuple, list] = {}
    for sent in collectives(compat.compiled_text(lowered)):
        back = "transpose(" in sent.operation
        key = _line_sent(sent), sent.kind, axis_of(sent.groups, shape), back
        entry = rows.setdefault(key, [0.0, 0.0])
        entry[0] += sent.times
        entry[1] += sent.times * sent.bytes
    found = [
        Transfer(line, kind, axis, times, size, back, WHY[kind].format(axis=axis or "the mesh"))
        for (line, kind, axis, back), (times, size) in rows.items()
    ]
    found.sort(key=lambda row: (-row.bytes, row.line or "", row.kind, row.axis))
    return Communication(getattr(fun, "__name__", type(fun).__name__), found)


def _line_sent(sent: Sent) -> str | None:
    own = [p for p in sent.places if compat.is_users(p.file)]
    place = places.own(own)
    return f"{places.spell(place)}  {places.line_of(place)}" if place else None


def _mesh_shape(staged, args, kwargs) -> dict[str, int]:
    """The mesh of the arguments, or of what the program says."""
    for x in jax.tree.leaves((args, kwargs)):
        mesh = getattr(sharding_of(x), "mesh", None)
        if mesh is not None:
            return dict(mesh.shape)
    for eqn in every(staged.trace(*args, **kwargs).jaxpr.jaxpr.eqns):
        told = eqn.params.get("mesh") or getattr(eqn.params.get("sharding"), "mesh", None)
        if told is not None and getattr(told, "shape", None):
            return dict(told.shape)
    return {}
