"""The user's names for the values of a program: read off the source lines its equations come from.

`r = jnp.sqrt(x)` names the result of `sqrt`, and its operand; so does `return h` in a function
that is called as `y = net(x)`. What a derivative adds to a line is not what the line names: of
the equations of one expression the first whose result something else uses has its value. Where
that cannot be told there is no name, and the program's own has to do.
"""

import ast
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from malleable import compat
from malleable.compat import Place
from malleable.programs.types import is_key, short_type
from malleable.python_source.files import around, read

Scope = tuple[str, str, tuple[Place, ...]]  # file, function, the frames that called it

_FUNCTION = ast.FunctionDef | ast.Lambda
_SPELLED = {  # what functions of NumPy are called as primitives, where not the same
    "sum": "reduce_sum", "max": "reduce_max", "min": "reduce_min", "prod": "reduce_prod",
    "any": "reduce_or", "all": "reduce_and", "dot": "dot_general", "matmul": "dot_general",
    "maximum": "max", "minimum": "min", "negative": "neg", "power": "pow", "multiply": "mul",
    "subtract": "sub", "divide": "div", "fori_loop": "while", "while_loop": "while",
}  # fmt: skip
_OPERATORS = {
    ast.Add: {"add"}, ast.Sub: {"sub"}, ast.Mult: {"mul"}, ast.Div: {"div"}, ast.Mod: {"rem"},
    ast.Pow: {"pow", "integer_pow", "square"}, ast.MatMult: {"dot_general"}, ast.USub: {"neg"},
    ast.Lt: {"lt"}, ast.LtE: {"le"}, ast.Gt: {"gt"}, ast.GtE: {"ge"}, ast.Eq: {"eq"},
    ast.NotEq: {"ne"},
}  # fmt: skip


def visible(program: compat.Jaxpr, chain: tuple[Place, ...], known: Mapping) -> dict[str, Any]:
    """{the user's name: variable} among the `known` variables of a body, as a frame sees them.

    chain: the frame, then those that called it; a name belongs to one call of one function.
    Of the transposed body of a loop, which computes cotangents, ask for nothing.
    """
    found: dict[str, Any] = {}
    scope = _scope(chain) if chain else None
    for v, place, name in named(program):
        if scope and v in known and _is_same_call(place, scope):
            found[name] = v
    return found


def every(program: compat.Jaxpr) -> dict[Any, str]:
    """{variable: a name the user has for it, in whatever frame} of a body."""
    found = {v: n for n, v in named_parameters(program).items()}
    return found | {v: n for v, _, n in named(program)}


def _scope(chain) -> Scope:
    return chain[0].file, chain[0].function, chain[1:]


def _is_same_call(one: Scope, other: Scope) -> bool:
    """Whether two frames are one call of one function, as far as both tell."""
    n = min(len(one[2]), len(other[2]))
    return one[:2] == other[:2] and one[2][:n] == other[2][:n]


_memo: dict = {}


def named(program: compat.Jaxpr) -> list[tuple[Any, Scope, str]]:
    """(variable, frame, name) of a body, in the order the names are given."""
    key = id(program)
    if key not in _memo or _memo[key][0] is not program:
        if len(_memo) >= 256:
            _memo.clear()
        _memo[key] = program, list(_find(program))
    return _memo[key][1]


def _find(program: compat.Jaxpr):
    raw = program.jaxpr
    groups: dict[tuple[Place, ...], list] = {}
    users: dict[Any, set] = {}
    for eqn in raw.eqns:
        frames = tuple(compat.user_places(eqn))
        if frames and "transpose(" not in str(eqn.source_info.name_stack):
            groups.setdefault(frames, []).append(eqn)
        for v in eqn.invars:
            if not isinstance(v, compat.Literal):
                users.setdefault(v, set()).add(frames)
    ends = {v for v in raw.outvars if not isinstance(v, compat.Literal)}
    position = {eqn: i for i, eqn in enumerate(map(id, raw.eqns))}
    found = []
    for frames, eqns in groups.items():
        for eqn in _results(frames, eqns, users, ends):
            if len(eqn.outvars) == 1:
                found += [(position[id(eqn)], eqn.outvars[0], *one) for one in _targets(frames)]
            else:
                found += [(position[id(eqn)], *one) for one in _several(frames, eqn)]
    loads = []
    for frames, eqns in groups.items():
        loads += _operands(frames, eqns, position)
    named = {(v, scope[:2]) for _, v, scope, _ in found}
    found += [one for one in loads if (one[1], one[2][:2]) not in named]
    return [one[1:] for one in sorted(found, key=lambda one: one[0])]


