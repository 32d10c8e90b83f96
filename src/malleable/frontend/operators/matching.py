"""What the tests ask that stand for the patterns of a `match`."""

import collections.abc
from collections.abc import Callable
from typing import Any

from malleable import compat
from malleable.errors import TransformError
from malleable.frontend.values.values import Choice, bounded

ITSELF = (bool, bytearray, bytes, dict, float, frozenset, int, list, set, str, tuple)


def is_sequence(x, size: int, more: bool) -> bool:
    """Whether this is a sequence of that many items, or with `more` of at least as many."""
    if bounded(x) is not None:
        raise TransformError(
            "a list whose length is known only at run time is matched with a pattern",
            where=compat.where(),
            hint="compare its len(), and index it",
        )
    kinds = {type(o) for o in x.options} if type(x) is Choice else {type(x)}
    if not all(issubclass(kind, collections.abc.Sequence) for kind in kinds):
        return False
    if any(issubclass(kind, str | bytes | bytearray) for kind in kinds):
        return False
    return len(x) >= size if more else len(x) == size


def is_mapping(x) -> bool:
    return isinstance(x, collections.abc.Mapping)


def is_instance(call: Callable, x, kind: type, size: int, *names: str) -> Any:
    """Whether `kind(...)` with that many parts by position, and these by name, is for x."""
    if call(isinstance, x, kind) is not True:
        return False
    listed = () if kind in ITSELF else getattr(kind, "__match_args__", ())
    return all(call(hasattr, x, name) for name in (*listed[:size], *names))


def part(call: Callable, x, kind: type, at: int | str) -> Any:
    """What such a pattern compares with its part."""
    if at == 0 and kind in ITSELF:
        return x
    return call(getattr, x, kind.__match_args__[at] if isinstance(at, int) else at)
