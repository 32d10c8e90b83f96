"""Time things side by side, and print what came out."""

import json
import statistics
import sys
import time

from benchmarks.smoke import size


def interleaved(cases, rounds=7):
    """{name: median seconds} of {name: function}, each run in turn, A B A B."""
    times = {name: [] for name in cases}
    for fun in cases.values():
        fun()
    for _ in range(size(rounds, 1)):
        for name, fun in cases.items():
            start = time.process_time()
            fun()
            times[name].append(time.process_time() - start)
    return {name: statistics.median(ts) for name, ts in times.items()}


def report(title, rows, figures):
    """Print a table of (what, figure) rows; with --json, the figures as the last line."""
    table(title, rows)
    if "--json" in sys.argv:
        print(json.dumps(figures))


def table(title, rows):
    print(f"\n{title}\n")
    width = max(len(what) for what, _ in rows)
    for what, figure in rows:
        print(f"  {what:<{width}}  {figure}")
