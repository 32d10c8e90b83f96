"""The kind of each expression; those that Python must run raise Stays."""

import ast
import functools
import math
import types
from typing import Any

import jax
import numpy as np

from malleable.execution.common.leaves import flatten
from malleable.execution.purity.callees import (
    acting,
    computes,
    impure,
    impure_with,
    is_jax,
    is_of_trees,
    is_pure,
    makes,
    reads_code_only,
    writes,
)
from malleable.execution.purity.digits import may_fail
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
    is_pytree,
    join,
    kind_of,
    may_be_rebound,
    may_change,
    parameter_kinds,
    refuse_numpy,
)
from malleable.execution.purity.operands import (
    came_in,
    has_attribute,
    is_inexact,
    keeps_type,
    reads_whole,
    refuse_attributes,
    refuse_operators,
    refuse_overloaded,
)
from malleable.python_source import nodes, scopes

MANY = 200  # items of a container from which on a region does not take all of it
_SHAPE = frozenset(["shape", "ndim", "dtype", "size", "itemsize", "nbytes", "weak_type"])
_ARRAY_METHODS = frozenset(n for n in dir(jax.Array) if not n.startswith("_")) | {
    "at", "add", "set", "multiply", "mul", "divide", "power", "min", "max", "apply", "get",
}  # fmt: skip
_ASKS_NAMES = "get items keys values copy _replace _asdict split join"
_ASKS = frozenset(_ASKS_NAMES.split())
_FOUND = ("count", "index")  # of a list: numbers of Python's
_AMBIGUOUS_NAMES = "add append apply copy_to_host_async delete fill insert put set sort"
_AMBIGUOUS = frozenset(_AMBIGUOUS_NAMES.split())
_FUNCTIONS = frozenset(n for n, f in vars(jax.numpy).items() if callable(f) and n[0] != "_")
_EXACT = {math.isnan, math.isinf, math.isfinite, math.floor, math.ceil, math.trunc, math.fabs}
_COUNTS = frozenset([len, range, isinstance, issubclass, callable, hasattr, type])
# of which some numbers are an error, where NumPy and JAX have a NaN or an infinity
_RAISES = {math.sqrt, math.log, math.log2, math.log10, math.log1p, math.acos, math.asin}
_RAISES |= {math.acosh, math.atanh, math.fmod, math.remainder, math.pow}
_MAKES = frozenset([list, dict, set, sorted])
_PASSED = (NUMBER, NUMPY, SCALAR, SIZE)  # kinds that a parameter has of its argument


