"""str(), format() and f-strings in converted code: what shows a traced value is a `Text`."""

import collections
import copy
import types
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from malleable.arrays.box import Box, Masked, is_traced, unbox
from malleable.arrays.content import PYTHON_TYPES
from malleable.arrays.text import Text, as_text, refused
from malleable.frontend.counterparts.bounded import as_jax_list
from malleable.frontend.values.conditions import by_case
from malleable.frontend.values.keys import KEYED, bounded, table_of
from malleable.frontend.values.raises import is_weak
from malleable.frontend.values.values import Choice, is_object

AGAIN: Any = type("Again", (), {"__repr__": lambda self: "..."})()  # what is in itself
_FORMATS = ("join", "format", "format_map", "__add__", "__mod__", "ljust", "rjust", "center")
_SHOWS = frozenset((*_FORMATS, "write", "writelines"))
_KEEPERS = (list, tuple, dict, set, frozenset)
_PRINTERS = ("_io", "logging", "_warnings", "warnings", "traceback")
_SHOWING = frozenset((*_PRINTERS, "builtins", "collections", "copy", "typing", "types"))
_DIGITS = (int, float, complex, bytes, bytearray, ord, eval, exec, compile, open, hash, len, sorted)


def text(*parts) -> Any:
    """An f-string of these parts."""
    return by_text(_concatenated, *parts)


def _concatenated(*parts) -> str:
    joined = "".join(parts)
    return Text(joined) if any(type(x) is Text for x in parts) else joined


def by_text(fun: Callable, *parts) -> Any:
    """fun(*parts), for each value that a part may be: a choice among texts, in the end."""
    at = next((k for k, x in enumerate(parts) if type(x) is Choice), None)
    if at is None:
        return fun(*parts)
    before, after = parts[:at], parts[at + 1 :]
    return by_case(parts[at], lambda one: by_text(fun, *before, one, *after))


def by_texts(fun: Callable, args: tuple, kwargs: dict) -> Any:
    """fun(*args, **kwargs), for each value that an argument, or an item of one, may be."""
    rows = [(x, type(x)) if type(x) in (list, tuple) else ([x], None) for x in args]

    def run(*parts):
        left = iter(parts)
        new = [[next(left) for _ in row] for row, _ in rows]
        given = [x[0] if kind is None else kind(x) for x, (_, kind) in zip(new, rows, strict=True)]
        return fun(*given, **dict(zip(kwargs, left, strict=True)))

    return by_text(run, *(x for row, _ in rows for x in row), *kwargs.values())


def is_text(x) -> bool:
    """Whether this is one of several texts."""
    return type(x) is Choice and all(isinstance(o, str | bytes) for o in x.options)


class Said(Text):
    """A text given to `print`: make(*parts) is what Python shows, once the parts are known."""

    __slots__ = ("make", "parts")


class Texts:
    """str, repr and format; call(method, *args) runs what a class of the user's says."""

    def __init__(self, call: Callable):
        self.call = call

    def _method(self, x, name: str):
        method = getattr(type(x), name, None)
        ours = isinstance(x, Box | Text)
        return method if type(method) is types.FunctionType and not ours else None

    def str(self, x: Any = "", *args, **kwargs):
        if args or kwargs:
            return str(x, *args, **kwargs)
        if type(x) is Choice:
            return by_case(x, self.str)
        own = self._method(x, "__str__")
        if own is not None:
            return self.call(own, x)
        return self.repr(x) if type(x).__str__ is object.__str__ else as_text(str(x))

    def repr(self, x):
        if type(x) is Choice:
            return by_case(x, self.repr)
        own = self._method(x, "__repr__")
        return as_text(repr(x)) if own is None else self.call(own, x)

    def format(self, x, spec=""):
        if type(x) is Choice:
            return by_case(x, lambda one: self.format(one, spec))
        own = self._method(x, "__format__")
        if own is not None:
            return self.call(own, x, spec)
        if type(x).__format__ is object.__format__ and not spec:
            return self.str(x)
        return as_text(format(x, spec))

    def shown(self, x, conversion: int, spec: str = "") -> str:
        """`{x!r:spec}` in an f-string."""
        convert = {ord("s"): self.str, ord("r"): self.repr, ord("a"): ascii}.get(conversion)
        return self.format(convert(x) if convert else x, spec)

    def said(self, *parts) -> Any:
        """An f-string that `print` is given, of texts and (value, conversion, spec)."""
        shown = [self.shown(*part) if type(part) is tuple else part for part in parts]
        return made_later(text(*shown), joined, parts)

    def said_as(self, text: str, *args) -> Any:
        """`text.format(*args)`, likewise."""
        return made_later(by_text(lambda *xs: as_text(text.format(*xs)), *args), text.format, args)


