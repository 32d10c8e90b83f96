"""The rows of a chapter's report: what came out, what should have, and whether they agree."""

import time
from typing import NamedTuple

import jax
import numpy as np
from rich.table import Table


class Row(NamedTuple):
    """One figure of the report: what it is, what came out, what should have, whether they agree."""

    what: str
    got: str
    expected: str
    ok: bool


def faster(what, ours, theirs, whose, most=1.0):
    """A row about two times in seconds; ours should be below `most` times theirs."""
    times = theirs / ours
    got = f"{1e3 * ours:.1f} ms, {times:.{1 if times < 10 else 0}f} x as fast"
    return Row(what, got, f"{whose}: {1e3 * theirs:.1f} ms", ours < most * theirs)


def close(what, got, expected, most=1e-4):
    """A row about two pytrees of floats that should differ by rounding only."""
    pairs = zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True)
    off = np.max([np.abs(np.subtract(a, b)).max() / np.abs(b).max() for a, b in pairs])
    return Row(what, f"off by {off:.1g}", f"below {most:.0e}".replace("e-0", "e-"), off < most)


def equal(what, got, expected):
    """A row about two arrays that should be equal; it shows their sums."""
    return Row(what, f"{np.sum(got):,}", f"{np.sum(expected):,}", np.array_equal(got, expected))


def seconds(run, *args):
    began = time.perf_counter()
    jax.block_until_ready(run(*args))
    return time.perf_counter() - began


def report(title, rows):
    """The rows of a chapter as a table."""
    table = Table("what", "measured", "expected", "", title=title, title_justify="left")
    for row in rows:
        table.add_row(row.what, row.got, row.expected, "[green]ok" if row.ok else "[red]differs")
    return table
