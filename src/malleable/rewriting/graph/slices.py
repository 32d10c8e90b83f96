"""One axis of an array, streamed: where it is, what a slice looks like, how slices stack up."""

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
from jax import lax
from jax import numpy as jnp

from malleable import compat
from malleable.programs.types import bytes_of
from malleable.rewriting.machine import Machine


class Ax(NamedTuple):
    """The streamed axis, of length n, inside dimension `dim`, of extent outer * n * inner."""

    dim: int
    outer: int = 1
    inner: int = 1

    @property
    def width(self) -> int:
        """Extent of the dimension in a slice; of width 1, a slice lacks the dimension."""
        return self.outer * self.inner


class Flow(NamedTuple):
    """The axis goes through: run(t, *slices) -> slices of the results; None: an operand, whole."""

    ins: tuple[Ax | None, ...]
    outs: tuple[Ax | None, ...]
    run: Callable[..., list]


class Sunk(NamedTuple):
    """The axis ends here; how: what the sink of the primitive must know about its blocks."""

    ins: tuple[Ax | None, ...]
    how: Any


class Running(NamedTuple):
    """The results keep the axis, but an element of them depends on the earlier ones."""

    ins: tuple[Ax | None, ...]
    outs: tuple[Ax | None, ...]
    how: Any


def slice_shape(shape: Sequence[int], ax: Ax, n: int) -> tuple[int, ...]:
    """The shape of one slice: without the dimension, unless the axis shares it with others.

    >>> slice_shape((5, 12), Ax(1), 12), slice_shape((5, 12), Ax(1, inner=3), 4)
    ((5,), (5, 3))
    """
    assert shape[ax.dim] == ax.width * n, (shape, ax, n)
    return tuple(sized(shape, ax, ax.width))


def unstack(x, ax: Ax, n: int):
    """All slices, stacked: an array of shape (n, *slice_shape(x.shape, ax, n)).

    >>> import jax.numpy as jnp
    >>> unstack(jnp.zeros((5, 12)), Ax(1, outer=3), 4).shape
    (4, 5, 3)
    """
    shape, d = x.shape, ax.dim
    if ax.width > 1:
        x = lax.reshape(x, (*shape[:d], ax.outer, n, ax.inner, *shape[d + 1 :]))
        d += 1
    order = (d, *(i for i in range(x.ndim) if i != d))
    x = lax.transpose(x, order) if d else x
    return lax.reshape(x, (n, *slice_shape(shape, ax, n)))


def restack(stacked, ax: Ax, shape: Sequence[int]):
    """The array of this shape whose slices these are: undoes `unstack`.

    >>> import jax.numpy as jnp
    >>> x = jnp.arange(24.0).reshape(2, 12)
    >>> bool((restack(unstack(x, Ax(1, inner=3), 4), Ax(1, inner=3), x.shape) == x).all())
    True
    """
    n, d = stacked.shape[0], ax.dim
    if ax.width > 1:
        rest = sized(shape, ax, None)
        stacked = lax.reshape(stacked, (n, *rest[:d], ax.outer, ax.inner, *rest[d:]))
        d += 1
    order = (*range(1, d + 1), 0, *range(d + 1, stacked.ndim))
    return lax.reshape(lax.transpose(stacked, order) if d else stacked, tuple(shape))


def take(x, ax: Ax | None, n: int, t):
    """Slice t of a whole array; the array itself where it does not carry the axis."""
    if ax is None:
        return x
    if ax.outer == 1:
        part = lax.dynamic_slice_in_dim(x, t * ax.inner, ax.inner, ax.dim)
        return part if ax.inner > 1 else lax.squeeze(part, (ax.dim,))
    return lax.dynamic_index_in_dim(unstack(x, ax, n), t, keepdims=False)


