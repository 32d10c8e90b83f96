"""`iter(xs)`, `itertools.count` and `cycle` as objects that say in an attribute how far they are.

So a loop that is compiled, or a branch, may advance one that was made outside of it.
"""

import builtins
import itertools
from typing import Any

from malleable import compat
from malleable.arrays import journal
from malleable.arrays.box import Box, is_traced, unbox
from malleable.errors import TransformError
from malleable.frontend.counterparts.builtins import Once, as_steps, if_else, pick
from malleable.frontend.values import values
from malleable.frontend.values.conditions import if_, not_


class Walker:
    """An iterator over what has a length and indices, or over the numbers from `at` on: `count`.

    at: the index of the next item, or the number. step: from each number to the next.
    """

    effect = "is moved on"

    def __init__(self, items, at=0, step=1, again: bool = False):
        self.items, self.at, self.step, self.again = items, at, step, again

    @property
    def endless(self) -> bool:
        return self.items is None or self.again

    def __iter__(self):
        return self

    def __next__(self) -> Any:
        if is_traced(self.at) and self.items is not None:
            raise TransformError(
                "a traced value decides how far the iterator is that is gone over here",
                where=compat.where(),
                hint="advance it by next() alone, or go over a slice: xs[k:]",
            )
        return self.advance()

    def advance(self, *default) -> Any:
        """next(self, *default)"""
        at, items = self.at, self.items
        if items is None:
            self.move(at + self.step)
            return at
        more = True if self.again else at < len(items)
        if not is_traced(more):
            if not more:
                return next(builtins.iter(()), *default)
            self.move(at + 1)
            return self.item(at % len(items) if self.again else at)
        if not default:
            if_(not_(more), end, None, None)
        self.move(at + more)
        return if_else(unbox(more), self.item(at), *default) if default else self.item(at)

    def move(self, at) -> None:
        journal.touch_attr(self, "at")
        self.at = at

    def item(self, at) -> Any:
        if isinstance(self.items, Box) or not is_traced(at):
            return self.items[at]
        if isinstance(self.items, builtins.range):
            return self.items.start + at * self.items.step
        return pick(self.items, at)


def end():
    error = StopIteration()
    error.__malleable_raised__ = True  # type: ignore[attr-defined]
    raise error


def iter_(items, *sentinel):
    """iter(items)."""
    if values.bounded(items) is not None and not sentinel:
        steps = as_steps(items)
        return Once(steps.length, steps.get, most=steps.most)
    kinds = list | tuple | builtins.range
    walks = type(items) is Box and items.ndim > 0
    walks = walks or isinstance(items, kinds)
    return Walker(items) if walks and not sentinel else builtins.iter(items, *sentinel)


def next_(items, *default):
    if type(items) is Walker:
        return items.advance(*default)
    return builtins.next(items, *default)


def cycle(items):
    items = items if type(items) is Box else [*items]
    return Walker(items, again=True) if len(items) else itertools.cycle(items)


TABLE = {
    builtins.iter: iter_,
    builtins.next: next_,
    itertools.count: lambda start=0, step=1: Walker(None, start, step),
    itertools.cycle: cycle,
}
