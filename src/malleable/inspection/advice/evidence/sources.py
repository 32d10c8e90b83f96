"""The user's source text as a tree: the expression that failed, and the values of its names."""

import ast
import functools
import inspect
import types
from collections.abc import Iterator
from typing import Any

from malleable.compat import Place
from malleable.inspection import places
from malleable.inspection.advice.evidence.trouble import Step
from malleable.python_source.files import around as around
from malleable.python_source.files import parents as parents
from malleable.python_source.files import read
from malleable.python_source.source import closed_over

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
MISSING = object()


def module_of(file: str) -> ast.Module | None:
    """The tree of a file, None where it cannot be read."""
    return read(file).tree


def expression(place: Place) -> ast.AST | None:
    """The expression or statement at a place: the smallest that covers it."""
    tree = module_of(place.file)
    found = None
    for node in ast.walk(tree) if tree else ():
        fits = isinstance(node, ast.expr | ast.stmt) and _covers(node, place)
        if fits and (found is None or _size(node) <= _size(found)):
            found = node
    return found


def call_at(place: Place) -> ast.Call | None:
    """The call at a place, or the innermost around it."""
    return around(expression(place), ast.Call)


def _covers(node, place: Place) -> bool:
    start, end = (place.line, place.column), (place.end_line, place.end_column)
    if end[1] == 0:  # nothing is known but the line
        return node.lineno == place.line and isinstance(node, ast.stmt)
    return (node.lineno, node.col_offset) <= start and end <= (node.end_lineno, node.end_col_offset)


def _size(node) -> tuple[int, int]:
    lines = node.end_lineno - node.lineno
    return lines, node.end_col_offset - node.col_offset if not lines else node.end_col_offset


def statement(node: ast.AST | None) -> ast.stmt | None:
    """The statement that a node is in."""
    if node is None or isinstance(node, ast.stmt):
        return node
    return next((p for p in parents(node) if isinstance(p, ast.stmt)), None)


def place(node: ast.AST, file: str, function: str) -> Place:
    """Where a node is, as a place."""
    at: Any = node
    return Place(file, at.lineno, function, at.col_offset, at.end_lineno, at.end_col_offset)


def text(node: ast.AST | None, default: str = "") -> str:
    """A node as one line of source, shortened; the default for none."""
    if node is None:
        return default
    line = " ".join(ast.unparse(node).split())
    return line if len(line) <= 60 else line[:57] + "..."


# ---------------------------------------------------------------- functions


def plain(fun: Any) -> types.FunctionType | None:
    """The user function behind partials, methods, and what JAX wraps around it."""
    seen: set[int] = set()
    while id(fun) not in seen:
        seen.add(id(fun))
        if isinstance(fun, functools.partial):
            fun = fun.func
        elif isinstance(fun, types.MethodType):
            fun = fun.__func__
        elif hasattr(fun, "__wrapped__"):
            fun = fun.__wrapped__
        elif not isinstance(fun, types.FunctionType) and callable(fun):
            fun = getattr(fun, "fun", None) or type(fun).__call__
    return fun if isinstance(fun, types.FunctionType) else None


def users(fun: Any) -> Any:
    """The user's function inside one that a library makes of it; any other as it is."""
    waiting, known = [(fun, 0)], plain(fun)
    if known is None or places.is_own(known.__code__.co_filename):
        return fun
    for held, depth in waiting:
        known = plain(held) if callable(held) else None
        if known is not None and places.is_own(known.__code__.co_filename):
            return held
        if depth < 4 and len(waiting) < 200:
            waiting += [(one, depth + 1) for one in (*_closed_over(held), *_closed_over(known))]
    return fun


def _closed_over(fun: Any) -> list:
    """What a function closes over, or the attributes of an object that is called like one."""
    if isinstance(fun, functools.partial):
        return [fun.func]
    inside = [*closed_over(fun).values()]
    return inside or (list(vars(fun).values()) if hasattr(fun, "__dict__") else [])


def definition(fun: Any) -> tuple[Function, Place] | None:
    """The tree of a function and where it begins; None where the source is out of reach."""
    function = plain(fun)
    return body_of(function.__code__) if function else None


def body_of(code: types.CodeType) -> tuple[Function, Place] | None:
    """The tree of the function that some code was compiled from, and where it begins."""
    tree = module_of(code.co_filename)
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, Function) and _is_of(node, code):
            return node, place(node, code.co_filename, code.co_qualname)
    return None


def _is_of(node: Function, code: types.CodeType) -> bool:
    if isinstance(node, ast.Lambda):
        if code.co_name != "<lambda>" or node.lineno != code.co_firstlineno:
            return False
        known = [p for p in code.co_positions() if p[2] is not None and p[3] not in (None, 0)]
        inside = [p for p in known if p[0] == node.body.lineno and p[2] == node.body.col_offset]
        names = [a.arg for a in arguments(node)]
        return bool(inside) and names == list(code.co_varnames[: len(names)])
    first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
    return node.name == code.co_name and first == code.co_firstlineno


def arguments(node: Function) -> list[ast.arg]:
    """The parameters of a function, in order."""
    a = node.args
    rest = [x for x in (a.vararg, a.kwarg) if x is not None]
    return [*a.posonlyargs, *a.args, *a.kwonlyargs, *rest]


def where_defined(fun: Any) -> Place | None:
    """The `def` line of a function; of a lambda, its own line."""
    found = definition(fun)
    return found[1] if found else None


