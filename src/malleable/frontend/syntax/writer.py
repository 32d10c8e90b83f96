"""One user function's statements and expressions, rewritten: who handles what."""

import ast
import contextlib
import itertools

from malleable.frontend.syntax import assign, branches, calls, handlers, jumps, loops
from malleable.python_source import scopes
from malleable.python_source.nodes import (
    HOOKS,
    MARK,
    blocks,
    constant,
    function,
    hook,
    load,
    naming,
    placed,
    tuple_of,
)

WAITS_NOT = (ast.NamedExpr, *jumps.PINS)


class Writer:
    """Rewrites the body of one def or lambda in place.

    numbers: counter of generated names, shared with the functions around and inside;
    in_class: whether a `__class__` cell can be had.
    """

    def __init__(self, node, mode, numbers=None, in_class=False):
        self.full, self.mode = mode == "full", mode
        self.numbers = numbers or itertools.count(1)
        self.in_class, self.may_name, self.asks_names = in_class, True, False
        first = [*node.args.posonlyargs, *node.args.args]
        self.first_argument = first[0].arg if first else None
        self.node = node
        self._inner, self._own = [set()], [set()]

    def function(self):
        """The def or lambda itself, its body rewritten."""
        node = self.node
        if isinstance(node, ast.Lambda):
            self.tested = set()
            self.plan = jumps.Plan([], self.mode)
            body = [placed(ast.Expr(value=node.body), node.body)]
            self.liveness = scopes.Liveness(node, body, scopes.Uses())
            self.mentioned = scopes.arguments(node) | _mentioned(scopes.uses(node.body))
            self.waits_not = jumps.holds(node.body, WAITS_NOT, scope_calls=True)
            if not jumps.holds(node.body, jumps.PINS):
                node.body = self.expression(node.body)
            return node
        docstring, body = node.body[:1], node.body[1:]
        if not _is_text(docstring[0]):
            docstring, body = [], node.body
        elif not body:
            return node
        body = jumps.prepared(body) if self.full else body
        asked = self.full and handlers.asks_names(*(n for s in body for n in ast.walk(s)))
        bound = scopes.uses(*body)  # with what stands after a return, and is dropped
        self.mentioned = scopes.arguments(node) | _mentioned(bound)
        self.plan = jumps.Plan(body, self.mode)
        lowering = jumps.Lowering(self.plan, self.numbers)
        body = lowering.function(body)
        self.tested = lowering.tested
        self.waits_not = any(jumps.holds(s, WAITS_NOT, scope_calls=True) for s in body)
        self.liveness = live = scopes.Liveness(node, body, bound)
        written = self.block(body)
        parameters = scopes.arguments(node)
        declared = _declared(live.globals - parameters, live.nonlocals, node)
        unset = self._inner.pop() | live.annotated | live.captured | live.summary(body).needs
        unset = loops.unset(unset & live.locals - parameters, node)
        first = [placed(ast.Expr(value=hook("test_names")), node)] if asked else []
        node.body = [*docstring, *declared, *unset, *first, *written]
        return node

    def block_function(self, name, stmts, state, like, args=()):
        """(name, def) of the function that a block becomes; it shares the names in `state`."""
        name = f"{MARK}{name.strip('_')}{next(self.numbers)}"
        live = self.liveness
        outer = scopes.uses(*stmts).binds if live.globals or live.nonlocals else set()
        shared = sorted(set(state) & live.summary(stmts).binds)
        self._inner.append(set())
        body = self.block(stmts)
        inner = self._inner.pop()
        self._inner[-1].update(shared)
        declared = _declared(
            live.globals & outer, live.nonlocals & outer | set(shared), like
        ) + loops.unset((inner - set(shared)) & live.locals, like)
        return name, placed(function(name, args, [*declared, *body]), like)

    # statements

    def block(self, stmts, empty=False):
        """A statement list, rewritten; `pass` if nothing is left, unless it may be empty."""
        done = []
        for stmt in stmts:
            done += self.statement(stmt)
        if not done and not empty:
            done = [placed(ast.Pass(), stmts[0])] if stmts else [ast.Pass(lineno=1, col_offset=0)]
        return done

    def statement(self, stmt):
        if id(stmt) in self.plan.converted:
            convert = _CONVERTED[type(stmt)]
            tested = isinstance(stmt, (ast.If, ast.While))
            before = assign.announced(self, stmt.test) if tested else []
            return [*before, *convert(self, stmt)]
        kind = type(stmt)
        if kind in (ast.Global, ast.Nonlocal):
            return []
        if kind is ast.Assign and isinstance(stmt.targets[0], ast.Name):
            name = stmt.targets[0].id
            if name.startswith(("_ag_continue", jumps.RETURNED)) and name not in self.tested:
                return []
        if not self.full and kind is ast.Assert:
            return self.native(stmt)
        before = [] if blocks(stmt) else assign.announced(self, stmt)
        return [*before, *_STATEMENTS.get(kind, Writer.native)(self, stmt)]

    def native(self, stmt):
        """A statement that stays, its expressions and blocks rewritten."""
        for field in stmt._fields:
            value = getattr(stmt, field, None)
            if isinstance(value, list) and value:
                if isinstance(value[0], ast.stmt):
                    setattr(stmt, field, self.block(value))
                else:
                    setattr(stmt, field, [self.part(item) for item in value])
            elif isinstance(value, ast.AST):
                setattr(stmt, field, self.part(value))
        return [stmt]

    def part(self, node):
        """A piece of a native statement: an expression, a handler, a with item, a case."""
        if isinstance(node, ast.expr):
            return self.expression(node)
        if isinstance(node, ast.pattern):
            return Singletons().visit(node)
        self.native(node)
        return node

    def definition(self, stmt):
        """A nested def: defaults and decorators belong here, the body to a writer of its own."""
        self._signature(stmt)
        stmt.decorator_list = [
            placed(hook("decorate", self.expression(one)), one) for one in stmt.decorator_list
        ]
        Writer(stmt, self.mode, self.numbers, self.in_class).function()
        return [stmt]

    def class_(self, stmt):
        """A nested class: only the methods in its body are rewritten."""
        stmt.bases = [self.expression(base) for base in stmt.bases]
        for keyword in stmt.keywords:
            keyword.value = self.expression(keyword.value)
        stmt.decorator_list = [self.expression(one) for one in stmt.decorator_list]
        todo = [*stmt.body]
        while todo:
            inner = todo.pop()
            if isinstance(inner, ast.FunctionDef):
                Writer(inner, self.mode, self.numbers, True).function()
            elif isinstance(inner, ast.ClassDef):
                todo += inner.body
            for block in blocks(inner):
                todo += block
        return [stmt]

    # expressions

    def expression(self, node):
        """An expression, rewritten; explicit style leaves to Python what asks for a truth value."""
        if not self.full and _asks_for_truth(node):
            return self.inside(node)
        return _EXPRESSIONS.get(type(node), Writer.inside)(self, node)

    def inside(self, node):
        """An expression that stays, its parts rewritten."""
        if isinstance(node, (ast.Name, ast.Constant)):
            return node
        for field in node._fields:
            value = getattr(node, field, None)
            if isinstance(value, list):
                setattr(node, field, [self._inner_part(item) for item in value])
            elif isinstance(value, ast.expr):
                setattr(node, field, self.expression(value))
            elif isinstance(value, ast.keyword):
                value.value = self.expression(value.value)
        return node

    def _inner_part(self, item):
        if isinstance(item, ast.expr):
            return self.expression(item)
        if isinstance(item, ast.keyword):
            item.value = self.expression(item.value)
        return item

    def target(self, node):
        """A target that Python itself binds."""
        return self.inside(node)

    def index(self, node):
        """What stands between brackets, as a value of its own."""
        if isinstance(node, ast.Slice):
            ends = (node.lower, node.upper, node.step)
            parts = [constant(None) if end is None else self.expression(end) for end in ends]
            return placed(hook("slice_", *parts), node)
        if isinstance(node, ast.Tuple):
            node.elts = [self.index(part) for part in node.elts]
            return node
        return self.expression(node)

    def starred(self, node):
        """`*xs` in a call or a display; a target is Python's."""
        if isinstance(node.ctx, ast.Load):
            known = hook("spread", self.expression(node.value))
            node.value = placed(hook("iter_", known), node.value)
            return node
        return self.inside(node)

    def display(self, node):
        """`{**d}` asks which keys d has."""
        node = self.inside(node)
        for k, key in enumerate(node.keys):
            if key is None:
                node.values[k] = placed(hook("iter_", node.values[k]), node.values[k])
        if not self.full or None in node.keys or _are_constants(node.keys):
            return node
        pairs = zip(node.keys, node.values, strict=True)
        return self._displayed("dict", [tuple_of(*p) for p in pairs], node)

    def items(self, node):
        """`[*xs, a]`, where how many items xs has may be traced."""
        starred = [isinstance(part, ast.Starred) for part in node.elts]
        if not (self.full and isinstance(node.ctx, ast.Load) and any(starred)):
            return self.inside(node)
        parts = []
        for part, more in zip(node.elts, starred, strict=True):
            made = hook("listed", self.expression(part.value)) if more else self.expression(part)
            parts.append(made if more else ast.List(elts=[made], ctx=ast.Load()))
        return self._displayed("list", parts, node)

    def members(self, node):
        """`{a, b}`, where a may be traced."""
        node = self.inside(node)
        known = not self.full or _are_constants(node.elts)
        return node if known else self._displayed("set", node.elts, node)

    def _displayed(self, kind, items, node):
        items = [placed(item, node) for item in items]
        together = placed(tuple_of(*items), node)
        return placed(hook("displayed", constant(kind), together), node)

    def yield_from(self, node):
        node.value = placed(hook("iter_", self.expression(node.value)), node.value)
        return node

    def fstring(self, node):
        """`f"a{x}b"` as `ag__.text("a", ag__.shown(x, conversion, spec), "b")`."""
        return placed(hook("text", *map(self._shown, node.values)), node)

    def _shown(self, part, printed=False):
        if isinstance(part, ast.Constant):
            return part
        spec = [] if part.format_spec is None else [self.fstring(part.format_spec)]
        parts = self.expression(part.value), constant(part.conversion), *spec
        return placed(tuple_of(*parts) if printed else hook("shown", *parts), part)

    def printed(self, node):
        """An argument of `print`: a text there is made when the program runs."""
        match node:
            case ast.JoinedStr(values=parts):
                return placed(hook("said", *(self._shown(part, True) for part in parts)), node)
            case ast.BinOp(left=ast.Constant(value=str()), op=ast.Mod()):
                return placed(hook("said_of", node.left, self.expression(node.right)), node)
            case ast.Call(
                func=ast.Attribute(value=ast.Constant(value=str()) as text, attr="format")
            ):
                if not (node.keywords or any(isinstance(arg, ast.Starred) for arg in node.args)):
                    return placed(hook("said_as", text, *map(self.expression, node.args)), node)
        return self.expression(node)

    def lambda_(self, node):
        self._signature(node)
        Writer(node, self.mode, self.numbers, self.in_class).function()
        return node

    def _signature(self, node):
        args = node.args
        args.defaults = [self.expression(one) for one in args.defaults]
        args.kw_defaults = [one and self.expression(one) for one in args.kw_defaults]

    def can_wait(self, node):
        """Whether an expression may be put into a lambda; a walrus there becomes an operator."""
        if not self.waits_not:
            return True
        if jumps.holds(node, jumps.PINS, scope_calls=True):
            return False
        found = jumps.walruses(node)
        if found and (isinstance(self.node, ast.Lambda) or not self._are_cells(found)):
            return False
        for one in found:
            one.hooked = True
        return True

    def _are_cells(self, found):
        cells = self.liveness.locals | self.liveness.nonlocals
        return all(one.target.id in cells for one in found)

    def walrus(self, node):
        if not getattr(node, "hooked", False):
            return self.inside(node)
        name = node.target.id
        self._inner[-1].add(name)
        return placed(hook("walrus", naming([name]), self.expression(node.value)), node)

    def temporary(self):
        return f"{MARK}t{next(self.numbers)}"

    def name(self, node):
        """A variable that is read; where a `try` around it asks for that, whether it is bound."""
        if self.asks_names and node.id in self.liveness.locals and isinstance(node.ctx, ast.Load):
            return placed(hook("bound", node, constant(node.id)), node)
        return node

    @contextlib.contextmanager
    def asking_names(self, asks):
        """The body of a `try`; asks: whether a handler of it is for names that are not bound."""
        before, self.asks_names = self.asks_names, self.asks_names or asks
        yield
        self.asks_names = before

    @contextlib.contextmanager
    def without_names(self):
        """Where Python forbids a walrus."""
        before, self.may_name = self.may_name, False
        yield
        self.may_name = before


