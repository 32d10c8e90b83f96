"""The residual program: Python that calls the regions."""

import ast
import copy
from collections.abc import Callable, Iterator
from typing import Any

from malleable.execution.common import anf
from malleable.execution.cutting import partition
from malleable.execution.cutting.functions import captured
from malleable.execution.cutting.partition import Live, Region, Tree, regions
from malleable.python_source import nodes, scopes
from malleable.python_source.nodes import load, placed, store

HOST, FAILED, FIRST = "_host", "_failed", "_first"
_SAFE_CALLS = frozenset(["bool", "int", "float", "complex", "len"])
_SAFE_ATTRIBUTES = frozenset(["shape", "ndim", "size"])  # `dtype` would show the mark


def region_name(number: int) -> str:
    return f"_r{number}"


def settle(
    tree: Tree, is_input: Callable[[str], bool], after: Any = (), params: Any = (), safe=False
) -> set:
    """Find what each region takes and leaves; and the names that may have no value before one.

    after: the names live behind the whole tree; params: those that have a value from the start;
    safe: what was done before an exception is not lost, so each region may leave a name as it was.
    """

    def extra(names) -> set:
        return captured(names, tree.defs)

    guarded = {id(r) for r in partition.regions(tree.body)} if safe else in_handlers(tree.body)
    live = Live(tree, extra, after, after if safe else (), guarded)
    held = set().union(*map(scopes.free, kept_functions(tree)))  # they see it whenever they run
    unset: set = set()
    before: dict = {}
    partition.surely(tree.body, set(params) | set(tree.defs), before)
    for number, region in enumerate(regions(tree.body), 1):
        inner = live.summary(region.body)
        uses = scopes.uses(*region.body)
        reads = inner.needs | ((uses.reads | uses.captured) - inner.binds - inner.needs)
        called = extra(reads | inner.binds)
        reads |= called
        own = inner.binds - inner.needs - called
        maybe = scopes.unsure(region.body)
        if id(region) in guarded:  # no handler reads a name of ours
            maybe |= {name for name in inner.binds if not name.startswith(anf.MARK)}
        maybe = maybe & live.after[id(region)] & live.locals
        ins = (
            maybe
            | {n for n in reads - own if is_input(n) and n not in tree.defs}
            | (inner.needs & live.locals - set(tree.defs))
        )
        outs = inner.binds & (live.after[id(region)] | (held & live.locals)) - set(tree.defs)
        new_ins, new_outs = sorted(ins), [] if region.tail else sorted(outs)
        brought = before[id(region)] & live.summary([region]).needs  # by what stands before it
        region.absent = {n for n in ins if n in live.locals} - brought
        unset |= region.absent
        region.unsure, region.ins, region.outs = maybe, new_ins, new_outs
        region.number = number
    return unset


def in_handlers(stmts: list) -> set:
    """The regions, by id, whose exception may be met before the function ends."""
    found: set = set()
    for stmt in nodes.statements(stmts):
        if isinstance(stmt, ast.Try | ast.TryStar | ast.With):
            found |= {id(r) for block in nodes.blocks(stmt) for r in partition.regions(block)}
    return found


def kept_functions(tree: Tree) -> Iterator:
    """The functions and lambdas that the statements make which Python runs."""
    for stmt in nodes.statements(tree.body):
        if isinstance(stmt, ast.FunctionDef):
            yield stmt
        elif not isinstance(stmt, Region):
            heads = nodes.heads(stmt)
            yield from (n for x in heads for n in ast.walk(x) if isinstance(n, ast.Lambda))


def bound_in(tree: Tree) -> set:
    return scopes.uses(*tree.node.body).binds | scopes.arguments(tree.node)


