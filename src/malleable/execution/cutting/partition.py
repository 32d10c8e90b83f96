"""A function as a tree of regions and host statements, cut finer where a region does not trace.

A region is a run of statements that only compute. At first the whole body is one. When it runs for
the first time, it is looked at (`scan`) and traced; where either stops, the statement there goes to
Python, and what stands before and behind it are regions of their own.
"""

import ast
import copy
import dataclasses
from dataclasses import dataclass, field
from typing import Any

from malleable.execution.common import anf
from malleable.execution.purity.digits import may_fail
from malleable.execution.purity.facts import Stays
from malleable.python_source import nodes, scopes


class Region(ast.stmt):
    """Statements to compile. tail: the function ends with them, so `return` may be among them.

    ins, outs: the names it takes and leaves; number: its place in the residual program.
    """

    _fields = ("body",)

    def __init__(self, body, tail=False):
        super().__init__()
        self.body, self.tail = body, tail
        self.ins: list[str] = []
        self.outs: list[str] = []
        self.raw_outs: list[bool] = []  # which may leave as arrays of NumPy
        self.raw_ins: set[str] = set()  # which may come as such
        self.unsure: set[str] = set()  # outs that may have no value
        self.absent: set[str] = set()  # ins that may have no value
        self.guarded = False  # whether what it did before an exception can be seen
        self.states: dict = {}  # what is known of it at run time, by what it takes and leaves
        self.number = 0
        ast.copy_location(self, body[0])


@dataclass
class Break:
    """A statement that Python runs: kind, why, and the line of the user's."""

    kind: str
    why: str
    stmt: ast.stmt
    where: str
    line: int


@dataclass
class Tree:
    """The statements of one function: regions, and what Python runs between them."""

    node: Any
    body: list
    names: Any
    taken: set = field(default_factory=set)  # all names, the generated ones too
    version: int = 0
    defs: dict = field(default_factory=dict)  # functions defined in it, by name
    breaks: dict = field(default_factory=dict)  # by id of the statement, which each holds
    leave: str = "leave"  # the hook that takes what is returned: "keep" in a callee


class Live(scopes.Liveness):
    """Which names are live after each region.

    extra: of a function defined here, what a region that calls it reads; guarded: the regions, by
    id, that may leave the names they bind as they were.
    """

    def __init__(self, tree: Tree, extra, behind, raised, guarded):
        self.extra, self.guarded = extra, guarded
        before = scopes.uses(*tree.node.body)
        before.binds |= {name for name in tree.taken if name.startswith(anf.MARK)}
        super().__init__(tree.node, tree.body, before, behind, raised)

    def _summarize(self, stmt):
        if isinstance(stmt, Region):
            inner = self.summary(stmt.body)
            uses = scopes.uses(*stmt.body)
            named = inner.needs | inner.binds | uses.reads | uses.captured
            needs = inner.needs | (self.extra(named) & self.locals)
            if id(stmt) in self.guarded:  # no handler reads a name of ours
                needs |= {name for name in inner.binds if not name.startswith(anf.MARK)}
            return dataclasses.replace(inner, needs=needs)
        found = super()._summarize(stmt)
        if isinstance(stmt, ast.FunctionDef | ast.AsyncFunctionDef):
            return found
        # a lambda, or a method, may be called before what it reads is bound again
        return dataclasses.replace(found, needs=found.needs | found.captured)


def regions(stmts):
    """Every region among these statements, in order."""
    return [stmt for stmt in nodes.statements(stmts) if isinstance(stmt, Region)]


def surely(stmts: list, have: set, at: dict) -> set:
    """The names that have a value behind these statements; at: those before each region, by id."""
    have = set(have)
    for stmt in stmts:
        if isinstance(stmt, Region):
            at[id(stmt)] = set(have)
            inner = scopes.uses(*stmt.body)
            have |= inner.binds - scopes.unsure(stmt.body)
            have -= inner.deletes
            continue
        gone = scopes.uses(stmt).deletes
        head = scopes.uses(*nodes.heads(stmt)).surely - gone
        first = (have | head) - gone if isinstance(stmt, ast.While | ast.For) else have | head
        ends = [surely(block, first, at) for block in nodes.blocks(stmt)]
        if isinstance(stmt, ast.If):
            live = [e for e, b in zip(ends, nodes.blocks(stmt), strict=True) if not leaves_block(b)]
            have = set.intersection(*live) if live else have
        elif not isinstance(stmt, ast.While | ast.For | ast.Try | ast.Match):
            have = have.union(head, *ends)
        have -= gone
    return have


