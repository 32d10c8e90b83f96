"""`(x := value)` inside an operand or a branch of an expression, which may not run."""

from collections.abc import Callable
from typing import Any

from malleable.arrays import journal


def walrus(variable: Callable, value) -> Any:
    """Bind the variable that the closure `variable` holds, for whoever traces a block around us."""
    cell = variable.__closure__[0]
    if journal.depth():
        journal.touch_cell(cell, variable.__code__.co_freevars[0])
    cell.cell_contents = value
    return value
