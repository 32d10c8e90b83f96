"""Which names each statement reads, binds and leaves live; conservative where Python is dynamic.

A statement list has a summary: the names it reads before binding them, and those it surely binds.
Liveness is then one walk from the outside in: a loop's head needs no second pass, because what is
live there is what the test reads, what the body reads first and what is live after the loop.
"""

import ast
from dataclasses import dataclass, field

from malleable.python_source import nodes

COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
SCOPE_READERS = frozenset(["locals", "vars", "dir", "eval", "exec"])
QUIET_CONTEXTS = frozenset(["errstate", "catch_warnings", "printoptions", "localcontext"])


@dataclass
class Uses:
    """The names an expression or statement reads, binds and hands to functions made in it."""

    reads: set = field(default_factory=set)
    binds: set = field(default_factory=set)  # all
    surely: set = field(default_factory=set)  # those bound whenever the statement completes
    plainly: set = field(default_factory=set)  # bound other than by augmented assignment
    deletes: set = field(default_factory=set)
    captured: set = field(default_factory=set)
    declared_global: set = field(default_factory=set)
    declared_nonlocal: set = field(default_factory=set)
    annotated: set = field(default_factory=set)
    reads_scope: bool = False

    def bind(self, name, surely=True):
        self.binds.add(name)
        self.plainly.add(name)
        if surely:
            self.surely.add(name)


def uses(*roots):
    """Uses of these nodes together, blocks included, the insides of functions not."""
    found = Uses()
    for root in roots:
        _collect(root, found)
    return found


def _collect(node, found):
    todo = [node]
    while todo:
        node = todo.pop()
        kind = type(node)
        if kind is ast.Name:
            if type(node.ctx) is ast.Load:
                found.reads.add(node.id)
            else:
                found.bind(node.id)
                if type(node.ctx) is ast.Del:
                    found.reads.add(node.id)
                    found.deletes.add(node.id)
            continue
        if kind is ast.Constant:
            continue
        special = _SPECIAL.get(kind)
        if special is not None and special(node, found):
            continue
        for name in node._fields:
            value = getattr(node, name, None)
            if value.__class__ is list:
                todo.extend(item for item in value if isinstance(item, ast.AST))
            elif isinstance(value, ast.AST):
                todo.append(value)


def _function(node, found):
    """A def or lambda: its defaults are read now, its free names are captured."""
    if node.__class__ is not ast.Lambda:
        found.bind(node.name)
        outside = [*node.decorator_list, *([node.returns] if node.returns else [])]
    else:
        outside = []
    args = node.args
    outside += [*args.defaults, *(d for d in args.kw_defaults if d)]
    every = [*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg]
    outside += [arg.annotation for arg in every if arg and arg.annotation]
    for part in outside:
        _collect(part, found)
    found.captured |= free(node)
    return True


def free(node):
    """The names a def or lambda takes from around it."""
    body = node.body if isinstance(node.body, list) else [node.body]
    inner = uses(*body)
    own = (inner.binds | inner.annotated | arguments(node)) - inner.declared_nonlocal
    own -= inner.declared_global
    return (inner.reads | inner.captured | inner.declared_nonlocal) - own - inner.declared_global


def unsure(stmts: list) -> set:
    """The names that these statements bind on some ways only."""
    have: set = set()
    for stmt in stmts:
        found = uses(stmt)
        if not nodes.blocks(stmt):
            have |= found.surely
        elif isinstance(stmt, ast.If):
            have |= set.intersection(*(_surely_bound(b) for b in (stmt.body, stmt.orelse)))
        have -= found.deletes
    return uses(*stmts).binds - have


def _surely_bound(block: list) -> set:
    return uses(*block).binds - unsure(block)


def arguments(node):
    args = node.args
    every = [*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg]
    return {arg.arg for arg in every if arg}


