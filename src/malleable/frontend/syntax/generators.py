"""A generator function as one that returns a list of all it yields."""

import ast

from malleable.python_source.nodes import load, placed, store
from malleable.python_source.source import NoSource

FOUND = "yielded"  # a name that errors show; lengthened until the function has none like it
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


def as_list(node):
    """`yield x` as `found.append(x)`, `yield from xs` as `found.extend(list(xs))`, in place.

    Raises NoSource for a `yield` whose value is used: somebody sends it.
    """
    names = {getattr(one, field, None) for one in ast.walk(node) for field in ("id", "arg", "name")}
    found = FOUND
    while found in names:
        found += "_"
    body = [_statement(stmt, found) for stmt in node.body]
    first, last = node.body[0], node.body[-1]
    begin = placed(ast.Assign(targets=[store(found)], value=ast.List([], ast.Load())), first)
    node.body = [begin, *body, placed(ast.Return(value=load(found)), last)]
    return node


def _statement(stmt, found):
    if isinstance(stmt, _SCOPES):
        return stmt
    if isinstance(stmt, ast.Return):
        return placed(ast.Return(value=load(found)), stmt)
    if isinstance(stmt, ast.Expr) and isinstance(stmt.value, ast.Yield | ast.YieldFrom):
        given = stmt.value.value
        _refuse_inside(given)
        given = ast.Constant(value=None) if given is None else given
        name = "append"
        if isinstance(stmt.value, ast.YieldFrom):
            name = "extend"
            given = ast.Call(func=load("list"), args=[given], keywords=[])
        method = ast.Attribute(value=load(found), attr=name, ctx=ast.Load())
        return placed(ast.Expr(value=ast.Call(func=method, args=[given], keywords=[])), stmt)
    for field, value in ast.iter_fields(stmt):
        parts = value if isinstance(value, list) else [value]
        if field in ("body", "orelse", "finalbody"):
            setattr(stmt, field, [_statement(inner, found) for inner in parts])
        elif field in ("handlers", "cases"):
            for part in parts:
                part.body = [_statement(inner, found) for inner in part.body]
        else:
            for part in parts:
                _refuse_inside(part)
    return stmt


def _refuse_inside(node):
    if not isinstance(node, ast.AST) or isinstance(node, _SCOPES):
        return
    if isinstance(node, ast.Yield | ast.YieldFrom):
        raise NoSource("the value of a yield is used")
    for child in ast.iter_child_nodes(node):
        _refuse_inside(child)
