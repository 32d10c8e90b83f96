"""What is read off a function before it is cut: its tree, its own functions, static arguments."""

import ast
import inspect
import types
from typing import Any

from malleable.errors import TransformError
from malleable.programs.reach import reach
from malleable.python_source import nodes, scopes
from malleable.python_source.files import parse


def asked_static(fun, options) -> set | None:
    """The names of the arguments that the user says are static; None where we are to find them."""
    numbers, names = options.static_argnums, options.static_argnames
    if numbers == "auto" and names == "auto":
        return None
    order = list(inspect.signature(fun).parameters)
    numbers = () if numbers in ("auto", None) else numbers
    names = () if names in ("auto", None) else names
    numbers = (numbers,) if isinstance(numbers, int) else numbers
    names = (names,) if isinstance(names, str) else names
    unknown = [n for n in names if n not in order] + [i for i in numbers if i >= len(order)]
    if unknown:
        raise TransformError(
            f"`{fun.__qualname__}` has no argument {unknown[0]!r}",
            hint=f"its arguments are {', '.join(order)}",
        )
    return {order[i] for i in numbers} | set(names)


def hashable(name: str, value, where: str) -> None:
    try:
        hash(value)
    except TypeError:
        raise TransformError(
            f"the static argument {name!r} is a {type(value).__name__}, which has no hash",
            where=where,
            hint="give a tuple or a number, or do not name it among the static arguments",
        ) from None


def leaves_of(dynamic, axes) -> dict:
    """(leaf, axis) -> symbol, the leaves counted among the arguments of the program."""
    place, number = {}, 0
    for leaf, d in enumerate(dynamic):
        place[leaf] = number
        number += d
    return {(place[leaf], axis): name for (leaf, axis), name in axes.items()}


def as_def(node) -> ast.FunctionDef:
    """A lambda as a function with a `return`."""
    if isinstance(node, ast.Lambda):
        made = nodes.function("region", (), [ast.Return(value=node.body)])
        made.args = node.args
        return nodes.placed(made, node)
    node.decorator_list = []
    return node


def definitions(node) -> dict:
    """The functions that are defined once in the body, without defaults or decorators."""
    found: dict = {}
    bound: dict = {}
    for stmt in nodes.statements(node.body):
        for name in scopes.uses(*nodes.heads(stmt)).binds:
            bound[name] = bound.get(name, 0) + 1
        if isinstance(stmt, ast.FunctionDef):
            args = stmt.args
            if not stmt.decorator_list and not args.defaults and not any(args.kw_defaults):
                found[stmt.name] = stmt
    return {name: d for name, d in found.items() if bound[name] == 1}


def needed(names, defs: dict) -> dict:
    """Those of the functions defined in the body that `names` reach, through each other too."""
    if not defs:
        return {}
    called = lambda name: scopes.free(defs[name]) & defs.keys()  # noqa: E731
    return {name: defs[name] for name in sorted(reach(set(names) & defs.keys(), called))}


def captured(names, defs: dict) -> set:
    """The names that the functions which `names` reach take from around them."""
    return set().union(*map(scopes.free, needed(names, defs).values()))


def names_read(stmts: list) -> set:
    """The names that statements read, themselves or in functions made in them."""
    uses = scopes.uses(*stmts)
    return uses.reads | uses.captured


def edited_tree(text: str, args: ast.arguments) -> ast.FunctionDef:
    """The function that a user wrote for one of these arguments."""
    node = next((s for s in parse(text).body if isinstance(s, ast.FunctionDef)), None)
    if node is None or ast.dump(node.args) != ast.dump(args):
        raise TransformError(
            "this is no function of the same arguments",
            hint="edit what `f.source` gives, below its first line",
        )
    return node


def bare_arguments(node: ast.FunctionDef) -> ast.arguments:
    """The arguments of a function without defaults and annotations."""
    args = nodes.copied(node.args)
    args.defaults, args.kw_defaults = [], [None] * len(args.kwonlyargs)
    for arg in ast.walk(args):
        if isinstance(arg, ast.arg):
            arg.annotation = None
    return args


class WithoutSuper(ast.NodeTransformer):
    """`super()` as `super(__class__, self)`, which needs no frame of a method."""

    def __init__(self, node):
        args = [*node.args.posonlyargs, *node.args.args]
        self.first = args[0].arg if args else ""

    def visit_Call(self, node):
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "super" and not node.args:
            node.args = [nodes.placed(nodes.load(n), node) for n in ("__class__", self.first)]
        return node


def only_reads(stmt: Any, given: dict) -> bool:
    """Whether `x = o.w`, `x = d[k]` runs no code of the user's: no property, no `__getitem__`."""
    read: Any = getattr(stmt, "value", None)
    owner = getattr(getattr(read, "value", None), "id", None)
    if owner not in given:
        return False
    kind = type(given[owner])
    if isinstance(read, ast.Subscript):
        return kind in (dict, list, tuple)
    asked = kind.__getattribute__ is object.__getattribute__ and not hasattr(kind, "__getattr__")
    held = inspect.getattr_static(kind, read.attr, None)
    return asked and (isinstance(held, types.MemberDescriptorType) or not hasattr(held, "__get__"))
