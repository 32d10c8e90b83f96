"""Programs that compute only what is new: steps and updates against the whole, and against hand.

    python -m benchmarks.incremental [--docs] [--only transformer] [--smoke]

Steps run in a compiled scan; ours and those written by hand in turn, in one process. Operations
are those that XLA counts of one step; a time is the median of the rounds.
"""

import argparse
import functools
import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jax import lax
from numpyro.distributions import Normal
from numpyro.infer.util import log_density

import malleable as mal
from benchmarks.page import put_table
from benchmarks.smoke import add_argument, size

HEADS = 4


def weights(*shape, seed=0):
    return jax.random.normal(jax.random.key(seed), shape) / math.sqrt(shape[-2])


# ---------------------------------------------------------------- programs, and their steps by hand


def normalized(x):
    return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)


def transformer(layers, length, width=64):
    ps = [
        (weights(4, width, width, seed=k), weights(width, 4 * width), weights(4 * width, width))
        for k in range(layers)
    ]
    split = (HEADS, width // HEADS)

    def block(x, p):
        (wq, wk, wv, wo), up, down = p
        h = normalized(x)
        q, k, v = ((h @ w).reshape(-1, *split) for w in (wq, wk, wv))
        s = jnp.einsum("qhd,khd->hqk", q, k) / math.sqrt(split[1])
        s = jnp.where(jnp.tril(jnp.ones((len(x), len(x)), bool)), s, -jnp.inf)
        mixed = jnp.einsum("hqk,khd->qhd", jax.nn.softmax(s, -1), v)
        x = x + mixed.reshape(x.shape) @ wo
        return x + jax.nn.gelu(normalized(x) @ up) @ down

    def step(carry, x):
        t, caches = carry
        new = []
        for ((wq, wk, wv, wo), up, down), (keys, values) in zip(ps, caches, strict=True):
            h = normalized(x)
            q, k, v = ((h @ w).reshape(split) for w in (wq, wk, wv))
            keys, values = keys.at[t].set(k), values.at[t].set(v)
            s = jnp.einsum("hd,khd->hk", q, keys) / math.sqrt(split[1])
            s = jnp.where(jnp.arange(length) <= t, s, -jnp.inf)
            x = x + jnp.einsum("hk,khd->hd", jax.nn.softmax(s), values).reshape(width) @ wo
            x = x + jax.nn.gelu(normalized(x) @ up) @ down
            new.append((keys, values))
        return (t + 1, new), x

    cache = jnp.zeros((length, *split))
    begin = (jnp.int32(0), [(cache, cache) for _ in ps])
    return lambda x: functools.reduce(block, ps, x), width, begin, step


def convolutions(length, width=32, layers=6):
    ws = [weights(3, width, width, seed=k) / 2 for k in range(layers)]

    def whole(x):
        for k, w in enumerate(ws):
            pads, step = [(2 * 2**k, 0)], (2**k,)
            numbers = ("NWC", "WIO", "NWC")
            y = lax.conv_general_dilated(
                x[None], w, (1,), pads, rhs_dilation=step, dimension_numbers=numbers
            )
            x = x + jnp.tanh(y[0])
        return x

    def step(carry, x):
        t, rows = carry
        new = []
        for k, (w, kept) in enumerate(zip(ws, rows, strict=True)):
            kept = kept.at[t].set(x)
            at = t - jnp.array([2 * 2**k, 2**k, 0])
            window = jnp.where((at >= 0)[:, None], kept[jnp.maximum(at, 0)], 0)
            x = x + jnp.tanh(jnp.einsum("kd,kde->e", window, w))
            new.append(kept)
        return (t + 1, new), x

    begin = (jnp.int32(0), [jnp.zeros((length, width)) for _ in ws])
    return whole, width, begin, step


def recurrent(length, width=64):
    w = weights(width, width)

    def cell(h, x):
        h = jnp.tanh(w @ h + x)
        return h, h

    def step(carry, x):
        h, total = carry
        h, y = cell(h, x)
        return (h, total + y), total + y

    begin = (jnp.zeros(width), jnp.zeros(width))
    return lambda x: jnp.cumsum(lax.scan(cell, jnp.zeros(width), x)[1], 0), width, begin, step


def associative(length, width=64):
    def combine(a, b):
        return a[0] * b[0], a[1] * b[0] + b[1]

    def whole(x):
        return lax.associative_scan(combine, (jax.nn.sigmoid(x), x))[1]

    def step(h, x):
        h = h * jax.nn.sigmoid(x) + x
        return h, h

    return whole, width, jnp.zeros(width), step


def of_flax(length, width=64, layers=2):
    """A transformer of flax; by hand: its own cache, `decode=True`, of a second model."""

    class Model(nn.Module):
        decode: bool = False

        @nn.compact
        def __call__(self, x):
            mask = None if self.decode else nn.make_causal_mask(jnp.ones(x.shape[:-1]))
            for _ in range(layers):
                h = nn.LayerNorm()(x)
                attention = nn.MultiHeadDotProductAttention(HEADS, decode=self.decode)
                x = x + attention(h, mask=mask)
                x = x + nn.Dense(width)(nn.gelu(nn.Dense(4 * width)(nn.LayerNorm()(x))))
            return x

    model, cached, xs = Model(), Model(decode=True), jnp.zeros((length, width))
    params = jax.jit(model.init)(jax.random.key(0), xs)["params"]
    begin = jax.jit(cached.init)(jax.random.key(0), xs)["cache"]

    def step(cache, x):
        variables = {"params": params, "cache": cache}
        y, new = cached.apply(variables, x[None], mutable=["cache"])
        return new["cache"], y[0]

    return lambda x: model.apply({"params": params}, x), width, begin, step


STEPS: dict[str, Callable] = {
    "transformer, 2 layers": functools.partial(transformer, 2),
    "transformer, 12 layers": functools.partial(transformer, 12),
    "6 dilated convolutions": convolutions,
    "flax, 2 layers; by hand: its `decode=True`": of_flax,
    "RNN and cumsum": recurrent,
    "associative scan": associative,
}


def blurred(image):
    kernel, numbers = jnp.ones((3, 3, 1, 1)) / 9, ("NHWC", "HWIO", "NHWC")
    for _ in range(3):
        x = image[None, :, :, None]
        y = lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=numbers)
        image = jnp.tanh(y)[0, :, :, 0]
    return image


