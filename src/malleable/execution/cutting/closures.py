"""What a function does with its variables that only Python can do; above all, closures.

A region that is cut while it runs has variables of its own: one that is bound there is not the one
that a function sees which was made before. What is defined and called by name is defined again in
each region.
"""

import ast
import contextlib
import functools
import types
from collections.abc import Callable
from typing import Any, NamedTuple

from malleable import compat
from malleable.execution.common import anf
from malleable.execution.cutting.functions import captured
from malleable.execution.purity import callees
from malleable.execution.purity.facts import Stays, code_waits, outside
from malleable.frontend.syntax import loops
from malleable.frontend.syntax.handlers import asks_names
from malleable.frontend.syntax.rewrite import NoSource
from malleable.python_source import nodes, scopes, source

MAKERS = {*compat.MADE_BY, "custom_jvp", "custom_vjp", "named_call", "vectorize", "partial"}
READ_OUT = (list, tuple, set, frozenset, dict)  # of what they are given, its items


class Step(NamedTuple):
    """A statement without its blocks: where it stands, and the loops around it."""

    at: int
    loops: frozenset
    parts: list
    uses: scopes.Uses


def python_only(
    node, uses: scopes.Uses, lookup: Callable[[str], Any], renamed: set | frozenset = frozenset()
) -> str:
    """What a function does that only Python can do, to be read behind its name; "" if nothing.

    renamed: the variables that it sees of functions around it under names which it does not use.
    """
    if any(name.startswith(anf.MARK) for name in renamed):
        return "sees a variable of a comprehension"
    inner = any(isinstance(n, ast.Nonlocal) for n in ast.walk(node))
    if inner or uses.declared_global or uses.declared_nonlocal or uses.reads_scope:
        return "writes or reads variables of other scopes"
    if any(map(asks_names, ast.walk(node))):
        return "has a handler for names that are not bound"
    made = Made(node, lookup)
    if name := seen_later(made):
        return f"makes a function that sees {name!r} bound later"
    if name := written_on(node, made):
        return f"keeps a value in `{name}`, of a function that it makes"
    test = identity_asked(node, made)
    return test and f"asks whether `{test}`"


def seen_later(made: "Made") -> str:
    """The variable that a function sees that was made before it is bound; "" if there is none.

    >>> def seen(text):
    ...     return seen_later(Made(ast.parse(text).body[0], outside(seen_later)))
    >>> seen("def f(x):\\n  g = lambda: s\\n  s = x\\n  return g()")
    's'
    >>> seen("def f(x):\\n  s = x\\n  g = lambda: s\\n  return g()")
    ''
    """
    for step in made.steps:
        seen = step.uses.captured
        for name in sorted(seen | captured(seen, made.defs)):
            binds = [s for s in made.steps if name in s.uses.binds and s is not step]
            binds = [s for s in binds if s.at > step.at or s.loops & step.loops]
            if binds and made.is_late(step, binds):
                return name
        for name in (n for part in step.parts for n in _seen_in_list(part, made)):
            return name
    return ""


def _seen_in_list(node, made: "Made"):
    """The variables of list comprehensions that functions see which stand in the list."""
    for part in ast.walk(node):
        if isinstance(part, ast.ListComp) and made.holds(part.elt):
            inner = [scopes.free(n) for n in ast.walk(part.elt) if isinstance(n, ast.Lambda)]
            yield from sorted(loops.targets_of(part) & set().union(*inner))


def written_on(node, made: "Made") -> str:
    """The attribute of a function made here that is written to; "" if there is none."""
    for part in ast.walk(node):
        match part:
            case ast.Attribute(value=ast.Name(id=name), ctx=ast.Store()) if name in made.defs:
                return ast.unparse(part)
    return ""


def identity_asked(node, made: "Made") -> str:
    """The test whether two values of the function are one; "" if there is none.

    What a region hands on is equal to what came in, but need not be the same object.
    """
    for test in (n for n in ast.walk(node) if isinstance(n, ast.Compare)):
        sides = [test.left, *test.comparators]
        outside = (isinstance(x, ast.Constant) or made.resolved(x) is not None for x in sides)
        if any(isinstance(op, ast.Is | ast.IsNot) for op in test.ops) and not any(outside):
            return ast.unparse(test)
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


