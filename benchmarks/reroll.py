"""What it costs to trace and compile 48 equal blocks, unrolled: as they are, and rerolled.

A transformer (width 64, 16 tokens, 4 heads, parameters of their own in each layer), forward and
gradient, and steps of Runge-Kutta. The forward pass of the transformer is not gated: XLA for CPU
compiles equal kernels once, so that one layer alone costs a third of what 48 do.

    python -m benchmarks.reroll [ROUNDS] [--json] [--smoke]
    python -m benchmarks.reroll libraries [--json] [--docs] [--smoke]
    python -m benchmarks.reroll libraries flax reroll    # one row alone

`libraries` compiles a Flax nnx and an Equinox transformer of as many layers (a batch of 4), loss
and gradient, each by a process of its own: its memory is that of the compiler. Exit status 1 means
that a gate is missed, or that a rerolled model has another loss or gradient.
"""

import json
import resource
import statistics
import subprocess
import sys
import time

import equinox as eqx
import jax
import jax.numpy as jnp
from flax import nnx

from benchmarks.measure import report
from benchmarks.page import put_table
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


# ---------------------------------------------------------------- models of libraries


class FlaxBlock(nnx.Module):
    def __init__(self, rngs):
        self.before, self.between = (nnx.LayerNorm(WIDTH, rngs=rngs) for _ in range(2))
        self.attention = nnx.MultiHeadAttention(HEADS, WIDTH, decode=False, rngs=rngs)
        self.up, self.down = (nnx.Linear(*io, rngs=rngs) for io in ((WIDTH, 256), (256, WIDTH)))

    def __call__(self, x):
        x = x + self.attention(self.before(x))
        return x + self.down(nnx.gelu(self.up(self.between(x))))


class FlaxModel(nnx.Module):
    def __init__(self, rngs):
        self.blocks = nnx.List([FlaxBlock(rngs) for _ in range(BLOCKS)])

    def __call__(self, x):
        for block in self.blocks:
            x = block(x)
        return x


class EquinoxBlock(eqx.Module):
    before: eqx.nn.LayerNorm
    between: eqx.nn.LayerNorm
    attention: eqx.nn.MultiheadAttention
    up: eqx.nn.Linear
    down: eqx.nn.Linear

    def __init__(self, key):
        a, b, c = jax.random.split(key, 3)
        self.before, self.between = eqx.nn.LayerNorm(WIDTH), eqx.nn.LayerNorm(WIDTH)
        self.attention = eqx.nn.MultiheadAttention(HEADS, WIDTH, key=a)
        self.up, self.down = eqx.nn.Linear(WIDTH, 256, key=b), eqx.nn.Linear(256, WIDTH, key=c)

    def __call__(self, x):
        h = jax.vmap(self.before)(x)
        x = x + self.attention(h, h, h)
        return x + jax.vmap(lambda h: self.down(jax.nn.gelu(self.up(self.between(h)))))(x)


class EquinoxModel(eqx.Module):
    blocks: list

    def __init__(self, key):
        self.blocks = [EquinoxBlock(key) for key in jax.random.split(key, BLOCKS)]

    def __call__(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def flax():
    """A model of a batch as a function of its parameters, and these."""
    graph, params = nnx.split(FlaxModel(nnx.Rngs(0)))
    return lambda params, x: nnx.merge(graph, params)(x), params


def equinox():
    params, static = eqx.partition(EquinoxModel(jax.random.key(0)), eqx.is_array)
    return lambda params, x: jax.vmap(eqx.combine(params, static))(x), params


LIBRARIES = {"flax": flax, "equinox": equinox}
WAYS = {"plain": lambda loss: loss, "reroll": lambda loss: optimize(loss, reroll)}


def row(library: str, way: str) -> dict:
    """Processor time in seconds, memory in MiB, of one model that this process compiles."""
    model, params = LIBRARIES[library]()
    x = jax.random.normal(jax.random.key(1), (4, TOKENS, WIDTH))
    loss = WAYS[way](lambda params, x: jnp.mean((model(params, x) - jnp.tanh(x[::-1])) ** 2))
    start = time.process_time()
    lowered = jax.jit(jax.value_and_grad(loss)).lower(params, x)
    traced = time.process_time()
    compiled = lowered.compile()
    ended = time.process_time()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # KiB on Linux
    stats = compiled.memory_analysis()
    assert stats is not None, "the backend does not say what memory a program takes"
    value, slopes = compiled(params, x)
    squares = [jnp.sum(g.astype("float32") ** 2) for g in jax.tree.leaves(slopes)]
    return {
        "tracing": traced - start,
        "compiling": ended - traced,
        "process": peak / 1024,
        "temporary": stats.temp_size_in_bytes / 2**20,
        "loss": float(value),
        "slope": float(sum(squares) ** 0.5),
    }


def alone(library: str, way: str) -> dict:
    """A row, by a process of its own."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.reroll",
        "libraries",
        library,
        way,
        *["--smoke"] * SMOKE,
    ]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(run.stdout.splitlines()[-1])


def table(found: dict) -> str:
    """The rows as a table in Markdown."""
    head = (
        "| | tracing | compiling | memory of the compiling process | temporary memory of a step |"
    )
    lines = [head, "|---|---|---|---|---|"]
    for name, f in found.items():
        figures = "{tracing:.1f} s | {compiling:.1f} s | {process:,.0f} MiB | {temporary:.1f} MiB"
        lines.append(f"| {name} | {figures.format(**f)} |")
    return "\n".join(lines)


def libraries_main() -> int:
    found = {f"{library}, {way}": alone(library, way) for library in LIBRARIES for way in WAYS}
    apart = {
        library: max(
            abs(found[f"{library}, plain"][k] / found[f"{library}, reroll"][k] - 1)
            for k in ("loss", "slope")
        )
        for library in LIBRARIES
    }
    lines = [
        *table(found).splitlines()[2:],
        *(f"| {n} | {x:.0e} apart |" for n, x in apart.items()),
    ]
    cells = (line.strip("| ").split(" | ") for line in lines)
    report(
        f"{BLOCKS} layers of a library", [(name, "  ".join(rest)) for name, *rest in cells], found
    )
    if "--docs" in sys.argv and not SMOKE:
        put_table("libraries", "Forty-eight layers of Flax and of Equinox", table(found))
    return int(max(apart.values()) > 1e-4)


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word in (*LIBRARIES, *WAYS)]
    if len(words) == 2:
        print(json.dumps(row(*words)))
    elif "libraries" in sys.argv:
        sys.exit(libraries_main())
    else:
        sys.exit(main(*[int(word) for word in sys.argv[1:2] if word.isdigit()]))
