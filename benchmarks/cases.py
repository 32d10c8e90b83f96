"""Run functions written by other people through a front end, and say which come out right.

    python -m benchmarks.cases frontend ../shared/cases/frontend.py [--only NAME ..] [--grad]
    python -m benchmarks.cases rewriting ../shared/cases/rewriting.py    # see rewriting_cases.py
    python -m benchmarks.cases selective ../shared/cases/selective.py    # see selective_cases.py
    python -m benchmarks.cases frontend --smoke                          # on two small cases

The file names unmodified functions of installed packages and how to call them. Each is called on
NumPy, then converted under `jax.jit`, in 64 bits on the CPU, each in its own process. Exit status
0 means: right are every easy case, every medium one that executes no compiled code, and 80% of the
hard ones with at most 300 executed lines. A line counts once, however often it runs; the lines of
the standard library and of NumPy (unless the case is a function of NumPy) do not count.
"""

import argparse
import contextlib
import faulthandler
import io
import json
import multiprocessing
import multiprocessing.connection
import pathlib
import sys
import sysconfig
import time
import traceback
import warnings

import jax
import jax.numpy as jnp
import jax.scipy.special
import numpy as np

import malleable
from benchmarks import rewriting_cases, selective_cases
from benchmarks.smoke import add_argument, case_file
from benchmarks.suite import load

DIFFICULTIES = ("easy", "medium", "hard", "impossible")
VERDICTS = ("right", "wrong", "error", "timeout")
HARD_LINES, HARD_SHARE = 300, 0.8  # the rule of the front end's issue
GRADIENT_TOLERANCE = 1e-3  # what central differences with a step of 1e-6 can tell
STDLIB = sysconfig.get_paths()["stdlib"]
OURS = str(pathlib.Path(malleable.__file__).parent)
JAX = str(pathlib.Path(jax.__file__).parent)
NUMPY = str(pathlib.Path(np.__file__).parent)


# -- one case, in its own process


def judge(suite, case, how, with_grad, say):
    """Everything about one case, as a dict; `say(stage)` is told what is being done."""
    say("reference")
    expected = suite.reference(case)
    say("lines")
    record = executed(suite, case)
    call, fun = (malleable.autograph(case.call) if how == "frontend" else case.call), case.load()

    def run(*traced):
        return call(fun, *case.merge(traced))

    record |= attempt(lambda: compared(suite, case, run, expected, say))
    if with_grad and case.grad in case.jit and record["verdict"] == "right":
        verdict = attempt(lambda: gradient(suite, case, run, say))
        record |= {"grad": verdict["verdict"], "grad_why": verdict["why"]}
    return record


def attempt(check):
    try:
        return check()
    except BaseException as error:  # whatever user code and XLA raise is a result here
        return {"verdict": "error", "why": cause(error)}


def compared(suite, case, run, expected, say):
    arguments = case.traced()
    say("tracing")
    start = time.perf_counter()
    jitted = jax.jit(run)
    jitted.lower(*arguments)
    traced = time.perf_counter() - start
    say("compiling or running")
    got = jax.block_until_ready(jitted(*arguments))
    record = {"verdict": "right", "why": "", "trace_s": round(traced, 2)}
    try:
        suite.compare(got, expected, case.rtol, case.atol)
    except AssertionError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        record |= {"verdict": "wrong", "why": "; ".join(lines[1:4] or lines)}
    return record


def gradient(suite, case, run, say):
    """Reverse mode of the sum of the outputs against central differences."""
    say("differences")
    if suite.kink(case) > 0.05:
        return {"verdict": "kink", "why": ""}
    expected, position = suite.fd_grad(case), list(case.jit).index(case.grad)

    def total(*traced):
        leaves = jax.tree.leaves(run(*traced))
        return sum(jnp.sum(jnp.real(jnp.asarray(leaf))).astype(float) for leaf in leaves)

    say("gradient")
    got = jax.jit(jax.grad(total, position, allow_int=True))(*case.traced())
    got = np.asarray(jax.tree.leaves(got), dtype=float).reshape(np.shape(expected))
    worst = np.max(np.abs(got - expected) / (1 + np.abs(expected)), initial=0.0)
    right = bool(worst <= GRADIENT_TOLERANCE)
    return {"verdict": "right" if right else "wrong", "why": "" if right else f"off by {worst:.2g}"}