class Made:
    """The functions that a function makes: whether they may be called behind where they are made.

    lookup: what a name of outside stands for; within: the functions whose bodies are looked at,
    from the one called first.
    """

    def __init__(self, node, lookup, within: tuple = ()):
        self.lookup, self.within = lookup, within
        self.steps = _steps(node.body if isinstance(node.body, list) else [ast.Expr(node.body)])
        self.locals = scopes.arguments(node).union(*(s.uses.binds for s in self.steps))
        self.defs = {p.name: p for s in self.steps for p in s.parts if type(p) is ast.FunctionDef}

    def is_late(self, made: Step, binds: list[Step]) -> bool:
        """Whether a function made here may be called behind one of these."""
        (stmt, *_) = made.parts
        if isinstance(stmt, ast.ClassDef):
            return True
        if isinstance(stmt, ast.FunctionDef):
            return self.is_kept(stmt)
        if isinstance(stmt, ast.Return) or not any(map(self.holds, made.parts)):
            return False
        targets = stmt.targets if isinstance(stmt, ast.Assign) else []
        names = {target.id for target in targets if isinstance(target, ast.Name)}
        if not names or len(names) < len(targets):
            return True
        reads = [s for s in self.steps if s.uses.reads & names]
        if any(self.holds(part, names) for s in reads for part in s.parts):
            return True
        return any(_is_between(made, bound, read) for bound in binds for read in reads)

    def is_kept(self, stmt: ast.FunctionDef) -> bool:
        """Whether a function is more than called by its name, or given to what calls it at once."""
        again = [s for s in self.steps if stmt.name in s.uses.binds]
        if stmt.decorator_list or nodes.yields(stmt) or len(again) > 1:
            return True
        if stmt.args.defaults or any(stmt.args.kw_defaults):
            return True
        return any(self.holds(p, {stmt.name}) for s in self.steps for p in s.parts if p is not stmt)

    def holds(self, node, names: set | None = None) -> bool:
        """Whether what this gives, or writes to, may hold a function: a lambda, or one of these."""
        inside = functools.partial(self.holds, names=names)
        match node:
            case ast.Lambda():
                return names is None or bool(names & scopes.free(node))
            case ast.Name(id=name, ctx=ast.Load()):
                return names is not None and name in names
            case ast.GeneratorExp():
                return names is None or bool(names & scopes.uses(node).reads)
            case ast.Assign(targets=[ast.Tuple()], value=ast.GeneratorExp(elt=item)):
                return inside(item)
            case ast.FunctionDef() | ast.ClassDef() if names is None:
                return False
            case ast.Call(func=function):
                given = [*node.args, *(k.value for k in node.keywords)]
                some = [x for x in given if inside(x)]
                if some and self.keeps(node, some):
                    return True
                if isinstance(function, ast.Lambda):
                    return inside(function.body)
                if isinstance(function, ast.Name):
                    return names is not None and function.id in names and self.gives(function.id)
                return not self.is_made(function) and inside(function)
        return any(map(inside, ast.iter_child_nodes(node)))

    def gives(self, name: str) -> bool:
        """Whether a function that is defined here may give back one that it makes."""
        if name not in self.defs:
            return False
        inner = Made(self.defs[name], self.of)
        gave = [p for s in inner.steps for p in s.parts if isinstance(p, ast.Return)]
        return any(inner.holds(p) or inner.holds(p, {*inner.defs}) for p in gave)

    def is_made(self, node) -> bool:
        """Whether this is a function made of another: `jax.vmap(f)`."""
        made = self.resolved(node.func) if isinstance(node, ast.Call) else None
        return getattr(made, "__name__", "") in MAKERS

    def keeps(self, call: ast.Call, some: list) -> bool:
        """Whether a call may keep these functions when it returns, or give them back."""
        name = getattr(call.func, "id", "")
        if name in self.defs:
            made = self.defs[name]
            return bool(nodes.yields(made)) or self.kept_by(made, call, some, self.of)
        function = self.resolved(call.func)
        if function in READ_OUT:
            return any(type(x) is not ast.GeneratorExp or self.holds(x.elt) for x in some)
        if function is None or isinstance(function, type) or self.is_made(call):
            return True
        package = str(getattr(function, "__module__", "")).partition(".")[0]
        if function is not iter and (callees.is_pure(function) or package in ("numpy", "scipy")):
            return False
        if callees.is_jax(function):
            return package == "malleable"
        return self.kept_by_function(function, call, some)

    def kept_by_function(self, function, call: ast.Call, some: list) -> bool:
        """The same of a function of the user's, by its source."""
        try:
            if not isinstance(function, types.FunctionType) or code_waits(function.__code__):
                return True
            node = source.find(function.__code__, function.__globals__).node
        except NoSource:
            return True
        return self.kept_by(node, call, some, outside(function))

    def kept_by(self, node, call: ast.Call, some: list, lookup) -> bool:
        args = [a.arg for a in (*node.args.posonlyargs, *node.args.args)]
        given = dict(zip(map(id, call.args), args, strict=False))
        given |= {id(k.value): k.arg for k in call.keywords if k.arg}
        starred = any(isinstance(x, ast.Starred) for x in call.args)
        if starred or any(id(x) not in given for x in some):
            return True
        if node in self.within:
            return False
        inner = Made(node, lookup, (*self.within, node))
        names = {given[id(x)] for x in some}
        return any(inner.holds(part, names) for s in inner.steps for part in s.parts)

    def of(self, name: str) -> Any:
        """What a name stands for, if it is one of outside that has a value."""
        with contextlib.suppress(Stays, KeyError):
            return None if name in self.locals else self.lookup(name)

    def resolved(self, node) -> Any:
        """What a path of names of outside stands for; None where that is not known."""
        if isinstance(node, ast.Name):
            return self.of(node.id)
        if isinstance(node, ast.Attribute):
            base = self.resolved(node.value)
            if isinstance(base, types.ModuleType | type):
                return getattr(base, node.attr, None)
        return None


def _is_between(made: Step, bound: Step, read: Step) -> bool:
    """Whether a variable may be bound after a function is made, and before it is read."""
    if made.at < bound.at < read.at:
        return True
    together = bound.loops & read.loops
    return bool(together - made.loops) or (bool(together & made.loops) and read.at < made.at)
