"""Assignment, augmented assignment and del as operator calls, where Python's own will not do."""

import ast

from malleable.python_source import scopes
from malleable.python_source.nodes import assign, constant, hook, load, naming, placed, store, thunk

OPERATORS = {
    ast.Add: "+=",
    ast.Sub: "-=",
    ast.Mult: "*=",
    ast.Div: "/=",
    ast.FloorDiv: "//=",
    ast.Mod: "%=",
    ast.Pow: "**=",
    ast.MatMult: "@=",
    ast.LShift: "<<=",
    ast.RShift: ">>=",
    ast.BitAnd: "&=",
    ast.BitOr: "|=",
    ast.BitXor: "^=",
}


def announced(writer, *heads):
    """Calls that tell the journal which outer cells and globals the next statement writes."""
    live = writer.liveness
    if not (live.globals or live.nonlocals):
        return []
    binds = scopes.uses(*heads).binds
    calls = [hook("writes_cell", naming([name])) for name in sorted(binds & live.nonlocals)]
    for name in sorted(binds & live.globals):
        here = ast.Call(func=load("globals"), args=[], keywords=[])
        calls.append(hook("writes_global", here, constant(name)))
    return [placed(ast.Expr(value=call), heads[0]) for call in calls]


def assignment(writer, stmt):
    value = writer.expression(stmt.value)
    if len(stmt.targets) == 1:
        return _bind(writer, stmt.targets[0], value, stmt)
    name = writer.temporary()
    done = [placed(assign(name, value), stmt)]
    for target in stmt.targets:
        done += _bind(writer, target, placed(load(name), stmt), stmt)
    return done


def annotated(writer, stmt):
    if stmt.value is None:
        return []
    return _bind(writer, stmt.target, writer.expression(stmt.value), stmt)


def _bind(writer, target, value, like):
    """Statements for `target = value`; value is written already."""
    if isinstance(target, ast.Name):
        return [placed(ast.Assign(targets=[target], value=value), like)]
    if isinstance(target, ast.Subscript):
        index = writer.index(target.slice)
        call = hook("setitem", value, writer.expression(target.value), index)
        return [placed(ast.Expr(value=call), target)]
    if isinstance(target, ast.Attribute):
        call = hook("setattr_", value, writer.expression(target.value), constant(target.attr))
        return [placed(ast.Expr(value=call), target)]
    if not isinstance(value, (ast.Tuple, ast.List, ast.Constant)):
        value = placed(hook("iter_", unpacked(target, value)), value)
    later = []
    pattern = target if _is_names_only(target) else _with_temporaries(writer, target, later)
    done = [placed(ast.Assign(targets=[pattern], value=value), like)]
    for part, name in later:
        done += _bind(writer, part, placed(load(name), part), part)
    return done


def unpacked(target, value):
    """The value that a target is bound to; a pattern says how many items it is to have."""
    if not isinstance(target, (ast.Tuple, ast.List)):
        return value
    starred = [isinstance(part, ast.Starred) for part in target.elts]
    before = starred.index(True) if any(starred) else len(starred)
    return hook("unpacked", value, constant(before), constant(len(starred) - before - 1))


def _is_names_only(target):
    """Whether a pattern consists of names only."""
    parts = (part.value if isinstance(part, ast.Starred) else part for part in target.elts)
    return all(isinstance(part, ast.Name) for part in parts)


def _with_temporaries(writer, target, later):
    """The pattern over temporaries, in place of names, items, attributes and patterns in it."""
    for k, part in enumerate(target.elts):
        name = writer.temporary()
        starred = isinstance(part, ast.Starred)
        later.append((part.value if starred else part, name))
        new = placed(store(name), part)
        if starred:
            part.value = new
        else:
            target.elts[k] = new
    return target


def augmented(writer, stmt):
    """`x = ag__.aug("+=", x, v)`; items and attributes evaluate v after they were read."""
    target, symbol, done = stmt.target, constant(OPERATORS[type(stmt.op)]), []
    value = writer.expression(stmt.value)
    if isinstance(target, ast.Name):
        read = writer.expression(placed(load(target.id), target))
        call = placed(hook("aug", symbol, read, value), stmt)
        return [placed(ast.Assign(targets=[target], value=call), stmt)]
    if not writer.can_wait(stmt.value):
        name = writer.temporary()
        done = [placed(assign(name, value), stmt)]
        value = placed(load(name), stmt.value)
    whole = writer.expression(target.value)
    if isinstance(target, ast.Subscript):
        call = hook("aug_item", symbol, whole, writer.index(target.slice), thunk(value))
    else:
        call = hook("aug_attr", symbol, whole, constant(target.attr), thunk(value))
    return [*done, placed(ast.Expr(value=call), stmt)]


def delete(writer, stmt):
    done = []
    for target in stmt.targets:
        if isinstance(target, (ast.Tuple, ast.List)):
            inner = placed(ast.Delete(targets=target.elts), target)
            done += delete(writer, inner)
        elif isinstance(target, ast.Subscript):
            call = hook("delitem", writer.expression(target.value), writer.index(target.slice))
            done.append(placed(ast.Expr(value=call), target))
        elif isinstance(target, ast.Attribute):
            call = hook("delattr_", writer.expression(target.value), constant(target.attr))
            done.append(placed(ast.Expr(value=call), target))
        else:
            done.append(placed(ast.Delete(targets=[target]), target))
    return done
