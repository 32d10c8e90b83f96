"""What a user calls the arrays that go into a program: `params['blocks'][0]['kernel']`."""

import inspect
from collections.abc import Callable

import jax

from malleable import compat


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
    found = []
    for part, tree in zip((*names, *kwargs), (*args, *kwargs.values()), strict=True):
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
            if compat.is_array(leaf):
                found.append((part, part + jax.tree_util.keystr(path)))
    order = {key: i for i, key in enumerate([*names, *sorted(kwargs)])}  # as JAX flattens a dict
    return [full for _, full in sorted(found, key=lambda one: order[one[0]])]
