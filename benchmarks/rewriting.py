"""What pushing reductions up and streaming gain: each program plain, by us, and fused by hand.

    python -m benchmarks.rewriting [--only WORD ...] [--quick] [--json] [--docs] [--smoke]
    python -m benchmarks.rewriting --engine [--smoke]      # what rewriting itself costs

Forward and gradient, in turn in one process (see `ratios.py`), with what pykeops and torch.compile
make of the kernels where they are installed. A result that is not that of the plain program is
WRONG. Exit status 0 means: nothing is wrong and every gate passes. `--clock cpu` is steadier on a
busy machine; `--quick` asks for the results of small sizes only.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time

import jax
import numpy as np

from benchmarks import (
    pairwise_workloads,
    ratios,
    recurrent_workloads,
    rewriting_engine,
    streaming_workloads,
)
from benchmarks.rewriting_peers import peers
from benchmarks.rewriting_report import say, write_docs
from benchmarks.rewriting_transform import ours
from benchmarks.smoke import SMOKE, add_argument, size
from benchmarks.workloads import Gate, gradient

WORKLOADS = [
    *streaming_workloads.WORKLOADS,
    *recurrent_workloads.WORKLOADS,
    *pairwise_workloads.WORKLOADS,
]
VARIANTS = ["plain", "ours", "hand"]
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
EVERYWHERE = (("plain", 1 / 1.05), ("hand", 1 / 1.1))  # ours is this fast, at least


def variant(workload, kind, name):
    """The program to run: forward or gradient of one of VARIANTS."""
    back = kind == "gradient"
    fun = {
        "plain": lambda: workload.plain,
        "ours": lambda: ours(workload.plain),
        "hand": lambda: (back and workload.hand_gradient) or workload.hand,
    }[name]()
    return gradient(fun, workload.wrt) if back else fun


# ---------------------------------------------------------------- one row


def measure(workload, kind, options):
    """A row of the table, as a dict."""
    args = workload.make(options.quick or SMOKE)
    row = {"name": workload.name, "kind": kind, "wrong": {}, "ms": {}, "speed": {}, "temp": {}}
    row |= {"shown": {}, "same": False, "gates": []}
    programs = {}
    for name in options.variants:
        try:
            programs[name] = ratios.compiled(variant(workload, kind, name), args, not options.quick)
        except Exception as error:  # a row that fails is reported, and the others run
            row["wrong"][name] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    calls = {name: program.call for name, program in programs.items()}
    expected = calls["plain"]()
    if not options.quick and options.peers and not SMOKE:
        calls |= peers(workload, kind, args, weights(expected, args, workload))
    for name, call in calls.items():
        if why := differs(call(), expected, workload.tolerance * (5 if kind == "gradient" else 1)):
            row["wrong"][name] = why
    row["temp"] = {name: program.temp for name, program in programs.items()}
    row["shown"] = {name: program.shown for name, program in programs.items()}
    row["same"] = "ours" in programs and programs["ours"].text == programs["plain"].text
    if not options.quick:
        compare(row, calls, wanted(workload, kind, calls), options)
    return row


def weights(result, args, workload):
    """What `gradient` weighs the numbers of the result of the plain program with."""
    leaves = jax.tree.leaves(jax.eval_shape(workload.plain, *args))
    size, shape = int(np.prod(leaves[0].shape)), leaves[0].shape
    return np.cos(np.arange(size)).astype(np.float32).reshape(shape)


def differs(got, expected, tolerance):
    """Why these results are not the same, or None."""
    got, expected = ([np.asarray(x) for x in jax.tree.leaves(r)] for r in (got, expected))
    if [(x.shape, x.dtype) for x in got] != [(x.shape, x.dtype) for x in expected]:
        return "other shapes or dtypes"
    for a, b in zip(got, expected, strict=True):
        if not np.issubdtype(b.dtype, np.integer) or b.dtype == bool:
            a, b = a.astype(np.float64), b.astype(np.float64)
            off = np.max(np.abs(a - b), initial=0) / max(np.max(np.abs(b), initial=0), 1e-30)
            if not off <= tolerance:
                return f"off by {off:.1e}"
        elif (share := np.mean(a != b)) > 1e-4:  # two points as near as rounding can tell
            return f"{share:.1%} of the integers differ"


def wanted(workload, kind, calls):
    """The gates of a row."""
    mine = [g for g in workload.gates if g.kind == kind]
    told = {(g.what, g.than) for g in mine}
    mine += [
        Gate(kind, "speed", than, least)
        for than, least in EVERYWHERE
        if ("speed", than) not in told
    ]
    return [g for g in mine if "ours" in calls and g.than in calls]


def compare(row, calls, gates, options):
    """Run the programs in turn, and judge."""

    def speed(times, than):
        if than == "plain" and row["same"]:
            return ratios.Ratio(1.0, 1.0, 1.0)
        return ratios.ratio(times[than], times["ours"])

    def decided(times):
        speeds = ((speed(times, g.than), g.least) for g in gates if g.what == "speed")
        return len(times["plain"]) >= 7 and all(
            r.low >= least or r.high < least for r, least in speeds
        )

    times = ratios.race(calls, options.budget, decided, CLOCKS[options.clock])
    row["rounds"] = len(times["plain"])
    row["ms"] = {name: 1e3 * statistics.median(ts) for name, ts in times.items()}
    row["speed"] = {name: ratios.ratio(times["plain"], ts) for name, ts in times.items()}
    for gate in gates:
        if gate.what == "speed":
            found = speed(times, gate.than)
            text = f"{found.median:.2f} [{found.low:.2f}, {found.high:.2f}]"
            passed = found.median >= gate.least
        else:
            fewer = memory(row, gate.than) / max(memory(row, "ours"), 1)
            text, passed = f"{fewer:.1f}", fewer >= gate.least
        row["gates"].append([gate.what, gate.than, gate.least, text, bool(passed)])


def memory(row, name):
    """Temporary bytes; where XLA reports none, because a kernel hides it, what it shows without."""
    return row["temp"][name] or row["shown"][name] or 0


# ---------------------------------------------------------------- memory of a process


def resident(workload, options):
    """{kind: {variant: bytes}}, measured in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.rewriting", "--resident", workload.name]
    command += ["--variants", *options.variants, *size([], ["--smoke"])]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def resident_here(name, variants):
    workload = next(w for w in WORKLOADS if w.name == name)
    args, found = workload.make(SMOKE), {}
    for kind in kinds(workload):
        for each in sorted(variants, key=VARIANTS[::-1].index):  # plain, the largest, comes last
            program = ratios.compiled(variant(workload, kind, each), args, False)
            found.setdefault(kind, {})[each] = ratios.resident(program.call)
    return found