def expression(node, scope: Scope):
    """The kind of an expression. Raises Stays for one that Python must run."""
    if isinstance(node, ast.BinOp | ast.Compare | ast.UnaryOp | ast.Subscript):
        refuse_overloaded(node, scope)
    match node:
        case None | ast.Constant():
            return NUMBER
        case ast.Name():
            return name(node, scope)
        case ast.Attribute():
            return attribute(node, scope)
        case ast.Subscript():
            value, index = expression(node.value, scope), expression(node.slice, scope)
            if isinstance(value, Known):
                raise Stays("object", "it asks an object for an item")
            if index not in (NUMBER, SIZE) and is_container(node.value, value, scope):
                raise Stays("int", "a list is asked for the item at a value")
            if scope.loops and index == NUMBER and not isinstance(node.slice, ast.Constant):
                scope.unrolled |= is_container(node.value, value, scope)  # which checks its bounds
            if is_item_of_many(node, index, scope):
                raise Stays("object", "it takes one of many things")
            if (kind := kind_of_item(node, scope)) is not None:
                return kind
            if value == NUMPY:  # also at a place that JAX computed, and it may be a view
                return NUMPY
            return join(value, index) if value in (NUMBER, SCALAR, SIZE) else (
                ARRAY if value == ARRAY else UNKNOWN)  # fmt: skip
        case ast.Call():
            return call(node, scope)
        case ast.Lambda():
            lambda_(node, scope)
            return node
        case ast.Tuple():
            return join(*(expression(x, scope) for x in node.elts))
        case ast.List() | ast.Set():
            parts = [expression(x, scope) for x in node.elts]
            _refuse_scalars(parts)
            return NUMPY if join(*parts) == NUMPY else MADE
        case ast.Dict():
            _refuse_scalars([expression(part, scope) for part in (*node.keys, *node.values)])
            return MADE
        case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
            return comprehension(node, scope)
        case ast.JoinedStr():
            found = [v.value for v in node.values if isinstance(v, ast.FormattedValue)]
            parts = [expression(x, scope) for x in found]
            if join(*parts) != NUMBER:
                raise Stays("text", "a value becomes text")
            scope.typed |= bool(parts)
            return NUMBER
        case ast.NamedExpr():
            kind = expression(node.value, scope)
            bind(node.target, kind, scope)
            return kind
        case ast.BinOp(left=left, op=ast.Mod()) if not isinstance(left, ast.Constant) or (
            isinstance(left.value, str | bytes)
        ):
            kinds_ = expression(left, scope), expression(node.right, scope)
            if kinds_[0] == NUMBER and kinds_[1] != NUMBER:  # it may be text
                raise Stays("text", "a value becomes text")
            refuse_digits(kinds_, scope, node)
            return join(*kinds_)
        case ast.IfExp():
            test = expression(node.test, scope)
            ways = join(expression(node.body, scope), expression(node.orelse, scope))
            both = [expression(x, scope) for x in (node.body, node.orelse)]
            if test not in (NUMBER, SIZE) and (NUMBER in both or ways in (SCALAR, SIZE)):
                raise Stays("value", "which number it is depends on a value")
            return join(ways, *([test] if test == UNKNOWN else []))
        case ast.BinOp():
            found = expression(node.left, scope), expression(node.right, scope)
            refuse_digits(found, scope, node)
            constant = isinstance(node.left, ast.Constant) or isinstance(node.right, ast.Constant)
            if isinstance(node.op, ast.Mult | ast.Pow | ast.LShift):  # 32 bits may be too few
                scope.typed |= reads_whole(node, scope)
            if isinstance(node.op, ast.Pow) and not is_inexact(came_in(node.left, scope)):
                scope.typed |= reads_whole(node.right, scope)  # a negative one may be an error
            if isinstance(node.op, ast.Pow) and isinstance(came_in(node.right, scope), np.integer):
                raise Stays(
                    "numpy", "JAX takes a power by a number of NumPy's for one by a constant"
                )
            if join(*found) == NUMPY and not keeps_type(node, scope):
                raise Stays("numpy", "NumPy computes this")
            if MADE in found and set(found) != {MADE} and not constant:
                raise Stays("python", "a list meets a number or an array")
            return join(*found)
        case ast.Compare(ops=ops, comparators=others) if any(
            isinstance(op, ast.Is | ast.IsNot) for op in ops
        ):
            found = [expression(x, scope) for x in (node.left, *others)]
            if any(not isinstance(x, ast.Constant) for x in others) and join(*found) != NUMBER:
                raise Stays("python", "it asks whether two names are one thing")
            return NUMBER if found[0] == NUMBER else SIZE
        case ast.Await() | ast.Yield() | ast.YieldFrom():
            raise Stays("python", "it waits")
    children = [x for x in ast.iter_child_nodes(node) if isinstance(x, ast.expr)]
    parts = [expression(x, scope) for x in children]
    kind = join(*parts)
    if kind in (NUMBER, SIZE) or not gives_bool(node, zip(children, parts, strict=True), scope):
        return kind
    scope.scalars = True
    return SCALAR


def gives_bool(node, operands, scope) -> bool:
    """Whether Python makes a bool of it, of arrays too."""
    match node:
        case ast.UnaryOp(op=ast.Not()) | ast.Compare(ops=[ast.In() | ast.NotIn()]):
            return True
        case ast.Compare(ops=[_]):
            return all(kind in (MADE, NUMBER) or is_collection(x, scope) for x, kind in operands)
    return False


def is_collection(node, scope) -> bool:
    """Whether an expression is a list, tuple or dict that is written here or came in."""
    return isinstance(node, ast.List | ast.Tuple | ast.Dict) or type(came_in(node, scope)) in (
        list,
        tuple,
        dict,
    )


