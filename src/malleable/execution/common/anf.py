"""A statement in pieces: each call, operator and item on a line of its own, in Python's order.

`pieces(stmt, names)` gives statements that mean the same, None for one that is in pieces already.
Lambdas, set and dict comprehensions and generators stay whole; a list comprehension becomes a loop.
"""

import ast
import copy
from collections.abc import Callable
from typing import Any, TypeGuard

from malleable.frontend.syntax import loops
from malleable.python_source.nodes import assign, copied, load, placed

ATOMS = (ast.Name, ast.Constant)
MARK = "_t"
_READABLE = ("range", "zip", "enumerate", "reversed")  # which stay in the head of a loop
_WHOLE = (ast.Lambda, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.Await, ast.Yield)


class Names:
    """Names `_t1`, `_t2`, ... that nobody has taken; each is taken as it is given out.

    is_fixed(path): whether `name.a.b` is no operation: it leads through modules and classes.
    is_harmless(path): whether a call of what it leads to changes nothing.
    defs: the functions that each region defines again.
    """

    def __init__(
        self,
        taken: set,
        is_fixed: Callable[[str], bool] = lambda path: True,
        is_harmless: Callable[[str], bool] = lambda path: False,
        defs: Any = (),
    ):
        self.taken, self.number = taken, 0
        self.is_fixed, self.is_harmless, self.defs = is_fixed, is_harmless, defs

    def __iter__(self):
        return self

    def __next__(self) -> str:
        while True:
            self.number += 1
            name = f"{MARK}{self.number}"
            if name not in self.taken:
                self.taken.add(name)
                return name


def is_atom(node) -> bool:
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.operand, ast.Constant) or (
            isinstance(node.op, ast.Not) and isinstance(node.operand, ast.Name)
        )
    if isinstance(node, ast.Tuple) and isinstance(node.ctx, ast.Load):
        return all(map(is_atom, node.elts))
    return isinstance(node, ATOMS)


def pieces(stmt: ast.stmt, names: Names) -> list[ast.stmt] | None:
    """The statement in pieces; None where no piece of it is smaller."""
    split = _SPLIT.get(type(stmt))
    if split is None:
        return None
    todo = Pieces(names, stmt)
    last = split(todo, stmt)
    if not todo.done and last is stmt:
        return None
    return [*todo.done, *(last if isinstance(last, list) else [last])]


