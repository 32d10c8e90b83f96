"""The records of `selective_cases.py` as text, as gates, and as a table in docs/benchmarks.md."""

import math
import platform

import jax

from benchmarks.page import put_table

STEADY, STREAM = 0.85, 0.7  # shares of the headroom to capture
SLOWEST = 1.1  # times eager, in any regime
FIRST = 1.5  # times eager's first call
REGIMES = ("steady", "stream")


def captured(records, regime):
    """The share of the log headroom of some records that ours takes; nan where it is unknown."""
    taken = total = 0.0
    for record in records:
        eager, hand, ours = (record[regime].get(v, math.nan) for v in ("eager", "hand", "ours"))
        taken += math.log(eager / ours)
        total += math.log(eager / hand)
    return taken / max(total, math.log(1.01)) if records else math.nan


def gain(records, regime, variant):
    """How many times faster than eager, as a geometric mean."""
    logs = [math.log(r[regime]["eager"] / r[regime].get(variant, math.nan)) for r in records]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def slower(record, regime):
    return record[regime].get("ours", math.nan) / record[regime]["eager"]


def tell(name, record, done, of):
    """Print what is known of one program."""
    verdict = "agrees" if "ours" not in record["wrong"] else "DOES NOT AGREE"
    print(f"[{done}/{of}] {name}: {verdict}   (jax.jit: {record['jit']}; {record['why']})")
    for variant, why in record["wrong"].items():
        print(f"    {variant}: {why}")
    for regime in ("first", *REGIMES):
        if regime in record:
            times = "".join(f"   {v} {1e3 * s:10.2f} ms" for v, s in record[regime].items())
            print(f"    {regime:7}{times}")
    print(end="", flush=True)


def gates(records):
    """[(what, figure, passed)] of all programs together and of each."""
    rows = [(f"{name} agrees", "", "ours" not in r["wrong"]) for name, r in records.items()]
    measured = {name: r for name, r in records.items() if "steady" in r}
    for name, record in measured.items():
        for regime in REGIMES:
            times = slower(record, regime)
            rows.append((f"{name} {regime} <= {SLOWEST} eager", f"{times:.2f}", times <= SLOWEST))
        times = slower(record, "first")
        rows.append((f"{name} first call <= {FIRST} eager", f"{times:.2f}", times <= FIRST))
    for regime, least in zip(REGIMES, (STEADY, STREAM)):
        if measured:
            share = captured(measured.values(), regime)
            rows.append((f"captured, {regime} >= {least}", f"{share:.2f}", share >= least))
    return rows


def show(records):
    """Print the whole table and the gates; whether all pass."""
    measured = {name: r for name, r in records.items() if "steady" in r}
    if measured:
        print("\n" + "\n".join(lines(measured)))
    rows = gates(records)
    print()
    for what, figure, passed in rows:
        if not passed or what.startswith("captured"):
            print(f"{'PASS' if passed else 'FAIL'}  {what:50} {figure}")
    good = sum(passed for *_, passed in rows)
    agree = sum("ours" not in r["wrong"] for r in records.values())
    print(f"{agree} of {len(records)} agree, {good} of {len(rows)} gates pass")
    return good == len(rows)


def lines(records):
    """A header, a row per program, and the geometric means."""
    head = f"{'ms':20}" + "".join(
        f"| {regime:>8} eager     numpy      hand      ours  captured " for regime in REGIMES
    )
    yield head + "| first eager      ours  ratio"
    for name, record in records.items():
        text = f"{name:20}"
        for regime in REGIMES:
            times = [record[regime].get(v, math.nan) for v in ("eager", "numpy", "hand", "ours")]
            text += f"|     {1e3 * times[0]:10.2f}" + "".join(f"{1e3 * t:10.2f}" for t in times[1:])
            text += f"{captured([record], regime):10.2f} "
        eager, ours = (record["first"].get(v, math.nan) for v in ("eager", "ours"))
        yield text + f"| {1e3 * eager:11.0f}{1e3 * ours:10.0f}{ours / eager:7.2f}"
    text = f"{'geometric means, x':20}"
    for regime in REGIMES:
        gains = [gain(records.values(), regime, v) for v in ("eager", "numpy", "hand", "ours")]
        text += f"|     {gains[0]:10.2f}" + "".join(f"{g:10.2f}" for g in gains[1:])
        text += f"{captured(records.values(), regime):10.2f} "
    first = [math.log(slower(r, "first")) for r in records.values()]
    yield text + f"| {'':21}{math.exp(sum(first) / len(first)):7.2f}"


# ---------------------------------------------------------------- the page


def write_docs(records, name):
    """Put the table on the page of benchmarks."""
    table = "\n".join(markdown({n: r for n, r in records.items() if "steady" in r}))
    put_table(f"selective {name}", f"Selective JIT: programs of `{name}.py`", table)


def markdown(records):
    """A paragraph on the run, and one row per program."""
    yield f"JAX {jax.__version__}, Python {platform.python_version()}, CPU. Milliseconds of eager;"
    yield "the other columns say how many times faster. Captured is log(eager / ours) by"
    yield "log(eager / hand); the last row has geometric means."
    yield ""
    one = "{} eager | numpy | by hand | ours | captured"
    yield f"| program | {' | '.join(map(one.format, REGIMES))} | first eager | ours |"
    yield "|---|" + "---|" * 12
    for name, record in records.items():
        cells = [name]
        for regime in REGIMES:
            cells.append(f"{1e3 * record[regime]['eager']:.3g} ms")
            cells += [f"{gain([record], regime, v):.3g} x" for v in ("numpy", "hand", "ours")]
            cells.append(f"{captured([record], regime):.2f}")
        cells += [f"{record['first']['eager']:.2f} s", f"{1 / slower(record, 'first'):.2f} x"]
        yield f"| {' | '.join(cells)} |"
    cells = ["all"]
    for regime in REGIMES:
        gains = [gain(records.values(), regime, v) for v in ("numpy", "hand", "ours")]
        cells += ["", *(f"{g:.3g} x" for g in gains), f"{captured(records.values(), regime):.2f}"]
    yield f"| {' | '.join([*cells, '', ''])} |"
