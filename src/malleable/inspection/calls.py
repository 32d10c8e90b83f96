"""Which transformation calls which, with the program at each level: `trace_calls(fun)(*args)`."""

import functools
import gc
import inspect
import itertools
import pathlib
import re
import sys
import traceback
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from malleable import compat
from malleable.compat import Place
from malleable.core.stage import stage
from malleable.errors import MalleableError
from malleable.inspection import places
from malleable.inspection.show.arguments import of_arrays
from malleable.inspection.show.rows.outline import Body, outline
from malleable.notes import Told
from malleable.python_source.changes import unchanged
from malleable.python_source.misuse import called_as
from malleable.python_source.source import closed_over

_WORDS = "jit vmap pmap value_and_grad grad vjp jvp scan remat checkpoint while cond shard_map"
_LIBRARY = re.compile("|".join(_WORDS.split()))
_FUNCTIONS = ("value_and_grad_f", "fun", "f", "_fun", "fn", "func", "body_fun", "true_fun", "_fun_")
_SAID = {  # what a transformation was told, if it is not this
    "in_axes": 0, "out_axes": 0, "axis_name": None, "axis_size": None, "argnums": 0,
    "has_aux": False, "allow_int": False, "holomorphic": False, "length": None, "reverse": False,
    "unroll": 1, "policy": None, "prevent_cse": True, "in_specs": None, "out_specs": None,
    "batch_size": None,
}  # fmt: skip


@dataclass(repr=False)
class Called(Told):
    """One call of a transformation. kind: "vmap", "flax.linen: scan"; said: what it was told.

    fun: the name of the function it was given; defined: where that begins; at: the user's line
    that called it; times: how many such calls there were; inner: the calls made inside.
    """

    kind: str
    said: dict[str, Any]
    fun: str
    defined: Place | None
    at: Place | None
    times: int = 1
    inner: list["Called"] = field(default_factory=list)
    call: tuple[Callable, tuple, dict] | None = field(default=None, repr=False)

    @functools.cached_property
    def program(self) -> compat.Jaxpr:
        """What this call is as a program of its own.

        Raises MalleableError where it uses values of the calls around it.
        """
        what = f"this {self.kind} of {self.fun} is no program on its own"
        if self.call is None:
            raise MalleableError(what, where=places.spell(self.at), hint=_TRY)
        fun, *given = self.call
        leaves = jax.tree.leaves(given)
        traced = [isinstance(x, jax.ShapeDtypeStruct | jax.Array) for x in leaves]
        try:
            return stage(of_arrays(fun, given, traced))(*itertools.compress(leaves, traced)).jaxpr
        except Exception as error:
            raise MalleableError(what, where=places.spell(self.at), hint=_TRY) from error

    @property
    def outline(self) -> Body:
        return outline(self.program)

    def walk(self) -> Iterator["Called"]:
        """This call and those inside it, in order."""
        yield self
        for call in self.inner:
            yield from call.walk()

    def __str__(self):
        return "\n".join(_lines(self, "", ""))


_TRY = "it uses values or names of the calls around it: look at the program of one of those"


@called_as("trace_calls(fun)(*args)")
def trace_calls(fun: Callable[..., Any]) -> Callable[..., Called]:
    """Return a function that traces `fun`, and gives the tree of the transformations it calls.

    Seen are the calls of JAX's own transformations and control flow, of this library's, and of
    the wrappers that flax, equinox, haiku and others put around them, wherever `fun` was made.
    `tree.program` is the program at that level, staged when it is asked for. Nothing is run.

    >>> import jax.numpy as jnp
    >>> loss = lambda w, x: jnp.sum(w * x)
    >>> tree = trace_calls(jax.jit(jax.vmap(jax.grad(loss), in_axes=(None, 0))))
    >>> [call.kind for call in tree(jnp.ones(3), jnp.ones((2, 3))).walk()]
    ['program', 'jit', 'vmap', 'grad']
    """

    def traced(*args, **kwargs) -> Called:
        name, defined = _described(fun)
        root = Called("program", {}, name, defined, None, call=(fun, args, kwargs))
        with unchanged(fun, (args, kwargs)), compat.apart(), _listening(root):
            stage(fun)(*args, **kwargs)
        _merge(root)
        return root

    return traced