def leaves_block(block: list) -> bool:
    return bool(block) and isinstance(block[-1], ast.Return | ast.Raise | ast.Break | ast.Continue)


def escapes(stmt: ast.stmt, loops: bool = False) -> set:
    """How control may leave a statement: "return", "break"."""
    match stmt:
        case ast.Return():
            return {"return"}
        case ast.Break() | ast.Continue():
            return set() if loops else {"break"}
        case ast.For() | ast.While():
            inside = [escapes(s, True) for s in stmt.body]
            inside += [escapes(s, loops) for s in stmt.orelse]
            return set().union(*inside)
    return set().union(*(escapes(s, loops) for block in nodes.blocks(stmt) for s in block))


def hoistable(stmts: list, numbers: list[int], reads_of, names, guarded: bool) -> list[int]:
    """Which of these (Python's own arithmetic) may run before all the others.

    reads_of(stmt): the names it reads, in the functions it calls too. guarded: an exception would
    show what ran before it.
    """
    moved: list[int] = []
    kept_reads: set = set()
    kept_binds: set = set()
    left = False  # whether a statement before it may end the function
    for i, stmt in enumerate(stmts):
        reads, binds = reads_of(stmt), scopes.uses(stmt).binds
        free = not (reads & kept_binds or binds & (kept_reads | kept_binds))
        if left and may_raise(stmt):
            free = False
        stays = escapes(stmt) or isinstance(stmt, ast.Raise | ast.Assert)
        if i in numbers and free and not stays:
            moved.append(i)
        elif guarded:
            break
        else:
            left = left or bool(escapes(stmt)) or may_end(stmt, names)
            kept_reads |= reads
            kept_binds |= binds
    return moved


def raises(stmt: ast.stmt) -> bool:
    """Whether a `raise` or `assert` stands in a statement."""
    return any(isinstance(node, ast.Raise | ast.Assert) for node in ast.walk(stmt))


def may_end(stmt: ast.stmt, names) -> bool:
    """Whether a statement, or a function of the user's that it calls, may raise what is meant."""
    called = [n.func for n in ast.walk(stmt) if isinstance(n, ast.Call)]
    return raises(stmt) or any(anf.leads_to_user(function, names) for function in called)


def may_raise(stmt: ast.stmt) -> bool:
    """Whether Python's own arithmetic may fail: an item, a call, a division by what may be zero."""
    items = any(isinstance(n, ast.Subscript | ast.Call) or may_fail(n) for n in ast.walk(stmt))
    return items or raises(stmt)


def overtaking(stmt: ast.stmt, others: list) -> ast.stmt:
    """A statement that Python runs before others: where it raises they run, for they come first."""
    new: Any = copy.copy(stmt)
    new.overtaken = others
    return new


def opened(stmt: ast.stmt, tail: bool, names) -> ast.stmt | None:
    """A compound statement that Python runs, its blocks regions; None for a simple statement."""
    if not nodes.blocks(stmt):
        return None
    new = copy.copy(stmt)
    inner = tail and isinstance(stmt, ast.If)
    for name in ("body", "orelse", "finalbody"):
        block = getattr(stmt, name, None)
        if isinstance(block, list):
            setattr(new, name, enclosed(block, inner, names))
    for name in ("handlers", "cases"):
        if hasattr(stmt, name):
            setattr(new, name, [_with_body(part, names) for part in getattr(stmt, name)])
    return new


def _with_body(part, names):
    new = copy.copy(part)
    new.body = enclosed(part.body, False, names)
    return new