class Singletons(ast.NodeTransformer):
    """True, False and None in patterns as values of ours: Python compares the former by `is`."""

    def visit_MatchSingleton(self, node):
        name = str(node.value).lower()
        value = ast.Attribute(value=load(HOOKS), attr=name, ctx=ast.Load())
        return placed(ast.MatchValue(value=value), node)


def _mentioned(found):
    return found.reads | found.binds | found.captured


def _asks_for_truth(node):
    """Whether an expression of the user's, not a test of our flags, needs to know a truth value."""
    if isinstance(node, ast.Compare):
        return len(node.ops) > 1
    if isinstance(node, ast.UnaryOp):
        return not _is_flag(node.operand)
    return isinstance(node, ast.IfExp) or (isinstance(node, ast.BoolOp) and not _is_flag(node))


def _is_flag(node):
    if isinstance(node, ast.BoolOp):
        return all(map(_is_flag, node.values))
    return isinstance(node, ast.Name) and node.id.startswith(MARK)


def _is_text(stmt):
    return (
        isinstance(stmt, ast.Expr)
        and isinstance(stmt.value, ast.Constant)
        and isinstance(stmt.value.value, str)
    )


def _declared(global_names, nonlocal_names, like):
    lines = []
    if global_names:
        lines.append(ast.Global(names=sorted(global_names)))
    if nonlocal_names:
        lines.append(ast.Nonlocal(names=sorted(nonlocal_names)))
    return [placed(line, like) for line in lines]


