"""Mask rules of what goes element by element, of reductions, scans along an axis, sort and dot."""

import math

import numpy as np
from jax import lax
from jax import numpy as jnp

from malleable import compat
from malleable.execution.buckets.values import Padded, filled, highest, lowest, mask_rule
from malleable.execution.common.breaks import Unsupported
from malleable.execution.common.sizes import is_symbolic
from malleable.programs.primitives import kind

ELEMENTWISE = kind("elementwise", "complex", "same") - {"polynomial"}
ELEMENTWISE |= {"optimization_barrier", "device_put"} | {"name"}
ELEMENTWISE |= {"reduce_precision", "threefry2x32"}


@mask_rule(*ELEMENTWISE)
def elementwise(sizes, eqn, *ins):
    return compat.bind(eqn, [p.x for p in ins])


@mask_rule("convert_element_type")
def convert_element_type(sizes, eqn, p):
    (x,) = compat.bind(eqn, [p.x])
    return Padded(x, p.dims, p.fill if p.fill == 0 else None)


@mask_rule("bitcast_convert_type")
def bitcast_convert_type(sizes, eqn, p):
    if p.x.dtype.itemsize != eqn.params["new_dtype"].itemsize:
        raise Unsupported("bits seen as another number of elements")
    return compat.bind(eqn, [p.x])


@mask_rule("dim_as_value")
def dim_as_value(sizes, eqn):
    value = jnp.asarray(sizes.true(eqn.params["dim"]))
    return lax.convert_element_type(value, eqn.outvars[0].aval.dtype)


# ---------------------------------------------------------------- reductions

_IDENTITIES = {
    "sum": lambda dtype: 0,
    "prod": lambda dtype: 1,
    "max": lowest,
    "min": highest,
    "and": lambda dtype: np.invert(np.zeros((), dtype)),
    "or": lambda dtype: 0,
    "xor": lambda dtype: 0,
    "logsumexp": lowest,
}


@mask_rule(*kind("reduce") - {"reduce"})
def reduction(sizes, eqn, p):
    fill = _IDENTITIES[eqn.primitive.name.removeprefix("reduce_")](p.x.dtype)
    return compat.bind(eqn, [filled(sizes, p, fill, eqn.params["axes"])])


@mask_rule("argmax", "argmin")
def argmax(sizes, eqn, p):
    """The first of equals wins, and padding comes last."""
    worst = lowest if eqn.primitive.name == "argmax" else highest
    return compat.bind(eqn, [filled(sizes, p, worst(p.x.dtype), eqn.params["axes"])])


@mask_rule("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")
def cumulative(sizes, eqn, p):
    fill = _IDENTITIES[eqn.primitive.name.removeprefix("cum")](p.x.dtype)
    return compat.bind(eqn, [filled(sizes, p, fill, [eqn.params["axis"]])])


@mask_rule("sort")
def sort(sizes, eqn, *ins):
    """Padding is the largest key there is, and of equal keys it is the last: a stable sort."""
    axis, keys = eqn.params["dimension"], eqn.params["num_keys"]
    if not is_symbolic(ins[0].dims[axis]):
        return compat.bind(eqn, [p.x for p in ins])
    xs = [
        filled(sizes, p, _sentinel(p.x.dtype), [axis]) if i < keys else p.x
        for i, p in enumerate(ins)
    ]
    return list(lax.sort(xs, dimension=axis, num_keys=keys, is_stable=True))


def _sentinel(dtype):
    return math.nan if jnp.issubdtype(dtype, jnp.floating) else highest(dtype)


@mask_rule("top_k")
def top_k(sizes, eqn, p):
    if is_symbolic(eqn.params["k"]):
        raise Unsupported("top_k of a number that changes")
    axis = eqn.params.get("axis", -1) % len(p.dims)
    return compat.bind(eqn, [filled(sizes, p, lowest(p.x.dtype), [axis])])


@mask_rule("dot_general")
def dot_general(sizes, eqn, a, b):
    (left, right), _ = eqn.params["dimension_numbers"]
    return compat.bind(eqn, [filled(sizes, a, 0, left), filled(sizes, b, 0, right)])
