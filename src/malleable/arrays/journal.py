"""What a block of code changed on the heap: kept while the block is traced, undone, joined.

Whoever changes a list, a dict, an attribute, a closure cell, a global or the content of an array
says so first (`touch_list(xs)`, ...). Where no block is being traced, that costs one test.
"""

import array
import contextlib
import contextvars
import functools
import itertools
import types
from collections.abc import Iterator
from typing import Any

import numpy as np

tick = itertools.count(1).__next__  # what was made later has a greater number
# no such variable, no such key
ABSENT: Any = type("Absent", (), {"__repr__": lambda self: "ABSENT"})()


class Place:
    """One thing that can be changed: a kind, its owner, and a name where the owner has several."""

    __slots__ = ("key", "kind", "name", "owner")

    def __init__(self, kind: str, owner, name: str = ""):
        self.kind, self.owner, self.name = kind, owner, name
        self.key = (kind, id(owner), name if kind in ("attr", "global") else "")

    @property
    def label(self) -> str:
        """What an error calls it."""
        kinds = {"box": "an array", "object": "a container", "ndarray": "an array"}
        if self.name.startswith("_ag_"):
            return "the result"
        return f"`{self.name}`" if self.name else kinds.get(self.kind, f"a {self.kind}")

    def read(self) -> Any:
        return _READ[self.kind](self.owner, self.name)

    def write(self, new) -> None:
        _WRITE[self.kind](self.owner, self.name, new)


class Journal:
    """The places changed since it was opened, each with its content before."""

    def __init__(self, base: bool = False):
        self.base = base  # of a whole call: nothing in it is undone
        self.began = tick()
        self.tried: Any = None  # what happens now may be undone even so
        self.places: dict[Any, Place] = {}
        self.before: dict[Any, Any] = {}
        self.followers: dict[int, list] = {}  # by id of an array: the arrays that may be it
        self.undefined: set = set()  # variables that were joined with nothing
        self.met: dict = {}  # {whether float: NumPy's type that was joined with Python's numbers}
        self.unread: set = set()  # names that a branch found undefined
        self.binds = False  # of a step of a loop: perhaps it binds one of these for the next
        self.made: dict | None = None  # by id: what was made here and has a state nobody sees
        self.new: set[int] = set()  # the ids of objects that were made here
        self.repeats = False  # of a step of a loop: the next one makes others in their place

    level: Any = property(lambda self: self)  # the journal of the block that this belongs to

    def record(self, place: Place) -> None:
        if place.kind == "box" and self.base and not self.tried:
            return  # nobody asks, and an array that no name has any more may go
        if place.key not in self.places:
            self.places[place.key] = place
            self.before[place.key] = place.read()

    def undo(self) -> None:
        """Put everything back as it was."""
        for key, place in self.places.items():
            place.write(self.before[key])


_open: contextvars.ContextVar[tuple[Journal, ...]] = contextvars.ContextVar("journals", default=())


def depth() -> int:
    """How many staged blocks are being traced around us."""
    journals = _open.get()
    return len(journals) - (bool(journals) and journals[0].base)


def is_undone() -> bool:
    """Whether what happens now may be undone."""
    journals = _open.get()
    return bool(journals) and (journals[-1].tried is not None or depth() > 0)


def current() -> Journal | None:
    journals = _open.get()
    return journals[-1] if journals else None


def all_open() -> tuple[Journal, ...]:
    return _open.get()


def is_new(box) -> bool:
    """Whether an array was made in the block being traced; not asked of numbers, our flags."""
    book = current() and current().level
    return book is not None and not (book.base or box.scalar) and box.born > book.began


def references(thing) -> int:
    """How many references to a thing the open journals hold."""
    books = all_open()
    before = sum(x is thing for book in books for x in book.before.values())
    return before + sum(place.owner is thing for book in books for place in book.places.values())


def push(journal: Journal) -> None:
    """Note changes there from now on, until `back_to`."""
    _open.set((*_open.get(), journal))


def back_to(journals: tuple[Journal, ...]) -> None:
    """Close the journals opened since these were all that were open."""
    _open.set(journals)


@contextlib.contextmanager
def opened(base: bool = False) -> Iterator[Journal]:
    """A journal for the block."""
    journal = Journal(base)
    token = _open.set((*_open.get(), journal))
    try:
        yield journal
    finally:
        _open.reset(token)


def _touch(kind, owner, name="") -> None:
    journals = _open.get()
    if journals:
        if kind != "box":  # of which there is more than one way to write to it
            tell(owner)
        journals[-1].record(Place(kind, owner, name))


