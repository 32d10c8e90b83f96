"""The syntax tree of a function, found by its code object, with the file's own line numbers."""

import ast
import linecache
import threading
import types
from dataclasses import dataclass
from typing import Any

from malleable.python_source.nodes import copied


class NoSource(Exception):
    """A function whose source cannot be had; the text says why."""


@dataclass(frozen=True)
class Found:
    """A function's own node (def or lambda), fresh, and the class that mangles its names."""

    node: ast.AST
    filename: str
    line: int
    owner: str | None
    lines: list


_files = {}
_lock = threading.RLock()


def find(code, module_globals=None):
    """The node that `code` was compiled from, as a copy that may be changed.

    Raises NoSource where the file is not at hand or does not fit the code.
    """
    filename = code.co_filename
    lines = linecache.getlines(filename, module_globals)
    absent = NoSource(f"the source of {code.co_qualname} is not at hand ({filename})")
    if not lines:
        raise absent
    with _lock:
        held = _files.get(filename)
        if held is None or held.lines is not lines:
            held = _files[filename] = _File(lines)
    if code.co_name == "<lambda>":
        try:
            node, owner = held.function_at(code, held.lambdas())
        except NoSource as e:
            raise absent if filename == "<string>" else e from None
        return Found(copied(node), filename, code.co_firstlineno, owner, lines)
    span = held.defs.get(code.co_firstlineno)
    if span is None or span[0] not in (code.co_name, _plain(code.co_name, span[3])):
        if filename == "<string>":  # from Python 3.13 on, that may be another text
            raise absent
        raise NoSource(f"{filename} has changed: no {code.co_name} at line {code.co_firstlineno}")
    _, start, end, owner = span
    return Found(_def_alone(lines, start, end), filename, start, owner, lines)


def _plain(name, owner):
    return name.removeprefix("_" + (owner or "").lstrip("_"))


def _def_alone(lines, start, end):
    """Parse one def alone, at its place: C speed, in place of a copy of its nodes."""
    text = "".join(lines[start - 1 : end])
    if text[:1] in " \t\f":
        tree = ast.parse("\n" * (start - 2) + "if 1:\n" + text)
        return tree.body[0].body[0]
    return ast.parse("\n" * (start - 1) + text).body[0]


class _File:
    def __init__(self, lines):
        self.lines, self.defs, self._lambdas = lines, {}, None
        try:
            tree = ast.parse("".join(lines))
        except (SyntaxError, ValueError) as error:
            raise NoSource(f"the source does not parse: {error}") from None
        todo = [(stmt, None) for stmt in tree.body]
        while todo:
            stmt, owner = todo.pop()
            if isinstance(stmt, (ast.FunctionDef, ast.AsyncFunctionDef)):
                first = min([stmt.lineno, *(d.lineno for d in stmt.decorator_list)])
                self.defs[first] = (stmt.name, first, stmt.end_lineno, owner)
            elif isinstance(stmt, ast.ClassDef):
                owner = stmt.name
            for field in ("body", "orelse", "finalbody"):
                todo.extend((child, owner) for child in getattr(stmt, field, ()))
            for holder in (*getattr(stmt, "handlers", ()), *getattr(stmt, "cases", ())):
                todo.extend((child, owner) for child in holder.body)

    def lambdas(self):
        """Line to [(lambda node, class)], made when the first lambda of the file is asked for."""
        if self._lambdas is None:
            found = {}
            todo = [(ast.parse("".join(self.lines)), None)]
            while todo:
                node, owner = todo.pop()
                if isinstance(node, ast.Lambda):
                    found.setdefault(node.lineno, []).append((node, owner))
                elif isinstance(node, ast.ClassDef):
                    owner = node.name
                todo.extend((child, owner) for child in ast.iter_child_nodes(node))
            self._lambdas = found
        return self._lambdas

    def function_at(self, code, lambdas):
        """The lambda of that line whose body is just where the code's instructions stand."""
        spots = [spot for spot in code.co_positions() if None not in spot and spot[2:] != (0, 0)]
        near = [
            (node, owner)
            for node, owner in lambdas.get(code.co_firstlineno, ())
            if all(_within(spot, node.body) for spot in spots) and _arguments(node) == _taken(code)
        ]
        if not near:
            raise NoSource(f"{code.co_filename} has no such lambda at line {code.co_firstlineno}")
        if len(near) > 1 and spots:
            exact = [(node, owner) for node, owner in near if _span(node.body) in spots]
            near = exact or near
        return min(near, key=lambda found: _size(found[0].body))


def _span(node):
    return (node.lineno, node.end_lineno, node.col_offset, node.end_col_offset)


def _size(node):
    return (node.end_lineno - node.lineno, node.end_col_offset - node.col_offset)


def _within(spot, body):
    line, end_line, column, end_column = spot
    after = (body.lineno, body.col_offset) <= (line, column)
    return after and (end_line, end_column) <= (body.end_lineno, body.end_col_offset)


def _arguments(node):
    args = node.args
    return len(args.posonlyargs) + len(args.args), len(args.kwonlyargs)


def _taken(code):
    return code.co_argcount, code.co_kwonlyargcount


def closed_over(fun: Any) -> dict[str, Any]:
    """{name: value} of what a function closes over, without what has no value yet."""
    names = getattr(getattr(fun, "__code__", None), "co_freevars", ())
    cells = zip(names, getattr(fun, "__closure__", None) or (), strict=False)
    return {name: cell.cell_contents for name, cell in cells if cell != types.CellType()}
