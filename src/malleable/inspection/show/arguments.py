"""The arrays among the arguments of a call: their names, `params['w']`, and a function of them."""

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax

from malleable.core.stage import staged_arguments


def argument_names(fun: Callable, args: tuple, kwargs: dict) -> list[str]:
    """A name for each array that goes into fun(*args, **kwargs), such as params['w'].

    >>> argument_names(lambda params, x: x, ({"w": 1.0}, 2.0), {})
    ["params['w']", 'x']
    """
    try:
        names = positional_names(inspect.signature(fun).bind(*args, **kwargs))
    except (TypeError, ValueError):  # a builtin, or a call that fun will refuse
        names = [f"argument {i}" for i in range(len(args))]
    trees = (*zip(names, args, strict=False), *sorted(kwargs.items()))
    full = [
        part + jax.tree_util.keystr(path)
        for part, tree in trees
        for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]
    ]
    traced = staged_arguments(fun, args, kwargs)[2]
    return [name for name, is_traced in zip(full, traced, strict=True) if is_traced]


def positional_names(bound: inspect.BoundArguments) -> list[str]:
    """The names of arguments by position, those that *args gathers among them.

    >>> positional_names(inspect.signature(lambda x, *rest, n: x).bind(1, 2, 3, n=4))
    ['x', 'rest[0]', 'rest[1]']
    """
    names: list[str] = []
    for name, parameter in bound.signature.parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL:
            names += [f"{name}[{i}]" for i in range(len(bound.arguments.get(name, ())))]
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            names.append(name)
    return names


def of_arrays(fun: Callable, given: Any, traced: Sequence[bool]) -> Callable:
    """`fun` as a function of those leaves of what it is given, (args, kwargs), that are traced."""

    def call(*arrays):
        args, kwargs = with_arrays(given, traced, arrays)
        return fun(*args, **kwargs)

    return call


def with_arrays(given: Any, traced: Sequence[bool], arrays: Iterable) -> Any:
    """A pytree with arrays in the place of the leaves that are traced."""
    (leaves, tree), rest = jax.tree.flatten(given), iter(arrays)
    return jax.tree.unflatten(
        tree, [next(rest) if t else x for t, x in zip(traced, leaves, strict=True)]
    )
