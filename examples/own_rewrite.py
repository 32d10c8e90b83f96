# ruff: noqa: F722  # dims are named in annotations
"""Rewrite what a library does: distances by matrix products, where the library takes differences.

|x - y|^2 = |x|^2 - 2 x.y + |y|^2 is one matrix product. It loses digits where points are close, so
the rule is of the level "fast": `check_rule` tries it on ordinary numbers, `rewrite` asks for it.
"""

import jax
import jax.numpy as jnp

import malleable as mal


def library_distances(x, y):
    """Squared distances of all pairs, as libraries have them; (m, d), (n, d) -> (m, n)."""
    return jnp.sum((x[:, None] - y[None]) ** 2, axis=-1)


def few_dims(match):
    wide = match.aval("x").shape[1] >= 8
    return True if wide else mal.NoMatch("a few differences are as cheap, and keep their digits")


@mal.rule(where=few_dims, level="fast")
def distances_by_product(x: mal.Arr["m d", jnp.floating], y: mal.Arr["n d", jnp.floating]):
    squares = jnp.sum(x * x, 1)[:, None] + jnp.sum(y * y, 1)
    return library_distances(x, y), squares - 2 * x @ y.T


def nearest(x, y):
    return jnp.sqrt(library_distances(x, y)).min(1).mean()


def main():
    fast = mal.optimize(nearest, mal.rewrite(distances_by_product, level="fast"))
    for dims in (64, 3):
        one, two = jax.random.split(jax.random.key(dims))
        x, y = jax.random.normal(one, (500, dims)), jax.random.normal(two, (400, dims))
        with mal.listen() as notes:
            got = jax.jit(fast)(x, y)
        off = abs(got - nearest(x, y)) / got
        print(f"{dims} dims, off by {off:.0e}: {notes[0].what}; {notes[0].why}")
    mal.check_rule(distances_by_product, n=4)
    print("check_rule found nothing wrong")


if __name__ == "__main__":
    main()
