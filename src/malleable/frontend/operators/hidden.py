"""State that only code without conversion knows: iterators, random generators, files, clocks.

A block that is compiled is traced once. What it asks of such a thing would happen once, too, and
not in every step or on one path only. Iterators and generators of random numbers made in the block
itself may be used there; others are refused at the line. Lists, dicts, sets and objects that
compiled code of Python changes are compared before and after the call, and told to the journal.
"""

import array
import collections
import dis
import functools
import io
import random
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from malleable import compat
from malleable.arrays import journal
from malleable.arrays.box import Box, Masked
from malleable.arrays.journal import ABSENT, Place
from malleable.errors import TransformError
from malleable.frontend.common.session import session
from malleable.frontend.counterparts.builtins import Once
from malleable.frontend.counterparts.replaced import convertible
from malleable.frontend.values.unwinding import failed, is_same, level
from malleable.frontend.values.values import is_object, table_of
from malleable.notes import note

RANDOM = (random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator)
DRAWS = ("random", "secrets", "uuid", "numpy.random")  # modules whose functions draw
_DRAWING = {("builtins", "input"), ("posix", "urandom"), ("nt", "urandom")}
_SEEDS = frozenset(["seed", "setstate", "set_state"])
_LOOKS = {isinstance, issubclass, type, id, callable, hasattr, getattr, setattr, print, repr, str}
_LOOKS |= {iter, format, vars, dir, object.__setattr__}
_KEEPS = frozenset(["append", "add", "insert", "setdefault", "appendleft"])
_STATELESS = """
    abc array ast base64 binascii bisect builtins calendar cmath codecs collections colorsys
    contextlib contextvars copy copyreg dataclasses datetime decimal difflib enum errno
    fractions functools gc graphlib hashlib heapq html importlib inspect io itertools json
    keyword linecache locale math numbers operator pickle pprint queue re reprlib statistics
    string struct sys textwrap threading token tokenize traceback types typing unicodedata
    warnings weakref zlib
"""
_PURE = frozenset(_STATELESS.split())
_NUMERIC = ("builtins", "math", "cmath", "operator")  # these change none of their arguments
_MANY = 10_000  # elements of an array that is compared before and after a call
_THINGS = 100  # that are compared


class Trial:
    """What may be undone, though no block is staged. made: ids of what was there before.

    advanced: the iterators from before that were gone over since, which nobody can undo. said: what
    is to be printed once nothing is undone any more.
    """

    def __init__(self, made: frozenset):
        self.made, self.advanced, self.said = made, [], []


def block() -> journal.Journal | None:
    """The journal of the staged block being traced; None if Python runs."""
    found = level()
    return found if found is not None and found.made is not None and not found.base else None


def is_iterator(x) -> bool:
    """Whether this is an iterator that Python advances; one of the user's class is converted."""
    step = getattr(type(x), "__next__", None)
    return step is not None and (type(step) is not types.FunctionType or type(x) is Once)


def is_stateful(x) -> bool:
    return is_iterator(x) or issubclass(type(x), (*RANDOM, io.IOBase))


def born(x: Any) -> Any:
    """Note that a thing with hidden state was made here; returns it."""
    found = level()
    if found is not None and found.made is not None and is_stateful(x):
        found.made[id(x)] = x
        found.new.add(id(x))
    return x


def new(x: Any) -> Any:
    """Note that an object was made here; returns it."""
    found = level()
    if found is not None and found.made is not None:
        found.new.add(id(x))
    return born(x)


def walked(x: Any) -> Any:
    """What to go over in place of x: by converted code, if its class says in Python how."""
    if table_of(x) is not None:
        return keys_of(x)
    if type(x) is Masked:
        return x.in_line()
    make = None if issubclass(type(x), Box) else getattr(type(x), "__iter__", None)
    if not convertible(make):
        return x
    it = born(session().call(make, x))  # type: ignore[arg-type]
    step = getattr(type(it), "__next__", None)
    return born(_walk(it, step)) if convertible(step) else it


