"""Elementwise functions of JAX in NumPy, with the types that JAX gives their results."""

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from malleable import compat
from malleable.execution.common.breaks import Unsupported
from malleable.execution.common.host_values import (
    NUMBERS,
    Weak,
    asked,
    example,
    finish,
    raw,
    with_kind,
)


def elementwise(fun, compute, work="result", complexes=False):
    """`fun` of JAX as `compute` of NumPy, on operands converted to one dtype.

    `work` says which: that of the "result", the one "common" to the operands, or "each" its own.
    """
    plans = {}

    def plan_of(kinds):
        key = (compat.host_mode(), kinds)
        plan = plans.get(key)
        if plan is None:
            try:
                plan = _plan(fun, compute, work, complexes, kinds)
            except Unsupported as no:
                plan = no
            plans[key] = plan
        if isinstance(plan, Unsupported):
            raise plan
        return plan

    def binary(a, b, /):
        a, one = with_kind(a)
        b, other = with_kind(b)
        dtype, weak = plan_of((one, other))
        if dtype is not None:
            a, b = np.asarray(a, dtype), np.asarray(b, dtype)
        return finish(compute(a, b), weak)

    def unary(a, /):
        a, kind = with_kind(a)
        dtype, weak = plan_of((kind,))
        return finish(compute(a if dtype is None else np.asarray(a, dtype)), weak)

    return binary if _arity(compute) == 2 else unary


def _arity(compute) -> int:
    return compute.nin if isinstance(compute, np.ufunc) else compute.__code__.co_argcount


def common(kinds) -> tuple[np.dtype, bool]:
    """(dtype, weak) of operands of these kinds put together."""
    return asked(lambda *xs: jnp.stack(xs), *map(example, kinds))


def _plan(fun, compute, work, complexes, kinds):
    """(the dtype to convert operands to, or None; whether the result is weak)."""
    out, weak = asked(fun, *map(example, kinds))
    samples = [kind(1) if kind in NUMBERS else np.ones((), _dtype(kind)) for kind in kinds]
    if not complexes and any(np.iscomplexobj(sample) for sample in samples):
        raise Unsupported("complex numbers")
    dtype = None
    if work != "each" or any(kind in NUMBERS for kind in kinds):
        dtype = out if work == "result" else common(kinds)[0]
        wraps = work == "common" and int in kinds  # NumPy compares -1 with uint8 as numbers
        if isinstance(compute, np.ufunc) and np.result_type(*samples) == dtype and not wraps:
            dtype = None
        else:
            samples = [np.asarray(sample, dtype) for sample in samples]
    if np.asarray(compute(*samples)).dtype != out:
        raise Unsupported("NumPy gives another dtype")
    return dtype, weak


def _dtype(kind) -> np.dtype:
    return kind[0] if type(kind) is Weak else kind


# ---------------------------------------------------------------- where NumPy differs


def _floor_divide(a, b):
    """As Python and JAX divide: by the remainder; divisions by zero are left to JAX."""
    if not b.all():
        raise Unsupported("division by zero")
    if a.dtype.kind in "iub":
        return np.floor_divide(a, b)
    rest = np.fmod(a, b)
    quotient = (a - rest) / b
    low = (rest != 0) & (np.sign(b) != np.sign(rest))
    quotient = np.where(low, quotient - quotient.dtype.type(1), quotient)
    # away from zero at halves, as lax.round; there are none but for rounding errors
    return np.trunc(quotient + np.copysign(quotient.dtype.type(0.5), quotient))


def _remainder(a, b):
    if a.dtype.kind in "iub" and not b.all():
        raise Unsupported("division by zero")
    rest = np.fmod(a, b)
    return np.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


def _fmod(a, b):
    if a.dtype.kind in "iub" and not b.all():
        raise Unsupported("division by zero")
    return np.fmod(a, b)


def _shift(compute):
    def shift(a, b):
        if np.min(b, initial=0) < 0:
            raise Unsupported("a negative shift")
        return compute(a, b)

    return shift


def _sigmoid(a):
    one = a.dtype.type(1)
    return one / (one + np.exp(-a))


def _relu(a):
    return np.maximum(a, np.asarray(0, a.dtype))


def _reciprocal(a):
    return a.dtype.type(1) / a


def _square(a):
    return a * a


_INEXACT = """
    sqrt exp exp2 expm1 log log2 log10 log1p sin cos tan arcsin arccos arctan sinh cosh tanh
    arcsinh arccosh arctanh cbrt deg2rad rad2deg degrees radians acos asin atan acosh asinh atanh
    sinc divide true_divide arctan2 atan2 logaddexp copysign float_power
"""
_SAME = "floor ceil trunc rint square maximum minimum fmax fmin"
_COMPLEX = "add subtract multiply negative positive conj conjugate"
_EACH = """
    abs absolute fabs isnan isinf isfinite signbit logical_not logical_and logical_or logical_xor
    invert bitwise_not bitwise_invert
"""
_BITS = "bitwise_and bitwise_or bitwise_xor"
_COMPARE = "less less_equal greater greater_equal"
_LAX = {
    "neg": np.negative, "abs": np.abs, "exp": np.exp, "exp2": np.exp2, "log": np.log,
    "expm1": np.expm1, "log1p": np.log1p, "sin": np.sin, "cos": np.cos, "tan": np.tan,
    "tanh": np.tanh, "sqrt": np.sqrt, "floor": np.floor, "ceil": np.ceil, "square": _square,
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "max": np.maximum, "min": np.minimum,
    "atan2": np.arctan2, "is_finite": np.isfinite, "reciprocal": _reciprocal,
    "rsqrt": lambda a: a.dtype.type(1) / np.sqrt(a),
}  # fmt: skip


