"""Functions made of trees and of text."""

import ast
import linecache
import types

from malleable.python_source import nodes
from malleable.python_source.files import parse
from malleable.python_source.nodes import placed


def compiled(
    node: ast.FunctionDef, filename: str, free: tuple, name: str, qualname: str = ""
) -> types.CodeType:
    """The code object of a function that takes `free` from around it."""
    outer = nodes.function("_factory", (), [node])
    outer.args = nodes.parameters(free)
    module = ast.Module(body=[placed(outer, node)], type_ignores=[])
    ast.fix_missing_locations(module)
    code = compile(module, filename, "exec", dont_inherit=True)
    factory = next(c for c in code.co_consts if isinstance(c, types.CodeType))
    made = next(
        c for c in factory.co_consts if isinstance(c, types.CodeType) and c.co_name == node.name
    )
    made = _qualified(made, made.co_qualname, qualname or name)
    return made.replace(co_name=name)


def _qualified(code: types.CodeType, old: str, new: str) -> types.CodeType:
    """The code where it, and what is made in it, bear this qualified name."""
    called = lambda name: new + name.removeprefix(old)  # noqa: E731
    consts = [
        _qualified(x, old, new) if isinstance(x, types.CodeType)
        else called(x) if isinstance(x, str) and x.startswith(f"{old}.<locals>.")
        else x
        for x in code.co_consts
    ]  # fmt: skip
    return code.replace(co_qualname=called(code.co_qualname), co_consts=tuple(consts))


def function(code, fun_globals: dict, cells: dict, defaults=None, kwdefaults=None):
    """A function of that code; cells: the closure, by name."""
    closure = tuple(cells[name] for name in code.co_freevars)
    made = types.FunctionType(code, fun_globals, code.co_name, defaults, closure)
    made.__qualname__ = code.co_qualname
    made.__kwdefaults__ = kwdefaults
    return made


def cells_of(fun: types.FunctionType) -> dict:
    """The closure of a function, by name."""
    return dict(zip(fun.__code__.co_freevars, fun.__closure__ or (), strict=True))


_count = iter(range(1, 10**9))


def from_text(text: str, what: str, fun_globals: dict, cells: dict, qualname: str = ""):
    """A function made of text that tracebacks and the front end can read."""
    filename = f"<region {next(_count)} of {what}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
    node = parse(text).body[0]
    assert isinstance(node, ast.FunctionDef)
    code = compiled(node, filename, tuple(cells), node.name, qualname)
    return function(code, fun_globals, cells)
