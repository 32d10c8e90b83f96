"""Other ways to write what breaks a graph, tried on the values that were there.

`suggest` looks at the user's line for a shape it knows, writes it anew without the break, and keeps
what traces and gives the same on these very values. What nothing is known for gets no suggestion.
"""

import ast
import builtins
import warnings
from collections.abc import Iterator
from typing import Any

import jax
import jax.scipy.linalg
import jax.scipy.special
import numpy as np
from jax import numpy as jnp

from malleable.execution.common import anf
from malleable.execution.cutting.partition import Region
from malleable.execution.explain.report import Suggestion
from malleable.execution.host.host import arrive_all
from malleable.programs.reach import reach
from malleable.python_source import nodes, scopes

_FILLS = {"sum": "0", "prod": "1", "any": "False", "all": "True"}
_EXTREMES = {"max": "min", "min": "max"}
_WHERE = frozenset(["mean", "std", "var"])
_SIZED = frozenset(["nonzero", "flatnonzero", "argwhere", "where", "unique"])
_TWINS = {"numpy": jnp, "scipy.special": jax.scipy.special, "scipy.linalg": jax.scipy.linalg}
_NUMBERS = frozenset(["float", "int", "bool", "complex"])

# ---------------------------------------------------------------- what a value depends on


def origins(part) -> dict[str, set]:
    """{name: the names it is made from}, over all statements of a function."""
    found: dict = {}

    def visit(stmts, around):
        for stmt in stmts:
            if isinstance(stmt, Region):
                visit(stmt.body, around)
                continue
            uses = scopes.uses(*nodes.heads(stmt))
            reads = uses.reads | uses.captured | around
            changed = set(uses.binds)
            if isinstance(stmt, ast.Expr | ast.Assign | ast.AugAssign):
                changed |= _receivers(stmt)
            for name in changed:
                found.setdefault(name, set()).update(reads)
            for block in nodes.blocks(stmt):
                visit(block, around | uses.reads)

    visit(part.tree.body, set())
    return found


def _receivers(stmt) -> set:
    """The names whose values a statement may change: `xs` in `xs.append(y)` and `xs[i] = y`."""
    found = set()
    match stmt:
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name)))):
            found.add(name)
    for target in getattr(stmt, "targets", [getattr(stmt, "target", None)]):
        while isinstance(target, ast.Subscript | ast.Attribute):
            target = target.value
            if isinstance(target, ast.Name):
                found.add(target.id)
    return found


def sources(made_from: dict, names: set) -> set:
    """All that these names depend on, themselves too."""
    return set(reach(names, lambda name: made_from.get(name, ())))


class Whole(ast.NodeTransformer):
    """Pieces put together again: each `_t3` is what it was made from."""

    def __init__(self, part):
        self.made: dict = {}
        self.visit_all(part.tree.body)

    def visit_all(self, stmts):
        for stmt in stmts:
            if isinstance(stmt, Region):
                self.visit_all(stmt.body)
            match stmt:
                case ast.Assign(targets=[ast.Name(id=name)]) if name.startswith(anf.MARK):
                    again = name in self.made and ast.dump(self.made[name]) != ast.dump(stmt.value)
                    self.made[name] = nodes.load(name) if again else stmt.value
            for block in nodes.blocks(stmt):
                self.visit_all(block)

    def visit_Name(self, node):
        value = self.made.get(node.id)
        if value is None or (isinstance(value, ast.Name) and value.id == node.id):
            return node
        return self.visit(nodes.copied(value))

    def text(self, stmt) -> str:
        """The expression that a statement is about, as the user wrote it; '' if there is none."""
        value = getattr(stmt, "value", getattr(stmt, "test", getattr(stmt, "iter", None)))
        if value is None:
            return ""
        return _bare(ast.unparse(self.visit(nodes.copied(value))))


def _bare(text: str) -> str:
    return text.removeprefix("not ")


# ---------------------------------------------------------------- suggestions


