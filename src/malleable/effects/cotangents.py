"""Gradients with respect to tagged values inside a function: `cotangents(fun)(*args)`."""

from collections.abc import Callable
from typing import Any

import jax
from jax import numpy as jnp

from malleable import compat
from malleable.core.stage import stage
from malleable.effects.harvest import harvested, rules
from malleable.effects.names import nest
from malleable.python_source.misuse import called_as
from malleable.signatures import P, R


@called_as("cotangents(fun)(*args)")
def cotangents(fun: Callable[P, R], *, kind: str = "tag") -> Callable[P, tuple[R, dict[str, Any]]]:
    """cotangents(fun)(*args) -> (out, {name: d out / d tagged value}), in one backward pass.

    out must be a scalar. A tag inside a scan of n steps has one cotangent per step; one of mode
    "last" or "sum", the sum of those of all its values. Tags of integers have none.

    >>> from malleable import tag
    >>> out, bars = cotangents(lambda x: tag(2 * x, "h") ** 2)(3.0)
    >>> float(out), float(bars["h"])
    (36.0, 12.0)
    """
    reap = rules(kind, None, plants=False)
    nudge = rules(kind, frozenset(), plants=True, put=_add)

    def differentiated(*args: P.args, **kwargs: P.kwargs) -> tuple[R, dict[str, Any]]:
        staged = stage(fun, reap.markers, raises=False)(*args, **kwargs)
        if staged.raised is not None:
            staged.finish(harvested(staged, kind, reap, {})[0])

        def smooth():
            _, writes = harvested(staged, kind, reap, {})
            return {q: w.value for q, w in writes.items() if _is_smooth(w.value)}

        nudges = jax.eval_shape(smooth)
        nudges = jax.tree.map(lambda t: jnp.zeros(t.shape, t.dtype), nudges)

        def out(nudges):
            outs, _ = harvested(staged, kind, nudge, _nested(nudges))
            return staged.rebuild(outs), outs

        (_, outs), bars = jax.value_and_grad(out, has_aux=True)(nudges)
        return staged.finish(outs), _nested(bars)

    return differentiated


def _nested(flat):
    return nest({q: (x, "") for q, x in flat.items()})


def _is_smooth(value):
    return all(map(compat.differentiable, jax.tree.leaves(value)))


def _add(frame, path, nudge, value):
    return jax.tree.map(jnp.add, value, nudge)