class Residual(ast.NodeTransformer):
    """Regions as calls, host statements through the hooks."""

    def __init__(self, tree: Tree, runs: dict, guarded: bool = False):
        self.tree, self.runs = tree, runs
        self.guarded = guarded  # whether an exception may be met before the function ends

    def block(self, stmts: list) -> list:
        out = [new for stmt in stmts for new in self.in_order(stmt)]
        return out or [ast.Pass()]

    def in_order(self, stmt):
        """A statement as it is written; where it raises, what it overtook runs first."""
        new: list[Any] = self.statement(stmt)
        others = getattr(stmt, "overtaken", ())
        if not others:
            return new
        needs, have = set(), set()
        for other in others:
            uses = scopes.uses(other)
            needs |= (uses.reads | uses.captured) - have
            have |= uses.binds - scopes.unsure([other])
        names = sorted(needs & (bound_in(self.tree) | self.tree.taken))
        first = nodes.function(FIRST, names, [*others])
        call = ast.Expr(value=host("first", load(FIRST), *map(load, names)))
        handler = ast.ExceptHandler(type=raised(), body=[first, call, ast.Raise()])
        return [placed(ast.Try(body=new, handlers=[handler], orelse=[], finalbody=[]), stmt)]

    def statement(self, stmt):
        if isinstance(stmt, Region):
            return self.region(stmt)
        kind = self.tree.breaks.get(id(stmt))
        if nodes.blocks(stmt):
            outer = self.guarded
            self.guarded |= isinstance(stmt, ast.Try | ast.TryStar | ast.With)
            try:
                return [self.compound(stmt)]
            finally:
                self.guarded = outer
        if isinstance(stmt, ast.FunctionDef):
            return [stmt]
        if isinstance(stmt, ast.Return) and stmt.value is not None:
            if isinstance(stmt.value, ast.Constant):
                return [stmt]
            new = copy.copy(stmt)
            value = stmt.value if kind is None else _hooked(stmt.value)
            new.value = host(self.tree.leave, value)
            return [placed(new, stmt)]
        value = getattr(stmt, "value", None)
        if kind is not None and isinstance(value, ast.expr):
            new = copy.copy(stmt)
            new.value = (_at_its_line if isinstance(stmt, ast.Expr) else _hooked)(value)
            return [placed(new, stmt)]
        return [stmt]

    def items(self, node):
        """What a loop goes over, arrays through the hook that gives raw items."""
        match node:
            case ast.Name():
                return placed(host("iterate", node), node)
            case ast.Call(func=ast.Name(id="enumerate" | "zip" as name), args=args) if (
                args and name not in bound_in(self.tree) and
                not any(isinstance(x, ast.Starred) for x in args)
            ):  # fmt: skip
                new = copy.copy(node)
                some = args if name == "zip" else args[:1]
                new.args = [*map(self.items, some), *args[len(some) :]]
                return new
            case ast.Call(func=ast.Name(id="range" | "reversed")):
                return node
            case ast.Call():
                return placed(host("iterate", _hooked(node)), node)
        return node

    def compound(self, stmt):
        """`if`, loops, `try`, `with`: their blocks written out."""
        new = copy.copy(stmt)
        for name in ("body", "orelse", "finalbody"):
            block = getattr(stmt, name, None)
            if isinstance(block, list):
                setattr(new, name, self.block(block) if block else [])
        for name in ("handlers", "cases"):
            if hasattr(stmt, name):
                parts = [copy.copy(part) for part in getattr(stmt, name)]
                for part in parts:
                    part.body = self.block(part.body)
                setattr(new, name, parts)
        if isinstance(new, ast.For):
            new.iter = self.items(stmt.iter)
        return new

    def region(self, region: Region):
        name = region_name(region.number)
        self.runs[name] = region
        args: list[ast.expr] = [_if_given(n) if n in region.absent else load(n) for n in region.ins]
        call = ast.Call(func=load(name), args=args, keywords=[])
        region.guarded = self.guarded and not all(n.startswith(anf.MARK) for n in region.outs)
        if region.guarded:
            return self.guarded_region(region, args)
        if region.tail:
            new: ast.stmt = ast.Return(value=call)
        elif not region.outs:
            new = ast.Expr(value=call)
        elif len(region.outs) == 1:
            new = ast.Assign(targets=[store(region.outs[0])], value=call)
        else:
            targets: list[ast.expr] = [store(n) for n in region.outs]
            new = ast.Assign(targets=[ast.Tuple(elts=targets, ctx=ast.Store())], value=call)
        return [placed(stmt, region) for stmt in (new, *_forgotten(region))]

    def guarded_region(self, region: Region, args):
        """A region that leaves what it did before an exception, and then raises it."""
        failed = f"_e{region.number}"
        method = ast.Attribute(
            value=load(region_name(region.number)), attr="safely", ctx=ast.Load()
        )
        targets: list[ast.expr] = [store(n) for n in (failed, *region.outs)]
        test = ast.Compare(left=load(failed), ops=[ast.IsNot()], comparators=[ast.Constant(None)])
        stmts = [
            ast.Assign(
                targets=[ast.Tuple(elts=targets, ctx=ast.Store())],
                value=ast.Call(func=method, args=args, keywords=[]),
            ),
            *_forgotten(region),
            ast.If(test=test, body=[ast.Raise(exc=load(failed), cause=None)], orelse=[]),
        ]
        return [placed(stmt, region) for stmt in stmts]