def keys_of(x: dict | set) -> list:
    """The traced keys of a dict or set, in the order in which they were put in."""
    if type(x) is set:
        what = "a set with traced keys is gone over in the order in which they were put in"
        note(what, compat.where(), "Python has an order of its own: go over sorted(s)")
    return table_of(x).keys  # type: ignore[union-attr]


def _walk(it, step):
    while True:
        before = session().raised._value, failed()
        try:
            item = session().call(step, it)
        except StopIteration:
            return
        if before[0] is not session().raised._value or before[1] is not failed():
            raise TransformError(
                f"a {type(it).__name__} is gone over, and a traced value says where it ends",
                where=compat.where(),
                hint="go over a range or an array, and leave the loop by `if ...: break`",
            )
        yield item


def refuse_foreign(x, by: str = "") -> None:
    """Refuse, in a staged block, what was made outside of it and is about to be advanced."""
    if not is_stateful(x):
        return
    found = block()
    if found is not None and id(x) not in found.made:  # type: ignore[operator]
        raise _refused(x, by)
    made: set = set()
    for book in reversed(journal.all_open()):
        made |= {*(book.made or ())} - (book.tried.made if book.tried else set())
        if book.tried and not (id(x) in made or isinstance(x, Once)):
            book.tried.advanced.append(x)


def _refused(x, by: str) -> TransformError:
    if issubclass(type(x), RANDOM):
        return _refused_draw(f"`{by}` of a {type(x).__name__}, made before,")
    if isinstance(x, io.IOBase):
        what = f"a file or stream ({type(x).__name__}) is used in a loop or branch"
        hint = "print() works in every step; jax.debug.callback calls a function"
    else:
        what = (
            f"an iterator ({type(x).__name__}) made outside of a loop or branch is advanced in it"
        )
        hint = "make it inside, or go over numbers: `for i, x in enumerate(xs)`"
    text = f"{what}: compiled, that would happen once"
    return TransformError(text, where=compat.where(), hint=hint)


def _refused_draw(what: str) -> TransformError:
    return TransformError(
        f"{what} draws in a compiled loop or branch: one number for all steps",
        where=compat.where(),
        hint="use jax.random with mal.next_key(), or draw an array of all numbers before the loop",
    )


# ---------------------------------------------------------------- calls


def _module(f) -> str:
    found = getattr(f, "__module__", None)
    if not isinstance(found, str):
        owner = getattr(f, "__self__", None)
        found = getattr(owner, "__name__", None) if isinstance(owner, types.ModuleType) else None
        found = found or (owner if isinstance(owner, type) else type(owner)).__module__
    return found


def _is_unseeded(f, args, kwargs) -> bool:
    given = [x for x in (*args, *kwargs.values()) if x is not None]
    makes = f is np.random.default_rng or (isinstance(f, type) and issubclass(f, RANDOM))
    return makes and not given


def watched(f, run: Callable, owner, args: tuple, kwargs: dict) -> Any:
    """run(), which calls f as it is: what it changes is noted; hidden state is refused."""
    found = level()
    if found is None or found.made is None:
        return run()
    values = (owner, *args, *kwargs.values())
    if found.base:
        _note_draws(f, values, found)
        out = run()
        return out if _is_unseeded(f, args, kwargs) else born(out)
    name, module = getattr(f, "__name__", ""), _module(f)
    if f is print:
        out = kwargs.get("file") or sys.stdout
        refuse_foreign(None if session().is_screen(out) else out)
    if not (type(f) in (type, types.BuiltinFunctionType) and f in _LOOKS):
        for x in (owner,) if name in _KEEPS else values:
            refuse_foreign(x, name)
    package = module.partition(".")[0].removeprefix("_")
    draws = package in DRAWS or module in DRAWS or (module, name) in _DRAWING
    if _is_unseeded(f, args, kwargs):
        raise _refused_draw(f"`{name}()` without a seed")
    given = any(issubclass(type(x), RANDOM) for x in values)
    if draws and not (given or isinstance(f, type) or f is np.random.default_rng):
        raise _refused_draw(f"`{module}.{name}`")
    if not draws and package in sys.stdlib_module_names and package not in _PURE and name:
        what = f"`{package}.{name}` is called once, while the block around it is compiled"
        note(what, compat.where(), "jax.debug.callback calls a function in every step")
    keeps = owner is None and package in _NUMERIC and name not in ("exec", "eval")
    before = _contents(owner, () if keeps else values[1:])
    try:
        out = run()
    finally:
        for x, kind, old in before:
            _tell(x, kind, old)
    return born(out)


