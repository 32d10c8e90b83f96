"""Taylor series of second order through loops: as jax.experimental.jet, by one default rule."""

import jax
import jax.numpy as jnp
from jax import lax

import malleable as mal


@mal.value
class Series:
    """x + t dx + t^2/2 ddx."""

    x: jax.Array
    dx: jax.Array
    ddx: jax.Array
    aval = property(lambda self: jax.typeof(self.x))

    @classmethod
    def lift(cls, x, like):
        return cls(x, jnp.zeros_like(x), jnp.zeros_like(x))


def order(x, k):
    if isinstance(x, Series):
        return (x.x, x.dx, x.ddx)[k]
    return x if k == 0 else jnp.zeros_like(x)


def push(frame, *xs, **params):
    """The chain rule, twice: for every primitive that has a derivative."""
    moves = [i for i, x in enumerate(xs) if jnp.issubdtype(order(x, 0).dtype, jnp.floating)]
    x, dx, ddx = (tuple(order(xs[i], k) for i in moves) for k in range(3))

    def fun(*changed):
        new = dict(zip(moves, changed, strict=True))
        return frame.bind(*(new.get(i, order(v, 0)) for i, v in enumerate(xs)))

    def slope(*at):
        return jax.jvp(fun, at, dx)

    (y, dy), (_, ddy) = jax.jvp(slope, x, dx)
    return jax.tree.map(joined, y, dy, ddy, jax.jvp(fun, x, ddx)[1])


def joined(y, dy, ddy, more):
    """What is no number has no slope: an index, the result of a test."""
    return Series(y, dy, ddy + more) if jnp.issubdtype(y.dtype, jnp.floating) else y


def series(fun):
    """series(fun)(x, dx, ddx) -> the same of fun(x)."""
    ruled = mal.interpret(fun, {Series: push})
    return lambda *terms: jax.tree.leaves(ruled(Series(*terms))[0])


def swing(x):
    return lax.fori_loop(0, 3, lambda _, x: jnp.sin(x) * x + jnp.exp(-x), x)


def main():
    terms = jnp.float32(0.5), jnp.float32(1.0), jnp.float32(0.3)
    print(*(f"{term:.4f}" for term in series(swing)(*terms)))


if __name__ == "__main__":
    main()
