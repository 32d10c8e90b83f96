"""What a user calls the arrays that go into a program: `params['blocks'][0]['kernel']`."""

import inspect
from collections.abc import Callable

import jax

from malleable.core.stage import staged_arguments


def argument_names(fun: Callable, args: tuple, kwargs: dict) -> list[str]:
    """A name for each array that goes into fun(*args, **kwargs), such as params['w'].

    >>> argument_names(lambda params, x: x, ({"w": 1.0}, 2.0), {})
    ["params['w']", 'x']
    """
    names = [f"argument {i}" for i in range(len(args))]
    try:
        signature = inspect.signature(fun)
        bound = signature.bind(*args, **kwargs)
    except (TypeError, ValueError):  # a builtin, or a call that fun will refuse
        bound = None
    if bound is not None:
        i = 0
        for name, value in bound.arguments.items():
            kind = signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_POSITIONAL:
                for k in range(len(value)):
                    names[i] = f"{name}[{k}]"
                    i += 1
            elif i < len(args) and kind is not inspect.Parameter.VAR_KEYWORD:
                names[i] = name
                i += 1
    trees = (*zip(names, args, strict=True), *sorted(kwargs.items()))
    full = [
        part + jax.tree_util.keystr(path)
        for part, tree in trees
        for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]
    ]
    traced = staged_arguments(fun, args, kwargs)[2]
    return [name for name, is_traced in zip(full, traced, strict=True) if is_traced]
