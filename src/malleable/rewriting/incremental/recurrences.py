"""`lax.associative_scan` as a loop from row to row, for `as_scan`.

Stands in front of the function itself, found by all its names. JAX writes it as slices of every
other row, twice over, in which no row is seen to need only those before it.
"""

import contextlib
from collections.abc import Iterator

import jax
from jax import lax
from jax import numpy as jnp

from malleable import compat
from malleable.compat.hooks import Hook, cell_of
from malleable.notes import note

_length = compat.user_context(None)  # of the axes that are run through row by row


@contextlib.contextmanager
def row_by_row(length: int) -> Iterator[None]:
    """While open, an associative scan over so many rows is a `lax.scan`, in this thread."""
    with _HOOK.held(), _length(length):
        yield


def _as_loop(own, fn, elems, reverse=False, axis=0):
    leaves, tree = jax.tree.flatten(elems)
    lengths = {x.shape[axis] for x in leaves if -x.ndim <= axis < x.ndim}
    if reverse or not leaves or lengths != {_length.value} or not callable(fn):
        return own(fn, elems, reverse=reverse, axis=axis)
    axis %= leaves[0].ndim

    def body(state, rows):
        is_first, before = state
        before = [jnp.where(is_first, x, y) for x, y in zip(rows, before, strict=True)]
        made = jax.tree.leaves(fn(tree.unflatten(before), tree.unflatten(rows)))
        made = [jnp.where(is_first, x, y) for x, y in zip(rows, made, strict=True)]
        return (jnp.asarray(False), made), made

    rows = [jnp.expand_dims(jnp.moveaxis(jnp.asarray(x), axis, 0), axis + 1) for x in leaves]
    note("an associative_scan goes row by row", compat.where(), "its function must be associative")
    _, made = lax.scan(body, (jnp.asarray(True), [jnp.zeros_like(x[0]) for x in rows]), rows)
    return tree.unflatten([jnp.moveaxis(jnp.squeeze(y, axis + 1), 0, axis) for y in made])


_HOOK = Hook((*cell_of(lax.associative_scan), _as_loop), here=lambda: _length.value)
