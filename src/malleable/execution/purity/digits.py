"""Python numbers in a compiled loop: which keep every digit in 32 bits.

Python counts without end and computes in 64 bits; a compiled loop or branch carries its numbers in
32. So only those may go in whose every step is exact there: constants, small steps of a counter,
and halving and the like.
"""

import ast

import numpy as np

SMALL_STEP = 8  # a counter that takes larger ones might pass 2**31 while somebody waits


def is_exact(value) -> bool:
    """Whether a number is the same in 32 bits."""
    if isinstance(value, bool | str | bytes | type(None)):
        return True
    if isinstance(value, int):
        return -(2**31) <= value < 2**31
    if isinstance(value, float):
        return value != value or float(np.float32(value)) == value
    return isinstance(value, range | slice | tuple)


def keeps_digits(name: str, value: ast.expr) -> bool:
    """Whether `name = value` is exact in 32 bits, if `name` was."""
    match value:
        case ast.Constant(value=constant):
            return is_exact(constant)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=constant)):
            return is_exact(constant)
        case ast.Name(id=other):
            return other == name
        case ast.BinOp(left=ast.Name(id=one), op=op, right=ast.Constant(value=constant)):
            return one == name and step_keeps_digits(op, constant)
        case ast.BinOp(left=ast.Constant(value=constant), op=op, right=ast.Name(id=one)):
            commutes = isinstance(op, ast.Add | ast.Mult)
            return one == name and commutes and step_keeps_digits(op, constant)
    return False


def step_keeps_digits(op, constant) -> bool:
    """Whether `x op constant` is exact: a small step of a counter, or times a power of two."""
    if isinstance(constant, bool) or not isinstance(constant, int | float):
        return False
    if isinstance(op, ast.Add | ast.Sub):
        return isinstance(constant, int) and abs(constant) <= SMALL_STEP
    if isinstance(op, ast.Mult | ast.Div) and isinstance(constant, float):
        return constant > 0 and np.frexp(constant)[0] == 0.5
    return isinstance(op, ast.Div) and constant == 2


def may_fail(node: ast.AST) -> bool:
    """Whether arithmetic of Python's raises for some numbers where a program has inf or nan."""
    divisions = ast.Div | ast.FloorDiv | ast.Mod
    match node:
        case ast.BinOp(op=op, right=ast.Constant(value=int() | float() as by)):
            return not by if isinstance(op, divisions) else isinstance(op, ast.Pow) and not by >= 0
        case ast.BinOp(op=op):
            return isinstance(op, divisions | ast.Pow)
        case ast.Call(func=ast.Attribute(value=ast.Name(id="math"))):
            return True
    return False
