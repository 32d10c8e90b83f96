"""Python asks a traced value for a truth value, a number, elements or a key: `if x`, `x[m]`."""

import ast
import importlib
import math
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax import numpy as jnp

from malleable.inspection.advice.evidence import sources
from malleable.inspection.advice.evidence.diagnosis import Unsure, sure
from malleable.inspection.advice.evidence.sources import MISSING, text
from malleable.inspection.advice.evidence.tried import Rewrite
from malleable.inspection.advice.evidence.trouble import Step, Trouble


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
    each = zip(terms, found.ops, terms[1:], strict=False)
    pairs = [f"({text(ast.Compare(a, [op], [b]))})" for a, op, b in each]
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
    given, asks = ", ".join(map(text, call.args)), f"Python's `{name}` needs True or False"
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
    stored = list(dict.fromkeys(n.id for n in _stored(loop)))
    function = sources.around(loop, sources.Function)
    if function is None:
        return stored
    before = {a.arg for a in sources.arguments(function)}
    before |= {n.id for n in _stored(function) if n.lineno < loop.lineno}
    return [name for name in stored if name in before]


def _stored(node: ast.AST) -> list[ast.Name]:
    names = [n for n in ast.walk(node) if isinstance(n, ast.Name)]
    return [n for n in names if isinstance(n.ctx, ast.Store)]


# ---------------------------------------------------------------- numbers, elements, keys

_SIZED = {  # functions whose result has as many rows as the values say, and what fixes the number
    **dict.fromkeys(("nonzero", "where", "argwhere", "flatnonzero"), "size=N"),
    **dict.fromkeys(("unique", "unique_values", "unique_counts", "unique_all"), "size=N"),
    **dict.fromkeys(("union1d", "intersect1d", "setdiff1d", "setxor1d"), "size=N"),
    **dict.fromkeys(
        ("segment_sum", "segment_max", "segment_min", "segment_prod"), "num_segments=N"
    ),
    "unique_inverse": "size=N",
    "repeat": "total_repeat_length=N",
    "bincount": "length=N",
}
_MASKED = "make the largest size that occurs and mask: jnp.where(jnp.arange(size) < n, ..., 0)"
_CASTS = {"int": "jnp.int32", "float": "jnp.float32", "complex": "jnp.complex64"}
_MATH = {"pow": "power", "asin": "arcsin", "acos": "arccos", "atan": "arctan", "atan2": "arctan2"}
_MATH |= {"fabs": "abs", "fsum": "sum", "asinh": "arcsinh", "acosh": "arccosh", "atanh": "arctanh"}
_TAKEN = {"asarray", "array", "asanyarray", "ascontiguousarray", "copy", "float32", "float64"}
_REDUCTIONS = {"sum", "mean", "max", "min", "prod", "std", "var", "any", "all"}


def need(node: ast.AST, step: Step, trouble: Trouble) -> Need:
    """What is asked at a failing expression; Unsure if it cannot be told."""
    kind, words = trouble.kind, trouble.text
    if kind == "TracerBoolConversionError":
        return truth(node)
    if kind == "NonConcreteBooleanIndexError":
        return _mask(node)
    if kind == "IndexError":
        return _slice(node)
    if "0-d array" in words:
        return _elements(node)
    if kind == "KeyError" or "unhashable" in words:
        return _key(node)
    if (written := _formatted(node, words)) is not None:
        return written
    if kind == "TracerArrayConversionError" or "array element with a sequence" in words:
        return _numpy(node, step)
    if kind == "TracerIntegerConversionError" or ("integer" in words and "Shapes" not in words):
        return _index(node, step)
    return _number(node, step, words)


def _formatted(node: ast.AST, words: str) -> Need | None:
    """`f"{x:.3f}"` and `"%f" % x`."""
    match node:
        case ast.BinOp(op=ast.Mod(), left=ast.Constant() | ast.JoinedStr()):
            pass
        case _ if "format string" not in words:
            return None
    strings = [n for n in (node, *sources.parents(node)) if isinstance(n, ast.JoinedStr)]
    node = strings[-1] if strings else node  # the format after the colon is one, too
    way = "print it with jax.debug.print('{x:.3f}', x=...), or return it and print it outside"
    return Need(node, "formatting needs the value of", (way,))


def _args(call: ast.Call) -> tuple[ast.AST, ...]:
    return (*call.args, *(keyword.value for keyword in call.keywords))


