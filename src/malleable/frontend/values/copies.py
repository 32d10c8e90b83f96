"""Things of which somewhere else is a copy, where Python has the thing itself: no write is lost."""

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from malleable import compat
from malleable.arrays import journal
from malleable.arrays.box import Box
from malleable.errors import TransformError
from malleable.frontend.values.trees import Both, Leaf, Made, Static, Tree
from malleable.notes import note

IN_A_LIST = "a list whose length is traced has it, or a copy of it"
A_PART = "one branch of an `if` makes it, or its other name, a part of another array"


@dataclass(frozen=True)
class Copied:
    """What a write to a thing calls: an error, or where only a part has a copy, a note.

    copy: of that part, where it is known: using it is an error then. view: the copy of the thing,
    which matters as long as somebody knows it.
    """

    thing: Any
    why: str
    part: bool = False
    copy: Box | None = None
    view: list | None = None

    def __call__(self, changed) -> None:
        if changed is not self.thing:
            return
        if self.view is not None and sys.getrefcount(self.view) <= 2:
            return
        if self.copy is not None:
            return self.copy.outdate(self.why)
        if self.part:
            return note("this write does not reach each copy", compat.where(), self.why)
        raise TransformError(
            f"what is written to here is a copy: {self.why}",
            where=compat.where(),
            hint="write to it before, or to a copy() of it, or set a list's item: xs[i] = new",
        )


def copies_of(box: Box, token: Made, made: dict) -> list[Copied]:
    """What a write to is refused, or outdates a copy, where `box` holds what a stand-in is for."""
    whole = token if token.root is None else token.root
    family = made.setdefault((id(whole),), [])
    others = [(x, other) for x, other in family if other is not token]
    family.append((box, token))
    parts = [(x, other is not whole) for x, other in (*others, (box, token))] if others else []
    found = [Copied(x, A_PART) for x, is_part in parts if is_part]
    found += [
        Copied(x, A_PART, True, copy)
        for x, is_part in parts
        for copy, copied in parts
        if copied and not is_part
    ]
    found += [Copied(x, token.why or A_PART, True, box) for x in token.boxes]
    return [Copied(box, token.why or A_PART), *found] if token.why or token.boxes else found


def disown(tree: Tree, why: str, known: Tree | None = None) -> None:
    """Make a write to what is in a tree an error, and one to an array it is a part of a note.

    known: the tree it was built of, where things themselves are named.
    """
    origin = getattr(tree, "origin", None)
    for token in (origin, *(origin if isinstance(origin, Both) else ())):
        if isinstance(token, Made):
            token.why = token.why or why
    if isinstance(known, Static) or (isinstance(tree, Leaf) and not isinstance(origin, Box)):
        return
    if isinstance(origin, Box) and origin._base is not None:
        keep([Copied(origin.root, why, True)])
    elif origin is not None and not getattr(tree, "scalar", False):
        keep([Copied(origin, why)])
    inside, names = inner(tree), inner(known)
    for k, child in enumerate(inside):
        disown(child, why, names[k] if len(names) == len(inside) else None)


def inner(tree) -> tuple:
    """The trees in a tree."""
    return getattr(tree, "children", ()) or getattr(tree, "options", ())


def why_refused(thing) -> str:
    """Why a write to a thing, or to what stands for one, is refused; "" if it is not."""
    told = (x.why for x in journal.followers_of(thing) if isinstance(x, Copied))
    return thing.why if isinstance(thing, Made) else next(told, "")


def keep(copies: Iterable[Copied]) -> None:
    """From now on, these have copies."""
    books = journal.all_open()
    for new in copies:
        told = [x for book in books for x in book.followers.get(id(new.thing), ())]
        same = (x for x in told if isinstance(x, Copied) and x.thing is new.thing)
        if not any(x.part <= new.part and (not x.part or x.copy is new.copy) for x in same):
            journal.follow(new.thing, new)


def is_one_thing(x, y) -> bool:
    """`x is y`; an error where one of the two is a copy of what may be the other."""
    if x is y or type(x) is not type(y):
        return x is y
    told = (f for book in journal.all_open() for t in (x, y) for f in book.followers.get(id(t), ()))
    for known in told:
        if isinstance(known, Copied) and not known.part and any(known.thing is t for t in (x, y)):
            raise TransformError(
                f"whether this is the same {type(x).__name__} is not known: {known.why}",
                where=compat.where(),
                hint="give each a number, and compare these",
            )
    return False


def kept(book: journal.Journal) -> list[Copied]:
    """What has copies since a journal was opened."""
    return [x for known in book.followers.values() for x in known if isinstance(x, Copied)]