class _listening:
    """While open, calls made by this thread are hung into the tree."""

    def __init__(self, root: Called):
        self.open: list[tuple[Any, Called]] = [(None, root)]

    def __enter__(self):
        self.before = sys.getprofile()
        sys.setprofile(self.hear)

    def __exit__(self, *_):
        sys.setprofile(self.before)

    def hear(self, frame, event, _):
        if event == "call":
            if kind := _frame_kind(frame):
                made = _called(kind, frame)
                known = made.defined is None or compat.is_users(made.defined.file)
                if known and not any(_is_part(made, call) for _, call in self.open[-3:]):
                    self.open[-1][1].inner.append(made)
                    self.open.append((frame, made))
        elif event == "return" and frame is self.open[-1][0]:
            self.open.pop()


@functools.lru_cache(4096)
def _transformation(module: str, code: types.CodeType) -> str:
    """The transformation that this code runs, or ""."""
    package = module.partition(".")[0]
    if package == "jax":
        return compat.CALLED.get((module, code.co_name), "")
    if package == "malleable":
        return _OURS.get(code.co_qualname, "")
    if places.is_own(code.co_filename) or package in ("jaxlib", "numpy", "scipy"):
        return ""
    entry = code.co_name == "__call__" or code.co_name.endswith(("_wrapper", "wrapped", "_fn"))
    found = _LIBRARY.search(code.co_qualname.lower()) if entry else None
    if found:
        return f"{package}: {found[0]}"
    whole = {("flax", "apply"), ("flax", "init"), ("haiku", "apply_fn"), ("haiku", "init_fn")}
    if (package, code.co_name) in whole and "module" in f"{module} transform module":
        return f"{package}: {code.co_name.removesuffix('_fn')}"
    return ""


_OURS = {
    "interpret.<locals>.interpreted": "malleable: interpret",
    "optimize.<locals>.optimized": "malleable: optimize",
    "live.<locals>.lively": "malleable: live",
}


def _frame_kind(frame) -> str:
    module, code = frame.f_globals.get("__name__", ""), frame.f_code
    if code.co_name == "__call__" and module == "jax._src.custom_derivatives":
        return type(frame.f_locals.get("self")).__name__
    return _transformation(module, code)


def _is_part(made: Called, around: Called) -> bool:
    """Whether a call is how the one around it does its work: a grad calls value_and_grad."""
    pairs = {("grad", "value_and_grad"), ("value_and_grad", "vjp"), ("fori_loop", "scan")}
    pairs |= {("fori_loop", "while_loop"), ("map", "scan"), ("switch", "cond"), ("grad", "vjp")}
    named = made.fun, made.defined, made.at
    same = named == (around.fun, around.defined, around.at)
    return same and ((around.kind, made.kind) in pairs or made.kind == around.kind)


def _called(kind: str, frame) -> Called:
    known = dict(frame.f_locals)
    owner = known.get("self")
    if owner is not None and not any(name in known for name in _FUNCTIONS):
        known |= {n: getattr(owner, n, None) for n in ("fun", "f", "fn", "_fun", "func")}
    fun = next((known[n] for n in _FUNCTIONS if callable(known.get(n))), owner)
    said = {n: known[n] for n, usual in _SAID.items() if n in known and not _is(known[n], usual)}
    name, defined = _described(fun)
    return Called(kind, said, name, defined, _caller(frame), call=_again(frame))


def _is(value, usual) -> bool:
    same = isinstance(value, int | bool) and value == usual
    return value is usual or value is None or same or type(value) is object


def _described(fun) -> tuple[str, Place | None]:
    """The name of a function and where it begins, through partials and wrappers."""
    while isinstance(fun, functools.partial):
        fun = fun.func
    plain = inspect.unwrap(fun) if callable(fun) else fun
    plain = getattr(plain, "__func__", plain)
    code = getattr(plain, "__code__", None)
    name = "" if plain is None else getattr(plain, "__name__", None) or type(plain).__name__
    if code is None:
        return name, None
    return name, Place(code.co_filename, code.co_firstlineno, code.co_qualname, 0, 0, 0)


def _caller(frame) -> Place | None:
    """The user's line that a call comes from."""
    for outer, line in traceback.walk_stack(frame):
        code = outer.f_code
        known = places.is_own(code.co_filename) and not _is_here(code.co_filename)
        if known and outer is not frame:
            return Place(code.co_filename, line, code.co_qualname, 0, 0, 0)
    return None


_TOUR = str(pathlib.Path(compat.PACKAGE) / "tour")


def _is_here(file: str) -> bool:
    return file.startswith(compat.PACKAGE) and not file.startswith(_TOUR)


