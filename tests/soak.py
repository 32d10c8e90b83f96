"""Every law on many random programs: `python -m tests.soak [--programs 20000] [--minutes M]`.

Prints, per law, how many programs were tried and how many disagreed, with their seeds. Seeds go
round the laws, so that a run that is cut short has tried them all about equally often.
"""

import argparse
import multiprocessing
import os
import sys
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = (  # programs run once: compile them fast, not well
    os.environ.get("XLA_FLAGS", "") + " --xla_backend_optimization_level=0"
)

import jax

from tests.laws.laws import LAWS, check
from tests.programs import example_args, random_program

BATCH = 20


def try_batch(first):
    """[(law, seed, message)] of what disagreed among the next programs, on every law."""
    failures = []
    for seed in range(first, first + BATCH):
        for name, (law, options) in LAWS.items():
            try:
                program = random_program(seed, depth=2 + seed % 2, **options)
                check(law, program, example_args(seed), compiled=seed % 16 > 0)
            except Exception as error:  # a law may fail in any way; all of them are reported
                failures.append((name, seed, f"{type(error).__name__}: {error}"[:300]))
    jax.clear_caches()
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=20_000)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--start", type=int, default=1_000_000, help="the first seed")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args()

    begun, tried, failures = time.monotonic(), 0, []
    firsts = range(options.start, options.start + options.programs, BATCH)
    # workers are replaced now and then: compiled programs stay in memory for good
    with multiprocessing.get_context("spawn").Pool(options.processes, maxtasksperchild=10) as pool:
        for found in pool.imap_unordered(try_batch, firsts):
            tried, failures = tried + BATCH, failures + found
            minutes = (time.monotonic() - begun) / 60
            line = f"{tried} programs, {len(failures)} mismatches, {minutes:.1f} min"
            print(line, end="\r" if sys.stdout.isatty() else "\n", flush=True)
            if minutes > options.minutes:
                pool.terminate()
                break

    print(f"\n\nJAX {jax.__version__}, Python {sys.version.split()[0]}\n")
    for name in LAWS:
        bad = [seed for law, seed, _ in failures if law == name]
        print(f"  {name:<46} {tried:>7} programs  {len(bad):>3} mismatches  {bad[:5] or ''}")
    for name, seed, message in failures[:20]:
        print(f"\n{name}, seed {seed}: {message}")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