def refuse_digits(found, scope, node) -> None:
    """Leave arithmetic of numbers that are made of arrays to Python: it may raise, too."""
    by_number = found == (SIZE, NUMBER) and not isinstance(node.op, ast.Pow) and may_fail(node)
    if not scope.lenient and (SCALAR in found or by_number) and {*found} <= {NUMBER, SCALAR, SIZE}:
        raise Stays("number", "Python computes with more digits")


def loses_digits(f, args: list) -> bool:
    """Whether Python makes of numbers, one of them of an array, what 32 bits may not hold."""
    if SCALAR not in args or not {*args} <= {NUMBER, SCALAR, SIZE}:
        return False
    return f in (pow, sum) or (f is round and len(args) > 1) or (f in (max, min) and NUMBER in args)


def is_container(node, kind, scope) -> bool:
    """Whether an expression is a list, tuple or dict, whose items Python finds and checks."""
    return kind in (NUMBER, MADE) or is_collection(node, scope)


def kind_of_item(node: ast.Subscript, scope) -> Any:
    """The kind of an item at a constant of a container that came in; None where it is no number."""
    held, at = came_in(node.value, scope), node.slice
    if type(held) not in (dict, list, tuple) or not isinstance(at, ast.Constant):
        return None
    try:
        return NUMBER if kind_of(held[at.value]) == NUMBER else None
    except (LookupError, TypeError):
        return None


def is_item_of_many(node, index, scope) -> bool:
    """Whether Python had better find the item: the region would take all there are."""
    value = came_in(node.value, scope)
    inside = scope.loops or scope.decided or scope.active
    return (
        type(value) in (dict, list, tuple) and len(value) > MANY and index == NUMBER and not inside
    )


def name(node, scope, whole=True):
    """The kind of a name. whole: not only an attribute is read of what it stands for."""
    kind = scope.kinds.get(node.id)
    if kind is None:
        value = scope.lookup(node.id)
        kind = kind_of(value)
        kind = Known(value) if kind == NUMBER and isinstance(value, tuple) else kind
    if whole and isinstance(kind, Known) and may_change(kind.value):
        raise Stays("object", "it takes an object that may change")
    return kind


def attribute(node, scope):
    of = node.value
    base = name(of, scope, False) if isinstance(of, ast.Name) else expression(of, scope)
    if isinstance(base, Known):
        if isinstance(base.value, types.ModuleType | type):
            if may_be_rebound(base.value, node.attr):
                raise Stays("object", f"it reads `.{node.attr}`, which may be another each time")
            try:
                return kind_of(scope.reads.attribute(base.value, node.attr))
            except AttributeError:
                raise Stays("python", f"there is no `{node.attr}`") from None
        raise Stays("object", f"it reads `.{node.attr}` of an object")
    if base in (NUMBER, SCALAR, SIZE) and not has_attribute(came_in(of, scope), node.attr):
        raise Stays("object", f"there is no `.{node.attr}`")
    if node.attr in _SHAPE and base in (ARRAY, UNKNOWN, NUMPY):
        return NUMBER if base == NUMPY or node.attr == "dtype" else SIZE
    if node.attr == "flat":
        raise Stays("python", "`.flat` goes over an array item by item")
    return base if base in (NUMBER, NUMPY, ARRAY, SCALAR, SIZE) else UNKNOWN


def bind(target, kind, scope):
    if isinstance(target, ast.Name):
        scope.kinds[target.id] = kind
        scope.defs.pop(target.id, None)
        scope.values.pop(target.id, None)
    elif isinstance(target, ast.Tuple | ast.List):
        inner = kind if kind in (ARRAY, NUMBER, NUMPY, SCALAR, SIZE) else UNKNOWN
        for item in target.elts:
            bind(item.value if isinstance(item, ast.Starred) else item, inner, scope)
    elif isinstance(target, ast.Subscript):
        place = expression(target.value, scope)
        expression(target.slice, scope)
        if place != MADE:
            raise Stays("effect", "it writes to something that lives outside")
    else:
        raise Stays("effect", "it sets an attribute")