def _again(frame) -> tuple[Callable, tuple, dict] | None:
    """The function that runs in a frame, and its arguments as types: to be staged by itself."""
    code, known = frame.f_code, frame.f_locals
    if any(name not in known for name in code.co_freevars):
        return None
    cells = tuple(types.CellType(known[name]) for name in code.co_freevars)
    fun: Any = _closed(types.FunctionType(code, frame.f_globals, code.co_name, None, cells))
    names = code.co_varnames
    count, only = code.co_argcount, code.co_kwonlyargcount
    args = [known[n] for n in names[:count]]
    kwargs = {n: known[n] for n in names[count : count + only]}
    end = count + only
    if code.co_flags & inspect.CO_VARARGS:
        args += known[names[end]]
        end += 1
    if code.co_flags & inspect.CO_VARKEYWORDS:
        kwargs |= known[names[end]]
    given, named = jax.tree.map(_as_type, (tuple(args), kwargs))
    return None if _holds_tracer((fun, given, named)) else (fun, given, named)


def _as_type(x):
    """A value being traced, as its type; a function without those it closes over."""
    if isinstance(x, compat.Tracer):
        return jax.ShapeDtypeStruct(x.shape, x.dtype)
    return _closed(x) if callable(x) else x


def _closed(x, depth: int = 4):
    """A function with zeros in the place of the values being traced that it closes over."""
    if isinstance(x, compat.Tracer):
        key = jnp.issubdtype(x.dtype, jax.dtypes.extended)
        return x if key else np.zeros(x.shape, x.dtype)
    if depth == 0:
        return x
    inner = functools.partial(_closed, depth=depth - 1)
    if isinstance(x, functools.partial):
        kwargs = {k: inner(v) for k, v in x.keywords.items()}
        return functools.partial(inner(x.func), *map(inner, x.args), **kwargs)
    if isinstance(x, types.FunctionType) and x.__closure__:
        held = closed_over(x)
        old = [held.get(name) for name in x.__code__.co_freevars]
        new = [inner(c) for c in old]
        if all(a is b for a, b in zip(old, new, strict=True)):
            return x
        cells = tuple(map(types.CellType, new))
        made = types.FunctionType(x.__code__, x.__globals__, x.__name__, x.__defaults__, cells)
        made.__kwdefaults__ = x.__kwdefaults__
        return made
    leaves, tree = jax.tree.flatten(x)
    if any(isinstance(leaf, compat.Tracer) for leaf in leaves):
        return jax.tree.unflatten(tree, map(inner, leaves))
    return x


def _holds_tracer(x, depth: int = 10, seen: set[int] | None = None) -> bool:
    """Whether a value being traced can be reached from here: it must not be kept then."""
    seen = set() if seen is None else seen
    if isinstance(x, compat.Tracer):
        return True
    if depth == 0 or id(x) in seen or isinstance(x, type | types.ModuleType | types.CodeType):
        return False
    seen.add(id(x))
    if isinstance(x, types.FunctionType):
        inside = [*(x.__closure__ or ()), x.__defaults__, x.__kwdefaults__, vars(x)]
    else:
        inside = gc.get_referents(x)
    return any(_holds_tracer(part, depth - 1, seen) for part in inside)


def _merge(call: Called) -> None:
    """Count calls that are the same, one after another or not, once with how often."""
    kept: dict[Any, Called] = {}
    for inner in call.inner:
        _merge(inner)
        key = str((inner.kind, inner.said, inner.fun, inner.defined, inner.at, _call_tree(inner)))
        if key in kept:
            kept[key].times += 1
        else:
            kept[key] = inner
    call.inner = list(kept.values())


def _call_tree(call: Called) -> list:
    return [(c.kind, c.fun, c.times, _call_tree(c)) for c in call.inner]


def _lines(call: Called, head: str, rest: str) -> Iterator[str]:
    said = ", ".join(f"{k}={_short(v)}" for k, v in call.said.items())
    text = f"{call.kind}({said})" if said else call.kind
    text = call.fun if call.kind == "program" else f"{text} of {call.fun}".removesuffix(" of ")
    where = f"{places.relative(call.defined.file)}:{call.defined.line}" if call.defined else ""
    at = f"called at {places.spell(call.at)}" if call.at else ""
    times = f"{call.times} times" if call.times > 1 else ""
    yield head + "  ".join(filter(None, [text, where, at, times]))
    for i, inner in enumerate(call.inner):
        last = i == len(call.inner) - 1
        yield from _lines(
            inner, rest + ("└── " if last else "├── "), rest + ("    " if last else "│   ")
        )


def _short(value) -> str:
    text = getattr(value, "__name__", None) or repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