def suggest(part, whole: Whole, hosts) -> Suggestion | None:
    """The first rewrite of a statement that traces and gives the same on the values it had."""
    line = hosts[0].stmt.lineno
    stmts = [s for s in ast.walk(part.tree.node) if isinstance(s, ast.stmt)]
    here = [s for s in stmts if s.lineno == line and s is not part.tree.node]
    if not here:
        return None
    user = here[-1]
    for seen in hosts:
        if seen.values is None:
            continue
        env = _Env(part, seen.values)
        for before, after, shown, padded in _candidates(user, seen.stmt, whole, env):
            holes = [f"_h{i}" for i in range(len(env.parts))]
            texts = [ast.unparse(node) for node, _ in env.parts]
            values = dict(zip(holes, (v for _, v in env.parts), strict=True))
            try:
                checked = _checked(before.format(*holes), after.format(*holes), env, values, padded)
            except Exception:  # code of the user's on values of the user's: whatever it raises
                continue
            if checked:
                return Suggestion(shown, _normalized(after.format(*map(_grouped, texts))), checked)
    return None


class _Env:
    """What names mean at a statement; parts: the pieces of an expression, with their values."""

    def __init__(self, part, values: dict):
        fun = part.fun
        self.names = {**fun.__globals__, **{k: arrive_all(v) for k, v in values.items()}}
        modules = {id(v): k for k, v in fun.__globals__.items() if v is jnp}
        self.jnp = modules.get(id(jnp), "jnp")
        self.names.setdefault(self.jnp, jnp)
        self.parts: list = []

    def value(self, node) -> Any:
        """Of a name, a constant or a path: what needs no computing."""
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return self.names[name] if name in self.names else getattr(builtins, name)
            case ast.Attribute(value=value, attr=attr):
                return getattr(self.value(value), attr)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self.value(operand)
            case ast.Tuple(elts=elts):
                return tuple(map(self.value, elts))
        raise KeyError(ast.dump(node))


def _candidates(user, piece, whole: Whole, env: _Env) -> Iterator[tuple]:
    """(before, after) with {0}, {1} for the parts of env; the user's text; whether it is padded."""
    above = {id(c): p for p in ast.walk(user) for c in ast.iter_child_nodes(p)}
    text = whole.text(piece)
    if isinstance(piece, ast.If):
        yield from _branches(user, piece, text, env)
        return
    value = getattr(piece, "value", None)
    for node in _heads(user):
        if not isinstance(node, ast.expr) or ast.unparse(node) != text:
            continue
        try:
            match node, value:
                case ast.Subscript(), ast.Subscript():
                    env.parts = [
                        (node.value, env.value(value.value)),
                        (node.slice, env.value(value.slice)),
                    ]
                    yield from _selections(node, above, env)
                case ast.Call(), ast.Call() if len(node.args) == len(value.args):
                    yield from _calls(node, value, env)
        except (KeyError, AttributeError, TypeError):  # a value that is not at hand
            continue


def _heads(user):
    for head in nodes.heads(user):
        yield from ast.walk(head)