def kinds(workload):
    return ["forward", "gradient"] if workload.wrt else ["forward"]


# ---------------------------------------------------------------- all of it


def run(options):
    """All rows; each is printed when it is known."""
    words = [word.lower() for word in options.only or [""]]
    chosen = [w for w in WORKLOADS if any(word in w.name.lower() for word in words)]
    chosen = size(chosen, ([w for w in chosen if w.resident] or chosen)[:1])
    rows = []
    for workload in chosen:
        extra = {}
        if workload.resident and options.resident_rows and not options.quick:
            extra = resident(workload, options)
        for kind in kinds(workload):
            row = measure(workload, kind, options) | {"resident": extra.get(kind, {})}
            say(row)
            rows.append(row)
            jax.clear_caches()
    return rows


def verdict(rows):
    """Print what failed; the exit status."""
    wrong = [(r, n, why) for r in rows for n, why in r["wrong"].items()]
    failed = [(r, g) for r in rows for g in r["gates"] if not g[-1]]
    for row, name, why in wrong:
        print(f"WRONG  {row['name']}, {row['kind']}, {name}: {why}")
    for row, (what, than, least, text, _) in failed:
        print(f"FAIL   {row['name']}, {row['kind']}: {what} {text} of {than}, needed {least:.3g}")
    passed = sum(g[-1] for r in rows for g in r["gates"])
    print(f"\n{len(rows)} rows, {len(wrong)} wrong; {passed} gates passed, {len(failed)} failed")
    return 1 if wrong or (failed and not SMOKE) else 0


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", metavar="WORD", help="rows with such a name")
    parser.add_argument("--quick", action="store_true", help="small sizes, results only")
    parser.add_argument("--json", action="store_true", help="the figures as the last line")
    parser.add_argument("--docs", action="store_true", help="write the table into docs/")
    parser.add_argument("--engine", action="store_true", help="the cost of rewriting itself")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=VARIANTS)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument(
        "--budget", type=float, default=size(2.5, 0.0), metavar="SECONDS", help="of a row"
    )
    parser.add_argument("--no-peers", dest="peers", action="store_false")
    parser.add_argument("--no-resident", dest="resident_rows", action="store_false")
    parser.add_argument("--resident", metavar="NAME", help=argparse.SUPPRESS)
    add_argument(parser)
    return parser


def main():
    options = arguments().parse_args()
    if options.resident:
        print(json.dumps(resident_here(options.resident, options.variants)))
        return 0
    jax.config.update("jax_platforms", "cpu")
    if options.engine:
        return rewriting_engine.main()
    start = time.perf_counter()
    print(f"Rewriting, JAX {jax.__version__}, Python {sys.version.split()[0]}, CPU\n")
    rows = run(options)
    status = verdict(rows)
    print(f"{time.perf_counter() - start:.0f} s")
    if options.docs:
        write_docs(rows, "cpu")
    if options.json:
        print(json.dumps(rows))
    return status


if __name__ == "__main__":
    sys.exit(main())
