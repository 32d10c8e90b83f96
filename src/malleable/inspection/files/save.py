"""Put a function into a file, as it is on some arguments: `save(path, fun, *args)`."""

import contextlib
import datetime
import importlib.metadata
import json
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from malleable import compat
from malleable.core.stage import stage
from malleable.errors import MalleableError
from malleable.inspection import places as lines
from malleable.inspection.files import building, calls, derivatives, names, portable, structures
from malleable.inspection.files.format import container, places, spelling, trees, types
from malleable.inspection.files.format.program import Program
from malleable.inspection.files.reading import Reader
from malleable.inspection.show.arguments import with_arrays
from malleable.inspection.show.rows import outline
from malleable.inspection.show.rows.renamed import rows_of
from malleable.programs.equations import every
from malleable.python_source.misuse import called_as
from malleable.rewriting.passes.passes import pipeline

_MONTHS = 6  # how long JAX promises to read an export


@called_as("save(path, fun, *args)")
def save(
    path: str | os.PathLike[str],
    fun: Callable[..., Any],
    /,
    *args: Any,
    passes: Sequence[Callable[[compat.Jaxpr], compat.Jaxpr]] = (),
    polymorphic: Any = None,
    constraints: Sequence[str] = (),
    transformable: bool = False,
    gradient_order: int = 0,
    metadata: dict[str, Any] | None = None,
    platforms: Sequence[str] | None = None,
    **kwargs: Any,
) -> None:
    """Write `fun` to a file, as the program it is on arguments of these types; `load` reads it.

    The file holds StableHLO: it runs in any process, on `platforms` (those of this process if
    none are named), for at least 6 months of versions of JAX, with gradients up to
    `gradient_order`. Sizes may be left open: polymorphic="b, ..." for all arguments, or one
    string (None for fixed sizes) per argument; constraints=("b >= 4",) say more about them.

    transformable=True writes the program itself, as text: what is loaded can be differentiated
    to any order, mapped by vmap, and rewritten, and knows the source lines of the user; it is
    read by every version of JAX that malleable supports. Sizes are fixed then.

    passes run first, as in `optimize`. Arguments may be arrays or jax.ShapeDtypeStruct, in
    pytrees. metadata: anything that JSON can say, given back by `load(path).metadata`.
    Raises MalleableError for what cannot be in a file, naming the line and a way out.

    >>> import tempfile, jax.numpy as jnp
    >>> from malleable.inspection.files.load import load
    >>> path = tempfile.mkdtemp() + "/net.mal"
    >>> save(path, lambda x: {"y": jnp.sin(x)}, 1.0, transformable=True)
    >>> net = load(path)
    >>> float(net(0.0)["y"]), float(jax.grad(lambda x: net(x)["y"])(0.0))
    (0.0, 1.0)
    """
    if transformable and (polymorphic is not None or gradient_order or platforms):
        raise MalleableError(
            "a transformable file has fixed sizes, every platform and every gradient",
            hint="leave out polymorphic, gradient_order and platforms, or transformable=True",
        )
    around = places.outside()
    name = getattr(fun, "__name__", type(fun).__name__)
    made = _stage(fun, args, kwargs, name, passes, polymorphic, constraints)
    about = _about(made, name, metadata)
    if transformable:
        program = take_apart(made.program, around, made.given.paths)
        text = list(spelling.spell_program(program))
        _check(text, made.program)
        data = container.pack_text(about, text)
    else:
        about |= _export_dates(gradient_order, platforms)
        avals = made.avals
        code = portable.export(made.program, avals, name, platforms, gradient_order)
        data = container.pack(about, {"stablehlo": code})
    container.write_bytes(path, data)


def take_apart(program: compat.Jaxpr, around=(), arguments: Sequence[str] = ()) -> Program:
    """The plain data of a program. Raises MalleableError for what a file cannot hold."""
    for depth, budget in derivatives.DEPTHS.items():
        reader = Reader(structures.take_equation, around, depth, budget)
        with contextlib.suppress(derivatives.TooMuch):
            return reader.program(reader.read(program, reader.reserve("main"), arguments))
    raise AssertionError("rules without rules of their own have no limit")


