"""Run programs written by other people through our passes, and say which come out right.

    python -m benchmarks.cases rewriting ../shared/cases/rewriting.py [--only NAME ...] [--smoke]

The file has CASES of a program, its arguments by size, what to differentiate by, and sometimes the
same fused by hand. The results are compared on small arguments, forward and gradient, under jit;
then plain, ours and hand run in turn on big ones (`--no-measure`: not), which are compared, too.
Exit status 0 means that every case is right. All run in one process beside this one; a case that
hangs or crashes ends it, and the next case gets another.
"""

import argparse
import json
import multiprocessing
import pathlib
import statistics
import sys
import time
import warnings

import jax

from benchmarks import ratios
from benchmarks.rewriting_report import mib
from benchmarks.rewriting_transform import ours
from benchmarks.smoke import add_argument, case_file, size
from benchmarks.suite import load

SLOW = 1 / 1.05  # what is this much slower than plain is listed


# -- one case


def judge(suite, case, options):
    """{verdicts: {what: "right" or why not}, measured: {forward: ..., gradient: ...}}"""
    record = {"tags": list(case.tags), "verdicts": {}, "measured": {}}
    verdicts = record["verdicts"]
    for what, check in checks(suite, case).items():
        verdicts[what] = attempt(check)
    if options.measure:
        for kind in kinds(case):
            big = lambda kind=kind: record["measured"].update({kind: measure(suite, case, kind)})
            why = attempt(big)
            if why != "right":
                verdicts[f"big {kind}"] = why
    return record


def attempt(check):
    """ "right", or why not: what check() returns or raises."""
    try:
        return check() or "right"
    except Exception as error:  # whatever tracing, our passes and XLA raise is a result here
        return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')[:160]}"


def checks(suite, case):
    """What is to be right on small arguments: {what: check that returns why not, or None}."""
    args = case.make("small")
    run = lambda fun: suite.summary(jax.jit(fun)(*args))
    plain = run(case.fn)
    reference = suite.REFERENCE.get(case.name, plain)

    def same(make, expected, tolerance):
        return lambda: None if suite.close(run(make()), expected, tolerance) else "wrong"

    found = {
        "plain": same(lambda: case.fn, reference, case.tol),
        "forward": same(lambda: ours(case.fn), reference, case.tol),
        "effects": lambda: effects(suite, case, args),
    }
    if case.grad is not None:
        expected = suite.summary(derivative(suite, case, case.fn)(*args))
        found["gradient"] = same(
            lambda: derivative(suite, case, ours(case.fn)), expected, 5 * case.tol
        )
    return found


def effects(suite, case, args):
    """A program that writes to the file's log does so as often as before."""
    log = getattr(suite, "_LOG", None)
    if log is None:
        return None
    counts = []
    for fun in (case.fn, ours(case.fn)):
        log.clear()
        jax.block_until_ready(jax.jit(fun)(*args))
        jax.effects_barrier()
        counts.append(len(log))
    return None if counts[0] == counts[1] else f"{counts[1]} effects instead of {counts[0]}"


def derivative(suite, case, fun):
    return jax.grad(suite.scal(fun), case.grad)


def kinds(case):
    return ["forward"] if case.grad is None else ["forward", "gradient"]


def measure(suite, case, kind, budget=size(1.5, 0.0)):
    """{variant: {ms, speed, temp}} on big arguments; raises when the results differ."""
    args = case.make("big")
    funs = {"plain": case.fn, "ours": ours(case.fn)}
    if case.hand is not None:
        funs["hand"] = case.hand
    if kind == "gradient":
        funs = {name: derivative(suite, case, fun) for name, fun in funs.items()}
    programs = {name: ratios.compiled(fun, args, False) for name, fun in funs.items()}
    got, expected = (suite.summary(programs[name].call()) for name in ("ours", "plain"))
    if not suite.close(got, expected, 5 * case.tol):
        raise ValueError("wrong")
    times = ratios.race({name: p.call for name, p in programs.items()}, budget)
    same = programs["ours"].text == programs["plain"].text
    return {
        name: {
            "ms": 1e3 * statistics.median(times[name]),
            "speed": 1.0 if name == "ours" and same else ratios.ratio(times["plain"], ts).median,
            "temp": programs[name].temp,
        }
        for name, ts in times.items()
    }