def _index(node: ast.AST, step: Step) -> Need:
    for inner in (node, *sources.parents(node)):
        match inner:
            case ast.Call(func=ast.Name(id="range"), args=args):
                low, high = ["0", *map(text, args[:2])][-2:]
                way = f"loop with lax.fori_loop({low}, {high}, lambda i, carry: ..., init)"
                return Need(inner, "`range` needs the number", (way,), True)
            case ast.Subscript():
                return _item(inner, step)
            case ast.BinOp(op=ast.Mult(), left=ast.List(), right=count):
                way = f"use jnp.where(jnp.arange(longest) < {text(count)}, ..., 0)"
                return Need(count, "repeating a list needs the number", (way,), True)
            case ast.Call():
                what = f"`{text(inner.func)}` needs the whole number"
                return Need(inner, what, (_MASKED,), True, _args(inner), number=True)
    return Need(node, "Python needs the whole number", (), True)


def _item(item: ast.Subscript, step: Step) -> Need:
    many, index = item.value, item.slice
    items, name, at = sources.value(many, step), text(many), text(index)
    way: str | Rewrite
    if isinstance(items, np.ndarray):
        new = f"jnp.asarray({name})"
        way = Rewrite(f"index an array of JAX: {new}[{at}]", many, new)
        return Need(index, f"indexing the NumPy array `{name}` needs the number", (way,), True)
    kind = type(items).__name__ if items is not MISSING else "list"
    if isinstance(items, list | tuple) and any(map(callable, items)):
        way = f"call the chosen one with lax.switch({at}, {name}, *operands)"
    elif isinstance(items, list | tuple) and any(isinstance(item, str) for item in items):
        way = f"return {at} and look up {name}[{at}] outside of the traced function"
    elif kind in ("list", "tuple"):
        new = f"jnp.stack({name})" if any(map(np.ndim, _some(items))) else f"jnp.array({name})"
        way = Rewrite(f"make one array of it, {new}[{at}]", many, new)
        other = "lax.switch, which chooses between anything else"
        return Need(index, f"indexing the {kind} `{name}` needs the number", (way, other), True)
    else:
        way = "use an array of JAX, or lax.switch"
    return Need(index, f"indexing the {kind} `{name}` needs the number", (way,), True)


def _some(items: Any) -> list:
    """The arrays and numbers in a list that is known."""
    return (
        [x for x in items if np.isscalar(x) or hasattr(x, "shape")] if items is not MISSING else []
    )


def _number(node: ast.AST, step: Step, words: str) -> Need:
    call = sure(sources.around(node, ast.Call))
    name, given, args = text(call.func), ", ".join(map(text, call.args)), _args(call)
    last = name.rpartition(".")[2]
    function = sources.value(call.func, step)
    if last in ("item", "tolist") and isinstance(call.func, ast.Attribute):
        owner, later = text(call.func.value), "from what the traced function returns"
        what = f"`.{last}()` needs the value of"
        if isinstance(getattr(sources.statement(call), "value", None), ast.Call):
            return Need(call, what, (f"return {owner}, and read the number outside, {later}",))
        way = f"drop .{last}() and go on with {owner}, an array; read the number outside, {later}"
        return Need(call, what, (Rewrite(way, call, ast.unparse(call.func.value)),))
    if name in _CASTS:
        new = f"jnp.asarray({given}).astype({_CASTS[name]})"
        way = Rewrite(f"write {new}", call, new)
        return Need(call, f"`{name}()` needs the value of", (way,), True, args)
    if name == "round":
        way = Rewrite(f"write jnp.round({given})", call.func, "jnp.round")
        return Need(call, "Python's `round` needs the value of", (way,), False, args)
    if _is_from_math(function, last):
        other = _MATH.get(last, last)
        way = "use jax.numpy or jax.scipy"
        if hasattr(jnp, other):
            way = Rewrite(f"write jnp.{other}({given})", call.func, f"jnp.{other}")
        return Need(
            call, f"`{name}` computes in Python and needs the value of", (way,), False, args
        )
    made = re.search(r"'num' argument|jnp\.arange|Shapes must|jnp\.linspace", words)
    if last in _SIZED and not made:
        what = f"how long the result of `{last}` is depends on the values of"
        ways = [f"give it a fixed length: {name}({', '.join((given, _SIZED[last]))})"]
        if last in ("where", "nonzero", "argwhere", "flatnonzero"):
            ways.append(f"keep the shape and choose: jnp.where({given}, x, 0)")
        return Need(call, what, tuple(ways), False, args)
    if _is_numpy(function):
        return _numpy(node, step)
    if "axis argument" in words:
        return Need(call, f"the axis of `{name}` is the number", (), True, args, number=True)
    what = f"the shape that `{name}` makes needs the number"
    return Need(call, what, (_MASKED,), True, args, number=True)


