"""Mask rules of random numbers: the n-th number drawn does not depend on how many are drawn.

So it is for JAX's threefry generator since it is partitionable: a number is made of the key and
its place in the flat array (jax._src.prng, `_threefry_random_bits_partitionable`).
"""

import math

from malleable import compat
from malleable.execution.buckets.shapes import arrange
from malleable.execution.buckets.values import mask_rule
from malleable.execution.common.breaks import Unsupported
from malleable.execution.common.sizes import is_symbolic


@mask_rule("random_bits")
def random_bits(sizes, eqn, key):
    shape = eqn.params["shape"]
    _check_generator(eqn)
    if not any(map(is_symbolic, shape[1:])):
        return _draw(eqn, key, sizes.shape(shape))
    if key.dims:
        raise Unsupported("random numbers of several keys along a padded axis")
    flat = _draw(eqn, key, (math.prod(sizes.shape(shape)),))
    return arrange(sizes, flat, shape)


@mask_rule("random_split")
def random_split(sizes, eqn, key):
    shape = eqn.params["shape"]
    _check_generator(eqn)
    if any(map(is_symbolic, shape[1:])):
        raise Unsupported("keys split along a padded axis that is not the first")
    return _draw(eqn, key, sizes.shape(shape))


def _draw(eqn, key, shape):
    return eqn.primitive.bind(key.x, **(eqn.params | {"shape": shape}))


def _check_generator(eqn):
    dtype = eqn.invars[0].aval.dtype
    if str(dtype) != "key<fry>" or not compat.context_key(eqn)[0]:
        raise Unsupported(f"random numbers of {dtype}")


@mask_rule("random_wrap", "random_unwrap", "random_fold_in", "random_clone", "random_seed")
def each_key(sizes, eqn, *ins):
    return compat.bind(eqn, [p.x for p in ins])