# -- all cases


def work(channel, names, options):
    """Judge the cases in turn, and tell of each when it begins and when it is done."""
    jax.config.update("jax_platforms", "cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        suite = load(options.file)
        for name in names:
            channel.send((name, None))
            try:
                record = judge(suite, suite.CASES[name], options)
            except Exception as error:  # the plain program, or its arguments
                record = {"verdicts": {"plain": f"{type(error).__name__}: {error}"}}
            channel.send((name, {"tags": [], "measured": {}} | record))
            jax.clear_caches()
    channel.send(None)


def run_all(names, options):
    """{name: record}"""
    records, waiting = {}, list(names)
    while waiting:
        ours, theirs = multiprocessing.Pipe(duplex=False)
        context = multiprocessing.get_context("spawn")
        process = context.Process(target=work, args=(theirs, waiting, options), daemon=True)
        process.start()
        theirs.close()
        for name, record in answers(ours, process, waiting[0], options.timeout):
            records[name] = record
            waiting.remove(name)
            tell(name, record, len(records), len(names))
        process.kill()
        process.join()
    return records


def answers(channel, process, current, timeout):
    """(name, record) of each case until the process is done, dies, or takes too long."""
    deadline = time.monotonic() + timeout
    failed = lambda why: (current, {"tags": [], "verdicts": {"process": why}, "measured": {}})
    while True:
        if not channel.poll(max(0.0, deadline - time.monotonic())):
            yield failed(f"more than {timeout:.0f} s")
            return
        try:
            message = channel.recv()
        except EOFError:
            process.join()
            yield failed(f"died ({process.exitcode})")
            return
        if message is None:
            return
        current, record = message
        deadline = time.monotonic() + timeout
        if record is not None:
            yield current, record


def right(record):
    return all(verdict == "right" for verdict in record["verdicts"].values())


def tell(name, record, done, of):
    print(f"[{done}/{of}] {name}: {'right' if right(record) else 'NOT RIGHT'}", flush=True)
    for what, verdict in record["verdicts"].items():
        if verdict != "right":
            print(f"    {what}: {verdict}")
    for kind, variants in record["measured"].items():
        plain = variants["plain"]
        text = f"    {kind:9}{plain['ms']:9.2f} ms, {mib(plain['temp']):>6} MiB"
        for variant in ("ours", "hand"):
            if found := variants.get(variant):
                text += f"   {variant} x {found['speed']:6.2f}, {mib(found['temp']):>6} MiB"
        print(text, flush=True)


def show(records):
    good = sum(map(right, records.values()))
    slow = [
        f"{name} {kind} x {variants['ours']['speed']:.2f}"
        for name, record in records.items()
        for kind, variants in record["measured"].items()
        if variants["ours"]["speed"] < SLOW
    ]
    speeds = [
        variants["ours"]["speed"]
        for record in records.values()
        for variants in record["measured"].values()
    ]
    print(f"\n{good} of {len(records)} right")
    if speeds:
        print(f"speed against plain: {statistics.geometric_mean(speeds):.2f} (geometric mean)")
    if slow:
        print(f"slower than plain: {', '.join(slow)}")


def main(argv):
    parser = argparse.ArgumentParser("benchmarks.cases rewriting")
    what = "a file of the form of shared/cases/rewriting.py"
    parser.add_argument("file", help=what, **case_file("rewriting.py"))
    parser.add_argument("--only", nargs="+", metavar="NAME")
    parser.add_argument("--measure", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--json", metavar="FILE", help="write every record")
    parser.add_argument("--timeout", type=float, default=300.0, metavar="SECONDS")
    add_argument(parser)
    options = parser.parse_args(argv)
    jax.config.update("jax_platforms", "cpu")
    suite = load(options.file)
    records = run_all([n for n in suite.CASES if not options.only or n in options.only], options)
    show(records)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(records, indent=1))
    return 0 if all(map(right, records.values())) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