def _check(lines: list[str], program: compat.Jaxpr) -> None:
    """Raise MalleableError unless the lines are the program again once they are read."""
    building.build(spelling.parse(lines), list(map(types.unparse, program.out_avals)))


# ---------------------------------------------------------------- what is saved


@dataclass(frozen=True)
class _Made:
    """signature and given: the call; result: its pytree, described."""

    program: compat.Jaxpr
    avals: list
    given: calls.Given
    signature: list
    result: Any


class Slot:
    """An array in the result."""


def _stage(fun, args, kwargs, name, passes, polymorphic, constraints) -> _Made:
    signature = calls.signature_of(fun)
    given = calls.arrange(signature, args, kwargs, name, fun=fun)
    avals: list = given.leaves
    a, k = given.tree
    if polymorphic is not None:
        specs = portable.specs_of(polymorphic, given.tree, given.traced)
        avals = portable.symbolic(given.leaves, specs, given.paths, constraints)
        a, k = with_arrays(given.tree, given.traced, avals)
    try:
        with compat.apart():
            staged = stage(fun)(*jax.tree.map(lambda x: x, a), **jax.tree.map(lambda x: x, k))
            staged.refuse(staged.changes.names, "which a file cannot do")
            program = pipeline(*passes)(staged.jaxpr) if passes else staged.jaxpr
    except compat.InconclusiveSize as err:
        frames = compat.frames_of(err)
        raise portable.inconclusive(err, names.spell_frames(frames)) from err
    slots = [Slot() for _ in program.out_avals]
    leaf = lambda x: "array" if isinstance(x, Slot) else trees.leaf_text(x)  # noqa: E731
    result = trees.describe(staged.rebuild(slots), leaf)
    return _Made(program, avals, given, calls.write_signature(signature, given), result)


def _about(made: _Made, name: str, metadata) -> dict:
    """The header of a file."""
    try:
        json.dumps(metadata, allow_nan=False)
    except (TypeError, ValueError) as err:
        hint = "use text, finite numbers, lists and dictionaries"
        raise MalleableError(f"the metadata cannot be written as JSON: {err}", hint=hint) from err
    kinds = [types.unparse(a) for a in made.program.in_avals]
    return {
        "function": name,
        "written": _now(),
        "by": {
            "malleable": importlib.metadata.version("malleable"),
            "jax": jax.__version__,
            "jaxlib": importlib.metadata.version("jaxlib"),
            "python": platform.python_version(),
        },
        "parameters": made.signature,
        "arguments": [list(pair) for pair in zip(made.given.paths, kinds, strict=True)],
        "takes": calls.describe_arguments(made.given),
        "static": made.given.static,
        "results": [types.unparse(a) for a in made.program.out_avals],
        "gives": made.result,
        "wide": any(types.is_wide(a) for a in _avals(made.program)),
        "source_lines": _source_lines(made.program),
        "metadata": metadata,
    }


def _avals(program: compat.Jaxpr):
    """The types of arguments and results of every equation."""
    yield from program.in_avals
    for eqn in every(program.jaxpr.eqns):
        yield from (v.aval for v in eqn.outvars if hasattr(v.aval, "dtype"))


def _source_lines(program: compat.Jaxpr) -> list[str]:
    """The user's lines that the program comes from, in its order."""
    places = (row.place for row in rows_of(outline.outline(program)) if row.place)
    return list(dict.fromkeys(f"{lines.spell(at)}: {lines.line_of(at)}" for at in places))


def _now() -> str:
    """The time; of several processes only the day, so that all of them write the same file."""
    now = datetime.datetime.now(datetime.UTC)
    return now.isoformat(timespec="seconds") if jax.process_count() == 1 else str(now.date())


def _export_dates(order: int, platforms) -> dict:
    """What only an export has: how far it can be differentiated, where it runs, until when."""
    today = datetime.datetime.now(datetime.UTC).date()
    month = today.month - 1 + _MONTHS
    day = min(today.day, 28)
    until = today.replace(year=today.year + month // 12, month=month % 12 + 1, day=day)
    return {
        "gradient_order": order,
        "platforms": list(platforms or [jax.default_backend()]),
        "expires": until.isoformat(),
    }
