"""Which functions only compute, so that a call of theirs may stand in a compiled region."""

import ast
import contextlib
import copy
import dis
import functools
import inspect
import linecache
import math
import operator
import re
import types
from typing import Any

import jax
import numpy as np

from malleable.execution.purity.facts import (
    NUMBER,
    NUMPY,
    SCALAR,
    SIZE,
    Scope,
    Stays,
    code_waits,
    is_stateful,
    may_be_rebound,
    may_change,
    outside,
    parameter_kinds,
)
from malleable.execution.purity.reads import KEPT, Reads
from malleable.frontend.counterparts import replaced
from malleable.python_source import kinds, nodes, scopes, source
from malleable.python_source.source import NoSource

_PURE = frozenset(
    [abs, all, any, bool, complex, dict, divmod, enumerate, float, frozenset, int, isinstance]
    + [issubclass, len, list, max, min, pow, range, reversed, round, slice, sorted, str, sum, tuple]
    + [type, zip, callable, hasattr, map, filter, repr, ord, chr, set, functools.partial]
    + [functools.reduce, getattr, iter]
    + [f for f in vars(math).values() if callable(f)]
    + [f for f in vars(operator).values() if callable(f) and "i" + f.__name__ != f.__name__]
)

_ACTS = ("profiler", "debug", "monitoring", "multihost")
_STATE = "may change its state"
_EFFECTS = ("callback", "debug", "device_get", "block_until_ready", "print", "breakpoint")


def is_pure(f) -> bool:
    try:
        return f in _PURE
    except TypeError:
        return False


def is_jax(f) -> bool:
    """Whether a callable is JAX's or of a library that builds on it."""
    f = getattr(f, "__func__", f)
    module = str(getattr(f, "__module__", None) or type(f).__module__)
    package = module.partition(".")[0]
    if package == "malleable":  # but for its tour and examples, which are of a user's kind
        return not isinstance(f, types.FunctionType) or kinds.is_ours(f.__code__.co_filename)
    if package in ("jax", "jaxlib"):
        return True
    if isinstance(f, types.FunctionType):
        return replaced.kind_of(f) == kinds.JAX
    return kinds.of_type(type(f)) or (isinstance(f, type) and kinds.of_type(f))


def is_of_trees(f) -> bool:
    """Whether a function of JAX's applies others to the leaves of trees, and gives what they do."""
    return str(getattr(f, "__module__", "")).startswith(("jax._src.tree", "jax.tree"))


_CODE_AND_NUMBERS = (
    *(types.FunctionType, types.BuiltinFunctionType, types.ModuleType, type, np.ufunc),
    *(int, float, complex, str, bytes, np.ndarray, np.generic),
)

_verdicts: dict = {}
_writers: set = set()  # the code of functions that may write to arrays they are called with
_asked: dict = {}  # by the code of a function
_askers: set = set()  # of those that ask for the type of a value


def attributes_asked(f: types.FunctionType) -> dict[str, set[str]]:
    """The attributes that a user's function asks of its parameters, by parameter."""
    if f.__code__ in _asked:
        return _asked[f.__code__]
    asked: dict[str, set[str]] = {}
    with contextlib.suppress(NoSource):
        node: Any = source.find(f.__code__, f.__globals__).node
        for part in ast.walk(node):
            if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name):
                asked.setdefault(part.value.id, set()).add(part.attr)
        rebound = scopes.uses(*(node.body if isinstance(node.body, list) else [node.body])).binds
        asked = {n: asked[n] for n in scopes.arguments(node) & asked.keys() - rebound}
    return _asked.setdefault(f.__code__, asked)


def makes(f) -> str:
    """For a user's function: "numbers" if it gives numbers made of arrays, "both" if it may."""
    held = _verdict(f)
    return held[3] if held is not None else ""


def computes(f) -> bool:
    """Whether a function of the user's calls JAX, as far as it was looked at."""
    held = _verdict(f)
    return held is None or held[2]


def writes(f) -> bool:
    """Whether a user's function may write in place to arrays of NumPy it is called with."""
    return getattr(getattr(f, "__func__", f), "__code__", None) in _writers


def reads_code_only(f) -> bool:
    """Whether what a function reads beside its arguments is code, numbers and arrays of NumPy."""
    if not isinstance(f, types.FunctionType):
        return False
    read, code = outside(f), f.__code__
    names = {*code.co_names} & {*f.__globals__} | {*code.co_freevars}
    try:
        return all(isinstance(read(name), _CODE_AND_NUMBERS) for name in names)
    except Stays:  # no value yet
        return False


def _verdict(f):
    """What was found of a Python function, None if nothing was."""
    f = getattr(f, "__func__", f)
    if not isinstance(f, types.FunctionType):
        return None
    return _verdicts.get(_known_by(f))


