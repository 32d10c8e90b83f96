"""From a Python function to a jaxpr that remembers its pytrees."""

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import jax

from malleable import compat
from malleable.core.marker import Marker


@dataclass(frozen=True)
class Staged:
    """A traced function: its program, its flat arguments, and how to rebuild the output."""

    jaxpr: compat.Jaxpr
    args: list
    rebuild: Callable[[list], Any]


def stage(fun: Callable, markers: Iterable[Marker] = ()) -> Callable[..., Staged]:
    """Return a function that traces `fun` on its arguments instead of running it.

    Arrays and numbers are traced, and what only says its type (jax.ShapeDtypeStruct). Other leaves
    (strings, functions, None), and static arguments of a jitted function, stay as they are, in the
    arguments and in the output. `markers` are those some rule is waiting for.

    >>> import jax.numpy as jnp
    >>> staged = stage(lambda x, how: {"y": jnp.sin(x), "how": how})(1.0, "fast")
    >>> [str(eqn.primitive) for eqn in staged.jaxpr.eqns]
    ['sin']
    >>> staged.rebuild([2.0])
    {'how': 'fast', 'y': 2.0}
    """

    def staged(*args, **kwargs) -> Staged:
        leaves, tree, traced = arguments(fun, args, kwargs)
        made: dict[str, Any] = {}

        @functools.wraps(fun, assigned=(), updated=())
        def flat(*xs):
            rest = iter(xs)
            a, k = jax.tree.unflatten(
                tree, [next(rest) if t else x for t, x in zip(traced, leaves, strict=True)]
            )
            outs, made["tree"] = jax.tree.flatten(fun(*a, **k))
            made["plain"] = [None if compat.is_array(x) else (x,) for x in outs]
            return [x for x, plain in zip(outs, made["plain"], strict=True) if plain is None]

        def rebuild(outs):
            rest = iter(outs)
            filled = [plain[0] if plain else next(rest) for plain in made["plain"]]
            return jax.tree.unflatten(made["tree"], filled)

        given = [x for x, t in zip(leaves, traced, strict=True) if t]
        with compat.handling(markers):
            return Staged(compat.trace(flat, *given), given, rebuild)

    return staged


def arguments(fun: Callable, args: tuple, kwargs: dict) -> tuple[list, Any, list[bool]]:
    """The leaves of the arguments, their pytree, and which of them `stage` traces.

    >>> arguments(abs, (1.0, "fast"), {})[2]
    [True, False]
    """
    leaves, tree = jax.tree.flatten((args, kwargs))
    fixed, n = compat.static_arguments(fun), len(args)
    fixed |= {k + n for k in fixed if isinstance(k, int) and k < 0}
    traced = [
        key not in fixed and (compat.is_array(x) or isinstance(x, jax.ShapeDtypeStruct))
        for key, part in (*enumerate(args), *sorted(kwargs.items()))
        for x in jax.tree.leaves(part)
    ]
    return leaves, tree, traced
