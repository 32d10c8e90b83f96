"""What an iterator may change around it while it goes on, as far as the code of it says."""

import dis
import functools
import inspect
import types
from collections.abc import Iterator
from typing import Any

from malleable.python_source import kinds

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
    if isinstance(iterator, map | filter):
        function, *inner = iterator.__reduce__()[1]
        return of_function(function, depth) or _first(effect_of(x) for x in inner)
    if not isinstance(iterator, types.GeneratorType) or iterator.gi_frame is None:
        return ""
    frame = iterator.gi_frame
    known = {**frame.f_globals, **frame.f_locals}
    inner = (effect_of(x, depth - 1) for x in frame.f_locals.values() if depth)
    return _first(inner) or _first(effects(iterator.gi_code, known, depth))


def of_function(function, depth: int) -> str:
    """The same of a call of a function; "" too for one that is not the user's."""
    if isinstance(function, functools.partial):
        return _first(of_function(x, depth) for x in (function.func, *function.args))
    function = getattr(function, "__func__", function)
    if not isinstance(function, types.FunctionType) or not depth:
        return ""
    if kinds.of_file(function.__code__.co_filename) != kinds.CONVERT:
        return ""
    found = inspect.getclosurevars(function)
    return _first(effects(function.__code__, {**found.globals, **found.nonlocals}, depth - 1))


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
