"""The items of a list that a compiled loop filled: rows of one array, read when somebody asks."""

from collections.abc import Sequence

from malleable import compat
from malleable.arrays.content import Box
from malleable.arrays.places import is_tracer


class Row(Box):
    """stack[at] as a value of its own. Nothing is computed before it is used.

    Then it is computed where the stack was: whatever is being traced inside knows it as older.
    """

    __slots__ = ("_at", "_own", "_row", "_stack")
    born = 0  # as old as the stack

    def __init__(self, stack, at: int, scalar: bool):
        self._stack, self._at, self._row, self._own = stack, at, None, None
        self._base = self._index = None
        self.scalar, self.immutable = scalar, False

    @property
    def _value(self):
        if self._own is not None:
            return self._own
        if self._row is None:
            with compat.where_made(self._stack):
                self._row = self._stack[self._at]
        return self._row

    @_value.setter
    def _value(self, new):
        self._own = None if new is self._row else new

    @property
    def shape(self):
        return self._stack.shape[1:]

    @property
    def dtype(self):
        return self._stack.dtype

    @property
    def traced(self):
        return is_tracer(self._stack if self._own is None else self._own)


def whole(items: Sequence):
    """The array of which these are all rows, in order; None if they are not."""
    if not items or type(items[0]) is not Row:
        return None
    stack = items[0]._stack
    if len(items) != stack.shape[0]:
        return None
    for i, x in enumerate(items):
        if type(x) is not Row or x._stack is not stack or x._at != i or x._own is not None:
            return None
    return stack


def gathered(args):
    """The arguments of a function of arrays, with one array in place of each list of its rows."""
    if not any(type(x) in (list, tuple) and x and type(x[0]) is Row for x in args):
        return args
    stacks = [whole(x) if isinstance(x, list | tuple) else None for x in args]
    return tuple(
        x if stack is None else Box(stack, False) for x, stack in zip(args, stacks, strict=True)
    )