def _several(frames, eqn) -> Iterator[tuple[Any, Scope, str]]:
    """Names for the results of an equation with several: `carry, ys = lax.scan(...)`."""
    node = _node_at(frames[0])
    match around(node, ast.stmt):
        case ast.Assign(targets=[ast.Tuple(elts=elts)], value=value) if value is node:
            names = [e.id for e in elts if isinstance(e, ast.Name)]
            if len(names) == len(elts) == len(eqn.outvars):
                for v, name in zip(eqn.outvars, names, strict=True):
                    yield v, _scope(frames), name


def _results(frames, eqns, users, ends) -> list:
    """The equation that gives the value of an expression, of all that come from it.

    Several where the line ran several times, each on what the one before gave.
    """
    node = _node_at(frames[0])
    if node is None:
        return []
    wanted = _primitives(node)
    exact = [e for e in eqns if e.primitive.name in wanted]
    if exact:
        again = all(any(v in b.invars for v in a.outvars) for a, b in itertools.pairwise(exact))
        return exact if again else exact[:1]
    outside = [e for e in eqns if any(users.get(v, set()) - {frames} for v in e.outvars)]
    at_end = [e for e in eqns if any(v in ends for v in e.outvars)]
    return (outside or at_end)[:1]


def _primitives(node) -> set[str]:
    """What an expression may be as one primitive."""
    match node:
        case ast.BinOp(op=op) | ast.UnaryOp(op=op):
            return _OPERATORS.get(type(op), set())
        case ast.Compare(ops=[op]):
            return _OPERATORS.get(type(op), set())
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)):
            return {name, _SPELLED.get(name, name)}
    return set()


def _targets(frames) -> Iterator[tuple[Scope, str]]:
    """(frame, name) of each variable that is given the value of the expression of a frame."""
    for depth, place in enumerate(frames):
        node = _node_at(place)
        if node is None:
            return
        scope = _scope(frames[depth:])
        names = list(_assigned(node))
        yield from ((scope, name) for name in names)
        function = around(node, _FUNCTION)
        if function is None or not _returns(function, node, names):
            return


def _assigned(node) -> Iterator[str]:
    """The names that the value of an expression is given."""
    statement = around(node, ast.stmt)
    match statement:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                if value is node and isinstance(target, ast.Name):
                    yield target.id
                match target, value:
                    case (ast.Tuple(elts=ones), ast.Tuple(elts=parts)) if len(ones) == len(parts):
                        for one, part in zip(ones, parts, strict=True):
                            if part is node and isinstance(one, ast.Name):
                                yield one.id
        case ast.AnnAssign(target=ast.Name(id=name), value=value) if value is node:
            yield name
        case ast.AugAssign(target=ast.Name(id=name)):
            if statement is node:
                yield name
    parent = getattr(node, "parent", None)
    if isinstance(parent, ast.NamedExpr):
        yield parent.target.id


def _returns(function, node, names) -> bool:
    """Whether a function gives back the value of an expression in it, and nothing else."""
    if isinstance(function, ast.Lambda):
        return function.body is node
    own = [n for n in ast.walk(function) if isinstance(n, ast.Return)]
    own = [n for n in own if around(n, _FUNCTION) is function]
    if len(own) != 1:
        return False
    value = own[0].value
    return value is node or (isinstance(value, ast.Name) and value.id in names)


