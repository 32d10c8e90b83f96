"""while, for and comprehensions as operator calls."""

import ast
import sys

from malleable.frontend.syntax import assign
from malleable.python_source import scopes
from malleable.python_source.nodes import (
    constant,
    copied,
    hook,
    load,
    naming,
    placed,
    store,
    strings,
    thunk,
)

ITEM = "_ag_item"
TARGET = "_ag_c"  # begins the new name of what a comprehension binds
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
    targets = targets_of(node)
    if INLINED and not isinstance(node, ast.GeneratorExp):
        targets = _renamed(writer, node, targets)
    outer, writer.mentioned = writer.mentioned, writer.mentioned | targets
    collects = writer.full and not isinstance(node, ast.GeneratorExp) and _waits(writer, node)
    collects = collects and not _keeps_functions(node)
    if collects:
        done = _collected(writer, node)
    elif isinstance(node, ast.GeneratorExp):
        done = _generated(writer, node)
    else:
        done = node
        _convert(writer, node)
    writer.mentioned = outer
    return done


def _keeps_functions(node):
    """Whether lambdas are what is collected: each sees the variables as they are in the end."""
    parts = [node]
    while parts:
        part = parts.pop()
        if isinstance(part, ast.Lambda):
            return True
        if isinstance(part, scopes.COMPREHENSIONS):
            parts += [getattr(part, name, None) for name in ("elt", "key", "value")]
        elif isinstance(part, ast.Tuple | ast.List | ast.Set):
            parts += part.elts
        elif isinstance(part, ast.Dict):
            parts += part.values
        elif isinstance(part, ast.IfExp):
            parts += (part.body, part.orelse)
    return False


def _waits(writer, node):
    return writer.can_wait(node) and not any(part.is_async for part in node.generators)


def _generated(writer, node):
    """A generator expression: Python's, and what fills a list of all it yields."""
    if not writer.full or not _waits(writer, node) or _keeps_functions(node):
        _convert(writer, node)
        return placed(hook("born", node), node)
    first = node.generators[0]
    items, first.iter = writer.expression(first.iter), placed(load(ITEMS), first.iter)
    again = copied(node)
    if INLINED:
        _renamed(writer, again, targets_of(again))
    found = placed(hook("collect", constant("list"), _run(writer, again)), node)
    _convert(writer, node)
    ways = [placed(_lambda([ITEMS], way), node) for way in (node, found)]
    return placed(hook("generated", items, *ways), node)


def consumed(writer, node, func):
    """`f(x for x in xs if test)`: both the generator, and what fills a list at once."""
    generator, *args = node.args
    again = copied(generator)
    if INLINED:
        _renamed(writer, again, targets_of(again))
    fill, plain = _run(writer, again), thunk(writer.expression(generator))
    rest = [writer.expression(arg) for arg in args]
    for keyword in node.keywords:
        keyword.value = writer.expression(keyword.value)
    return placed(hook("consume", func, fill, plain, *rest, keywords=node.keywords), node)


def is_consumed(writer, node):
    """Whether a call is one of a function of a generator expression."""
    first = node.args[0] if node.args else None
    return writer.full and isinstance(first, ast.GeneratorExp) and _waits(writer, first)


def _collected(writer, node):
    kind = {ast.ListComp: "list", ast.SetComp: "set", ast.DictComp: "dict"}[type(node)]
    return placed(hook("collect", constant(kind), _run(writer, node)), node)


FOUND, FLAG, ITEMS = "_ag_found", "_ag_flag", "_ag_items"


def _run(writer, node):
    """`lambda found: found.each(items, flag, lambda item, flag: ...)`, for each `for` one."""
    if isinstance(node, ast.DictComp):
        value = ast.Tuple(elts=[node.key, node.value], ctx=ast.Load())
    else:
        value = node.elt
    with writer.without_names():
        inner = _added(writer, placed(value, node))
        for number, generator in reversed([*enumerate(node.generators)]):
            outer = load(FLAG) if number else constant(True)
            inner = _each(writer, generator, inner, outer)
    return placed(_lambda([FOUND], inner), node)


def _added(writer, value):
    add = ast.Attribute(value=load(FOUND), attr="add", ctx=ast.Load())
    made = thunk(writer.expression(value))
    return placed(ast.Call(func=add, args=[load(FLAG), made], keywords=[]), value)


def _each(writer, generator, inner, outer):
    target, like = writer.target(generator.target), generator.iter
    tests = [thunk(writer.expression(test)) for test in generator.ifs]
    if tests:
        tests = ast.Tuple(elts=tests, ctx=ast.Load())
        inner = hook("sift", load(FLAG), tests, _lambda([FLAG], inner))
    only = ast.Tuple(elts=[assign.unpacked(target, load(ITEM))], ctx=ast.Load())
    over = ast.comprehension(target=target, iter=only, ifs=[], is_async=0)
    body = placed(ast.ListComp(elt=inner, generators=[over]), like)
    each = ast.Attribute(value=load(FOUND), attr="each", ctx=ast.Load())
    items = placed(hook("iter_", writer.expression(like)), like)
    args = [items, outer, _lambda([ITEM, FLAG], body), constant(bool(generator.ifs))]
    return placed(ast.Call(func=each, args=args, keywords=[]), like)


def _lambda(names, body):
    args = [ast.arg(arg=name) for name in names]
    return ast.Lambda(args=ast.arguments([], args, None, [], [], None, []), body=body)


def _renamed(writer, node, targets):
    """New names for targets that something around also uses.

    Python 3.12.1 and 3.13.0 mix such a target up with a variable of the same name that a lambda
    inside captures, once the comprehension is inlined; our lambdas are many.
    """
    for old in targets & writer.mentioned:
        new = f"{TARGET}{next(writer.numbers)}_{old}"
        rename_target(node, old, new)
        targets = targets - {old} | {new}
    return targets


def rename_target(node, old, new):
    """Another name for a variable of a comprehension, which its first iterable does not see."""
    first, rest = node.generators[0], node.generators[1:]
    parts = [getattr(node, field) for field in ("elt", "key", "value") if hasattr(node, field)]
    for part in (first.target, *first.ifs, *rest, *parts):
        rename(part, old, new)


def rename(node, old, new):
    """Another name for a variable, but not within what has one of this name itself."""
    if isinstance(node, ast.Name) and node.id == old:
        node.id = new
    elif isinstance(node, ast.Lambda) and old in scopes.arguments(node):
        for default in (*node.args.defaults, *filter(None, node.args.kw_defaults)):
            rename(default, old, new)
    elif isinstance(node, scopes.COMPREHENSIONS) and old in targets_of(node):
        rename(node.generators[0].iter, old, new)
    else:
        for child in ast.iter_child_nodes(node):
            rename(child, old, new)


def targets_of(node):
    """The variables of a comprehension's own."""
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