def comprehension(node, scope):
    inner = Scope(dict(scope.kinds), scope.lookup, scope.statement, scope.defs, reads=scope.reads)
    inner.active = scope.active
    for generator in node.generators:
        items = expression(generator.iter, inner)
        refuse_numpy(items)
        if isinstance(items, Known):
            raise Stays("object", "it goes over an object")
        bind(generator.target, items if items in (ARRAY, NUMBER, SCALAR, SIZE) else UNKNOWN, inner)
        for test in generator.ifs:
            expression(test, inner)
    parts = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
    kinds_ = [expression(part, inner) for part in parts]
    refuse_numpy(join(*kinds_))
    _refuse_scalars(kinds_)
    scope.plainly, scope.typed = scope.plainly | inner.plainly, scope.typed | inner.typed
    scope.scalars |= inner.scalars
    if not isinstance(node, ast.GeneratorExp):
        return MADE
    chosen = [test for generator in node.generators for test in generator.ifs]
    return SCALAR if chosen and set(kinds_) == {NUMBER} else UNKNOWN  # how many is Python's to say


def resolve_path(node, scope) -> Known | None:
    """What a path like `jnp.linalg.norm` stands for, where that is certain."""
    if isinstance(node, ast.Name):
        found = scope.kinds.get(node.id)
        if found is None:
            return Known(scope.lookup(node.id))
        return found if isinstance(found, Known) else None
    if isinstance(node, ast.Attribute):
        base = resolve_path(node.value, scope)
        if base is not None and isinstance(base.value, types.ModuleType | type):
            try:
                return Known(scope.reads.attribute(base.value, node.attr))
            except AttributeError:
                raise Stays("python", f"there is no `{node.attr}`") from None
        if base is not None and not is_pytree(base.value) and callable(base.value):
            return Known(getattr(base.value, node.attr, None))
    return None


def call(node, scope):
    args = [expression(x.value if isinstance(x, ast.Starred) else x, scope) for x in node.args]
    args += [expression(k.value, scope) for k in node.keywords]
    function = node.func
    found = resolve_path(function, scope)
    if found is None or not is_jax(found.value):
        refuse_overloaded(node, scope)
    if isinstance(function, ast.Name) and isinstance(scope.kinds.get(function.id), ast.AST):
        local = scope.kinds[function.id]
        if isinstance(local, ast.Lambda):
            return lambda_(local, scope, by_position(node, args))
        define(local, by_position(node, args), scope, gives_theirs(node, scope))
        return UNKNOWN
    if isinstance(function, ast.Lambda):
        return lambda_(function, scope, by_position(node, args))
    if found is not None:
        for arg in args:
            _check_argument(arg, scope)
        return result(found.value, args, node, scope)
    if isinstance(function, ast.Attribute):
        return method(node, function, args, scope)
    kind = expression(function, scope)
    if isinstance(kind, ast.AST):
        return UNKNOWN
    if kind in (UNKNOWN, ARRAY):  # what `jax.grad(f)` gave, or a module of equinox
        for arg in args:
            _check_argument(arg, scope)
        if isinstance(function, ast.Name) and function.id in scope.values:
            why = impure(scope.values[function.id], scope)
            if why:
                raise acting(why)
        elif isinstance(function, ast.Name) and kind == UNKNOWN:
            refuse_collection(node, scope)
        if isinstance(function, ast.Call | ast.Name):
            return kind
    raise Stays("call", "it calls something unknown")


def refuse_collection(node, scope) -> None:
    """Raise Stays where a container that came in may hand out what is called, and that may act."""
    held = [v for v in scope.values.values() if isinstance(v, list | dict | tuple | set)]
    for x in flatten(held)[0]:
        if not callable(x):
            continue
        if why := impure(x, scope):
            raise acting(why)
        refuse_writes(x, writes(x), scope, gives_theirs(node, scope))


def _refuse_scalars(found) -> None:
    """A number made of an array must stay a number where it is kept."""
    if SCALAR in found:
        raise Stays("value", "a number made of an array is kept")


