"""What is known of names while statements are looked at: kinds, scopes, why something stays."""

import ast
import builtins
import enum
import functools
import inspect
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from malleable import compat
from malleable.execution.common.code_objects import cells_of
from malleable.execution.common.leaves import flatten
from malleable.execution.purity.reads import Reads, is_of_user
from malleable.python_source import scopes

ARRAY = "array"  # an array of JAX, or a pytree with such ones
NUMBER = "number"  # a number, string, None or a tuple of these: Python's own
SCALAR = "scalar"  # a Python number made of arrays: `float(x)`
SIZE = "size"  # one that is known while tracing: `len(x)`, `x.shape[0]`
NUMPY = "numpy"  # an array of NumPy that the user made
MADE = "made"  # a list or dict made in this region
UNKNOWN = "unknown"  # the result of a call in this region, a tree with arrays of NumPy


class Stays(Exception):
    """A statement or expression that Python must run: `kind` and `why`."""

    def __init__(self, kind: str, why: str):
        self.kind, self.why = kind, why
        super().__init__(why)


@dataclass(frozen=True)
class Known:
    """A value that is known before the program runs: a function, a module, an object."""

    value: Any


@dataclass
class Scope:
    """kinds: of the local names, a kind or Known. lookup(name): what a name means outside.

    defs: functions defined here, by name, with the tree of each. values: of the names that come in.
    decided: how many constructs around this statement a value decides on.
    """

    kinds: dict
    lookup: Callable[[str], Any]
    statement: Callable  # looks at a statement in a scope: see `scan`
    defs: dict = field(default_factory=dict)
    returns: bool = False  # whether `return` may stand here
    loops: int = 0
    computes: bool = False  # whether something of JAX is called
    scalars: bool = False  # whether numbers are made of arrays
    values: dict = field(default_factory=dict)
    mutable: set = field(default_factory=set)  # names of lists, dicts and sets from outside
    numpy_inside: bool = False  # whether arrays of NumPy are in containers that come in
    numpy_given: bool = False  # whether arrays of NumPy come in, which a call may hand out
    callee: bool = False  # whether this is a function that may be called with anything
    writes: bool = False  # whether it writes in place to what it is called with
    decided: int = 0
    lenient: bool = False  # whether numbers may lose digits
    unrolled: bool = False  # whether a loop has to stay one of Python
    plainly: bool = False  # whether it has to be traced as it stands
    typed: bool = False  # whether it asks what a number is, which a tracer cannot say
    active: tuple = ()
    reads: Reads = field(default_factory=Reads)  # what is read outside, in what it calls too
    given: list = field(default_factory=list)  # what each `return` gives, as a tree of kinds

    def be_callee(self, parameters) -> None:
        """The scope of a function that may be called with anything."""
        self.mutable |= set(parameters)
        self.numpy_given = self.numpy_inside = self.callee = True


STATEFUL = ("flax.nnx", "haiku", "keras", "torch", "tensorflow")  # whose modules have a state


def is_stateful(value) -> bool:
    """Whether an object is a module with a state of its own, or a method of one."""
    bound = isinstance(value, types.MethodType | types.BuiltinMethodType)
    owner = value.__self__ if bound else value
    bases = owner.__mro__ if isinstance(owner, type) else type(owner).__mro__
    return any(base.__module__.startswith(STATEFUL) for base in bases)


def kind_of(value) -> Any:
    """The kind of a value that comes into a region."""
    if isinstance(value, jax.Array | compat.Tracer):
        return ARRAY
    if hasattr(type(value), "__next__"):
        return Known(value)  # reading it changes it
    if isinstance(value, np.ndarray | np.generic):
        return NUMPY
    if value is None or isinstance(
        value, bool | int | float | complex | str | bytes | range | slice
    ):
        return NUMBER
    if is_stateful(value):
        return Known(value)
    if isinstance(value, types.ModuleType | type) or (callable(value) and not is_pytree(value)):
        return Known(value)
    leaves, structure = flatten(value)
    if structure is None:
        return Known(value)
    if type(value) in (list, dict, tuple) or is_pytree(value):
        found = [kind_of(leaf) for leaf in leaves]
        if any(isinstance(k, Known) for k in found):
            return Known(value)
        if NUMPY in found:
            return UNKNOWN if ARRAY in found or type(value) not in (list, dict) else NUMPY
        return ARRAY if ARRAY in found else NUMBER
    return Known(value)


