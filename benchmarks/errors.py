"""What a failing program says, without and with `malleable.errors.explain()`.

    python -m benchmarks.errors ../shared/cases/errors.py [NAME ..] [--notes] [--docs] [--smoke]

Runs a file of failing programs twice, each in a process of its own, and prints the score of each
program before and after. line: 2 the message names the line to edit, 1 only the traceback does;
path: the argument or leaf is named; both: both things that disagree; fix: what to write. false:
the message says something wrong, JAX's own words included. noise: names of JAX's internals in what
we add. Exit status 0 means that every gate passes: all four in at least 80 % of the programs, the
line nowhere in none, something false in none.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

from benchmarks.page import put_table
from benchmarks.smoke import SMOKE, add_argument, case_file, size

LEAST = 0.8  # the share of programs with all four
WITH = "malleable.errors:explain"
HEADER = "malleable: "
INTERNAL = re.compile(
    r"jax[./]_src|PyTreeDef|\w*Tracer\b|PytreeLeaf|0x[0-9a-f]{6,}|_rem_singleton|_internal_pmap"
    r"|jaxlib\._jax|CpuCallback|ShapedArray"
)


def measured(path, names, *options):
    """The records of a run of the file, by the name of the program."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "out.json"
        command = [
            sys.executable,
            path,
            *names,
            "--quiet",
            "--json",
            str(out),
            *options,
            *size([], ["--smoke"]),
        ]
        run = subprocess.run(command, capture_output=True, text=True, timeout=600)
        if not out.exists():
            sys.exit(f"{path} did not run:\n{run.stdout[-2000:]}\n{run.stderr[-4000:]}")
        return {record["name"]: record for record in json.loads(out.read_text())}


def all_four(record):
    """Whether the line, the path, both things and a way out are there, as far as they apply."""
    said = (record[key] in (1, None) for key in ("path", "both", "fix"))
    return record["line"] > 0 and all(said)


def ours(record):
    """What we added to a message."""
    texts = (record["message"], *record["warnings"], record["log"], record["stderr"])
    return "\n".join(text[text.index(HEADER) :] for text in texts if HEADER in text)


def row(name, before, after):
    shown = lambda record, key: "-" if record[key] is None else str(record[key])
    marks = [f"{shown(before, k)} {shown(after, k)}" for k in ("line", "path", "both", "fix")]
    wrong = f"{before['wrong'] or 0} {after['wrong'] or 0}"
    noise = len(INTERNAL.findall(ours(after)))
    return [name, *marks, wrong, str(noise), "yes" if all_four(after) else "NO"]


def share(records):
    return sum(map(all_four, records)) / len(records)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", **case_file("../error_programs.py"))
    parser.add_argument("names", nargs="*")
    parser.add_argument("--notes", action="store_true", help="print what we add to each message")
    parser.add_argument("--docs", action="store_true", help="write the table to docs/benchmarks.md")
    add_argument(parser)
    given = parser.parse_args(arguments)
    before = measured(given.path, given.names)
    after = measured(given.path, given.names, "--with", WITH)
    rows = [row(name, before[name], after[name]) for name in before]
    print(f"{'program':30}{'line':>6}{'path':>6}{'both':>6}{'fix':>6}{'false':>7}{'noise':>7}  all")
    for name, line, path, both, fix, wrong, noise, fine in rows:
        print(f"{name:30}{line:>6}{path:>6}{both:>6}{fix:>6}{wrong:>7}{noise:>7}  {fine}")
        if given.notes:
            print("    " + ours(after[name]).replace("\n", "\n    "))
    count, first, last = len(rows), share(before.values()), share(after.values())
    nowhere = [name for name, record in after.items() if record["line"] == 0]
    false = [name for name, record in after.items() if record["wrong"]]
    hidden = [name for name in after if after[name]["raised"] != before[name]["raised"]]
    gates = [
        (f"all four in {last:.0%} of {count} programs (JAX alone {first:.0%})", last >= LEAST),
        (f"the line is nowhere in {len(nowhere)} {nowhere or ''}", not nowhere),
        (f"something is false in {len(false)} {false or ''}", not false),
        (f"another error is raised in {len(hidden)} {hidden or ''}", not hidden),
    ]
    for text, passed in gates:
        print(f"{'PASS' if passed else 'FAIL'}  {text}")
    if given.docs:
        head = "program | line | path | both | fix | false | all four"
        lines = [head, "--- | --- | --- | --- | --- | --- | ---"]
        lines += [" | ".join([*cells[:6], cells[7]]) for cells in rows]
        lines += ["", *(text + "." for text, _ in gates)]
        put_table("errors", "Error messages", "\n".join(lines))
    return 0 if SMOKE or all(passed for _, passed in gates) else 1


if __name__ == "__main__":
    sys.exit(main())