def made_later(whole: Any, make: Callable, parts: tuple) -> Any:
    """What `print` is given in place of a text, or of a choice among texts, of traced values."""
    if type(whole) is Choice and Text in map(type, whole.options):
        whole = Text(f"<one of {[*whole.options]}>")
    if type(whole) is Text:
        whole = Said(whole)
        whole.make, whole.parts = make, parts
    return whole


def joined(*parts) -> str:
    """An f-string as Python makes it, of the same parts."""
    converts = {ord("s"): str, ord("r"): repr, ord("a"): ascii}
    rows = [part if type(part) is tuple else (part, -1) for part in parts]
    return "".join(format(converts.get(c, lambda x: x)(x), *spec) for x, c, *spec in rows)


def outlined(x, arrays: list, around: frozenset = frozenset()) -> Callable[[list], Any]:
    """A function of these arrays, once they are known, that gives x as Python has it: to print it.

    What is traced in x is added to the arrays. around: the ids of what x is in.
    """
    kind, at, within = type(x), len(arrays), around | {id(x)}

    def parts(xs) -> Callable[[list], list]:
        each = [outlined(one, arrays, within) for one in xs]
        return lambda found: [part(found) for part in each]

    if kind is Choice:
        arrays.append(x.index)
        options = [outlined(one, arrays, within) for one in x.options]
        return lambda found: options[int(found[at])](found)
    if (held := bounded(x)) is not None:
        columns, tree = jax.tree.flatten(as_jax_list(held).items)
        arrays += [held.length, *columns]
        shows, end = [as_python if is_weak(a) else lambda v: v for a in columns], len(arrays)

        def listed(found):
            pairs = zip(shows, found[at + 1 : end], strict=True)
            rows = zip(*(map(show, part[: found[at]]) for show, part in pairs), strict=True)
            return kind(map(tree.unflatten, rows))

        return listed
    if kind is Masked:
        arrays += [x.whole, x.mask]
        return lambda found: found[at][found[at + 1]]
    if is_traced(x):
        arrays.append(unbox(x))
        known = isinstance(x, Box) and x.scalar and is_weak(x)
        return lambda found: as_python(found[at]) if known else found[at][()]
    if kind is Said:
        given, make = parts(x.parts), x.make
        return lambda found: make(*given(found))
    if isinstance(x, Box | np.ndarray):
        value = copy.copy(unbox(x))
        return lambda found: value
    if id(x) in around:
        return lambda found: AGAIN
    if kind is list:
        return parts(x)
    if kind in KEYED or kind is collections.deque:
        table, pairs, empty = table_of(x), issubclass(kind, dict), copy.copy(x)
        empty.clear()
        rows = ([*x], [*x.values()] if pairs else []) if table is None else vars(table).values()
        keys, values = (outlined(row, arrays, within) for row in rows)

        def filled(found):
            new, items = copy.copy(empty), keys(found)
            items = dict(zip(items, values(found), strict=True)) if pairs else items
            (new.update if kind in KEYED else new.extend)(items)
            return new

        return filled
    if isinstance(x, tuple):
        items, make = parts(x), getattr(kind, "_make", kind)
        return lambda found: make(items(found))
    shows = (kind.__repr__, kind.__str__) != (object.__repr__, object.__str__)
    failed = isinstance(x, BaseException)
    if failed or (shows and is_object(x) and kind.__new__ is object.__new__):
        names, given = [*vars(x)], parts(x.args if failed else ())
        attributes = parts(vars(x).values())

        def remade(found):
            new = kind.__new__(kind, *given(found))
            vars(new).update(zip(names, attributes(found), strict=True))
            return new

        return remade if len(arrays) > at else lambda found: x
    return lambda found: x


def as_python(x: np.ndarray) -> Any:
    """A number of Python's, of the fewest digits that tell it from others of its type."""
    return x.item() if x.dtype.kind in "biu" else PYTHON_TYPES[x.dtype.kind](str(x))


def refuse_text(f, owner, args) -> None:
    """Refuse to hand text with placeholders to compiled code that reads its characters."""
    found = next((x for x in args if type(x) is Text), None)
    owner = getattr(f, "__self__", None) if owner is None else owner  # of super().__init__
    if found is None or isinstance(owner, (*_KEEPERS, BaseException)):
        return
    name = getattr(f, "__name__", type(f).__name__)
    if isinstance(f, type) and f not in _DIGITS:
        shows = issubclass(f, (*_KEEPERS, str, BaseException)) or f.__module__ in _SHOWING
    elif isinstance(owner, str):
        shows = name in _SHOWS
    else:
        module = getattr(f, "__module__", None) or type(owner).__module__
        shows = name in _SHOWS or (f not in _DIGITS and module.partition(".")[0] in _SHOWING)
    if not shows:
        raise refused(f"`{name}`", found)
