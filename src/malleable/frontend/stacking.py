"""Rows put together for a compiled loop, in a form whose gradient compiles fast."""

from collections.abc import Sequence

import jax
from jax import lax
from jax import numpy as jnp

from malleable import compat


def stack(rows: Sequence) -> jax.Array:
    """jnp.stack(rows), n rows of shape s as one array (n, *s).

    Its gradient takes the rows out again at indices that XLA cannot see: it compiles a slice at
    each known index as a kernel of its own, 14 ms each, but one for all those at unknown ones.
    """
    return stack_rows.bind(*map(jnp.asarray, rows))


def _stack(*rows):
    return jnp.stack(rows)


def _unstack(cotangent, *rows):
    order, out = lax.optimization_barrier(jnp.arange(len(rows))), []
    for _ in rows:
        i, order = lax.optimization_barrier((order[0], jnp.roll(order, -1)))
        out.append(lax.dynamic_index_in_dim(cotangent, i, keepdims=False))
    return out


def _lanes(rows, dims):
    size = next(x.shape[d] for x, d in zip(rows, dims, strict=True) if d is not compat.NOT_MAPPED)
    wide = [
        jnp.broadcast_to(x, (size, *x.shape)) if d is compat.NOT_MAPPED else jnp.moveaxis(x, d, 0)
        for x, d in zip(rows, dims, strict=True)
    ]
    return stack_rows.bind(*wide), 1


stack_rows = compat.Primitive("stack_rows")
compat.define_linear(stack_rows, _stack, _unstack, _lanes)