def _table() -> dict:
    table = {}

    def enter(module, names, work="result", complexes=False):
        for name in names.split():
            fun, compute = getattr(module, name, None), getattr(np, name, None)
            if fun is not None and isinstance(compute, np.ufunc) and fun not in table:
                table[fun] = elementwise(fun, compute, work, complexes)

    enter(jnp, _INEXACT)
    enter(jnp, _SAME)
    enter(jnp, _COMPLEX, complexes=True)
    enter(jnp, _EACH, "each")
    enter(jnp, _BITS)
    enter(jnp, _COMPARE, "common")
    enter(jnp, "equal not_equal", "common", complexes=True)
    for name, compute in _LAX.items():
        fun = getattr(lax, name)
        table[fun] = _of_one_shape(elementwise(fun, compute, "each"))
    for name, compute, work in [
        ("floor_divide", _floor_divide, "result"),
        ("remainder", _remainder, "result"),
        ("mod", _remainder, "result"),
        ("fmod", _fmod, "result"),
        ("power", _power, "result"),
        ("pow", _power, "result"),
        ("left_shift", _shift(np.left_shift), "result"),
        ("right_shift", _shift(np.right_shift), "result"),
        ("bitwise_left_shift", _shift(np.left_shift), "result"),
        ("bitwise_right_shift", _shift(np.right_shift), "result"),
        ("reciprocal", _reciprocal, "result"),
        ("sign", lambda a: np.sign(a), "each"),
        ("real", lambda a: np.real(a), "each"),
        ("imag", lambda a: np.imag(a), "each"),
    ]:
        fun = getattr(jnp, name)
        table[fun] = elementwise(fun, compute, work, complexes=name in ("real", "imag"))
    table[jax.nn.relu] = elementwise(jax.nn.relu, _relu)
    table[jax.nn.sigmoid] = elementwise(jax.nn.sigmoid, _sigmoid)
    return table


def _of_one_shape(host):
    """Functions of jax.lax do not broadcast; numbers are fine."""

    def run(*operands):
        shapes = [each.shape for each in operands if type(each) not in NUMBERS]
        if len(shapes) == 2 and shapes[0] != shapes[1]:
            raise Unsupported("jax.lax does not broadcast")
        return host(*operands)

    return run


def _power(a, b):
    """An integer to the power of a negative one is an error of both."""
    return np.power(a, b)


ELEMENTWISE = _table()


# ---------------------------------------------------------------- more than two operands


def where(condition, x, y):
    """jnp.where(condition, x, y)."""
    condition = raw(condition)
    (x, one), (y, other) = with_kind(x), with_kind(y)
    if one is other and type(one) is not Weak and one not in NUMBERS:
        return finish(np.where(condition, x, y), False)
    dtype, weak = common_kind(one, other)
    return finish(np.where(condition, np.asarray(x, dtype), np.asarray(y, dtype)), weak)


_COMMON = {}


def common_kind(*kinds):
    key = (compat.host_mode(), kinds)
    found = _COMMON.get(key)
    if found is None:
        found = _COMMON[key] = common(kinds)
    return found


def clip(arr=None, /, min=None, max=None):
    """jnp.clip(arr, min, max)."""
    out = raw(arr)
    if out.dtype.kind == "c":
        raise Unsupported("complex numbers")
    for limit, compute in ((min, np.maximum), (max, np.minimum)):
        if limit is not None:
            limit, kind = with_kind(limit)
            if common_kind(out.dtype, kind)[0] != out.dtype:
                raise Unsupported("a limit of another type")
            out = compute(out, np.asarray(limit, out.dtype))
    return finish(out.copy() if out is arr else out, False)


def round_(a, decimals=0):
    """jnp.round to integers, halves to even."""
    a = raw(a)
    if decimals != 0 or a.dtype.kind not in "f":
        raise Unsupported("round to other than a whole")
    return finish(np.rint(a), False)


def matmul(a, b):
    """jnp.matmul, of which dot is a case, for what NumPy has fast or exact products of."""
    a, b = raw(a), raw(b)
    if a.dtype != b.dtype or a.dtype.char not in "fdi?":
        raise Unsupported("NumPy accumulates in another type")
    return finish(np.matmul(a, b), False)


def dot(a, b):
    """jnp.dot."""
    a, b = raw(a), raw(b)
    if a.dtype != b.dtype or a.dtype.char not in "fdi?":
        raise Unsupported("NumPy accumulates in another type")
    return finish(np.dot(a, b), False)


ELEMENTWISE |= {jnp.clip: clip, jnp.round: round_, jnp.matmul: matmul, jnp.dot: dot}
