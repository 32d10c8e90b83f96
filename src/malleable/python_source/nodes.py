"""Small pieces of syntax tree, placed where the user's own code stands."""

import ast
import copy
import weakref
from typing import Any

HOOKS = "ag__"  # the closure variable that holds the operators
MARK = "_ag_"  # every generated name begins so; alone, it marks a generated lambda
LOCALS: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
"""By the code that a block became: the variables of its function that it reads as free ones."""
SHARED = (ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop)


def placed(node, like):
    """Give `node` and its new parts the line and columns of `like`; placed parts stay."""
    line, column, end_line, end_column = (
        like.lineno,
        like.col_offset,
        like.end_lineno,
        like.end_col_offset,
    )
    todo = [node]
    while todo:
        new = todo.pop()
        if "lineno" in new._attributes:
            if hasattr(new, "lineno"):
                continue
            new.lineno, new.col_offset = line, column
            new.end_lineno, new.end_col_offset = end_line, end_column
        for field in new._fields:
            value = getattr(new, field, None)
            if isinstance(value, list):
                todo.extend(item for item in value if isinstance(item, ast.AST))
            elif isinstance(value, ast.AST):
                todo.append(value)
    return node


def copied(tree: Any) -> Any:
    """A copy of a node, or of a list of them, but for `Load()`, `Add()` and their kin.

    Python has one of each for all trees. What other tools hang there (the tree around it, say, as
    the tracebacks of IPython do) would be copied along, and copied again in each copy.
    """
    todo = tree if isinstance(tree, list) else [tree]
    parts = (part for node in todo for part in ast.walk(node))
    return copy.deepcopy(tree, {id(part): part for part in parts if isinstance(part, SHARED)})


def load(name):
    return ast.Name(id=name, ctx=ast.Load())


def store(name):
    return ast.Name(id=name, ctx=ast.Store())


def constant(value):
    return ast.Constant(value=value)


def tuple_of(*parts):
    return ast.Tuple(elts=list(parts), ctx=ast.Load())


def hook(name, *args, keywords=()):
    """`ag__.name(*args)`, not yet placed."""
    operator = ast.Attribute(value=load(HOOKS), attr=name, ctx=ast.Load())
    return ast.Call(func=operator, args=list(args), keywords=list(keywords))


def assign(name, value):
    return ast.Assign(targets=[store(name)], value=value)


def parameters(names=(), vararg=None):
    return ast.arguments(
        posonlyargs=[],
        args=[ast.arg(arg=name) for name in names],
        vararg=vararg and ast.arg(arg=vararg),
        kwonlyargs=[],
        kw_defaults=[],
        defaults=[],
    )


def yields(node) -> list:
    """Every `yield` in a node, also in functions that are defined in it."""
    return [n for n in ast.walk(node) if isinstance(n, ast.Yield | ast.YieldFrom)]


def thunk(body):
    """`lambda: body`, placed where body stands; its parameter tells it from the user's lambdas."""
    return placed(ast.Lambda(args=parameters(vararg=MARK), body=body), body)


def naming(names):
    """`lambda: (x, y)`: not to be called, its cells are the variables. None without names."""
    if not names:
        return constant(None)
    return ast.Lambda(args=parameters(vararg=MARK), body=tuple_of(*map(load, names)))


def strings(names):
    return tuple_of(*map(constant, names))


def function(name, args, body):
    """`def name(args): body`, on every Python version."""
    new = {"type_params": []} if "type_params" in ast.FunctionDef._fields else {}
    return ast.FunctionDef(
        name=name, args=parameters(args), body=body, decorator_list=[], returns=None, **new
    )


def blocks(stmt):
    """The statement lists directly under a statement of the same function."""
    kind = type(stmt)
    if kind in (ast.If, ast.While, ast.For, ast.AsyncFor):
        return [stmt.body, stmt.orelse]
    if kind in (ast.With, ast.AsyncWith):
        return [stmt.body]
    if kind in (ast.Try, ast.TryStar):
        handlers = [handler.body for handler in stmt.handlers]
        return [stmt.body, *handlers, stmt.orelse, stmt.finalbody]
    if kind is ast.Match:
        return [case.body for case in stmt.cases]
    return []


def statements(stmts) -> list:
    """Every statement among these and in their blocks, in order."""
    found = []
    for stmt in stmts:
        found.append(stmt)
        for block in blocks(stmt):
            found += statements(block)
    return found


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
BLOCK_FIELDS = frozenset(["body", "orelse", "finalbody", "handlers", "cases"])


def heads(stmt):
    """The expressions of a statement that are not in one of its blocks."""
    if not blocks(stmt):
        return [stmt]
    found = []
    for field in stmt._fields:
        if field not in BLOCK_FIELDS:
            value = getattr(stmt, field)
            found.extend(value if isinstance(value, list) else [value] if value else [])
    for handler in getattr(stmt, "handlers", ()):
        found.extend([handler.type] if handler.type else [])
    for case in getattr(stmt, "cases", ()):
        found.extend([case.pattern, *([case.guard] if case.guard else [])])
    return [node for node in found if isinstance(node, ast.AST)]
