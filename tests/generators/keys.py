"""`quick_key(0)`: a random key whose numbers are quick to compile, for tests of which key is used.

XLA takes 0.22 s of a processor for two folds and a draw of JAX's generators, 0.05 s for these.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax.extend.random import define_prng_impl  # noqa: TID251  (the public way to define one)


def mixed(x):
    """32 bits that all depend on each bit of x: how MurmurHash3 ends (Appleby, 2011)."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)


def numbered(words, shape):
    """A number for each place of an array, of the two words of a key."""
    places = jax.lax.iota("uint32", math.prod(shape)).reshape(shape)
    return mixed(mixed(places + words[0]) + words[1])


QUICK = define_prng_impl(
    key_shape=(2,),
    seed=lambda number: mixed(jnp.stack([number, number + 1]).astype("uint32")),
    split=lambda words, shape: numbered(words, (*shape, 2)),
    random_bits=lambda words, width, shape: numbered(words, shape).astype(f"uint{width}"),
    fold_in=lambda words, number: mixed(words * jnp.uint32(0x9E3779B1) + number),
    name="quick",
    tag="quick",
)
quick_key = functools.partial(jax.random.key, impl=QUICK)
