"""Two sequences side by side: which item of one belongs to which of the other."""

import bisect
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from difflib import SequenceMatcher
from typing import Any, TypeVar

T = TypeVar("T")
_MANY = 20_000_000  # comparisons, at worst, from which on equal items are paired in order


def matched(
    a: Sequence[T], b: Sequence[T], keyings: Sequence[Callable[[T], Any]]
) -> Iterator[tuple[T | None, T | None]]:
    """Pairs of items in order, by the first key; those between, by the next; then single ones.

    >>> list(matched("abcd", "abd", [str]))
    [('a', 'a'), ('b', 'b'), ('c', None), ('d', 'd')]
    """
    if not (a and b and keyings):
        yield from ((x, None) for x in a)
        yield from ((None, x) for x in b)
        return
    at = end = 0
    for i, j in [*_anchors(list(map(keyings[0], a)), list(map(keyings[0], b))), (len(a), len(b))]:
        yield from matched(a[at:i], b[end:j], keyings[1:])
        if i < len(a):
            yield a[i], b[j]
        at, end = i + 1, j + 1


def _anchors(a: list, b: list) -> list[tuple[int, int]]:
    """Where equal keys meet, in order."""
    least = min(len(a), len(b))
    head = next((i for i in range(least) if a[i] != b[i]), least)
    tail = next((i for i in range(least - head) if a[-1 - i] != b[-1 - i]), least - head)
    pairs = [(i, i) for i in range(head)]
    x, y = a[head : len(a) - tail], b[head : len(b) - tail]
    here, there = Counter(x), Counter(y)
    if sum(n * there[key] for key, n in here.items()) * min(len(x), len(y)) > _MANY:
        found = _in_order(_numbered(x), _numbered(y))
    else:
        blocks = SequenceMatcher(None, x, y, False).get_matching_blocks()
        found = [(i + k, j + k) for i, j, n in blocks for k in range(n)]
    pairs += [(head + i, head + j) for i, j in found]
    return pairs + [(len(a) - k, len(b) - k) for k in range(tail, 0, -1)]


def _in_order(x: list, y: list) -> list[tuple[int, int]]:
    """Where two lists without repetitions meet, as often as can be without crossing.

    The longest increasing subsequence by patience sorting: Fredman, "On computing the length of
    longest increasing subsequences", Discrete Mathematics 11(1), 1975.
    """
    where = {key: j for j, key in enumerate(y)}
    pairs = [(i, where[key]) for i, key in enumerate(x) if key in where]
    ends: list[int] = []  # the smallest last j of a chain of each length
    last: list[int] = []  # which pair that is
    before: list[int] = []
    for n, (_, j) in enumerate(pairs):
        at = bisect.bisect_left(ends, j)
        ends[at : at + 1], last[at : at + 1] = [j], [n]
        before.append(last[at - 1] if at else -1)
    found, n = [], last[-1] if last else -1
    while n >= 0:
        found.append(pairs[n])
        n = before[n]
    return found[::-1]


def _numbered(keys: list) -> list:
    """Each key with how often it was there before."""
    seen: Counter = Counter()
    found = []
    for key in keys:
        found.append((key, seen[key]))
        seen[key] += 1
    return found
