"""What an iterator may change around it while it goes on, as far as the code of it says."""

import dis
import functools
import gc
import inspect
import types
from collections.abc import Iterator
from typing import Any

from malleable.python_source import kinds
from malleable.python_source.source import closed_over

_METHOD_NAMES = (
    "append extend insert pop remove clear sort reverse update setdefault popitem add discard "
    "appendleft popleft extendleft rotate fill put resize send throw close write writelines "
    "shuffle seed next print setattr delattr __next__"
)
_METHODS = frozenset(_METHOD_NAMES.split())
# of the front end, in code that it has converted
_HOOK_NAMES = "setitem setattr_ delitem delattr_ aug_item aug_attr writes_global writes_cell"
_HOOKS = frozenset(_HOOK_NAMES.split())
_WRITES = ("STORE_ATTR", "STORE_SUBSCR", "STORE_SLICE", "STORE_GLOBAL", "DELETE_ATTR")
DEEP = 4  # functions that call one another


def effect_of(iterator, depth: int = DEEP) -> str:
    """What going on with an iterator may change, in a few words; "" where it only computes."""
    if isinstance(iterator, types.GeneratorType):
        frame = iterator.gi_frame
        if frame is None:
            return ""
        known = {**frame.f_globals, **frame.f_locals}
        inner = (effect_of(x, depth - 1) for x in frame.f_locals.values() if depth)
        return _first(inner) or _first(effects(iterator.gi_code, known, depth))
    step = getattr(type(iterator), "__next__", None)
    if isinstance(step, types.FunctionType):
        return of_function(step, depth)
    return _first(_of_parts(iterator, depth)) if step is not None else ""


def _of_parts(x, depth: int) -> Iterator[str]:
    """The same of what an iterator of Python's own calls and goes over."""
    for inner in gc.get_referents(x):
        if isinstance(inner, tuple) or type(inner).__name__.endswith("_iterator"):
            yield from _of_parts(inner, depth)
        elif callable(inner):
            yield of_function(inner, depth)
        else:
            yield effect_of(inner, depth)


def of_function(function, depth: int) -> str:
    """The same of a call of a function; "" too for one that is not the user's."""
    if isinstance(function, functools.partial):
        return _first(of_function(x, depth) for x in (function.func, *function.args))
    function = getattr(function, "__func__", function)
    if not isinstance(function, types.FunctionType) or not depth:
        return ""
    if kinds.of_file(function.__code__.co_filename) != kinds.CONVERT:
        return ""
    known = {**function.__globals__, **closed_over(function)}
    return _first(effects(function.__code__, known, depth - 1))


def effects(code: types.CodeType, known: dict[str, Any], depth: int) -> Iterator[str]:
    """What running some code may change. known: what its names stand for, as far as one knows."""
    around, names = set(code.co_freevars), set()
    for part in _codes(code):
        for step in dis.get_instructions(part):
            if step.opname.startswith(_WRITES):
                yield "writes to an object"
            elif step.opname == "STORE_DEREF" and step.argval in around:
                yield f"binds `{step.argval}`"
        names |= {*part.co_names, *part.co_varnames}
        names.update(x for x in part.co_consts if type(x) is str)
    if names & _HOOKS:
        yield "writes to an object"
    for name in sorted(names & _METHODS):
        yield f"calls `{name}`"
    held = [known[name] for name in {*names, *around} if name in known]
    methods = (inspect.getattr_static(type(x), name, None) for x in held for name in names)
    for function in (*held, *methods):
        yield of_function(function, depth)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for x in code.co_consts:
        if isinstance(x, types.CodeType):
            yield from _codes(x)


def _first(found) -> str:
    return next(filter(None, found), "")