def perceptron(rows):
    return jax.nn.gelu(rows @ weights(64, 256)) @ weights(256, 64, seed=1)


def density(z):
    return (-0.5 * (jnp.sin(jnp.arange(len(z))) - z) ** 2 - 0.5 * z**2).sum()


UPDATES = {
    "one pixel, three convolutions": (blurred, size((512, 512), (32, 32)), (1, 1)),
    "one row of a batch, two layers": (perceptron, size((4096, 64), (64, 64)), (1, None)),
    "one latent of 1e3": (density, (1000,), (1,)),
    "one latent of 1e4": (density, size((10_000,), (1000,)), (1,)),
    "one latent of 1e5": (density, size((100_000,), (1000,)), (1,)),
    "one latent of 1e6": (density, size((1_000_000,), (1000,)), (1,)),
}


# ---------------------------------------------------------------- measuring


class Row(NamedTuple):
    """Operations and microseconds of the whole, of ours and of what is written by hand."""

    name: str
    flop: dict[str, float]
    time: dict[str, float]
    ratio: float | None  # ours / by hand, the median of the rounds
    built: float  # seconds to analyze and stage
    error: float


def flop(f, *args) -> float:
    found: Any = jax.jit(f).lower(*args).compile().cost_analysis()
    return (found[0] if isinstance(found, list) else found).get("flops", 0.0)


def timed(cases: dict[str, Callable], rounds: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in cases}
    for fun in cases.values():
        jax.block_until_ready(fun())
    for _ in range(rounds):
        for name, fun in cases.items():
            start = time.perf_counter()
            jax.block_until_ready(fun())
            times[name].append((time.perf_counter() - start) * 1e6)
    return times


def of_steps(name: str, make: Callable, length: int) -> Row:
    whole, width, begin, step = make(length)
    xs = jax.random.normal(jax.random.key(1), (length, width))
    start = time.perf_counter()
    carry, ours = mal.as_scan(whole, xs)
    built = time.perf_counter() - start
    run = jax.jit(lambda c, x: lax.scan(ours, c, x)[1])
    hand = jax.jit(lambda c, x: lax.scan(step, c, x)[1])
    error = float(jnp.abs(run(carry, xs) - whole(xs)).max())
    assert error < 1e-3 and float(jnp.abs(hand(begin, xs) - whole(xs)).max()) < 1e-3, "WRONG"
    all_of = jax.jit(whole)
    times = timed(
        {
            "whole": lambda: all_of(xs),
            "ours": lambda: run(carry, xs),
            "hand": lambda: hand(begin, xs),
        },
        size(9, 1),
    )
    ratio = statistics.median(a / b for a, b in zip(times["ours"], times["hand"], strict=True))
    medians = {n: statistics.median(t) / (1 if n == "whole" else length) for n, t in times.items()}
    work = {
        "whole": flop(whole, xs),
        "ours": flop(ours, carry, xs[0]),
        "hand": flop(step, begin, xs[0]),
    }
    return Row(f"{name}, T {length}", work, medians, ratio, built, error)


