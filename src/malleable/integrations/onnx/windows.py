"""Convolutions and windows for ONNX: in the one order of axes it has, and their derivatives.

A reduction over a window of n elements goes in steps of 1, 2, 4, ..., axis by axis. What picks
the largest element of a window, the derivative of a maximum, goes through the elements.
"""

import itertools

import numpy as np
from jax import lax
from jax import numpy as jnp

from malleable.integrations.onnx.arrays import combination
from malleable.integrations.onnx.lowering import rule
from malleable.programs.types import identity


@rule("conv_general_dilated", once=True)
def convolution(eqn):
    """Batch, features, space; nothing between the inputs, no negative padding, one batch."""
    p = eqn.params
    numbers, groups = p["dimension_numbers"], p["feature_group_count"]
    batches = p["batch_group_count"]
    x_spec, w_spec, out_spec = numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec
    rank = len(x_spec) - 2
    plain, back = tuple(range(rank + 2)), tuple(np.argsort(out_spec))

    def fun(x, w):
        x, w = x.transpose(x_spec), w.transpose(w_spec)
        pairs = zip(p["padding"], p["lhs_dilation"], strict=True)
        edges = [(low, high, d - 1) for (low, high), d in pairs]
        odd = any(low < 0 or high < 0 or inner for low, high, inner in edges)
        if odd:
            x = padded(x, np.zeros((), x.dtype), [(0, 0, 0), (0, 0, 0), *edges])
        count = groups
        if batches > 1:  # each part of the batch meets its part of the features
            n, c = x.shape[0] // batches, x.shape[1]
            x = x.reshape(batches, n, c, *x.shape[2:]).swapaxes(0, 1)
            x, count = x.reshape(n, batches * c, *x.shape[3:]), batches
        padding = [(0, 0)] * rank if odd else p["padding"]
        if rank > 2:
            return summed(eqn, x, w, count, padding).transpose(back)
        out = lax.conv_general_dilated(
            x, w, p["window_strides"], padding,
            rhs_dilation=p["rhs_dilation"], feature_group_count=count,
            dimension_numbers=lax.ConvDimensionNumbers(plain, plain, plain),
        )  # fmt: skip
        return out.transpose(back).astype(eqn.outvars[0].aval.dtype)

    return fun