def _class(node, found):
    found.bind(node.name)
    for part in (*node.decorator_list, *node.bases, *(k.value for k in node.keywords)):
        _collect(part, found)
    inner = uses(*node.body)
    found.reads |= inner.reads
    found.captured |= inner.captured | inner.declared_nonlocal
    return True


def _comprehension(node, found):
    """Targets belong to the comprehension; a walrus binds outside; a generator runs later."""
    inner = Uses()
    for name in node._fields:
        value = getattr(node, name)
        for part in value if isinstance(value, list) else [value]:
            _collect(part, inner)
    targets = uses(*(generator.target for generator in node.generators)).binds
    outside = inner.reads - targets
    first = uses(node.generators[0].iter).reads
    found.reads |= outside | first
    found.captured |= inner.captured - targets
    found.reads_scope |= inner.reads_scope
    for walrus in inner.binds - targets:
        found.bind(walrus, surely=False)
    if type(node) is ast.GeneratorExp:
        found.captured |= outside
    return True


def _walrus(node, found):
    found.bind(node.target.id, surely=False)
    _collect(node.value, found)
    return True


def _augmented(node, found):
    if isinstance(node.target, ast.Name):
        found.reads.add(node.target.id)
        found.binds.add(node.target.id)
        found.surely.add(node.target.id)
        _collect(node.value, found)
        return True
    return False


def _annotated(node, found):
    if isinstance(node.target, ast.Name) and node.value is None:
        if node.simple:
            found.annotated.add(node.target.id)
        return True
    _collect(node.target, found)
    if node.value is not None:
        _collect(node.value, found)
    return True


def _import(node, found):
    for alias in node.names:
        found.bind(alias.asname or alias.name.partition(".")[0])
    return True


def _named(attribute):
    def binder(node, found):
        name = getattr(node, attribute)
        if name:
            found.bind(name, surely=False)
        return False

    return binder


def _declaration(into):
    def declare(node, found):
        getattr(found, into).update(node.names)
        return True

    return declare


def _call(node, found):
    if isinstance(node.func, ast.Name) and node.func.id in SCOPE_READERS:
        found.reads_scope = True
    return False


_SPECIAL = {
    ast.FunctionDef: _function,
    ast.AsyncFunctionDef: _function,
    ast.Lambda: _function,
    ast.ClassDef: _class,
    ast.NamedExpr: _walrus,
    ast.AugAssign: _augmented,
    ast.AnnAssign: _annotated,
    ast.Import: _import,
    ast.ImportFrom: _import,
    ast.ExceptHandler: _named("name"),
    ast.MatchAs: _named("name"),
    ast.MatchStar: _named("name"),
    ast.MatchMapping: _named("rest"),
    ast.Global: _declaration("declared_global"),
    ast.Nonlocal: _declaration("declared_nonlocal"),
    ast.Call: _call,
    **dict.fromkeys(COMPREHENSIONS, _comprehension),
}


@dataclass
class Summary:
    """needs: read before bound; kills: surely bound; binds, plainly: as in Uses.

    captured: by functions that the statements make themselves, not those in their blocks.
    """

    needs: set
    kills: set
    binds: set
    plainly: set
    captured: set = field(default_factory=set)


