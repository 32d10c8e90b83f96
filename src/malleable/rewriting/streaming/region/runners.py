"""Cumulative operations along a streamed axis: those whose results keep it."""

from collections.abc import Callable
from dataclasses import dataclass

from jax import lax
from jax import numpy as jnp

from malleable.rewriting.graph.slices import lowest
from malleable.rewriting.streaming.region.sinks import (
    answer,
    exact,
    full,
    is_long,
    plus,
    rounds,
    wide,
)


@dataclass(frozen=True)
class Runner:
    """A cumulative operation over a stream: init and level as those of a Sink.

    step(spec, acc, start, block) -> (acc, block of the result). It runs from the start of the axis,
    or from its end if spec.how: `fits(spec)` says whether the stream does so too.
    """

    name: str
    init: Callable
    step: Callable
    level: Callable

    def fits(self, spec) -> bool:
        return bool(spec.how) == bool(spec.reverse)


def running(name, start, join, cumulate, level=exact):
    """The cumulative operation of a block, joined with what came before."""

    def init(spec, aval):
        shape, dtype = aval.shape[1:], wide(aval.dtype)
        first = full(start(aval.dtype), shape, dtype, aval)
        kept = name == "cumsum" and is_long(spec, dtype)
        return (first, jnp.zeros_like(first)) if kept else (first,)

    def step(spec, acc, start, block):
        here = cumulate(block.astype(acc[0].dtype), reverse=spec.how)
        last = here[0] if spec.how else here[-1]
        before = acc[0] if len(acc) == 1 else acc[0] + acc[1]
        after = plus(acc, last) if name == "cumsum" else (join(before, last),)
        return after, answer(spec, join(before, here))[0]

    return Runner(name, init, step, level)


RUNNERS: tuple[Runner, ...] = (
    running("cumsum", lambda _: 0, jnp.add, lax.cumsum, rounds),
    running("cumprod", lambda _: 1, jnp.multiply, lax.cumprod, rounds),
    running("cummax", lambda d: lowest(d, "reduce_max"), jnp.maximum, lax.cummax),
    running("cummin", lambda d: lowest(d, "reduce_min"), jnp.minimum, lax.cummin),
    running("cumlogsumexp", lambda _: -jnp.inf, jnp.logaddexp, lax.cumlogsumexp, rounds),
)
