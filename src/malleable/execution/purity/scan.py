"""Which statements may stand in a compiled region: those that compute and do nothing else.

`scan(stmts, scope)` walks statements in order with the kinds of all variables and stops at the
first that Python must run. Kinds: what a name holds, as far as a region is concerned.
"""

import ast
from dataclasses import dataclass
from typing import Any

import jax

from malleable.execution.common.anf import is_atom
from malleable.execution.purity import callees
from malleable.execution.purity.digits import keeps_digits, may_fail
from malleable.execution.purity.expressions import (
    bind,
    expression,
    keep,
    may_be_theirs,
    resolve_path,
)
from malleable.execution.purity.facts import (
    ARRAY,
    MADE,
    NUMBER,
    NUMPY,
    SCALAR,
    SIZE,
    UNKNOWN,
    Known,
    Scope,
    Stays,
    join,
    kind_of,
    refuse_numpy,
)
from malleable.execution.purity.reads import Reads


@dataclass(frozen=True)
class Scanned:
    """What is known of statements that were looked at.

    cut: the index of the first that Python must run, with `why`; None if there is none.
    plain: the indices of those that only do Python's own arithmetic.
    """

    cut: int | None
    stays: Stays | None
    plain: list
    scope: Scope


def scan_statements(stmts: list, scope: Scope, guarded: bool = False) -> Scanned:
    """Look at statements one after another. guarded: an exception shows what ran before it."""
    plain = []
    for number, stmt in enumerate(stmts):
        before = dict(scope.kinds)
        try:
            only_numbers = statement(stmt, scope)
        except Exception as e:  # Stays; anything else is a fault of ours, or of an odd object
            scope.kinds = before
            return Scanned(number, e if isinstance(e, Stays) else odd(e), plain, scope)
        if only_numbers:
            plain.append(number)
            if guarded and plain != list(range(number + 1)) and not isinstance(stmt, ast.Pass):
                return Scanned(number, Stays("number", "Python computes this"), plain, scope)
        elif divides(stmt, scope):
            return Scanned(number, Stays("number", "Python divides these"), plain, scope)
    return Scanned(None, None, plain, scope)


def odd(error: Exception) -> Stays:
    """A statement that cannot be judged is Python's."""
    what = f"{type(error).__name__}: {error}".partition("\n")[0]
    return Stays("python", f"it could not be looked at ({what})")


def divides(stmt, scope: Scope) -> bool:
    """Whether Python numbers are divided in a statement: that may fail, and in 64 bits."""
    if not isinstance(stmt, ast.Assign | ast.AugAssign | ast.Return | ast.Expr):
        return False
    todo = [stmt.value] if stmt.value is not None else []
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp):
            continue
        if isinstance(node, ast.GeneratorExp | ast.NamedExpr | ast.JoinedStr):
            continue
        if isinstance(node, ast.BinOp) and may_fail(node):
            names = [n for n in ast.walk(node) if isinstance(n, ast.Name)]
            kinds = [scope.kinds.get(n.id) for n in names]
            if names and all(kind == NUMBER for kind in kinds):
                return True
        todo.extend(x for x in ast.iter_child_nodes(node) if isinstance(x, ast.expr))
    return False


def reads_of(f) -> Reads | None:
    """What a callable of JAX reads, or one that JAX made of a function; None if it may act."""
    scope = Scope({}, lambda name: None, statement)
    return scope.reads if callees.is_jax(f) and not callees.impure(f, scope) else None


# ---------------------------------------------------------------- statements


def statement(stmt: ast.stmt, scope: Scope) -> bool:
    """Note what a statement binds; whether it is Python's own arithmetic only."""
    handler = _STATEMENTS.get(type(stmt))
    if handler is None:
        raise Stays("python", f"`{type(stmt).__name__.lower()}` is run by Python")
    return bool(handler(stmt, scope))


def block(stmts: list, scope: Scope) -> bool:
    """Look at every statement; whether all are Python's own arithmetic."""
    found = True
    for stmt in stmts:
        found = statement(stmt, scope) and found
    return found


