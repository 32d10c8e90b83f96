"""An ONNX model against the function it was made of: run both, compare every output."""

import ctypes
import functools
import math
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from malleable import compat
from malleable.errors import MalleableError
from malleable.integrations.onnx.lowering import as_pair, primitives
from malleable.integrations.onnx.preflight import Prepared, extra
from malleable.notes import note
from malleable.programs.types import is_key

BFLOAT, BFLOAT16 = np.dtype(jnp.bfloat16), 16  # the latter in TensorProto's numbering


def verify(model: Any, prepared: Prepared, tolerance: float) -> dict[str, float]:
    """{output: max absolute error} over the arguments given and others like them.

    Raises MalleableError for an output of another shape, dtype or value. A float may differ by
    `tolerance` times the largest number in its array (or 1), and by 4 roundings of the narrowest
    type on its way; integers and booleans may not. For symbolic sizes, the others are larger.
    Leaves a note for each kind of numbers in `KINDS` that gives something else.
    """
    session = Session(model)
    start, run = time.perf_counter(), reference(prepared)
    allowed = max(tolerance, 4 * narrowest(prepared.program))
    worst = dict.fromkeys(prepared.outputs, 0.0)
    for further, values in enumerate((prepared.values, others(prepared))):
        want = run(values)
        got = session.run(values, prepared.inputs)
        kind = "other values of the same kind" if further else "the arguments given"
        for name, a, b in zip(prepared.outputs, got, want, strict=True):
            error = compare(name, a, b, allowed, kind, bool(further))
            worst[name] = max(worst[name], error)
    odd = any(is_float(x) and x.size for x in prepared.values)
    if odd and time.perf_counter() - start < LONG and "while" not in primitives(prepared.lowered):
        probe(session, run, prepared, allowed)
    return worst


LONG = 10.0  # seconds; compilation and two runs. A loop may not end for all numbers
KINDS = {
    "numbers near 0": lambda x: x * x.dtype.type(1e-3 if x.itemsize < 4 else 1e-6),
    "negative numbers": lambda x: -abs(x),
    "large numbers": lambda x: x * x.dtype.type(100 if x.itemsize < 4 else 1e4),
    "NaN": lambda x: with_last(x, np.nan),
    "infinities": lambda x: with_last(x, np.inf),
}


def with_last(x, value):
    """The array with another last number."""
    x = x.copy()
    x[(-1,) * x.ndim] = value
    return x


def probe(session, run: Callable, prepared: Prepared, allowed: float) -> None:
    """Notes about the kinds of numbers for which onnxruntime computes something else than JAX."""
    for kind, change in KINDS.items():
        with np.errstate(all="ignore"):
            values = [
                jnp.asarray(change(np.asarray(x))) if is_float(x) and x.size else x
                for x in prepared.values
            ]
        want = run(values)
        got = session.run(values, prepared.inputs)
        outs = zip(prepared.outputs, got, want, strict=True)
        odd = [name for name, a, b in outs if differs(a, b, 10 * allowed)]
        if odd:
            why = f"of the arguments given, made {kind}: {', '.join(f'`{name}`' for name in odd)}"
            note(f"the ONNX model differs from JAX for {kind}", "", why)


def is_float(x) -> bool:
    return jnp.issubdtype(x.dtype, jnp.floating)


def differs(got, want, allowed: float) -> bool:
    """Whether two outputs differ by more than a part of the largest finite number of one."""
    errors, b = error_of(got, want), want.astype(np.float64)
    scale = abs(b[np.isfinite(b)]).max(initial=float(jnp.finfo(np.float32).tiny))
    return not bool(np.all(errors <= allowed * scale))


def error_of(got, want) -> np.ndarray:
    """The absolute error of each element; 0 between two NaNs."""
    a, b = got.astype(np.float64), want.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        return np.where(same, 0.0, abs(a - b))


def compare(name, got, want, allowed: float, kind: str, lenient: bool) -> float:
    """The largest absolute error of one output.

    lenient: where JAX has no finite number, for made-up arguments, anything goes.
    """
    for what, a, b in (("shape", got.shape, want.shape), ("dtype", got.dtype, want.dtype)):
        if a != b:
            raise wrong(name, f"has {what} {a} in onnxruntime and {b} in JAX", kind)
    if got.size == 0:
        return 0.0
    if want.dtype.kind in "biu":
        if np.array_equal(got, want):
            return 0.0
        count = int(np.sum(got != want))
        raise wrong(name, f"differs in {count} of {want.size} integers", kind)
    errors, b = error_of(got, want), want.astype(np.float64)
    if lenient:
        errors = np.where(np.isfinite(b), errors, 0.0)
    finite = abs(b[np.isfinite(b)])
    scale = max(1.0, finite.max()) if finite.size else 1.0
    error = float(errors.max()) if not np.isnan(errors).any() else np.inf
    if not error <= allowed * scale:
        raise wrong(name, f"differs by {error:.1e}, with numbers up to {scale:.1e}", kind)
    return error


def wrong(name: str, what: str, kind: str) -> MalleableError:
    return MalleableError(
        f"the ONNX model is wrong: output `{name}` {what}, for {kind}; nothing was written",
        hint="a larger `tolerance`, if it is rounding; otherwise this is a bug of the exporter",
    )


