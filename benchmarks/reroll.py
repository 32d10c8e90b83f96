"""What it costs to trace and compile 48 equal blocks, unrolled: as they are, and rerolled.

A transformer (width 64, 16 tokens, 4 heads, parameters of their own in each layer), forward and
gradient, and steps of Runge-Kutta. The forward pass of the transformer is not gated: XLA for CPU
compiles equal kernels once, so that one layer alone costs a third of what 48 do.

    python -m benchmarks.reroll [ROUNDS] [--json] [--smoke]
"""

import statistics
import sys
import time

import jax
import jax.numpy as jnp

from benchmarks.measure import report
from benchmarks.smoke import SMOKE, size
from malleable.rewriting.passes.passes import optimize
from malleable.rewriting.passes.reroll import reroll

BLOCKS, WIDTH, TOKENS, HEADS = size(48, 3), 64, 16, 4
GATE = 8  # times less


def transformer(params, x):
    def norm(x):
        return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)

    def heads(x, w):
        return (x @ w).reshape(TOKENS, HEADS, WIDTH // HEADS).transpose(1, 0, 2)

    for p in params:
        h = norm(x)
        q, k, v = (heads(h, p[name]) for name in "qkv")
        weights = jax.nn.softmax(q @ k.transpose(0, 2, 1) / jnp.sqrt(WIDTH // HEADS))
        x = x + (weights @ v).transpose(1, 0, 2).reshape(TOKENS, WIDTH) @ p["o"]
        x = x + jax.nn.gelu(norm(x) @ p["up"]) @ p["down"]
    return jnp.mean(x**2)


def parameters():
    shapes = dict.fromkeys("qkvo", (WIDTH, WIDTH)) | {"up": (WIDTH, 256), "down": (256, WIDTH)}
    keys = iter(jax.random.split(jax.random.key(0), BLOCKS * len(shapes) + 1))
    params = [
        {name: 0.05 * jax.random.normal(next(keys), shape) for name, shape in shapes.items()}
        for _ in range(BLOCKS)
    ]
    return params, jax.random.normal(next(keys), (TOKENS, WIDTH))


def runge_kutta(y):
    """Steps of the classical method of order 4 for the Lorenz equations."""

    def f(y):
        a, b, c = y
        return jnp.stack([10 * (b - a), a * (28 - c) - b, a * b - 8 / 3 * c])

    for _ in range(BLOCKS):
        k1 = f(y)
        k2 = f(y + 0.005 * k1)
        k3 = f(y + 0.005 * k2)
        k4 = f(y + 0.01 * k3)
        y = y + 0.01 / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return jnp.mean(y**2)


def compiled(fun, args):
    """(processor time of tracing and compiling a function from scratch, its results)."""
    jax.clear_caches()
    start = time.process_time()
    run = jax.jit(fun).lower(*args).compile()
    return time.process_time() - start, run(*args)


def compare(fun, args, derive, rounds):
    """Seconds of fun as it is and rerolled, each in turn, and how far the results are apart."""
    cases = {"plain": derive(fun), "reroll": derive(optimize(fun, reroll))}
    times, results = {name: [] for name in cases}, {}
    for _ in range(rounds):
        for name, case in cases.items():
            seconds, results[name] = compiled(case, args)
            times[name].append(seconds)
    pairs = zip(*map(jax.tree.leaves, results.values()), strict=True)
    apart = max(float(jnp.abs(a - b).max() / (jnp.abs(a).max() + 1e-30)) for a, b in pairs)
    return {name: statistics.median(ts) for name, ts in times.items()} | {"apart": apart}


def main(rounds=size(3, 1)):
    plain = lambda fun: fun
    start = (jnp.linspace(0, 1, 300).reshape(3, 100),)
    cases = {
        "transformer, forward": (transformer, parameters(), plain),
        "Runge-Kutta, forward": (runge_kutta, start, plain),
        "transformer, gradient": (transformer, parameters(), jax.grad),
    }
    rows, figures = [], {}
    for what, (fun, args, derive) in cases.items():
        figure = compare(fun, args, derive, rounds)
        figure["ratio"] = figure["plain"] / figure["reroll"]
        figures[what] = figure
        text = "{plain:7.2f} s {reroll:7.2f} s {ratio:6.1f} times less, {apart:.0e} apart"
        rows.append((what, text.format(**figure)))
        print(*rows[-1], flush=True)
    gated = [f["ratio"] for name, f in figures.items() if name != "transformer, forward"]
    rows.append((f"gate: {GATE} times less", "passed" if min(gated) >= GATE else "missed"))
    report(f"{BLOCKS} unrolled blocks, traced and compiled: plain, rerolled", rows, figures)
    return int(min(gated) < GATE and not SMOKE)


if __name__ == "__main__":
    sys.exit(main(*[int(word) for word in sys.argv[1:2] if word.isdigit()]))
