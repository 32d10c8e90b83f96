"""The user's source at a place: which expression stands there, and what it says."""

import ast
from collections.abc import Iterator

from malleable.compat import Place
from malleable.inspection.advice.evidence import sources
from malleable.python_source.files import read


def expression_at(place: Place) -> ast.expr | None:
    """The expression an equation or a frame stands for; None where the source cannot be read."""
    found = read(place.file).at(place)
    return found if isinstance(found, ast.expr) else None


def text_of(node: ast.expr | None) -> str:
    """An expression as source, or "" for none."""
    return ast.unparse(node) if node is not None else ""


def called(node: ast.expr | None) -> str:
    """`take` for the call jnp.take(x, i); "" for what is not a call of a name."""
    match node:
        case ast.Call(func=ast.Name(id=name)) | ast.Call(func=ast.Attribute(attr=name)):
            return name
    return ""


def argument(call: ast.AST | None, position: int, keyword: str) -> ast.expr | None:
    """What a call passes for one of its arguments, given the position and the name of it."""
    if not isinstance(call, ast.Call):
        return None
    named = next((k.value for k in call.keywords if k.arg == keyword), None)
    plain = call.args[: position + 1]
    known = len(plain) > position and not any(isinstance(x, ast.Starred) for x in plain)
    return named or (plain[position] if known else None)


def calls_on(place: Place, *names: str) -> list[ast.Call]:
    """The calls of functions of these names that stand on a line."""
    found = [n for n in read(place.file).nodes if isinstance(n, ast.Call)]
    return [
        n for n in found if n.lineno <= place.line <= (n.end_lineno or 0) and called(n) in names
    ]


def subscripts_on(place: Place) -> list[ast.Subscript]:
    """The items, x[i], that stand on a line."""
    found = [n for n in read(place.file).nodes if isinstance(n, ast.Subscript)]
    return [n for n in found if n.lineno <= place.line <= (n.end_lineno or 0)]


def assignments_on(place: Place) -> Iterator[ast.Assign]:
    """The assignments that stand on a line."""
    for node in read(place.file).nodes:
        if isinstance(node, ast.Assign) and node.lineno <= place.line <= (node.end_lineno or 0):
            yield node


def returns_of(defined: Place) -> list[Place]:
    """Where the function that begins at a place returns."""
    functions = (
        n
        for n in read(defined.file).nodes
        if isinstance(n, ast.FunctionDef) and n.lineno == defined.line
    )
    return [
        Place(defined.file, n.lineno, f.name, 0, n.lineno, 0)
        for f in functions
        for n in sources.own_nodes(f)
        if isinstance(n, ast.Return)
    ]
