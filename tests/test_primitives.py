"""Every primitive of JAX has one row of facts, which are true, and no set of them is elsewhere."""

import ast
import json
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest
from jax import lax

from malleable.programs.primitives import FACTS, KINDS, PRIMITIVES, has, kind

LOADS = """
import importlib, json, sys
for name in (
    "jax.numpy jax.scipy.special jax.scipy.linalg jax.ffi jax.export jax.experimental.sparse "
    "jax.experimental.checkify jax.experimental.hijax jax.experimental.pallas jax._src.cudnn "
    "jax._src.cudnn.fusion jax._src.cudnn.fused_attention_stablehlo "
    "jax._src.cudnn.scaled_matmul_stablehlo"
).split():
    importlib.import_module(name)
from jax._src.core import Primitive
modules = [vars(module) for name, module in [*sys.modules.items()] if name.startswith("jax")]
print(json.dumps(sorted({v.name for m in modules for v in m.values() if isinstance(v, Primitive)})))
"""
OLD = jax.__version_info__ < (0, 11)
NEWEST = jax.__version_info__ >= (0, 12)


@pytest.fixture(scope="module")
def there():
    """The primitives of the installed JAX, those of kernels and sparse arrays too."""
    told = subprocess.run([sys.executable, "-c", LOADS], capture_output=True, text=True, check=True)
    return set(json.loads(told.stdout))


def test_every_primitive_of_jax_has_a_row(there):
    assert there - PRIMITIVES.keys() == set()


def test_every_row_is_of_a_primitive(there):
    elsewhere = kind("marker") | (has("new") if not NEWEST else set())
    elsewhere |= has("gone") if not OLD else set()
    assert PRIMITIVES.keys() - elsewhere - there == set()


@pytest.mark.skipif(not (OLD or NEWEST), reason="between the two, a row may be of either")
def test_a_row_says_which_jax_has_it(there):
    assert there & has("gone" if NEWEST else "new") == set()


def test_every_word_is_used():
    assert {row.kind for row in PRIMITIVES.values()} == KINDS.keys()
    assert set().union(*(row.facts for row in PRIMITIVES.values())) == FACTS.keys()


def test_a_word_without_a_meaning_is_refused():
    with pytest.raises(ValueError, match="elementwize"):
        kind("elementwize")
    with pytest.raises(ValueError, match="fusible"):
        has("fusible")


X, Y = np.float32([-2.5, -0.5, 0.0, 0.25, 1, 4]), np.float32([1.5, -0.5, 2.0, 0.125, 1, -3])


def of_floats(name):
    """The function of an elementwise primitive, where it is one of one or two floats, or None."""
    for fun in filter(None, [getattr(lax, name, None)]):
        for operands in ((X,), (X, Y)):
            try:
                jax.eval_shape(fun, *operands)
            except (TypeError, ValueError):
                continue
            return fun, operands


MAPS = {name: found for name in sorted(kind("elementwise")) if (found := of_floats(name))}


@pytest.mark.parametrize("name", MAPS)
def test_what_is_said_of_an_elementwise_primitive_is_true(name):
    facts, (fun, operands) = PRIMITIVES[name].facts, MAPS[name]
    out = np.asarray(fun(*operands))
    if len(operands) == 2:
        swapped = np.asarray(fun(*operands[::-1]))
        assert ("commutative" in facts) == np.array_equal(out, swapped, equal_nan=True)
    others = (Y, X[::-1])[: len(operands)]
    together = np.asarray(fun(*map(np.add, operands, others)))
    linear = out.dtype != bool and np.array_equal(together, out + fun(*others))
    assert ("linear" in facts) == linear
    assert ("compares" in facts) == (out.dtype == bool and len(operands) == 2)
    if "exact" in facts:
        assert np.isin(np.abs(out), np.abs(operands)).all()
    if "tame" in facts:
        assert np.isfinite(np.float32(fun(*map(np.zeros_like, operands)))).all()


