"""Text in which a placeholder stands for a traced value: to be printed, not to be compared."""

import re
from typing import Any

from malleable import compat
from malleable.errors import TransformError

_PLACEHOLDER = re.compile(r"<(?:(?:bool|b?float|u?int|complex)\w*\[[\d, ]*|one of \[.*?)\]>")
_JOINED = """__add__ __mul__ __rmul__ __mod__ __repr__ __format__ join format upper lower title
    capitalize casefold swapcase center ljust rjust zfill expandtabs format_map"""
_ASKS = """__eq__ __ne__ __lt__ __le__ __gt__ __ge__ __hash__ __len__ __iter__ __getitem__
    __contains__"""


class Text(str):
    """A string with the placeholder of a traced value in it.

    It can be printed, joined, stored and raised with an exception. What depends on the digits, such
    as comparing, hashing or measuring it, raises TransformError.
    """

    __slots__ = ()

    def __bool__(self):
        return True


def as_text(x: Any) -> Any:
    """A string in which a placeholder stands as a Text; anything else as it is."""
    return Text(x) if type(x) is str and "]>" in x and _PLACEHOLDER.search(x) else x


def refused(what: str, text) -> TransformError:
    return TransformError(
        f"{what} needs the digits of a traced value, which are not known: {str.__str__(text)}",
        where=compat.where(),
        hint="compare, measure and look up the numbers themselves, not text made of them",
    )


def _refusing(name: str):
    words = {
        "__eq__": "==",
        "__hash__": "a set or a dict key",
        "__len__": "len",
        "__contains__": "in",
    }

    def refuse(self, *args, **kwargs):
        raise refused(f"`{words.get(name, name)}`", self)

    return refuse


def _known_end(start: bool):
    """startswith or endswith, where the text beside the placeholders says enough."""

    name = "startswith" if start else "endswith"
    plain = getattr(str, name)

    def ends(self, part, *args):
        known = _PLACEHOLDER.split(self)[0 if start else -1]
        if type(part) is str and not args:
            if plain(known, part):
                return True
            if not plain(part, known):
                return False
        raise refused(f"`{name}`", self)

    return ends


def _joined(name: str):
    plain = getattr(str, name)

    def join(self, *args, **kwargs):
        out = plain(self, *args, **kwargs)
        return Text(out) if isinstance(out, str) else out

    return join


for _name in _JOINED.split():
    setattr(Text, _name, _joined(_name))
for _name in {*_ASKS.split(), *(name for name in dir(str) if name[0] != "_")} - {*_JOINED.split()}:
    setattr(Text, _name, _refusing(_name))
Text.startswith = _known_end(True)  # type: ignore[method-assign]
Text.endswith = _known_end(False)  # type: ignore[method-assign]
Text.__str__ = lambda self: self  # type: ignore[method-assign]
Text.__radd__ = lambda self, other: Text(str.__add__(other, self))  # type: ignore[attr-defined]
