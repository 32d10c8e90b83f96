"""A gather of single elements of the axis, block by block: `hs[lengths - 1, arange(batch)]`."""

import math
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from malleable import compat
from malleable.rewriting.graph.slices import Ax, shapes

FILL = lax.GatherScatterMode.FILL_OR_DROP
PROMISED = lax.GatherScatterMode.PROMISE_IN_BOUNDS
MODES = (FILL, lax.GatherScatterMode.CLIP, PROMISED)


def is_pick(eqn: compat.Eqn, ax: Ax) -> bool:
    """Whether an index says which element of the axis is wanted, and few of them are."""
    p, (table, *_), (out,) = eqn.params, shapes(eqn.invars), shapes(eqn.outvars)
    one = ax.width == 1 and p["slice_sizes"][ax.dim] == 1
    few = 4 * math.prod(out) <= math.prod(table)
    return one and few and ax.dim in p["dimension_numbers"].start_index_map and p["mode"] in MODES


def nothing(eqn: compat.Eqn) -> jax.Array:
    """What the result is where no element has been met: what the gather gives out of bounds."""
    aval: Any = eqn.outvars[0].aval
    value = eqn.params["fill_value"]
    if eqn.params["mode"] != FILL:
        value = 0
    elif value is None:
        value = fill_of(aval.dtype)
    return jnp.full(aval.shape, value, aval.dtype)


def fill_of(dtype):
    """What JAX's gather gives out of bounds, unless it is told what."""
    if jnp.issubdtype(dtype, jnp.inexact):
        return np.nan
    if jnp.issubdtype(dtype, jnp.bool_):
        return True
    ends = jnp.iinfo(dtype)
    return ends.min if jnp.issubdtype(dtype, jnp.signedinteger) else ends.max


def wide(indices: jax.Array) -> jax.Array:
    """Indices in a type that any length fits."""
    return indices if indices.dtype.itemsize >= 4 else indices.astype(jnp.int32)


def pick(eqn: compat.Eqn, ax: Ax, n: int, block, indices, old, t):
    """`old`, with the elements that are in this block. block: (k, *slice), from t on, of n."""
    p, d, last = eqn.params, eqn.params["dimension_numbers"], indices.ndim - 1
    part, k = list(d.start_index_map).index(ax.dim), block.shape[0]
    indices = wide(indices)
    asked = at = lax.index_in_dim(indices, part, last)
    if p["mode"] != FILL:
        at = jnp.clip(at, 0, n - 1)
    here = at - jnp.asarray(t, at.dtype)
    inside = (here >= 0) & (here < k)
    cuts = (
        lax.slice_in_dim(indices, 0, part, axis=last),
        lax.slice_in_dim(indices, part + 1, indices.shape[last], axis=last),
    )
    local = jnp.clip(here, 0, k - 1)
    if p["mode"] == PROMISED:  # what is out of bounds stays so: XLA clamps it where it reads, and
        outside = jnp.where(asked < 0, -1, k).astype(local.dtype)  # drops it in the transpose
        local = jnp.where(at == asked, local, outside)
    indices = lax.concatenate([cuts[0], local, cuts[1]], last)
    numbers, sizes, gone = _gather_numbers(p, d, ax)
    found = lax.gather(block, indices, numbers, sizes, mode=p["mode"], fill_value=p["fill_value"])
    if gone is not None:
        found = lax.expand_dims(found, (gone,))
    batch = [i for i in range(found.ndim) if i not in set(map(int, d.offset_dims))]
    inside = lax.broadcast_in_dim(inside[..., 0], found.shape, batch)
    return jnp.where(inside, found, old)


def _gather_numbers(p, d, ax):
    """(dimension numbers, slice sizes, lost dim) of a gather from a block, the axis its first dim.

    lost dim: where the result of the equation has a dim for the axis, which that of a block lacks.
    """
    move = lambda dims: [0 if i == ax.dim else int(i) + (i < ax.dim) for i in dims]  # noqa: E731
    offsets, gone = [int(i) for i in d.offset_dims], None
    collapsed = {int(i) for i in d.collapsed_slice_dims}
    if ax.dim not in collapsed:
        windows = [
            i
            for i in range(len(p["slice_sizes"]))
            if i not in collapsed and i not in set(map(int, d.operand_batching_dims))
        ]
        gone = offsets.pop(windows.index(ax.dim))
        offsets = [i - (i > gone) for i in offsets]
    numbers = d._replace(
        offset_dims=tuple(offsets),
        collapsed_slice_dims=tuple(sorted(move(collapsed | {ax.dim}))),
        start_index_map=tuple(move(d.start_index_map)),
        operand_batching_dims=tuple(move(d.operand_batching_dims)),
    )
    rest = [s for i, s in enumerate(p["slice_sizes"]) if i != ax.dim]
    return numbers, (1, *rest), gone
