"""Gather and scatter for ONNX: any of them as rows of a matrix, which Gather and ScatterND know.

The axes of an array that indices do not cut become the columns, all others the rows; the number
of a row is computed from the indices. Indices outside are treated as JAX does.
"""

import itertools
import math
from dataclasses import dataclass

import numpy as np
from jax import lax
from jax import numpy as jnp

from malleable.execution.buckets.indexing import COMBINE
from malleable.integrations.onnx.lowering import IN_LOOP, UNABLE, rule
from malleable.integrations.onnx.missing import poison
from malleable.integrations.onnx.numbers import known
from malleable.rewriting.axis.picks import fill_of

ROWS = lax.GatherDimensionNumbers
INSIDE = lax.GatherScatterMode.PROMISE_IN_BOUNDS


@dataclass(frozen=True)
class Cut:
    """How windows are cut out of an array, at indices: rows and columns are axes of the array."""

    shape: tuple
    sizes: tuple  # of a window, per axis
    rows: tuple  # axes that are indexed, or cut
    columns: tuple  # axes that are whole in each window
    partial: tuple  # those of `rows` that a window has more than one element of, or keeps
    axes: tuple  # the axis that each number in an index is about
    paired: dict  # {axis of the array: axis of the indices that it goes along with}

    @property
    def strides(self):
        """How many rows of the matrix lie between neighbours, per axis in `rows`."""
        lengths = [self.shape[d] for d in self.rows]
        return {d: math.prod(lengths[i + 1 :]) for i, d in enumerate(self.rows)}

    @property
    def count(self):
        return math.prod(self.shape[d] for d in self.rows)

    def last(self):
        """The largest start per number of an index."""
        return np.asarray([self.shape[d] - self.sizes[d] for d in self.axes], np.int32)

    def matrix(self, x):
        return x.transpose(*self.rows, *self.columns).reshape(self.count, -1)

    def numbers(self, starts):
        """The row of each element: (axes of the indices, partial axes)."""
        lead, extra = starts.ndim - 1, len(self.partial)
        strides, total = self.strides, np.zeros((1,) * (lead + extra), np.int32)
        for i, d in enumerate(self.partial):
            steps = np.arange(self.sizes[d], dtype=np.int32) * np.int32(strides[d])
            total = total + steps.reshape([-1 if k == lead + i else 1 for k in range(lead + extra)])
        for d, axis in self.paired.items():
            steps = np.arange(self.shape[d], dtype=np.int32) * np.int32(strides[d])
            total = total + steps.reshape([-1 if k == axis else 1 for k in range(lead + extra)])
        for j, d in enumerate(self.axes):
            if d in strides:
                at = starts[..., j] * np.int32(strides[d])
                total = total + at.reshape(*at.shape, *(1,) * extra)
        shape = (*starts.shape[:-1], *(self.sizes[d] for d in self.partial))
        return jnp.broadcast_to(total, shape)


def cut_of(shape, sizes, gone, paired, axes) -> Cut:
    """gone: axes that a window does not keep; paired: {axis: axis of the indices}."""
    kept = [d for d in range(len(shape)) if d not in gone and d not in paired]
    columns = [d for d in kept if sizes[d] == shape[d]]
    rows = [d for d in range(len(shape)) if d not in columns]
    partial = [d for d in kept if d not in columns]
    return Cut(shape, sizes, tuple(rows), tuple(columns), tuple(partial), tuple(axes), paired)


def is_static(*avals) -> bool:
    return all(isinstance(d, int) and d > 0 for a in avals for d in a.shape)


@rule("gather", once=True)
def gather(eqn):
    """Rows of the matrix; where the index is outside, the filling or the last there is."""
    p, (x, indices), out = eqn.params, (v.aval for v in eqn.invars), eqn.outvars[0].aval
    numbers, mode = p["dimension_numbers"], str(p["mode"])
    pairs = zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True)
    gone, axes = numbers.collapsed_slice_dims, numbers.start_index_map
    if not is_static(x, indices, out):
        return None
    cut = cut_of(x.shape, p["slice_sizes"], gone, dict(pairs), axes)
    last, given = cut.last(), known(eqn.invars[1])
    safe = given is not None and np.all((np.asarray(given) >= 0) & (np.asarray(given) <= last))

    def fun(x, i):
        i = i.astype(np.int32)
        starts = i if safe else jnp.minimum(jnp.maximum(i, 0), last)
        at = cut.numbers(starts)
        rows = ROWS((at.ndim,), (0,), (0,))
        matrix = cut.matrix(x)
        found = lax.gather(matrix, at[..., None], rows, (1, matrix.shape[1]), mode=INSIDE)
        found = found.reshape(*at.shape, *(cut.shape[d] for d in cut.columns))
        if "FILL" in mode and not safe:
            inside = jnp.all((i >= 0) & (i <= last), -1)
            filling = p["fill_value"] if p["fill_value"] is not None else fill_of(out.dtype)
            inside = inside.reshape(*inside.shape, *(1,) * (found.ndim - inside.ndim))
            found = jnp.where(inside, found, np.asarray(filling).astype(out.dtype))
        return found.transpose(order(cut, i.ndim - 1, numbers.offset_dims, len(out.shape)))

    return fun