def may_change(value) -> bool:
    """Whether the same object may hold something else at the next call, unlike what has a hash.

    A hash that the user's class computes may be that of a name.
    """
    leaves, structure = flatten(value)
    return structure is None or any(map(_is_mutable, leaves))


def _is_mutable(leaf) -> bool:
    if isinstance(leaf, types.MethodType):
        return may_change(leaf.__self__)
    if isinstance(leaf, functools.partial):
        return may_change((leaf.func, leaf.args, leaf.keywords))
    kind, known = type(leaf), (types.FunctionType, types.ModuleType, type, np.ndarray)
    ours = kind.__module__.partition(".")[0] in ("jax", "jaxlib", "malleable")
    if isinstance(leaf, known) or kind is object or ours:
        return False
    held = [x for name, x in getattr(leaf, "__dict__", {}).items() if name[:2] != "__"]
    if callable(leaf) and all(map(callable, held)) and not hasattr(kind, "__slots__"):
        return False
    if is_of_user(next(base for base in kind.__mro__ if "__hash__" in vars(base))):
        frozen = getattr(getattr(kind, "__dataclass_params__", None), "frozen", False)
        changes = list | dict | set | np.ndarray | jax.Array
        return not frozen or any(isinstance(x, changes) for x in (*held, *flatten(held)[0]))
    return kind.__hash__ in (None, object.__hash__)


def may_be_rebound(owner, name: str) -> bool:
    """Whether an attribute of a module or class of the user's holds data, as a variable does."""
    if not isinstance(owner, types.ModuleType | type) or isinstance(owner, enum.EnumMeta):
        return False
    return is_of_user(owner) and not isinstance(kind_of(getattr(owner, name, None)), Known)


def is_pytree(value) -> bool:
    leaves, structure = flatten(value, lambda x: x is not value or compat.is_iterator(x))
    return structure is not None and not (len(leaves) == 1 and leaves[0] is value)


def join(*found):
    """The kind of what is made of several."""
    found = [k for k in found if k is not None]
    for kind in (ARRAY, UNKNOWN, MADE):
        if kind in found:
            return ARRAY if kind == MADE else kind
    if any(isinstance(k, Known | ast.AST) for k in found):
        return UNKNOWN
    if NUMPY in found:
        return NUMPY
    return next((kind for kind in (SCALAR, SIZE) if kind in found), NUMBER)


_WAITS = (
    inspect.CO_GENERATOR
    | inspect.CO_COROUTINE
    | inspect.CO_ITERABLE_COROUTINE
    | inspect.CO_ASYNC_GENERATOR
)


def code_waits(code) -> bool:
    """Whether a function is a generator or a coroutine."""
    return bool(code.co_flags & _WAITS)


def outside(f: types.FunctionType) -> Callable[[str], Any]:
    """What the free and global names of a function mean now."""
    cells = cells_of(f)

    def lookup(name):
        try:
            if name in cells:
                return cells[name].cell_contents
            if name in f.__globals__:
                return f.__globals__[name]
            return getattr(builtins, name)
        except (AttributeError, ValueError):
            raise Stays("python", f"`{name}` has no value yet") from None

    return lookup


def parameter_kinds(node) -> dict:
    return dict.fromkeys(scopes.arguments(node), UNKNOWN)


def refuse_numpy(kind):
    if kind == NUMPY:
        raise Stays("numpy", "NumPy computes this")
