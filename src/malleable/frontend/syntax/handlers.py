"""try, except and with as operator calls."""

import ast
import itertools

from malleable.frontend.syntax import assign
from malleable.python_source import nodes
from malleable.python_source.nodes import (
    constant,
    hook,
    load,
    naming,
    placed,
    store,
    strings,
    thunk,
    tuple_of,
)

ERROR = "_ag_error"
NAME_ERRORS = ("NameError", "UnboundLocalError")
# a handler of these sees no exception
PLAIN = (ast.Assign, ast.Pass, ast.Name, ast.Constant, ast.UnaryOp, ast.USub, ast.expr_context)


def try_(writer, stmt):
    """`ag__.try_(groups, handlers, orelse, state, live)`, in a `try: finally:` if need be.

    Each statement of the body is a function, so that what follows a raise under a traced test
    can be left out. A group is what stands between statements with blocks, or one of these.
    """
    live = writer.liveness
    blocks = [*([one] for one in stmt.body), *(h.body for h in stmt.handlers), stmt.orelse]
    parts = [live.summary(block) for block in blocks]
    after = live.after[id(stmt)] | live.captured | live.summary(stmt.finalbody).needs
    leaving = after.union(*(part.needs for part in parts))
    binds = {h.name for h in stmt.handlers if h.name} & live.locals
    binds = binds.union(*(part.binds for part in parts))
    state = sorted(binds & leaving)
    done, groups = [], []
    with writer.asking_names(asks_names(stmt)):
        for _, group in itertools.groupby(stmt.body, lambda one: nodes.blocks(one) and id(one)):
            made = [writer.block_function("try", [one], state, one) for one in group]
            done += [function for _, function in made]
            groups.append(tuple_of(*(load(name) for name, _ in made)))
    handlers = []
    for handler in stmt.handlers:
        kinds = constant(None)
        if handler.type:
            kinds = thunk(writer.expression(handler.type))
        inside = (node for one in handler.body for node in ast.walk(one))
        ignores = not handler.name and all(isinstance(node, PLAIN) for node in inside)
        block = _with_exception_bound(handler) if handler.name else handler.body
        name, made = writer.block_function("except", block, state, handler, (ERROR,))
        done.append(made)
        handlers.append(tuple_of(kinds, load(name), constant(ignores)))
    orelse = constant(None)
    if stmt.orelse:
        name, made = writer.block_function("else", stmt.orelse, state, stmt.orelse[0])
        done.append(made)
        orelse = load(name)
    kept = strings([name for name in state if name in after])
    call = hook("try_", tuple_of(*groups), tuple_of(*handlers), orelse, naming(state), kept)
    whole = [*done, placed(ast.Expr(value=call), first_line(stmt))]
    if not stmt.finalbody:
        return whole
    mark, final = finalbody(writer, stmt)
    return [mark, placed(ast.Try(body=whole, handlers=[], orelse=[], finalbody=final), stmt)]


def asks_names(*trees):
    """Whether there is a `try` among these with a handler that names NameError."""
    types = [h.type for tree in trees for h in getattr(tree, "handlers", ()) if h.type]
    return any(getattr(n, "id", "") in NAME_ERRORS for kind in types for n in ast.walk(kind))


def _with_exception_bound(handler):
    """The body of `except E as name`: the name is bound first, and gone at the end."""
    name = handler.name
    begin = placed(ast.Assign(targets=[store(name)], value=load(ERROR)), handler)
    unbound = ast.Assign(targets=[store(name)], value=constant(None))
    gone = ast.Delete(targets=[ast.Name(id=name, ctx=ast.Del())])
    end = [placed(one, handler) for one in (unbound, gone)]
    kept = ast.Try(body=handler.body, handlers=[], orelse=[], finalbody=end)
    kept.made = True
    return [begin, placed(kept, handler)]


def first_line(stmt):
    """A place for a call: Python reports one over several lines at the last of them."""
    here = ast.copy_location(ast.Pass(), stmt)
    here.end_lineno, here.end_col_offset = stmt.lineno, stmt.col_offset + 1
    return here


def finalbody(writer, stmt):
    """(a mark before the `try`, what stands under `finally`), which runs after a raise, too."""
    like, name = first_line(stmt.finalbody[0]), writer.temporary()
    mark = placed(nodes.assign(name, hook("entered")), first_line(stmt))
    entered = ast.withitem(hook("finally_", load(name)), store(name))
    end = ast.Call(func=ast.Attribute(load(name), "end", ast.Load()), args=[], keywords=[])
    body = [*writer.block(stmt.finalbody), placed(ast.Expr(value=end), like)]
    return mark, [placed(ast.With(items=[entered], body=body), like)]


def native_try(writer, stmt):
    """A `try` that stays one."""
    before = []
    stmt.body = writer.block(stmt.body)
    if isinstance(stmt, ast.TryStar):
        kinds = ast.Tuple([nodes.copied(h.type) for h in stmt.handlers], ast.Load())
        waiting = hook("grouping", nodes.thunk(writer.expression(placed(kinds, stmt))))
        stmt.body = [ast.With(items=[ast.withitem(waiting)], body=stmt.body)]
        placed(stmt.body[0], stmt)
    for handler in stmt.handlers:
        if handler.name:
            name = placed(ast.Name(id=handler.name, ctx=ast.Store()), handler)
            before += assign.announced(writer, name)
        if handler.type:
            handler.type = writer.expression(handler.type)
        handler.body = writer.block(handler.body)
    stmt.orelse = writer.block(stmt.orelse, empty=True)
    if getattr(stmt, "made", False):
        stmt.finalbody = writer.block(stmt.finalbody)
    elif stmt.finalbody:
        mark, stmt.finalbody = finalbody(writer, stmt)
        before.append(mark)
    return [*before, stmt]


def with_(writer, stmt):
    """`with ag__.with_(context) as x`; items and attributes are bound at the start of the body."""
    bindings, live = [], writer.liveness
    after = live.after[id(stmt)] | live.captured
    state = naming(sorted(live.summary(stmt.body).binds & after))
    for item in stmt.items:
        context = item.context_expr
        item.context_expr = placed(hook("with_", writer.expression(context), state), context)
        target = item.optional_vars
        if isinstance(target, (ast.Attribute, ast.Subscript)) and item is stmt.items[-1]:
            name = writer.temporary()
            item.optional_vars = placed(store(name), target)
            moved = placed(ast.Assign(targets=[target], value=placed(load(name), target)), target)
            bindings += assign.assignment(writer, moved)
        elif target is not None:
            item.optional_vars = writer.target(target)
    targets = [item.optional_vars for item in stmt.items if item.optional_vars]
    before = assign.announced(writer, *targets) if targets else []
    stmt.body = [*bindings, *writer.block(stmt.body)]
    return [*before, stmt]
