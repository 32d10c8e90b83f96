"""`rewrite(fun, ag)`: the function with its constructs turned into calls of operators.

The clone shares the globals, cells and defaults of the original; its code keeps the original's
file, lines and names, so that a traceback reads as if nothing had happened.
"""

import __future__

import ast
import functools
import inspect
import linecache
import re
import threading
import types
import weakref

from malleable.frontend.syntax import loops
from malleable.frontend.syntax.generators import as_list
from malleable.frontend.syntax.writer import Writer
from malleable.python_source import source
from malleable.python_source.nodes import HOOKS, LOCALS, MARK, function, parameters, placed
from malleable.python_source.source import NoSource

__all__ = ["NoSource", "rewrite", "source_of"]

FUTURES = functools.reduce(
    lambda a, b: a | b,
    (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names),
)
ASYNCHRONOUS = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
FACTORY, FUNCTION = "_ag_factory", "_ag_function"
RESERVED = re.compile(r"\b(?:ag__|_ag_\w*)")

SHOWN = {"binary": ("left", "right"), "compare": ("left", "comparators"), "unary": ("operand",)}
_codes = {}
_lock = threading.RLock()


def rewrite(fun, ag, mode="full", listed=False):
    """The converted clone of a Python function or lambda; `ag` supplies the operators.

    listed: of a generator function, one that returns a list of all it yields.

    mode="explicit" makes operators of no `if`, `for`, `while`, `and`, `or`, `not`, `assert` and
    `a if c else b` but those marked: `if inline_cond(p)`, `for x in inline_scan(xs)`,
    `while inline_while(c)`. Coroutines and what is converted already come back as they are.
    Raises NoSource.
    """
    code = fun.__code__
    if code.co_flags & ASYNCHRONOUS or (HOOKS in code.co_freevars and not listed):
        return fun
    new = _converted(code, fun.__globals__, mode, listed)
    if new.co_freevars == code.co_freevars:
        cells = fun.__closure__
    else:
        held = dict(zip(code.co_freevars, fun.__closure__ or (), strict=True))
        held[HOOKS] = types.CellType(ag)
        cells = tuple(held[name] for name in new.co_freevars)
    clone = types.FunctionType(new, fun.__globals__, fun.__name__, fun.__defaults__, cells)
    clone.__kwdefaults__ = fun.__kwdefaults__
    clone.__annotations__ = fun.__annotations__
    clone.__qualname__, clone.__module__ = fun.__qualname__, fun.__module__
    clone.__doc__ = fun.__doc__
    if fun.__dict__:
        clone.__dict__.update(fun.__dict__)
    type_params = getattr(fun, "__type_params__", ())
    if type_params:
        clone.__type_params__ = type_params
    return clone


def source_of(fun, mode="full"):
    """The rewritten source as text. Raises NoSource."""
    node, _ = _find_and_rewrite(fun.__code__, fun.__globals__, mode)
    if isinstance(node, ast.FunctionDef):
        node.name = fun.__code__.co_name
    text = ast.unparse(ast.fix_missing_locations(Readable().visit(node)))
    return text.replace(f"lambda *{MARK}: ", "lambda: ")


class Readable(ast.NodeTransformer):
    """Shows `a + b` where the code calls the operator that asks a and b what that means."""

    def visit_Call(self, node):
        self.generic_visit(node)
        name = getattr(node.func, "attr", "")
        if getattr(getattr(node.func, "value", None), "id", "") != HOOKS or name not in SHOWN:
            return node
        sign, *operands = node.args
        names = [f"_{i}" for i in range(len(operands))]
        text = (
            f"{names[0]} {sign.value} {names[1]}" if name != "unary" else f"{sign.value}{names[0]}"
        )
        shown = ast.parse(text, mode="eval").body
        for field, value in zip(SHOWN[name], operands, strict=True):
            setattr(shown, field, [value] if field == "comparators" else value)
        return shown


def _converted(code, module_globals, mode, listed):
    """The new code object; made once per code object and state of its file."""
    key = id(code), mode, listed
    held = _codes.get(key)
    if held is not None and held[0]() is code:
        if linecache.cache.get(code.co_filename) is held[1]:
            return held[3]
        if linecache.getlines(code.co_filename, module_globals) == held[2]:
            entry = linecache.cache.get(code.co_filename)
            _codes[key] = (held[0], entry, *held[2:])
            return held[3]
    with _lock:
        held = _codes.get(key)
        entry = linecache.cache.get(code.co_filename)
        if held is not None and held[0]() is code and entry is held[1] and entry is not None:
            return held[3]
        node, found = _find_and_rewrite(code, module_globals, mode, listed)
        new = _compiled(node, code)
        entry = linecache.cache.get(code.co_filename)
        forget = weakref.ref(code, lambda _, codes=_codes: codes.pop(key, None))
        _codes[key] = (forget, entry, found.lines, new)
        return new


