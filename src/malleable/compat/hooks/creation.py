"""Where transformations of JAX are applied: for the advice of `errors.explain()`.

Stands in front of the public names themselves, `jax.vmap` or `custom_vjp.defvjp`: a function that
they made does not know where it was made. A copy, as of `from jax import vmap`, is not seen.
"""

import contextlib
import functools

import jax

from malleable.compat.hooks import Hook

MADE_BY = (
    *("vmap", "jit", "pmap", "shard_map", "grad", "value_and_grad", "jacfwd", "jacrev"),
    *("jacobian", "hessian", "linearize", "checkpoint", "remat"),
)


def creations_told(tell) -> contextlib.AbstractContextManager[None]:
    """While open, tell(name, result, args, kwargs) of each transformation that is applied here."""
    return _HOOK.held(tell)


def _telling(name, apply, *args, **kwargs):
    result = apply(*args, **kwargs)
    for tell in _HOOK.opened()[-1:]:
        tell(name, result, args, kwargs)
    return result


_HOOK = Hook(
    *((jax, name, functools.partial(_telling, name)) for name in MADE_BY),
    (jax.custom_vjp, "defvjp", functools.partial(_telling, "defvjp")),
    (jax.custom_jvp, "defjvp", functools.partial(_telling, "defjvp")),
)
