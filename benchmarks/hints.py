"""Apply the hints of `malleable.errors.explain()` to failing programs, and run them again.

    python -m benchmarks.hints ../shared/cases/errors.py [NAME ..] [--smoke]

Each way out that a note gives without "perhaps" is an edit of the source. It is applied to a copy
of the program, which then has to run, and to return what plain Python returns for it as it was
(`jax.disable_jit`), where that runs. Exit status 0 means that none fails and none changes a result.
"""

import argparse
import ast
import collections
import contextlib
import os
import pathlib
import sys
import warnings

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")

import jax

from benchmarks.smoke import add_argument, case_file, size
from malleable.errors import explain
from malleable.inspection.advice.evidence.tried import equal

MARKS = {"case", "failing"}  # the decorators of programs


def named(node):
    """The name of a program, None for what is none."""
    for mark in getattr(node, "decorator_list", ()):
        if isinstance(mark, ast.Call) and isinstance(mark.func, ast.Name) and mark.func.id in MARKS:
            return mark.args[0].value if mark.func.id == "case" else node.name.strip("_")
    return None


def program(path, text, name):
    """A program in a file with this text, as a function: the value of its last expression."""
    tree = ast.parse(text)
    tree.body = [node for node in tree.body if named(node) in (None, name)]
    (run,) = (node for node in tree.body if named(node) == name)
    run.decorator_list, run.name, block = [], "program_", run.body
    while isinstance(block[-1], ast.With):
        block = block[-1].body
    if isinstance(end := block[-1], ast.Expr):
        block[-1] = ast.copy_location(ast.Return(end.value), end)
    elif isinstance(end, ast.Assign):
        block.append(ast.copy_location(ast.Return(_loaded(end.targets[0])), end))
    space = {"__name__": "failing", "__file__": str(path)}
    with contextlib.chdir(path.parent):
        sys.path.insert(0, str(path.parent))
        exec(compile(ast.fix_missing_locations(tree), str(path), "exec"), space)
        sys.path.pop(0)
    return space["program_"]


def _loaded(target):
    return ast.parse(ast.unparse(target), mode="eval").body


def ways(run):
    """The ways out that the note of a failing program gives as certain."""
    try:
        with explain():
            run()
    except Exception as error:
        return getattr(error, "ways", [])
    return []


def plainly(run):
    """What Python returns for a program without any jit, None where it fails, too."""
    try:
        with jax.disable_jit():
            return run()
    except Exception:
        return None


def outcomes(path, name, found=None):
    """(hint, outcome) of every certain way out of a program: "same", "runs" or what is wrong."""
    path = pathlib.Path(path).resolve()
    text = path.read_text()
    found = ways(program(path, text, name)) if found is None else found
    wanted = plainly(program(path, text, name)) if found else None
    for way in found:
        edited = text
        for edit in sorted(way.edits, key=lambda edit: (edit.line, edit.column), reverse=True):
            assert pathlib.Path(edit.file).resolve() == path, edit
            edited = edit.applied(edited)
        try:
            got = program(path, edited, name)()
        except Exception as error:
            yield way.text, f"FAILS: {type(error).__name__}: {error}"
            continue
        if not way.edits:
            yield way.text, "NO EDIT"
        elif wanted is None:
            yield way.text, "runs"
        else:
            yield way.text, "same" if equal(wanted, got) else f"CHANGES {wanted} to {got}"


def names(path):
    return [n for n in map(named, ast.parse(pathlib.Path(path).read_text()).body) if n]


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", **case_file("../error_programs.py"))
    parser.add_argument("names", nargs="*")
    add_argument(parser)
    given = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    counts = collections.Counter()
    for name in given.names or size(names(given.path), names(given.path)[-24:]):
        for hint, outcome in outcomes(given.path, name):
            counts[outcome.split()[0]] += 1
            print(f"{name:28}{outcome[:80]:10} {hint}")
    wrong = sum(count for outcome, count in counts.items() if outcome not in ("same", "runs"))
    print(f"{'FAIL' if wrong else 'PASS'}  {dict(counts)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
