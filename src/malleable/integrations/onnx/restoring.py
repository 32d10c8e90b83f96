"""JAX as it is: `with untouched():` jax2onnx converts and replaces nothing that others see.

It would replace functions of JAX, Flax and Equinox to see them called; a lowered program calls
none. Only its first import leaves things replaced, such as flax.linen.MultiHeadAttention, which
`with restored():` takes back.
"""

import contextlib
import logging
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any

import numpy as np

from malleable import compat

PACKAGES = {"jax", "jaxlib", "numpy", "flax", "equinox", "optax", "dm_pix", "einops"}
ALONE = threading.RLock()  # two threads would take each other's replacements for what was there
MISSING = object()
PATCHES = "_activate_plugin_worlds"  # the function with which jax2onnx replaces others


@contextlib.contextmanager
def restored() -> Iterator[None]:
    """What jax2onnx changes inside is as it was afterwards. One thread at a time goes in."""
    with ALONE, unheard():
        owners = {id(owner): (owner, dict(vars(owner))) for owner in owners_of(PACKAGES)}
        try:
            yield
        finally:
            put_back(owners.values())


@contextlib.contextmanager
def untouched(converter: Any) -> Iterator[None]:
    """Without the replacements of jax2onnx's module `converter`. One thread at a time goes in."""
    found = getattr(converter, PATCHES, None)
    if found is None:  # another jax2onnx
        with restored():
            yield
        return
    with ALONE, unheard():
        setattr(converter, PATCHES, contextlib.nullcontext)
        try:
            yield
        finally:
            setattr(converter, PATCHES, found)


@contextlib.contextmanager
def unheard() -> Iterator[None]:
    """Logging as it is, and NumPy's random numbers."""
    with contextlib.ExitStack() as after:
        after.callback(np.random.set_state, np.random.get_state())
        root, silent = logging.getLogger(), logging.NullHandler()
        root.addHandler(silent)  # without any, the first message adds one that prints
        after.callback(root.removeHandler, silent)
        yield


def owners_of(packages: set[str]) -> list[Any]:
    """The modules of some packages, and the classes in them."""
    named = [(name, module) for name, module in list(sys.modules.items()) if module is not None]
    modules = [module for name, module in named if name.partition(".")[0] in packages]
    inside = [x for module in modules for x in list(vars(module).values())]
    return modules + [x for x in inside if isinstance(x, type)]


def put_back(owners) -> None:
    """Set the functions and classes to what they were, also where modules have taken them over."""
    replaced = {}
    for owner, before in owners:
        for name, now in list(vars(owner).items()):
            old = before.get(name, MISSING)
            if now is old:
                continue
            if old is not MISSING and is_code(old):
                setattr(owner, name, old)
                if is_foreign(now):
                    replaced[id(now)] = now, old
            elif old is MISSING and is_left(owner, now):
                delattr(owner, name)
    for owner in owners_of(PACKAGES) if replaced else ():
        for name, now in list(vars(owner).items()):
            if id(now) in replaced:
                setattr(owner, name, replaced[id(now)][1])


def is_code(x: Any) -> bool:
    """Whether this is code, and not a number that a module counts with."""
    return callable(x) or isinstance(x, (classmethod, staticmethod, property))


def is_foreign(x: Any) -> bool:
    """Whether this is a function written in jax2onnx, whatever its name says."""
    written = isinstance(x, types.FunctionType) and x.__globals__.get("__name__")
    return str(written).startswith("jax2onnx")


def is_left(owner: Any, x: Any) -> bool:
    """Whether a new attribute is one jax2onnx leaves: a primitive, or a method inherited before."""
    if isinstance(owner, type):
        return isinstance(x, types.FunctionType)
    return isinstance(x, compat.Primitive)
