"""What is known of the operands of an expression, and when that makes it Python's."""

import ast
import operator
import types
from typing import Any

import numpy as np
from jax import numpy as jnp

from malleable.execution.purity.callees import attributes_asked, impure, is_jax
from malleable.execution.purity.facts import NUMBER, SCALAR, SIZE, Known, Scope, Stays, kind_of

OPERATORS = [name[2:] for name in vars(operator) if name.startswith("__")]
OPERATORS += ["len__", "bool__", "iter__", "reversed__"]
OVERLOADED = [*(f"__{name}" for name in OPERATORS), *(f"__r{name}" for name in OPERATORS)]
_EQUAL = ("__eq__", "__ne__")  # which a dataclass has without a source
_FLOATS = (np.float32, np.float64)


def refuse_overloaded(node, scope) -> None:
    """Raise Stays where a class of the user's says what an operator makes of an object.

    Of a call: what it does with its arguments is not known.
    """
    for part in node.args if isinstance(node, ast.Call) else ast.iter_child_nodes(node):
        x = came_in(part, scope)
        if x is None and isinstance(part, ast.Name) and part.id not in scope.kinds:
            x = scope.lookup(part.id)
        if isinstance(x, tuple) or (isinstance(kind_of(x), Known) and not callable(x)):
            refuse_operators(type(x))
        elif not is_jax(type(x)):  # a pytree, whose operators may only compute
            refuse_operators(type(x), scope, () if isinstance(node, ast.Compare) else _EQUAL)


def refuse_operators(kind: type, scope: Scope | None = None, but=()) -> None:
    """scope: where those that only compute may stand. but: those that are not asked."""
    for name in OVERLOADED:
        method = getattr(kind, name, None)
        if not isinstance(method, types.FunctionType) or name in but:
            continue
        if scope is None or (name != "__call__" and impure(method, scope)):
            raise Stays("object", "what an operator makes of an object, its class says")


def came_in(node, scope) -> Any:
    """What came in under a name; None for what did not, and for what is no name."""
    return scope.values.get(node.id) if isinstance(node, ast.Name) else None


def is_whole(node: ast.expr, scope: Scope) -> bool:
    """Whether an expression is arithmetic on whole numbers of Python that come in, alone."""
    match node:
        case ast.Constant(value=value):
            return type(value) is int
        case ast.Name(id=name):
            return scope.kinds.get(name) == NUMBER and type(scope.values.get(name)) is int
        case ast.UnaryOp(operand=operand):
            return is_whole(operand, scope)
        case ast.BinOp(left=left, right=right):
            return is_whole(left, scope) and is_whole(right, scope)
    return False


def reads_whole(node: ast.expr, scope: Scope) -> bool:
    """Whether an expression is whole as in `is_whole`, and no constant."""
    return any(isinstance(x, ast.Name) for x in ast.walk(node)) and is_whole(node, scope)


def is_inexact(value) -> bool:
    """Whether a value is an array of floating-point or complex numbers."""
    return jnp.issubdtype(getattr(value, "dtype", int), jnp.inexact)


def keeps_type(node: ast.expr, scope) -> bool:
    """Whether NumPy and JAX give an expression one type: arithmetic on floats of NumPy's."""
    match node:
        case ast.BinOp(op=ast.Add() | ast.Sub() | ast.Mult() | ast.Div()):
            return keeps_type(node.left, scope) and keeps_type(node.right, scope)
        case ast.UnaryOp(op=ast.USub()):
            return keeps_type(node.operand, scope)
        case ast.Constant(value=value):
            return isinstance(value, int | float)
        case ast.Name():
            value = came_in(node, scope)
            return type(value) in (int, float) or getattr(value, "dtype", None) in _FLOATS
    return False


def refuse_attributes(f, args, node, scope) -> None:
    """Raise Stays where a function of the user's asks a number for what only arrays have."""
    if not isinstance(f, types.FunctionType) or not {NUMBER, SCALAR, SIZE}.intersection(args):
        return
    asked, names = attributes_asked(f), f.__code__.co_varnames[: f.__code__.co_argcount]
    for name, kind, given in zip(names, args, node.args, strict=False):
        number = kind in (NUMBER, SCALAR, SIZE) and came_in(given, scope)
        if number is not False and not all(
            has_attribute(number, attr) for attr in asked.get(name, ())
        ):
            raise Stays("object", f"`{ast.unparse(node.func)}` asks a number for what arrays have")


def has_attribute(number, attr: str) -> bool:
    """Whether a number or text has such an attribute; where it is not known, any of them."""
    held = [number] if number is not None else (True, 1, 1.0, 1j, "", b"", range(0), slice(0))
    return any(hasattr(x, attr) for x in held)