def _forgotten(region: Region) -> list[ast.stmt]:
    """`del x` for each output that came out without a value."""
    if region.tail:
        return []
    return forgotten([n for n in region.outs if n in region.unsure | region.absent])


def forgotten(names) -> list[ast.stmt]:
    missing = ast.Attribute(value=load(HOST), attr="UNSET", ctx=ast.Load())
    return [
        ast.If(
            test=ast.Compare(left=load(n), ops=[ast.Is()], comparators=[missing]),
            body=[ast.Delete(targets=[ast.Name(id=n, ctx=ast.Del())])],
            orelse=[],
        )
        for n in names
    ]


def host(name: str, *args) -> ast.Call:
    function = ast.Attribute(value=load(HOST), attr=name, ctx=ast.Load())
    return ast.Call(func=function, args=list(args), keywords=[])


def _hooked(node: ast.expr) -> ast.expr:
    """An operation that Python runs, through the hook that knows NumPy's way."""
    match node:
        case ast.Subscript(ctx=ast.Load()):
            new = host("getitem", node.value, _index(node.slice))
        case ast.Call(func=ast.Name(id=name)) if name in _SAFE_CALLS or name in ("print", "range"):
            return node
        case ast.Call(func=ast.Attribute(value=value, attr=attr)):
            new = host("method", value, ast.Constant(value=attr), *node.args)
            new.keywords = node.keywords
        case ast.Call():
            new = host("call", node.func, *node.args)
            new.keywords = node.keywords
        case _:
            return node
    return placed(new, node)


def _at_its_line(node: ast.expr) -> ast.expr:
    """A call that is a statement of its own, made by it: logging and warnings ask who calls."""
    new = _hooked(node)
    match node:
        case ast.Call(func=ast.Attribute(attr="append")):
            return new
        case ast.Call() if new is not node:
            bound = host("bound", node.func, *node.args)
            bound.keywords = node.keywords
            return placed(ast.Call(func=placed(bound, node), args=[], keywords=[]), node)
    return new


def _index(node):
    """An index as an expression: `a:b` as slice(a, b)."""
    if isinstance(node, ast.Slice):
        none = ast.Constant(value=None)
        parts = [node.lower or none, node.upper or none, node.step or none]
        return ast.Call(
            func=ast.Attribute(load(HOST), "slice", ast.Load()), args=parts, keywords=[]
        )
    if isinstance(node, ast.Tuple):
        return ast.Tuple(elts=[_index(x) for x in node.elts], ctx=ast.Load())
    return node


