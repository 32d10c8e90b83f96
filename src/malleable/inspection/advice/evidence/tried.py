"""Ways out are tried before they are told: the rest of a function runs with the line edited.

What runs must compute and nothing else: operators, control flow, calls of JAX, NumPy and `math`,
methods of arrays, and user functions that do no more. Traced values become types, to see
whether the program can be traced, and samples, to see whether it means the same.
"""

import ast
import builtins
import contextlib
import linecache
import math
import re
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from malleable import compat
from malleable.compat import Place
from malleable.inspection import places
from malleable.inspection.advice.evidence import creation, sources
from malleable.inspection.advice.evidence.sources import MISSING
from malleable.inspection.advice.evidence.trouble import Step, place_of
from malleable.inspection.advice.hint import Edit, Way
from malleable.programs.types import is_key
from malleable.python_source.source import closed_over

MOST = 1 << 20  # elements of one sample of everything: a trial takes less than a second
DRAWS = 3
DEPTH = 3  # of calls of the user's own functions that are looked into
_FILE = "<tried>"
_BUILTINS = frozenset(
    {"abs", "all", "any", "bool", "complex", "dict", "divmod", "enumerate", "float", "getattr"}
    | {"int", "isinstance", "len", "list", "map", "max", "min", "pow", "range", "reversed"}
    | {"round", "set", "slice", "sorted", "sum", "tuple", "zip"}
)
_METHODS = {
    name for name in dir(jax.Array) if not name.startswith(("_", "delete", "copy_to", "on"))
}
_METHODS |= {"set", "add", "subtract", "multiply", "divide", "power", "get", "items", "keys"}
_METHODS |= {"values", "apply"}
_LIBRARIES = ("jax", "jaxlib", "numpy", "math", "cmath", "operator", "ml_dtypes")
_LIBRARIES += ("equinox", "optax", "diffrax", "flax")
_SIDE_EFFECTS = ("callback", "debug", "print", "save", "load", "numpy.random", "file", "device")
_SIDE_EFFECTS += ("nnx", "serialise")
_STATEMENTS = (
    *(ast.FunctionDef, ast.Return, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.For, ast.If),
    *(ast.Raise, ast.Assert, ast.Expr, ast.Pass, ast.Break, ast.Continue),
)


@dataclass(frozen=True)
class Rewrite:
    """A way out that puts new text in place of one node, or of all up to `last`."""

    text: str
    node: Any
    new: str
    last: Any = None


def way(found: Rewrite | str, step: Step, *, values: bool = True) -> Way:
    """A rewrite in the function of a step. values: plain Python could run what was there."""
    if isinstance(found, str):
        return Way(found)
    edit = replaced(found.node, found.new, step.place.file, found.last)
    return Way(found.text, (edit,), lambda: does(edit, step, values))


def replaced(node: Any, new: str, file: str, last: Any = None) -> Edit:
    """The edit that puts new text in place of a node, or of all up to another one."""
    last = last or node
    return Edit(file, node.lineno, node.col_offset, last.end_lineno, last.end_col_offset, new)


def optioned(place: Place | None, options: str) -> tuple[Edit, ...]:
    """The edit of `jax.jit(f)`, or of a decorator `@jax.jit`, with these options and no others
    that begin like them.
    """
    node: Any = sources.expression(place) if place is not None else None
    if place is None or node is None:
        return ()
    if isinstance(node, ast.Call):
        start = re.split(r"(?:names|nums)?=", options)[0]
        kept = [k for k in node.keywords if not (k.arg or "").startswith(start)]
        given = ", ".join([*map(ast.unparse, [*node.args, *kept]), options])
        return (replaced(node, f"{ast.unparse(node.func)}({given})", place.file),)
    if isinstance(getattr(node, "parent", None), ast.FunctionDef):
        return (replaced(node, f"{ast.unparse(node)}({options})", place.file),)
    return ()


def does(edit: Edit, step: Step, values: bool) -> bool | None:
    """Whether the function of a step runs on from the edited line; None if it cannot be told."""
    if not compat.is_idle() or step.name in ("<listcomp>", "<genexpr>", "<dictcomp>"):
        return None
    try:
        edited = ast.parse(edit.applied("".join(linecache.getlines(edit.file))))
    except SyntaxError:
        return False
    scope = _scope(step)
    like = _like(scope, edited) if scope is not None else None
    if scope is None or like is None or not _covers(scope, edit):
        return None
    before, after = _rest(scope, edit.line), _rest(like, edit.line)
    if isinstance(scope, ast.Module):
        before, after = before[:1], after[:1]
    known = lambda part: sources.value(part, step)  # noqa: E731
    if not before or not after or not pure([*before, *after], known):
        return None
    with quiet():
        return _agree(_compiled(before, step), _compiled(after, step), step, edit, values)


