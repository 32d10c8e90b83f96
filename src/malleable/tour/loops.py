"""A chapter: loops in plain style that `jax.jit` refuses, under `mal.jit`, and explained."""

import time
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp
from jax.scipy import special

import malleable as mal
from malleable.tour.rows import Row, close, equal, faster

BOXES, FEW = 200, 6  # for us and NumPy; for eager JAX, which compiles anew for each size
POINTS = 20_000


def suppress(boxes, scores, limit=0.5):
    """The boxes that none of a higher score overlaps by more than `limit`; boxes: (n, 4).

    Source: Neubeck and Van Gool, "Efficient non-maximum suppression", ICPR 2006.
    """
    order = jnp.argsort(-scores)
    kept = []
    while order.shape[0] > 0:
        kept.append(order[0])
        best, rest = boxes[order[0]], boxes[order[1:]]
        low = jnp.maximum(best[:2], rest[:, :2])
        high = jnp.minimum(best[2:], rest[:, 2:])
        shared = jnp.prod(jnp.maximum(high - low, 0.0), axis=1)
        areas = jnp.prod(rest[:, 2:] - rest[:, :2], axis=1)
        either = jnp.prod(best[2:] - best[:2]) + areas - shared
        order = order[1:][shared <= limit * either]
    return jnp.stack(kept)


def suppress_by_numpy(boxes, scores, limit=0.5):
    """The same."""
    order, kept = np.argsort(-scores), []
    while len(order):
        kept.append(order[0])
        best, rest = boxes[order[0]], boxes[order[1:]]
        sides = np.minimum(best[2:], rest[:, 2:]) - np.maximum(best[:2], rest[:, :2])
        shared = np.prod(np.maximum(sides, 0), axis=1)
        either = np.prod(best[2:] - best[:2]) + np.prod(rest[:, 2:] - rest[:, :2], axis=1) - shared
        order = order[1:][shared <= limit * either]
    return np.stack(kept)


def fit(x, means, steps=100, tolerance=1e-7):
    """(means, scales, weights, likelihood) of a mixture of normals, by EM; x: (n,), means: (k,).

    Source: Dempster, Laird and Rubin, "Maximum likelihood from incomplete data via the EM
    algorithm", J. R. Stat. Soc. B 39(1), 1977.
    """
    scales = jnp.ones_like(means)
    weights = scales / means.shape[0]
    before = jnp.float32(-jnp.inf)  # of one type from the start, so that the loop compiles
    for _ in range(steps):
        z = (x[:, None] - means) / scales
        logs = jnp.log(weights) - jnp.log(scales) - z**2 / 2
        total = special.logsumexp(logs, axis=1)
        share = jnp.exp(logs - total[:, None])
        count = share.sum(axis=0)
        weights = count / x.shape[0]
        means = (share * x[:, None]).sum(axis=0) / count
        scales = jnp.sqrt((share * (x[:, None] - means) ** 2).sum(axis=0) / count)
        now = total.mean()
        if now - before < tolerance:
            break
        before = now
    return means, scales, weights, now


def fit_by_numpy(x, means, steps=100, tolerance=1e-7):
    """The same."""
    scales = np.ones_like(means)
    weights = scales / len(means)
    before = -np.inf
    for _ in range(steps):
        logs = np.log(weights / scales) - ((x[:, None] - means) / scales) ** 2 / 2
        total = np.logaddexp.reduce(logs, axis=1)
        share = np.exp(logs - total[:, None])
        count = share.sum(axis=0)
        weights, means = count / len(x), (share * x[:, None]).sum(axis=0) / count
        scales = np.sqrt((share * (x[:, None] - means) ** 2).sum(axis=0) / count)
        now = total.mean()
        if now - before < tolerance:
            break
        before = now
    return means, scales, weights, now


def boxes_of(n, random):
    """n boxes in a square, as (left, top, right, bottom), and a score of each."""
    corners = random.uniform(0.0, 100.0, (n, 2))
    sides = random.uniform(5.0, 25.0, (n, 2))
    return np.float32(np.hstack([corners, corners + sides])), np.float32(random.uniform(size=n))


def timed(fun, *args, calls=1):
    """(what a function gives, seconds of its fastest call)"""
    best = float("inf")
    for _ in range(calls):
        began = time.perf_counter()
        out = jax.block_until_ready(fun(*args))
        best = min(best, time.perf_counter() - began)
    return out, best


def compared(name, fun, by_numpy, args, few, console):
    """Rows about a function under `mal.jit`, in NumPy and in eager JAX; the latter on few."""
    ours: Any = mal.jit(fun)
    console.print(mal.explain(ours)(*map(jnp.asarray, few)))
    timed(ours, *few, calls=3)  # the first calls choose how to run
    _, short = timed(ours, *few, calls=3)
    _, eager = timed(fun, *map(jnp.asarray, few))
    got, took = timed(ours, *map(jnp.asarray, args), calls=6)
    expected, numpy = timed(by_numpy, *args, calls=3)
    check = equal if name == "boxes kept" else close
    return [
        check(name, got, expected),
        faster("their time", took, numpy, whose="NumPy", most=float("inf")),
        faster("on few", short, eager, whose="eager JAX"),
    ]


def plain_loops(steps, console):
    """Loops in plain style, compiled where they compile, and explained"""
    random = np.random.default_rng(0)
    near, far = random.normal(-2.0, 1.0, POINTS // 2), random.normal(3.0, 0.5, POINTS // 2)
    points = np.concatenate([near, far]).astype("float32"), np.array([-1.0, 1.0], "float32")
    boxes, few = boxes_of(BOXES, random), boxes_of(FEW, random)
    rows = compared("boxes kept", suppress, suppress_by_numpy, boxes, few, console)
    rows += compared("mixture of two (EM)", fit, fit_by_numpy, points, points, console)
    ways: list[tuple[str, Any, Any]] = [("boxes", suppress, few), ("EM", fit, points)]
    for name, fun, args in ways:
        share = mal.explain(fun)(*map(jnp.asarray, args)).share
        what = f"{name}: operations in regions"
        rows.append(Row(what, f"{share:.0%}", "at least 80%", share >= 0.8))
    return rows
