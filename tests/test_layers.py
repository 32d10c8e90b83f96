"""The shape of the package: who may import whom, through which door, and how much may lie where."""

import ast
import functools
import pathlib
from typing import NamedTuple

import pytest

from malleable.programs.primitives import KINDS, PRIMITIVES

ROOT = pathlib.Path(__file__).parent.parent
SRC = ROOT / "src" / "malleable"
FILES = sorted(SRC.rglob("*.py"))

# For each folder, its rows: what lies in it imports from rows above its own only, as what a
# reader of it must know comes first. "." are the files without a name, which may import each other.
ROWS = {
    "": [
        {"signatures"},
        {"errors", "notes", "progress"},
        {"compat"},
        {"programs", "python_source"},
        {"core", "arrays"},
        {"frontend", "effects", "rewriting", "unknowns"},
        {"execution", "prob", "inverses"},
        {"inspection"},  # sees everything, and is seen by nobody
        {"__init__"},
        {"tour", "integrations"},
        {"__main__"},
    ],
    "compat": [{"."}, {"hooks"}, {"__init__"}],
    "frontend": [{"common", "syntax"}, {"values"}, {"counterparts"}, {"operators"}, {"convert"}],
    "rewriting": [
        {"machine"},
        {"graph"},
        {"boxes"},
        {"sharding"},
        {"passes"},
        {"axis", "rules"},
        {"streaming", "incremental"},
        {"check"},
    ],
    "rewriting/boxes": [{"spans"}, {"dependence"}, {"blocks", "moves", "convolutions"}],
    "rewriting/sharding": [
        {"placement"},
        {"parts"},
        {"made"},
        {"writer"},
        {"local"},
        {"steps", "layouts", "mapped", "moved"},
    ],
    "rewriting/incremental": [{"derivatives", "forms"}, {"plan"}, {"run"}, {"."}],
    "rewriting/streaming": [{"strategy"}, {"region"}, {"schedule"}, {"emit"}, {"."}],
    "execution": [
        {"common"},
        {"purity", "numpy", "host", "buckets"},
        {"regions"},
        {"cutting"},
        {"jit"},
        {"explain"},
    ],
    "inspection": [
        {"places", "counting", "modules"},
        {"show"},
        {"debugging", "files", "calls"},
        {"costs", "source", "unstaging", "advice"},
        {"export", "notebook"},
    ],
    "inspection/show": [{"rows"}, {"page"}, {"."}],
    "inspection/files": [{"format"}, {"."}],
    "inspection/advice": [
        {"hint"},
        {"evidence"},
        {"tracing", "values", "watching"},
        {"runtime"},
        {"."},
    ],
    "integrations": [{"onnx", "pytensor"}],
}


class Budget(NamedTuple):
    """Lines of a first-level folder: at most so many now, and what they are to become."""

    now: int
    target: int


BUDGETS = {  # the target is the size that the folder is to have with all that is planned for it
    "all": Budget(95035, 58000),
    "compat": Budget(3141, 2300),
    "programs": Budget(905, 900),
    "core": Budget(2410, 1450),
    "effects": Budget(1000, 1000),
    "rewriting": Budget(20680, 12500),
    "python_source": Budget(2115, 1400),
    "arrays": Budget(4420, 3100),
    "frontend": Budget(16975, 9300),
    "execution": Budget(14360, 10300),
    "inspection": Budget(22770, 16000),
    "integrations": Budget(4020, 4000),
    "tour": Budget(843, 700),
}
MOST = 15  # files of a folder, but for `__init__`
CROWDED = {"benchmarks": 37, "tests": 31}  # as many as there are today; to be 15
FOUNDATION = {"errors", "notes", "core"}  # what every reader reads; and of the door to JAX:
DOOR = {"__init__", "programs", "building", "contexts", "views", "markers", "tracers", "linear"}
INTERNALS = ("jax._src", "jax.core", "jax.extend", "jax.interpreters", "jaxlib")


def part(path):
    """The folder, or the module beside it, that a file belongs to."""
    return path.relative_to(SRC).with_suffix("").parts[0]


def below(path):
    """A file, from the package on and without its ending: "frontend/values/trees"."""
    return path.relative_to(SRC).with_suffix("").as_posix().removesuffix("/__init__")


def door(path):
    """Which part of the door to JAX a file is: what all read, a hook, the frames, or the rest."""
    if part(path) != "compat":
        return ""
    if path.parent.name == "hooks" or path.stem == "frames":
        return "hooks" if path.parent.name == "hooks" else "frames"
    return "first" if path.stem in DOOR else "rest"


@functools.cache
def item(folder, rest):
    """What lies in a folder, of the file or folder `rest` below it: a name of its rows, or "."."""
    names = set().union(*ROWS[folder])
    first = rest.split("/")[0] or "__init__"
    return first if first in names or "/" in rest or (SRC / folder / first).is_dir() else "."


