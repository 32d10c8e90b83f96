"""Adam, for the chapters that train something."""

import jax
from jax import numpy as jnp

RATE = 3e-3


def adam(params, grads, mean, square, t):
    """One step. Source: Kingma and Ba, "Adam", ICLR 2015, algorithm 1."""
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, grads)
    square = jax.tree.map(lambda s, g: 0.999 * s + 0.001 * g**2, square, grads)

    def moved(p, m, s):
        return p - RATE * m / (1 - 0.9**t) / (jnp.sqrt(s / (1 - 0.999**t)) + 1e-8)

    return jax.tree.map(moved, params, mean, square), mean, square