def summed(eqn, x, w, groups, padding):
    """A convolution in more than two dimensions: a product per element of the kernel."""
    p, space = eqn.params, w.shape[2:]
    x = padded(x, np.zeros((), x.dtype), [(0, 0, 0), (0, 0, 0), *((a, b, 0) for a, b in padding)])
    apart = p["rhs_dilation"]
    each = zip(x.shape[2:], space, apart, p["window_strides"], strict=True)
    sizes = [(n - (k - 1) * d - 1) // s + 1 for n, k, d, s in each]
    n, total = x.shape[0], jnp.zeros(())
    for at in itertools.product(*map(range, space)):
        offset = (0, 0, *(i * d for i, d in zip(at, apart, strict=True)))
        part = window(x, offset, (*x.shape[:2], *sizes), (1, 1, *p["window_strides"]))
        a = part.reshape(n, groups, x.shape[1] // groups, -1)
        b = w[(..., *at)].reshape(groups, w.shape[0] // groups, w.shape[1])
        total += jnp.einsum("ngis,goi->ngos", a, b)
    return total.reshape(n, w.shape[0], *sizes).astype(eqn.outvars[0].aval.dtype)


# ---------------------------------------------------------------- windows

WINDOWS = {
    "reduce_window_max": lax.max,
    "reduce_window_min": lax.min,
    "reduce_window_sum": lax.add,
}


@rule(*WINDOWS)
def windows(eqn):
    """The reduction of each window."""
    name, dtype = eqn.primitive.name, eqn.outvars[0].aval.dtype
    start = np.array(identity(name, dtype)).astype(dtype)
    return lambda x: reduced(x, start, eqn.params, WINDOWS[name])


def reduced(x, start, p, combine):
    """Each window of x, `start` around it, made one element, axis by axis."""
    edges = [(a, b, d - 1) for (a, b), d in zip(p["padding"], p["base_dilation"], strict=True)]
    x = padded(x, start, edges)
    for axis, n in enumerate(p["window_dimensions"]):
        x = along(x, axis, n, p["window_strides"][axis], p["window_dilation"][axis], combine)
    return x


def along(x, axis, n, stride, apart, combine):
    """Windows of n elements, `apart` from each other, in one axis."""
    done, parts = 0, []  # (first element, a window of some power of two from there)
    width, power = 1, x
    while width <= n:
        if n & width:
            parts.append((done, power))
            done += width
        shifted = lax.slice_in_dim(power, width * apart, None, axis=axis)
        power = combine(lax.slice_in_dim(power, 0, shifted.shape[axis], axis=axis), shifted)
        width *= 2
    length = x.shape[axis] - (n - 1) * apart
    cut = [lax.slice_in_dim(y, i * apart, i * apart + length, stride, axis) for i, y in parts]
    out = cut[0]
    for y in cut[1:]:
        out = combine(out, y)
    return out


@rule("reduce_window")
def any_windows(eqn):
    """By a function of two elements."""
    if len(eqn.invars) != 2:
        return None
    p, combine = eqn.params, combination(eqn.params["jaxpr"])

    def fun(x, start):
        x = reduced(x, start, p, combine)
        return combine(x, jnp.broadcast_to(start, x.shape))

    return fun


@rule("select_and_scatter_add")
def scattered(eqn):
    """Each window's source goes to its first largest (least) element: MaxPool's derivative."""
    p, shape = eqn.params, eqn.outvars[0].aval.shape

    def fun(source, x):
        out, zero = 0, np.zeros((), source.dtype)
        wide = [n + low + high for n, (low, high) in zip(shape, p["padding"], strict=True)]
        for offset, hit in hits(x, source.shape, p):
            each = zip(offset, wide, source.shape, p["window_strides"], strict=True)
            edges = [(at, n - at - 1 - (m - 1) * s, s - 1) for at, n, m, s in each]
            out += padded(jnp.where(hit, source, zero), zero, edges)
        return padded(out, zero, [(-low, -high, 0) for low, high in p["padding"]])

    return fun


@rule("select_and_gather_add")
def gathered(eqn):
    """Each window's tangent at its first largest (least) element."""
    p, shape = eqn.params, eqn.outvars[0].aval.shape

    def fun(tangents, x):
        edges = [(low, high, 0) for low, high in p["padding"]]
        t = padded(tangents, np.zeros((), tangents.dtype), edges)
        out = jnp.zeros(shape, tangents.dtype)
        for offset, hit in hits(x, shape, p):
            out += jnp.where(hit, window(t, offset, shape, p["window_strides"]), 0)
        return out

    dilated = any(d > 1 for d in (*p.get("base_dilation", ()), *p.get("window_dilation", ())))
    return None if dilated else fun


def hits(x, shape, p):
    """(offset, where the element at this offset is the first largest of its window)."""
    largest = str(p["select_prim"]) in ("ge", "gt")
    start = np.array(-np.inf if largest else np.inf, x.dtype)
    x = padded(x, start, [(low, high, 0) for low, high in p["padding"]])
    offsets = list(itertools.product(*map(range, p["window_dimensions"])))
    parts = [window(x, offset, shape, p["window_strides"]) for offset in offsets]
    best = parts[0]
    for part in parts[1:]:
        best = (jnp.maximum if largest else jnp.minimum)(best, part)
    taken = jnp.zeros(shape, bool)
    for offset, part in zip(offsets, parts, strict=True):
        yield offset, (part == best) & ~taken
        taken = taken | (part == best)


def padded(x, value, edges):
    """lax.pad, of nothing where there is nothing to do."""
    return lax.pad(x, value, edges) if any(map(any, edges)) else x


def window(x, offset, shape, strides):
    ends = [at + (m - 1) * s + 1 for at, m, s in zip(offset, shape, strides, strict=True)]
    return lax.slice(x, offset, ends, strides)
