"""Every law on many random programs: `python -m tests.soak [--programs 20000] [--minutes M]`.

Prints, per law, how many programs were tried and how many disagreed, with their seeds. Seeds go
round the laws, so that a run that is cut short has tried them all about equally often. Then come
`--python-programs 50000` for `autograph`, and how many of those it refused.
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
from tests.laws.python_laws import SAME, is_wrong, try_seeds
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


def try_python_batch(first):
    """[(name, seed, message)] of the next Python programs that are not traced as they run."""
    found = try_seeds(range(first, first + BATCH))
    jax.clear_caches()
    return [
        ("autograph" if is_wrong(text) else "refused", seed, text)
        for seed, text in found.items()
        if text != SAME
    ]


def soak(try_some, count, options, deadline):
    """(how many programs were tried, what `try_some` found in all batches)."""
    begun, tried, found = time.monotonic(), 0, []
    firsts = range(options.start, options.start + count, BATCH)
    # workers are replaced now and then: compiled programs stay in memory for good
    with multiprocessing.get_context("spawn").Pool(options.processes, maxtasksperchild=10) as pool:
        for some in pool.imap_unordered(try_some, firsts):
            tried, found = tried + BATCH, found + some
            minutes = (time.monotonic() - begun) / 60
            wrong = sum(name != "refused" for name, _, _ in found)
            line = f"{tried} programs, {wrong} mismatches, {minutes:.1f} min"
            print(line, end="\r" if sys.stdout.isatty() else "\n", flush=True)
            if time.monotonic() > deadline:
                pool.terminate()
                break
    return tried, found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=20_000)
    parser.add_argument("--python-programs", type=int, default=50_000)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--start", type=int, default=1_000_000, help="the first seed")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args()

    deadline = time.monotonic() + 60 * options.minutes
    tried, failures = soak(try_batch, options.programs, options, deadline)
    python, found = soak(try_python_batch, options.python_programs, options, deadline)

    print(f"\n\nJAX {jax.__version__}, Python {sys.version.split()[0]}\n")
    rows = [(name, tried, failures) for name in LAWS]
    for name, count, outcomes in [*rows, ("autograph", python, found)]:
        bad = [seed for law, seed, _ in outcomes if law == name]
        print(f"  {name:<46} {count:>7} programs  {len(bad):>3} mismatches  {bad[:5] or ''}")
    refused = sum(name == "refused" for name, _, _ in found)
    print(f"  {'refused with a TransformError':<46} {refused:>7} programs")

    failures += [failure for failure in found if failure[0] == "autograph"]
    for name, seed, message in failures[:20]:
        print(f"\n{name}, seed {seed}: {message}")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
