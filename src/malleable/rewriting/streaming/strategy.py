"""What push and stream decide about one loop, as a value: to print, to compare, to emit."""

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple


class Options(NamedTuple):
    """What was asked of push or stream: chunk or block, what a gradient computes again, bytes."""

    chunk: int | str
    remat: Any
    threshold: int | None


@dataclass(frozen=True)
class Strategy:
    """How a region runs. why: why it does not, and stays as it is; else it is "".

    loop: "scan" (the one that was there), "batched" (each of its steps gives rows), "behind" (it
    reduces the carry that comes in, one step later) or "blocks" (a new one); chunk: steps at a
    time; remat: what a gradient computes again, "tail", "body" or None; deferred: sums of small
    slices are reduced after the loop; as_written: whose "value" or "derivative" is that of before.

    >>> print(Strategy("scan", chunk=8, remat="tail"), Strategy(why="it is small"), sep="; ")
    scan, chunk 8, remat tail; stays: it is small
    """

    loop: str = ""
    chunk: int = 1
    remat: str | None = None
    deferred: bool = False
    as_written: str = ""
    why: str = ""

    def __str__(self):
        if self.why:
            return f"stays: {self.why}"
        deferred = ", deferred sums" if self.deferred else ""
        written = f", {self.as_written} as written" if self.as_written else ""
        return f"{self.loop}, chunk {self.chunk}, remat {self.remat}{deferred}{written}"


# Where each strategy goes when it is decided, for who sets a list: `show`, a test.
DECIDED: ContextVar[list | None] = ContextVar("strategies", default=None)


def decided(strategy: Strategy) -> Strategy:
    """The strategy, told to who asked for them."""
    if (made := DECIDED.get()) is not None:
        made.append(strategy)
    return strategy