def _operands(frames, eqns, position):
    """Names of what goes in: the operands of `c * x` are c and x."""
    node = _node_at(frames[0])
    if node is None:
        return
    wanted = _primitives(node)
    eqn = next((e for e in eqns if e.primitive.name in wanted), None)
    if eqn is None:
        return
    match node:
        case ast.BinOp(left=left, right=right):
            parts = [left, right]
        case ast.UnaryOp(operand=one):
            parts = [one]
        case ast.Compare(left=left, comparators=[right]):
            parts = [left, right]
        case ast.Call(func=ast.Attribute(value=one), args=[]):
            parts = [one]
        case ast.Call(args=parts):
            pass
        case _:
            return
    if len(eqn.invars) != len(parts):
        parts = parts[:1] if len(eqn.invars) == 1 else []
    for v, part in zip(eqn.invars, parts, strict=False):
        if isinstance(part, ast.Name) and not isinstance(v, compat.Literal):
            yield position[id(eqn)] - 0.5, v, _scope(frames), part.id


def named_parameters(program: compat.Jaxpr) -> dict[str, Any]:
    """{name: variable} of the parameters, where JAX knows them: of what jit or scan were given."""
    raw = program.jaxpr
    names = getattr(raw.debug_info, "arg_names", None) or ()
    if len(names) != len(raw.invars):
        return {}
    return {str(n): v for n, v in zip(names, raw.invars, strict=True) if n}


def _node_at(place: Place) -> ast.AST | None:
    return read(place.file).at(place)


def is_written(eqn: compat.Eqn) -> bool:
    """Whether an equation is the operation that its line spells, as log is of `jnp.log(x)`."""
    frames = compat.user_places(eqn)
    node = _node_at(frames[0]) if frames else None
    return node is not None and eqn.primitive.name in _primitives(node)


# ---------------------------------------------------------------- values to look at


class NotHere(KeyError):
    """A part of a container of which no value is known."""


class Parts(dict):
    """What is known of a container: parts['w'] or parts.w, as far as values of it are here."""

    def __missing__(self, key):
        raise NotHere(key)

    def __getattr__(self, name):
        if name not in self:
            raise AttributeError(f"no value of {name!r} is here", name=name, obj=self)
        return self[name]


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by name, with those called params['w'] or params.w put together under `params`.

    >>> nested({"x": 1, "p['w'][0]": 2})["p"]["w"][0]
    2
    """
    found: dict[str, Any] = {n: x for n, x in values.items() if n.isidentifier()}
    for name, x in values.items():
        keys = _keys(name)
        if not keys or isinstance(found.get(keys[0], Parts()), jax.Array):
            continue
        spot = found
        for key in keys[:-1]:
            spot = spot.setdefault(key, Parts())
            if not isinstance(spot, dict):
                break
        else:
            spot[keys[-1]] = x
    return found


def root(name: str) -> str:
    """The variable that a name is of, p of p['w'][0]; "" of what is no name."""
    return name if name.isidentifier() else str(next(iter(_keys(name)), ""))


def _keys(name: str) -> list:
    """['p', 'w', 0] of p['w'][0] or p.w[0]; [] for anything else."""
    try:
        node = ast.parse(name, mode="eval").body
    except SyntaxError:
        return []
    keys: list = []
    while not isinstance(node, ast.Name):
        match node:
            case ast.Subscript(value=inner, slice=ast.Constant(value=key)):
                keys.append(key)
            case ast.Attribute(value=inner, attr=key):
                keys.append(key)
            case _:
                return []
        node = inner
    return [node.id, *reversed(keys)] if keys else []


def table(values: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """(name, type, value in short) of each value."""
    return [(name, short_type(x), value_text(x)) for name, x in values.items()]


def value_text(x) -> str:
    """A few numbers as they are, many by their range; whether some are not finite is said."""
    if compat.is_ref(jax.typeof(x)):
        x = x[...]
    if is_key(x):
        return "random key"
    x = np.asarray(x)
    if x.dtype.kind not in "fciub":
        x = x.astype(np.float32) if x.dtype != jax.dtypes.float0 else np.zeros(x.shape, bool)
    if x.size <= 8:
        return np.array2string(x, precision=4, separator=", ").replace("\n", "")
    if x.dtype.kind == "b":
        return f"{int(x.sum())} of {x.size} true"
    if x.dtype.kind == "c":
        return f"{x.size} numbers of magnitude up to {np.abs(x).max():.4g}"
    finite = x[np.isfinite(x)]
    span = f"from {finite.min():.4g} to {finite.max():.4g}" if finite.size else "none finite"
    lost = x.size - finite.size
    return span + f", {lost} of {x.size} not finite" * bool(lost)
