"""Pytrees of arguments and results as JSON: tuples, lists, dictionaries, None and named tuples.

Of a class that was registered with JAX a file holds a description, by which an object of it is
known again; to make one, `load` has to be shown an example.
"""

import collections
import functools
import hashlib
import inspect
import json
import types as python
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from malleable.errors import MalleableError
from malleable.inspection.files.format import values


def describe(tree, leaf: Callable[[Any], Any]) -> Any:
    """A pytree as JSON: leaf(x) says what to write for one of its leaves."""
    leaves, structure = jax.tree.flatten(tree)
    return _describe(structure, iter(map(leaf, leaves)))


def _describe(structure, leaves: Iterator) -> Any:
    node = structure.node_data()
    if node is None:
        return {"leaf": next(leaves)}
    kind, data = node
    inside = [_describe(child, leaves) for child in structure.children()]
    if kind is type(None):
        return None
    if kind is list:
        return inside
    if kind is tuple:
        return {"tuple": inside}
    if kind is dict:
        return {"dict": [[_as_json(key), x] for key, x in zip(data, inside, strict=True)]}
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return {"namedtuple": kind.__name__, "fields": list(_fields(kind)), "of": inside}
    return {"node": _name(kind), "with": _as_json(data), "of": inside}


def _fields(kind: Any) -> tuple[str, ...]:
    return kind._fields


def _name(kind) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _as_json(data) -> Any:
    """What a node keeps beside its children, as JSON that is equal for equal ones."""
    if isinstance(data, type | python.FunctionType | python.BuiltinFunctionType):
        return {"named": _known(data)}
    if isinstance(data, tuple | list):
        return [_as_json(x) for x in data]
    if isinstance(data, dict):
        return {"dict": [[_as_json(k), _as_json(x)] for k, x in data.items()]}
    if isinstance(data, np.ndarray):
        raise MalleableError("a node of the pytree keeps an array beside its leaves", hint=_HINT)
    try:
        return values.encode(data)
    except values.Unwritable:
        pass
    if _is_function(data):
        return {"named": _known(data)}
    slots = [name for name in getattr(type(data), "__slots__", ()) if not name.startswith("__")]
    fields = getattr(data, "__dict__", None) or {name: getattr(data, name) for name in slots}
    stateless = getattr(data, "__dict__", None) == {} or getattr(type(data), "__slots__", 0) == ()
    if not fields and not stateless:
        raise MalleableError(f"a node of the pytree keeps {data!r}", hint=_HINT)
    return {"object": _name(type(data)), "fields": [[k, _as_json(x)] for k, x in fields.items()]}


_HINT = "close over it: save(path, lambda x: model(x), x); or hand its arrays in as a dictionary"


def _is_function(x) -> bool:
    return callable(x) and (hasattr(x, "__qualname__") or isinstance(x, functools.partial))


def _known(thing) -> str:
    """The name of a function or class, by which any process knows it again.

    What has no name is known by its code and what it holds: one that computes otherwise is another.
    """
    if isinstance(thing, functools.partial):
        inside = [leaf_text(x) for x in (thing.func, *thing.args, *thing.keywords.values())]
        return f"functools.partial {_digest(inside, list(thing.keywords))}"
    name, fun = _name(thing), inspect.unwrap(thing)
    if "<" not in name:
        return name
    try:
        names = inspect.getclosurevars(fun)
        data = {
            k: x
            for k, x in names.globals.items()
            if not isinstance(x, python.ModuleType | Callable)
        }
        held = {**data, **names.nonlocals, "": [fun.__defaults__, fun.__kwdefaults__]}
        inside = [leaf_text(x) for x in jax.tree.leaves(held) if x is not fun]
        return f"{name} {_digest(type(thing).__name__, _code(fun.__code__), list(held), inside)}"
    except (
        AttributeError,
        RecursionError,
        TypeError,
        ValueError,
        MalleableError,
        values.Unwritable,
    ):
        what = f"`{name}` is part of an argument or result, and has no name"
        raise MalleableError(what, hint=_HINT) from None


def _code(code: python.CodeType) -> list:
    """What a function does, as JSON, but for the values that its names have."""
    inside = [
        _code(c) if isinstance(c, python.CodeType) else values.encode(c) for c in code.co_consts
    ]
    return [code.co_code.hex(), code.co_names, inside]


def _digest(*parts) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def leaf_text(x) -> Any:
    """A leaf that is not an array, as JSON: plain values and functions that have a name."""
    if _is_function(x):
        return {"named": _known(x)}
    try:
        return {"always": values.encode(x)}
    except values.Unwritable as err:
        raise MalleableError(f"a leaf of an argument or result is {err}", hint=_HINT) from None


class Rebuild:
    """Makes pytrees from descriptions. examples: pytrees with nodes of the classes they need."""

    def __init__(self, examples: Any = None):
        self.nodes: dict[str, Any] = {}
        self.names: dict[str, Any] = {}
        kinds = [x for x in _as_list(examples) if isinstance(x, type)]
        self.classes: dict[str, type] = {kind.__name__: kind for kind in kinds}
        self._learn([x for x in _as_list(examples) if not isinstance(x, type)])
        for x in jax.tree.leaves(examples):
            if _is_function(x):
                self.names[_known(x)] = x

    def _learn(self, tree) -> None:
        children, one = jax.tree.flatten(tree, is_leaf=lambda x: x is not tree)
        node = one.node_data()
        if node is None:
            return
        for child in children:
            self._learn(child)
        kind, data = node
        if issubclass(kind, tuple) and hasattr(kind, "_fields"):
            self.classes[kind.__name__] = kind
        elif kind not in (tuple, list, dict, type(None)):
            self.nodes[repr((_name(kind), _as_json(data), len(children)))] = one

    def missing(self, found: Any) -> str | None:
        """A class that a description needs and no example has."""
        match found:
            case {"node": name, "with": data, "of": inside}:
                known = repr((name, data, len(inside))) in self.nodes
                return next(filter(None, map(self.missing, inside)), None if known else name)
            case {"leaf": {"named": name}}:
                return None if name in self.names else name
            case {"tuple": inside} | {"of": inside}:
                return next(filter(None, map(self.missing, inside)), None)
            case {"dict": pairs}:
                return next(filter(None, (self.missing(x) for _, x in pairs)), None)
            case list():
                return next(filter(None, map(self.missing, found)), None)
        return None

    def tree(self, found: Any, leaves: Iterator[Any]) -> Any:
        """The pytree of a description, its arrays taken from `leaves`."""
        match found:
            case None:
                return None
            case list():
                return [self.tree(x, leaves) for x in found]
            case {"leaf": {"always": value}}:
                return values.decode(value)
            case {"leaf": {"named": name}}:
                return self.names[name]
            case {"leaf": _}:
                return next(leaves)
            case {"tuple": inside}:
                return tuple(self.tree(x, leaves) for x in inside)
            case {"dict": pairs}:
                return {values.decode(k): self.tree(x, leaves) for k, x in pairs}
            case {"namedtuple": name, "fields": fields, "of": inside}:
                kind = self.classes.get(name) or collections.namedtuple(name, fields)
                return kind(*(self.tree(x, leaves) for x in inside))
            case {"node": name, "with": data, "of": inside}:
                one = self.nodes[repr((name, data, len(inside)))]
                return one.unflatten([self.tree(x, leaves) for x in inside])
        raise MalleableError(f"{found!r} describes no pytree")


def _as_list(examples) -> Sequence:
    if examples is None:
        return []
    if isinstance(examples, dict):
        return list(examples.values())
    return list(examples) if type(examples) in (list, tuple) else [examples]