def _note_draws(f, values: tuple, found: journal.Journal) -> None:
    name = getattr(f, "__name__", "")
    if name in _SEEDS and _module(f).startswith("numpy.random"):
        born(np.random.rand.__self__)  # what np.random draws from
    for x in values:
        if issubclass(type(x), RANDOM) and id(x) not in found.made:  # type: ignore[operator]
            if name in _SEEDS:
                born(x)
            else:
                what = f"`{name}` of a {type(x).__name__} made outside draws once, when traced"
                note(what, compat.where(), "mal.next_key() draws anew in every call")


# ---------------------------------------------------------------- what a call changes


def _contents(owner, args: tuple) -> list:
    """(thing, kind of place, content) of what a call may change: its arguments, and theirs."""
    found: list = []
    seen: set = set()
    todo = [(owner, 2), *((x, 0) for x in args)]
    while todo and len(found) < _THINGS:
        x, depth = todo.pop()
        kind = _place_kind(x)
        if kind is None or id(x) in seen:
            continue
        seen.add(id(x))
        old = dict(vars(x)) if kind == "attr" else Place(kind, x).read()
        found.append((x, kind, old))
        if depth < 2 and kind in ("attr", "list", "dict"):
            inside = old if kind == "list" else old.values()
            todo += [(y, depth + 1) for y in inside]
    return found


def _tell(x, kind: str, old) -> None:
    """Tell the journal what a thing held before a call that has changed it."""
    book = journal.current()
    if kind != "attr":
        place = Place(kind, x)
        if place.key not in book.places and not _is_same(old, place.read()):  # type: ignore
            book.places[place.key], book.before[place.key] = place, old  # type: ignore
        return
    new = vars(x)
    for name in {*old, *new}:
        place, before = Place("attr", x, name), old.get(name, ABSENT)
        if place.key not in book.places and before is not new.get(name, ABSENT):  # type: ignore
            book.places[place.key], book.before[place.key] = place, before  # type: ignore


def _place_kind(x) -> str | None:
    """The kind of place that the content of a mutable thing is."""
    if issubclass(type(x), Box):
        return None
    if isinstance(x, list):
        return "list"
    if isinstance(x, dict):
        return "dict"
    if isinstance(x, set):
        return "set"
    if isinstance(x, collections.deque | bytearray | array.array):
        return journal.kind_of_object(x)
    if issubclass(type(x), np.ndarray):
        return "ndarray" if x.size <= _MANY else None
    return "attr" if is_object(x) and not isinstance(x, types.ModuleType) else None


def _is_same(old, new) -> bool:
    if isinstance(old, np.ndarray) and isinstance(new, np.ndarray):
        return old.shape == new.shape and old.tobytes() == new.tobytes()
    if isinstance(old, set) and isinstance(new, set):
        return old == new
    if isinstance(old, dict) and isinstance(new, dict) and list(old) != list(new):
        return False
    return is_same(old, new)


def reaching(f: types.FunctionType, call: Callable) -> types.FunctionType:
    """A function without source as it is, but what it calls by a global name converted."""
    used = {name: f.__globals__.get(name) for name in f.__code__.co_names}
    of_type = lambda g: getattr(type(g), "__call__", None)  # noqa: B004, E731
    calls = {k: g for k, g in used.items() if convertible(g) or convertible(of_type(g))}
    if not calls or any(i.opname == "STORE_GLOBAL" for i in dis.get_instructions(f)):
        return f
    known = f.__globals__ | {k: functools.partial(call, g) for k, g in calls.items()}
    new = types.FunctionType(f.__code__, known, f.__name__, f.__defaults__, f.__closure__)
    new.__kwdefaults__ = f.__kwdefaults__
    return new