def _known_by(f: types.FunctionType) -> tuple:
    """What a function is known by: those of one code may differ in what they close over."""
    held = f.__closure__ or f.__defaults__ or f.__kwdefaults__
    return id(f) if held else id(f.__code__), id(f.__globals__)


def acting(why: str) -> Stays:
    """A call that Python runs, for what `impure` says of it."""
    return Stays("state" if why.endswith(_STATE) else "call", why)


def impure(f, scope: Scope) -> str:
    """Why a call of f may do more than compute; '' if it only computes."""
    if is_pure(f):
        return ""
    inner = getattr(f, "__malleable_selective__", None)
    if inner is not None:
        return impure(inner, scope)
    text = f"`{getattr(f, '__qualname__', None) or type(f).__name__}`"
    module = str(getattr(f, "__module__", None) or "")
    if is_stateful(f):
        return f"{text} {_STATE}"
    if is_jax(f):
        at_fault = [w for w in _EFFECTS if w in getattr(f, "__name__", "") or f".{w}" in module]
        wrapped = getattr(f, "__wrapped__", None)
        if callable(wrapped) and not (at_fault or isinstance(wrapped, type) or is_jax(wrapped)):
            return impure(wrapped, scope)
        return f"{text} has a side effect" if at_fault else ""
    if isinstance(f, functools.partial):
        if why := impure(f.func, scope):
            return why
        held = (*f.args, *f.keywords.values())
        if not scope.reads.data(held):
            return f"{text} holds an array that is written to"
        theirs = any(isinstance(x, np.ndarray | list | dict | tuple) for x in held)
        return f"{text} may write to an array of NumPy" if theirs and writes(f.func) else ""
    if not isinstance(f, type) and may_change(f):
        return f"{text} may read what its object holds, which may be another each time"
    if isinstance(f, types.MethodType):
        if isinstance(f.__self__, type) and isinstance(f.__func__, types.FunctionType):
            first = f.__code__.co_varnames[:1]
            for name in attributes_asked(f.__func__).get("".join(first), ()):
                if may_be_rebound(f.__self__, name):
                    return f"{text} reads `.{name}`, which may be another each time"
        return impure(f.__func__, scope)
    if isinstance(f, types.FunctionType):
        return impure_function(f, text, scope)
    if isinstance(f, type):
        if issubclass(f, BaseException) or hasattr(f, "_fields"):
            return ""
        return f"{text} makes an object"
    called = getattr(type(f), "__call__", None)  # noqa: B004
    if isinstance(called, types.FunctionType):
        return "" if is_jax(called) else impure_function(called, text, scope)
    return f"{text} is compiled code"


def acts(f, scope: Scope) -> str:
    """Why a context that f makes may do more than change how JAX traces; "" if that is all."""
    if f is contextlib.nullcontext:
        return ""
    text = f"`with {getattr(f, '__name__', None) or type(f).__name__}(...)` is run by Python"
    if is_stateful(f):
        return text
    if is_jax(f):
        return text if any(w in str(getattr(f, "__module__", "")) for w in _ACTS) else ""
    inner = getattr(f, "__wrapped__", None)
    if not isinstance(inner, types.FunctionType) or not inspect.isgeneratorfunction(inner):
        return text
    if f.__code__ is not contextlib.contextmanager(inner).__code__:
        return text
    try:
        node: Any = copy.deepcopy(source.find(inner.__code__, inner.__globals__).node)
    except NoSource:
        return text
    if len(nodes.yields(node)) != 1 or any(
        isinstance(n, ast.For | ast.While) for n in ast.walk(node)
    ):
        return text
    node.body = [new for stmt in node.body for new in _Entered().visited(stmt)]
    why, *_ = _looked_at(inner, node, text, scope, (), scope.reads)
    return why and f"{text}: {why}"


class _Entered(ast.NodeTransformer):
    """The statements of a context manager, without the `yield` and the `try` around it."""

    def visited(self, stmt) -> list:
        if isinstance(stmt, ast.Try) and not (stmt.handlers or stmt.orelse):
            return [new for s in (*stmt.body, *stmt.finalbody) for new in self.visited(s)]
        return [self.visit(stmt)]

    def visit_Yield(self, node):
        return node.value or ast.Constant(value=None)


def impure_with(f, args: list, keywords: dict, scope: Scope) -> str:
    """Why a call of a user's function with these kinds of arguments is Python's, as in `impure`.

    What it computes of arrays of NumPy alone NumPy computes, in 64 bits.
    """
    f, bound = getattr(f, "__func__", f), isinstance(f, types.MethodType)
    if not isinstance(f, types.FunctionType) or replaced.kind_of(f) in (kinds.JAX, kinds.PLAIN):
        return ""
    names = f.__code__.co_varnames[bound : f.__code__.co_argcount]
    given = {**dict(zip(names, args, strict=False)), **keywords}
    numpy = frozenset([name for name, kind in given.items() if kind == NUMPY])
    return impure_function(f, f"`{f.__qualname__}`", scope, numpy) if numpy else ""


