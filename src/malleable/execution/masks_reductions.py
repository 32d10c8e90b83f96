"""Mask rules of what goes element by element, of reductions, scans along an axis, sort and dot."""

import math

import numpy as np
from jax import lax
from jax import numpy as jnp

from malleable import compat
from malleable.execution.breaks import Unsupported
from malleable.execution.masks_values import (
    Padded,
    filled,
    highest,
    lowest,
    mask_rule,
)
from malleable.execution.sizes import is_symbolic

_ELEMENTWISE = """
abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt ceil clamp
clz complex conj copy copy_p cos cosh device_put digamma div eq eq_to erf erf_inv erfc exp exp2
expm1 floor ge gt igamma igamma_grad_a igammac imag integer_pow is_finite le le_to lgamma log
log1p log2 logistic lt lt_to max min mul mulhi name ne neg nextafter not one_minus_square
optimization_barrier or polygamma population_count pow real reduce_precision
regularized_incomplete_beta rem round rsqrt select_n shift_left shift_right_arithmetic
shift_right_logical sign sin sinh sqrt square stop_gradient sub tan tanh threefry2x32 xor zeta"""


@mask_rule(*_ELEMENTWISE.split())
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


@mask_rule(*(f"reduce_{name}" for name in ("sum", "prod", "max", "min", "and", "or", "xor")))
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
        filled(sizes, p, _last(p.x.dtype), [axis]) if i < keys else p.x for i, p in enumerate(ins)
    ]
    return list(lax.sort(xs, dimension=axis, num_keys=keys, is_stable=True))


def _last(dtype):
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
