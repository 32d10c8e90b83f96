"""`box[index]` and `box[index] = new`, with masks and indices that may be traced."""

import operator

import numpy as np
from jax import numpy as jnp
from jax.tree_util import tree_map

from malleable.arrays import functions, journal, numbers, places
from malleable.arrays.content import Box, held, unbox, wrap
from malleable.arrays.masked import Columns, Masked, aligned, guarded, positions, unknown_size
from malleable.arrays.places import is_jax


def get_item(self, index):
    """box[index]: a view, a copy, a scalar or, for a traced mask, what waits for its size."""
    value, given = self.value, index
    index = without_boxes(index)
    if type(value) is np.ndarray and not is_unknown(index):
        part = value[index]
        if type(part) is not np.ndarray:
            return part
        return _part_at(self, index) if places.is_basic(index) else held(part)
    if has_masked(index):
        return _masked_gather(value, index)
    part = _split_mask(self, index)
    if part is not None:
        sub, mask, axis, key = part
        if axis and (np.ndim(sub.value) != 2 or mask.ndim != 1):
            raise unknown_size("x[:, mask]")
        whole = sub.T if axis else sub
        if key is None:  # a mask makes a copy, a slice a view
            whole = guarded(places.to_jax(whole.value), mask)
        selected = Masked(whole, mask, Box, key)
        selected.held.immutable = self.immutable
        return Columns(selected) if axis else selected
    if places.is_basic(index):
        ndim = np.ndim(value)
        if places.is_element(index, ndim) or (type(index) is tuple and not index and not ndim):
            return wrap(places.read(value, index))
        places.selected_shape(np.shape(value), places.modelled(index))
        return _part_at(self, index)
    try:
        new = Box(places.read(value, index), False)
    except functions.REFUSALS as e:
        functions.refuse(e, operator.getitem, value, index)
    if new.ndim < 2 or not new.size:
        return new
    return new.lying_as(self._model()[places.modelled(without_boxes(tree_map(_zeros, given)))])


def _zeros(x):
    """For an array of an index that is traced, one that lies in memory like it."""
    return np.zeros_like(x._model(np.intp)) if isinstance(x, Box) and x.traced else x


def _part_at(box, index):
    part = box._view(places.Item(index))
    return part.copy() if type(box._index) is places.Flat else part


def set_item(self, index, new):
    """box[index] = new, cast and broadcast as NumPy does."""
    if self.scalar:
        name = self.__class__.__name__
        raise TypeError(f"{name!r} object does not support item assignment")
    index = without_boxes(index)
    if isinstance(new, Box):
        if new._base is self and getattr(new._index, "index", None) is index:
            return  # x[i] += 1: written already
        new = new.value
    elif isinstance(new, list | tuple):
        new = functions.nested_array(unbox(new))
    whole = self.value
    numbers.refuse_large(whole, new)
    masked = type(new) is Masked
    if not masked and not is_jax(new) and type(whole) is np.ndarray and not is_unknown(index):
        if not journal.is_undone() and self._in_memory(whole):
            whole[index] = new
            journal.tell(self.root)
        else:
            whole = whole.copy()
            whole[index] = new
            self.write(whole)
        return
    whole = places.to_jax(whole)
    if has_masked(index):
        self.write(_masked_scatter(whole, index, new))
        return
    part = _split_mask(self, index)
    if part is not None:
        _write_where(*part, new)
    elif masked:
        raise unknown_size("x[mask], written where there is no mask,")
    else:
        self.write(places.written(whole, index, new))


def without_boxes(index):
    """The index without boxes."""
    kind = type(index)
    return index if kind is int or kind is str else unbox(index)


def is_unknown(index) -> bool:
    return has_masked(index) or places.has_tracer(index)


def has_masked(index) -> bool:
    return type(index) is Masked or (type(index) is tuple and any(type(p) is Masked for p in index))