def follow(box, follower) -> None:
    """`follower(box)` is to be called whenever the content of `box` changes in this block."""
    journals = _open.get()
    if journals:
        journals[-1].level.followers.setdefault(id(box), []).append(follower)


def followers_of(box) -> list:
    """Who is to be called whenever the content of `box` changes."""
    return [follower for book in _open.get() for follower in book.followers.get(id(box), ())]


def tell(box) -> None:
    """The content of a box has changed, or that of another thing is about to."""
    for book in _open.get():
        if book.followers:
            for follower in book.followers.get(id(box), ()):
                follower(box)


# What is about to change: the content of a box (anything with `_value`), a list, ...
before_write = functools.partial(_touch, "box")
touch_list, touch_dict, touch_set = (functools.partial(_touch, k) for k in ("list", "dict", "set"))
# ... and what has several places: an object, a cell, a table of variables, and the name
touch_attr = functools.partial(_touch, "attr")
touch_cell = functools.partial(_touch, "cell")
touch_global = functools.partial(_touch, "global")


def touch_object(obj) -> None:
    """Another mutable: what has clear() and extend/update, or a NumPy array of the user's."""
    _touch(kind_of_object(obj), obj)


def kind_of_object(obj) -> str:
    """The kind of place that its content is: a deque is a list, unless it drops items."""
    kind = "list" if getattr(obj, "maxlen", 0) is None else "object"
    return "ndarray" if isinstance(obj, np.ndarray) else kind


def fields(obj, absent: Any = types.MappingProxyType({})) -> dict:
    """The attributes an object holds itself; a `__getattr__` of its class is not asked."""
    try:
        return object.__getattribute__(obj, "__dict__")
    except AttributeError:
        return absent


def _read_attr(obj, name):
    return fields(obj)[name] if name in fields(obj) else _read_slot(obj, name)


def member(kind: type, name: str) -> Any:
    """What a class says of an attribute of its instances, no descriptor asked; else None."""
    return next((vars(c)[name] for c in kind.__mro__ if name in vars(c)), None)


def _read_slot(obj, name):
    slot = member(type(obj), name)  # of __slots__, or a property, or a class attribute
    try:
        return slot.__get__(obj, type(obj)) if hasattr(slot, "__set__") else ABSENT
    except AttributeError:
        return ABSENT


def _write_attr(obj, name, new):
    held = fields(obj)
    if type(held) is not dict or hasattr(member(type(obj), name), "__set__"):
        if new is not ABSENT:
            setattr(obj, name, new)
        elif _read_attr(obj, name) is not ABSENT:
            delattr(obj, name)
    elif new is not ABSENT:  # past any __setattr__ of the user's: this is not their statement
        held[name] = new
    else:
        held.pop(name, None)


def _read_cell(cell, name):
    try:
        return cell.cell_contents
    except ValueError:
        return ABSENT


def _write_cell(cell, name, new):
    if new is not ABSENT:
        cell.cell_contents = new
    elif _read_cell(cell, name) is not ABSENT:
        del cell.cell_contents


def _write_global(variables, name, new):
    if new is ABSENT:
        variables.pop(name, None)
    else:
        variables[name] = new


def _refill(obj, name, new):
    # past any method of a user's subclass, and any __getattr__: this is not their statement
    kinds = (c for c in type(obj).__mro__ if c.__module__ in ("builtins", "collections"))
    kind = next((c for c in kinds if hasattr(c, "clear")), type(obj))
    if isinstance(obj, array.array):
        del obj[:]
    else:
        kind.clear(obj)
    (kind.extend if hasattr(kind, "extend") else kind.update)(obj, new)


_READ: dict[str, Any] = {
    "box": lambda box, name: box._value,
    "list": lambda xs, name: list(xs),
    "dict": lambda d, name: dict(d),
    "set": lambda s, name: set(s),
    "attr": _read_attr,
    "cell": _read_cell,
    "global": lambda variables, name: variables.get(name, ABSENT),
    "ndarray": lambda xs, name: xs.copy(),
    "object": lambda obj, name: list(obj),
}
_WRITE: dict[str, Any] = {
    "box": lambda box, name, new: setattr(box, "_value", new),
    "list": _refill,
    "dict": _refill,
    "set": _refill,
    "attr": _write_attr,
    "cell": _write_cell,
    "global": _write_global,
    "ndarray": lambda xs, name, new: xs.__setitem__(..., new),
    "object": _refill,
}