def returns(fun: Any) -> list[tuple[ast.expr | None, Place]]:
    """(expression, place) of every value a function returns, in order."""
    found = definition(fun)
    if found is None:
        return []
    node, at = found
    if isinstance(node, ast.Lambda):
        return [(node.body, place(node.body, at.file, at.function))]
    ends = [n for n in own_nodes(node) if isinstance(n, ast.Return)]
    return [(n.value, place(n, at.file, at.function)) for n in ends]


def ending(fun: Any) -> tuple[ast.expr | None, Place | None]:
    """(expression, place) of the last value a function returns; without one, where it begins."""
    ends = returns(fun)
    return ends[-1] if ends else (None, where_defined(fun))


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function without those of the functions defined in it, in source order."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, Function | ast.ClassDef):
            yield child
            yield from own_nodes(child)


def name_of(fun: Any) -> str:
    """What the user calls a function."""
    function = plain(fun)
    return getattr(function or fun, "__name__", type(fun).__name__)


def parameters(fun: Any) -> list[str]:
    """The names of a function's parameters, [] where it has no signature."""
    try:
        return list(inspect.signature(fun).parameters)
    except (TypeError, ValueError):
        return []


def called_by(fun: Any, count: int, word: str = "args[{}]") -> list[str]:
    """What a function calls so many arguments; those it has no name for, by number."""
    names = parameters(fun)[:count]
    return names + [word.format(i) for i in range(len(names), count)]


# ---------------------------------------------------------------- values


def value(node: ast.AST, step: Step) -> Any:
    """The value of a name, an attribute or an item in a frame, MISSING if looking could do harm."""
    match node:
        case ast.Constant(value=constant):
            return constant
        case ast.Name(id=name):
            frame = step.frame
            scopes: tuple[dict, ...] = (step.values, frame.f_globals, frame.f_builtins)
            return next((scope[name] for scope in scopes if name in scope), MISSING)
        case ast.Attribute(value=inner, attr=attr):
            owner = value(inner, step)
            if owner is MISSING:
                return MISSING
            if isinstance(owner, types.ModuleType) or attr in ("T", "shape", "mT"):
                return getattr(owner, attr, MISSING)
            return inspect.getattr_static(owner, attr, MISSING) if _is_plain(owner) else MISSING
        case ast.Subscript(value=inner, slice=index):
            owner, key = value(inner, step), value(index, step)
            if isinstance(owner, dict | list | tuple) and isinstance(key, str | int):
                try:
                    return owner[key]  # type: ignore[index]
                except (KeyError, IndexError, TypeError):
                    return MISSING
        case ast.Tuple(elts=items) | ast.List(elts=items):
            values = [value(item, step) for item in items]
            if any(v is MISSING for v in values):
                return MISSING
            return tuple(values) if isinstance(node, ast.Tuple) else values
    return MISSING


def _is_plain(owner) -> bool:
    return not isinstance(owner, type) and hasattr(owner, "__dict__")


def atoms(node: ast.AST) -> list[ast.expr]:
    """The names, attributes and items in an expression that stand for values, left to right."""
    match node:
        case ast.Name() | ast.Attribute() | ast.Subscript(slice=ast.Constant()):
            return [node]
        case ast.Call(func=func, args=args, keywords=keywords):
            method = [func.value] if isinstance(func, ast.Attribute) else []
            inner = [*method, *args, *(k.value for k in keywords)]
            return [atom for part in inner for atom in atoms(part)]
        case ast.Lambda():
            return []
    return [atom for child in ast.iter_child_nodes(node) for atom in atoms(child)]


# ---------------------------------------------------------------- what stands on a line


def expression_at(place: Place) -> ast.expr | None:
    """The expression an equation or a frame stands for; None where the source cannot be read."""
    found = read(place.file).at(place)
    return found if isinstance(found, ast.expr) else None


def text_of(node: ast.expr | None) -> str:
    """An expression as source, or "" for none."""
    return ast.unparse(node) if node is not None else ""


def called(node: ast.expr | None) -> str:
    """`take` for the call jnp.take(x, i); "" for what is not a call of a name."""
    match node:
        case ast.Call(func=ast.Name(id=name)) | ast.Call(func=ast.Attribute(attr=name)):
            return name
    return ""


def option(call: ast.AST | None, name: str) -> ast.expr | None:
    """What a call passes by a name."""
    return next((k.value for k in getattr(call, "keywords", ()) if k.arg == name), None)


def argument(call: ast.AST | None, position: int, keyword: str) -> ast.expr | None:
    """What a call passes for one of its arguments, given the position and the name of it."""
    if not isinstance(call, ast.Call):
        return None
    named = option(call, keyword)
    plain = call.args[: position + 1]
    known = len(plain) > position and not any(isinstance(x, ast.Starred) for x in plain)
    return named or (plain[position] if known else None)


def on_line(place: Place, kind: Any) -> list[Any]:
    """The nodes of some kind that stand on a line."""
    found: list[Any] = [n for n in read(place.file).nodes if isinstance(n, kind)]
    return [n for n in found if n.lineno <= place.line <= (n.end_lineno or 0)]


def calls_on(place: Place, *names: str) -> list[ast.Call]:
    """The calls of functions of these names that stand on a line."""
    return [n for n in on_line(place, ast.Call) if called(n) in names]


def returns_of(defined: Place) -> list[Place]:
    """Where the function that begins at a place returns."""
    functions = (n for n in read(defined.file).nodes if isinstance(n, ast.FunctionDef))
    inside = [(f.name, n) for f in functions if f.lineno == defined.line for n in own_nodes(f)]
    ends = [(name, n.lineno) for name, n in inside if isinstance(n, ast.Return)]
    return [Place(defined.file, line, name, 0, line, 0) for name, line in ends]
