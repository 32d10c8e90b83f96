"""Forty-eight layers of a Flax nnx and an Equinox transformer: compiled as they are, and rerolled.

Loss and gradient, width 64, 16 tokens, 4 heads, a batch of 4. Each is compiled by a process of its
own, so that the memory of that process, which is the compiler's, can be told.

    python -m benchmarks.deep [--json] [--docs] [--smoke]
    python -m benchmarks.deep flax reroll                # one row alone

Exit status 1 means that loss or gradient of a rerolled model are not those of the model.
"""

import json
import resource
import subprocess
import sys
import time

import equinox as eqx
import jax
import jax.numpy as jnp
from flax import nnx

import malleable as mal
from benchmarks.measure import report
from benchmarks.page import put_table
from benchmarks.smoke import SMOKE, size

LAYERS, WIDTH, TOKENS, HEADS = size(48, 3), 64, 16, 4


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
        self.blocks = nnx.List([FlaxBlock(rngs) for _ in range(LAYERS)])

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
        self.blocks = [EquinoxBlock(key) for key in jax.random.split(key, LAYERS)]

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
WAYS = {"plain": lambda loss: loss, "reroll": lambda loss: mal.optimize(loss, mal.reroll)}


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
    command = [sys.executable, "-m", "benchmarks.deep", library, way, *["--smoke"] * SMOKE]
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


def main() -> int:
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
    report(f"{LAYERS} layers", [(name, "  ".join(rest)) for name, *rest in cells], found)
    if "--docs" in sys.argv and not SMOKE:
        put_table("deep", "Forty-eight layers of Flax and of Equinox", table(found))
    return int(max(apart.values()) > 1e-4)


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word in (*LIBRARIES, *WAYS)]
    if len(words) == 2:
        print(json.dumps(row(*words)))
    else:
        sys.exit(main())