def order(cut: Cut, lead: int, windows, rank: int) -> list[int]:
    """For each axis of windows at indices, where it is among (indices, partial, columns)."""
    kept = sorted((*cut.partial, *cut.columns))
    place = {d: lead + i for i, d in enumerate((*cut.partial, *cut.columns))}
    window, index = iter(kept), itertools.count()
    return [place[next(window)] if axis in windows else next(index) for axis in range(rank)]


AT_ONCE = {
    "scatter": lax.scatter,
    "scatter-add": lax.scatter_add,
    "scatter-sub": lambda x, i, u, *rest, **how: lax.scatter_add(x, i, -u, *rest, **how),
    "scatter-mul": lax.scatter_mul,
    "scatter-min": lax.scatter_min,
    "scatter-max": lax.scatter_max,
}


@rule(*COMBINE, once=True)
def scatter(eqn):
    """Into rows of the matrix; what is outside goes to a row too many."""

    def put(matrix, at, rows):
        numbers = lax.ScatterDimensionNumbers((1,), (0,), (0,))
        name, how = eqn.primitive.name, (at[:, None], rows, numbers)
        out = AT_ONCE[name](matrix, *how, mode=INSIDE)
        if name in ("scatter-max", "scatter-min") and jnp.issubdtype(rows.dtype, jnp.floating):
            how = (at[:, None], poison(rows), numbers)  # for ScatterND passes over NaN
            out = out + lax.scatter_add(jnp.zeros_like(matrix), *how, mode=INSIDE)
        return out

    return into_rows(eqn, put)


@rule(*COMBINE, table=IN_LOOP)
def scatter_in_loop(eqn):
    """Row by row: of a loop with a scatter in it jax2onnx gets the sizes wrong."""
    combine = COMBINE[eqn.primitive.name]

    def step(matrix, one):
        at, row = one
        start = at, jnp.zeros_like(at)
        old = lax.dynamic_slice(matrix, start, row.shape, allow_negative_indices=False)
        new = combine(old, row)
        return lax.dynamic_update_slice(matrix, new, start, allow_negative_indices=False), None

    def put(matrix, at, rows):
        if len(at) == 1:
            return step(matrix, (at[0], rows))[0]
        return lax.scan(step, matrix, (at, rows[:, None]))[0]

    return into_rows(eqn, put)


def into_rows(eqn, put):
    """put(matrix, numbers of rows, rows) -> matrix, for what an equation scatters; or None."""
    p, (x, indices, updates) = eqn.params, (v.aval for v in eqn.invars)
    numbers, mode = p["dimension_numbers"], str(p["mode"])
    applies = eqn.primitive.name == "scatter" and p["update_jaxpr"] is not None
    if applies or not is_static(x, indices, updates):
        return None
    pairs = zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True)
    paired, gone = dict(pairs), numbers.inserted_window_dims
    windows = iter(updates.shape[axis] for axis in numbers.update_window_dims)
    sizes = [1 if d in gone or d in paired else next(windows) for d in range(len(x.shape))]
    cut = cut_of(x.shape, tuple(sizes), gone, paired, numbers.scatter_dims_to_operand_dims)

    def fun(x, i, u):
        i, last = i.astype(np.int32), cut.last()
        at = cut.numbers(jnp.minimum(jnp.maximum(i, 0), last))
        if "CLIP" not in mode:
            inside = jnp.all((i >= 0) & (i <= last), -1)
            inside = inside.reshape(*inside.shape, *(1,) * (at.ndim - inside.ndim))
            at = jnp.where(inside, at, np.int32(cut.count))
        where = order(cut, i.ndim - 1, numbers.update_window_dims, u.ndim)
        u = u.transpose(np.argsort(where)).reshape(at.size, -1)
        matrix = cut.matrix(x)
        matrix = jnp.concatenate([matrix, jnp.zeros((1, matrix.shape[1]), x.dtype)])
        out = put(matrix, at.reshape(-1), u)[: cut.count]
        axes = (*cut.rows, *cut.columns)
        return out.reshape([cut.shape[d] for d in axes]).transpose(np.argsort(axes))

    return fun


def applied(eqn):
    """Why a scatter that applies a function cannot be, or ""."""
    if eqn.params["update_jaxpr"] is None:
        return ""
    return "x.at[i].apply(f) has no counterpart; write x.at[i].set(f(x[i]))"


UNABLE["scatter"] = applied
