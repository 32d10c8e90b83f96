"""Arrays for ONNX: what Pad, Slice, MatMul, the reductions and the running sums do not cover."""

import math
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from malleable import compat
from malleable.integrations.onnx.lowering import rule
from malleable.integrations.onnx.numbers import BFLOAT, known
from malleable.programs.evaluate import evaluate
from malleable.programs.primitives import has


@rule("pad")
def pad_interior(eqn):
    """Padding between the elements: zeros in a new axis, which is merged."""
    config = eqn.params["padding_config"]
    if all(inner == 0 for _, _, inner in config):
        static = all(isinstance(n, int) for n in eqn.invars[0].aval.shape)
        return None if static else lambda x, value: joined(x, value, config)

    def fun(x, value):
        for axis, (_, _, inner) in enumerate(config):
            n = x.shape[axis]
            if inner == 0 or n == 0:
                continue
            x = jnp.expand_dims(x, axis + 1)
            x = lax.pad(x, value, [(0, inner * (i == axis + 1), 0) for i in range(x.ndim)])
            x = x.reshape(*x.shape[:axis], n * (1 + inner), *x.shape[axis + 2 :])
            x = lax.slice_in_dim(x, 0, n * (1 + inner) - inner, axis=axis)
        return lax.pad(x, value, [(low, high, 0) for low, high, _ in config])

    return fun


def joined(x, value, config):
    """Padding of an array with symbolic sizes, which Pad refuses: arrays put together."""
    for axis, (low, high, _) in enumerate(config):
        if low < 0 or high < 0:
            x = lax.slice_in_dim(x, max(0, -low), x.shape[axis] - max(0, -high), axis=axis)
        full = lambda n, x=x, i=axis: jnp.broadcast_to(value, (*x.shape[:i], n, *x.shape[i + 1 :]))  # noqa: E731
        parts = [full(low)] * (low > 0) + [x] + [full(high)] * (high > 0)
        x = lax.concatenate(parts, axis) if len(parts) > 1 else x
    return x


@rule("dynamic_slice", once=True)
def sliced(eqn):
    """JAX moves a slice that would leave the array; ONNX cuts it off."""
    sizes = eqn.params["slice_sizes"]
    move: Any = moved(eqn.invars[1:], eqn.invars[0].aval.shape, sizes)

    def fun(x, *starts):
        return lax.dynamic_slice(x, move(starts), sizes, allow_negative_indices=False)

    return fun if move else None


@rule("dynamic_update_slice", once=True)
def updated(eqn):
    """As `sliced`."""
    move: Any = moved(eqn.invars[2:], eqn.invars[0].aval.shape, eqn.invars[1].aval.shape)

    def fun(x, update, *starts):
        return lax.dynamic_update_slice(x, update, move(starts), allow_negative_indices=False)

    return fun if move else None


def moved(starts, shape, sizes):
    """A function that moves starts into the array, or None where they are there."""
    last = [n - m for n, m in zip(shape, sizes, strict=True)]
    values = [known(v) for v in starts]
    if all(v is not None and 0 <= v <= end for v, end in zip(values, last, strict=True)):
        return None

    def one(i, value, end):
        if value is not None or (isinstance(end, int) and end == 0):
            return jnp.clip(value or 0, 0, end).astype(np.int32)
        return jnp.minimum(jnp.maximum(i.astype(np.int32), 0), end)

    return lambda xs: [one(*each) for each in zip(xs, values, last, strict=True)]


# ---------------------------------------------------------------- products


@rule("dot_general", once=True)
def product(eqn):
    """Any product of arrays as one of stacks of matrices: (b, m, k) by (b, k, n)."""
    (left, right), (left_batch, right_batch) = eqn.params["dimension_numbers"]
    a, b = (v.aval for v in eqn.invars)
    out = eqn.outvars[0].aval
    exact = a.dtype in (np.float32, np.float64) and a.dtype == b.dtype == out.dtype
    plain = len(a.shape) == len(b.shape) == 2 and (left, right) == ((1,), (0,))
    if exact and plain and not left_batch:
        return None
    rows = [i for i in range(len(a.shape)) if i not in (*left, *left_batch)]
    columns = [i for i in range(len(b.shape)) if i not in (*right, *right_batch)]
    stack = [a.shape[i] for i in left_batch]
    sizes = [a.shape[i] for i in rows], [a.shape[i] for i in left], [b.shape[i] for i in columns]
    m, k, n = map(math.prod, sizes)
    flat = exact and not stack
    lead = () if flat else (math.prod(stack),)
    dims = (((1,), (0,)), ((), ())) if flat else (((2,), (1,)), ((0,), (0,)))
    wide = product_type(out.dtype)

    def fun(a, b):
        a = a.transpose(*left_batch, *rows, *left).reshape(*lead, m, k).astype(wide)
        b = b.transpose(*right_batch, *right, *columns).reshape(*lead, k, n).astype(wide)
        c = lax.dot_general(a, b, dims, preferred_element_type=wide)
        return c.reshape(out.shape).astype(out.dtype)

    return fun


