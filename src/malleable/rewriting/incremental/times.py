"""How values run in time: what the proof that a program is causal says of each of them."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from malleable import compat
from malleable.errors import TransformError
from malleable.programs.primitives import kind
from malleable.rewriting.graph.graph import Node
from malleable.rewriting.incremental.masks import Beyond
from malleable.rewriting.incremental.plan import Plan


class Loose(NamedTuple):
    """A second dimension that runs in time: its lag, and what stands beyond.

    beyond: None for numbers that are not known, made of zeros that stand where rows are not known
    yet; chunk: how many rows each place stands for; within: of the row's own chunk only.
    """

    lag: int
    beyond: Beyond | None
    chunk: int = 1
    within: bool = False


class Rows(NamedTuple):
    """The dimension of a value that runs in time, its lag, and the loose ones.

    dim: None where all of it is known with the first row of the input, as `x[0]` is; of rows in
    chunks, place n of it is row n * chunk, and place i of the dimension `inner`, if there is one,
    the row i further on.
    """

    dim: Any  # an int, or None
    lag: int
    loose: dict[int, Loose]
    inner: int | None = None
    chunk: int = 1

    def is_plain(self) -> bool:
        return self.chunk == 1 and not any(x.chunk > 1 or x.within for x in self.loose.values())


class Way(NamedTuple):
    """What is tried, of what may be seen in two ways.

    first: where two dimensions of a value run in time, it is computed by the first of them, or by
    the last; across: what a constant of rows and columns meets, as a mask meets keys, is columns;
    level: columns of earlier rows are taken to be of rows of this lag, as others beside them are;
    flips: values that are computed by the other of two dimensions.
    """

    first: bool
    across: bool
    level: int | None = None
    flips: frozenset[int] = frozenset()

    def of_two(self, v: int, dims: Sequence[int]) -> int:
        """The dimension by which a value is computed."""
        return dims[0 if self.first != (v in self.flips) else -1]

    def others(self, refused: "NotCausal") -> "list[Way]":
        """What else to try where this way was refused."""
        found = []
        if refused.level is not None and self.level is None:
            found.append(self._replace(level=refused.level))
        if refused.flip is not None and refused.flip not in self.flips and len(self.flips) < FLIPS:
            found.append(self._replace(flips=self.flips | {refused.flip}))
        return found


FLIPS = 8
WAYS = [Way(first, across) for across in (True, False) for first in (True, False)]


class NotCausal(TransformError):
    """A program whose rows need later ones was asked for as a scan.

    level: the lag of columns at which it may be none, `Way.level`; flip: the value that may have to
    be computed by another dimension; one_by_one: whether it is none if the rows come one by one;
    loop: a result of the outermost loop in it, which may have to be told turn by turn.
    """

    level: int | None = None
    flip: int | None = None
    one_by_one: bool = False
    loop: int | None = None


def refuse(node: Node | None, why: str) -> NotCausal:
    return NotCausal(
        f"the function is not causal along the axis: {why}",
        where="" if node is None else compat.where(node.eqn),
        hint=_way_out(node),
    )


def _way_out(node: Node | None) -> str:
    name = "" if node is None else node.name
    if name == "fft":
        return "write the convolution as one: jnp.convolve(x, kernel)[:len(x)], for each channel"
    if name in kind("write"):
        return (
            "write rows at places that are known, or let a scan put them out; to send tokens to "
            "experts, look up the weights of each token's expert instead"
        )
    if name == "triangular_solve":
        return "solve row by row, in a lax.scan over the rows"
    if name == "cond":
        return "compute both branches and choose by jnp.where, or map over the rows by jax.vmap"
    return (
        "mask what lies in the future (-inf, or 0 where it is added up), or use mal.incremental, "
        "which takes any function"
    )


def crossed(plan: Plan, node: Node, v: int, found: Mapping) -> NotCausal:
    """The error of rows that meet the columns of a value, which it would not if that was turned."""
    error = refuse(node, "its rows depend on later ones")
    made: Node | None = plan.graph.maker[v]
    while made is not None and (before := [u for u in made.ins if found.get(u) and found[u].loose]):
        (v, *_), made = before, plan.graph.maker[before[0]]
    error.flip = v
    return error


class Part(NamedTuple):
    """A dimension in time of an operand, and where it goes: to `dim` of the result, or nowhere.

    wide: over how many rows more than one each row of the result reaches.
    """

    operand: int
    source: int
    dim: int | None
    lag: int
    beyond: Beyond | None
    wide: int = 0
    chunk: int = 1
    within: bool = False

    def is_known(self, n: int, lag: int) -> bool:
        """Whether all n places are known when the first row of a result is made."""
        return self.chunk * (n - 1) - self.lag <= -lag