# ---------------------------------------------------------------- tables elsewhere

SRC = pathlib.Path(__file__).parent.parent / "src" / "malleable"
# those of Python functions of the same names (arrays, frontend); of what JAX calls things (compat)
OTHERS = {"arrays", "compat", "frontend", "programs", "tour"}
_WHY = {
    "how NumPy and Python spell them": "UFUNCS SPECIAL WINDOWS REDUCTIONS RUNNING "
    "OPERATORS FUNCTIONS _REDUCTIONS _SPELLED _OPERATORS _JNP _OTHERWISE",
    "functions and methods of the same names": "_IN_PLACE _ARRAY_METHODS _ASKS _METHODS _BUILTINS "
    "_COLLECTIVES _MATH _STEPS",
    "what ONNX and jax2onnx have": "ALONE KEPT NATIVE FOREIGN ORDERED MOVES UNUSED _name",
    "params of JAX": "CALLS _SILENT",
    "texts for users": "_DOMAIN REFUSED",
    "code, by name": "RULES SAFE TABLE",
}
KEPT = {name for names in _WHY.values() for name in names.split()}


def names_in(node):
    """The strings of a literal set, list or tuple, of a text that is split, or of plain values."""
    match node:
        case ast.Set(elts=found) | ast.List(elts=found) | ast.Tuple(elts=found):
            return [e.value for e in found if isinstance(e, ast.Constant)]
        case ast.Dict(keys=keys, values=values):
            code = ast.Name | ast.Attribute | ast.Lambda | ast.Call
            facts = [k for k, v in zip(keys, values, strict=True) if not isinstance(v, code)]
            return [k.value for k in facts if isinstance(k, ast.Constant)]
        case ast.Constant(value=str(text)) if len(words := text.split()) > 2:
            return words if all(word in PRIMITIVES for word in words) else []
    return []


def tables(tree):
    """(line, name it is given) of each literal with the names of three or more primitives.

    A rule that is registered for several (`dict.fromkeys(names, rule)`) is code, and so is a
    function that treats three by name.
    """
    code = set()
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="fromkeys"), args=[names, ast.Name()]):
                code.add(names)
    for statement in tree.body:
        targets = getattr(statement, "targets", [getattr(statement, "target", None)])
        name = targets[0].id if isinstance(targets[0], ast.Name) else ""
        most = 3 if isinstance(statement, ast.FunctionDef | ast.ClassDef) else 2
        for node in ast.walk(statement):
            if node not in code and len(set(names_in(node)) & PRIMITIVES.keys()) > most:
                yield node.lineno, name


def test_no_table_of_primitives_is_elsewhere():
    files = [p for p in sorted(SRC.rglob("*.py")) if p.relative_to(SRC).parts[0] not in OTHERS]
    found = [
        f"{path.relative_to(SRC)}:{line}: {name}"
        for path in files
        for line, name in tables(ast.parse(path.read_text()))
        if name not in KEPT
    ]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        'PLAIN = {"add", "sub", "mul"}',
        'PLAIN = frozenset(("add", "sub", "mul"))',
        'PLAIN = frozenset("add sub mul".split())',
        'COST = {"add": 1, "sub": 1, "mul": 2}',
        'def f(name):\n    return name in ("scan", "while", "cond", "jit")',
    ],
)
def test_a_table_is_seen(source):
    assert [*tables(ast.parse(source))]


@pytest.mark.parametrize(
    "source",
    [
        'PLAIN = kind("dims") | {"copy", "iota"}',
        'RULES = {"add": np.add, "sub": np.subtract, "mul": lambda a, b: a * b}',
        'RULES = dict.fromkeys(("add", "sub", "mul"), elementwise)',
        'WORDS = ("append", "add", "extend")',
    ],
)
def test_code_and_other_words_are_no_table(source):
    assert not [*tables(ast.parse(source))]
