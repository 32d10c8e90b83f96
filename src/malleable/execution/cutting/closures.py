"""Functions that a function makes, and that see a variable of it bound anew after they are made.

A region that is cut while it runs has variables of its own: one that is bound there is not the one
that such a function sees. What is defined and called by name is defined again in each region.
"""

import ast
from typing import NamedTuple

from malleable.python_source import nodes, scopes

_KEEP = "append appendleft add insert extend setdefault update put register partial"
KEEPS = frozenset(_KEEP.split())  # calls that keep the function which they are given


class Step(NamedTuple):
    """A statement without its blocks: where it stands, and the loops around it."""

    at: int
    loops: frozenset
    parts: list
    uses: scopes.Uses


def seen_later(node) -> str:
    """The variable that a function sees that was made before it is bound; "" if there is none.

    >>> seen_later(ast.parse("def f(x):\\n  g = lambda: s\\n  s = x\\n  return g()").body[0])
    's'
    >>> seen_later(ast.parse("def f(x):\\n  s = x\\n  g = lambda: s\\n  return g()").body[0])
    ''
    """
    steps = _steps(node.body)
    for step in steps:
        for name in sorted(step.uses.captured):
            binds = [s for s in steps if name in s.uses.binds and s is not step]
            binds = [s for s in binds if s.at > step.at or s.loops & step.loops]
            if binds and _is_late(step, binds, steps):
                return name
    return ""


def _steps(stmts: list, found=None, loops: frozenset = frozenset()) -> list[Step]:
    found = [] if found is None else found
    for stmt in stmts:
        at, parts = len(found), nodes.heads(stmt)
        inner = loops | {at} if isinstance(stmt, ast.For | ast.While) else loops
        found.append(Step(at, inner, parts, scopes.uses(*parts)))
        for block in nodes.blocks(stmt):
            _steps(block, found, inner)
    return found


def _is_late(made: Step, binds: list[Step], steps: list[Step]) -> bool:
    """Whether the function may be called behind one of these."""
    (stmt, *_) = made.parts
    if isinstance(stmt, ast.FunctionDef):
        return any(_keeps(part, stmt.name) for s in steps for part in s.parts)
    if isinstance(stmt, ast.Return) or not _keeps(stmt):
        return False
    named = isinstance(stmt, ast.Assign) and isinstance(stmt.value, ast.Lambda)
    if not named or not all(isinstance(target, ast.Name) for target in stmt.targets):
        return True
    reads = [s for s in steps if s.uses.reads & made.uses.binds]
    return any(_is_between(made, bound, read) for bound in binds for read in reads)


def _is_between(made: Step, bound: Step, read: Step) -> bool:
    """Whether a variable may be bound after a function is made, and before it is read."""
    if made.at < bound.at < read.at:
        return True
    together = bound.loops & read.loops
    return bool(together - made.loops) or (bool(together & made.loops) and read.at < made.at)


def _keeps(node, name: str = "") -> bool:
    """Whether a lambda, or the function of a name, is kept, and not called or handed on at once."""
    used = set()
    for call in ast.walk(node):
        if isinstance(call, ast.Call):
            of = getattr(call.func, "attr", getattr(call.func, "id", ""))
            at_once = [] if of in KEEPS else [*call.args, *(k.value for k in call.keywords)]
            used |= {id(x) for x in (call.func, *at_once)}
    return any(id(x) not in used for x in ast.walk(node) if _is_function(x, name))


def _is_function(node, name: str) -> bool:
    if not name:
        return isinstance(node, ast.Lambda)
    return isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)