def _split_mask(box, index):
    """For an index with a traced mask, or a slice with a traced bound, which is one too:

    (the part of the box, the mask of its axes, the first of them, what the mask was made of).
    """
    parts = index if type(index) is tuple else (index,)
    found = [i for i, p in enumerate(parts) if places.is_mask(p) or _is_open(p)]
    if not found:
        return None
    if len(found) > 1 or not all(places.is_basic(p) for p in parts if not places.is_mask(p)):
        raise unknown_size("x[start:stop, start:stop] or x[mask, other]")
    (at,) = found
    mask, before = parts[at], parts[:at]
    width = 1 if isinstance(mask, slice) else mask.ndim
    rest = sum(p is not None and p is not ... for p in parts) - 1 + width
    if any(p is ... for p in before):
        fill = (slice(None),) * (box.ndim - rest)
        before = tuple(q for p in before for q in (fill if p is ... else (p,)))
    axis = sum(not places.is_int(p) for p in before)
    behind = parts[at + 1 :] if any(p is ... for p in parts[at + 1 :]) else (*parts[at + 1 :], ...)
    sub = box if len(parts) == 1 else box[(*before, *[slice(None)] * width, *behind)]  # a view
    key = None
    if isinstance(mask, slice):
        key = (sub.shape[axis], mask.start, mask.stop, mask.step)
        mask = positions(mask, np.arange(sub.shape[axis]), sub.shape[axis])
    if sub.shape[axis : axis + mask.ndim] != mask.shape:
        raise IndexError(
            f"boolean index did not match indexed array: shape {mask.shape} "
            f"does not fit {box.shape}"
        )
    return sub, mask, axis, key


def _is_open(part) -> bool:
    return isinstance(part, slice) and places.has_tracer(part)


def _write_where(sub, mask, axis, key, new) -> None:
    """sub[mask] = new, where the mask stands for the axes from `axis` on."""
    whole = places.to_jax(sub.value)
    if type(new) is Masked:
        if axis:
            raise unknown_size("x[:, mask]")
        sub.write(new.place_in(whole, mask, key))
        return
    if type(new) is Columns:
        if (axis, whole.ndim) != (1, 2):
            raise unknown_size("x[:, mask], written to this part,")
        sub.write(new.rows.place_in(whole.T, mask, key).T)
        return
    new = places.cast(places.to_jax(new), whole.dtype)
    rest = whole.ndim - axis - mask.ndim
    if axis and new.ndim > rest:
        raise unknown_size("x[mask] = y: x[mask]")
    new = _one_for_each(mask, new, rest)
    sub.write(jnp.where(mask.reshape(mask.shape + (1,) * rest), new, whole))


def _one_for_each(mask, new, rest: int):
    """What is written where the mask is true: new (*rest), or of new (k, *rest) the next one."""
    if new.ndim > rest + 1:
        raise unknown_size("x[mask] = y: x[mask]")
    if new.ndim <= rest or len(new) == 1:
        return new if new.ndim <= rest else new[0]
    return aligned(new, jnp.ones(len(new), bool), mask)


def _mask_of(index):
    """The index with whole arrays in place of masked ones, and their mask."""
    parts = index if type(index) is tuple else (index,)
    if type(parts[0]) is not Masked:
        raise unknown_size("an index x[:, np.nonzero(m)]")
    first = parts[0]
    if first.dtype == bool:
        raise unknown_size("x[mask], used as an index of another array,")
    return tuple(first._operand(p) if type(p) is Masked else p for p in parts), first.mask


def _masked_gather(value, index):
    parts, mask = _mask_of(index)
    return Masked(guarded(places.read(places.to_jax(value), parts), mask), mask, Box)


def _masked_scatter(whole, index, new):
    parts, mask = _mask_of(index)
    out = np.iinfo(np.int32).max
    parts = (jnp.where(mask, parts[0], out), *parts[1:])
    if type(new) is Masked:
        new = Masked._operand(Masked(parts[0], mask, Box), new)
    else:
        new = _one_for_each(mask, jnp.asarray(new), whole.ndim - len(parts))
    new = places.cast(jnp.asarray(new), whole.dtype)
    return whole.at[parts].set(new, mode="drop")