def rank(folder, name):
    """The row of what lies in a folder; None for what has none."""
    return next((i for i, names in enumerate(ROWS[folder]) if name in names), None)


def dotted(node):
    """`a.b.c` for the expression a.b.c, None for any other."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attr):
            base = dotted(value)
            return base and f"{base}.{attr}"


def imported(tree):
    """(line, dotted name) of every import in a file, those inside functions too."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, alias.name) for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                base = "." * level + (module or "")
                yield from ((node.lineno, f"{base}.{alias.name}") for alias in names)


@functools.cache
def found(name):
    """The file or folder, below the package, of a dotted name of ours: "frontend/values/trees"."""
    path = ""
    for part in name.split(".")[1:]:
        inner = f"{path}/{part}".strip("/")
        if not (SRC / inner).is_dir() and not (SRC / f"{inner}.py").exists():
            break
        path = inner
    return path


def imports_not_downward(tree, mine):
    for line, name in imported(tree):
        package = name.partition(".")[0]
        if package == "":
            yield line, f"relative import {name}"
        elif package == "malleable":
            theirs, folder = found(name), ""
            while True:  # down to where they part
                a, b = (
                    item(folder, path.removeprefix(folder).strip("/")) for path in (mine, theirs)
                )
                inner = f"{folder}/{a}".strip("/")
                if a != b or inner not in ROWS:
                    break
                folder = inner
            if a != b and rank(folder, b) >= rank(folder, a):
                yield line, f"{mine} imports {theirs or name}"


def internals(tree, mine):
    if mine.split("/")[0] == "compat":
        return
    named = [(n.lineno, dotted(n)) for n in ast.walk(tree) if isinstance(n, ast.Attribute)]
    for line, name in [*imported(tree), *named]:
        if name and any(name == inside or name.startswith(f"{inside}.") for inside in INTERNALS):
            yield line, f"{name}, which only compat/ may use"


def hidden_imports(tree, mine):
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            for node in ast.walk(function):
                if isinstance(node, ast.Import | ast.ImportFrom):
                    yield node.lineno, "import inside a function"
    for node in ast.walk(tree):
        if getattr(node, "id", getattr(node, "attr", None)) == "TYPE_CHECKING":
            yield node.lineno, "TYPE_CHECKING"


# Numbers of these two folders that say nothing about hardware, by what they are.
NUMBERS = {
    "a limit on memory, or on what is looked for": (
        *("execution/cutting/announce: STATICS", "execution/purity/reads: KEPT"),
        "execution/explain/discover: BYTES",
        *("execution/explain/measuring: KEPT", "execution/jit: PARTITIONS"),
        *("execution/purity/expressions: MANY", "execution/regions/families: SHAPES"),
        *("execution/regions/regions: UNCOMPILED", "execution/regions/regions: SIZES"),
        *("execution/regions/tracing: LONG", "rewriting/axis/windows: LARGEST"),
        *("rewriting/graph/graph: SMALL", "rewriting/passes/loops: TURNS"),
        *("rewriting/passes/products: LONG", "rewriting/rules/patterns: STEPS"),
        *("rewriting/rules/rules: TRIES", "rewriting/rules/rules: FAR"),
        *("rewriting/rules/traced: REMEMBERED", "rewriting/incremental/plan: FOLDED"),
        *("rewriting/incremental/dirty: FEW", "rewriting/incremental/as_scan: MOST"),
        *("rewriting/boxes/moves: MOST", "rewriting/passes/writes: MOST_ROWS"),
        "execution/regions/signatures: SHORT",
    ),
    "rounding and random input": (
        *("rewriting/check: ODD", "rewriting/check: LONG", "rewriting/check: TRIES"),
        *("rewriting/check: ULPS", "rewriting/rules/wildcards: DIVISIBLE"),
        *("rewriting/streaming/region/sinks: LONG", "rewriting/incremental/masks: MASKED"),
    ),
    "a size, or a count of steps, that is assumed": (
        *("execution/regions/regions: PADDED", "rewriting/incremental/incremental: LONG"),
        "execution/common/work: STEPS",
    ),
    "integers of 32 bits; a column of text; bits of a processor": (
        *("execution/common/sizes: LARGEST", "execution/numpy/writer: LONGEST"),
        *("execution/common/code_objects: _count", "execution/common/denormals: _PLACES"),
    ),
}
LISTED = {name for names in NUMBERS.values() for name in names}


