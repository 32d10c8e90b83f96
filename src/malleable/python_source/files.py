"""Files of user code, as text and as trees: each is read once, and again when its text changes."""

import ast
import functools
import linecache
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from malleable.compat import Place
from malleable.python_source.nodes import SHARED

Span = tuple[int, int, int | None, int | None]  # first line and column, last line and column
UNREADABLE = (SyntaxError, ValueError, RecursionError)  # what `ast.parse` raises
KEPT = 64  # files whose trees are kept


def parse(text: str, mode: str = "exec") -> Any:
    """`ast.parse`, tried again where CPython 3.11 mistakes another thread's depth for ours."""
    for _ in range(5):
        try:
            return ast.parse(text, mode=mode)
        except SystemError:  # "AST constructor recursion depth mismatch", cpython#106905
            continue
    return ast.parse(text, mode=mode)


class File:
    """The text of a file, and its tree, whose nodes know their `parent`."""

    def __init__(self, lines: list[str]):
        self.lines = lines

    @functools.cached_property
    def tree(self) -> ast.Module | None:
        """None where the text is no Python."""
        try:
            tree = parse("".join(self.lines))
        except UNREADABLE:
            return None
        for node in ast.walk(tree):
            for child in ast.iter_child_nodes(node):
                if not isinstance(child, SHARED):
                    child.parent = node  # type: ignore[attr-defined]
        return tree

    @functools.cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """All nodes of the tree, the outer before the inner."""
        return tuple(ast.walk(self.tree)) if self.tree else ()

    @functools.cached_property
    def spans(self) -> dict[Span, ast.expr | ast.AugAssign]:
        """What is computed at each span; of several expressions the innermost."""
        computed = (n for n in self.nodes if isinstance(n, ast.expr | ast.AugAssign))
        return {(n.lineno, n.col_offset, n.end_lineno, n.end_col_offset): n for n in computed}

    def at(self, place: Place) -> ast.expr | ast.AugAssign | None:
        """What a frame or an equation of this place computes."""
        return self.spans.get((place.line, place.column, place.end_line, place.end_column))


_files: OrderedDict[str, File] = OrderedDict()


def read(file: str) -> File:
    """A file as it is now; without lines where it cannot be read.

    >>> read("no such file").tree.body
    []
    """
    lines = linecache.getlines(file)
    held = _files.pop(file, None)
    if held is None or (held.lines is not lines and held.lines != lines):
        held = File(lines)
    _files[file] = held
    if len(_files) > KEPT:
        _files.popitem(last=False)
    return held


def parents(node: ast.AST | None) -> Iterator[ast.AST]:
    """The nodes around a node, innermost first."""
    while (node := getattr(node, "parent", None)) is not None:
        yield node


def around(node: ast.AST | None, kind: Any) -> Any:
    """A node itself or the innermost one around it of some kind, None without."""
    nodes = (node, *parents(node)) if node is not None else ()
    return next((n for n in nodes if isinstance(n, kind)), None)
