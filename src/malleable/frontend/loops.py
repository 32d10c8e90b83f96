"""while, for and comprehensions as operator calls."""

import ast
import sys

from malleable.frontend import scopes
from malleable.frontend.nodes import (
    constant,
    hook,
    load,
    naming,
    placed,
    store,
    strings,
    thunk,
)

ITEM = "_ag_item"
INLINED = sys.version_info >= (3, 12)


def while_(writer, stmt):
    """`ag__.while_(test, body, state, live, rebound, exits)`, after the body's function."""
    like = stmt.test
    test = thunk(writer.expression(like))
    return _loop(writer, stmt, like, "while_", test, stmt.body, ())


def for_(writer, stmt):
    """`ag__.for_(iterable, body, state, live, rebound, exits)`; the body binds the target."""
    like = stmt.iter
    iterable = writer.expression(like)
    target = placed(ast.Assign(targets=[stmt.target], value=load(ITEM)), stmt.target)
    return _loop(writer, stmt, like, "for_", iterable, [target, *stmt.body], (ITEM,))


def _loop(writer, stmt, like, name, head, body, args):
    live, one = writer.liveness, writer.liveness.of(stmt)
    wanted = live.after[id(stmt)] | live.head[id(stmt)] | live.captured
    state = sorted(one.binds & wanted)
    body_name, made = writer.block_function(name, body, state, like, args)
    rebound = strings([name for name in state if name in one.plainly])
    call = hook(
        name, head, load(body_name), naming(state), strings(state), rebound, naming(stmt.exits)
    )
    return [made, placed(ast.Expr(value=call), like)]


def native_for(writer, stmt):
    """A `for` that stays one, over `ag__.iter_(iterable)`."""
    if isinstance(stmt, ast.For):
        stmt.iter = placed(hook("iter_", writer.expression(stmt.iter)), stmt.iter)
    else:
        stmt.iter = writer.expression(stmt.iter)
    stmt.target = writer.target(stmt.target)
    stmt.body, stmt.orelse = writer.block(stmt.body), writer.block(stmt.orelse, empty=True)
    return [stmt]


def comprehension(writer, node):
    targets = _targets(node)
    if INLINED and not isinstance(node, ast.GeneratorExp):
        targets = _renamed(writer, node, targets)
    outer, writer.mentioned = writer.mentioned, writer.mentioned | targets
    _convert(writer, node)
    writer.mentioned = outer
    return node


def _renamed(writer, node, targets):
    """New names for targets that something around also uses.

    Python 3.12.1 and 3.13.0 mix such a target up with a variable of the same name that a lambda
    inside captures, once the comprehension is inlined; our lambdas are many.
    """
    for old in targets & writer.mentioned:
        new = f"_ag_c{next(writer.numbers)}_{old}"
        first, rest = node.generators[0], node.generators[1:]
        parts = [getattr(node, field) for field in ("elt", "key", "value") if hasattr(node, field)]
        for part in (first.target, *first.ifs, *rest, *parts):
            _rename(part, old, new)
        targets = targets - {old} | {new}
    return targets


def _rename(node, old, new):
    if isinstance(node, ast.Name) and node.id == old:
        node.id = new
    elif isinstance(node, ast.Lambda) and old in scopes.arguments(node):
        for default in (*node.args.defaults, *filter(None, node.args.kw_defaults)):
            _rename(default, old, new)
    elif isinstance(node, scopes.COMPREHENSIONS) and old in _targets(node):
        _rename(node.generators[0].iter, old, new)
    else:
        for child in ast.iter_child_nodes(node):
            _rename(child, old, new)


def _targets(node):
    return scopes.uses(*(generator.target for generator in node.generators)).binds


def _convert(writer, node):
    for generator in node.generators:
        with writer.without_names():
            iterable = writer.expression(generator.iter)
        if not generator.is_async:
            iterable = placed(hook("iter_", iterable), generator.iter)
        generator.iter = iterable
        generator.target = writer.target(generator.target)
        generator.ifs = [writer.expression(condition) for condition in generator.ifs]
    for field in ("elt", "key", "value"):
        if hasattr(node, field):
            setattr(node, field, writer.expression(getattr(node, field)))


def user_names(call):
    """`locals()`, `vars()`, `dir()` without the names that we generated."""
    key, value = "_ag_k", "_ag_v"
    hidden = ast.Tuple(elts=[constant("ag__"), constant("_ag_")], ctx=ast.Load())
    starts = ast.Attribute(value=load(key), attr="startswith", ctx=ast.Load())
    ours = ast.Call(func=starts, args=[hidden], keywords=[])
    mine = ast.UnaryOp(op=ast.Not(), operand=ours)
    if call.func.id == "dir":
        over = ast.comprehension(target=store(key), iter=call, ifs=[mine], is_async=0)
        return placed(ast.ListComp(elt=load(key), generators=[over]), call)
    items = ast.Call(
        func=ast.Attribute(value=call, attr="items", ctx=ast.Load()), args=[], keywords=[]
    )
    pair = ast.Tuple(elts=[store(key), store(value)], ctx=ast.Store())
    over = ast.comprehension(target=pair, iter=items, ifs=[mine], is_async=0)
    return placed(ast.DictComp(key=load(key), value=load(value), generators=[over]), call)


def unset(names, like):
    """`x: "local"`: makes a name local without binding it."""
    return [
        placed(ast.AnnAssign(target=store(n), annotation=constant("local"), simple=1), like)
        for n in sorted(names)
    ]