def _selections(node, above, env: _Env):
    """`x[mask]`, and what is done with it."""
    (_, x), (_, mask) = env.parts
    if str(getattr(mask, "dtype", "")) != "bool" or not mask.ndim:
        return
    apart = x.ndim - mask.ndim
    wide = "{1}" + f"[{', '.join([':'] * mask.ndim + ['None'] * apart)}]" * (apart > 0)
    parent = above.get(id(node))
    outer = above.get(id(parent))
    name = options = shown = None
    match parent, outer:
        case ast.Attribute(attr=name), ast.Call() if outer.func is parent:
            options, shown = [*map(ast.unparse, outer.args), *map(_keyword, outer.keywords)], outer
        case ast.Attribute(attr="size"), _:
            yield "{0}[{1}].size", "{1}.sum()", ast.unparse(parent), False
            return
        case ast.Attribute(attr="shape"), ast.Subscript(slice=ast.Constant(value=0)):
            yield "{0}[{1}].shape[0]", "{1}.sum()", ast.unparse(outer), False
            return
        case ast.Call(func=ast.Name(id="len")), _:
            yield "len({0}[{1}])", "{1}.sum()", ast.unparse(parent), False
            return
        case ast.Call(func=ast.Attribute(attr=name)), _ if parent.args[:1] == [node]:
            if getattr(jnp, name, None) is env.value(parent.func):
                rest = map(ast.unparse, parent.args[1:])
                options, shown = [*rest, *map(_keyword, parent.keywords)], parent
    j = env.jnp
    if shown is not None and options is not None and name is not None:
        before = f"{j}.{name}({', '.join(['{0}[{1}]', *options])})"
        tail, shown = f"({', '.join(options)})", ast.unparse(shown)
        if name in _FILLS:
            yield before, f"{j}.where({wide}, {{0}}, {_FILLS[name]}).{name}{tail}", shown, False
        elif name in _EXTREMES:
            low = f"{'-' * (name == 'max')}{j}.inf"
            if not jnp.issubdtype(x.dtype, np.floating):
                low = f"{j}.iinfo('{x.dtype}').{_EXTREMES[name]}"
            yield before, f"{j}.where({wide}, {{0}}, {low}).{name}{tail}", shown, False
        elif name in _WHERE:
            inside = ", ".join(["{0}", *options, f"where={wide}"])
            yield before, f"{j}.{name}({inside})", shown, False
    if mask.ndim == 1:
        size = f"{j}.flatnonzero({{1}}, size={{1}}.size, fill_value={{1}}.size)"
        yield "{0}[{1}]", f"{{0}}[{size}]", ast.unparse(node), True


def _calls(node, piece, env: _Env):
    """Functions whose result has a size of its own, functions of NumPy, `float(x)`."""
    j, shown = env.jnp, ast.unparse(node)
    keywords = [*map(_keyword, node.keywords)]
    places = [f"{{{i}}}" for i in range(len(node.args))]
    env.parts = [(a, env.value(b)) for a, b in zip(node.args, piece.args, strict=True)]
    if isinstance(node.func, ast.Name) and node.func.id in _NUMBERS and len(node.args) == 1:
        if getattr(env.parts[0][1], "shape", None) == ():
            yield f"{node.func.id}({{0}})", "{0}", shown, False
        return
    if isinstance(node.func, ast.Attribute) and node.func.attr == "item" and not node.args:
        env.parts = [(node.func.value, env.value(piece.func.value))]
        yield "{0}.item()", "{0}", shown, False
        return
    f = env.value(piece.func)
    name, module = getattr(f, "__name__", ""), str(getattr(f, "__module__", ""))
    if name in _SIZED and f is getattr(jnp, name, None) and len(node.args) == 1:
        before = f"{j}.{name}({', '.join(['{0}', *keywords])})"
        more = ["size={0}.size", *["fill_value={0}.size"] * (name in ("nonzero", "flatnonzero"))]
        if not any(k.startswith("size") for k in keywords):
            yield before, f"{j}.{name}({', '.join(['{0}', *keywords, *more])})", shown, True
        return
    if name in ("asarray", "array"):  # which say that NumPy is to have it
        return
    package = "numpy" if type(f) is np.ufunc and hasattr(np, name) else module
    package = "scipy.special" if type(f) is np.ufunc and not hasattr(np, name) else package
    twin = getattr(_TWINS.get(package), name, None)
    if twin is not None and "random" not in module:
        new = f"{j}.{name}" if package == "numpy" else f"jax.{package}.{name}"
        env.names.setdefault("_f", f)
        env.names.setdefault("jax", jax)
        inside = ", ".join([*places, *keywords])
        yield f"_f({inside})", f"{new}({inside})", shown, False


