"""Programs in files, and in other operations."""

import ast
import contextlib
import dataclasses
import functools
import pathlib
import runpy
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax import lax
from jax._src import core, source_info_util
from jax._src.lax import lax as lax_internal
from jax._src.lax import parallel
from jax._src.lax.control_flow import conditionals
from jax._src.random import prng
from jax.interpreters import mlir
from jaxlib import xla_client

from malleable.compat.building import JAX_FOLDER
from malleable.compat.looking import Place, argument_names, places_of
from malleable.compat.programs import Eqn, Jaxpr, Primitive, function_at, is_users


@functools.cache
def named_primitives() -> dict[str, Primitive]:
    """{name: primitive} of those of JAX that only compute: nothing that calls back or mutates."""
    listed, rest = (lax, lax.linalg), (parallel, prng, lax_internal, conditionals)
    tables = [*map(vars, listed), primitives(), *map(vars, rest)]
    found = [v for table in tables for n, v in table.items() if n.endswith("_p")]
    named = {p.name: p for p in (*found, core.pvary_p) if isinstance(p, Primitive)}
    return {name: p for name, p in named.items() if name not in _DOING}


_DOING = {"get", "swap", "addupdate", "call", "core_call", "custom_lin", "infeed", "outfeed"}
MemorySpace = core.MemorySpace


@functools.cache
def primitives() -> dict[str, Any]:
    """{name: primitive} of `jax.extend.core.primitives`.

    To import it is to import Pallas from JAX 0.11 on, and then JAX traces and compiles again what
    it had compiled, in the whole process.
    """
    return runpy.run_path(str(pathlib.Path(JAX_FOLDER, "extend", "core", "primitives.py")))


def array_type(shape, dtype, weak: bool = False):
    """The type of an array."""
    return core.ShapedArray(tuple(shape), dtype, weak_type=weak)


def key_kind(x) -> str | None:
    """The name of the generator behind a dtype of random keys, or behind what holds one."""
    return getattr(getattr(x, "_impl", x), "name", None)


@functools.cache
def key_dtype(name: str) -> Any:
    """The dtype of the random keys of a generator; None for one that is not there."""
    return prng.KeyTy(prng.prngs[name]) if name in prng.prngs else None


def key_implementation(name: str) -> Any:
    """A generator, as the params of primitives hold it; None for one that is not there."""
    return prng.prngs.get(name)


def names_around(eqn: Eqn) -> list[tuple[str, str]]:
    """The name stack of an equation as text: ("scope", name) or ("transform", name)."""
    stack = getattr(eqn.source_info.name_stack, "stack", ())
    return [("scope" if type(s) is source_info_util.Scope else "transform", s.name) for s in stack]


def spoken_of(jaxpr: Jaxpr) -> tuple[str, tuple[str, ...]]:
    """What the user called the function behind a program, and its arguments; "" for unknown."""
    known, count = argument_names(jaxpr), len(jaxpr.jaxpr.invars)
    names = tuple(map(str, known)) if len(known) == count else ("",) * count
    return function_at(jaxpr).partition(" at ")[0], names


@contextlib.contextmanager
def restored(traceback, names: Sequence[tuple[str, str]]) -> Iterator[None]:
    """Attribute everything bound inside to frames made by `traceback_of`, under a name stack."""
    kinds = {"scope": source_info_util.Scope, "transform": source_info_util.Transform}
    stack = source_info_util.NameStack(tuple(kinds[kind](name) for kind, name in names))
    with source_info_util.user_context(traceback, name_stack=stack):
        yield


def traceback_of(places: Sequence[Place]):
    """A traceback as JAX keeps them, of frames that are no more: innermost first.

    One empty call per frame, of a code object with the file, the line and the name it had.
    """
    run: Any = xla_client.Traceback.get_traceback
    for p in places:
        at = {"lineno": p.line, "col_offset": p.column}
        at |= {"end_lineno": p.end_line, "end_col_offset": p.end_column}
        call = ast.Call(ast.Name("run", ast.Load(), **at), [], [], **at)
        code = compile(ast.Expression(call), p.file, "eval")
        code = code.replace(co_name=p.function.rpartition(".")[2], co_qualname=p.function)
        run = functools.partial(eval, code, {"run": run})
    made: list = []
    thread = threading.Thread(target=lambda: made.append(run()))  # no frames of ours around it
    thread.start()
    thread.join()
    return made[0]


def places_now() -> tuple[Place, ...]:
    """The user's frames at this moment, innermost first."""
    return places_of(source_info_util.current().traceback)


InconclusiveSize: Any = core.InconclusiveDimensionOperation  # what is not decided for a symbol


def frames_of(error: BaseException) -> tuple[Place, ...]:
    """The user's frames that an exception went through, innermost first."""
    found = []
    for frame, line in traceback.walk_tb(error.__traceback__):
        code = frame.f_code
        if is_users(code.co_filename):
            found.append(Place(code.co_filename, line, code.co_qualname, 0, line, 0))
    return tuple(reversed(found))


def lines_of(error: BaseException) -> list[str]:
    """These frames, each as `file:line in function`."""
    return [f"{place.file}:{place.line} in {place.function}" for place in frames_of(error)]


def limited(exported, refuse: Callable):
    """An exported function that calls refuse() where a gradient is asked for that it has not."""
    known = exported._get_vjp

    def vjp(_):
        return refuse() if known is None else limited(known(exported), refuse)

    return dataclasses.replace(exported, _get_vjp=vjp)


# ---------------------------------------------------------------- programs in other operations


def written_in_jax(eqn: Eqn) -> Callable | None:
    """fun(*operands), by which an equation is compiled, if it is one of JAX operations."""
    if "_prim" in eqn.params:  # from JAX 0.11: an object that expands itself
        hidden = eqn.params["_prim"]
        return lambda *args: hidden.expand(*jax.tree.unflatten(hidden.in_tree, args))
    entry: Any = mlir._lowerings.get(eqn.primitive)
    rule = getattr(entry, "rule", entry)
    if getattr(getattr(rule, "__code__", None), "co_freevars", ()) != ("fun", "multiple_results"):
        return None
    fun = rule.__closure__[0].cell_contents  # what mlir.lower_fun was given
    return functools.partial(fun, **eqn.primitive.get_bind_params(eqn.params))


def key_functions(dtype):
    """What makes random numbers of a kind of key: seed, split, random_bits, fold_in, key_shape."""
    return dtype._impl


def sizes_at(shape: Sequence, sizes: dict[str, int]) -> tuple[int, ...]:
    """A shape with symbols as one of numbers: {name: size}."""
    return tuple(d if isinstance(d, int) else int(d._evaluate(sizes)) for d in shape)
