"""Programs that compute the same, against each other: how much faster, how much memory.

Speed is the median of the ratios of rounds: in a round each program runs once, in one process, so
that whatever else the machine does meets all of them; who begins changes with the round. A program
frees its memory after its result is ready; so each turn begins with a call that is not timed, or
the next one would pay for it.
Memory is what XLA sets aside for a call (`temp`). Kernels of YNN in XLA:CPU take more than that
and do not say so: `shown` is the same with these switched off. `resident` asks the kernel instead.
"""

import ctypes
import math
import pathlib
import re
import resource
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

NO_YNN = {"xla_cpu_experimental_ynn_fusion_type": ""}
SHORTEST = 0.005  # seconds of one measurement: what is shorter runs several times
LONG = 0.5  # seconds; what is longer needs no call to settle
LEAST, MOST = 3, 60  # rounds


class Program(NamedTuple):
    call: Callable[[], Any]
    temp: int  # bytes
    shown: int | None  # bytes, no kernel hiding any; None where it does not compile so
    text: tuple  # the instructions, names and places apart


class Ratio(NamedTuple):
    """The median of some ratios, and an interval that contains the true one 19 times of 20."""

    median: float
    low: float
    high: float


def compiled(fun, args, look_inside=True):
    """fun(*args) as a Program; raises what tracing and XLA raise."""
    lowered = jax.jit(lambda *args: fun(*args)).lower(*args)
    program = lowered.compile()
    shown = temp_without_ynn(lowered) if look_inside and jax.default_backend() == "cpu" else None
    return Program(
        lambda: jax.block_until_ready(program(*args)),
        program.memory_analysis().temp_size_in_bytes,
        shown,
        instructions(program.as_text()),
    )


def temp_without_ynn(lowered):
    try:
        program = lowered.compile(compiler_options=NO_YNN)
    except jax.errors.JaxRuntimeError:  # an option that this XLA does not have
        return None
    return program.memory_analysis().temp_size_in_bytes


def instructions(text):
    """The instructions of an optimised program, without names and places."""
    text = re.sub(r", metadata=\{[^}]*\}", "", text)
    return tuple(sorted(re.sub(r"%[\w.-]+", "%", x) for x in text.splitlines() if " = " in x))


# ---------------------------------------------------------------- time


def race(calls, budget, decided=lambda times: False, clock=time.perf_counter):
    """{name: [seconds of one call in each round, by the clock]} of {name: call}.

    Ends after `budget` seconds, or as soon as decided(times), but not before three rounds, unless
    a round takes longer than the budget: then one is enough.
    """
    first = {name: seconds(call) for name, call in calls.items()}
    repeats = {name: max(1, math.ceil(SHORTEST / max(s, 1e-6))) for name, s in first.items()}
    times, start = {name: [] for name in calls}, time.perf_counter()
    names = list(calls)
    for n in range(1, MOST + 1):
        names = names[1:] + names[:1]  # each comes after each of the others
        for name in names:
            if first[name] < LONG:
                calls[name]()
            times[name].append(seconds(calls[name], repeats[name], clock))
        spent = time.perf_counter() - start
        if spent > budget if n >= LEAST else spent > 2 * budget:
            break
        if n >= LEAST and decided(times):
            break
    return times


def seconds(call, repeats=1, clock=time.perf_counter):
    start = clock()
    for _ in range(repeats):
        call()
    return (clock() - start) / repeats


def ratio(slow, fast):
    """The Ratio of two lists of times of the same rounds: how many times faster is `fast`?

    The interval is between two order statistics: Conover, "Practical Nonparametric Statistics",
    3rd edition, 3.2; for fewer than 6 rounds it is all of them.
    """
    ratios = sorted(a / b for a, b in zip(slow, fast, strict=True))
    n = len(ratios)
    skip = max(0, math.floor((n - 1.96 * math.sqrt(n)) / 2)) if n >= 6 else 0
    return Ratio(statistics.median(ratios), ratios[skip], ratios[n - 1 - skip])


# ---------------------------------------------------------------- memory of the process


def resident(call):
    """Bytes by which the memory of this process grew, at most, during call(). Linux only."""
    ctypes.CDLL(None).malloc_trim(0)  # what compiling left is not there to be used again
    before = status("VmRSS")
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew: proc(5)
    call()
    return max(0, peak() - before)


def peak():
    return max(status("VmHWM"), 0) or 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def status(field):
    """A field of /proc/self/status in bytes."""
    text = pathlib.Path("/proc/self/status").read_text()
    return 1024 * int(re.search(rf"{field}:\s*(\d+)", text)[1])
