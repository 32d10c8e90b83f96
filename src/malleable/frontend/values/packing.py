"""An exception as a tuple of all that it holds, which may leave a traced block, and back."""

import functools
import types
from collections.abc import Callable
from typing import Any, NamedTuple

from malleable import compat
from malleable.errors import TransformError
from malleable.frontend.values.trees import UNSET
from malleable.frontend.values.values import Choice

LINKS = ("__cause__", "__context__", "__suppress_context__")
HELD = "__malleable_links__"  # of an exception: those that Python has no place for
USERS = {HELD, "__malleable_raised__"}  # one of these is in an exception of the program's


class Leaving(BaseException):
    """All paths have raised, each for a handler of its own."""


class Packed(NamedTuple):
    """fields, slots: (name, value) of its attributes, and of those that are in no dict."""

    kind: type
    args: Any
    fields: tuple
    slots: tuple
    links: tuple


@functools.cache
def slots_of(kind: type) -> tuple[str, ...]:
    mine = kind.__mro__[: kind.__mro__.index(BaseException)]
    members = ((name, x) for one in mine for name, x in vars(one).items())
    return tuple(name for name, x in members if type(x) is types.MemberDescriptorType)


def packed(x: Any, around: tuple = ()) -> Any:
    """x, where each exception in it is packed; around: the ids of those that it is in."""
    inner = functools.partial(packed, around=(*around, id(x)))
    if type(x) is Choice:
        return x.each(inner)
    if type(x) in (list, tuple) and any(issubclass(type(one), BaseException) for one in x):
        return type(x)(map(inner, x))
    if not issubclass(type(x), BaseException):
        return x
    if id(x) in around:
        return UNSET
    while x.__context__ is not None and not USERS & vars(x.__context__).keys():
        x.__context__ = x.__context__.__context__  # past those of ours
    fields = dict(vars(x))
    held = fields.pop(HELD, {})
    slots = [(name, getattr(x, name, UNSET)) for name in slots_of(type(x))]
    links = [inner(held.get(name, getattr(x, name))) for name in LINKS]
    return Packed(type(x), inner(x.args), tuple(fields.items()), tuple(slots), tuple(links))


def restored(x: Any) -> Any:
    """The same, with exceptions."""
    if type(x) is Choice:
        return x.each(restored)
    if type(x) in (list, tuple) and any(type(one) in (Packed, Choice) for one in x):
        return type(x)(map(restored, x))
    if type(x) is not Packed:
        return x
    if type(x.kind) is Choice:  # the context of a raise after two paths
        return x.kind.each(lambda kind: restored(x._replace(kind=kind)))
    args = restored(x.args)
    args = args if type(args) is tuple else (args,)
    kind = next(one for one in x.kind.__mro__ if one.__module__ == "builtins")
    group = issubclass(kind, BaseExceptionGroup)
    new = kind.__new__(x.kind, *(args if group else ()))
    new.args = args
    vars(new).update(x.fields)
    for name, value in () if group else x.slots:
        if value is not UNSET:
            setattr(new, name, value)
    link(new, x.links)
    return new


def link(e: BaseException, links: tuple) -> None:
    """Give an exception its cause and context, which Python sets when it is raised."""
    held = vars(e).setdefault(HELD, {})
    for name, x in zip(LINKS, map(restored, links), strict=True):
        if type(x) in (bool, types.NoneType) or issubclass(type(x), BaseException):
            setattr(e, name, x)
        else:
            held[name] = x


def linked(attr: Callable, e: Any, name: str) -> Any:
    """`e.__cause__` and its like."""
    held = vars(e).get(HELD, {}) if issubclass(type(e), BaseException) else {}
    if held.get(name) is UNSET:
        raise TransformError(
            f"`{name}` of a {type(e).__name__} that a `finally` raises depends on a traced value",
            where=compat.where(),
            hint="raise it in an `except`, or keep what it is about in its arguments",
        )
    return held[name] if name in held else attr(e, name)
