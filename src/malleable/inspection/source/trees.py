"""Arguments and results of the function that `export.source` writes: pytrees, taken apart and made.

Arguments are taken out by their paths where that gives the very leaf, else by their place among
the leaves. Results are plain containers and named tuples; of any other class, a list of the arrays.
"""

import math
from collections.abc import Iterator
from typing import Any

import jax

from malleable.errors import MalleableError
from malleable.inspection.files import calls
from malleable.inspection.files.format import types
from malleable.inspection.files.format.program import Body
from malleable.inspection.files.save import Slot
from malleable.inspection.source.layout import RESERVED, tupled


def parameters(signature: list, given: calls.Given) -> list[str]:
    """The parameters of the function as text; what **kwargs gathered, by name."""
    found, named = [], [name for name, kind in signature if kind == "KEYWORD_ONLY"]
    if any(kind == "VAR_KEYWORD" for _, kind in signature):
        named = list(given.tree[1])
    for name, kind in signature:
        if kind == "POSITIONAL_ONLY":
            found.append(name)
            if [k for _, k in signature].count(kind) == len(found):
                found.append("/")
        elif kind not in ("KEYWORD_ONLY", "VAR_KEYWORD"):
            found.append(f"*{name}" if kind == "VAR_POSITIONAL" else name)
    if named and not any(kind == "VAR_POSITIONAL" for _, kind in signature):
        found.append("*")
    for name in (*named, *(n for n, _ in signature)):
        if name in RESERVED or not name.isidentifier():
            raise MalleableError(
                f"a parameter called `{name}` cannot be written as source",
                hint="give it another name: lambda x: fun(...)",
            )
    return [*found, *named]


def take_arguments(body: Body, given: calls.Given) -> list[str]:
    """Statements that take the arrays out of the arguments; of what is not an array, look at it."""
    found = [
        f"_decided({_reach(path, i, given)}, {x!r}, {path!r})"
        for i, (path, x) in enumerate(zip(given.every, jax.tree.leaves(given.tree), strict=True))
        if not given.traced[i] and _is_literal(x)
    ]
    every, pairs = list(given.every), []
    arrays = [i for i, traced in enumerate(given.traced) if traced]
    for (name, kind), i in zip(body.ins, arrays, strict=True):
        pairs.append((name, f"_argument({_reach(every[i], i, given)}, {_argument_type(kind)!r})"))
    roots = {_root(path) for path in every}
    if any(name in roots and name != every[i] for (name, _), i in zip(pairs, arrays, strict=True)):
        targets, sources = zip(*pairs, strict=True)  # one is called as an argument still to read
        return [*found, f"{tupled(targets)} = {tupled(sources)}"]
    return [*found, *(f"{name} = {text}" for name, text in pairs)]


def _is_literal(x) -> bool:
    """Whether a value is what Python reads from its text."""
    return type(x) in (str, bytes, bool, int) or (type(x) is float and math.isfinite(x))


def _argument_type(kind: str) -> str:
    """A type as `_argument` has it: that of a key as JAX spells its dtype."""
    dtype, _, sizes = types.plain(kind).partition("[")
    found = types.parse_dtype(dtype)
    return f"{found if dtype.startswith('key<') else dtype}[{sizes}"


def _reach(path: str, number: int, given: calls.Given) -> str:
    """An expression for a leaf of the arguments."""
    keys, leaf = jax.tree_util.tree_flatten_with_path(given.tree)[0][number]
    if _follow(given.tree, keys) is leaf:
        return path
    mine = [p for p in given.every if _root(p) == _root(path)]
    return f"jax.tree.leaves({_root(path)})[{mine.index(path)}]"


def _follow(tree: Any, keys) -> Any:
    for key in keys:
        try:
            match key:
                case jax.tree_util.SequenceKey(idx=i):
                    tree = tree[i]
                case jax.tree_util.DictKey(key=name):
                    tree = tree[name] if isinstance(name, str | int) else None
                case jax.tree_util.GetAttrKey(name=name):
                    tree = getattr(tree, name)
                case _:
                    return None
        except (AttributeError, TypeError, KeyError, IndexError):
            return None
    return tree


def _root(path: str) -> str:
    return path.partition("[")[0].partition(".")[0]


# ---------------------------------------------------------------- results


class _Unknown(Exception):
    """A class of a node that source has no word for."""


def result(found: Any, outs: list[str], functions: list[list[str]]) -> str:
    """The pytree of results as an expression; functions: where classes of it are written."""
    before = list(functions)
    try:
        return _spell(found, iter(outs), functions)
    except _Unknown as err:
        functions[:] = before
        return f"[{', '.join(outs)}]  # the arrays among the leaves: {err}"


def _spell(found: Any, outs: Iterator[str], functions: list[list[str]]) -> str:
    children, one = jax.tree.flatten(found, is_leaf=lambda x: x is not found)
    if isinstance(found, Slot):
        return next(outs)
    node = one.node_data()
    if node is None:
        if isinstance(found, str | bytes):
            return repr(found)
        raise _Unknown(f"there is a {type(found).__name__} too")
    kind, data = node
    if kind is dict and not all(isinstance(k, str | int | float | bytes) for k in data):
        raise _Unknown("keys of the dictionary are objects")
    parts = [_spell(child, outs, functions) for child in children]
    if kind is type(None):
        return "None"
    if kind is tuple:
        return tupled(parts)
    if kind is list:
        return f"[{', '.join(parts)}]"
    if kind is dict:
        return "{" + ", ".join(f"{k!r}: {x}" for k, x in zip(data, parts, strict=True)) + "}"
    if isinstance(found, tuple) and hasattr(found, "_fields"):
        return _named_tuple(found, parts, functions)
    raise _Unknown(f"it is a {kind.__name__}")


def _named_tuple(found: Any, parts: list[str], functions: list[list[str]]) -> str:
    name, fields = type(found).__name__, list(found._fields)
    text = f"{name} = collections.namedtuple({name!r}, {fields!r})"
    if [text] not in functions:
        taken = {w.split("(")[0] for f in functions for line in f for w in line.split()[:2]}
        if name in taken | RESERVED or not name.isidentifier():
            raise _Unknown(f"it is a {name}, and there is another")
        functions.insert(0, [text])
    return f"{name}({', '.join(parts)})"
