"""How many random programs every run of the tests tries; the rest are for `make soak`."""

import pytest


def batches(first: int, programs: int, size: int, quick: int) -> list:
    """The first seed of each batch of that size; those behind the first `quick` programs are slow.

    >>> [(batch.values[0], len(batch.marks)) for batch in batches(100, 60, 20, quick=40)]
    [(100, 0), (120, 0), (140, 1)]
    """
    starts = range(first, first + programs, size)
    return [
        pytest.param(start, marks=[pytest.mark.slow] if start >= first + quick else [])
        for start in starts
    ]