def _check_argument(kind, scope):
    """A function handed on must be as pure as one that is called."""
    if isinstance(kind, ast.FunctionDef):
        define(kind, [], scope)
    elif isinstance(kind, Known) and callable(kind.value) and not isinstance(kind.value, type):
        why = impure(kind.value, scope)
        if why:
            raise acting(why)
        refuse_writes(kind.value, writes(kind.value), scope)
    elif isinstance(kind, Known) and isinstance(kind.value, list | dict):
        raise Stays("object", "it takes something that may change")


def method(node, function, args, scope):
    of, attr = function.value, function.attr
    base = name(of, scope, False) if isinstance(of, ast.Name) else expression(of, scope)
    if base == NUMPY or (NUMPY in args and base == NUMBER):
        raise Stays("numpy", "NumPy computes this")
    if attr in _FOUND and base in (MADE, ARRAY, UNKNOWN):
        scope.scalars = True
        return SCALAR
    if base == MADE:
        _refuse_scalars(args)
        keep(of, gives_theirs(node, scope), scope)
        return UNKNOWN
    if base in (NUMBER, SCALAR, SIZE):
        if not has_attribute(came_in(of, scope), attr):
            raise Stays("object", f"there is no `.{attr}`")
        if attr in ("append", "extend", "pop", "update", "insert", "remove", "clear", "setdefault"):
            raise Stays("effect", f"`.{attr}()` changes something that lives outside")
        if join(NUMBER, *args) != NUMBER:  # `text.format(x)`
            raise Stays("text", "a value becomes text")
        return NUMBER
    if isinstance(base, Known):
        bound = getattr(base.value, attr, None)
        if bound is None:
            raise Stays("object", f"it asks an object for `.{attr}`")
        return result(bound, args, node, scope)
    if attr == "tolist" and base != MADE:
        raise Stays("value", "numbers are made of an array")
    if attr == "item" and base != MADE:
        scope.scalars = True
        return SCALAR
    if attr in _ASKS:
        return UNKNOWN
    at = isinstance(function.value, ast.Subscript) and (
        getattr(function.value.value, "attr", "") == "at"
    )
    if attr in _ARRAY_METHODS and (at or attr not in _AMBIGUOUS):
        for arg in args:
            _check_argument(arg, scope)
        return UNKNOWN if base == UNKNOWN and scope.numpy_given else ARRAY
    if base == UNKNOWN and attr in _FUNCTIONS and attr not in _AMBIGUOUS:
        return UNKNOWN  # of a module that came as an argument
    raise Stays("call", f"`.{attr}()` may change something")


