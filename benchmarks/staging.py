"""What it costs to stage a function through the interpreter.

A 12-layer transformer (width 128, 16 tokens, not in a scan) with 48 tags is traced plainly and
through one rule; the compiled program of an untouched function is compared with and without
us; and tags are planted through one to five nested scans.

    python -m benchmarks.staging [--json] [--smoke]
"""

import itertools
import re

import jax
import jax.numpy as jnp
from jax import lax

import malleable as mal
from benchmarks.measure import interleaved, report
from benchmarks.smoke import size

LAYERS, WIDTH, TOKENS, HEADS = size(12, 1), 128, 16, 4
DEPTHS = range(1, size(6, 3))


def count_matmul(frame, x, y, **params):
    frame.carry += 1
    return frame.bind(x, y)


COUNT = {lax.dot_general_p: count_matmul}


def transformer(params, x):
    def norm(x):
        return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)

    def heads(x, w):
        return (x @ w).reshape(TOKENS, HEADS, WIDTH // HEADS).transpose(1, 0, 2)

    for i, p in enumerate(params):
        h = mal.tag(norm(x), f"norm{i}")
        q, k, v = (heads(h, p[name]) for name in "qkv")
        weights = mal.tag(
            jax.nn.softmax(q @ k.transpose(0, 2, 1) / jnp.sqrt(WIDTH // HEADS)), f"a{i}"
        )
        x = mal.tag(x + (weights @ v).transpose(1, 0, 2).reshape(TOKENS, WIDTH) @ p["o"], f"x{i}")
        x = mal.tag(x + jax.nn.gelu(norm(x) @ p["up"]) @ p["down"], f"y{i}")
    return x


def transformer_args():
    keys = iter(jax.random.split(jax.random.key(0), 6 * LAYERS + 1))
    shapes = dict.fromkeys("qkvo", (WIDTH, WIDTH)) | {"up": (WIDTH, 512), "down": (512, WIDTH)}
    params = [
        {name: 0.05 * jax.random.normal(next(keys), shape) for name, shape in shapes.items()}
        for _ in range(LAYERS)
    ]
    return params, jax.random.normal(next(keys), (TOKENS, WIDTH))


def count(jaxpr):
    inner = (b for e in jaxpr.eqns for p in e.params.values() for b in [getattr(p, "jaxpr", None)])
    return len(jaxpr.eqns) + sum(count(b) for b in inner if b is not None)


def nested(depth):
    """A tagged step inside `depth` scans of two steps."""

    def step(x):
        return mal.tag(jnp.tanh(1.1 * x), "x")

    for _ in range(depth):
        step = (
            lambda inner: lambda x: lax.scan(lambda c, _: (inner(c), None), x, None, length=2)[0]
        )(step)
    return step


def instructions(fun, *args):
    """The instructions of the optimised program of fun(params, x), without names and places."""
    text = jax.jit(lambda params, x: fun(params, x)).lower(*args).compile().as_text()
    text = re.sub(r", metadata=\{[^}]*\}", "", text)
    return sorted(re.sub(r"%[\w.-]+", "%", line) for line in text.splitlines() if " = " in line)


def fresh(fun):
    """A new function each time, so that no trace is found in a cache."""
    return lambda *args: jax.make_jaxpr(lambda *a: fun(*a))(*args)


def staging():
    args = transformer_args()
    cases = {
        "plain": lambda: fresh(transformer)(*args),
        "reaped": lambda: fresh(mal.reap(transformer))(*args),
        "one rule": lambda: fresh(mal.interpret(transformer, COUNT, carry=0))(*args),
    }
    seconds = interleaved(cases)
    eqns = count(jax.make_jaxpr(transformer)(*args))
    return seconds, eqns


def planting(depths=DEPTHS):
    def plant_at(depth):
        values = {"x": jnp.ones((2,) * depth)}
        return lambda: fresh(mal.plant(nested(depth)))(values, 0.5)

    seconds = interleaved({d: plant_at(d) for d in depths}, rounds=9)
    return [seconds[d] for d in depths]


def main():
    seconds, eqns = staging()
    args = transformer_args()
    plain = instructions(transformer, *args)
    equal = all(
        instructions(lambda *a, t=t: t(transformer)(*a)[0], *args) == plain
        for t in (lambda f: mal.interpret(f, COUNT, carry=0), mal.reap)
    )
    curve = planting()
    growth = [b / a for a, b in itertools.pairwise(curve)]
    extra = max(seconds["one rule"] - seconds["plain"], 1e-9)
    figures = {
        "staging_ratio": round(seconds["one rule"] / seconds["plain"], 2),
        "reap_ratio": round(seconds["reaped"] / seconds["plain"], 2),
        "eqns_per_s": round(eqns / extra),
        "hlo_equal": bool(equal),
        "plant_growth": round(growth[-1], 2),
    }
    report(
        f"Staging, JAX {jax.__version__}",
        [
            ("make_jaxpr, plain", f"{1e3 * seconds['plain']:.1f} ms for {eqns} equations"),
            ("make_jaxpr, reaped (48 tags)", f"{1e3 * seconds['reaped']:.1f} ms"),
            ("make_jaxpr, one rule (96 matmuls)", f"{1e3 * seconds['one rule']:.1f} ms"),
            ("staging_ratio: one rule / plain", figures["staging_ratio"]),
            ("reap_ratio: reaped / plain", figures["reap_ratio"]),
            ("eqns_per_s: equations per extra second", figures["eqns_per_s"]),
            ("hlo_equal: same compiled program", figures["hlo_equal"]),
            (
                "planting through 1 to 5 nested scans",
                " ".join(f"{1e3 * s:.0f}" for s in curve) + " ms",
            ),
            ("plant_growth: five scans / four scans", figures["plant_growth"]),
        ],
        figures,
    )


if __name__ == "__main__":
    main()
