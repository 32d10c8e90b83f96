"""Python asks a traced value whether it is true: `if`, `while`, `and`, `max(x, 0)`."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from malleable.inspection.advice.evidence import sources
from malleable.inspection.advice.evidence.sources import text
from malleable.inspection.advice.evidence.tried import Rewrite


@dataclass(frozen=True)
class Need:
    """What is asked of a traced value, and how to write the line without asking.

    at: the expression that asks; what: the start of a sentence about it; static: whether it would
    help to know an argument while tracing ("whole": only a whole number); of: the expressions
    whose values are asked for, if not all in `at`; number: they are single numbers.
    """

    at: ast.AST
    what: str
    ways: tuple[str | Rewrite, ...]
    static: bool | str = False
    of: tuple[ast.AST, ...] = ()
    number: bool = False


_BUILTINS = {"max": "jnp.maximum", "min": "jnp.minimum", "sorted": "jnp.sort", "any": "jnp.any"}
_BUILTINS |= {"all": "jnp.all", "sum": "jnp.sum", "divmod": "jnp.divmod"}


def truth(node: ast.AST) -> Need:
    """Who needs True or False of a value at a failing expression."""
    asks = "needs True or False from"
    if isinstance(node, ast.If | ast.While | ast.Assert | ast.IfExp):  # so it is for a bare name
        node = node.test
    for inner in [node, *sources.parents(node)]:
        match inner:
            case ast.Call(func=ast.Name(id=name)) if name in (*_BUILTINS, "bool", "filter"):
                return _truth_of_call(inner, name)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                new = f"jnp.logical_not({text(operand)})"
                way = f"write ~({text(operand)}), or {new}"
                return Need(inner, f"`not` {asks}", _instead(inner, new, way), "whole")
            case ast.Compare(ops=[ast.In() | ast.NotIn()], left=left, comparators=[many]):
                new = f"jnp.any({text(left)} == jnp.array({text(many)}))"
                new = f"~{new}" if isinstance(inner.ops[0], ast.NotIn) else new
                return Need(inner, f"`in` {asks}", _instead(inner, new, f"write {new}"), "whole")
            case ast.Compare(ops=[_, _, *_]):
                return _chain(inner)
            case ast.BoolOp():
                return _joined(inner)
            case ast.Match(subject=subject):
                way = f"choose with lax.switch({text(subject)}, [...], *operands), or jnp.where"
                return Need(subject, f"`match` {asks}", (way,), "whole", (subject,))
        match getattr(inner, "parent", None):
            case ast.UnaryOp(op=ast.Not()) | ast.Compare(ops=[_, _, *_]) | ast.BoolOp():
                continue
            case ast.If(test=test) as holder if inner is test:
                return Need(test, f"`if` {asks}", tuple(_branch(holder)), "whole")
            case ast.While(test=test) as holder if inner is test:
                names = ", ".join(_changed(holder)) or "state"
                loop = f"lax.while_loop(lambda state: ..., lambda state: ..., ({names}))"
                return Need(test, f"`while` {asks}", (f"write the loop as {loop}",), "whole")
            case ast.Assert(test=test) if inner is test:
                check = f"checkify.check({text(test)}, 'message')"
                way = f"check outside of the traced function, or inside it with {check}"
                return Need(test, f"`assert` {asks}", (way,))
            case ast.IfExp(test=test, body=body, orelse=other) as parent if inner is test:
                new = f"jnp.where({text(test)}, {text(body)}, {text(other)})"
                way = Rewrite(f"write {new}", parent, new)
                return Need(test, f"`if ... else` {asks}", (way, "lax.cond"), "whole")
            case ast.comprehension(ifs=tests) if inner in tests:
                way = "keep every element and choose with jnp.where(test, value, 0)"
                return Need(inner, f"the `if` of a comprehension {asks}", (way,))
        if isinstance(inner, ast.stmt):
            break
    return Need(node, f"Python {asks}", ("write jnp.where(test, a, b), or lax.cond",))


def _joined(found: ast.BoolOp) -> Need:
    sign, word = ("&", "and") if isinstance(found.op, ast.And) else ("|", "or")
    both = f" {sign} ".join(f"({text(v)})" for v in found.values)
    ways = _instead(found, both, f"write {both}, or jnp.logical_{word}")
    return Need(found, f"`{word}` needs True or False from", ways)


def _chain(found: ast.Compare) -> Need:
    terms = [found.left, *found.comparators]
    pairs = [
        f"({text(ast.Compare(a, [op], [b]))})"
        for a, op, b in zip(terms, found.ops, terms[1:], strict=False)
    ]
    both = " & ".join(pairs)
    ways = _instead(found, both, f"write {both}, or jnp.logical_and")
    return Need(found, "a chain of comparisons needs True or False from", ways)


def _instead(node: ast.expr, new: str, way: str) -> tuple[str | Rewrite, ...]:
    """What to write for a node that asks for a truth value, and for the `if` that it tests."""
    holder = getattr(node, "parent", None)
    if isinstance(holder, ast.If) and holder.test is node:
        first, *others = _branch(holder, new)
        first = f"branch with {first}" if isinstance(first, str) else first
        return (first, *others) if isinstance(first, Rewrite) else (f"{way}; then {first}", *others)
    if isinstance(holder, ast.keyword | ast.Call) and isinstance(node, ast.UnaryOp):
        return ()  # who is given the result asks for a truth value, too
    return (Rewrite(way, node, f"({new})"),)


def _truth_of_call(call: ast.Call, name: str) -> Need:
    given, asks = (
        ", ".join(text(arg) for arg in call.args),
        f"Python's `{name}` needs True or False",
    )
    if name == "bool":
        way = f"drop bool() and branch on {given} with jnp.where or lax.cond"
        return Need(call, f"{asks} from", (way,))
    if name == "filter":
        return Need(call, f"{asks} from", ("keep all and choose with jnp.where(test, x, 0)",))
    other = _BUILTINS[name]
    if name in ("max", "min") and len(call.args) != 2:
        other = f"jnp.{name}"
    if len(call.args) > 2:
        given = f"jnp.stack([{given}])"
    elif len(call.args) == 1:
        given = _one_array(call.args[0])
    new = f"{other}({given})"
    return Need(call, f"{asks} from a comparison of", (Rewrite(f"write {new}", call, new),))


def _one_array(many: ast.expr) -> str:
    """A list of values as one array: the functions of jax.numpy take no lists."""
    match many:
        case ast.List() | ast.Tuple() | ast.ListComp():
            return f"jnp.stack({text(many)})"
        case ast.GeneratorExp():
            return f"jnp.stack([{text(many)[1:-1]}])"
    return f"jnp.asarray({text(many)})"


def _branch(node: ast.If, test: str = "") -> Iterator[str | Rewrite]:
    """An `if` written with jnp.where, as far as it is short."""
    test = test or text(node.test)
    if isinstance(node.body[0], ast.Raise):
        yield (
            "raise outside of the traced function; inside it, checkify.check raises, "
            "and jnp.where or lax.cond choose"
        )
        return
    after = _return_after(node)
    chosen, last = _returned(node, test, [after] if after else []), after or node
    before = "return "
    if chosen is None:
        before, chosen, last = *_assigned(node, test), node
    if chosen is None:
        yield f"write jnp.where({test}, a, b), which computes both sides"
        yield f"lax.cond({test}, f, g)"
        return
    shown = " ".join(f"{before}{chosen}".removeprefix("return ").split())
    yield Rewrite(f"write {shown} (computes both)", node, before + chosen, last)
    yield "lax.cond"


def _returned(node: ast.If, test: str, after: list) -> str | None:
    """The value that is returned in either case, if there is nothing else in these."""

    def value(body: list) -> str | None:
        match body:
            case [ast.Return(value=value)] if value is not None:
                return ast.unparse(value)
            case [ast.If() as inner]:
                return _returned(inner, ast.unparse(inner.test), after)
        return None

    yes, no = value(node.body), value(node.orelse or after)
    return f"jnp.where({test}, {yes}, {no})" if yes and no else None


def _assigned(node: ast.If, test: str) -> tuple[str, str | None]:
    """(`name = `, the value that is assigned in either case), if there is nothing else in these."""
    match node.body, node.orelse:
        case [ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values))], []:
            pairs = [(ast.unparse(n), ast.unparse(v)) for n, v in zip(names, values, strict=False)]
            new = ", ".join(f"jnp.where({test}, {value}, {name})" for name, value in pairs)
            simple = all(isinstance(n, ast.Name) for n in names) and len(names) == len(values)
            return f"{', '.join(name for name, _ in pairs)} = ", new if simple else None
        case [ast.Assign(targets=[ast.Name(id=name)], value=yes)], []:
            return f"{name} = ", f"jnp.where({test}, {ast.unparse(yes)}, {name})"
        case [
            [ast.Assign(targets=[ast.Name(id=name)], value=yes)],
            [ast.Assign(targets=[ast.Name(id=same)], value=no)],
        ] if name == same:
            return f"{name} = ", f"jnp.where({test}, {ast.unparse(yes)}, {ast.unparse(no)})"
        case [ast.AugAssign(target=ast.Name(id=name), value=more, op=op)], []:
            new = ast.unparse(ast.BinOp(ast.Name(name), op, more))
            return f"{name} = ", f"jnp.where({test}, {new}, {name})"
    return "", None


def _return_after(node: ast.If) -> ast.Return | None:
    body = getattr(getattr(node, "parent", None), "body", [])
    after = body[body.index(node) + 1 :] if node in body else []
    one = after[0] if len(after) == 1 and isinstance(after[0], ast.Return) else None
    return one if one is not None and one.value is not None else None


def _changed(loop: ast.While) -> list[str]:
    stored = [
        n.id for n in ast.walk(loop) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    ]
    function = sources.around(loop, sources.Function)
    if function is None:
        return list(dict.fromkeys(stored))
    before = {a.arg for a in sources.arguments(function)}
    before |= {
        n.id
        for n in ast.walk(function)
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store) and n.lineno < loop.lineno
    }
    return [name for name in dict.fromkeys(stored) if name in before]