def hardware_numbers(tree, mine):
    """Numbers of 11 and more, or parts of one, at the head of a module: `Machine` has those."""
    if mine.split("/")[0] not in ("execution", "rewriting") or mine == "rewriting/machine":
        return
    for node in tree.body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        for x in ast.walk(node.value):
            large = isinstance(x, ast.Constant) and type(x.value) in (int, float) and x.value
            if isinstance(x, ast.BinOp) and isinstance(x.op, ast.LShift | ast.Pow):
                large = True
            if large is True or (large and (large >= 11 or large % 1)):
                name = ast.unparse(getattr(node, "target", None) or node.targets[0])
                if f"{mine}: {name}" not in LISTED:
                    yield node.lineno, f"{name}, a number about hardware outside machine.py?"
                break


def lines(path):
    """How much there is to read: lines that are not blank."""
    return sum(bool(line.strip()) for line in path.read_text().splitlines())


def longest(path):
    if path.parent == SRC / "effects":
        return 149
    return 600


@pytest.mark.parametrize(
    "rule", [imports_not_downward, internals, hidden_imports, hardware_numbers]
)
def test_every_file_keeps(rule):
    broken = [
        f"{path.relative_to(SRC)}:{line}: {what}"
        for path in FILES
        for line, what in rule(ast.parse(path.read_text()), below(path))
    ]
    assert broken == []


def test_everything_has_a_row():
    without = [
        f"{folder or 'malleable'}: {path.stem}"
        for folder in ROWS
        for path in (SRC / folder).iterdir()
        if path.suffix == ".py" or (path.is_dir() and (path / "__init__.py").exists())
        if path.stem != "__init__" and rank(folder, item(folder, path.stem)) is None
    ]
    split = {p.parent.parent.relative_to(SRC).as_posix() for p in FILES if p.parent != SRC} - {"."}
    assert without == [] and split <= {*ROWS}


def test_every_row_has_something():
    named = [(folder, name) for folder, rows in ROWS.items() for names in rows for name in names]
    there = [SRC / folder / name for folder, name in named if name != "."]
    assert [p for p in there if not p.is_dir() and not p.with_suffix(".py").exists()] == []


def test_a_folder_has_few_files():
    counts = {}
    for base in ("src/malleable", "tests", "benchmarks", "examples"):
        for path in (ROOT / base).rglob("*.py"):
            if path.stem != "__init__":
                folder = path.parent.relative_to(ROOT).as_posix()
                counts[folder] = counts.get(folder, 0) + 1
    assert {f: n for f, n in counts.items() if n > CROWDED.get(f, MOST)} == {}


def test_every_first_level_folder_has_a_short_readme():
    folders = [p for p in SRC.iterdir() if (p / "__init__.py").exists()]
    sizes = {p.name: len((p / "README.md").read_text().splitlines()) for p in folders}
    assert {name: size for name, size in sizes.items() if not 10 <= size <= 24} == {}


def test_the_folders_keep_to_their_budgets():
    sizes = dict.fromkeys(BUDGETS, 0)
    for path in FILES:
        count = len(path.read_text().splitlines())
        sizes["all"] += count
        if path.parent != SRC:
            sizes[part(path)] += count
    assert {f: n for f, n in sizes.items() if n > BUDGETS[f].now} == {}


def test_every_listed_number_is_there():
    heads = {
        f"{below(path)}: {ast.unparse(target)}"
        for path in FILES
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Assign)
        for target in node.targets
    }
    assert LISTED - heads == set()


def test_files_are_short():
    long = [path for path in FILES if lines(path) > longest(path)]
    assert [f"{path.relative_to(SRC)}: {lines(path)} > {longest(path)}" for path in long] == []


def overused(defined):
    """{name: files} of the functions that stand at the top of more than three files.

    defined: (file, tree). An entry of a table, which is named after its primitive, or its kind,
    may stand in each of them; a function that is only called is no entry.
    """
    files, entries = {}, {*PRIMITIVES, *KINDS, "custom_jvp", "custom_vjp"}
    for file, tree in defined:
        called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        listed = {x.id for x in ast.walk(tree) if isinstance(x, ast.Name) and id(x) not in called}
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                is_listed = node.decorator_list or node.name in listed
                if not (is_listed and node.name.strip("_") in entries):
                    files.setdefault(node.name, set()).add(file)
    return {name: sorted(found) for name, found in files.items() if len(found) > 3}


def test_no_name_of_a_function_stands_in_many_files():
    assert overused((below(path), ast.parse(path.read_text())) for path in FILES) == {}


def test_a_name_in_four_files_is_seen():
    tree = ast.parse("def plain(x): ...\n\nclass A:\n    def other(self): ...")
    assert overused([(file, tree) for file in "abcd"]) == {"plain": ["a", "b", "c", "d"]}
    assert overused([(file, tree) for file in "abc"]) == {}


