"""What it costs to compile an unrolled stack of 48 equal blocks, as it is and rerolled.

The blocks are those of a transformer (width 64, 16 tokens, 4 heads), each with parameters of its
own; forward and gradient. Seconds are those of tracing and compiling, taken in turn.
"""

import sys

import jax
import jax.numpy as jnp

from benchmarks.measure import interleaved, report
from malleable.rewriting.passes import optimize
from malleable.rewriting.reroll import reroll

LAYERS, WIDTH, TOKENS, HEADS = 48, 64, 16, 4


def block(p, x):
    def norm(x):
        return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)

    def heads(x, w):
        return (x @ w).reshape(TOKENS, HEADS, WIDTH // HEADS).transpose(1, 0, 2)

    h = norm(x)
    q, k, v = (heads(h, p[name]) for name in "qkv")
    weights = jax.nn.softmax(q @ k.transpose(0, 2, 1) / jnp.sqrt(WIDTH // HEADS))
    x = x + (weights @ v).transpose(1, 0, 2).reshape(TOKENS, WIDTH) @ p["o"]
    return x + jax.nn.gelu(norm(x) @ p["up"]) @ p["down"]


def model(params, x):
    for p in params:
        x = block(p, x)
    return jnp.mean(x**2)


def arguments():
    shapes = dict.fromkeys("qkvo", (WIDTH, WIDTH)) | {"up": (WIDTH, 256), "down": (256, WIDTH)}
    keys = iter(jax.random.split(jax.random.key(0), LAYERS * len(shapes) + 1))
    params = [
        {name: 0.05 * jax.random.normal(next(keys), shape) for name, shape in shapes.items()}
        for _ in range(LAYERS)
    ]
    return params, jax.random.normal(next(keys), (TOKENS, WIDTH))


def compiled(fun, args):
    """fun, traced and compiled anew: a new function each time, so that no cache answers."""
    jax.clear_caches()
    return jax.jit(lambda *xs: fun(*xs)).lower(*args).compile()


def main(rounds=3):
    args, rows, figures = arguments(), [], {}
    for what, derive in (("forward", lambda f: f), ("gradient", jax.grad)):
        cases = {"plain": derive(model), "reroll": derive(optimize(model, reroll))}
        results = [jax.tree.leaves(compiled(fun, args)(*args)) for fun in cases.values()]
        apart = max(float(jnp.abs(a - b).max()) for a, b in zip(*results, strict=True))
        seconds = interleaved(
            {name: lambda fun=fun: compiled(fun, args) for name, fun in cases.items()}, rounds
        )
        ratio = seconds["plain"] / seconds["reroll"]
        figures[what] = {"ratio": round(ratio, 1), "apart": apart} | seconds
        text = f"{seconds['plain']:6.2f} s  {seconds['reroll']:6.2f} s  {ratio:5.1f} times less"
        rows.append((what, f"{text}, results {apart:.0e} apart"))
    rows.append(
        ("gate: at least 8 times less", str(all(f["ratio"] >= 8 for f in figures.values())))
    )
    report(f"tracing and compiling {LAYERS} unrolled blocks: plain, reroll", rows, figures)
    return 0 if all(f["ratio"] >= 8 for f in figures.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