def _assign(stmt, scope):
    for target in stmt.targets:
        names = target.elts if isinstance(target, ast.Tuple) else [target]
        items = stmt.value.elts if isinstance(stmt.value, ast.Tuple) else None
        starred = any(isinstance(x, ast.Starred) for x in (*names, *(items or ())))
        if items and isinstance(target, ast.Tuple) and len(items) == len(names) and not starred:
            kinds = [expression(x, scope) for x in items]
            pairs = list(zip(names, kinds, items, strict=True))
        elif isinstance(target, ast.Tuple) and not starred and (inner := parts_of(stmt, scope)):
            pairs = [(n, kind, stmt.value) for n, kind in zip(names, inner, strict=False)]
        else:
            pairs = [(target, expression(stmt.value, scope), stmt.value)]
        for one, kind, value in pairs:
            store(one, kind, value, scope)
    plain = isinstance(stmt.targets[0], ast.Name | ast.Tuple)
    return plain and all(kind == NUMBER for _, kind, _ in pairs)


def parts_of(stmt: Any, scope):
    """The kinds of the items of a tuple that came in."""
    value: Any = scope.values.get(stmt.value.id) if isinstance(stmt.value, ast.Name) else None
    known = type(value) is tuple and stmt.value.id in scope.kinds
    return [kind_of(item) for item in value] if known else None


def store(target, kind, value, scope):
    """`target = value`. Raises Stays where a number would lose digits."""
    refuse_numpy(kind)
    if isinstance(target, ast.Name):
        mine = is_mutable(value, scope)
        (scope.mutable.add if mine else scope.mutable.discard)(target.id)
        keep_digits(target.id, kind, value, scope)
        scope.values.pop(target.id, None)
    else:
        keep(target, may_be_theirs(value, scope), scope)
    bind(target, kind, scope)


def is_mutable(value, scope) -> bool:
    """Whether a value may be a container, or an array of NumPy, that came in."""
    named = isinstance(value, ast.Name) and value.id in scope.mutable
    return named or may_be_theirs(value, scope)


def keep_digits(name, kind, value, scope):
    if scope.lenient or not (scope.decided or scope.loops):
        return
    if kind != NUMBER or keeps_digits(name, value):
        return
    if scope.decided:
        raise Stays("number", f"`{name}` is a Python number that would lose digits in 32 bits")
    scope.unrolled = True


def _augment(stmt, scope):
    value = expression(stmt.value, scope)
    if not isinstance(stmt.target, ast.Name):
        bind(stmt.target, value, scope)
        written_to(scope, scope.numpy_inside or may_be_theirs(stmt.target.value, scope))
        return False
    kind = expression(ast.Name(id=stmt.target.id, ctx=ast.Load()), scope)
    written = value == MADE and kind != MADE
    if isinstance(kind, Known) or written:
        raise Stays("effect", "it changes something that lives outside")
    written_to(scope, is_mutable(stmt.target, scope))
    new = kind if kind == MADE else join(kind, value)
    refuse_numpy(new)
    whole = ast.BinOp(left=ast.Name(id=stmt.target.id), op=stmt.op, right=stmt.value)
    keep_digits(stmt.target.id, new, whole, scope)
    scope.kinds[stmt.target.id] = new
    return new == NUMBER


def written_to(scope, may_be_theirs: bool):
    """An array may be written in place. In a callee this is up to what it is called with."""
    if may_be_theirs and not scope.callee:
        raise Stays("effect", "it changes something that lives outside")
    scope.writes |= may_be_theirs


def _annotate(stmt, scope):
    if stmt.value is None:
        return True
    kind = expression(stmt.value, scope)
    bind(stmt.target, kind, scope)
    refuse_numpy(kind)
    return kind == NUMBER


def _expr(stmt, scope):
    value = stmt.value
    if isinstance(value, ast.Constant):
        return True
    kind = expression(value, scope)
    if kind == NUMPY or (isinstance(value, ast.Call) and kind == NUMBER):
        raise Stays("effect", "its result is not used")
    return kind == NUMBER


def _if(stmt, scope):
    test = expression(stmt.test, scope)
    before = dict(scope.kinds)
    scope.decided += test not in (NUMBER, SIZE)
    try:
        yes = block(stmt.body, scope)
        after, scope.kinds = scope.kinds, before
        no = block(stmt.orelse, scope)
    finally:
        scope.decided -= test not in (NUMBER, SIZE)
    merge(scope, after)
    return test == NUMBER and yes and no


def merge(scope, other):
    for name in {*scope.kinds, *other}:
        one, two = scope.kinds.get(name), other.get(name)
        if one != two:
            both = one is not None and two is not None
            scope.kinds[name] = join(one, two) if both else (one or two)


