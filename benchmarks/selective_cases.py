"""Run programs that `jax.jit` rejects through `mal.jit`: who agrees, and how fast is who.

    python -m benchmarks.cases selective ../shared/cases/selective.py [--only NAME ...] [--docs]
    python -m benchmarks.cases selective benchmarks/selective_programs.py [--smoke]

The file has PROGRAMS, each written as a user would (`eager`), in NumPy, and partitioned by hand.
Every variant of a program has a process of its own, so that nobody compiles for another; they are
called in turn, so that whatever else the machine does meets all of them:

    first    one call in a new process
    stream   inputs never seen: sizes, branches and trip counts vary; compiling is in the time
    steady   the same input again and again, as a median of rounds

Captured is log(eager / ours) / log(eager / hand), from geometric means for all programs together: 1
is as fast as by hand, 0 is eager. Exit status 0 means: ours is what eager gives, printed lines
included, and every gate passes.
"""

import argparse
import contextlib
import importlib
import io
import json
import math
import multiprocessing
import os
import pathlib
import re
import statistics
import sys
import time
import warnings

import jax
import numpy as np

from benchmarks.selective_report import show, tell, write_docs
from benchmarks.smoke import SMOKE, add_argument, case_file, size
from benchmarks.suite import load

VARIANTS = ("eager", "numpy", "hand", "ours")
ALSO_COMPARED = size((1000, 1001), (1000,))  # seeds of inputs that are compared, not measured
SHORTEST = 0.02  # seconds of one measurement: what is shorter runs several times
LONG = 0.5  # seconds; what is longer needs no call to settle
ROUNDS = size((5, 40), (1, 1))  # at least, at most
THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"


# ---------------------------------------------------------------- one variant, in its own process


def work(channel, file, name, variant, candidate, clock):
    """Answer orders (what, *arguments) with ("right", answer) or ("error", why)."""
    jax.config.update("jax_platforms", "cpu")
    warnings.simplefilter("ignore")
    suite = load(file)
    program = suite.PROGRAMS[name]
    fun = named(candidate)(program.eager) if variant == "ours" else getattr(program, variant)
    now, kept = CLOCKS[clock], {}

    def arguments(seed):
        args = program.make(seed)
        return suite.to_np(args) if variant == "numpy" else jax.block_until_ready(args)

    def call(seed):
        """One call on new arguments: its seconds, what it returns and what it prints."""
        args = arguments(seed)
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            start = now()
            out = suite.block(fun(*args))
            seconds = now() - start
        return seconds, suite.to_np(out), printed.getvalue()

    def repeat(seed):
        """Seconds of a call on arguments that were there before."""
        args = kept[seed] if seed in kept else kept.setdefault(seed, arguments(seed))
        with contextlib.redirect_stdout(io.StringIO()):
            start = now()
            suite.block(fun(*args))
            first = now() - start
            if first > LONG:
                return first
            repeats = max(1, math.ceil(SHORTEST / max(first, 1e-6)))
            start = now()
            for _ in range(repeats):
                suite.block(fun(*args))
            return (now() - start) / repeats

    orders = {"call": call, "repeat": repeat, "jit": lambda: rejection(program)}
    channel.send(("right", None))
    while (order := channel.recv()) is not None:
        try:
            channel.send(("right", orders[order[0]](*order[1:])))
        except Exception as error:  # whatever a program, JAX or we raise is a result here
            line = next(iter(str(error).splitlines()), "")[:200]
            channel.send(("error", f"{type(error).__name__}: {line}"))


def named(candidate):
    """The function that "module:name" names."""
    module, _, name = candidate.partition(":")
    return getattr(importlib.import_module(module), name)


def rejection(program):
    """The name of the error that `jax.jit` raises, Python numbers being static; None for none."""
    args = program.make(0)
    number = lambda v: isinstance(v, int | float) and not isinstance(v, np.generic)
    static = tuple(i for i, v in enumerate(args) if number(v))
    try:
        jax.jit(program.eager, static_argnums=static).trace(*args)
    except Exception as error:  # any refusal is the answer
        return type(error).__name__
    return None


class Variant:
    """A process that runs one variant of one program."""

    def __init__(self, options, name, variant):
        context = multiprocessing.get_context("spawn")
        self.channel, theirs = context.Pipe()
        args = (theirs, options.file, name, variant, options.candidate, options.clock)
        self.process = context.Process(target=work, args=args, daemon=True)
        self.process.start()
        theirs.close()
        self.timeout, self.why = options.timeout, None
        self.ask(None)

    def ask(self, *order):
        """The answer to an order; None once something went wrong, and `why` says what."""
        if self.why:
            return None
        try:
            if order != (None,):
                self.channel.send(order)
            if not self.channel.poll(self.timeout):
                self.why = f"more than {self.timeout:.0f} s"
                return None
            verdict, answer = self.channel.recv()
        except (EOFError, BrokenPipeError):
            self.process.join()
            self.why = f"died ({self.process.exitcode})"
            return None
        if verdict == "error":
            self.why = answer
            return None
        return answer

    def end(self):
        self.process.kill()
        self.process.join()