def _branches(user, piece, text: str, env: _Env):
    """`if test: x = a else: x = b`, and `a if test else b`."""
    test = piece.test.operand if isinstance(piece.test, ast.UnaryOp) else piece.test
    flip = isinstance(piece.test, ast.UnaryOp)
    value = env.value(test)
    for node in [user, *_heads(user)]:
        match node:
            case ast.If(body=[ast.Assign(targets=[ast.Name(id=name)], value=yes)]):
                no: ast.expr = nodes.load(name)
                match node.orelse:
                    case [ast.Assign(targets=[ast.Name(id=same)], value=other)] if same == name:
                        no = other
                    case []:
                        pass
                    case _:
                        continue
            case ast.IfExp(body=yes, orelse=no):
                pass
            case _:
                continue
        if _bare(ast.unparse(node.test)) != text:
            continue
        if not (_is_quiet(yes, env) and _is_quiet(no, env)):
            continue
        tested = node.test
        if flip and isinstance(tested, ast.UnaryOp):
            tested = tested.operand
        env.parts = [(tested, value)]
        a, b = (ast.unparse(x).replace("{", "{{").replace("}", "}}") for x in (yes, no))
        a, b = (b, a) if flip and tested is not node.test else (a, b)
        shown = ast.unparse(node).replace("\n    ", " ").replace("\n", "; ")
        yield f"({a}) if {{0}} else ({b})", f"{env.jnp}.where({{0}}, {a}, {b})", shown, False


def _is_quiet(node, env: _Env) -> bool:
    """Whether to evaluate it does nothing but compute: all it calls is JAX's or NumPy's."""
    for part in ast.walk(node):
        if isinstance(part, ast.Call):
            try:
                module = str(getattr(env.value(part.func), "__module__", ""))
            except (KeyError, AttributeError):
                return False
            if not module.startswith(("jax", "numpy")) or "debug" in module:
                return False
        elif isinstance(part, ast.NamedExpr | ast.Await | ast.Yield | ast.Lambda):
            return False
    return True


def _keyword(node) -> str:
    return f"{node.arg}={ast.unparse(node.value)}"


def _grouped(text: str) -> str:
    """A text as one operand."""
    node = ast.parse(text, mode="eval").body
    return f"({text})" if isinstance(node, ast.BinOp | ast.UnaryOp | ast.Compare) else text


def _normalized(text: str) -> str:
    """Without parentheses that mean nothing."""
    return ast.unparse(ast.parse(text, mode="eval"))


# ---------------------------------------------------------------- trying them


def _checked(before: str, after: str, env: _Env, values: dict, padded: bool) -> str:
    """How two expressions agree on these values, the second under a trace; '' if they do not."""
    arrays = {k: v for k, v in values.items() if isinstance(v, jax.Array | np.ndarray)}
    rest = {k: v for k, v in values.items() if k not in arrays}
    used = {n.id for n in ast.walk(ast.parse(after)) if isinstance(n, ast.Name)}
    for name in used - values.keys():
        if isinstance(env.names.get(name), jax.Array):
            arrays[name] = env.names[name]
    code = compile(after, "<suggestion>", "eval")
    fun = lambda **given: eval(code, {**env.names, **rest, **given})  # noqa: E731
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = eval(before, {**env.names, **values})
        jax.make_jaxpr(lambda given: fun(**given))(arrays)
        got = fun(**{k: jnp.asarray(v) for k, v in arrays.items()})
    if not are_equal(expected, got, padded):
        return ""
    if padded:
        return "tried here: traces, and its first items are equal; what follows is padding"
    return "tried here: traces, and is equal"


def are_equal(expected, got, padded=False) -> bool:
    """Whether two results are the same but for rounding; padded: the second may be longer."""
    one, two = jax.tree.leaves(expected), jax.tree.leaves(got)
    if len(one) != len(two):
        return False
    for a, b in zip(map(np.asarray, one), map(np.asarray, two), strict=True):
        if a.shape != b.shape:
            if not padded or a.ndim != b.ndim or a.shape[1:] != b.shape[1:] or len(a) > len(b):
                return False
            b = b[: len(a)]
        inexact = np.issubdtype(a.dtype, np.inexact)
        if not np.allclose(a, b, rtol=1e-5, atol=1e-6, equal_nan=inexact):
            return False
    return True