def product_type(dtype):
    """The type in which MatMul has a kernel; half precision is summed in float32, as XLA does."""
    if dtype in (BFLOAT, np.float16):
        return np.dtype("float32")
    return np.dtype("int32") if dtype.kind in "biu" and dtype.itemsize <= 4 else dtype


# ---------------------------------------------------------------- running and whole reductions

COMBINE = {
    "cumprod": lax.mul, "cummax": lax.max, "cummin": lax.min,
    "reduce_prod": lax.mul, "reduce_and": lax.bitwise_and, "reduce_or": lax.bitwise_or,
    "reduce_xor": lax.bitwise_xor,
}  # fmt: skip


@rule("cumprod", "cummax", "cummin")
def running(eqn):
    """In steps of 1, 2, 4, ...: each element with the one so far before. Hillis, Steele, 1986."""
    axis, reverse = eqn.params["axis"], eqn.params["reverse"]
    aval, combine = eqn.invars[0].aval, COMBINE[eqn.primitive.name]
    n = aval.shape[axis]
    if not isinstance(n, int):
        return lambda x: one_by_one(x, axis, reverse, combine)

    def fun(x):
        step = 1
        while step < n:
            early = lax.slice_in_dim(x, 0, step, axis=axis)
            late = combine(
                lax.slice_in_dim(x, step, n, axis=axis), lax.slice_in_dim(x, 0, n - step, axis=axis)
            )
            if reverse:
                early = lax.slice_in_dim(x, n - step, n, axis=axis)
            x = lax.concatenate([late, early] if reverse else [early, late], axis)
            step *= 2
        return x

    return fun


def one_by_one(x, axis, reverse, combine):
    """A running reduction of an axis of unknown length."""
    xs = jnp.moveaxis(x, axis, 0)
    body = lambda c, y: (combine(c, y), combine(c, y))  # noqa: E731
    start = lax.index_in_dim(xs, -1 if reverse else 0, keepdims=False)
    rest = xs[:-1] if reverse else xs[1:]
    _, ys = lax.scan(body, start, rest, reverse=reverse)
    parts = [ys, start[None]] if reverse else [start[None], ys]
    return jnp.moveaxis(jnp.concatenate(parts, 0), 0, axis)


@rule("reduce_prod", "reduce_and", "reduce_or", "reduce_xor")
def halved(eqn):
    """Of integers, bit by bit: one half with the other, until one is left."""
    name, aval = eqn.primitive.name, eqn.outvars[0].aval
    if aval.dtype.kind not in "iu" and not (aval.dtype == bool and name == "reduce_xor"):
        return None
    start = {"reduce_prod": 1, "reduce_and": -1 if aval.dtype != bool else True}.get(name, 0)
    return lambda x: fold(COMBINE[name], x, eqn.params["axes"], np.array(start).astype(aval.dtype))


@rule("reduce")
def folded(eqn):
    """A reduction by any function of two elements, of one array."""
    if len(eqn.invars) != 2:
        return None
    combine = combination(eqn.params["jaxpr"])
    return lambda x, start: fold(combine, x, eqn.params["dimensions"], start)


def combination(jaxpr):
    """A function of two numbers, given as a program, for two arrays."""
    program = compat.close(jaxpr)
    names = [eqn.primitive.name for eqn in program.jaxpr.eqns]
    if len(names) == 1 and names[0] in has("associative"):
        return program.jaxpr.eqns[0].primitive.bind
    one = lambda a, b: evaluate(program, [a, b])[0]  # noqa: E731

    def each(a, b):
        a, b = jnp.broadcast_arrays(a, b)
        return jax.vmap(one)(a.reshape(-1), b.reshape(-1)).reshape(a.shape)

    return each


def fold(combine, x, axes, start):
    """All elements along some axes into one, and the start."""
    for axis in sorted(axes, reverse=True):
        n = x.shape[axis]
        if n == 0:
            return jnp.full([s for i, s in enumerate(x.shape) if i not in axes], start)
        while n > 1:
            half = n // 2
            left = lax.slice_in_dim(x, 0, half, axis=axis)
            right = lax.slice_in_dim(x, half, 2 * half, axis=axis)
            rest = [lax.slice_in_dim(x, 2 * half, n, axis=axis)] if n % 2 else []
            x = lax.concatenate([combine(left, right), *rest], axis)
            n = x.shape[axis]
        x = lax.squeeze(x, (axis,))
    return combine(x, jnp.broadcast_to(start, x.shape))