def reference(prepared: Prepared) -> Callable[[Sequence], list[np.ndarray]]:
    """A function of arrays: what JAX computes, as numpy arrays; keys as their data."""
    run = jax.jit(lambda *xs: [as_pair(x) for x in prepared.fun(*xs)])
    return lambda values: list(map(np.asarray, run(*values)))


# ---------------------------------------------------------------- onnxruntime


class Session:
    """A model in onnxruntime, on the CPU."""

    def __init__(self, model: Any):
        self.runtime = extra("onnxruntime")
        options = self.runtime.SessionOptions()
        options.log_severity_level = 4
        try:
            self.session = self.runtime.InferenceSession(
                model.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # onnxruntime's own types share no base
            raise failed(error) from error

    def run(self, values: Sequence, names: Sequence[str]) -> list[np.ndarray]:
        """The outputs, in the order of the model; of JAX's arrays, keys as their data."""
        arrays = [np.asarray(as_pair(x)) for x in values]
        wanted = {i.name for i in self.session.get_inputs()}
        feed = {n: self.value(x) for n, x in zip(names, arrays, strict=True) if n in wanted}
        try:
            return [tensor_as_array(x) for x in self.session.run_with_ort_values(None, feed)]
        except Exception as error:
            raise failed(error) from error

    def value(self, x: np.ndarray):
        make = self.runtime.OrtValue
        if x.dtype == BFLOAT:
            return make.ortvalue_from_numpy_with_onnx_type(x.view(np.uint16), BFLOAT16)
        return make.ortvalue_from_numpy(x.copy(order="C"))


def tensor_as_array(value: Any) -> np.ndarray:
    """A tensor of onnxruntime; it gives none of bfloat16, so those are read from memory."""
    if value.data_type() != "tensor(bfloat16)":
        return value.numpy()
    shape = tuple(value.shape())
    words: Any = (ctypes.c_uint16 * math.prod(shape)).from_address(value.data_ptr())
    return np.frombuffer(words, np.uint16).copy().view(BFLOAT).reshape(shape)


def failed(error: Exception) -> MalleableError:
    said = re.sub(r"\[ONNXRuntimeError\] : \d+ : ", "", str(error))
    return MalleableError(
        f"onnxruntime does not run the model: {said}",
        hint="report it, with the program; `verify=False` gives the model as it is",
    )


# ---------------------------------------------------------------- other arguments


def others(prepared: Prepared) -> list:
    """Arguments like those given: floats moved by a tenth, integers in another order; larger
    where a size is a symbol."""
    rng = np.random.default_rng(0)
    avals = [v.aval for v in prepared.program.jaxpr.invars]
    names = {s for a in avals for d in a.shape if not isinstance(d, int) for s in symbols(d)}
    sizes = solve(names, avals, prepared.values)
    made = []
    for aval, x in zip(avals, prepared.values, strict=True):
        if is_key(aval):
            fold = functools.partial(jax.random.fold_in, data=1)
            made.append(jax.vmap(fold)(x.reshape(-1)).reshape(x.shape))
            continue
        shape = compat.sizes_at(aval.shape, {n: s + 1 for n, s in sizes.items()})
        made.append(jnp.asarray(similar(np.asarray(x), shape, rng)))
    return made


def similar(x: np.ndarray, shape: tuple, rng) -> np.ndarray:
    """An array of this shape whose numbers are like those of x."""
    if not x.size:
        return np.zeros(shape, x.dtype)
    for axis, n in enumerate(shape):
        x = np.take(x, np.arange(n) % x.shape[axis], axis)
    if x.dtype.kind in "biu":
        if x.ndim == 0:
            return x if x.dtype == bool else np.maximum(x, 1).astype(x.dtype) - x.dtype.type(1)
        return rng.permuted(x)
    noise = rng.uniform(0.9, 1.1, x.shape).astype(np.float32)
    return (x * noise.astype(x.dtype)).astype(x.dtype)


def symbols(size) -> list[str]:
    names = re.sub(r"\b(floordiv|mod|max|min|non_negative)\b", "", str(size))
    return re.findall(r"[A-Za-z_]\w*", names)


def solve(names, avals, values) -> dict[str, int]:
    """The sizes of the symbols, from the arrays given."""
    found = {}
    for aval, x in zip(avals, values, strict=True):
        for d, n in zip(aval.shape, x.shape, strict=True):
            if str(d) in names:
                found[str(d)] = n
    missing = names - set(found)
    if missing:
        raise MalleableError(
            f"the size {sorted(missing)[0]!r} cannot be read off the arguments",
            hint="let some axis be this size alone, such as 'b', and not 2*b",
        )
    return found


def narrowest(program: compat.Jaxpr) -> float:
    """The rounding of the narrowest floating-point type in a program."""
    widest = 0.0
    for v in (*program.jaxpr.invars, *(v for e in program.jaxpr.eqns for v in e.outvars)):
        if jnp.issubdtype(getattr(v.aval, "dtype", np.bool_), jnp.floating):
            widest = max(widest, float(jnp.finfo(v.aval.dtype).eps))
    inside = [narrowest(b) for e in program.jaxpr.eqns for b in compat.bodies(e.params)]
    return max([widest, *inside])
