"""The rows of `rewriting.py` as text, and as a table in docs/benchmarks.md."""

import platform

import jax

from benchmarks.page import put_table

TITLES = {"cpu": "Pushing up and streaming", "gpu": "Pushing up and streaming, on a GPU"}


def mib(count):
    if count is None:
        return "?"
    return f"{count / 2**20:.2f}" if count < 10 * 2**20 else f"{count / 2**20:.0f}"


def say(row):
    """Print a row: times against plain, memory, gates."""
    print(f"{row['name']}, {row['kind']}" + "  (ours is the plain program)" * row["same"])
    for name in row["temp"] | row["ms"]:
        text = f"    {name:8}"
        if name in row["ms"]:
            speed = row["speed"][name]
            text += f"{row['ms'][name]:10.2f} ms  x {speed.median:6.2f}"
            text += f"  [{speed.low:.2f}, {speed.high:.2f}]".ljust(20)
        if name in row["temp"]:
            text += f"  temp {mib(row['temp'][name]):>7} MiB"
        if row["shown"].get(name) is not None:
            text += f", no YNN {mib(row['shown'][name]):>7}"
        if name in row.get("resident", {}):
            text += f", resident +{mib(row['resident'][name])}"
        print(text + f"  WRONG: {row['wrong'].get(name)}" * (name in row["wrong"]))
    for name in row["wrong"].keys() - row["temp"].keys() - row["ms"].keys():
        print(f"    {name:8}  WRONG: {row['wrong'][name]}")
    for what, than, least, text, passed in row["gates"]:
        print(f"    {'PASS' if passed else 'FAIL'}  {what} of {than} / ours {text} >= {least:.3g}")
    print(flush=True)


# ---------------------------------------------------------------- the page


def write_docs(rows, device):
    """Put the table on the page of benchmarks."""
    put_table(f"rewriting {device}", TITLES[device], markdown(rows))


def markdown(rows):
    """A paragraph on the run, and one table row per workload and direction."""
    where = f"Python {platform.python_version()}, {jax.devices()[0].device_kind}"
    lines = [
        f"JAX {jax.__version__}, {where}. Times are of the plain program; the other columns say",
        "how many times faster, and how much temporary memory XLA sets aside (in brackets: with",
        "what its kernels hide). An equals sign: ours is the plain program.",
        "",
        "| program | | plain | ours | by hand | others | memory: plain | ours | by hand |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    return "\n".join([*lines, *(f"| {' | '.join(cells(row))} |" for row in rows)])


def cells(row):
    fast = lambda name: f"{row['speed'][name].median:.2f} x" if name in row["speed"] else ""
    temp = lambda name: f"{mib(row['temp'][name])} MiB{hidden(row, name)}"
    size = lambda name: temp(name) if name in row["temp"] else ""
    others = [f"{name} {fast(name)}" for name in row["ms"] if name not in ("plain", "ours", "hand")]
    plain = f"{row['ms']['plain']:.3g} ms" if "plain" in row["ms"] else ""
    mine = "= " * row["same"] + fast("ours")
    return [
        row["name"],
        row["kind"],
        plain,
        mine,
        fast("hand"),
        ", ".join(others),
        *map(size, ("plain", "ours", "hand")),
    ]


def hidden(row, name):
    """What a kernel takes that XLA does not report."""
    shown = row["shown"].get(name)
    return f" ({mib(shown)})" if shown and shown > 2 * max(row["temp"][name], 2**20) else ""
