"""Gradients with respect to tagged values inside a function: `cotangents(fun)(*args)`."""

from collections.abc import Callable

import jax
from jax import numpy as jnp

from malleable import compat
from malleable.effects.harvest import flat_harvest, rules
from malleable.effects.names import nest


def cotangents(fun: Callable, *, kind: str = "tag") -> Callable:
    """cotangents(fun)(*args) -> (out, {name: d out / d tagged value}), in one backward pass.

    out must be a scalar. A tag inside a scan of n steps has one cotangent per step; one of mode
    "last" or "sum", the sum of those of all its values. Tags of integers have none.

    >>> from malleable import tag
    >>> out, bars = cotangents(lambda x: tag(2 * x, "h") ** 2)(3.0)
    >>> float(out), float(bars["h"])
    (36.0, 12.0)
    """
    reaped = flat_harvest(fun, kind, rules(kind, None, plants=False))
    nudged = flat_harvest(fun, kind, rules(kind, frozenset(), plants=True, put=_add))

    def differentiated(*args, **kwargs):
        def smooth():
            _, writes = reaped({}, *args, **kwargs)
            return {q: w.value for q, w in writes.items() if _is_smooth(w.value)}

        nudges = jax.eval_shape(smooth)
        nudges = jax.tree.map(lambda t: jnp.zeros(t.shape, t.dtype), nudges)

        def out(nudges):
            return nudged(_nested(nudges), *args, **kwargs)[0]

        value, bars = jax.value_and_grad(out)(nudges)
        return value, _nested(bars)

    return differentiated


def _nested(flat):
    return nest({q: (x, "") for q, x in flat.items()})


def _is_smooth(value):
    return all(map(compat.differentiable, jax.tree.leaves(value)))


def _add(frame, path, nudge, value):
    return jax.tree.map(jnp.add, value, nudge)
