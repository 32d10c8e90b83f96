"""The operands of a failing expression: what the user calls them, and their values."""

import ast
import functools
from dataclasses import dataclass
from typing import Any

from malleable.compat import frames
from malleable.inspection.advice.evidence import sources
from malleable.inspection.advice.evidence.sources import MISSING, text
from malleable.inspection.advice.evidence.trouble import Step, Trouble
from malleable.inspection.advice.evidence.wording import of_type, shape_of


@dataclass(frozen=True, eq=False)
class Operand:
    """What the user writes, and its value; MISSING where it is not known."""

    name: str
    value: Any
    node: ast.AST

    @functools.cached_property
    def shape(self) -> Any:
        return shape_of(self.value)

    def __str__(self):
        """`x` is float32[3], of shape (3,)."""
        shape = self.shape
        if shape is None or not hasattr(self.value, "dtype"):
            return f"`{self.name}` is {of_type(self.value)}"
        return f"`{self.name}` has shape {shape} ({self.value.dtype})"


def operands(
    trouble: Trouble, *, deep: bool = False, step: Step | None = None
) -> tuple[ast.AST, list[Operand]]:
    """The failing expression of a line, the user's last, and what goes into it, left to right.

    deep: every name in it too, where an operand is an expression whose value is not known.
    """
    step = step or trouble.last
    node = sources.expression(step.place) if step else None
    if step is None or node is None:
        return ast.Pass(), []
    node = _acting(node)
    parts = _parts(node, step)
    known = [Operand(text(part), sources.value(part, step), part) for part in parts]
    known = _filled(known, node, step, trouble)
    if deep and any(one.value is MISSING for one in known):
        atoms = [atom for part in parts for atom in sources.atoms(part)]
        known += [Operand(text(a), sources.value(a, step), a) for a in atoms]
    unique = {one.name: one for one in reversed(known) if one.value is not MISSING}
    return node, [
        unique[name] for name in dict.fromkeys(one.name for one in known) if name in unique
    ]


def _acting(node: ast.AST) -> ast.AST:
    """The operation around a bare name."""
    around = (node, *sources.parents(node))
    kinds = ast.BinOp | ast.Call | ast.Subscript | ast.Compare | ast.UnaryOp | ast.stmt
    return next((n for n in around if isinstance(n, kinds)), node)


def _parts(node: ast.AST, step: Step) -> list[ast.expr]:
    match node:
        case ast.BinOp(left=left, right=right) | ast.AugAssign(target=left, value=right):
            return [left, right]
        case ast.Compare(left=left, comparators=rest):
            return [left, *rest]
        case ast.UnaryOp(operand=operand):
            return [operand]
        case ast.Subscript(value=value, slice=index):
            inner = index.elts if isinstance(index, ast.Tuple) else [index]
            return [value, *(i for i in inner if not isinstance(i, ast.Slice))]
        case ast.Call(func=func, args=args, keywords=keywords):
            owner = [func.value] if isinstance(func, ast.Attribute) else []
            owner = [o for o in owner if shape_of(sources.value(o, step)) is not None or _made(o)]
            flat: list[ast.expr] = [*owner]
            for arg in (*args, *(k.value for k in keywords)):
                known = sources.value(arg, step)
                listed = isinstance(arg, ast.List | ast.Tuple)
                flat += arg.elts if listed and known is not MISSING else [arg]
                flat += arg.elts if listed and known is MISSING else []
            return flat
        case (
            ast.Assign(targets=[*_], value=value) | ast.Return(value=value) | ast.Expr(value=value)
        ):
            return [value] if value is not None else []
    return [node] if isinstance(node, ast.expr) else []


def _made(node: ast.expr) -> bool:
    return isinstance(node, ast.Call | ast.BinOp)


def _filled(known: list[Operand], node: ast.AST, step: Step, trouble: Trouble) -> list[Operand]:
    """The operands whose values only JAX's frames know."""
    if all(one.value is not MISSING for one in known):
        return known
    after = trouble.steps[trouble.steps.index(step) + 1 :]
    if isinstance(node, ast.BinOp | ast.AugAssign | ast.Compare):
        values = next((v for v in map(_pair, after) if v is not None), None)
        if values is None or len(known) != 2:
            return known
        if isinstance(node, ast.BinOp) and _swapped(known, values):
            values = values[::-1]
    elif isinstance(node, ast.Call):
        values = next((v for v in map(_positional, after) if v is not None), None)
        listed = next((v for v in map(_joined, after) if v is not None), None)
        if listed is not None and len(known) >= len(listed):
            return _in_place(known, node, listed)
        owner = len(known) - len(node.args) - len(node.keywords)
        if values is None or any(isinstance(a, ast.Starred | ast.List) for a in node.args):
            return known
        if owner == 0 and len(values) < len(node.args):
            return known
    else:
        return known
    filled, named = [], _named(node, after[0])
    if named and isinstance(node, ast.Call) and len(known) >= len(named):
        values = (*values[: len(known) - len(named)], *named)
    for i, one in enumerate(known):
        value = values[i] if one.value is MISSING and i < len(values) else one.value
        filled.append(Operand(one.name, value, one.node))
    return filled


def _named(node: ast.AST, called: Step) -> list:
    """The values that a call passes by name, as far as the function that is called knows them."""
    given = called.values | (called.held.kwargs or {})
    return [given.get(k.arg, MISSING) for k in getattr(node, "keywords", ())]


def _swapped(known: list[Operand], values: tuple) -> bool:
    return any(one.value is values[1 - i] for i, one in enumerate(known)) and not any(
        one.value is values[i] for i, one in enumerate(known)
    )


def _pair(step: Step) -> tuple | None:
    args = step.held.args
    for pair in step.held.pairs:
        if all(map(_array, pair)):
            return pair
    if isinstance(args, tuple) and len(args) == 2 and all(map(_array, args)):
        return args
    return None


def _positional(step: Step) -> tuple | None:
    code = step.frame.f_code
    if step.name in (*frames.RERAISE, *frames.METHODS, *frames.CACHE_MISS):
        args = step.held.args
        return args if isinstance(args, tuple) and args else None
    names = code.co_varnames[: code.co_argcount]
    if not names:
        return None
    if names[0] == "self" and step.name == frames.CALL:
        names = names[1:]  # an object that is called
    return tuple(step.values.get(name, MISSING) for name in names)


def _joined(step: Step) -> list | None:
    """The arrays that a function of JAX joins."""
    held = step.held.joined
    many = isinstance(held, list | tuple) and len(held) > 1 and all(map(_array, held))
    return list(held) if many else None  # type: ignore[arg-type]


def _in_place(known: list[Operand], node: ast.Call, values: list) -> list[Operand]:
    """The operands with the values of those that stand in the list of a call."""
    written = next((a.elts for a in node.args if isinstance(a, ast.List | ast.Tuple)), [])
    if len(written) != len(values):
        return known
    at = {id(part): value for part, value in zip(written, values, strict=True)}
    return [Operand(one.name, at.get(id(one.node), one.value), one.node) for one in known]


def _array(x: Any) -> bool:
    return shape_of(x) is not None
