"""What a call costs: `mal.jit` against `jax.jit`, in µs, and what a break adds.

    python -m benchmarks.dispatch [--rounds 15] [--json] [--smoke]

Functions of 1, 10 and 100 arguments do almost nothing, so that a call is all dispatch. With breaks
they ask `if float(x.sum()) > 0` so many times; `hand` is the same in jitted pieces, `host` is ours
where each question is asked in Python. All are called in turn, in one process; figures are medians
of rounds. Exit status 0 means that every gate passes:
without breaks within 1.5 x of `jax.jit`, and at most 12 µs per break.
"""

import argparse
import json
import statistics
import sys
import time

import jax
import jax.numpy as jnp

import malleable as mal
from benchmarks.smoke import SMOKE, add_argument, size

ARGUMENTS = size((1, 10, 100), (1,))
BREAKS = (0, 1, 5)
MOST_TIMES, MOST_BREAK = 1.5, 12.0  # of jax.jit; µs
CALLS = size(200, 2)  # of one measurement


# ---------------------------------------------------------------- functions of many arguments


def none(*xs):
    return xs[0] * 2.0 + xs[-1]


def one(*xs):
    x = xs[0]
    if float(x.sum()) > 0:
        x = x * 2.0 + xs[-1]
    return x


def five(*xs):
    x = xs[0]
    if float(x.sum()) > 0:
        x = x * 2.0 + xs[-1]
    if float(x.sum()) > 0:
        x = x * 0.5 + xs[-1]
    if float(x.sum()) > 0:
        x = x * 2.0 - xs[-1]
    if float(x.sum()) > 0:
        x = x * 0.5 - xs[-1]
    if float(x.sum()) > 0:
        x = x + xs[-1]
    return x


PLAIN = {0: none, 1: one, 5: five}


@jax.jit
def total(x):
    return x.sum()


@jax.jit
def stepped(x, y):
    x = x * 2.0 + y
    return x, x.sum()


def by_hand(breaks):
    """What a careful user writes: a jitted function up to each break."""

    def run(*xs):
        x, s = xs[0], total(xs[0])
        for _ in range(breaks):
            if float(s) > 0:
                x, s = stepped(x, xs[-1])
        return x

    return jax.jit(none) if breaks == 0 else run


# ---------------------------------------------------------------- times


def race(calls, rounds):
    """{name: [µs of one call in each round]}, each in turn."""
    for call in calls.values():
        for _ in range(20):
            jax.block_until_ready(call())
    times = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(CALLS):
                out = call()
            jax.block_until_ready(out)
            times[name].append(1e6 * (time.perf_counter() - start) / CALLS)
    return times


def measure(arguments, rounds):
    """{breaks: {name: µs of each round}} of functions of so many arguments, all in one race."""
    args = [jnp.full(8, 0.25 + k) for k in range(arguments)]
    calls = {}
    for breaks, fun in PLAIN.items():
        variants = {"eager": fun, "hand": by_hand(breaks), "ours": mal.jit(fun)}
        variants["host"] = mal.jit(fun, control_flow="host")
        for name, variant in variants.items():
            calls[breaks, name] = lambda variant=variant: variant(*args)
    times = race(calls, rounds)
    return {b: {name: ts for (k, name), ts in times.items() if k == b} for b in BREAKS}


def figures(times):
    """{what: number} of the times of one number of arguments."""
    hand, ours = times[0]["hand"], times[0]["ours"]
    found = {"times_jit": statistics.median(b / a for a, b in zip(hand, ours))}
    for breaks in BREAKS[1:]:
        for name in ("hand", "ours", "host"):
            more = [
                (b - a) / breaks for a, b in zip(times[0][name], times[breaks][name], strict=True)
            ]
            found[f"{name}_per_break_{breaks}"] = statistics.median(more)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=size(15, 1))
    parser.add_argument("--json", action="store_true", help="the figures, as the last line")
    add_argument(parser)
    options = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    every, passed = {}, True
    print("µs per call; medians. `hand` without breaks is jax.jit.\n")
    print(f"{'arguments':>9} {'breaks':>6} {'eager':>9} {'hand':>9} {'ours':>9} {'host':>9}   gate")
    for arguments in ARGUMENTS:
        times = measure(arguments, options.rounds)
        every[arguments] = found = figures(times)
        for breaks, row in times.items():
            cells = "".join(f" {statistics.median(ts):9.1f}" for ts in row.values())
            if breaks == 0:
                good = found["times_jit"] <= MOST_TIMES
                text = f"{found['times_jit']:.2f} x jax.jit <= {MOST_TIMES}"
            else:
                each = found[f"ours_per_break_{breaks}"]
                good = each <= MOST_BREAK
                text = f"{each:.1f} µs per break <= {MOST_BREAK:.0f}"
                hand, host = (found[f"{name}_per_break_{breaks}"] for name in ("hand", "host"))
                text += f" (hand {hand:.1f}, host {host:.1f})"
            passed &= good
            print(f"{arguments:9} {breaks:6}{cells}   {'PASS' if good else 'FAIL'}  {text}")
    if options.json:
        print(json.dumps(every))
    return 0 if passed or SMOKE else 1


if __name__ == "__main__":
    sys.exit(main())