def impure_function(f: types.FunctionType, text: str, scope: Scope, numpy=frozenset()) -> str:
    """numpy: the parameters that are arrays of NumPy."""
    kind = replaced.kind_of(f)
    if kind == kinds.JAX:
        return ""
    if kind == kinds.PLAIN and f.__module__ != "functools":
        return f"{text} is of {f.__module__}"
    code = f.__code__
    if code_waits(code):
        return f"{text} is a generator"
    key, reads = (*_known_by(f), *numpy), Reads()
    known = _verdicts.get(key)
    if known is None or (not known[0] and known[-1].are_others()):
        _verdicts[key] = ("", f, False, "", reads)  # a function that calls itself
        try:
            found = _looked_at(f, source.find(code, f.__globals__).node, text, scope, numpy, reads)
        except NoSource:
            found = f"{text} has no source", True, ""
        known = _verdicts[key] = (found[0], f, *found[1:], reads)
        if len(_verdicts) > KEPT:  # closures that are made again and again
            _verdicts.pop(next(iter(_verdicts)))
    if not known[0]:
        scope.reads.add(known[-1])
    scope.typed |= code in _askers
    return known[0]


def _rebound_in(f: types.FunctionType) -> set:
    """The names outside of a function that other functions around it bind when they run."""
    space, name = f.__globals__, f.__globals__.get("__name__")
    classes = [x for x in list(space.values()) if type(x) is type and x.__module__ == name]
    found = [x for held in (space, *map(vars, classes)) for x in list(held.values())]
    found = [x.__func__ if type(x) in (staticmethod, classmethod) else x for x in found]
    own = (x for x in found if type(x) is types.FunctionType and x.__globals__ is space)
    names = set().union(*(_rebound_by(x.__code__) for x in own)) & {*f.__code__.co_names}
    if f.__code__.co_freevars:
        lines = "".join(linecache.getlines(f.__code__.co_filename, space))
        cells = set(re.findall(r"\w+", " ".join(re.findall(r"\bnonlocal ([\w ,]+)", lines))))
        names |= cells & {*f.__code__.co_freevars}
    return names


@functools.lru_cache(4096)
def _rebound_by(code: types.CodeType) -> frozenset:
    inner = (x for x in code.co_consts if isinstance(x, types.CodeType))
    mine = {i.argval for i in dis.get_instructions(code) if i.opname == "STORE_GLOBAL"}
    return frozenset(mine.union(*map(_rebound_by, inner)))


def _looked_at(f, node, text, scope: Scope, numpy, reads) -> tuple[str, bool, str]:
    read = outside(f)

    def lookup(name):
        if isinstance(value := read(name), list | dict | set):  # not in the key of a region
            raise Stays("object", f"it reads `{name}`, which may change")
        if not reads.variable(f, name, value):
            raise Stays("object", f"it reads `{name}`, which may be another each time")
        return value

    inner = Scope(parameter_kinds(node), lookup, scope.statement, returns=True, reads=reads)
    inner.be_callee(inner.kinds)
    inner.kinds |= dict.fromkeys(numpy, NUMPY)
    uses = scopes.uses(*(node.body if isinstance(node.body, list) else [node.body]))
    if uses.declared_global or uses.declared_nonlocal:
        return f"{text} writes a variable outside of it", True, ""
    for name in _rebound_in(f):
        return f"{text} reads `{name}`, which may be another each time", True, ""
    if not reads.function(f):
        return f"{text} has a default that may change", True, ""
    for value in (*(f.__defaults__ or ()), *(f.__kwdefaults__ or {}).values()):
        if isinstance(value, list | dict | set) or may_change(value):
            return f"{text} has a default that may change", True, ""
        if callable(value) and (why := impure(value, inner)):
            return why, True, ""
    try:
        body = [ast.Return(value=node.body)] if isinstance(node, ast.Lambda) else node.body
        for stmt in body:
            inner.statement(stmt, inner)
    except Exception as e:  # Stays; anything else is a fault of ours, or of an odd object
        why = e.why if isinstance(e, Stays) else f"it could not be looked at ({e!r})"
        return f"{text}: {why}", True, ""
    numbers = {NUMBER, SCALAR, SIZE}
    given = set(jax.tree.leaves(inner.given))
    made = "" if not inner.scalars else "numbers" if given <= numbers else "both"
    if inner.writes:
        _writers.add(f.__code__)
    _askers.update({f.__code__} if inner.typed else ())
    return "", inner.computes, made
