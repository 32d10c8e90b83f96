"""What of a function cannot go to ONNX, by the user's line, before anything is converted."""

import contextlib
import functools
import importlib
import inspect
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from malleable import compat
from malleable.core.stage import staged_arguments
from malleable.errors import MalleableError
from malleable.integrations.onnx import (  # noqa: F401  they register their rules
    arrays,
    control,
    functions,
    indexing,
    matrices,
    missing,
    numbers,
    pairs,
    windows,
)
from malleable.integrations.onnx.control import distinct
from malleable.integrations.onnx.lowering import Problem, is_pair, lower
from malleable.integrations.onnx.missing import left_to_softmax
from malleable.integrations.onnx.restoring import restored
from malleable.programs.types import is_key
from malleable.rewriting.passes.passes import cse, dce, pipeline

# plugins of jax2onnx that are not used: what JAX itself makes of these primitives is exported
UNUSED = """custom_linear_solve qr igamma igammac igamma_grad_a regularized_incomplete_beta
cholesky_update tridiagonal_solve"""


@dataclass(frozen=True)
class Prepared:
    """A function staged and lowered: what is converted, and what it is compared with."""

    fun: Callable  # of the arrays, flat
    program: compat.Jaxpr  # its
    lowered: compat.Jaxpr  # the same in operations that ONNX has
    values: list  # the arrays given
    inputs: list[str]  # a name for each
    outputs: list[str]
    problems: list[Problem]


def preflight(
    fun: Callable, *args, polymorphic: Any = None, passes: Sequence = (), **kwargs
) -> list[Problem]:
    """What of `fun(*args)` cannot go to ONNX: a `Problem` per line and primitive; [] for nothing.

    Nothing is converted or run. `polymorphic` and `passes` as for `export_onnx`.
    Raises MalleableError where the extra `onnx` is missing.

    >>> import numpy as np
    >>> def model(x):
    ...     return jax.pure_callback(np.sin, x, x)
    >>> [problem.primitive for problem in preflight(model, np.ones(3, np.float32))]
    ['pure_callback']
    """
    return prepare(fun, args, kwargs, polymorphic, passes).problems


def prepare(fun: Callable, args: tuple, kwargs: dict, polymorphic, passes: Sequence) -> Prepared:
    """Stage a function of the arrays among its arguments, and lower its program."""
    known = set(plugins()) - set(UNUSED.split())
    paths, tree = jax.tree_util.tree_flatten_with_path((named(fun, args), kwargs))
    leaves = [x for _, x in paths]
    traced = staged_arguments(fun, args, kwargs)[2]
    is_array = [t and compat.is_array(x) for x, t in zip(leaves, traced, strict=True)]
    values = [compat.as_array(x) for x, a in zip(leaves, is_array, strict=True) if a]
    types = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in values]
    if polymorphic is not None:
        specs = (polymorphic,) if isinstance(polymorphic, str) else tuple(polymorphic)
        only = [x if a else None for x, a in zip(leaves, is_array, strict=True)]
        given, _ = jax.tree.unflatten(tree, only)
        symbolic = jax.export.symbolic_args_specs([*given.values()], list(specs))
        symbolic = jax.tree.leaves(symbolic)
        types[: len(symbolic)] = symbolic
    found: dict[str, Any] = {}

    def flat(*xs):
        rest = iter(xs)
        filled = [next(rest) if a else x for x, a in zip(leaves, is_array, strict=True)]
        given, options = jax.tree.unflatten(tree, filled)
        outs, _ = jax.tree_util.tree_flatten_with_path(fun(*given.values(), **options))
        found["outputs"] = [path for path, x in outs if compat.is_array(x)]
        return [x for _, x in outs if compat.is_array(x)]

    with compat.apart():  # what jax2onnx does to JAX's functions while it works is in no cache
        program = compat.trace(flat, *types)
        program = pipeline(*passes)(program) if passes else program
        lowered, problems = lower(program, known)
        lowered = distinct(dce(left_to_softmax(cse(dce(lowered)))))
    inputs = unique([spelled(path) for (path, _), a in zip(paths, is_array, strict=True) if a])
    outputs = unique([spelled(path, "out") for path in found["outputs"]], taken=inputs)
    problems = [*problems, *foreign(program, inputs, outputs)]
    return Prepared(flat, program, lowered, values, inputs, outputs, problems)


def named(fun: Callable, args: tuple) -> dict[str, Any]:
    """Positional arguments by the names `fun` gives them."""
    try:
        params = list(inspect.signature(fun).parameters.values())
    except (TypeError, ValueError):
        params = []
    names = [p.name for p in params if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = next((p.name for p in params if p.kind is p.VAR_POSITIONAL), "in")
    names += [f"{rest}{i}" for i in range(len(args) - len(names))]
    return Named(zip(names, args, strict=False))


class Named(dict):
    """Arguments by name, in the order they were given."""


jax.tree_util.register_pytree_with_keys(
    Named,
    lambda d: ([(jax.tree_util.DictKey(k), x) for k, x in d.items()], tuple(d)),
    lambda keys, xs: Named(zip(keys, xs, strict=True)),
)


def spelled(path: tuple, start: str = "") -> str:
    """A path in a pytree as a name: `layers.0.w`."""
    path = path if start else path[1:]  # without the place among (args, kwargs)
    inner = jax.tree_util.keystr(path, simple=True, separator=".")
    return ".".join(filter(None, (start, inner)))


def unique(names: Sequence[str], taken: Sequence[str] = ()) -> list[str]:
    """The names, with numbers behind those that are taken."""
    used, out = set(taken), []
    for name in names:
        count, new = 0, name
        while new in used:
            count, new = count + 1, f"{name}_{count + 1}"
        used.add(new)
        out.append(new)
    return out


def foreign(program: compat.Jaxpr, inputs: Sequence[str], outputs: Sequence[str]) -> list[Problem]:
    """Arguments and results of a type that onnxruntime has no tensors of."""
    raw, found = program.jaxpr, []
    ends = zip((*inputs, *outputs), (*raw.invars, *raw.outvars), strict=True)
    for name, v in ends:
        if is_pair(v.aval) and not is_key(v.aval):
            hint = "pass x.real and x.imag, put together inside" if name in inputs else ""
            why = f"`{name}` is complex, and onnxruntime has no complex tensors"
            found.append(Problem("", "argument" if hint else "result", why, hint or SPLIT))
    return found


SPLIT = "return y.real, y.imag"


# ---------------------------------------------------------------- jax2onnx


@functools.cache
def plugins() -> dict[str, Any]:
    """jax2onnx's table of primitives it converts."""
    with quiet(), restored():
        system = extra("jax2onnx.plugins.plugin_system")
        system.import_all_plugins()
    return system.PLUGIN_REGISTRY


def extra(name: str) -> Any:
    """A module of the extra `onnx`.

    Raises MalleableError where it is not installed.
    """
    try:
        with quiet():
            return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise MalleableError(
            f"exporting to ONNX needs {package}, which cannot be imported: {error}",
            hint="pip install 'malleable[onnx]'",
        ) from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without what jax2onnx, onnx and what they import have deprecated."""
    with warnings.catch_warnings():
        for kind in (DeprecationWarning, PendingDeprecationWarning, FutureWarning, ImportWarning):
            warnings.simplefilter("ignore", kind)
        yield
