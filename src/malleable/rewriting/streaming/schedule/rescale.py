"""What was accumulated about a provisional result, put right when that result moves."""

import functools
import math
import operator

import jax
from jax import lax
from jax import numpy as jnp

from malleable.rewriting.graph.graph import Graph, Node
from malleable.rewriting.streaming.region.frontier import size
from malleable.rewriting.streaming.region.region import Ended, Kept, Mark
from malleable.rewriting.streaming.region.sinks import tied


def spread(x, mark: Mark, shape):
    """A result with the dims of `mark.by`, as large as what was accumulated."""
    pairs = sorted((ax.dim, d) for d, ax in mark.dims)
    kept = [d for _, d in pairs]
    x = lax.transpose(x, (*kept, *(d for d in range(x.ndim) if d not in kept)))
    x = lax.reshape(x, x.shape[: len(kept)])
    return lax.broadcast_in_dim(x, shape, [dim for dim, _ in pairs])


def rescaled(acc: tuple, mark: Mark, old, now) -> tuple:
    """Sums of what is proportional to exp(-by), when `by` goes from old to now.

    Where both are infinite nothing has been added yet.
    """
    moved = jnp.where(old == now, jnp.zeros_like(old), old - now)
    factor = jnp.exp(moved)
    factor = jnp.where(jnp.isfinite(factor), factor, jnp.ones_like(factor))
    return tuple(a * spread(factor, mark, a.shape).astype(a.dtype) for a in acc)


def sums_for(mark: Mark) -> int:
    """How many sums a central moment takes: one per power, for a variance two more."""
    return mark.power + 2 * (mark.power == 2)


def moments(action: Ended, mark: Mark, acc: tuple, x, d, start, rows_before, old, now) -> tuple:
    """Sums of the powers of d = x - by over one block more, when `by` goes from old to now.

    acc: the sums of d, d**2, ...; rows_before: how many rows are in them. By the binomial theorem.
    For a variance, also of x and x**2, with x about a point that stays: its derivative is that of
    these, which need no `by`.
    Source: Pébay, "Formulas for robust, one-pass parallel computation of covariances and
    arbitrary-order statistical moments", Sandia report SAND2008-6212, 2008.
    """
    raw, acc = acc[mark.power :], acc[: mark.power]
    raw = tuple(action.sink.step(action.spec, a, start, x**p) for p, a in enumerate(raw, 1))
    if raw:
        acc, d = lax.stop_gradient((acc, d))
    sums = [action.sink.final(action.spec, a)[0] for a in acc]
    shape = sums[0].shape
    count = rows_before * (math.prod(d.shape[1:]) // max(1, math.prod(shape)))
    delta = spread(jnp.where(count > 0, old - now, jnp.zeros_like(now)), mark, shape)
    delta = lax.stop_gradient(delta)  # wherever the center was, the moment comes out the same
    sums = [jnp.asarray(count, sums[0].dtype) + jnp.zeros_like(sums[0]), *sums]
    out = []
    for p, old_acc in enumerate(acc, 1):
        moved = shifted(sums[: p + 1], delta)
        fresh = (moved.astype(old_acc[0].dtype), *(jnp.zeros_like(x) for x in old_acc[1:]))
        pairs = zip(old_acc, fresh, strict=True)  # where nothing moved, what rounding lost stays
        whole = tuple(jnp.where(delta == 0, x, y) for x, y in pairs)
        out.append(action.sink.step(action.spec, whole, start, d**p))
    return (*out, *raw)


def shifted(sums: list, delta):
    """The sum of (d + delta)**p, from the sums of d**0, ..., d**p."""
    p = len(sums) - 1
    terms = [math.comb(p, j) * s * delta ** (p - j) for j, s in enumerate(sums)]
    return functools.reduce(operator.add, terms)


def result_of(graph: Graph, node: Node, action: Ended | Kept, acc, env: dict, times) -> list:
    """What comes of an accumulator, at the end or provisionally, as if the rest were like it.

    env: results known already. times: how many times as many rows there are as it has seen; None
    when it has seen none; 1 at the end.
    """
    if isinstance(action, Kept):
        return [lax.reshape(acc, graph.avals[node.outs[0]].shape)]
    powers = [m for m in action.marks if m.kind == "power"]
    if powers:
        by, near = env[powers[0].by], env.get(("near", powers[0].by))
        center = env.get(("center", powers[0].by), lax.stop_gradient(by))
        count = size(graph, node.ins[0]) // max(1, size(graph, node.outs[0]))
        return [central(action, powers[0], acc, by, center, near, count)]
    outs = action.sink.final(action.spec, acc)
    for mark in action.marks:
        if mark.kind in ("mul", "div") and mark.by in env:
            by = spread(env[mark.by], mark, outs[0].shape).astype(outs[0].dtype)
            outs = [outs[0] * by if mark.kind == "mul" else outs[0] / by]
    if not isinstance(times, int) and action.sink.name == "reduce_max":
        # nothing but -inf so far: x - 0 is as good as x - max, and a number
        outs = [jnp.where(jnp.isneginf(x), jnp.zeros_like(x), x) for x in outs]
    if isinstance(times, jax.Array) and action.sink.name == "reduce_sum":
        # what a mean is worked out from
        inexact = [jnp.issubdtype(x.dtype, jnp.inexact) for x in outs]
        outs = [x * times.astype(x.dtype) if y else x for x, y in zip(outs, inexact, strict=True)]
    return outs


def central(action: Ended, mark: Mark, acc: tuple, by, center, near, count: int):
    """The moment about `by`, from all its sums over `count` elements, which are about `center`.

    near: the point that the further sums of a variance are about; None: 0. The derivative is that
    of the sums about a point that does not move.
    """
    sums = [action.sink.final(action.spec, a)[0] for a in acc]
    shape, dtype, p = sums[0].shape, sums[0].dtype, mark.power

    def about(point, sums):
        delta = spread(point - by, mark, shape).astype(dtype)
        return shifted([jnp.full(shape, count, dtype), *sums[:p]], delta)

    value = about(center, sums)
    if p != 2:
        return value
    slope = about(jnp.zeros_like(by) if near is None else near, sums[2:])
    return tied(lax.stop_gradient(value), slope, jnp.ones_like(value))
