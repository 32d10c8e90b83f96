"""Parameters of primitives that say nothing in most programs, or not in every version of JAX."""

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax

from malleable import compat

_SILENT = {
    "accuracy": "cbrt cos erfc exp exp2 expm1 log log1p log2 logistic rsqrt sin sqrt tan tanh",
    "sharding": "broadcast_in_dim convert_element_type iota reshape",
    "out_sharding": "conv_general_dilated dot_general ragged_dot_general reduce_max reduce_min "
    "reduce_sum rng_bit_generator",
    "out_dtype": "mul",
    "precision": "conv_general_dilated dot_general",
    "preferred_element_type": "conv_general_dilated",
    "dimensions": "reshape",
    "strides": "slice",
    "fill_value": "gather",
    "axis_index_groups": "psum pmax pmin all_gather all_to_all",
}
SILENT = {(op, name) for name, ops in _SILENT.items() for op in ops.split()}  # left out if None

# what came in some version: a program that has it, and what it stands for where it is missing
_LATER: dict[tuple[str, str], tuple[Callable, Any]] = {
    ("top_k", "is_stable"): (lambda x: lax.top_k(x, 1), True),
    ("erfc", "accuracy"): (lax.erfc, None),
    ("reduce_max", "out_sharding"): (lambda x: jnp.max(x), None),
    ("reduce_min", "out_sharding"): (lambda x: jnp.min(x), None),
}

# primitives that came in some version, in the words of older ones; their derivatives follow
STAND_INS: dict[str, Callable] = {
    "log2": lambda x, **_: lax.log(x) / jnp.log(jnp.array(2, x.dtype)),
    "one_minus_square": lambda x, **_: 1 - x * x,
    "polynomial": lambda x, *coefficients, **_: functools.reduce(
        lambda total, c: total * x + c, reversed(coefficients), jnp.zeros_like(x)
    ),
}


@functools.cache
def has_parameter(operation: str, name: str) -> bool:
    """Whether the primitive has this parameter in this version of JAX."""
    if (operation, name) not in _LATER:
        return True
    make, _ = _LATER[operation, name]
    eqns = compat.trace(make, jnp.zeros(2)).eqns
    return any(eqn.primitive.name == operation and name in eqn.params for eqn in eqns)


def completed(operation: str, params: dict) -> dict:
    """The parameters to bind a primitive with here, from those in a file.

    >>> completed("exp", {})
    {'accuracy': None}
    """
    silent = {name: None for op, name in SILENT if op == operation}
    later = {name: value for (op, name), (_, value) in _LATER.items() if op == operation}
    full = {**silent, **later, **params}
    return {name: p for name, p in full.items() if has_parameter(operation, name)}