def enclosed(stmts: list, tail: bool, names) -> list:
    """Statements as regions; those that leave the block, and definitions, stand between them."""
    done: list = []
    run: list = []

    def close(tail=False):
        if run:
            done.append(Region(list(run), tail))
            run.clear()

    for stmt in stmts:
        ways = escapes(stmt)
        if isinstance(stmt, Region):
            run.extend(stmt.body)
        elif isinstance(stmt, ast.FunctionDef | ast.Pass):
            close()
            done.append(stmt)
        elif "break" in ways or ("return" in ways and not tail):
            for piece in anf.pieces(stmt, names) or [stmt]:
                if escapes(piece):
                    close()
                    done.append(opened(piece, False, names) or piece)
                else:
                    run.append(piece)
        else:
            run.append(stmt)
    close(tail)
    return _definitions_first(done, names.defs)


def _definitions_first(stmts: list, known) -> list:
    """Definitions before the region they interrupt: a function takes its names when it runs.

    known: those that a region defines again; others stay where their decorators and defaults are
    computed, behind what they see.
    """
    out: list = []
    for stmt in stmts:
        if isinstance(stmt, Region) and out and isinstance(out[-1], ast.FunctionDef):
            defs = []
            while out and isinstance(out[-1], ast.FunctionDef):
                defs.insert(0, out.pop())
            names = {d.name for d in defs}
            before = out[-1] if out and isinstance(out[-1], Region) else None
            reads = scopes.uses(*before.body).reads if before else names
            if before and names <= {*known} and not names & reads:
                out[-1] = Region([*before.body, *stmt.body], stmt.tail)
                out[-1:-1] = defs
                continue
            out.extend(defs)
        out.append(stmt)
    return out


def hoisted_read(region: Region, cut: int, names) -> list | None:
    """A statement that reads an attribute of an object, before all the rest; None if it cannot."""
    stmt, before = region.body[cut], region.body[:cut]
    if not (isinstance(stmt, ast.Assign) and isinstance(stmt.value, ast.Attribute | ast.Subscript)):
        return None
    if not all(isinstance(target, ast.Name) for target in stmt.targets):
        return None
    if region.guarded or any(escapes(s) or may_end(s, names) for s in before):
        return None
    mine, theirs = scopes.uses(stmt), scopes.uses(*before)
    if mine.reads & theirs.binds or mine.binds & (theirs.binds | theirs.reads):
        return None
    rest = [*before, *region.body[cut + 1 :]]
    early = overtaking(stmt, nodes.copied(before))
    return [early, *([Region(rest, region.tail)] if rest else [])]


def split_region(tree: Tree, region: Region, cut: int, stays: Stays, where: str) -> list | None:
    """What a region becomes when its statement number `cut` cannot be in it.

    None where the statement was only taken to pieces: look at the region again.
    """
    stmt = region.body[cut]
    pieces = None if stays.kind == "pinned" else anf.pieces(stmt, tree.names)
    if pieces is not None:
        region.body[cut : cut + 1] = pieces
        return None
    before, behind = region.body[:cut], region.body[cut + 1 :]
    left = opened(stmt, region.tail and not behind, tree.names)
    host = stmt if left is None else left
    tree.breaks[id(host)] = Break(stays.kind, stays.why, host, where, stmt.lineno)
    out: list = enclosed(before, False, tree.names)
    out.append(host)
    if behind:
        out.extend(enclosed(behind, region.tail, tree.names))
    return out


def has_ways(stmts: list) -> bool:
    """Whether what statements compute may be something else another time."""
    ways = ast.If | ast.For | ast.While | ast.Try | ast.Match | ast.IfExp | ast.BoolOp
    return any(isinstance(node, ways) for stmt in stmts for node in ast.walk(stmt))


def replace(stmts: list, old: Region, new: list) -> bool:
    """Put statements in the place of a region, and join regions that now touch."""
    for i, stmt in enumerate(stmts):
        if stmt is old:
            stmts[i : i + 1] = new
            return True
        if any(replace(block, old, new) for block in nodes.blocks(stmt)):
            return True
    return False
