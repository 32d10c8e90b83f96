"""Functions that a block made, and that keep a value which is known in the block only."""

import functools
import types

from malleable import compat
from malleable.arrays.journal import Place
from malleable.errors import TransformError
from malleable.frontend.values.values import holds_new


class Lost:
    """Stands for a function that a block made, and that keeps a value of the block."""

    def __call__(self, *args, **kwargs):
        raise TransformError(
            "this function was made in a loop or branch and keeps a value that is known only there",
            where=compat.where(),
            hint="keep the value in a variable, and give it to the function as an argument",
        )


def keeps_new(fun, seen: dict) -> bool:
    """Whether a function has such an array in its defaults, or in a variable around it."""
    if id(fun) in seen:
        return False
    seen[id(fun)] = fun
    if isinstance(fun, functools.partial):
        held = [fun.func, *fun.args, *fun.keywords.values()]
    elif isinstance(fun, types.FunctionType):
        held = [Place("cell", c).read() for c in fun.__closure__ or ()]
        held += [*(fun.__defaults__ or ()), *(fun.__kwdefaults__ or {}).values()]
    else:
        return False
    return holds_new(held, {}) or any(keeps_new(x, seen) for x in held)