def succeeds(fun: Any, trace: Callable[[], Any]) -> bool | None:
    """Whether trace() goes through, of a function that computes only; None where it may not run."""
    if not compat.is_idle() or not computes(fun):
        return None
    with quiet():
        try:
            trace()
        except Exception:
            return False
    return True


def _scope(step: Step) -> Any:
    """The function that a step runs, or the module."""
    found = sources.body_of(step.frame.f_code)
    if found is None and step.frame.f_code.co_name == "<module>":
        return sources.module_of(step.place.file)
    return found[0] if found else None


def _covers(scope: Any, edit: Edit) -> bool:
    module = isinstance(scope, ast.Module)
    return module or scope.lineno <= edit.line <= edit.end_line <= scope.end_lineno


def _rest(scope: Any, line: int) -> list[ast.stmt]:
    """What a function does from a line on: its statements, that of the line first."""
    if isinstance(scope, ast.Lambda):
        return [ast.copy_location(ast.Return(scope.body), scope.body)]
    return [one for one in scope.body if (one.end_lineno or 0) >= line]


def _like(scope: Any, tree: ast.Module) -> Any:
    """The function of an edited file that begins where one does in the file as it is."""
    if isinstance(scope, ast.Module):
        return tree
    at = lambda n: (type(n), n.lineno, n.col_offset)  # noqa: E731
    nodes = (n for n in ast.walk(tree) if isinstance(n, sources.Function))
    return next((n for n in nodes if at(n) == at(scope)), None)


def _compiled(body: list[ast.stmt], step: Step) -> Callable:
    """Some statements as a function of the variables of a frame."""
    names = ", ".join(_variables(step))
    tree = ast.parse(f"def tried({names}): pass")
    tree.body[0].body = body  # type: ignore[attr-defined]
    space = dict(step.frame.f_globals)
    exec(compile(ast.fix_missing_locations(tree), _FILE, "exec", dont_inherit=True), space)
    return space["tried"]


def _variables(step: Step) -> dict[str, Any]:
    return {k: v for k, v in step.values.items() if k.isidentifier() and not k.startswith("__")}


def _agree(before, after, step: Step, edit: Edit, values: bool) -> bool | None:
    flat, tree = jax.tree.flatten(_variables(step))
    at = [i for i, leaf in enumerate(flat) if isinstance(leaf, compat.Tracer)]
    kinds = [jax.typeof(flat[i]) for i in at]
    if sum(math.prod(kind.shape) for kind in kinds) > MOST or any(map(_is_sharded, kinds)):
        return None

    def of(fun):
        def call(*leaves):
            put = dict(zip(at, leaves, strict=True))
            return fun(**jax.tree.unflatten(tree, [put.get(i, x) for i, x in enumerate(flat)]))

        return call

    abstract = [jax.ShapeDtypeStruct(kind.shape, kind.dtype) for kind in kinds]
    try:
        jax.eval_shape(of(after), *abstract)
    except Exception as error:  # whatever it is, that is no way out, if the edit is at fault
        return False if _raised_at(error, edit) else None
    return _same(of(before), of(after), kinds) if values else True


def _same(before, after, kinds) -> bool | None:
    """Whether two functions give the same for samples; None if plain Python cannot run one."""
    compared = 0
    for draw in range(DRAWS):
        leaves = [sample(kind, draw) for kind in kinds]
        try:
            wanted = before(*leaves)
        except Exception:
            continue
        if not equal(wanted, jax.jit(after)(*leaves)):
            return False
        compared += 1
    return True if compared else None


def equal(wanted: Any, got: Any) -> bool:
    """Whether two results are the same, up to rounding; numbers and lists of them are arrays."""
    (a, left), (b, right) = jax.tree.flatten(wanted), jax.tree.flatten(got)
    if left != right and isinstance(wanted, list) and hasattr(got, "shape"):
        a, b, left = [np.asarray(wanted)], [got], right
    return left == right and all(
        np.shape(x) == np.shape(y) and _close(x, y) for x, y in zip(a, b, strict=True)
    )


def _close(x: Any, y: Any) -> bool:
    x, y = (jax.random.key_data(v) if is_key(v) else v for v in (x, y))
    x, y = np.asarray(x), np.asarray(y)
    if x.dtype.kind in "biufc":
        return bool(np.allclose(x, y, 1e-3, 1e-5, equal_nan=True))
    return x.dtype == y.dtype and bool((x == y).all())


