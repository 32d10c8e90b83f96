"""The harness of ../shared/cases/errors.py as far as `python -m benchmarks.errors --smoke` asks."""

import argparse
import contextlib
import json
import pathlib
import pkgutil
import re

HERE, CASES, CHOSEN = __file__, {}, ("inverse_of_wide", "concatenate_inline")


def U(fun):
    return fun


def case(name, *, path=None, both=(), fix=(), wrong=None, **_):
    def add(run):
        CASES[name] = run, {"path": path and (path,), "both": both, "fix": fix}, wrong
        return run

    return add


def record(name, context):
    """What is said about one program, and how much of what it should say is there."""
    run, wanted, wrong = CASES[name]
    try:
        with context():
            run()
        raised, said = None, ""
    except Exception as error:  # that is what the programs are for
        raised, said = (
            type(error).__name__,
            "\n".join([str(error), *getattr(error, "__notes__", [])]),
        )
    source = pathlib.Path(HERE).read_text().splitlines()
    lines = [n for n, line in enumerate(source, 1) if line.endswith(f"#! {name}")]
    there = any(f"{pathlib.Path(HERE).name}:{n}" in said for n in lines)
    found = {k: all(re.search(p, said) for p in ps) if ps else None for k, ps in wanted.items()}
    found = {k: value if value is None else int(value) for k, value in found.items()}
    found |= {"line": 2 if there else 1, "wrong": int(bool(wrong and re.search(wrong, said)))}
    return found | {
        "name": name,
        "raised": raised,
        "message": said,
        "warnings": [],
        "log": "",
        "stderr": "",
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--json")
    parser.add_argument("--with", dest="context")
    parser.add_argument("--quiet", action="store_true")
    parser.add_argument("--smoke", action="store_true")
    given = parser.parse_args()
    context = pkgutil.resolve_name(given.context) if given.context else contextlib.nullcontext
    records = [record(name, context) for name in given.names or CHOSEN]
    if given.json:
        pathlib.Path(given.json).write_text(json.dumps(records))
    if not given.quiet:
        print(*(f"{r['name']}: {r['raised']}" for r in records), sep="\n")
