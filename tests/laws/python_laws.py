"""What must hold for `autograph` of any Python program: traced, it does what Python does.

`try_seeds(seeds)` compiles several programs at once, because compiling takes longer than all the
rest, and shows a failing one without what it does not need to fail.
"""

import ast
import contextlib
import copy
import sys
import time
from collections.abc import Callable, Iterator, Sequence

import jax
import numpy as np

import malleable as mal
from malleable.notes import listen
from tests.generators.python.programs import PythonProgram, python_args, random_python_program

TRIES = 3  # inputs per program
SAME, NOTED, REFUSED = "same", "same, noted", "refused"
SHRINK_SECONDS = 30


def try_seeds(seeds: Sequence[int], shrink=False, make=random_python_program) -> dict[int, str]:
    """{seed: outcome}: "same", "same, noted: what", "refused: why", or all that shows why not.

    One batch of seeds in four runs its inputs at once, under vmap.
    """
    programs = [make(seed) for seed in seeds]
    inputs = [several_args(seed) for seed in seeds]
    lanes = seeds[0] // len(seeds) % 4 == 3
    with jax.enable_x64(True):
        try:
            found = outcomes(programs, inputs, lanes)
        except Exception:  # of compiling them, or of running: look for the one who did it
            found = [outcome(p, some, lanes) for p, some in zip(programs, inputs)]
        for k, text in enumerate(found):
            if is_wrong(text):
                program = programs[k]
                if shrink:
                    shrink = False  # one is enough to look at, and it takes a while
                    program = shrunk(program, fails_alike(program, inputs[k], lanes))
                    text = outcome(program, inputs[k], lanes)
                found[k] = f"seed {seeds[k]}, vmap {lanes}: {text}\n{program}"
    return dict(zip(seeds, found, strict=True))


def is_wrong(text: str) -> bool:
    return not text.startswith((SAME, REFUSED))


def several_args(seed: int) -> list[tuple]:
    return [python_args(TRIES * seed + t) for t in range(TRIES)]


def outcome(program, inputs, lanes) -> str:
    """As `outcomes`, of one program."""
    try:
        return outcomes([program], [inputs], lanes)[0]
    except Exception as error:
        return f"{type(error).__name__}: {error}"


class Endless(Exception):
    """A program took more steps than a random program takes."""


def run_plain(program, args, limit=None):
    """The result of plain Python, or the exception; limit: lines that it may execute."""
    lines = 0

    def trace(frame, event, arg):
        nonlocal lines
        lines += 1
        if lines > limit:
            raise Endless
        return trace

    before = sys.gettrace()
    if limit:
        sys.settrace(trace)
    try:
        return program(*copy.deepcopy(args))
    except Exception as error:
        return error
    finally:
        sys.settrace(before)


def traced(program):
    return mal.autograph(program.function)


def over_lanes(program):
    return jax.vmap(mal.autograph(program.function))


def outcomes(programs: Sequence[PythonProgram], inputs: Sequence[list], lanes=False) -> list[str]:
    """For each program an outcome, as of `try_seeds`, on its `TRIES` inputs.

    lanes: all inputs at once, under vmap.
    """
    plain = [[run_plain(p, args) for args in some] for p, some in zip(programs, inputs)]
    failed: dict[int, Exception] = {}
    noted: dict[int, str] = {}

    def all_of_them(batch):
        outs = []
        for k, (program, args) in enumerate(zip(programs, batch)):
            try:
                fun = over_lanes(program) if lanes else traced(program)
                with listen() as heard:
                    outs.append(fun(*args))
                if heard:
                    noted[k] = heard[0].what
            except Exception as error:
                failed[k] = error
                outs.append(None)
        return outs

    compiled = jax.jit(all_of_them)
    if lanes:
        stacked = [[np.stack(column) for column in zip(*some)] for some in inputs]
        result = jax.device_get(compiled(stacked))
        per_try = [[jax.tree.map(lambda x, t=t: x[t], out) for out in result] for t in range(TRIES)]
    else:
        per_try = [jax.device_get(compiled([some[t] for some in inputs])) for t in range(TRIES)]
    found = [
        judge_error(failed[k], plain[k])
        if k in failed
        else judge([outs[k] for outs in per_try], plain[k], inputs[k])
        for k in range(len(programs))
    ]
    return [
        f"{NOTED}: {noted[k]}" if text == SAME and k in noted else text
        for k, text in enumerate(found)
    ]


def judge_error(error, plain) -> str:
    if any(type(error) is type(wanted) for wanted in plain):
        return SAME
    if isinstance(error, mal.TransformError):
        return f"{REFUSED}: {error}"
    return f"{type(error).__name__}: {error}"


def judge(got, plain, inputs) -> str:
    for out, wanted, args in zip(got, plain, inputs):
        difference = compare(out, wanted)
        if difference:
            return f"{difference}\n  inputs {args}\n  wanted {show(wanted)}\n  got    {show(out)}"
    return SAME


