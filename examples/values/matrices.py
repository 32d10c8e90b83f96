"""Matrices by their structure: three diagonals, or the entries that are not zero."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

import malleable as mal


@mal.value
class Tridiagonal:
    lower: jax.Array
    main: jax.Array
    upper: jax.Array

    @property
    def aval(self):
        return jax.ShapeDtypeStruct((*self.main.shape, self.main.shape[-1]), self.main.dtype)

    def materialise(self):
        whole = lambda k: jnp.vectorize(partial(jnp.diag, k=k), signature="(n)->(m,m)")
        return whole(-1)(self.lower) + whole(0)(self.main) + whole(1)(self.upper)

    def times(self, x):
        """This matrix by x, along the first axis of x."""
        below, at, above = (jnp.expand_dims(d, range(1, x.ndim)) for d in jax.tree.leaves(self))
        return (at * x).at[1:].add(below * x[:-1]).at[:-1].add(above * x[1:])


@mal.value(static="shape")
class Sparse:
    entries: jax.Array
    places: jax.Array  # a row and a column for each
    shape: tuple
    aval = property(lambda self: jax.ShapeDtypeStruct(self.shape, self.entries.dtype))

    def materialise(self):
        return jnp.zeros(self.shape, self.entries.dtype).at[tuple(self.places.T)].add(self.entries)

    def times(self, x):
        rows, columns = self.places.T
        entries = jnp.expand_dims(self.entries, range(1, x.ndim))
        return jnp.zeros((self.shape[0], *x.shape[1:]), x.dtype).at[rows].add(entries * x[columns])


def product(frame, m: Tridiagonal | Sparse, x: jax.Array, *, dimension_numbers, **params):
    (mine, theirs), batch = dimension_numbers
    if any(batch) or mine != (1,):
        return frame.bind(m.materialise(), x)
    return m.times(jnp.moveaxis(x, theirs[0], 0))


def entrywise(frame, x: Sparse | jax.Array, y: Sparse | jax.Array, **params):
    m, other = (x, y) if isinstance(x, Sparse) else (y, x)
    other = other.materialise() if isinstance(other, Sparse) else jnp.broadcast_to(other, m.shape)
    return Sparse(frame.bind(m.entries, other[tuple(m.places.T)]), m.places, m.shape)


RULES = {lax.dot_general_p: product, lax.mul_p: entrywise}


def smoothed(m, x):
    """A power iteration that knows nothing of matrices that are no arrays."""
    step = lambda x: (y := m @ x) / jnp.linalg.norm(y)
    return lax.fori_loop(0, 20, lambda _, x: step(x), x)


def main():
    m = Tridiagonal(jnp.ones(4), jnp.full(5, 2.0), jnp.ones(4))
    x = mal.interpret(smoothed, RULES)(m, jnp.ones(5))[0]
    print("an eigenvalue:", f"{x @ m.times(x):.3f},", f"whole {x @ m.materialise() @ x:.3f}")


if __name__ == "__main__":
    main()