class Pieces:
    """The statements made so far for one statement."""

    def __init__(self, names: Names, like: ast.stmt):
        self.names, self.like, self.done = names, like, []

    def add(self, stmt: ast.stmt) -> None:
        self.done.append(placed(stmt, self.like))

    def atom(self, node: ast.expr) -> ast.expr:
        """A name or constant that has the value of `node`, computed by now."""
        if is_atom(node):
            return node
        if isinstance(node, ast.NamedExpr):
            self.add(ast.Assign(targets=[node.target], value=self.step(node.value)))
            return placed(load(node.target.id), node)
        name = next(self.names)
        self.into(name, node)
        return placed(load(name), node)

    def into(self, name: str, node: ast.expr) -> None:
        """Compute `node` into a variable."""
        if isinstance(node, ast.BoolOp):
            self.short_circuit(name, node)
        elif isinstance(node, ast.IfExp):
            test = self.atom(node.test)
            yes, no = self.block(name, node.body), self.block(name, node.orelse)
            self.add(ast.If(test=test, body=yes, orelse=no))
        elif _is_chain(node):
            self.chain(name, node)
        elif isinstance(node, ast.ListComp) and not any(g.is_async for g in node.generators):
            self.comprehension(name, node)
        else:
            self.add(assign(name, self.step(node)))

    def block(self, name: str, node: ast.expr) -> list[ast.stmt]:
        inner = Pieces(self.names, self.like)
        inner.into(name, node)
        return inner.done

    def short_circuit(self, name: str, node: ast.BoolOp) -> None:
        first, *rest = node.values
        self.into(name, first)
        if not rest:
            return
        more = rest[0] if len(rest) == 1 else ast.BoolOp(op=node.op, values=rest)
        test: ast.expr = load(name)
        if isinstance(node.op, ast.Or):
            test = ast.UnaryOp(op=ast.Not(), operand=test)
        self.add(ast.If(test=test, body=self.block(name, more), orelse=[]))

    def chain(self, name: str, node: ast.Compare) -> None:
        """`a < b < c`, where c is asked for only if a < b."""
        left, middle = self.atom(node.left), self.atom(node.comparators[0])
        self.add(assign(name, ast.Compare(left=left, ops=node.ops[:1], comparators=[middle])))
        rest = ast.Compare(left=middle, ops=node.ops[1:], comparators=node.comparators[1:])
        self.add(ast.If(test=load(name), body=self.block(name, placed(rest, node)), orelse=[]))

    def comprehension(self, name: str, node: ast.ListComp) -> None:
        """`[elt for target in items if test]` as a loop, its targets under names of their own."""
        node = copied(node)
        for old in sorted(loops.targets_of(node)):
            loops.rename_target(node, old, next(self.names))
        self.add(assign(name, ast.List(elts=[], ctx=ast.Load())))
        append = ast.Attribute(value=load(name), attr="append", ctx=ast.Load())
        call = ast.Call(func=append, args=[node.elt], keywords=[])
        block: list[ast.stmt] = [ast.Expr(value=call)]
        for generator in reversed(node.generators):
            for test in reversed(generator.ifs):
                block = [ast.If(test=test, body=block, orelse=[])]
            loop = ast.For(target=generator.target, iter=generator.iter, body=block, orelse=[])
            block = [loop]
        self.add(block[0])

    def step(self, node: ast.expr) -> ast.expr:
        """`node` with atoms for its parts: what is left is one operation."""
        if isinstance(node, _WHOLE) or is_atom(node):
            return node
        if isinstance(node, ast.BoolOp | ast.IfExp | ast.ListComp | ast.NamedExpr):
            return self.atom(node)
        if _is_chain(node):
            return self.atom(node)
        new: Any = copy.copy(node)
        for field, value in ast.iter_fields(node):
            if field == "func" and isinstance(value, ast.Attribute):  # a path, or a method
                method = copy.copy(value)
                if not self.names.is_fixed(_path(value.value)):
                    method.value = self.atom(value.value)
                new.func = method
            elif isinstance(value, list):
                setattr(new, field, [self.part(item) for item in value])
            elif isinstance(value, ast.AST):
                setattr(new, field, self.part(value))
        return new

    def may_act(self, node: ast.expr) -> bool:
        """Whether to compute an expression may do more: it calls, or reads a property."""
        for n in ast.walk(node):
            match n:
                case ast.Call(func=function) if not self.names.is_harmless(_path(function)):
                    return True
                case ast.Attribute() if not self.names.is_fixed(_path(n)):
                    return True
                case ast.NamedExpr():
                    return True
        return False

    def part(self, node) -> Any:
        """A part of an operation: an atom, or what only groups atoms."""
        if isinstance(node, ast.keyword | ast.Starred | ast.FormattedValue | ast.Slice):
            new = copy.copy(node)
            for field, value in ast.iter_fields(node):
                if isinstance(value, ast.expr):
                    setattr(new, field, self.part(value))
            return new
        if isinstance(node, ast.JoinedStr) or _groups(node):
            return self.step(node)
        if isinstance(node, ast.GeneratorExp | ast.Lambda):
            return node  # it runs when it is asked
        if isinstance(node, ast.Attribute) and self.names.is_fixed(_path(node)):
            return node  # `jnp.linalg.norm`: found, not computed
        return self.atom(node) if isinstance(node, ast.expr) else node


def leads_to_user(function: ast.expr, names: Names) -> bool:
    """Whether what is called under a name or path may be a function of the user's; no method is."""
    path = _path(function)
    known = isinstance(function, ast.Name) or names.is_fixed(path)
    return known and not names.is_harmless(path)


def _is_chain(node) -> TypeGuard[ast.Compare]:
    return isinstance(node, ast.Compare) and len(node.ops) > 1


def _groups(node) -> bool:
    """A tuple in an index or argument, which is no operation of its own."""
    return isinstance(node, ast.Tuple) and isinstance(node.ctx, ast.Load)


def _path(node) -> str:
    """`name.a.b` as text, "" for what is no path."""
    end = ""
    while isinstance(node, ast.Attribute):
        node, end = node.value, f".{node.attr}{end}"
    return node.id + end if isinstance(node, ast.Name) else ""


# ---------------------------------------------------------------- statements


def _value(todo: Pieces, stmt: Any):
    """Of a statement with one value: `return v`, `x = v`, `v`."""
    if stmt.value is None:
        return stmt
    value, targets = stmt.value, getattr(stmt, "targets", [])
    simple = [type(t) for t in targets] == [ast.Name]
    if simple and (isinstance(value, ast.BoolOp | ast.IfExp | ast.ListComp) or _is_chain(value)):
        name = targets[0].id
        if not any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(value)):
            todo.into(name, value)
            return []
    if isinstance(stmt, ast.Return) or (isinstance(stmt, ast.Assign) and not simple):
        new = todo.atom(value) if isinstance(value, ast.Attribute) else todo.part(value)
    else:
        new = todo.step(value)
    targets = [_target(todo, t) for t in targets]
    if not todo.done:
        return stmt
    made: Any = copy.copy(stmt)
    made.value = new
    if targets:
        made.targets = targets
    return made