def in_memory(x, t):
    """x, worked out once for all its uses. t: the position in the stream, not negative.

    XLA works out in each fusion anew what it fuses, and may round it in another way there, so that
    no element is equal to the largest one. It does not look through a loop, were it one of no
    turns.
    """
    return lax.while_loop(lambda at: at[0] < 0, lambda at: (at[0] + 1, -at[1]), (t, x))[1]


def is_best(reduce, dims, t, x):
    """Where x is equal to the largest (smallest) of its elements over `dims`: nowhere, if a NaN is.

    t: as for `in_memory`.
    """
    if math.prod(x.shape[d] for d in dims) == 1:
        return x == x  # of one evaluation, as a reduction of one element is not for XLA
    once = in_memory(x, t)
    return once == lax.expand_dims(reduce(once, dims), dims)


def handed_back(t, x):
    """x, whose cotangent is worked out once for all its uses; t: as for `in_memory`.

    For a few KiB it takes longer to start to than to work it out again.
    """
    large = compat.differentiable(x) and bytes_of(x) > Machine.current().short_slice
    return _handed_back(t, x) if large else x


@jax.custom_jvp
def _handed_back(t, x):
    return x


@_handed_back.defjvp
def _handed_back_jvp(primals, tangents):
    (t, x), (_, tangent) = primals, tangents  # XLA does not look through a choice either
    return x, lax.cond(lax.stop_gradient(t) < 0, lax.neg, lambda same: same, tangent)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def extreme(reduce, dims, t, x):
    """reduce_max or reduce_min of a slice, whose derivative finds it again (see `in_memory`)."""
    return reduce(x, dims)


@extreme.defjvp
def _extreme_jvp(reduce, dims, primals, tangents):
    (t, x), (_, tangent) = primals, tangents
    equal = is_best(reduce, dims, *lax.stop_gradient((t, x)))
    count = lax.reduce_sum(equal.astype(x.dtype), dims)
    share = lax.reduce_sum(jnp.where(equal, tangent, jnp.zeros_like(tangent)), dims)
    return reduce(x, dims), share / count


# ---------------------------------------------------------------- params of one slice


def slots(dims: Sequence[int], ax: Ax) -> tuple[int, ...]:
    """Where dimensions of the array are in a slice; the streamed one may be in it no longer.

    >>> slots((0, 1, 2), Ax(1)), slots((0, 1, 2), Ax(1, inner=3))
    ((0, 1), (0, 1, 2))
    """
    if ax.width > 1:
        return tuple(map(int, dims))
    return tuple(int(d) - (d > ax.dim) for d in dims if d != ax.dim)


def sized(entries: Sequence, ax: Ax, entry) -> list:
    """One entry per dimension, for a slice; `entry` is that of the streamed one, if it is left.

    None leaves it out in any case.
    """
    left = [] if entry is None or ax.width == 1 else [entry]
    return [*entries[: ax.dim], *left, *entries[ax.dim + 1 :]]


def known(ins: Sequence[Ax | None], outs: Sequence[Ax | None]) -> Ax:
    """The first axis among those of the operands and of the results."""
    return next(ax for ax in (*ins, *outs) if ax is not None)


def rebind(eqn: compat.Eqn, args: Sequence, **params) -> list:
    """Run an equation with some other params. Returns a list."""
    return compat.bind(eqn.replace(params=eqn.params | params) if params else eqn, args)


def shapes(variables: Sequence) -> list[tuple[int, ...]]:
    """The shapes of operands or results of an equation."""
    return [v.aval.shape for v in variables]


def typed(results: Iterable, variables: Sequence) -> list:
    """Results with the weak types that the equation gives them."""
    return [weakened(x, v.aval) for x, v in zip(results, variables, strict=True)]


def weakened(x, aval):
    """An array as weakly typed as an aval, which has its dtype."""
    if not hasattr(aval, "weak_type") or jax.typeof(x).weak_type == aval.weak_type:
        return x
    return compat.convert(x, aval.dtype, aval.weak_type)