def result(f, args, node, scope):
    """The kind of f(*args). Raises Stays where f is not known to be pure."""
    if f in (print, input) or getattr(f, "__module__", "") == "warnings":
        raise Stays("effect", f"`{getattr(f, '__name__', f)}` has a side effect")
    if _is_numpy(f):
        if join(*args) in (NUMBER, NUMPY):
            if any(a == NUMPY for a in args) or not isinstance(f, type | np.ufunc):
                raise Stays("numpy", "NumPy computes this")
            return NUMPY
        raise Stays("numpy", f"`{ast.unparse(node.func)}` is NumPy's or SciPy's")
    why = impure(f, scope)
    if not why and NUMPY in args:
        names = [k.arg for k in node.keywords]
        keywords = dict(zip(names, args[len(node.args) :], strict=True))
        why = impure_with(f, by_position(node, args), keywords, scope)
    if why:
        raise acting(why)
    if isinstance(f, type) and issubclass(f, tuple):
        refuse_operators(f)
    refuse_attributes(f, by_position(node, args), node, scope)
    if writes(f) and scope.callee and NUMPY in args:
        raise Stays("effect", "it changes something that lives outside")
    refuse_writes(node.func, writes(f), scope, writes(f) and gives_theirs(node, scope))
    if f is type and args:
        raise Stays("object", "it asks for the type of a value")
    if f in (isinstance, hasattr, callable):
        if NUMPY in args[:1]:
            raise Stays("numpy", "it asks what a value of NumPy's is")
        scope.typed = True
        scope.plainly |= join(NUMBER, *args[:1]) != NUMBER
    if f in _COUNTS:
        return NUMBER if all(a == NUMBER for a in args) else SIZE
    if f in (max, min, sorted) and getattr(node, "keywords", ()) and join(NUMBER, *args) != NUMBER:
        raise Stays("call", "it compares values by a key")
    mixed = len(args) == 1 or NUMBER in args  # `+=` writes with a number, and not with an array
    if f in (max, min) and scope.numpy_given and mixed and join(*args) not in (NUMBER, NUMPY):
        raise Stays("value", "which number it is depends on a value")
    if f is sorted and join(NUMBER, *args) != NUMBER:
        raise Stays("value", "what comes first depends on values")
    if f in _MAKES:
        _refuse_scalars(args)
        return MADE
    if f in (map, filter, functools.reduce) and any(
        isinstance(a, Known) and a.value in (int, float, bool, complex, str) for a in args
    ):
        raise Stays("value", "numbers are made of arrays")
    if f in (str, repr, format, ascii) and join(NUMBER, *args) != NUMBER:
        raise Stays("text", "a value becomes text")
    scope.typed |= f in (str, repr, format, ascii)
    if f in (int, float, bool, complex, str):
        scope.scalars |= any(a != NUMBER for a in args)
        return NUMBER if all(a == NUMBER for a in args) else SCALAR
    if f in (any, all):
        scope.scalars |= any(a != NUMBER for a in args)
        return NUMBER if all(a == NUMBER for a in args) else SCALAR
    if is_pure(f):
        if f in _RAISES and join(NUMBER, *args) != NUMBER:
            raise Stays("value", f"`{ast.unparse(node.func)}` may raise, which only the value says")
        in_math = getattr(f, "__module__", "") == "math" and join(NUMBER, *args) != NUMBER
        if not scope.lenient and (loses_digits(f, args) or (in_math and f not in _EXACT)):
            raise Stays("number", "Python computes with more digits")
        scope.scalars |= in_math
        return SCALAR if in_math else join(*args)
    if is_jax(f):
        scope.computes = True
        return UNKNOWN if is_of_trees(f) else ARRAY
    scope.computes |= computes(f)
    made = makes(f)
    if made == "both":
        raise Stays("value", f"`{ast.unparse(node.func)}` may make a number of an array")
    if made or (not computes(f) and SCALAR in args and ARRAY not in args and UNKNOWN not in args):
        scope.scalars = True
        return SCALAR
    if computes(f):
        return UNKNOWN
    if join(*args) == NUMPY and reads_code_only(f):
        return NUMPY
    return NUMBER if all(a == NUMBER for a in args) else UNKNOWN


def _is_numpy(f) -> bool:
    module = getattr(f, "__module__", None) or type(f).__module__
    return isinstance(f, np.ufunc) or str(module).partition(".")[0] in ("numpy", "scipy")


def lambda_(node, scope, args=()):
    """Look into a lambda. The kind of what it gives for arguments of these kinds."""
    for default in filter(None, node.args.kw_defaults):
        expression(default, scope)
    defaults = [expression(default, scope) for default in node.args.defaults]
    inner = Scope(
        scope.kinds | parameter_kinds(node),
        scope.lookup,
        scope.statement,
        scope.defs,
        active=scope.active,
        reads=scope.reads,
    )
    inner.be_callee(parameter_kinds(node))
    inner.kinds |= known_parameters(node, args, defaults)
    kind = expression(node.body, inner)
    refuse_writes(node, inner.writes, scope)
    scope.plainly, scope.typed = scope.plainly | inner.plainly, scope.typed | inner.typed
    return NUMPY if kind == NUMPY else UNKNOWN


def by_position(node: ast.Call, args: list) -> list:
    """The kinds of the arguments whose parameter their place says."""
    starred = [k for k, x in enumerate(node.args) if isinstance(x, ast.Starred)]
    return args[: min(starred, default=len(node.args))]


def known_parameters(node, args, defaults=()) -> dict:
    """{parameter: its kind} of those that are no arrays of JAX, by position."""
    if not args:
        return {}
    names = [arg.arg for arg in (*node.args.posonlyargs, *node.args.args)]
    first = len(names) - len(defaults)
    found = [*args, *defaults[max(len(args) - first, 0) :]]
    return {n: k for n, k in zip(names, found, strict=False) if k in _PASSED}


