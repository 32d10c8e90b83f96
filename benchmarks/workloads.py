"""A row of the benchmark of rewriting: a program as users write it, and fused by hand."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


class Gate(NamedTuple):
    """`ours` has to be so many times faster, or smaller, than another program."""

    kind: str  # forward, gradient
    what: str  # speed, memory
    than: str  # plain, hand, pykeops
    least: float


class Workload(NamedTuple):
    name: str
    plain: Callable
    hand: Callable
    make: Callable[[bool], tuple]  # make(quick) -> arguments
    wrt: tuple[int, ...] = ()  # arguments to differentiate by; none: no gradient
    hand_gradient: Callable | None = None  # what a hand differentiates, if it is another program
    gates: tuple[Gate, ...] = ()
    tolerance: float = 1e-4  # of the largest number of a result
    resident: bool = False  # measured by the kernel too


def gradient(fun, wrt):
    """The gradient of a sum of all results of fun, each number with a weight of its own."""

    def total(*args):
        leaves = jax.tree.leaves(fun(*args))
        return sum(weighted(x) for x in leaves if jnp.issubdtype(x.dtype, jnp.floating))

    def weighted(x):
        weights = np.cos(np.arange(x.size)).reshape(x.shape)
        return jnp.sum(x * weights.astype(x.dtype)).astype(jnp.float32)

    return jax.grad(total, wrt)


def normal(seed, *shape, scale=1.0):
    draws = np.random.default_rng(seed).standard_normal(shape, np.float32)
    return jnp.asarray(scale * draws, jnp.float32)


def uniform(seed, *shape, low=0.0, high=1.0):
    return jnp.asarray(np.random.default_rng(seed).uniform(low, high, shape), jnp.float32)


# ---------------------------------------------------------------- to write them with


def scanned(step, carry, xs=None, length=None):
    """What step(carry, x) -> carry makes of each element, stacked."""

    def both(carry, x):
        carry = step(carry, x)
        return carry, carry

    return lax.scan(both, carry, xs, length=length)[1]


def last(step, carry, xs=None, length=None):
    """The carry at the end."""
    return lax.scan(lambda c, x: (step(c, x), None), carry, xs, length=length)[0]


def sized(small, big, make):
    """make(quick) from make(*sizes)."""
    return lambda quick: make(*(small if quick else big))


def recomputed(hand):
    """The same program, keeping nothing of a step for the gradient."""
    return lambda *args: hand(*args, remat=jax.checkpoint)
