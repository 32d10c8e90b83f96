"""Processor time of passes and tools against that of tracing, as programs grow.

The program is the loss and the gradient of a transformer whose layers are not rolled. Each figure
is the least of several runs, in seconds of one core, of a program that was traced anew.

    python -m benchmarks.growth [ROUNDS] [--json] [--docs] [--smoke]

Exit status 1 means that a pass takes longer than `jax.make_jaxpr` does for the largest program, or
that twice as many equations take more than 2.3 times as long.
"""

import gc
import itertools
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import malleable as mal
from benchmarks.measure import report
from benchmarks.page import put_table
from benchmarks.smoke import SMOKE, size

LAYERS = size((8, 50, 100, 200), (1, 2))  # some 1,000 to 30,000 equations
WIDTH, TOKENS = 8, 16
AGAIN, TWICE = 1.0, 2.3  # at most: of tracing; for twice as many equations
PASSES = {
    "default": mal.pipeline(mal.dce, mal.cse),
    "push": mal.push_up_reductions,
    "stream": mal.stream,
    "hoist": mal.hoist,
    "fold": mal.fold,
    "library": mal.rewrite(*mal.LIBRARY),
    "matmul_order": mal.matmul_order,
    "merge_dims": mal.merge_dims,
    "unbuffer": mal.unbuffer,
    "scan_merge": mal.scan_merge,
    "scan_trim": mal.scan_trim,
}
TOOLS = {  # these trace the function themselves
    "reroll": lambda fun, args: mal.reroll(mal.stage(fun)(*args).jaxpr),
    "interpret": lambda fun, args: jax.make_jaxpr(mal.interpret(fun, {lax.cos_p: copy}))(*args),
    "optimize": lambda fun, args: jax.make_jaxpr(mal.optimize(fun))(*args),
    "show": lambda fun, args: mal.show(fun, quiet=True)(*args),
    "cost": lambda fun, args: mal.cost(fun)(*args),
}


def copy(frame, x, **params):
    return frame.bind(x)


def layer(x, p):
    h = x - x.mean(-1, keepdims=True)
    h = h / jnp.sqrt((h**2).mean(-1, keepdims=True) + 1e-5) * p["scale"]
    q, k, v = (h @ p[name] for name in "qkv")
    mask = jnp.tril(jnp.ones((TOKENS, TOKENS), bool))
    weights = jax.nn.softmax(jnp.where(mask, q @ k.T / WIDTH**0.5, -1e9))
    x = x + weights @ v @ p["o"]
    return x + jax.nn.gelu(x @ p["up"] + p["bias"]) @ p["down"]


def made():
    """A loss and its gradient that nobody has traced yet."""

    def loss(params, x):
        for p in params:
            x = layer(x, p)
        return (x**2).mean()

    return jax.value_and_grad(loss)


def arguments(layers):
    random, square = np.random.default_rng(0), (WIDTH, WIDTH)
    shapes = dict.fromkeys("qkvo", square) | {"scale": (WIDTH,), "up": (WIDTH, 32)}
    shapes |= {"bias": (32,), "down": (32, WIDTH)}
    params = [
        {name: 0.1 * random.normal(size=shape).astype("float32") for name, shape in shapes.items()}
        for _ in range(layers)
    ]
    return params, np.ones((TOKENS, WIDTH), "float32")


def seconds(run, given, rounds):
    """Processor time of run(given()), the least of several."""
    times = []
    for _ in range(rounds):
        value = given()
        gc.collect()
        gc.disable()  # as timeit does: a full collection falls into some runs and not into others
        try:
            start = time.process_time()
            run(value)
            times.append(time.process_time() - start)
        finally:
            gc.enable()
    return min(times)


def measure(layers, rounds):
    """{"equations": how many, "tracing": seconds, name: seconds} of one size."""
    args = arguments(layers)
    program = lambda: mal.stage(made())(*args).jaxpr
    found = {"equations": len(program().eqns)}
    found["tracing"] = seconds(lambda fun: jax.make_jaxpr(fun)(*args), made, rounds)
    for name, run in PASSES.items():
        found[name] = seconds(run, program, rounds)
    for name, run in TOOLS.items():
        found[name] = seconds(lambda fun, run=run: run(fun, args), made, rounds)
    return found


def failures(sizes):
    """What grows too fast, or takes too long, in words."""
    *_, last = sizes
    for name in PASSES:
        if last[name] > AGAIN * last["tracing"]:
            yield f"{name} takes {last[name] / last['tracing']:.2f} times as long as tracing"
        for small, large in itertools.pairwise(sizes):
            doublings = np.log2(large["equations"] / small["equations"])
            growth = (large[name] / max(small[name], 0.02)) ** (1 / doublings)
            if growth > TWICE:
                yield f"{name} grows {growth:.1f} times from {small['equations']} equations"


def table(sizes):
    head = ["", *(f"{found['equations']:,} equations" for found in sizes)]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    cells = [f"{found['tracing']:.2f} s" for found in sizes]
    lines.append("| tracing | " + " | ".join(cells) + " |")
    for name in (*PASSES, *TOOLS):
        cells = [f"{found[name]:.2f} s, {found[name] / found['tracing']:.2f}x" for found in sizes]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(rounds=size(3, 1)):
    measure(1, 1)  # what is imported and compiled once
    sizes = [measure(layers, rounds) for layers in LAYERS]
    wrong = list(failures(sizes))
    rows = [(name, "  ".join(f"{found[name]:8.2f}" for found in sizes)) for name in sizes[0]]
    report(
        "seconds of one core, by size of the program",
        [*rows, *(("missed", what) for what in wrong)],
        sizes,
    )
    if "--docs" in sys.argv and not SMOKE:
        put_table("growth", "Passes and tools as programs grow", table(sizes))
    return int(bool(wrong) and not SMOKE)


if __name__ == "__main__":
    sys.exit(main(*[int(word) for word in sys.argv[1:2] if word.isdigit()]))