def compare(got, wanted) -> str:
    """What differs, in a few words; "" for nothing."""
    got = jax.tree.map(as_list, got, is_leaf=is_bounded)
    leaves, structure = jax.tree.flatten(got)
    if isinstance(wanted, Exception):
        floats = [x for x in leaves if np.asarray(x).dtype.kind == "f"]
        return "" if floats and np.isnan(floats[0]).all() else f"does not raise {wanted!r}"
    expected, structure_wanted = jax.tree.flatten(wanted)
    if structure != structure_wanted:
        return f"structure {structure}, not {structure_wanted}"
    for k, (a, b) in enumerate(zip(leaves, expected, strict=True)):
        if np.shape(a) != np.shape(b):
            return f"leaf {k} has shape {np.shape(a)}, not {np.shape(b)}"
        if not np.array_equal(a, b):
            return f"leaf {k} differs"
    return ""


def is_bounded(x) -> bool:
    return type(x).__name__ == "BoundedList"


def as_list(x):
    """The list for a list whose length was traced: stacked items, and how many of them count."""
    if not is_bounded(x):
        return x
    return [jax.tree.map(lambda items, k=k: items[k], x.items) for k in range(int(x.length))]


def show(value) -> str:
    if isinstance(value, Exception):
        return repr(value)
    return str(jax.tree.map(lambda x: np.asarray(x).tolist(), value))


# ---------------------------------------------------------------- smaller programs


def fails_alike(program, inputs, lanes) -> Callable[[PythonProgram], bool]:
    """Whether a smaller program is wrong in the same way; always False when time is up."""
    kind = outcome(program, inputs, lanes)[:20]
    raises = any(isinstance(run_plain(program, args), Exception) for args in inputs)
    deadline = time.monotonic() + SHRINK_SECONDS

    def fails(smaller):
        if time.monotonic() > deadline or not runs(smaller, inputs, raises):
            return False
        return outcome(smaller, inputs, lanes)[:20] == kind

    return fails


def runs(program, inputs, raises) -> bool:
    """Whether plain Python runs it, soon, with one structure of results and no None in them."""
    outs = [run_plain(program, args, limit=10_000) for args in inputs]
    if any(isinstance(out, Endless) for out in outs):
        return False
    if any(isinstance(out, Exception) for out in outs):
        return raises
    try:
        structures = {str(jax.tree.structure(out)) for out in outs}
    except (DeprecationWarning, RecursionError, SystemError):  # a generator or circle in them
        return False
    leaves = jax.tree.leaves(outs, is_leaf=lambda x: x is None)
    return len(structures) == 1 and None not in map(type_of_number, leaves)


def type_of_number(x):
    """The kind of a number or an array of numbers, None for anything else."""
    kind = np.asarray(x).dtype.kind
    return kind if kind in "biuf" else None


def shrunk(program: PythonProgram, fails: Callable[[PythonProgram], bool]) -> PythonProgram:
    """A program as small as dropping statements and expressions makes it, that still fails."""
    seen: set[str] = set()
    start = 0
    while True:
        found = False
        for k, source in enumerate(smaller_sources(program.source)):
            if k < start or source in seen or len(source) >= len(program.source):
                continue
            seen.add(source)
            candidate = PythonProgram(source)
            if fails(candidate):
                program, found, start = candidate, True, k
                break
        if not found:
            if start == 0:
                return program
            start = 0


def smaller_sources(source: str) -> Iterator[str]:
    """Sources with one part less; large parts first."""
    tree = ast.parse(source)
    blocks = [
        (parent, name, block)
        for parent in ast.walk(tree)
        for name in ("body", "orelse", "finalbody", "handlers")
        if isinstance(block := getattr(parent, name, None), list) and block
    ]
    for parent, name, block in blocks:
        for k, statement in enumerate(block):
            rest = block[:k] + block[k + 1 :]
            inside = getattr(statement, "body", [])
            for new in (rest, block[:k] + inside + block[k + 1 :] if inside else rest):
                if not new and name == "body" and not isinstance(parent, ast.Module):
                    new = [] if isinstance(statement, ast.Pass) else [ast.Pass()]
                setattr(parent, name, new)
                with contextlib.suppress(ValueError):  # no such program
                    yield ast.unparse(tree)
            setattr(parent, name, block)
    yield from smaller_expressions(tree)


def smaller_expressions(tree) -> Iterator[str]:
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            values = value if isinstance(value, list) else [value]
            for k, old in enumerate(values):
                if not isinstance(old, ast.expr) or isinstance(
                    getattr(old, "ctx", None), ast.Store
                ):
                    continue
                parts = [p for p in ast.iter_child_nodes(old) if isinstance(p, ast.expr)]
                constants = [ast.Constant(0), ast.Constant(1.0), ast.Constant(True)]
                for new in [*parts, *([] if isinstance(old, ast.Constant) else constants)]:
                    put(parent, name, value, k, new)
                    with contextlib.suppress(ValueError):
                        yield ast.unparse(tree)
                put(parent, name, value, k, old)


def put(parent, name, value, k, new):
    if isinstance(value, list):
        value[k] = new
    else:
        setattr(parent, name, new)
