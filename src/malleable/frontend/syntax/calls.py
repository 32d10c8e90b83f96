"""Calls, attributes, items, super(), raise and lambdas as operator calls."""

import ast

from malleable.frontend.syntax import loops
from malleable.frontend.syntax.jumps import looks_at_scope
from malleable.python_source.nodes import HOOKS, constant, hook, load, placed

LINKS = frozenset(["__cause__", "__context__", "__suppress_context__"])
NATIVE = frozenset(["locals", "globals", "eval", "exec"])


def call(writer, node):
    name = node.func.id if isinstance(node.func, ast.Name) else None
    if name == "super" and "super" not in writer.liveness.locals:
        if not node.args and not node.keywords:
            return _super(writer, node)
        return writer.inside(node)
    if looks_at_scope(node) and name not in ("eval", "exec"):
        return loops.user_names(node)
    told = name in ("eval", "exec") and len(node.args) > 1  # the variables, instead of a frame
    if name in NATIVE and name not in writer.liveness.locals and not told:
        return writer.inside(node)
    if loops.is_consumed(writer, node):
        return loops.consumed(writer, node, writer.expression(node.func))
    keywords = node.keywords
    for keyword in keywords:
        keyword.value = writer.expression(keyword.value)
        if keyword.arg is None and writer.full:
            keyword.value = placed(hook("spread", keyword.value), keyword.value)
    printed = name == "print" and name not in writer.liveness.locals
    args = [writer.printed(arg) if printed else writer.expression(arg) for arg in node.args]
    func = writer.expression(node.func)
    return placed(hook("call", func, *args, keywords=keywords), node)


def _super(writer, node):
    """`super(__class__, self)`: without arguments it would look into the block's frame."""
    if not (writer.first_argument and writer.in_class):
        return node
    names = ("__class__", writer.first_argument)
    node.args = [placed(load(name), node) for name in names]
    return node


def attribute(writer, node):
    if not isinstance(node.ctx, ast.Load):
        node.value = writer.expression(node.value)
        return node
    if isinstance(node.value, ast.Name) and node.value.id == HOOKS:
        return node
    operator = "linked" if node.attr in LINKS else "attr"
    return placed(hook(operator, writer.expression(node.value), constant(node.attr)), node)


def subscript(writer, node):
    value = writer.expression(node.value)
    if not isinstance(node.ctx, ast.Load) or _fixed(node.slice):
        node.value, node.slice = value, writer.expression(node.slice)
        return node
    return placed(hook("getitem", value, writer.index(node.slice)), node)


def _fixed(index):
    """Whether an index is one that no list or dict knows: `...`."""
    return isinstance(index, ast.Constant) and index.value is ...


def raise_(writer, stmt):
    if stmt.exc is not None:
        stmt.exc = placed(hook("raising", writer.expression(stmt.exc)), stmt.exc)
    if stmt.cause is not None:
        stmt.cause = writer.expression(stmt.cause)
    return [stmt]