def _target(todo: Pieces, target: Any) -> Any:
    """`x[f(i)]` as a place to write to, its parts computed."""
    if isinstance(target, ast.Subscript):
        new = copy.copy(target)
        new.value, new.slice = todo.part(target.value), todo.part(target.slice)
        return new
    if isinstance(target, ast.Attribute):
        new = copy.copy(target)
        new.value = todo.part(target.value)
        return new
    return target


def _annotated(todo: Pieces, stmt: ast.AnnAssign):
    if stmt.value is None or not isinstance(stmt.target, ast.Name):
        return stmt
    return placed(ast.Assign(targets=[stmt.target], value=stmt.value), stmt)


def _augmented(todo: Pieces, stmt: ast.AugAssign):
    """`x.a += v`: where v may act, what stands in the place is read before."""
    made = copy.copy(stmt)
    if isinstance(stmt.target, ast.Attribute | ast.Subscript) and todo.may_act(stmt.value):
        place, name = _target(todo, stmt.target), next(todo.names)
        read = copied(place)
        read.ctx = ast.Load()
        todo.add(assign(name, read))
        made.target, made.value = ast.Name(id=name, ctx=ast.Store()), todo.atom(stmt.value)
        return [placed(made, stmt), placed(ast.Assign(targets=[place], value=load(name)), stmt)]
    made.target, made.value = _target(todo, stmt.target), todo.atom(stmt.value)
    return made if todo.done else stmt


def _test(todo: Pieces, stmt):
    """`if`, `assert`: the test as an atom."""
    test = todo.atom(stmt.test)
    if test is stmt.test:
        return stmt
    made = copy.copy(stmt)
    made.test = test
    return made


def _while(todo: Pieces, stmt: ast.While):
    """The test before the loop and at its end; with a `continue`, at its start."""
    if is_atom(stmt.test):
        return stmt
    if _continues(stmt.body):
        name = next(todo.names)
        stop = ast.If(
            test=ast.UnaryOp(op=ast.Not(), operand=load(name)),
            body=[*copied(stmt.orelse), ast.Break()],
            orelse=[],
        )
        body = [assign(name, stmt.test), stop, *stmt.body]
        return placed(ast.While(test=ast.Constant(value=True), body=body, orelse=[]), stmt)
    name = next(todo.names)
    todo.add(assign(name, stmt.test))
    again = placed(assign(name, copied(stmt.test)), stmt)
    body = [*stmt.body, again]
    return placed(ast.While(test=load(name), body=body, orelse=stmt.orelse), stmt)


def _continues(body) -> bool:
    """Whether a `continue` of this very loop is among these statements."""
    for stmt in body:
        if isinstance(stmt, ast.Continue):
            return True
        if isinstance(stmt, ast.For | ast.While):
            if _continues(stmt.orelse):
                return True
            continue
        parts = [getattr(stmt, f, []) for f in ("body", "orelse", "finalbody")]
        parts += [h.body for h in getattr(stmt, "handlers", ())]
        parts += [c.body for c in getattr(stmt, "cases", ())]
        if not isinstance(stmt, ast.FunctionDef | ast.ClassDef) and any(map(_continues, parts)):
            return True
    return False


def _for(todo: Pieces, stmt: ast.For):
    """What a call gives that may be a generator has no name: it is closed where the loop ends."""
    new = _items(todo, stmt.iter)
    if not todo.done:
        return stmt
    made = copy.copy(stmt)
    made.iter = new
    return made


def _items(todo: Pieces, node: Any) -> ast.expr:
    if not isinstance(node, ast.Call) or todo.names.is_harmless(_path(node.func)):
        readable = getattr(getattr(node, "func", None), "id", "") in _READABLE
        inner = [x for x in getattr(node, "args", ()) if not is_atom(x)]
        if not readable:
            return todo.atom(node)
        if len(inner) == 1 and isinstance(inner[0], ast.Call) and not node.keywords:
            new: Any = copy.copy(node)
            new.args = [_items(todo, x) for x in node.args]
            return new
    return todo.step(node)


def _raise(todo: Pieces, stmt: ast.Raise):
    if stmt.exc is None:
        return stmt
    exc = todo.step(stmt.exc)
    if not todo.done:
        return stmt
    made = copy.copy(stmt)
    made.exc = exc
    return made


_SPLIT: dict[type, Callable] = {
    ast.Assign: _value,
    ast.AnnAssign: _annotated,
    ast.AugAssign: _augmented,
    ast.Expr: _value,
    ast.Return: _value,
    ast.If: _test,
    ast.Assert: _test,
    ast.While: _while,
    ast.For: _for,
    ast.Raise: _raise,
}