class Liveness:
    """Summaries and live names of one function's statements, after its jumps were lowered.

    before: the uses of the body as the user wrote it; behind: the names live behind the body;
    raised: those live wherever it raises.
    after[id(stmt)], head[id(stmt)]: names live after a statement, at a loop's head.
    """

    def __init__(self, node, body, before, behind=frozenset(), raised=frozenset()):
        everything = uses(*body)
        self.globals, self.nonlocals = before.declared_global, before.declared_nonlocal
        self.annotated = before.annotated
        bound = everything.binds | before.binds | arguments(node) | before.annotated
        self.locals = bound - self.globals - self.nonlocals
        self.captured = (everything.captured | before.captured) & self.locals
        self.after, self.head, self._memo = {}, {}, {}
        self._mark(body, set(behind), set(raised))

    def summary(self, stmts):
        """Of a statement list."""
        needs, kills, binds, plainly = set(), set(), set(), set()
        for stmt in stmts:
            one = self.of(stmt)
            needs |= one.needs - kills
            kills |= one.kills
            binds |= one.binds
            plainly |= one.plainly
        return Summary(needs, kills, binds, plainly)

    def of(self, stmt):
        """Of one statement."""
        held = self._memo.get(id(stmt))
        if held is None:  # with the statement, so that its id stays its own
            held = self._memo[id(stmt)] = self._summarize(stmt), stmt
        return held[0]

    def _summarize(self, stmt):
        head = uses(*nodes.heads(stmt))
        for handler in getattr(stmt, "handlers", ()):
            if handler.name:
                head.bind(handler.name, surely=False)
        mine = self.locals
        parts = [self.summary(block) for block in nodes.blocks(stmt)]
        needs = (set(mine) if head.reads_scope else head.reads & mine) | set(
            getattr(stmt, "exits", ())
        )
        binds, plainly = head.binds & mine, head.plainly & mine
        for part in parts:
            binds, plainly = binds | part.binds, plainly | part.plainly
        kind = type(stmt)
        if kind is ast.If:
            kills = head.surely | (parts[0].kills & parts[1].kills)
        elif kind is ast.While:
            kills = set()
        elif kind in (ast.For, ast.AsyncFor):
            needs |= parts[0].needs - head.surely
            kills, parts = set(), parts[1:]
        elif kind in (ast.With, ast.AsyncWith):
            needs |= parts[0].needs - head.surely
            kills, parts = (head.surely | parts[0].kills if _quiet(stmt) else set()), []
        elif kind in (ast.Try, ast.TryStar):
            kills = parts[-1].kills
        elif kind is ast.Match:
            kills = set()
        else:
            kills = head.surely
        for part in parts:
            needs |= part.needs
        return Summary(needs, kills, binds, plainly, head.captured & mine)

    def _mark(self, stmts, after, always):
        """Note what is live after each statement; `always`: live wherever it raises."""
        live = after | always
        for stmt in reversed(stmts):
            self.after[id(stmt)] = live
            if nodes.blocks(stmt):
                self._inside(stmt, live, always)
            one = self.of(stmt)
            live = one.needs | (live - one.kills) | always

    def _inside(self, stmt, live, always):
        kind = type(stmt)
        if kind in (ast.While, ast.For, ast.AsyncFor):
            head = live | self.of(stmt).needs
            self.head[id(stmt)] = head
            jumps = set() if getattr(stmt, "exits", None) is not None else head
            self._mark(stmt.body, head, always | jumps)
            self._mark(stmt.orelse, live, always)
        elif kind in (ast.Try, ast.TryStar):
            *_, orelse, final = map(self.summary, nodes.blocks(stmt))
            handlers = [self.summary(handler.body) for handler in stmt.handlers]
            ends = final.needs | (live - final.kills)
            raised = always | final.needs | (ends if stmt.finalbody else set())
            caught = raised.union(*(h.needs | (ends - h.kills) for h in handlers))
            caught |= uses(*(h.type for h in stmt.handlers if h.type)).reads & self.locals
            self._mark(stmt.body, orelse.needs | ends, caught | (ends if handlers else set()))
            for handler in stmt.handlers:
                self._mark(handler.body, ends, raised)
            self._mark(stmt.orelse, ends, raised)
            self._mark(stmt.finalbody, live, always)
        elif kind in (ast.With, ast.AsyncWith):
            self._mark(stmt.body, live, always if _quiet(stmt) else always | live)
        else:
            for block in nodes.blocks(stmt):
                self._mark(block, live, always)


def _quiet(stmt):
    """Whether no context of this `with` swallows exceptions, as far as its name tells."""

    def named(item):
        func = getattr(item.context_expr, "func", None)
        return getattr(func, "attr", getattr(func, "id", None)) in QUIET_CONTEXTS

    return all(named(item) for item in stmt.items)