def _find_and_rewrite(code, module_globals, mode, listed=False):
    """(rewritten node, where it was found)."""
    found = source.find(code, module_globals)
    node = found.node
    if isinstance(node, ast.AsyncFunctionDef):
        raise NoSource(f"{code.co_qualname} is asynchronous")
    if _has_class(node) or found.owner:
        mangle(node, found.owner)
    if isinstance(node, ast.FunctionDef):
        node.decorator_list, node.returns = [], None
        if hasattr(node, "type_params"):
            node.type_params = []
        for arg in ast.walk(node.args):
            if isinstance(arg, ast.arg):
                arg.annotation = None
    node = as_list(node) if listed else node
    for name in code.co_freevars:  # of a lambda in a comprehension whose targets have new names
        if name.startswith(loops.TARGET):
            loops.rename(node, name.split("_", 3)[3], name)
    node.args.defaults = []
    node.args.kw_defaults = [None] * len(node.args.kwonlyargs)
    try:
        return Writer(node, mode, in_class="__class__" in code.co_freevars).function(), found
    except RecursionError:
        raise NoSource(f"{code.co_qualname} is nested too deeply") from None


def _has_class(node):
    """Whether a class is made inside. Raises NoSource for names that we would collide with."""
    found = False
    for one in ast.walk(node):
        found |= isinstance(one, ast.ClassDef)
        name = getattr(one, "id", None) or getattr(one, "arg", None)
        if isinstance(name, str) and name[:3] in ("ag_", "_ag") and RESERVED.match(name):
            raise NoSource(f"the name {name} is reserved")
    return found


def mangle(node, owner):
    """Write private names out, as the compiler does inside `class owner`."""
    prefix = owner and "_" + owner.lstrip("_")
    private = owner and owner.strip("_")

    def long(name):
        if private and name and name.startswith("__") and not name.endswith("__"):
            return prefix + name if "." not in name else name
        return name

    todo = [node]
    while todo:
        one = todo.pop()
        if isinstance(one, ast.ClassDef):
            for part in (*one.bases, *one.keywords, *one.decorator_list):
                mangle(part, owner)
            for part in one.body:
                mangle(part, one.name)
            one.name = long(one.name)
            continue
        for field in ("id", "attr", "arg", "name", "asname", "rest"):
            value = getattr(one, field, None)
            if isinstance(value, str) and not (field == "name" and isinstance(one, ast.alias)):
                setattr(one, field, long(value))
        if isinstance(one, (ast.Global, ast.Nonlocal)):
            one.names = [long(name) for name in one.names]
        todo.extend(ast.iter_child_nodes(one))


def _compiled(node, code):
    """The code object of `node` as a function in the place and under the name of `code`."""
    if isinstance(node, ast.Lambda):
        inner = placed(ast.Expr(value=node), node)
    else:
        node.name, inner = FUNCTION, node
    outer = function(FACTORY, (), [inner])
    outer.args = parameters(dict.fromkeys((*code.co_freevars, HOOKS)))
    tree = ast.Module(body=[placed(outer, node)], type_ignores=[])
    flags = code.co_flags & FUTURES
    try:
        module = compile(tree, code.co_filename, "exec", flags=flags, dont_inherit=True)
    except RecursionError:
        raise NoSource(f"{code.co_qualname} is nested too deeply") from None
    factory = _first_code(module, FACTORY)
    made = next(c for c in factory.co_consts if isinstance(c, types.CodeType))
    return _renamed(made, code.co_name, code.co_qualname, made.co_qualname)


def _first_code(code, name):
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType) and constant.co_name == name:
            return constant
    raise AssertionError(name)


def _renamed(code, name, qualname, old, free=None):
    """`code` and the code inside under the user's names; old: the qualified name it has now.

    free: the free variables of the user's function, of a block that it holds.
    """
    consts, free = [], code.co_freevars if free is None else free
    is_class = "__qualname__" in code.co_names and "__module__" in code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            consts.append(_renamed_inner(constant, name, qualname, old, free))
        elif is_class and constant == old:
            consts.append(qualname)
        else:
            consts.append(constant)
    return code.replace(co_name=name, co_qualname=qualname, co_consts=tuple(consts))


def _renamed_inner(code, name, qualname, old, free):
    mine = code.co_qualname
    made = code.co_name.startswith(MARK) or (
        code.co_name == "<lambda>" and "".join(code.co_varnames[:1]).startswith(MARK)
    )
    if made:
        block = _renamed(code, name, qualname, mine, free)
        LOCALS[block] = frozenset(code.co_freevars).difference(free)
        return block
    suffix = mine.removeprefix(old) if mine.startswith(old) else None
    return _renamed(code, code.co_name, mine if suffix is None else qualname + suffix, mine)