# ---------------------------------------------------------------- one program


def judge(suite, name, options):
    """{first, stream, steady: {variant: seconds}, wrong: {variant: why}, jit: how it refuses}"""
    program = suite.PROGRAMS[name]
    running = {v: Variant(options, name, v) for v in VARIANTS if v in options.variants}
    wrong, calls = {}, {v: [] for v in running}

    def compare(seed):
        answers = {v: process.ask("call", seed) for v, process in running.items()}
        for variant, answer in answers.items():
            calls[variant].append(answer[0] if answer else math.nan)
            if variant not in wrong and (
                why := running[variant].why or differs(suite, program, answer, answers["eager"])
            ):
                wrong[variant] = f"seed {seed}: {why}"

    try:
        count = options.warm + options.stream if options.measure else 1
        for seed in range(count):
            compare(seed)
        found = {
            "first": {v: seconds[0] for v, seconds in calls.items()},
            "stream": {v: mean(seconds[options.warm :]) for v, seconds in calls.items()},
        }
        if options.measure:
            found["steady"] = steady(running, options.budget)
        else:
            found = {}
        for seed in (*ALSO_COMPARED, 0):
            compare(seed)
        jit = running["eager"].ask("jit")
    finally:
        for process in running.values():
            process.end()
    return {"why": program.why, "jit": jit, "wrong": wrong, **found}


def steady(running, budget):
    """{variant: median seconds}, scaled so that ratios to eager are medians of those of rounds."""
    rounds = []
    for process in running.values():
        process.ask("repeat", 0)
    start = time.monotonic()
    while len(rounds) < ROUNDS[1] and (
        len(rounds) < ROUNDS[0] or time.monotonic() - start < budget
    ):
        rounds.append({v: process.ask("repeat", 0) or math.nan for v, process in running.items()})
    eager = statistics.median(r["eager"] for r in rounds)
    return {v: eager * statistics.median(r[v] / r["eager"] for r in rounds) for v in running}


def mean(numbers):
    return statistics.fmean(numbers) if numbers else math.nan


def differs(suite, program, answer, expected):
    """Why an answer (seconds, result, printed) is not what eager gives; "" if it is."""
    if answer is None or expected is None:
        return "no result" if answer is None else "eager has no result"
    if not suite.agree(program, expected[1], answer[1]):
        return "another result"
    texts, wanted = (re.split(NUMBER, x[2]) for x in (answer, expected))
    numbers, expected_numbers = (
        [float(n) for n in re.findall(NUMBER, x[2])] for x in (answer, expected)
    )
    if texts != wanted or not np.allclose(numbers, expected_numbers, program.tol, program.tol):
        return "prints something else"
    return ""


# ---------------------------------------------------------------- all programs


def main(argv):
    parser = argparse.ArgumentParser("benchmarks.cases selective")
    what = "a file of the form of shared/cases/selective.py"
    parser.add_argument("file", help=what, **case_file("../selective_programs.py"))
    parser.add_argument("--only", nargs="+", metavar="NAME")
    parser.add_argument("--measure", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=VARIANTS)
    parser.add_argument("--candidate", default="malleable:jit", metavar="MODULE:NAME")
    parser.add_argument("--warm", type=int, default=1, help="inputs before the stream is timed")
    parser.add_argument("--stream", type=int, default=size(4, 1), help="inputs of the stream")
    parser.add_argument(
        "--budget", type=float, default=size(6.0, 0.0), help="seconds of steady, per program"
    )
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds of any one call")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: steadier when busy")
    parser.add_argument("--json", metavar="FILE", help="write every record")
    parser.add_argument("--docs", action="store_true", help="the table, into docs/benchmarks.md")
    add_argument(parser)
    options = parser.parse_args(argv)
    options.variants = {"eager", *options.variants}
    os.environ |= {"JAX_PLATFORMS": "cpu"} | dict.fromkeys(THREADS, "1")  # of NumPy, for children
    jax.config.update("jax_platforms", "cpu")
    suite = load(options.file)
    names = [n for n in suite.PROGRAMS if not options.only or n in options.only]
    names = size(names, names[:1])
    records = {}
    for name in names:
        records[name] = judge(suite, name, options)
        tell(name, records[name], len(records), len(names))
    passed = show(records)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(records, indent=1))
    if options.docs:
        write_docs(records, pathlib.Path(options.file).stem)
    right = not any(record["wrong"] for record in records.values())
    return 0 if passed or (SMOKE and right) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