_CONVERTED = {
    ast.If: branches.if_,
    ast.While: loops.while_,
    ast.For: loops.for_,
    ast.Try: handlers.try_,
    ast.With: handlers.with_,
}
_STATEMENTS = {
    ast.Assign: assign.assignment,
    ast.AugAssign: assign.augmented,
    ast.AnnAssign: assign.annotated,
    ast.Delete: assign.delete,
    ast.Assert: branches.assert_,
    ast.Raise: calls.raise_,
    ast.For: loops.native_for,
    ast.With: handlers.with_,
    ast.Try: handlers.native_try,
    ast.TryStar: handlers.native_try,
    ast.FunctionDef: Writer.definition,
    ast.AsyncFunctionDef: lambda writer, stmt: [stmt],
    getattr(ast, "TypeAlias", None): lambda writer, stmt: [stmt],
    ast.ClassDef: Writer.class_,
}


def _are_constants(nodes):
    return all(isinstance(node, ast.Constant) for node in nodes)


_EXPRESSIONS = {
    ast.Name: Writer.name,
    ast.Constant: lambda writer, node: node,
    ast.IfExp: branches.ifexp,
    ast.BoolOp: branches.boolop,
    ast.UnaryOp: branches.unary,
    ast.BinOp: branches.binary,
    ast.Compare: branches.compare,
    ast.Call: calls.call,
    ast.Attribute: calls.attribute,
    ast.Subscript: calls.subscript,
    ast.Lambda: Writer.lambda_,
    ast.Starred: Writer.starred,
    ast.YieldFrom: Writer.yield_from,
    ast.Dict: Writer.display,
    ast.List: Writer.items,
    ast.Set: Writer.members,
    ast.JoinedStr: Writer.fstring,
    ast.NamedExpr: Writer.walrus,
    **dict.fromkeys(scopes.COMPREHENSIONS, loops.comprehension),
}
