"""Where about the mean of a stream is, before it has begun."""

from collections.abc import Callable

from jax import lax
from jax import numpy as jnp

from malleable.rewriting.streaming.schedule.masks import last_of
from malleable.rewriting.streaming.schedule.plan import Plan


def means_of_one(plan: Plan, at: dict, rows: Callable, first: int | None = None) -> dict:
    """{("near", mean): the mean of one step alone}, near which sums of squares round least.

    For `wholes`. at: all values; rows(steps): what the region gets from its scan at these steps, in
    the order of the stream; first: the step to take, if not the first one of what a mean is of. A
    mean of the data is never further away from one of them than a root of n deviations.
    """
    if not plan.near:
        return {}
    at = lax.stop_gradient(at)
    wholes, found = {v: at[v] for v in plan.wholes}, {}
    back, most = plan.region.reverse, max((d for _, d in plan.delayed), default=0)
    for v, key in plan.near.items():
        window = plan.windows[v]
        t = first if first is not None else last_of(window) if back else window.start
        steps = range(t + most, t - 1, -1) if back else range(t - most, t + 1)
        steps = [s for s in steps if 0 <= s < plan.n] if first is None else [t]
        steps = steps or [min(max(t, 0), plan.n - 1)]
        state, before = plan.init(wholes), None
        for step, blocks in zip(steps, lax.stop_gradient(rows(steps)), strict=True):
            there = blocks | plan.sources_at(at, step)
            there |= {(u, d): (before or there)[plan.carry_of(u)] for u, d in plan.handed}
            state, _ = plan.step(state, there, wholes, step, None)
            before = there
        env = plan.feed(dict(wholes), state, lambda w: jnp.float32(w.count))
        found[key] = jnp.where(jnp.isfinite(env[v]), env[v], jnp.zeros_like(env[v]))
    return found