def find_raw(body: list, given=frozenset()) -> tuple[set, set]:
    """The names that may hold arrays of NumPy for those of JAX, and those whose readers may not.

    given: the names that may do so from the start.
    """
    unsafe: set = set()
    alias: list = []

    def visit(node, safe=False):
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                if not safe:
                    unsafe.add(name)
            case ast.Call(func=ast.Name(id=f)) if f.startswith("_r") or f in _SAFE_CALLS:
                for arg in node.args:
                    visit(arg, True)
            case ast.Call(func=ast.Attribute(value=ast.Name(id=f), attr="safely")):
                for arg in node.args:
                    visit(arg, True)
            case ast.Call(func=ast.Attribute(value=ast.Name(id=f), attr="given"), args=[read]) if (
                f == HOST and isinstance(read, ast.Lambda)
            ):
                visit(read.body, True)
            case ast.Call(func=ast.Attribute(value=ast.Name(id=f))) if f == HOST:
                for arg in (*node.args, *(k.value for k in node.keywords)):
                    grouped(arg)
            case ast.Attribute(value=value, attr=attr) if attr in _SAFE_ATTRIBUTES:
                visit(value, True)
            case ast.FormattedValue(value=ast.Name(), conversion=-1):  # see Arriving.visit
                visit(node.value, True)
                if node.format_spec is not None:
                    visit(node.format_spec)
            case ast.Compare(left=left, ops=[ast.Is() | ast.IsNot()], comparators=[other]) if (
                isinstance(other, ast.Constant) or getattr(other, "attr", "") == "UNSET"
            ):
                visit(left, True)
            case ast.Assign(targets=targets, value=ast.Name(id=name)):
                alias.append((name, [n for t in targets for n in _names_in(t)]))
                for target in targets:
                    visit(target)
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=items)) if len(
                targets
            ) == len(items) and all(isinstance(t, ast.Name) for t in targets):
                for target, item in zip(targets, items, strict=True):
                    visit(ast.Assign(targets=[target], value=item))
            case ast.If(test=test) | ast.While(test=test):
                plain = test.operand if isinstance(test, ast.UnaryOp) else test
                visit(plain, isinstance(plain, ast.Name))
                for child in (*node.body, *node.orelse):
                    visit(child)
            case ast.AugAssign(target=ast.Name(id=name)):
                unsafe.add(name)  # which JAX does by a new array
                visit(node.value)
            case ast.FunctionDef() | ast.Lambda():
                unsafe.update(scopes.free(node) | scopes.uses(node).reads)  # defaults too
            case _:
                for child in ast.iter_child_nodes(node):
                    visit(child)

    def grouped(arg):
        if isinstance(arg, ast.Tuple | ast.List):
            for item in arg.elts:
                grouped(item)
        elif isinstance(arg, ast.Call) and getattr(arg.func, "attr", "") == "slice":
            for item in arg.args:
                visit(item, True)
        else:
            visit(arg, isinstance(arg, ast.Name))

    for stmt in body:
        visit(stmt)
    while True:
        more = {name for name, targets in alias if name not in unsafe and unsafe & set(targets)}
        if not more:
            break
        unsafe |= more
    made = set(given)
    for stmt in body:
        for node in ast.walk(stmt):
            if isinstance(node, ast.Assign) and _comes_from_region(node.value):
                made |= {n for t in node.targets for n in _names_in(t)}
            elif isinstance(node, ast.For):
                for target, _ in gone_over(node.target, node.iter):
                    made |= set(_names_in(target))
    for name, targets in alias:
        if name in made:
            made |= set(targets)
    return made - unsafe, unsafe


def gone_over(target, items) -> Iterator[tuple[Any, Any]]:
    """(targets, hook) for each hook that gives items to a loop, in `zip` and `enumerate` too."""
    if _comes_from_region(items):
        yield target, items
        return
    match items:
        case ast.Call(func=ast.Name(id="zip"), args=args):
            pairs = list(enumerate(args))
        case ast.Call(func=ast.Name(id="enumerate"), args=[first, *_]):
            pairs = [(1, first)]
        case _:
            return
    parts = target.elts if isinstance(target, ast.Tuple) else []
    if any(isinstance(part, ast.Starred) for part in parts):
        parts = []
    for at, arg in pairs:
        yield from gone_over(parts[at] if at < len(parts) else target, arg)


def _comes_from_region(value) -> bool:
    """Whether a value comes from a region or a hook."""
    function = getattr(value, "func", None)
    if isinstance(function, ast.Name):
        return function.id.startswith("_r")
    owner = getattr(getattr(function, "value", None), "id", "")
    return owner == HOST or (owner.startswith("_r") and getattr(function, "attr", "") == "safely")


