"""What was accumulated about a provisional result, put right when that result moves."""

import functools
import math
import operator

import jax
from jax import lax
from jax import numpy as jnp

from malleable.rewriting.region import Ended, Mark


def spread(x, mark: Mark, shape):
    """A result with the dims of `mark.by`, as large as what was accumulated."""
    pairs = sorted((ax.dim, d) for d, ax in mark.dims)
    kept = [d for _, d in pairs]
    x = lax.transpose(x, (*kept, *(d for d in range(x.ndim) if d not in kept)))
    x = lax.reshape(x, x.shape[: len(kept)])
    return lax.broadcast_in_dim(x, shape, [dim for dim, _ in pairs])


def rescaled(acc: tuple, mark: Mark, old, now) -> tuple:
    """Sums of what is proportional to exp(-by), when `by` goes from old to now.

    Where both are infinite nothing has been added yet.
    """
    moved = jnp.where(old == now, jnp.zeros_like(old), old - now)
    factor = jnp.exp(moved)
    factor = jnp.where(jnp.isfinite(factor), factor, jnp.ones_like(factor))
    return tuple(a * spread(factor, mark, a.shape).astype(a.dtype) for a in acc)


def moments(action: Ended, mark: Mark, acc: tuple, d, start, rows_before, old, now) -> tuple:
    """Sums of the powers of d = x - by over one block more, when `by` goes from old to now.

    acc: the sums of d, d**2, ...; rows_before: how many rows are in them. By the binomial theorem.
    Source: Pébay, "Formulas for robust, one-pass parallel computation of covariances and
    arbitrary-order statistical moments", Sandia report SAND2008-6212, 2008.
    """
    sums = [action.sink.final(action.spec, a)[0] for a in acc]
    shape = sums[0].shape
    count = rows_before * (math.prod(d.shape[1:]) // max(1, math.prod(shape)))
    delta = spread(jnp.where(count > 0, old - now, jnp.zeros_like(now)), mark, shape)
    sums = [jnp.asarray(count, sums[0].dtype) + jnp.zeros_like(sums[0]), *sums]
    out = []
    for p in range(1, len(acc) + 1):
        terms = [math.comb(p, j) * sums[j] * delta ** (p - j) for j in range(p + 1)]
        moved = functools.reduce(operator.add, terms)
        nothing = jax.tree.map(jnp.zeros_like, acc[p - 1])
        part = action.sink.step(action.spec, nothing, start, d**p)
        whole = (moved.astype(part[0].dtype), *(jnp.zeros_like(x) for x in part[1:]))
        out.append(action.sink.merge(action.spec, whole, part))
    return tuple(out)