def _loop(stmt, scope):
    numbers = True
    for _ in range(2):
        before = dict(scope.kinds)
        if isinstance(stmt, ast.For):
            items = expression(stmt.iter, scope)
            refuse_numpy(items)
            if isinstance(items, Known) and hasattr(type(items.value), "__next__"):
                raise Stays("object", "it goes on with an iterator")
            bind(stmt.target, items if items in (ARRAY, NUMBER, SCALAR, SIZE) else UNKNOWN, scope)
            if may_be_theirs(stmt.iter, scope) and items != NUMBER:  # it may be written to
                scope.mutable |= {n.id for n in ast.walk(stmt.target) if isinstance(n, ast.Name)}
        else:
            items = expression(stmt.test, scope)
        numbers &= items == NUMBER
        decided = items not in (NUMBER, SIZE, MADE) or leaves_early(stmt.body)
        scope.loops += 1
        scope.decided += decided
        try:
            numbers &= block(stmt.body, scope)
        finally:
            scope.loops -= 1
            scope.decided -= decided
        merge(scope, before)
    numbers &= block(stmt.orelse, scope)
    return numbers


def leaves_early(stmts: list) -> bool:
    """Whether a `break`, `continue` or `return` is among these statements."""
    nodes_ = (node for stmt in stmts for node in ast.walk(stmt))
    return any(isinstance(n, ast.Break | ast.Continue | ast.Return) for n in nodes_)


def _return(stmt, scope):
    if not scope.returns:
        raise Stays("python", "`return`")
    if stmt.value is not None:
        if isinstance(stmt.value, ast.List | ast.Dict):  # whose numbers are looked at below
            kind: Any = MADE
        else:
            kind = expression(stmt.value, scope)
        refuse_numpy(kind)
        if isinstance(kind, Known):
            raise Stays("python", "it returns an object")
        parts = stmt.value.elts if isinstance(stmt.value, ast.Tuple) else [stmt.value]
        for part in parts:
            if not is_atom(part) and expression(part, scope) == NUMBER:
                raise Stays("number", "Python computes this number")
        kinds = kinds_in(stmt.value, scope)
        if NUMPY in jax.tree.leaves(kinds):
            raise Stays("numpy", "an array of NumPy stays one")
        scope.given.append(kinds)
    return False


def kinds_in(node, scope):
    """The kinds of the parts of an expression: a tree where it is a tuple, list or dict."""
    if isinstance(node, ast.Tuple):
        return tuple(kinds_in(x, scope) for x in node.elts)
    if isinstance(node, ast.List):
        return [kinds_in(x, scope) for x in node.elts]
    if isinstance(node, ast.Dict) and all(isinstance(k, ast.Constant) for k in node.keys):
        keys: list[Any] = node.keys
        return {k.value: kinds_in(v, scope) for k, v in zip(keys, node.values, strict=True)}
    kind = expression(node, scope)
    return kind if isinstance(kind, str) else UNKNOWN


def _jump(stmt, scope):
    if not scope.loops:
        raise Stays("python", "it leaves a loop that Python runs")


def _raise(stmt, scope):
    return False


def _assert(stmt, scope):
    expression(stmt.test, scope)


def _def(stmt, scope):
    args = stmt.args
    if stmt.decorator_list or [d for d in (*args.defaults, *args.kw_defaults) if d]:
        raise Stays("python", "a function with defaults or decorators is made by Python")
    scope.defs[stmt.name] = stmt
    scope.kinds[stmt.name] = stmt
    theirs = any(may_be_theirs(n, scope) for n in ast.walk(stmt) if isinstance(n, ast.Name))
    (scope.mutable.add if theirs else scope.mutable.discard)(stmt.name)
    return False


def _with(stmt, scope):
    for item in stmt.items:
        function: Any = item.context_expr
        found = resolve_path(function.func, scope) if isinstance(function, ast.Call) else None
        if found is None:
            raise Stays("python", "`with` is run by Python")
        for arg in (*function.args, *(k.value for k in function.keywords)):
            expression(arg.value if isinstance(arg, ast.Starred) else arg, scope)
        if why := callees.acts(found.value, scope):
            raise Stays("python", why)
        if item.optional_vars is not None:
            bind(item.optional_vars, UNKNOWN, scope)
    for inner in stmt.body:
        statement(inner, scope)
    return False


_STATEMENTS = {
    ast.Assign: _assign,
    ast.AugAssign: _augment,
    ast.AnnAssign: _annotate,
    ast.Expr: _expr,
    ast.If: _if,
    ast.For: _loop,
    ast.While: _loop,
    ast.Return: _return,
    ast.Break: _jump,
    ast.Continue: _jump,
    ast.Raise: _raise,
    ast.Assert: _assert,
    ast.FunctionDef: _def,
    ast.With: _with,
    ast.Pass: lambda stmt, scope: True,
}