def _names_in(target):
    return [n.id for n in ast.walk(target) if isinstance(n, ast.Name)]


class Shown(ast.NodeTransformer):
    """What stands in text as JAX would write it."""

    def __init__(self, raw: set):
        self.raw = raw

    def visit_FormattedValue(self, node):
        self.generic_visit(node)
        if isinstance(node.value, ast.Name) and node.value.id in self.raw and node.conversion < 0:
            node.value = placed(host("shown", node.value), node.value)
        return node


class Arriving(ast.NodeTransformer):
    """Results of hooks become arrays of JAX where a reader needs that."""

    def __init__(self, raw: set):
        self.raw = raw

    def visit(self, node):
        if isinstance(node, ast.stmt) and not nodes.blocks(node):
            texts = [n for n in ast.walk(node) if isinstance(n, ast.FormattedValue)]
            if any(getattr(n.value, "id", None) in self.raw and n.conversion < 0 for n in texts):
                node = Shown(self.raw).visit(nodes.copied(node))
        return super().visit(node)

    def visit_Assign(self, node: Any):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        called = getattr(node.value, "func", None)
        hook = isinstance(called, ast.Attribute) and getattr(called.value, "id", "") == HOST
        if hook and not {n for t in targets for n in _names_in(t)} <= self.raw:
            node = copy.copy(node)
            node.value = placed(host("leave", node.value), node)
        return node

    visit_AugAssign = visit_AnnAssign = visit_Assign

    def visit_For(self, node):
        self.generic_visit(node)
        for target, items in gone_over(node.target, node.iter):
            if not set(_names_in(target)) <= self.raw:
                items.func.attr = "iterate_arrays"
        return node

    def visit_FunctionDef(self, node):
        return node


def write(
    tree: Tree, name: str, args: ast.arguments, returns: list | None, unset: set,
    residual=Residual, given=frozenset(), safe=False, absent=(),
):  # fmt: skip
    """(the residual function as a tree, its regions by name). returns: names a block gives back.

    given: the parameters that may be arrays of NumPy for those of JAX. absent: those that may come
    without a value. safe: an exception is the first thing the block gives back, next to what it did
    before.
    """
    runs: dict = {}
    writer = residual(tree, runs)
    writer.guarded = safe
    body = writer.block(tree.body)
    if returns is not None:
        unsure = set().union(*(region.unsure for region in runs.values())) | unset
        unsure |= scopes.unsure(tree.body)
        elts = [_if_given(n) if n in unsure else load(n) for n in returns]
        out = elts[0] if len(elts) == 1 else ast.Tuple(elts=elts, ctx=ast.Load())
        if safe:
            out = ast.Tuple(elts=[load(FAILED), *map(_if_given, returns)], ctx=ast.Load())
            body = caught(body)
        body.append(ast.Return(value=host("leave", out)))
    raw, unsafe = find_raw(body, given)
    body = [*forgotten(absent), *(Arriving(raw).visit(stmt) for stmt in body)]
    if returns is not None or name == "block":
        arrays = [arg.arg for arg in args.args if arg.arg in unsafe & given]
        body[:0] = [nodes.assign(n, host("leave", load(n))) for n in arrays]
    for region in runs.values():
        region.raw_outs = [n in raw for n in region.outs]
        region.raw_ins = {n for n in region.ins if n in raw}
    made = nodes.function(name, (), body)
    made.args = args
    return placed(made, tree.node), runs


def caught(body: list) -> list:
    """Statements whose exception is kept in a variable."""
    keep = ast.ExceptHandler(type=raised(), name="_x", body=[nodes.assign(FAILED, load("_x"))])
    attempt = ast.Try(body=body, handlers=[keep], orelse=[], finalbody=[])
    return [nodes.assign(FAILED, ast.Constant(value=None)), attempt]


def raised() -> ast.Attribute:
    return ast.Attribute(value=load(HOST), attr="Raised", ctx=ast.Load())


def _if_given(name: str) -> ast.expr:
    """The value of a variable, or UNSET where it has none."""
    return host("given", ast.Lambda(args=nodes.parameters(), body=load(name)))
