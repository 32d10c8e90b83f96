"""Mask rules of indexing: gather, scatter and dynamic slices.

An index is compared with the true size, never with the room: where JAX clips it is clipped
there, and where JAX drops or fills it becomes -1, which no array has.
"""

from jax import lax
from jax import numpy as jnp

from malleable.execution.buckets.values import Padded, filled, fit_dim, mask_rule
from malleable.execution.common.breaks import Unsupported
from malleable.execution.common.sizes import is_symbolic, same_size

Mode = lax.GatherScatterMode


@mask_rule("gather")
def gather(sizes, eqn, p, indices):
    params = eqn.params
    numbers, window = params["dimension_numbers"], params["slice_sizes"]
    batching = numbers.operand_batching_dims
    x = p.x
    for axis, (dim, size) in enumerate(zip(p.dims, window, strict=True)):
        if axis in batching:
            if is_symbolic(size):
                raise Unsupported("gather of batches of a size that changes")
        elif is_symbolic(size) and not same_size(dim, size):
            x = fit_dim(x, axis, x.shape[axis] + sizes.room(size))  # no start is moved by the room
    index = _true_indices(sizes, indices, p.dims, window, numbers.start_index_map, params["mode"])
    return lax.gather(
        x, index, numbers, sizes.shape(window), mode=params["mode"], fill_value=params["fill_value"]
    )


def _true_indices(sizes, indices, dims, window, components, mode):
    """Indices clipped to, or -1 outside of, the true sizes."""
    if is_symbolic(indices.dims[-1]):
        raise Unsupported("an index vector of a length that changes")
    index = _signed(indices.x)
    if not components:
        return index
    ends = [sizes.true(dims[a]) - sizes.true(window[a]) for a in components]
    end = jnp.stack([jnp.asarray(e, index.dtype) for e in ends])
    if mode == Mode.FILL_OR_DROP:
        good = ((index >= 0) & (index <= end)).all(-1, keepdims=True)
        return jnp.where(good, index, -1)
    return jnp.clip(index, 0, end)


def _signed(index):
    """Indices of a signed type that holds every size."""
    if jnp.issubdtype(index.dtype, jnp.unsignedinteger) and index.dtype.itemsize >= 4:
        index = jnp.minimum(index, 2**31 - 1)
    wide = index.dtype.itemsize == 8 and jnp.issubdtype(index.dtype, jnp.signedinteger)
    return index if wide else index.astype(jnp.int32)


COMBINE = {
    "scatter": lambda old, new: new,
    "scatter-add": lax.add,
    "scatter-sub": lax.sub,
    "scatter-mul": lax.mul,
    "scatter-min": lax.min,
    "scatter-max": lax.max,
}


@mask_rule(*COMBINE, *(name.replace("-", "_") for name in COMBINE))
def scatter(sizes, eqn, p, indices, updates):
    params, mode = eqn.params, eqn.params["mode"]
    numbers = params["dimension_numbers"]
    window = _scatter_window(p.dims, updates.dims, numbers)
    pairs = zip(p.dims, window, strict=True)
    if any(is_symbolic(size) and not same_size(dim, size) for dim, size in pairs):
        return _scatter_one(sizes, eqn, p, indices, updates, window)
    components = numbers.scatter_dims_to_operand_dims
    drop = Mode.CLIP if mode == Mode.CLIP else Mode.FILL_OR_DROP
    index = _true_indices(sizes, indices, p.dims, window, components, drop)
    rows = [a for a in indices.axes if a < len(indices.dims) - 1]
    if rows:
        if not components:
            raise Unsupported(f"{eqn.primitive.name} without indices")
        index = filled(sizes, Padded(index, indices.dims), -1, rows)
    changed = {"mode": Mode.FILL_OR_DROP, "indices_are_sorted": False, "unique_indices": False}
    return eqn.primitive.bind(p.x, index, updates.x, **(params | changed))


def _scatter_one(sizes, eqn, p, indices, updates, window):
    """One window of a size that changes."""
    name, numbers = eqn.primitive.name, eqn.params["dimension_numbers"]
    if len(indices.dims) != 1 or numbers.operand_batching_dims:
        raise Unsupported(f"{name} of many windows of a size that changes")
    components = numbers.scatter_dims_to_operand_dims
    drop = Mode.CLIP if eqn.params["mode"] == Mode.CLIP else Mode.FILL_OR_DROP
    index = _true_indices(sizes, indices, p.dims, window, components, drop)
    begin = [jnp.zeros((), index.dtype)] * len(p.dims)
    for k, axis in enumerate(components):
        begin[axis] = index[k]
    new = lax.expand_dims(updates.x, numbers.inserted_window_dims)
    placed, mask = _placed(sizes, p, Padded(new, tuple(window)), begin)
    mask = mask & (index >= 0).all()  # -1: dropped
    return jnp.where(mask, COMBINE[name.replace("_", "-")](p.x, placed), p.x)


def _scatter_window(dims, updates, numbers):
    """The size of what one index writes, along every axis of the operand."""
    sizes = [updates[a] for a in numbers.update_window_dims]
    single = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    return [1 if a in single else sizes.pop(0) for a in range(len(dims))]


@mask_rule("dynamic_slice")
def dynamic_slice(sizes, eqn, p, *starts):
    x, window = p.x, eqn.params["slice_sizes"]
    if len(starts) != len(window):
        raise Unsupported("dynamic_slice of a computed size")
    for axis, (dim, size) in enumerate(zip(p.dims, window, strict=True)):
        if is_symbolic(size) and not same_size(dim, size):
            x = fit_dim(x, axis, x.shape[axis] + sizes.room(size))
    begin = _true_starts(sizes, starts, p.dims, window)
    return lax.dynamic_slice(x, begin, sizes.shape(window))


def _true_starts(sizes, starts, dims, window) -> list:
    """Where a slice begins once it is moved into the true size, as JAX does."""
    ends = [sizes.true(d) - sizes.true(s) for d, s in zip(dims, window, strict=True)]
    return [jnp.clip(_signed(p.x), 0, end) for p, end in zip(starts, ends, strict=True)]


@mask_rule("dynamic_update_slice")
def dynamic_update_slice(sizes, eqn, p, update, *starts):
    begin = _true_starts(sizes, starts, p.dims, update.dims)
    pairs = list(zip(p.dims, update.dims, strict=True))
    if all(not is_symbolic(size) or same_size(dim, size) for dim, size in pairs):
        return lax.dynamic_update_slice(p.x, update.x, begin)
    new, mask = _placed(sizes, p, update, begin)
    return jnp.where(mask, new, p.x)


def _placed(sizes, p, update, begin):
    """For every position of the array, its value in an update that begins there; is it in it?"""
    new, mask = update.x, jnp.ones((), bool)
    for axis, start in enumerate(begin):
        place = jnp.arange(p.x.shape[axis], dtype=jnp.int32) - start.astype(jnp.int32)
        new = jnp.take(new, place, axis=axis, mode="clip")
        wide = [-1 if a == axis else 1 for a in range(p.x.ndim)]
        here = (place >= 0) & (place < sizes.true(update.dims[axis]))
        mask = mask & here.reshape(wide)
    return new, mask
