"""How values, types, paths and lists of names are written for the user."""

import types
from collections.abc import Iterable, Sequence
from typing import Any

import jax

from malleable.inspection.advice.evidence import sources


def of_type(x: Any) -> str:
    """`float32[8,10]` for an array; what Python calls anything else.

    >>> import numpy as np
    >>> of_type(np.zeros((8, 10), np.float32)), of_type(3), of_type(None), of_type([1])
    ('float32[8,10]', 'the int 3', 'None', 'a list')
    """
    if isinstance(getattr(x, "shape", None), tuple) and hasattr(x, "dtype"):
        return f"{x.dtype}[{','.join(map(str, x.shape))}]"
    if isinstance(x, bool | int | float | complex):
        return f"the {type(x).__name__} {x!r}"
    if x is None or isinstance(x, str):
        return repr(x)
    if isinstance(x, types.FunctionType | types.BuiltinFunctionType) or is_jitted(x):
        return f"the function {sources.name_of(x)}"
    return a(type(x).__name__)


def is_jitted(x: Any) -> bool:
    """Whether this came out of `jax.jit`."""
    return callable(x) and hasattr(x, "lower") and hasattr(x, "__wrapped__")


def a(noun: str) -> str:
    """A noun with its article."""
    return f"{'an' if noun[:1].lower() in 'aeiou' or noun == 'ndarray' else 'a'} {noun}"


def shape_of(x: Any) -> tuple | None:
    """The shape of an array or a number, None for anything else."""
    if isinstance(x, bool | int | float | complex):
        return ()
    shape = getattr(x, "shape", None)
    return tuple(shape) if isinstance(shape, tuple) else None


def listed(words: Iterable[str], last: str = "and", quote: str = "`") -> str:
    """`a`, `b` and `c`."""
    quoted = [f"{quote}{word}{quote}" for word in words]
    head, tail = quoted[:-1], quoted[-1:]
    return f" {last} ".join([", ".join(head), *tail] if head else tail)


def path(root: str, keys: Sequence) -> str:
    """`params['layer2'][0]` for the keys of a path in a pytree."""
    return root + jax.tree_util.keystr(tuple(keys))


def leaves(tree: Any, root: str, **options) -> list[tuple[str, Any]]:
    """(path, leaf) of every leaf of a tree; [] of what is none."""
    try:
        pairs = jax.tree_util.tree_leaves_with_path(tree, **options)
    except Exception:  # a dictionary whose keys have no order, say: not a tree of arrays
        return []
    return [(path(root, keys), leaf) for keys, leaf in pairs]


def structure(tree: Any) -> str:
    """A tree as the user would write it, with its leaves left out.

    >>> structure((1, {"a": [2, 3]})), structure((1,)), structure(1)
    ("(*, {'a': [*, *]})", '(*,)', 'one array')
    """
    return "one array" if jax.tree.structure(tree).num_leaves == 1 and is_leaf(tree) else _s(tree)


def is_leaf(tree: Any) -> bool:
    """Whether JAX sees one leaf here, and no container."""
    return tree is not None and jax.tree_util.all_leaves([tree])


def _s(tree) -> str:
    if tree is None:
        return "None"
    if is_leaf(tree):
        return "*"
    if isinstance(tree, dict):
        return "{" + ", ".join(f"{k!r}: {_s(v)}" for k, v in tree.items()) + "}"
    if type(tree) is tuple:
        return "(" + ", ".join(map(_s, tree)) + ("," * (len(tree) == 1)) + ")"
    if type(tree) is list:
        return "[" + ", ".join(map(_s, tree)) + "]"
    return f"{type(tree).__name__}(...)"


def kind(tree: Any) -> str:
    """What a node of a tree is: `a tuple of 2`, `a dict with keys 'a', 'b'`, `float32[3]`."""
    if isinstance(tree, dict):
        return "a dict with keys " + ", ".join(map(repr, tree))
    if isinstance(tree, tuple | list) and not hasattr(tree, "_fields"):
        return f"a {type(tree).__name__} of {len(tree)}"
    return of_type(tree)
