"""Looking at programs: frames, names, traces apart from the caches."""

import contextlib
import functools
import itertools
import sys
import types
from collections import namedtuple
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax._src import config, source_info_util, traceback_util, tree_util

from malleable.compat.contexts import user_context
from malleable.compat.programs import Eqn, Jaxpr, function_at, is_users, user_frames

Place = namedtuple("Place", "file line function column end_line end_column")
_session = user_context(0)
_sessions = itertools.count(1)
ITERATORS = {types.GeneratorType, map, filter, zip, enumerate, type(iter([])), type({}.values())}
LANES = "lanes:"  # begins the name scope of a scan over the examples of a vmap


def is_pytree_class(cls: type) -> bool:
    """Whether JAX knows how to take objects of a class apart."""
    return cls in tree_util._registry or (issubclass(cls, tuple) and hasattr(cls, "_fields"))


def is_iterator(x) -> bool:
    """Whether `jax.tree` takes a value for a leaf with a warning, which is to be an error."""
    return type(x) in ITERATORS


def user_places(*eqns: Eqn) -> list[Place]:
    """The user's frames behind an equation and those around it, innermost first."""
    return list(dict.fromkeys(p for eqn in eqns for p in places_of(eqn.source_info.traceback)))


@functools.lru_cache(4096)
def places_of(traceback) -> tuple[Place, ...]:
    return tuple(
        Place(f.file_name, f.start_line, f.function_name, f.start_column, f.end_line, f.end_column)
        for f in user_frames(traceback)
    )


def defined(jaxpr: Jaxpr) -> Place | None:
    """Where the function behind a program begins, if it is the user's."""
    name, _, at = function_at(jaxpr).rpartition(" at ")
    file, _, line = at.rpartition(":")
    known = line.isdigit() and is_users(file)
    return Place(file, int(line), name, 0, int(line), 0) if known else None


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """Nothing traced inside is taken from JAX's caches, or later from what they keep of it."""
    with _session(next(_sessions)):
        yield


def compiled_text(lowered: Any) -> str:
    """What XLA makes of a lowered program, with the lines of that program.

    JAX's persistent cache holds programs without their lines: it would give those of another.
    """
    with config.compilation_cache_include_metadata_in_key(True):
        return lowered.compile().as_text() or ""


def name_scopes(eqn: Eqn) -> list[str]:
    """The name scopes of an equation, outermost first, without those of `lanes_of`."""
    stack = getattr(eqn.source_info.name_stack, "stack", ())
    names = [s.name for s in stack if type(s) is source_info_util.Scope]
    return [name for name in names if not name.startswith(LANES)]


def static_numbers(fun: Callable, tree: Any) -> list[bool]:
    """Which leaves are Python numbers in a module of Equinox, or for its filter_jit: static."""
    equinox: Any = sys.modules.get("equinox")
    if equinox is None:
        return [False] * len(jax.tree.leaves(tree))
    everywhere, found = type(fun).__module__ == "equinox._jit", []
    for part in jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, equinox.Module)):
        fixed = everywhere or isinstance(part, equinox.Module)
        found += [
            fixed and isinstance(x, bool | int | float | complex) and not isinstance(x, np.generic)
            for x in jax.tree.leaves(part)
        ]
    return found


def argument_names(jaxpr: Jaxpr) -> tuple[str, ...]:
    """The paths of the arguments of the function behind a program, as JAX knows them."""
    return tuple(name or "" for name in getattr(jaxpr.jaxpr.debug_info, "arg_names", None) or ())


def name_of(jaxpr: Jaxpr) -> str:
    """The name of the function behind a program, "" where JAX does not know it."""
    return function_at(jaxpr).rpartition(" at ")[0]


def key_numbers(x):
    """The array of numbers behind a typed random key; anything else as it is."""
    return getattr(x, "_base_array", x)


def host_function(eqn: Eqn):
    """The function that a callback calls on the host, None where it is out of reach."""
    fun = eqn.params.get("callback")
    return getattr(fun, "callback_func", fun)


def is_hidden_file(file: str) -> bool:
    """Whether a file is of JAX or of this library."""
    return not traceback_util.include_filename(file)


# ---------------------------------------------------------------- calls of JAX's transformations

# module behind jax._src. -> {name of the code that runs when one is called: what a user calls it}
_CALLED = {
    "api": "vmap_f=vmap grad_f=grad grad_f_aux=grad value_and_grad_f=value_and_grad _jvp=jvp "
    "vjp=vjp linearize=linearize jacfun=jacobian",
    "pjit": "cache_miss=jit",
    "lax.control_flow.loops": "scan=scan while_loop=while_loop fori_loop=fori_loop map=map "
    "associative_scan=associative_scan",
    "lax.control_flow.conditionals": "cond=cond switch=switch",
    "ad_checkpoint": "fun_remat=checkpoint",
    "shard_map": "wrapped=shard_map",
}
CALLED = {
    (f"jax._src.{module}", code): name
    for module, names in _CALLED.items()
    for code, name in (pair.split("=") for pair in names.split())
}
