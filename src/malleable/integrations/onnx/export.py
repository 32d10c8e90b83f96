"""Functions as ONNX models: `export_onnx(fun, *args, path="model.onnx")`, checked in onnxruntime.

jax2onnx converts; before it does, the program is put into operations it has (`lowering.py`)
and what has no counterpart is named by line (`preflight.py`); after it did, the model is run
against JAX (`running.py`). Needs the extra: `pip install 'malleable[onnx]'`.
"""

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax

from malleable import compat
from malleable.errors import MalleableError
from malleable.inspection import places
from malleable.integrations.onnx import running
from malleable.integrations.onnx.lowering import Problem
from malleable.integrations.onnx.preflight import Prepared, extra, preflight, prepare, quiet
from malleable.integrations.onnx.restoring import untouched
from malleable.notes import Note, listen, note
from malleable.programs.evaluate import evaluate
from malleable.programs.types import is_key

__all__ = ["Exported", "Problem", "export_onnx", "preflight"]


@dataclass(frozen=True)
class Exported:
    """What `export_onnx` gives.

    model: onnx.ModelProto; path: where it was written, or None; errors: {output: max absolute
    error against JAX}, empty if not verified; notes: what was changed; preflight: always [].
    """

    model: Any = field(repr=False)
    path: str | None
    errors: dict[str, float]
    notes: list[Note]
    preflight: list[Problem]

    @property
    def nodes(self) -> int:
        """How many nodes the model has, in its loops and branches too."""
        return count(self.model.graph)

    def __str__(self):
        ends = [
            f"{kind} {v.name}: {spelled(v.type.tensor_type)}"
            for kind, values in (
                ("input", self.model.graph.input),
                ("output", self.model.graph.output),
            )
            for v in values
        ]
        errors = [f"max error of {name}: {e:.1e}" for name, e in self.errors.items()]
        notes = [f"note: {n.what}, {n.where}: {n.why}" for n in self.notes]
        where = f", written to {self.path}" if self.path else ""
        return "\n".join([f"ONNX model of {self.nodes} nodes{where}", *ends, *errors, *notes])


def export_onnx(
    fun: Callable,
    *args,
    path: str | os.PathLike | None = None,
    polymorphic: Sequence | None = None,
    passes: Sequence[Callable] = (),
    tolerance: float = 1e-4,
    verify: bool = True,
    opset: int | None = None,
    **kwargs,
) -> Exported:
    """The ONNX model of `fun(*args, **kwargs)`, written to `path` once it computes the same.

    The arrays and numbers among the arguments are the model's inputs, named as in the pytree
    (`params.w`); other leaves are part of it. `polymorphic`: per positional argument None or a
    shape with names, such as "b, _", for sizes that may change. `passes` run over the program
    first. The model is run on the arguments and on others like them; errors of floats are allowed
    up to `tolerance` of the largest number in an output, and none of integers.
    `opset`: the version of ONNX's operators; jax2onnx's choice without.

    Raises MalleableError for a program that cannot go to ONNX, with every line; for a model that
    computes anything else than JAX; and where the extra is missing. No file is written then.

    >>> import numpy as np
    >>> from jax import numpy as jnp
    >>> done = export_onnx(lambda x: jnp.cumsum(x[::-1]), np.ones(3, np.float32))
    >>> done.errors
    {'out': 0.0}
    """
    with listen() as notes:
        prepared = prepare(fun, args, kwargs, polymorphic, passes)
        if prepared.problems:
            raise refused(prepared.problems)
        if not prepared.outputs:
            raise MalleableError(
                "there is no array among the results", hint="return what to export"
            )
        mention(prepared)
        model, errors = made(prepared, opset, tolerance if verify else None)
    if path is not None:
        part = f"{os.fspath(path)}.part"
        extra("onnx").save(model, part, format="protobuf")
        os.replace(part, path)
    return Exported(model, None if path is None else os.fspath(path), errors, list(notes), [])


def made(prepared: Prepared, opset: int | None, tolerance: float | None):
    """(model, errors); no errors without a tolerance.

    jax2onnx simplifies what it made, and forgets at times that a loop or branch uses a value it
    removes. Where the result is no model, or a wrong one, it is made once more as it was written.
    """
    try:
        model = convert(prepared, opset)
        extra("onnx").checker.check_model(model)
        return model, checked(model, prepared, tolerance)
    except Exception as first:
        with unsimplified():
            model = convert(prepared, opset)
        try:
            errors = checked(model, prepared, tolerance)
        except MalleableError:
            raise first if isinstance(first, MalleableError) else broken(first) from first
        note("jax2onnx did not simplify the model", "", f"it was wrong: {first}".partition("\n")[0])
        return model, errors


def checked(model: Any, prepared: Prepared, tolerance: float | None) -> dict[str, float]:
    """The errors of a model, which is not compared without a tolerance."""
    if tolerance is not None:
        return running.verify(model, prepared, tolerance)
    note("the ONNX model was not compared with JAX", "", "verify=False")
    return {}


def broken(error: Exception) -> MalleableError:
    return MalleableError(
        f"jax2onnx made no valid model: {error}", hint="report it, with the program"
    )


@contextlib.contextmanager
def unsimplified() -> Iterator[None]:
    """Without the optimizer of jax2onnx."""
    converter = extra("jax2onnx.converter.conversion_api")
    found = converter.optimize_graph
    converter.optimize_graph = lambda model: None
    try:
        yield
    finally:
        converter.optimize_graph = found