def _is_from_math(function, name: str) -> bool:
    module = getattr(function, "__module__", "")
    return function is not MISSING and (
        module in ("math", "cmath") or getattr(math, name, None) is function
    )


def _is_numpy(function) -> bool:
    module = getattr(function, "__module__", None) or ""
    return isinstance(function, np.ufunc) or module.split(".")[0] == "numpy"


def _part(function) -> str:
    """`linalg.` for a function of numpy.linalg, "" for one of numpy."""
    parts = (getattr(function, "__module__", None) or "").split(".")[1:2]
    return f"{parts[0]}." if parts and parts[0] in ("linalg", "fft") else ""


def _within_jnp(part: str):
    return getattr(jnp, part.rstrip(".")) if part else jnp


def _numpy(node: ast.AST, step: Step) -> Need:
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
        return _store(node)
    if isinstance(node, ast.Subscript):
        return _item(node, step)
    call = sources.around(node, ast.Call)
    inside = isinstance(node, ast.Call) or call is None or not isinstance(node, ast.BinOp)
    if call is None or not inside:
        way = "make arrays of JAX of the NumPy arrays first, with jnp.asarray"
        return Need(node, "NumPy needs the values of", (way,))
    name, given = text(call.func), ", ".join(map(text, call.args))
    last = name.rpartition(".")[2]
    function = sources.value(call.func, step)
    part, twin = _part(function), _twin(function, last)
    what, host = (
        f"NumPy's `{name}` needs the values of",
        "call it on the host with jax.pure_callback",
    )
    way: str | Rewrite
    if last in _TAKEN:
        new = {"float32": "jnp.float32", "float64": "jnp.float64"}.get(last, "jnp.asarray")
        way = Rewrite(f"drop it, or write {new}({given})", call.func, new)
    elif _is_numpy(function) and getattr(_within_jnp(part), last, function) is not function:
        keywords = "".join(f", {k.arg}={text(k.value)}" for k in call.keywords)
        new = f"jnp.{part}{last}"
        way = Rewrite(f"write {new}({given}{keywords})", call.func, new)
    else:
        what = f"`{name}` works on NumPy arrays and needs the values of"
        call_back = f"jax.pure_callback({name}, jax.ShapeDtypeStruct(shape, dtype), {given})"
        if twin is not None:
            way = Rewrite(f"write {twin}({given})", call.func, twin)
        elif name.startswith(("np.random", "numpy.random", "random.")):
            way = "draw with jax.random, from a key: jax.random.key(seed)"
        elif _is_numpy(function) and getattr(jnp, last, None) is function:  # np.save
            way, host = "call it outside of the traced function, on what that returns", ""
        else:
            way, host = "use jax.numpy or jax.scipy", f"call it on the host: {call_back}"
    return Need(call, what, (way, host) if host else (way,), False, _args(call))


def _twin(function, name: str) -> str | None:
    """`jax.scipy.special.erf` for what is called like it in SciPy."""
    for module in ("special", "linalg", "signal", "stats", "integrate", "ndimage"):
        scipy = sys.modules.get(f"scipy.{module}")
        if scipy is not None and getattr(scipy, name, None) is function:
            own = importlib.import_module(f"jax.scipy.{module}")
            return f"jax.scipy.{module}.{name}" if hasattr(own, name) else None
    return None


def _store(node: ast.Subscript) -> Need:
    name, index = text(node.value), text(node.slice)
    statement = sources.statement(node)
    value = getattr(statement, "value", None)
    way = f"make {name} an array of JAX (jnp.zeros) and write {name} = {name}.at[{index}].set("
    way += f"{text(value, 'value')})"
    of = (value,) if value is not None else ()
    return Need(
        statement or node,
        f"the NumPy array `{name}` can only store the value of",
        (way,),
        False,
        of,
    )