def cause(error):
    """Exception type, first line of its message, innermost frame that is not ours or JAX's."""
    message = next(iter(str(error).splitlines()), "")[:160]
    frames = traceback.extract_tb(error.__traceback__)
    users = [f for f in frames if user_file(f.filename)] or frames[-1:]
    at = f" @ {short(users[-1].filename)}:{users[-1].lineno} in {users[-1].name}" if users else ""
    return f"{type(error).__name__}: {message}{at}"


def user_file(name):
    library = name.startswith((OURS, JAX, __file__, "<"))
    return not library and ("-packages" in name or not name.startswith(STDLIB))


def short(name):
    return name.rsplit("-packages/", 1)[-1] if "-packages/" in name else pathlib.Path(name).name


# -- what the original executes


def executed(suite, case):
    """{lines: distinct lines the original executes, compiled: the compiled functions it calls}."""
    own = case.path.startswith("numpy")
    lines, compiled = set(), set()

    def trace(frame, event, _):
        name = frame.f_code.co_filename
        if not user_file(name) or (name.startswith(NUMPY) and not own):
            return None
        if event == "line":
            lines.add((name, frame.f_lineno))
        return trace

    previous = sys.gettrace()
    with calls_seen(compiled):
        sys.settrace(trace)
        try:
            suite.reference(case)
        finally:
            sys.settrace(previous)
    return {"lines": len(lines), "compiled": sorted(compiled)}


@contextlib.contextmanager
def calls_seen(names):
    """Add to `names` the compiled functions called in the block.

    Python 3.11 reports built-in functions only, no ufuncs, no functions of Cython.
    """

    def seen(fun):
        with contextlib.suppress(Exception):  # best effort: callables answer as they like
            if name := compiled_name(fun):
                names.add(name)

    if sys.version_info < (3, 12):
        sys.setprofile(lambda frame, event, arg: seen(arg) if event == "c_call" else None)
        yield
        sys.setprofile(None)
        return
    monitoring = sys.monitoring
    monitoring.use_tool_id(monitoring.PROFILER_ID, "cases")
    monitoring.register_callback(
        monitoring.PROFILER_ID, monitoring.events.CALL, lambda code, at, fun, first: seen(fun)
    )
    monitoring.set_events(monitoring.PROFILER_ID, monitoring.events.CALL)
    yield
    monitoring.set_events(monitoring.PROFILER_ID, 0)
    monitoring.free_tool_id(monitoring.PROFILER_ID)


def compiled_name(fun):
    """What to call a compiled function that JAX has no counterpart of; None for all others."""
    if isinstance(fun, np.ufunc):
        special = vars(sys.modules.get("scipy.special._ufuncs", np)).get(fun.__name__) is fun
        known = hasattr(jax.scipy.special, fun.__name__) or hasattr(np, fun.__name__)
        return f"special.{fun.__name__}" if special and not known else None
    if type(fun).__name__ == "fortran":
        return f"fortran.{fun.__name__.split()[-1]}"
    home = getattr(fun, "__module__", None)
    if home is None:
        owner = getattr(fun, "__objclass__", None) or type(getattr(fun, "__self__", None))
        home = owner.__module__
    module = sys.modules.get(home)
    file = getattr(module, "__file__", None) or ""
    outside = home.partition(".")[0] in ("numpy", "pandas", "jax", "jaxlib", "malleable")
    if outside or not file.endswith((".so", ".pyd")) or file.startswith(STDLIB + "/lib-dynload"):
        return None
    return f"{home}.{getattr(fun, '__name__', type(fun).__name__)}"


# -- all cases, some at a time


def work(channel, file, name, how, with_grad):
    """Judge one case in a process that has started nothing before."""
    faulthandler.enable()
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_enable_x64", True)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        suite = load(file)
        case = next(case for case in suite.CASES if case.name == name)
        result = attempt(lambda: judge(suite, case, how, with_grad, channel.send))
    channel.send(result)