def test_entries_of_tables_are_named_as_their_primitives():
    entry = "def _scan(x): ...\n\n"
    listed, called = (ast.parse(entry + use) for use in ("TABLE = {'scan': _scan}", "_scan(1)"))
    assert overused([(file, listed) for file in "abcd"]) == {}
    assert overused([(file, called) for file in "abcd"]) == {"_scan": ["a", "b", "c", "d"]}


def test_the_foundation_is_read_in_one_sitting():
    first = [p for p in FILES if part(p) in FOUNDATION or door(p) == "first"]
    sizes = {str(p.relative_to(SRC)): lines(p) for p in first}
    assert sum(sizes.values()) <= 3195, sizes


@pytest.mark.parametrize(("which", "most"), [("hooks", 610), ("frames", 150), ("rest", 575)])
def test_the_rest_of_the_door_is_small(which, most):
    """What JAX has no public way for, and what only those who look into programs need of it.

    frames: a table of names that only advice reads, one line for each variable of JAX's functions.
    """
    sizes = {str(p.relative_to(SRC)): lines(p) for p in FILES if door(p) == which}
    assert sum(sizes.values()) <= most, sizes


def test_the_arrays_are_a_second_sitting():
    sizes = {str(p.relative_to(SRC)): lines(p) for p in FILES if part(p) == "arrays"}
    assert sum(sizes.values()) <= 3480, sizes


@pytest.mark.parametrize(
    ("rule", "mine", "source"),
    [
        (imports_not_downward, "core/live", "from malleable.effects.tags import tag"),
        (imports_not_downward, "effects/tags", "from malleable.rewriting import rules"),
        (imports_not_downward, "core/live", "import malleable"),
        (imports_not_downward, "effects/tags", "from malleable import tag"),
        (imports_not_downward, "core/live", "from malleable import arrays"),
        (imports_not_downward, "core/live", "from .stage import stage"),
        (imports_not_downward, "notes", "from malleable.errors import MalleableError"),
        (imports_not_downward, "compat/programs", "from malleable.compat.hooks import Hook"),
        (
            imports_not_downward,
            "frontend/values/trees",
            "import malleable.frontend.operators.items",
        ),
        (imports_not_downward, "frontend/syntax/loops", "from malleable.frontend import common"),
        (imports_not_downward, "execution/jit", "from malleable.execution.explain import report"),
        (
            imports_not_downward,
            "rewriting/streaming/region/grow",
            "from malleable.rewriting.streaming.push import push_up_reductions",
        ),
        (imports_not_downward, "inspection/places", "from malleable.inspection import show"),
        (
            imports_not_downward,
            "inspection/show/rows/lines",
            "import malleable.inspection.show.text",
        ),
        (internals, "core/live", "from jax import core"),
        (internals, "core/live", "import jax\n\njax.core.Tracer"),
        (internals, "effects/tags", "import jax.extend as jex"),
        (internals, "arrays/box", "from jaxlib import xla_client"),
        (hardware_numbers, "rewriting/streaming/cost", "CACHE = 1 << 20"),
        (hardware_numbers, "rewriting/axis/shapes", "FEW, LONG = 64, 3"),
        (hardware_numbers, "execution/common/work", "CALL: float = 15e-6"),
        (hardware_numbers, "execution/numpy/code", "COST = {'add': Price(4e-6)}"),
        (hidden_imports, "core/live", "def f():\n    import jax"),
        (hidden_imports, "core/live", "from typing import TYPE_CHECKING\nif TYPE_CHECKING: pass"),
        (hidden_imports, "core/live", "import typing\nif typing.TYPE_CHECKING: pass"),
    ],
)
def test_a_broken_rule_is_seen(rule, mine, source):
    assert list(rule(ast.parse(source), mine))


@pytest.mark.parametrize(
    ("rule", "mine", "source"),
    [
        (imports_not_downward, "core/live", "from malleable.core.stage import stage"),
        (imports_not_downward, "core/live", "from malleable import compat, notes"),
        (imports_not_downward, "frontend/convert", "from malleable.frontend.values import trees"),
        (imports_not_downward, "inspection/advice", "from malleable.inspection.advice import hint"),
        (imports_not_downward, "tour", "import malleable as mal"),
        (imports_not_downward, "__main__", "from malleable import tour"),
        (internals, "core/live", "import jax\nfrom jax import lax\n\njax.lax.scan_p"),
        (internals, "compat/views", "from jax._src import core"),
        (hardware_numbers, "rewriting/machine", "CACHE = 1 << 20"),
        (hardware_numbers, "rewriting/streaming/push", "ROUNDS = 4"),
        (hardware_numbers, "rewriting/check", "ULPS = 64"),
        (
            hidden_imports,
            "core/live",
            "try:\n    import rich\nexcept ImportError:\n    rich = None",
        ),
    ],
)
def test_good_code_is_left_alone(rule, mine, source):
    assert not list(rule(ast.parse(source), mine))
