"""How values run in time: what the proof that a program is causal says of each of them."""

from typing import Any, NamedTuple

from malleable import compat
from malleable.errors import TransformError
from malleable.rewriting.graph.graph import Node
from malleable.rewriting.incremental.masks import Beyond


class Loose(NamedTuple):
    """A second dimension that runs in time: its lag, and what stands beyond.

    None: numbers that are not known, made of zeros that stand where rows are not known yet.
    """

    lag: int
    beyond: Beyond | None


class Rows(NamedTuple):
    """The dimension of a value that runs in time, its lag, and the loose ones.

    dim: None where all of it is known with the first row of the input, as `x[0]` is.
    """

    dim: Any  # an int, or None
    lag: int
    loose: dict[int, Loose]


class Way(NamedTuple):
    """What is tried, of what may be seen in two ways.

    first: where two dimensions of a value run in time, it is computed by the first of them, or by
    the last; across: what a constant of rows and columns meets, as a mask meets keys, is columns;
    level: columns of earlier rows are taken to be of rows of this lag, as others beside them are.
    """

    first: bool
    across: bool
    level: int | None = None


WAYS = [Way(first, across) for across in (True, False) for first in (True, False)]


class NotCausal(TransformError):
    """A program whose rows need later ones was asked for as a scan.

    level: the lag of columns at which it may be none, `Way.level`.
    """

    level: int | None = None


def refuse(node: Node | None, why: str) -> NotCausal:
    return NotCausal(
        f"the function is not causal along the axis: {why}",
        where="" if node is None else compat.where(node.eqn),
        hint="mask what lies in the future (-inf, or 0 where it is added up), or use "
        "mal.incremental, which takes any function",
    )


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
