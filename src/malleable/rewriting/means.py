"""Where about the mean of a stream is, before it has begun."""

from jax import lax
from jax import numpy as jnp

from malleable.rewriting.plan import Plan, last_of
from malleable.rewriting.region import Window


def means_of_one(plan: Plan, at: dict, blocks: dict, t: int) -> dict:
    """{("near", mean): the mean of one step alone}, near which sums of squares round least.

    For `wholes`. at: all values; blocks: those of step t that the region gets from its scan, taken
    for those of the first step of a window where that is another one. A mean of the data is never
    further away than a root of n deviations.
    """
    at, blocks = lax.stop_gradient((at, blocks))
    wholes, found = {v: at[v] for v in plan.wholes}, {}
    own = plan.delayed - plan.handed.keys()
    for v, key in plan.near.items():
        window = _window_of(plan, v)
        first = last_of(window) if plan.region.reverse else window.start
        here = t if window == plan.full else first
        there = blocks | plan.sources_at(at, here)
        there |= {(u, d): there[plan.carry_of(u)] for u, d in plan.handed}
        state = plan.init(wholes)
        if own:  # as if the slices before had been like this one
            once, _ = plan.step(state, there, wholes, here, None)
            state |= {(u, d): (once[u, d][-1],) * d for u, d in own}
        state, _ = plan.step(state, there, wholes, here, None)
        env = plan.feed(dict(wholes), state, lambda w: jnp.float32(w.count))
        found[key] = jnp.where(jnp.isfinite(env[v]), env[v], jnp.zeros_like(env[v]))
    return found


def _window_of(plan: Plan, by: int) -> Window:
    """The elements that a mean is of."""
    streams = plan.region.streams.values()
    return next(s.window for s in streams if any(m.by == by for m in s.marks))