def _mask(node: ast.AST) -> Need:
    item = sure(sources.around(node, ast.Subscript))
    array, mask = text(item.value), text(item.slice)
    ways = [*_reduced(item, mask)]
    if not ways or "sum(" in getattr(ways[0], "new", ""):
        ways.append(f"keep the shape: jnp.where({mask}, {array}, 0)")
    ways.append(f"take a fixed number: {array}[jnp.nonzero({mask}, size=N)]")
    what = f"how many entries `{array}[{mask}]` has depends on the values of the mask"
    return Need(item, what, tuple(ways), False, (item.slice,))


def _reduced(item: ast.Subscript, mask: str) -> Iterator[str | Rewrite]:
    """What is computed of some entries of an array, as a reduction that leaves the others out."""
    around, array = getattr(item, "parent", None), text(item.value)
    call = around if isinstance(around, ast.Call) else getattr(around, "parent", None)
    if not isinstance(call, ast.Call) or item not in (
        *call.args[:1],
        getattr(call.func, "value", 0),
    ):
        return
    reducer = text(call.func).rpartition(".")[2]
    if len(call.args) > (item in call.args) or reducer not in _REDUCTIONS:
        return
    options = "".join(f", {ast.unparse(keyword)}" for keyword in call.keywords)
    if reducer in ("max", "min"):
        yield f"write jnp.{reducer}({array}, where={mask}, initial=...{options})"
        return
    yield Rewrite(f"write {(new := f'jnp.{reducer}({array}, where={mask}{options})')}", call, new)


def _slice(node: ast.AST) -> Need:
    item = sure(sources.around(node, ast.Subscript))
    array = text(item.value)
    axis, first = next(_slices(item.slice), (None, None))
    ways: list[str | Rewrite] = []
    if isinstance(first, ast.Slice) and first.step is None:
        at = f"jnp.arange({array}.shape[{axis}])"
        tests = [f"{at} >= {text(first.lower)}"] if first.lower else []
        tests += [f"{at} < {text(first.upper)}"] if first.upper else []
        mask = " & ".join(f"({test})" for test in tests) if len(tests) > 1 else "".join(tests)
        if isinstance(item.slice, ast.Slice):
            ways += _reduced(item, mask)
        if not ways:
            ways.append(f"keep all of it, and mask where it is used: {mask}")
        ways.append(
            f"with a fixed length, lax.dynamic_slice_in_dim({array}, start, length, {axis})"
        )
    what = f"the length of `{text(item)}` depends on"
    return Need(item, what, tuple(ways), True, (item.slice,))


def _slices(index: ast.expr) -> Iterator[tuple[int, ast.Slice]]:
    """(axis, slice) of the slices in an index that say something."""
    for axis, part in enumerate(index.elts if isinstance(index, ast.Tuple) else [index]):
        if isinstance(part, ast.Slice) and (part.lower or part.upper or part.step):
            yield axis, part


def _elements(node: ast.AST) -> Need:
    loop = sources.around(node, ast.For)
    at = loop.iter if loop is not None else node
    name = text(at)
    way = f"pass an array with an axis, or write jnp.atleast_1d({name})"
    return Need(at, "going through elements needs an axis, and there is none in the number", (way,))


def _key(node: ast.AST) -> Need:
    for inner in (node, *sources.parents(node)):
        match inner:
            case (
                ast.Subscript(value=many, slice=index)
                | ast.Compare(left=index, ops=[ast.In() | ast.NotIn()], comparators=[many])
                | ast.Call(func=ast.Attribute(value=many, attr="get" | "pop"), args=[index, *_])
            ):
                name = text(many)
                way = f"put the values in one array, jnp.stack(list({name}.values())), and index "
                way += "it with a number; lax.switch chooses between functions"
                if any(isinstance(n, ast.JoinedStr) for n in ast.walk(index)):
                    way = "loop in Python, `for i in range(n)`, where i is a number; or stack the "
                    way += f"entries of {name} along a new axis and go through them with lax.scan"
                return Need(index, f"looking up `{name}[...]` needs the value of", (way,), True)
            case ast.Set() | ast.Dict() | ast.SetComp() | ast.DictComp() | ast.Call():
                what = "sets and dictionaries compare their keys and need the value of"
                way = "use arrays: jnp.unique(x, size=N), an index into jnp.array, or lax.switch"
                return Need(inner, what, (way,), True)
    raise Unsure