def refused(problems: Sequence[Problem]) -> MalleableError:
    """All of what cannot be exported, in one error."""
    lines = [
        f"  {p.where or '(no line known)'}: `{p.primitive}`: {p.why}"
        + f" ({p.hint})" * bool(p.hint)
        for p in problems
    ]
    what = "\n".join(["this cannot go to ONNX:", *lines])
    first = next((p.hint for p in problems if p.hint), "export the function without it")
    return MalleableError(what, where=problems[0].where, hint=first)


def mention(prepared: Prepared) -> None:
    """Leave notes about what is not as the user wrote it."""
    raw = prepared.program.jaxpr
    for name, v in zip(prepared.inputs, raw.invars, strict=True):
        if is_key(v.aval):
            note(
                f"`{name}` is the data of the key", "", "ONNX has no keys; feed jax.random.key_data"
            )
    used = {v for e in raw.eqns for v in e.invars if not isinstance(v, compat.Literal)}
    used |= {v for v in raw.outvars if not isinstance(v, compat.Literal)}
    for name, v in zip(prepared.inputs, raw.invars, strict=True):
        if v not in used:
            note(f"`{name}` is not used", "", "the result does not depend on it")
    narrow = [e for e in raw.eqns if any(str(v.aval.dtype) == "bfloat16" for v in e.outvars)]
    if narrow:
        where = places.spell(places.of(narrow[0]))
        note("bfloat16 goes through float32, rounded after each operation", where, NARROW)


NARROW = "onnxruntime computes nothing in bfloat16 on the CPU"


def convert(prepared: Prepared, opset: int | None) -> Any:
    """The model that jax2onnx makes of the lowered program."""
    exporter, converter = extra("jax2onnx"), extra("jax2onnx.converter.conversion_api")
    lowered = prepared.lowered
    plain = [i for i in range(len(lowered.jaxpr.outvars)) if not trivial(lowered.jaxpr, i)]
    avals = [v.aval for v in lowered.jaxpr.invars]
    options = {} if opset is None else {"opset": opset}
    wide = is_double(lowered)  # set here: jax2onnx would set it for all threads, and leave it so
    loggers = [logging.getLogger(name) for name in ("jax2onnx", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)

    def flat(*xs):
        outs = evaluate(lowered, xs)
        return [outs[i] for i in plain]

    try:
        with quiet(), untouched(converter), compat.apart(), jax.enable_x64(wide):
            model = exporter.to_onnx(
                flat,
                [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals],
                enable_double_precision=wide,
                input_names=prepared.inputs,
                output_names=[prepared.outputs[i] for i in plain],
                **options,
            )
    except Exception as error:
        where, primitive = culprit(error)
        raise MalleableError(
            f"jax2onnx cannot convert `{primitive}`: {error}",
            where=where,
            hint="write it in other operations, or report it with the program",
        ) from error
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
    complete(model.graph, prepared, plain)
    return model


def trivial(program: Any, i: int) -> bool:
    """Whether a result is an argument, or the same as one before: jax2onnx refuses two names."""
    out = program.outvars[i]
    if isinstance(out, compat.Literal):
        return False
    return out in program.invars or any(out is v for v in program.outvars[:i])


def complete(graph: Any, prepared: Prepared, plain: Sequence[int]) -> None:
    """Put the trivial outputs among the others, and the sizes of all as in JAX."""
    helper, raw = extra("onnx").helper, prepared.lowered.jaxpr
    values = dict(zip(plain, graph.output, strict=True))
    named = dict(zip(raw.invars, prepared.inputs, strict=True))
    made = []
    for i, (v, name) in enumerate(zip(raw.outvars, prepared.outputs, strict=True)):
        kind = helper.np_dtype_to_tensor_dtype(v.aval.dtype)
        sizes = [d if isinstance(d, int) else str(d) for d in v.aval.shape]
        made.append(helper.make_tensor_value_info(name, kind, sizes))
        if i in values:
            made[-1].type.tensor_type.elem_type = values[i].type.tensor_type.elem_type
            named.setdefault(v, name) if not isinstance(v, compat.Literal) else None
        else:
            graph.node.append(helper.make_node("Identity", [named[v]], [name], name=f"{name}_same"))
    del graph.output[:]
    graph.output.extend(made)


def is_double(program: compat.Jaxpr) -> bool:
    """Whether a program has numbers of 64 bits."""
    raw = program.jaxpr
    avals = [v.aval for v in (*raw.invars, *(v for e in raw.eqns for v in e.outvars))]
    if any(str(getattr(a, "dtype", ""))[-2:] == "64" for a in avals):
        return True
    return any(is_double(b) for e in raw.eqns for b in compat.bodies(e.params))


def culprit(error: BaseException) -> tuple[str, str]:
    """(the user's line, the primitive) of the equation at which jax2onnx gave up."""
    found, trace = ("", "the program"), error.__traceback__
    while trace is not None:
        eqn = trace.tb_frame.f_locals.get("eqn")
        if isinstance(eqn, compat.Eqn):
            where = places.spell(places.of(eqn))
            found = where or found[0], str(eqn.primitive)
        trace = trace.tb_next
    return found


def count(graph: Any) -> int:
    inside = (count(a.g) for node in graph.node for a in node.attribute if a.HasField("g"))
    return len(graph.node) + sum(inside)


def spelled(kind: Any) -> str:
    """`float32[b,3]`, of the type of a tensor."""
    name = extra("onnx").helper.tensor_dtype_to_np_dtype(kind.elem_type).name
    return f"{name}[{','.join(d.dim_param or str(d.dim_value) for d in kind.shape.dim)}]"
