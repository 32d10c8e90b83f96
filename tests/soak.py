"""Every law on many random programs: `python -m tests.soak [--programs 20000] [--minutes M]`.

Prints, per law, how many programs were tried and how many disagreed, with their seeds. Seeds go
round the laws, so that a run that is cut short has tried them all about equally often. Then come
`--python-programs 50000` for `autograph`: how many of those were right, with and without a note,
how many it refused, and the reasons; `--iterator-programs 20000` likewise, for what takes items of
iterators that change something; `--view-programs 20000`, for writes to parts of arrays;
`--everyday-programs 20000`, for dicts, sets, small types and what else users write every day;
`--slope-programs 20000` for gradients through them;
`--rewriting-programs 50000` for the passes;
`--selective-programs 20000` for `mal.jit`, and `--jitted-programs 20000` for what it does with
programs in Python; `--sequence-programs 20000` for `as_scan` and `incremental`. Where one count is
given, the others are 0: a failure runs again by
`python -m tests.soak --rewriting-programs 1 --from-seed 1000007`.

With MALLEABLE_LARGE_PROGRAMS=1 the arrays of `--rewriting-programs` are larger, and XLA compiles
as it does for users: some of its kernels are only for arrays of some size.
"""

import argparse
import collections
import functools
import gc
import multiprocessing
import os
import re
import sys
import time

from tests.flags import FAST

# JAX reads both variables when it is imported.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
if not os.environ.get("MALLEABLE_LARGE_PROGRAMS"):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FAST}"

import jax

from tests.generators.programs.programs import example_args, random_program
from tests.generators.python.everyday import random_everyday_program
from tests.generators.python.iterators import random_iterator_program
from tests.generators.python.programs import random_python_program
from tests.generators.python.views import random_view_program
from tests.laws import execution_laws, sequence_laws
from tests.laws.laws import LAWS, check
from tests.laws.python_laws import NOTED, SAME, is_wrong, try_seeds
from tests.laws.rewriting_laws import try_seed
from tests.laws.slopes import slope_laws

BATCH = 20


def try_laws(seeds):
    """[(law, seed, message)] of what disagreed among some programs, on every law."""
    failures = []
    for seed in seeds:
        for name, (law, options) in LAWS.items():
            try:
                program = random_program(seed, depth=2 + seed % 2, **options)
                check(law, program, example_args(seed), compiled=seed % 16 > 0)
            except Exception as error:  # a law may fail in any way; all of them are reported
                failures.append((name, seed, f"{type(error).__name__}: {error}"[:300]))
    return failures


def try_python(seeds, make=random_python_program):
    """[(name, seed, message)] of the Python programs that are not traced as they run, or noted."""
    found = try_seeds(seeds, make=make)
    names = {seed: "noted" if text.startswith(NOTED) else "refused" for seed, text in found.items()}
    return [
        ("autograph" if is_wrong(text) else names[seed], seed, text)
        for seed, text in found.items()
        if text != SAME
    ]


def try_slopes(seeds):
    """[(name, seed, message)] of the Python programs whose gradients are refused, or are wrong."""
    names = {slope_laws.KINK: "kink", slope_laws.REFUSED: "refused"}
    return [
        (names.get(text.partition(":")[0], "slopes"), seed, text)
        for seed, text in slope_laws.try_seeds(seeds).items()
        if text != SAME
    ]


def try_rewriting(seeds):
    """[("rewriting", seed, message)] of the array programs that some pass changes."""
    found = [(seed, wrong) for seed in seeds for wrong in try_seed(seed, shrink=True)]
    return [("rewriting", seed, f"{passes}: {text}") for seed, (passes, text) in found]


def try_selective(seeds):
    """[("selective", seed, message)] of the programs that `mal.jit` changes."""
    found = execution_laws.try_seeds(seeds, shrink=True)
    return [
        ("selective", seed, text) for seed, text in found.items() if text != execution_laws.SAME
    ]


def try_jitted(seeds):
    """[("jitted", seed, message)] of the programs in Python that `mal.jit` changes."""
    found = execution_laws.try_seeds(seeds, shrink=True, python=True)
    return [("jitted", seed, text) for seed, text in found.items() if text != execution_laws.SAME]


def try_sequences(seeds):
    """[(name, seed, message)] of the programs on sequences that are refused, or are not right."""
    names = {sequence_laws.REFUSED: "refused", sequence_laws.MISSED: "missed"}
    found = sequence_laws.try_seeds(seeds)
    return [
        (names.get(text, "sequences"), seed, text)
        for seed, text in found.items()
        if text != sequence_laws.RIGHT
    ]


# what is no mismatch, for it is said
LOUD = {"noted": "right, with a note", "refused": "refused with a TransformError"}
MISSED = {"missed": "refused, though no later row counts"}
KINK = {"kink": "plain Python raises, or has no slope"}
SAID = LOUD | MISSED | KINK

