"""if, ternary, and/or/not, comparison and assert as operator calls."""

import ast

from malleable.python_source.nodes import (
    constant,
    hook,
    load,
    naming,
    parameters,
    placed,
    store,
    strings,
    thunk,
)

SIGNS = {
    **{ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%"},
    **{ast.Pow: "**", ast.MatMult: "@", ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^"},
    **{ast.LShift: "<<", ast.RShift: ">>", ast.USub: "-", ast.UAdd: "+", ast.Invert: "~"},
    **{ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="},
}
IDENTITY = {ast.Is: "is_", ast.IsNot: "is_not", ast.In: "in_", ast.NotIn: "not_in"}


def if_(writer, stmt):
    """`ag__.if_(test, body, orelse, state, live)`, after the two functions."""
    live = writer.liveness
    after = live.after[id(stmt)]
    body, orelse = live.summary(stmt.body), live.summary(stmt.orelse)
    leaving = after | body.needs | orelse.needs | live.captured
    state = sorted((body.binds | orelse.binds) & leaving)
    like = stmt.test
    test = writer.expression(like)
    then_name, then = writer.block_function("if", stmt.body, state, like)
    defs, otherwise = [then], constant(None)
    if stmt.orelse:
        else_name, other = writer.block_function("else", stmt.orelse, state, like)
        defs.append(other)
        otherwise = load(else_name)
    kept = [name for name in state if name in after or name in live.captured]
    call = hook("if_", test, load(then_name), otherwise, naming(state), strings(kept))
    return [*defs, placed(ast.Expr(value=call), like)]


def assert_(writer, stmt):
    if stmt.msg is not None and not writer.can_wait(stmt.msg):
        return writer.native(stmt)
    message = constant(None) if stmt.msg is None else thunk(writer.expression(stmt.msg))
    call = hook("assert_", writer.expression(stmt.test), message)
    return [placed(ast.Expr(value=call), stmt.test)]


def ifexp(writer, node):
    if not (writer.can_wait(node.body) and writer.can_wait(node.orelse)):
        return writer.inside(node)
    test, body, orelse = map(writer.expression, (node.test, node.body, node.orelse))
    return placed(hook("ifexp", test, thunk(body), thunk(orelse)), node)


def boolop(writer, node):
    first, *later = node.values
    if not all(map(writer.can_wait, later)):
        return writer.inside(node)
    values = [thunk(writer.expression(value)) for value in later]
    name = "and_" if isinstance(node.op, ast.And) else "or_"
    return placed(hook(name, writer.expression(first), *values), node)


def unary(writer, node):
    operand = writer.expression(node.operand)
    if isinstance(node.op, ast.Not):
        return placed(hook("not_", operand), node)
    if isinstance(operand, ast.Constant):
        node.operand = operand
        return node
    return placed(hook("unary", constant(SIGNS[type(node.op)]), operand), node)


def binary(writer, node):
    power, sign = node.right, getattr(node.right, "op", None)
    negated = isinstance(sign, ast.USub) and not isinstance(power.operand, ast.Constant)
    if negated and isinstance(node.op, ast.Pow):
        operands = map(writer.expression, (node.left, power.operand))
        return placed(hook("binary", constant("**-"), *operands), node)
    left, right = writer.expression(node.left), writer.expression(node.right)
    if isinstance(left, ast.Constant) and isinstance(right, ast.Constant):
        node.left, node.right = left, right
        return node
    return placed(hook("binary", constant(SIGNS[type(node.op)]), left, right), node)


def comparison(op, left, right):
    """One comparison of two operands that are rewritten already."""
    name = IDENTITY.get(type(op))
    return (
        hook(name, left, right) if name else hook("compare", constant(SIGNS[type(op)]), left, right)
    )


def compare(writer, node):
    if len(node.ops) == 1:
        left, right = map(writer.expression, (node.left, node.comparators[0]))
        return placed(comparison(node.ops[0], left, right), node)
    if not all(map(writer.can_wait, node.comparators)):
        return writer.inside(node)
    return _chain(writer, node, writer.expression(node.left), node.ops, node.comparators)


def _chain(writer, node, left, ops, comparators):
    """`a < b < c`: and_(a < (t := b), lambda: t < c), each operand evaluated once.

    Where Python forbids a walrus, `(lambda s, t: and_(s < t, lambda: t < c))(a, b)`.
    """
    op, right, given = ops[0], writer.expression(comparators[0]), ()
    if len(ops) == 1:
        return placed(comparison(op, left, right), node)
    again = right
    if not isinstance(right, (ast.Constant, ast.Name)):
        name = writer.temporary()
        again = placed(load(name), comparators[0])
        if writer.may_name:
            right = ast.NamedExpr(target=store(name), value=right)
        else:
            first = writer.temporary()
            given, left, right = {first: left, name: right}, load(first), load(name)
    one = placed(comparison(op, left, right), node)
    rest = thunk(_chain(writer, node, again, ops[1:], comparators[1:]))
    both = placed(hook("and_", one, rest), node)
    if not given:
        return both
    made = ast.Lambda(args=parameters(given), body=both)
    return placed(ast.Call(func=made, args=[*given.values()], keywords=[]), node)