def sample(kind: Any, draw: int) -> jax.Array:
    """An array of some type: small whole numbers, normal numbers, or keys."""
    rng = np.random.default_rng(draw)
    if is_key(kind):
        return jax.random.split(jax.random.key(draw), kind.shape)
    if kind.dtype.kind in "iub":
        return jnp.asarray(rng.integers(0, 4, kind.shape), kind.dtype)
    return jnp.asarray(rng.normal(size=kind.shape) * (draw + 1), kind.dtype)


def _is_sharded(kind: Any) -> bool:
    return bool(getattr(kind, "vma", None))


def _raised_at(error: Exception, edit: Edit) -> bool:
    """Whether an error comes from the edited text, and not from what does something else."""
    last, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == _FILE:
            last = place_of(trace.tb_frame.f_code, trace.tb_lasti)
        trace = trace.tb_next
    if last is None or isinstance(error, jax.errors.UnexpectedTracerError | NameError):
        return False
    lines = edit.new.split("\n")
    width = len(lines[-1].encode()) + (edit.column if len(lines) == 1 else 0)
    start, end = (edit.line, edit.column), (edit.line + len(lines) - 1, width)
    return (last.line, last.column) < end and start < (last.end_line, last.end_column)


def closed(node: ast.expr) -> str:
    """An expression, in brackets where an index or a method may not follow it."""
    simple = isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.Subscript)
    return ast.unparse(node) if simple else f"({ast.unparse(node)})"


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """What is tried says nothing and is not looked at."""
    with creation.paused(), warnings.catch_warnings(), jax.debug_nans(False):
        warnings.simplefilter("ignore")
        with (
            jax.debug_infs(False),
            jax.disable_jit(False),
            jax.transfer_guard("allow"),
            jax.check_tracer_leaks(False),
        ):
            yield


# ---------------------------------------------------------------- what may run


def pure(nodes: Sequence[ast.AST], value: Callable, depth: int = DEPTH) -> bool:
    """Whether code computes and does nothing else. value: of a name in it, MISSING if unknown."""
    every = [n for node in nodes for n in ast.walk(node)]
    local = {n.name for n in every if isinstance(n, ast.FunctionDef)}
    for node in every:
        match node:
            case ast.stmt() if not isinstance(node, _STATEMENTS):
                return False
            case ast.Yield() | ast.YieldFrom() | ast.Await():
                return False
            case ast.Attribute(ctx=ast.Store()) | ast.Subscript(ctx=ast.Store()):
                return False
            case ast.Call(func=func) if not _computes(func, value, local, depth):
                return False
            case ast.Name(id=name) if name not in local and not _passed(value(node), depth):
                return False
    return True


def _passed(held: Any, depth: int) -> bool:
    """Whether a value that is only passed on is not a user function with side effects."""
    return not isinstance(held, types.FunctionType) or computes(held, depth)


def _computes(func: ast.expr, value: Callable, local: set[str], depth: int) -> bool:
    match func:
        case ast.Call() | ast.Lambda():
            return True  # jax.vmap(f)(x): what is called in turn is looked at by itself
        case ast.Name(id=name) if name in local:
            return True
        case ast.Attribute(value=owner, attr=attr) if attr in _METHODS:
            held = value(owner)
            if held is MISSING or isinstance(held, jax.Array | np.ndarray | dict):
                return True
    held = value(func)
    return held is not MISSING and computes(held, depth)


def computes(fun: Any, depth: int = DEPTH) -> bool:
    """Whether a function computes and does nothing else."""
    if isinstance(fun, np.ufunc):
        return True
    module, name = getattr(fun, "__module__", None) or "", getattr(fun, "__name__", "")
    if module == "builtins":
        return name in _BUILTINS and getattr(builtins, name, None) is fun
    if module.partition(".")[0] in _LIBRARIES:
        return not any(word in f"{module}.{name}" for word in _SIDE_EFFECTS)
    inner = sources.plain(fun)
    if inner is None or not places.is_own(inner.__code__.co_filename) or not depth:
        return False
    found = sources.definition(inner)
    if found is None:
        return False
    node, _ = found
    body = node.body if isinstance(node.body, list) else [node.body]
    return pure(body, lambda part: sources.value(part, _within(inner, fun)), depth - 1)


def _within(fun: types.FunctionType, owner: Any) -> Any:
    """A function as a step that has not begun: what it closes over, and its globals."""
    held = {} if isinstance(owner, types.FunctionType) else {"self": owner}
    held |= closed_over(fun)
    frame = types.SimpleNamespace(f_globals=fun.__globals__, f_builtins=vars(builtins))
    return types.SimpleNamespace(values=held, frame=frame)