# option -> (how to try some seeds, how many by default)
KINDS = {
    "programs": (try_laws, 20_000),
    "python_programs": (try_python, 50_000),
    "iterator_programs": (functools.partial(try_python, make=random_iterator_program), 20_000),
    "view_programs": (functools.partial(try_python, make=random_view_program), 20_000),
    "everyday_programs": (functools.partial(try_python, make=random_everyday_program), 20_000),
    "slope_programs": (try_slopes, 20_000),
    "rewriting_programs": (try_rewriting, 50_000),
    "selective_programs": (try_selective, 20_000),
    "jitted_programs": (try_jitted, 20_000),
    "sequence_programs": (try_sequences, 20_000),
}


def try_batch(batch):
    kind, seeds = batch
    found = KINDS[kind][0](seeds)
    jax.clear_caches()
    return len(seeds), found


def print_loud(tried, found, said):
    """How many programs were right, noted and refused, and the most frequent reasons."""
    counts = collections.Counter(name for name, _, _ in found)
    counts["right, without a note"] = tried - counts.total()
    for name in ("right, without a note", *said):
        share = counts[name] / max(tried, 1)
        print(f"  {said.get(name, name):<46} {counts[name]:>7} programs  {share:>6.1%}")
    reasons = collections.Counter(
        re.sub(r"`[^`]*`|'[^']*'|\d+", "_", text.partition("\n")[0].partition(": ")[2])
        for name, _, text in found
        if name == "refused"
    )
    for reason, times in reasons.most_common(8):
        print(f"    {times:>5}  {reason[:90]}")


def collect_seldom():
    """Garbage is looked for less often, and not among what was imported: 7% of the time."""
    gc.freeze()
    gc.set_threshold(200_000, 20, 100)


def soak(kind, count, options, deadline):
    """(how many programs were tried, what was found in all batches)."""
    begun, tried, found = time.monotonic(), 0, []
    stop = options.start + count
    firsts = range(options.start, stop, BATCH)
    batches = [(kind, range(first, min(first + BATCH, stop))) for first in firsts]
    if not batches:
        return 0, []
    # workers are replaced now and then: compiled programs stay in memory for good
    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool(options.processes, collect_seldom, maxtasksperchild=25) as pool:
        for number, some in pool.imap_unordered(try_batch, batches):
            tried, found = tried + number, found + some
            minutes = (time.monotonic() - begun) / 60
            wrong = sum(name not in SAID for name, _, _ in found)
            line = f"{tried} programs, {wrong} mismatches, {minutes:.1f} min"
            for name, seed, message in some:
                if name not in SAID:
                    print(f"{name}, seed {seed}: {message.partition(chr(10))[0]}")
            print(line, end="\r" if sys.stdout.isatty() else "\n", flush=True)
            if time.monotonic() > deadline:
                pool.terminate()
                break
    return tried, found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for kind in KINDS:
        parser.add_argument(f"--{kind.replace('_', '-')}", type=int)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--start", "--from-seed", type=int, default=1_000_000, help="first seed")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args()

    counts = {kind: getattr(options, kind) for kind in KINDS}
    if set(counts.values()) == {None}:
        counts = {kind: default for kind, (_, default) in KINDS.items()}
    deadline = time.monotonic() + 60 * options.minutes
    ran = {kind: soak(kind, count or 0, options, deadline) for kind, count in counts.items()}

    print(f"\n\nJAX {jax.__version__}, Python {sys.version.split()[0]}\n")
    tables = {
        "programs": LAWS,
        "python_programs": ["autograph"],
        "iterator_programs": ["autograph"],
        "view_programs": ["autograph"],
        "everyday_programs": ["autograph"],
        "slope_programs": ["slopes"],
        "rewriting_programs": ["rewriting"],
        "selective_programs": ["selective"],
        "jitted_programs": ["jitted"],
        "sequence_programs": ["sequences"],
    }
    failures = []
    for kind, (tried, found) in ran.items():
        failures += [failure for failure in found if failure[0] not in SAID]
        for name in tables[kind] if tried else ():
            bad = [seed for law, seed, _ in found if law == name]
            print(f"  {name:<46} {tried:>7} programs  {len(bad):>3} mismatches  {bad[:5] or ''}")
    for kind in ("python_programs", "iterator_programs", "view_programs", "everyday_programs"):
        if counts[kind]:
            print_loud(*ran[kind], LOUD)
    if counts["sequence_programs"]:
        print_loud(*ran["sequence_programs"], {"refused": LOUD["refused"], **MISSED})
    if counts["slope_programs"]:
        print_loud(*ran["slope_programs"], {"refused": LOUD["refused"], **KINK})

    for name, seed, message in failures[:20]:
        print(f"\n{name}, seed {seed}: {message}")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
