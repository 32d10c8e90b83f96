"""What an index selects: a view, a copy, or something whose size is known only at run time."""

import jax
import numpy as np
from jax import numpy as jnp

from malleable import compat
from malleable.errors import TransformError


def plain_index(index, shape, lower):
    """An index without watched values; raises IndexError where NumPy does."""
    parts = tuple(_lowered(p, lower) for p in (index if isinstance(index, tuple) else (index,)))
    if len(parts) > 1 and any(map(is_traced_mask, parts)):
        raise unknown_size("x[i, mask]", "select in two steps: x[i][mask] = y")
    if not any(isinstance(p, compat.Tracer) for p in jax.tree.leaves(parts)):
        selected_shape(shape, parts)
    return parts if isinstance(index, tuple) else next(iter(parts))


def _lowered(part, lower):
    if isinstance(part, slice):
        return slice(*map(lower, (part.start, part.stop, part.step)))
    return np.asarray(part) if isinstance(part, list) else lower(part)


def selected_shape(shape, parts) -> tuple:
    """The shape of what an index of known values selects."""
    return np.broadcast_to(np.int8(0), shape)[parts].shape


def is_view(index, ndim) -> bool:
    """Whether indexing gives a view: integers, slices, None and Ellipsis, but not one element."""
    parts = index if isinstance(index, tuple) else (index,)
    basic = all(p is None or p is ... or isinstance(p, slice) or _is_int(p) for p in parts)
    return basic and not (len(parts) == ndim and all(map(_is_int, parts)))


def _is_int(p) -> bool:
    if isinstance(p, bool) or not compat.is_array(p) or jnp.ndim(p):
        return False
    return jnp.issubdtype(jnp.result_type(p), jnp.integer)


def write(old, index, new):
    """The array after `old[index] = new`, as NumPy casts and broadcasts."""
    old = jnp.asarray(old)
    if isinstance(new, Selection) or is_traced_mask(index):
        return write_masked(old, index, new)
    new = jnp.asarray(new)
    if jnp.iscomplexobj(new) and not jnp.iscomplexobj(old):
        raise TypeError(f"cannot write {new.dtype} into an array of {old.dtype}")
    parts = index if isinstance(index, tuple) else (index,)
    if not any(isinstance(p, compat.Tracer) for p in jax.tree.leaves(parts)):
        room = selected_shape(old.shape, parts)
        while new.ndim > len(room) and new.shape[0] == 1:  # NumPy drops leading axes of size one
            new = new[0]
        np.broadcast_to(np.broadcast_to(np.int8(0), new.shape), room)  # raises ValueError
    new = new.astype(old.dtype)
    return jnp.broadcast_to(new, old.shape) if index is ... else old.at[index].set(new)


class Selection(np.lib.mixins.NDArrayOperatorsMixin):
    """What `x[mask]` selects, kept as a whole array: good for arithmetic and for x[mask] = ...

    Anything that needs its size raises TransformError.
    """

    def __init__(self, trace, whole, mask):
        self._trace, self._whole, self._mask = trace, whole, mask

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        if method != "__call__":
            raise unknown_size(f"{ufunc.__name__}.{method} of x[mask]")

        def whole(x):
            if isinstance(x, Selection):
                if x._mask is not self._mask:
                    raise unknown_size("x[mask] and y[other_mask] in one expression")
                return x._whole
            x = self._trace.lower(x)
            if jnp.ndim(x) > self._whole.ndim - self._mask.ndim:
                raise unknown_size("x[mask] with an array of one element per selected one")
            return x

        with self._trace.outside():
            out = getattr(jnp, ufunc.__name__)(*map(whole, inputs))
            for target in kwargs.get("out") or ():  # s += y keeps the dtype of s, as NumPy does
                if not np.can_cast(out.dtype, target._whole.dtype, "same_kind"):
                    raise TypeError(f"cannot write {out.dtype} into {target._whole.dtype} in place")
                target._whole = out.astype(target._whole.dtype)
                return target
        return Selection(self._trace, out, self._mask)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        raise unknown_size(f"x[mask].{name}")

    def __jax_array__(self):
        raise unknown_size("x[mask] where an array is needed")


def is_traced_mask(index) -> bool:
    """Whether an index is a mask whose values are not known; `x[x > 0]` of a scalar is one, too."""
    return isinstance(index, compat.Tracer) and index.dtype == bool


def write_masked(old, mask, new):
    """x[mask] = new, for a new value that all selected elements share, or a `Selection`."""
    if isinstance(new, Selection):
        if new._mask is not mask:
            raise unknown_size("x[mask] = y[other_mask]")
        new = new._whole
    elif jnp.ndim(new) > old.ndim - mask.ndim:
        raise unknown_size("x[mask] = y with one element of y per selected one")
    where = mask.reshape(mask.shape + (1,) * (old.ndim - mask.ndim))
    new = jnp.broadcast_to(jax.lax.convert_element_type(new, old.dtype), old.shape)
    return jnp.where(where, new, old)


INSTEAD = "work on all elements: jnp.where(mask, new, x), jnp.sum(x, where=mask)"


def unknown_size(what: str, hint: str = INSTEAD) -> TransformError:
    what = f"{what}, and a mask known only at run time: its size is unknown"
    return TransformError(what, where=compat.where(), hint=hint)
