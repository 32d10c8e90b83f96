"""JAX still has the frames that advice reads, and nothing else in advice names one."""

import ast
import functools
import importlib.util
import pathlib
import types

import pytest

from malleable import compat
from malleable.compat import frames

ADVICE = pathlib.Path(compat.__file__).parents[1] / "inspection" / "advice"
OTHERS = {"libraries.py", "ecosystem.py"}  # they read the frames of other libraries


@functools.cache
def codes(module):
    """{name: [variables]} of the functions in a module of JAX."""
    spec = importlib.util.find_spec(f"jax._src.{module}")
    waiting, found = [compile(pathlib.Path(spec.origin).read_text(), "", "exec")], {}
    for code in waiting:
        names = {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
        found.setdefault(code.co_name, []).append(names)
        waiting += [one for one in code.co_consts if isinstance(one, types.CodeType)]
    return found


@pytest.mark.parametrize("module", frames.FUNCTIONS)
def test_jax_has_each_function(module):
    assert not {*frames.FUNCTIONS[module]} - {*codes(module)}


@pytest.mark.parametrize("function", frames.LOCALS)
def test_jax_has_each_variable(function):
    modules = [m for m, names in frames.FUNCTIONS.items() if function in names]
    held = [names for m in modules for names in codes(m)[function]]
    lacking = [some for some in frames.LOCALS[function] if not any({*some} & h for h in held)]
    assert not lacking


def named_elsewhere(tree, others=False):
    """(line, name) wherever a frame of JAX, or a variable in it, is named as a string."""
    functions = {name for names in frames.FUNCTIONS.values() for name in names}
    inner = {name for name in functions if name.startswith("_")}
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(name)) if name in inner:
                yield node.lineno, name
            case ast.Call(func=ast.Attribute(attr="within"), args=args) if not others:
                yield from ((arg.lineno, "within") for arg in args if texts(arg))
            case ast.Compare(left=ast.Attribute(attr="name"), comparators=[held]):
                yield from ((node.lineno, name) for name in texts(held) if name in functions)
            case (
                ast.Call(func=ast.Attribute(value=scope, attr="get"), args=[key, *_])
                | ast.Subscript(value=scope, slice=key)
                | ast.Compare(left=key, ops=[ast.In() | ast.NotIn()], comparators=[scope])
            ) if not others and "values" in (getattr(scope, "attr", ""), getattr(scope, "id", "")):
                yield from ((node.lineno, name) for name in texts(key))


def texts(node):
    return [
        n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and n.value.__class__ is str
    ]


@pytest.mark.parametrize("path", sorted(ADVICE.rglob("*.py")), ids=lambda path: path.stem)
def test_advice_names_no_frame_of_jax(path):
    assert not list(named_elsewhere(ast.parse(path.read_text()), path.name in OTHERS))


@pytest.mark.parametrize(
    "source",
    [
        'trouble.within("scan")',
        'step.values.get("body_fun")',
        'step.values["init"]',
        '"fun" in step.values',
        'step.name == "cache_miss"',
        'NAMES = ("_check_carry_type",)',
    ],
)
def test_a_planted_name_is_seen(source):
    assert list(named_elsewhere(ast.parse(source)))