def may_be_theirs(node, scope) -> bool:
    """Whether an expression may give an array of NumPy that came in, or what holds one."""
    if not scope.numpy_given:
        return False
    match node:
        case ast.Name(id=name):
            array = scope.kinds.get(name) == NUMPY and not isinstance(
                scope.values.get(name), np.generic
            )
            return array or name in scope.mutable
        case ast.Attribute() | ast.Subscript():
            return scope.numpy_inside or may_be_theirs(node.value, scope)
        case ast.BinOp() | ast.UnaryOp() | ast.Compare() | ast.Constant() | ast.JoinedStr():
            return False
        case ast.Call(func=function):
            found = resolve_path(function, scope)
            return not (found is not None and is_jax(found.value)) and gives_theirs(node, scope)
        case ast.comprehension():
            return may_be_theirs(node.iter, scope)
    inside = ast.iter_child_nodes(node)
    return any(
        may_be_theirs(x, scope) for x in inside if isinstance(x, ast.expr | ast.comprehension)
    )


def gives_theirs(node: ast.Call, scope) -> bool:
    """Whether a call may be given such a thing."""
    given = [*node.args, *(k.value for k in node.keywords)]
    given.append(getattr(node.func, "value", node.func))  # what it is a method of, or closes over
    return any(may_be_theirs(x, scope) for x in given)


def keep(target, theirs: bool, scope) -> None:
    """A container made here, or several names, may hold such an array from now on."""
    while isinstance(target, ast.Subscript | ast.Attribute):
        target = target.value
    if theirs and isinstance(target, ast.Name | ast.Tuple | ast.List):
        scope.mutable |= {n.id for n in ast.walk(target) if isinstance(n, ast.Name)}


def refuse_writes(function, writer: bool, scope, given: bool = True) -> None:
    """Raise Stays where a function that writes in place may be given an array that came in.

    function: itself, or what the user's text has for it.
    """
    scope.writes |= writer and scope.callee
    if writer and given and scope.numpy_given and not scope.callee:
        raise Stays("call", f"{_name_of(function)} may write to an array of NumPy")


def _name_of(function) -> str:
    if isinstance(function, ast.Lambda):
        return "a lambda"
    if isinstance(function, ast.expr):
        return f"`{ast.unparse(function)}`"
    name = function.name if isinstance(function, ast.FunctionDef) else function.__qualname__
    return f"`{name}`"


def define(node: ast.FunctionDef | ast.Lambda, args, scope, given: bool = True):
    """Look into a function that is defined here. given: an array of NumPy may be its argument."""
    if isinstance(node, ast.Lambda) or id(node) in scope.active:
        return
    uses = scopes.uses(*node.body)
    if uses.declared_global or uses.declared_nonlocal:
        raise Stays("effect", f"`{node.name}` writes a variable outside of it")
    kept = {n: UNKNOWN if k == MADE else k for n, k in scope.kinds.items()}  # not to be changed
    inner = Scope(
        kept | parameter_kinds(node), scope.lookup, scope.statement, dict(scope.defs),
        returns=True, active=(*scope.active, id(node)), reads=scope.reads,
    )  # fmt: skip
    waits = nodes.yields(node) or any(isinstance(n, ast.Await) for n in ast.walk(node))
    if scopes.uses(*node.body).binds & {"__yield__"} or waits:
        raise Stays("python", f"`{node.name}` is a generator")
    inner.be_callee(parameter_kinds(node))
    inner.kinds |= known_parameters(node, args)
    for stmt in node.body:
        scope.statement(stmt, inner)
    refuse_writes(node, inner.writes, scope, given)
    if NUMBER in args and NUMBER in jax.tree.leaves(inner.given):
        if scope.decided:
            raise Stays("number", f"`{node.name}` gives a Python number that would lose digits")
        scope.unrolled |= bool(scope.loops)
    scope.plainly, scope.typed = scope.plainly | inner.plainly, scope.typed | inner.typed
    scope.unrolled |= inner.unrolled
    scope.computes |= inner.computes