def of_update(name: str) -> Row:
    f, shape, sizes = UPDATES[name]
    x = jax.random.normal(jax.random.key(1), shape)
    block = jnp.ones([n if k is None else k for k, n in zip(sizes, shape, strict=True)])
    starts = [0 if k is None else 7 for k in sizes]
    init, update = mal.incremental(f, change={0: sizes})
    start = time.perf_counter()
    _, state = init(x)
    built = time.perf_counter() - start
    y, _ = update(state, {0: (block, starts)})
    error = float(jnp.abs(y - f(lax.dynamic_update_slice(x, block, starts))).max())
    assert error < 1e-3 * math.prod(shape) ** 0.5, "WRONG"
    turns = size(100, 2)

    def move(i, state):
        return update(state, {0: (block * i, [s if s == 0 else s + i for s in starts])})[1]

    loop = jax.jit(lambda s: lax.fori_loop(0, turns, move, s), donate_argnums=0)
    whole = jax.jit(f)
    held = [jax.tree.map(jnp.copy, state)]

    def again():
        held[0] = loop(held[0])
        return held[0]

    times = timed({"whole": lambda: whole(x), "ours": again}, size(9, 1))
    medians = {n: statistics.median(t) / (turns if n == "ours" else 1) for n, t in times.items()}
    work = {
        "whole": flop(f, x),
        "ours": flop(lambda s, b: update(s, {0: (b, starts)}), state, block),
    }
    return Row(name, work, medians, None, built, error)


def of_density(name: str, n: int) -> Row:
    """One latent of a model moves: scored again as a whole by numpyro, or by `prob.update`."""
    seen = jnp.sin(jnp.arange(float(n)))

    def model():
        def one(y):
            z = mal.prob.sample("z", Normal(0.0, 1.0))
            mal.prob.sample("y", Normal(z, 0.5), obs=y)

        jax.vmap(one)(seen)

    def of_numpyro():
        with numpyro.plate("all", n):
            z = numpyro.sample("z", Normal(0.0, 1.0))
            numpyro.sample("y", Normal(z, 0.5), obs=seen)

    whole = jax.jit(lambda z: log_density(of_numpyro, (), {}, {"z": z})[0])
    start = time.perf_counter()
    z, block = jnp.zeros(n), jnp.ones(1)
    init, update = mal.prob.update(model, (), {"z": z}, {"z": (1,)})
    state = init()[1]
    built = time.perf_counter() - start
    wanted = whole(z.at[7].set(1.0))
    error = float(jnp.abs(update(state, {"z": (block, (7,))})[0] - wanted) / jnp.abs(wanted))
    assert error < 1e-4, "WRONG"
    turns = size(100, 2)

    def move(i, state):
        return update(state, {"z": (block * i, (7 + i,))})[1]

    loop = jax.jit(lambda s: lax.fori_loop(0, turns, move, s), donate_argnums=0)
    held = [jax.tree.map(jnp.copy, state)]

    def again():
        held[0] = loop(held[0])
        return held[0]

    times = timed({"whole": lambda: whole(z), "ours": again}, size(9, 1))
    medians = {k: statistics.median(t) / (turns if k == "ours" else 1) for k, t in times.items()}
    work = {"whole": flop(whole, z), "ours": flop(lambda s: update(s, {"z": (block, (7,))}), state)}
    return Row(name, work, medians, None, built, error)


def table(rows: list[Row]) -> str:
    where = f"Python {platform.python_version()}, {jax.devices()[0].device_kind}"
    lines = [
        f"JAX {jax.__version__}, {where}. One step, or one update, against the whole; by hand: the",
        "same step with the cache written out. Made by `python -m benchmarks.incremental --docs`.",
        "",
        "| program | whole: operations, time | one step | by hand | time, ours / by hand | built |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [f"{row.flop[n]:.3g}, {row.time[n]:.3g} µs" if n in row.flop else "" for n in NAMES]
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        lines.append(f"| {row.name} | {' | '.join(cells)} | {ratio} | {row.built:.1f} s |")
    return "\n".join(lines)


NAMES = ("whole", "ours", "hand")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--docs", action="store_true", help="put the table into docs/benchmarks.md")
    parser.add_argument("--only", default="", help="rows whose name has this in it")
    add_argument(parser)
    options = parser.parse_args()
    rows = []
    for name, make in STEPS.items():
        longest = 1024 if "12" in name else 4096
        lengths = [n for n in (64, 256, 1024, 4096) if n <= longest]
        for length in lengths[: size(4, 1)]:
            if options.only in name:
                rows.append(of_steps(name, make, size(length, 8)))
                print(rows[-1], flush=True)
    for name in UPDATES:
        if options.only in name:
            rows.append(of_update(name))
            print(rows[-1], flush=True)
    for n in size((1000, 100_000), (200,)):
        if options.only in (name := f"one latent of {n:.0e}; whole: numpyro".replace("e+0", "e")):
            rows.append(of_density(name, n))
            print(rows[-1], flush=True)
    print(table(rows))
    steps = [row.ratio for row in rows if row.ratio is not None]
    if steps:
        print(f"\nours / by hand: median {np.median(steps):.2f}, most {max(steps):.2f}")
    if options.docs:
        put_table("incremental", "Programs that compute only what is new", table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
