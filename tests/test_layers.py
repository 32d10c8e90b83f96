"""The shape of the package: who may import whom, through which door, and how long a file may be."""

import ast
import pathlib

import pytest

SRC = pathlib.Path(__file__).parent.parent / "src" / "malleable"
FILES = sorted(SRC.rglob("*.py"))

# A module imports from rows above its own only: what a reader of it must know comes first.
ROWS = [
    {"errors", "notes"},
    {"compat"},
    {"core", "arrays"},
    {"frontend", "effects", "rewriting"},
    {"execution"},
    {"inspection"},  # sees everything, and is seen by nobody
    {"__init__"},
    {"tour", "integrations"},
    {"__main__"},
]
FOUNDATION = {"errors", "notes", "core"}  # what every reader reads; and of the door to JAX:
DOOR = {"__init__", "programs", "building", "contexts", "views", "markers", "tracers", "linear"}
INTERNALS = ("jax._src", "jax.core", "jax.extend", "jax.interpreters", "jaxlib")


def part(path):
    """The folder, or the module beside it, that a file belongs to."""
    return path.relative_to(SRC).with_suffix("").parts[0]


def door(path):
    """Which part of the door to JAX a file is: what all read, a hook, or the rest."""
    if part(path) != "compat":
        return ""
    return "hooks" if path.parent.name == "hooks" else "first" if path.stem in DOOR else "rest"


def row(name):
    return next(i for i, names in enumerate(ROWS) if name in names)


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


def imports_not_downward(tree, mine):
    for line, name in imported(tree):
        package, _, rest = name.partition(".")
        if package == "":
            yield line, f"relative import {name}"
        elif package == "malleable":
            first = rest.split(".")[0]
            theirs = first if any(first in names for names in ROWS) else "__init__"
            if theirs != mine and row(theirs) >= row(mine):
                yield line, f"{mine} imports {theirs}"


def internals(tree, mine):
    if mine == "compat":
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


def lines(path):
    """How much there is to read: lines that are not blank."""
    return sum(bool(line.strip()) for line in path.read_text().splitlines())


def longest(path):
    if path.parent == SRC / "effects":
        return 149
    return 600


@pytest.mark.parametrize("rule", [imports_not_downward, internals, hidden_imports])
def test_every_file_keeps(rule):
    broken = [
        f"{path.relative_to(SRC)}:{line}: {what}"
        for path in FILES
        for line, what in rule(ast.parse(path.read_text()), part(path))
    ]
    assert broken == []


def test_every_part_has_a_row():
    assert {part(path) for path in FILES} <= set().union(*ROWS)


def test_files_are_short():
    long = [path for path in FILES if lines(path) > longest(path)]
    assert [f"{path.relative_to(SRC)}: {lines(path)} > {longest(path)}" for path in long] == []


def test_the_foundation_is_read_in_one_sitting():
    first = [p for p in FILES if part(p) in FOUNDATION or door(p) == "first"]
    sizes = {str(p.relative_to(SRC)): lines(p) for p in first}
    assert sum(sizes.values()) <= 2680, sizes


@pytest.mark.parametrize(("which", "most"), [("hooks", 600), ("rest", 450)])
def test_the_rest_of_the_door_is_small(which, most):
    """What JAX has no public way for, and what only those who look into programs need of it."""
    sizes = {str(p.relative_to(SRC)): lines(p) for p in FILES if door(p) == which}
    assert sum(sizes.values()) <= most, sizes


def test_the_arrays_are_a_second_sitting():
    sizes = {str(p.relative_to(SRC)): lines(p) for p in FILES if part(p) == "arrays"}
    assert sum(sizes.values()) <= 2700, sizes


@pytest.mark.parametrize(
    ("rule", "mine", "source"),
    [
        (imports_not_downward, "core", "from malleable.effects.tags import tag"),
        (imports_not_downward, "effects", "from malleable.rewriting import rules"),
        (imports_not_downward, "core", "import malleable"),
        (imports_not_downward, "effects", "from malleable import tag"),
        (imports_not_downward, "core", "from malleable import arrays"),
        (imports_not_downward, "core", "from .stage import stage"),
        (imports_not_downward, "notes", "from malleable.errors import MalleableError"),
        (internals, "core", "from jax import core"),
        (internals, "core", "import jax\n\njax.core.Tracer"),
        (internals, "effects", "import jax.extend as jex"),
        (internals, "arrays", "from jaxlib import xla_client"),
        (hidden_imports, "core", "def f():\n    import jax"),
        (hidden_imports, "core", "from typing import TYPE_CHECKING\nif TYPE_CHECKING: pass"),
        (hidden_imports, "core", "import typing\nif typing.TYPE_CHECKING: pass"),
    ],
)
def test_a_broken_rule_is_seen(rule, mine, source):
    assert list(rule(ast.parse(source), mine))


@pytest.mark.parametrize(
    ("rule", "mine", "source"),
    [
        (imports_not_downward, "core", "from malleable.core.stage import stage"),
        (imports_not_downward, "core", "from malleable import compat, notes"),
        (imports_not_downward, "tour", "import malleable as mal"),
        (imports_not_downward, "__main__", "from malleable import tour"),
        (internals, "core", "import jax\nfrom jax import lax\n\njax.lax.scan_p"),
        (internals, "compat", "from jax._src import core"),
        (hidden_imports, "core", "try:\n    import rich\nexcept ImportError:\n    rich = None"),
    ],
)
def test_good_code_is_left_alone(rule, mine, source):
    assert not list(rule(ast.parse(source), mine))
