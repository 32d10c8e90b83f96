"""What can be reached from something, step by step."""

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

T = TypeVar("T", bound=Hashable)


def reach(start: Iterable[T], following: Callable[[T], Iterable[T]]) -> dict[T, None]:
    """Everything at the end of any number of steps from `start`; following(x): one step from x.

    A set that keeps an order: what is found first is first.

    >>> [*reach([12], lambda n: [n // 2] if n % 2 == 0 else [])]
    [12, 6, 3]
    """
    found = dict.fromkeys(start)
    work = list(found)
    while work:
        for x in following(work.pop()):
            if x not in found:
                found[x] = None
                work.append(x)
    return found