def run_all(cases, how, options):
    """{name: record}. A case that hangs is ended, one that crashes XLA ends only itself."""
    context = multiprocessing.get_context("spawn")  # XLA's threads do not survive a fork
    waiting, busy, records = list(cases), {}, {}

    def finish(channel, record):
        case, process, _, _, start = busy.pop(channel)
        process.kill()
        process.join()
        record |= {"difficulty": case.diff, "seconds": round(time.monotonic() - start, 1)}
        records[case.name] = record
        done = f"[{len(records)}/{len(cases)}] {case.name}: {record['verdict']}"
        print(f"{done} ({record['seconds']} s) {record['why']}", file=sys.stderr, flush=True)

    while waiting or busy:
        while waiting and len(busy) < options.jobs:
            case, (ours, theirs) = waiting.pop(0), context.Pipe(duplex=False)
            args = (theirs, options.file, case.name, how, options.grad)
            process = context.Process(target=work, args=args, daemon=True)
            process.start()
            theirs.close()
            start = time.monotonic()
            busy[ours] = [case, process, "start", start + options.timeout, start]
        for channel in multiprocessing.connection.wait(list(busy), timeout=0.2):
            try:
                message = channel.recv()
            except EOFError:
                stage = busy[channel][2]
                busy[channel][1].join()
                code = busy[channel][1].exitcode
                finish(channel, {"verdict": "error", "why": f"process died ({code}) while {stage}"})
                continue
            if isinstance(message, dict):
                finish(channel, message)
            else:
                busy[channel][2] = message
        for channel, (_, _, stage, deadline, _) in list(busy.items()):
            if time.monotonic() > deadline:
                finish(channel, {"verdict": "timeout", "why": f"while {stage}"})
    return records


# -- the verdict


def targets(records):
    """(name, right, of how many, needed) of the three rules."""
    every = records.values()
    easy = [r for r in every if r["difficulty"] == "easy"]
    medium = [r for r in every if r["difficulty"] == "medium" and not r.get("compiled")]
    hard = [r for r in every if r["difficulty"] == "hard" and r.get("lines", 0) <= HARD_LINES]

    def rule(name, those, share):
        return name, sum(r["verdict"] == "right" for r in those), len(those), share

    return [
        rule("easy", easy, 1.0),
        rule("medium without compiled code", medium, 1.0),
        rule(f"hard with at most {HARD_LINES} lines", hard, HARD_SHARE),
    ]


def table(records, key="verdict", verdicts=VERDICTS):
    print(f"  {'':12}" + "".join(f"{v:>9}" for v in verdicts) + f"{'all':>9}")
    for difficulty in DIFFICULTIES:
        those = [r[key] for r in records.values() if r["difficulty"] == difficulty and key in r]
        counts = [those.count(v) for v in verdicts]
        print(f"  {difficulty:12}" + "".join(f"{n:>9}" for n in counts) + f"{len(those):>9}")


def show(records, baseline, grad):
    print("\nRight under jit\n")
    table(records)
    if baseline:
        print("\nPlain jax.jit, nothing converted\n")
        table(baseline)
    if grad:
        print("\nReverse-mode gradients of those that are right\n")
        table(records, "grad", ("right", "wrong", "error", "kink"))
    print("\nFailures, and the first cause of each\n")
    for name, r in sorted(
        records.items(), key=lambda item: DIFFICULTIES.index(item[1]["difficulty"])
    ):
        facts = f"{r.get('lines', '?')} lines" + ", compiled" * bool(r.get("compiled"))
        if r["verdict"] != "right":
            print(f"  {r['difficulty']:7} {name:32} {r['verdict']:8} {r['why']}  [{facts}]")
        if r.get("grad", "right") not in ("right", "kink"):
            print(f"  {r['difficulty']:7} {name:32} grad {r['grad']:8} {r['grad_why']}")
    print()
    for name, right, of, share in targets(records):
        met = "met" if right >= share * of else "MISSED"
        print(f"  {name:32} {right:>3} of {of:<3} needed {share:.0%}  {met}")


def main():
    others = {"rewriting": rewriting_cases.main, "selective": selective_cases.main}
    if other := others.get("".join(sys.argv[1:2])):
        return other(sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=["frontend", "plain"], help="plain: jax.jit as it is")
    what = "a file of the form of shared/cases/frontend.py"
    parser.add_argument("file", help=what, **case_file("frontend.py"))
    parser.add_argument("--only", nargs="+", metavar="NAME")
    parser.add_argument("--grad", action="store_true", help="gradients, too")
    parser.add_argument("--baseline", action="store_true", help="plain jax.jit beside it")
    parser.add_argument("--json", metavar="FILE", help="write every record")
    parser.add_argument("--timeout", type=float, default=120.0, metavar="SECONDS")
    parser.add_argument("--jobs", type=int, default=2)
    add_argument(parser)
    options = parser.parse_args()
    suite = load(options.file)
    cases = [c for c in suite.CASES if not options.only or c.name in options.only]
    records = run_all(cases, options.what, options)
    baseline = run_all(cases, "plain", options) if options.baseline else {}
    for name, record in baseline.items():
        records[name]["plain"] = record["verdict"]
    show(records, baseline, options.grad)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(records, indent=1))
    return 0 if all(right >= share * of for _, right, of, share in targets(records)) else 1


if __name__ == "__main__":
    sys.exit(main())
