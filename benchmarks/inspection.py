"""What looking into a program costs.

    python -m benchmarks.inspection [--docs] [--smoke]

showing: `show` of a program of 10,000 equations, and its page. Exit status 0 means that both gates
pass: under 3 s with tracing, and a page under 1 MB. stepping, in times of the compiled program:
`step(fun)(*args)` to the end, every equation a step, against `jax.jit` and `jax.disable_jit`, which
shows values too; and `first_nonfinite` where all is finite, which is what one pays for asking. Cold
is the first run in a process, with XLA compiling each kind of equation.
"""

import argparse
import sys
import time

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.page import put_table
from benchmarks.smoke import SMOKE, add_argument, size
from malleable import cse, first_nonfinite, show, step

MOST = 3.0, 1 << 20  # seconds to show, bytes of a page


def train(params, x, y):
    """One step of gradient descent of a network of three layers of 64."""

    def loss(params):
        h = x
        for w, b in params[:-1]:
            h = jnp.tanh(h @ w + b)
        w, b = params[-1]
        return jnp.mean((h @ w + b - y) ** 2)

    grads = jax.grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


def network():
    sizes = [64] * 8
    keys = jax.random.split(jax.random.key(0), len(sizes))
    params = [
        (jax.random.normal(k, (m, n)) / 8, jnp.zeros(n)) for k, m, n in zip(keys, sizes, sizes[1:])
    ]
    return params, jnp.ones((8, 64)), jnp.ones((8, 64))


def rollout(x):
    """2000 steps of six equations."""

    def body(c, _):
        a = jnp.sin(c) * 0.9
        b = jnp.cos(a) + 0.1
        return jnp.tanh(b * c), None

    return lax.scan(body, x, None, length=size(2000, 9))[0]


def ensemble(xs):
    """Six steps of descent in each of four examples."""

    def energy(x):
        d = x[:, None] - x[None]
        return jnp.sum(jnp.exp(-jnp.sum(d * d, -1)))

    def one(x):
        return lax.scan(lambda x, _: (x - 0.1 * jax.grad(energy)(x), None), x, None, length=6)[0]

    return jax.vmap(one)(xs)


def products(a):
    """Ten products of matrices of 1024."""
    for _ in range(10):
        a = jnp.tanh(a @ a)
    return a


PROGRAMS = {
    "training step, 8 layers of 64": (train, network()),
    "scan, 2000 steps of 6": (rollout, (jnp.linspace(0.1, 1.0, 64),)),
    "vmap(scan(grad)), 4 x 6": (ensemble, (jax.random.normal(jax.random.key(1), (4, 5, 3)),)),
    "10 products of 1024": (products, (jnp.eye(size(1024, 32)) * 0.5,)),
}


def seconds(fun, rounds=5):
    """The best of some runs, after one."""
    rounds = size(rounds, 1)
    jax.block_until_ready(fun())
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        jax.block_until_ready(fun())
        times.append(time.perf_counter() - start)
    return min(times)


def once(fun):
    start = time.perf_counter()
    out = fun()
    return time.perf_counter() - start, out


def stepped(fun, args):
    """(how many equations ran, all of them recorded) in a session that went into everything."""
    session = step(fun, history=1000)(*args)
    count = 0
    while session.step() is not None:
        count += 1
    jax.block_until_ready(session.result)
    return count


def run(fun, args):
    with jax.disable_jit():
        return fun(*args)


def stepping(fun, args):
    """The figures of one program; times in seconds."""
    jitted, asked = jax.jit(fun), first_nonfinite(fun)
    shown = first_nonfinite(fun, hidden=False)
    cold, count = once(lambda: stepped(fun, args))
    found = {"equations": count, "cold": cold}
    found["jit"] = seconds(lambda: jitted(*args))
    found["warm"] = seconds(lambda: stepped(fun, args), rounds=2)
    found["disable_jit"] = seconds(lambda: run(fun, args), rounds=1)
    found["first_nonfinite"] = seconds(lambda: asked(*args))
    found["results only"] = seconds(lambda: shown(*args))
    return found


def row(name, f):
    """One line of the table."""
    each = 1e6 * f["warm"] / f["equations"]
    times = [f[kind] / f["jit"] for kind in ("first_nonfinite", "results only")]
    return (
        f"{name} | {f['equations']} | {1e3 * f['jit']:.2f} | {each:.0f} | {f['cold']:.1f} | "
        f"{f['warm'] / f['jit']:.0f}x | {f['warm'] / f['disable_jit']:.2f}x | "
        + " | ".join(f"{t:.1f}x" for t in times)
    )


STEPPING = (
    "program | equations | jit, ms | step, us each | cold, s | step / jit | step / disable_jit | "
    "first_nonfinite / jit | hidden=False\n" + " | ".join(["---"] * 9)
)

# ---------------------------------------------------------------- showing


def flat(x):
    for _ in range(size(5000, 20)):
        x = jnp.sin(x) * 0.5
    return x


def nested(x):
    def body(c, _):
        for _ in range(size(100, 3)):
            c = jnp.sin(c) * 0.5
        return c, c

    for _ in range(size(50, 2)):
        x, _ = lax.scan(body, x, None, length=3)
    return x


def showing(fun):
    """(equations, seconds to trace and show, with a pass; seconds to make the page; its bytes)"""
    took, shown = once(lambda: show(fun, passes=[cse], quiet=True)(jnp.ones(3)))
    page, text = once(shown.html)
    size = next(stage.body.size for stage in shown.stages if stage.name == "jaxpr")
    return size, took, page, len(text.encode())


SHOWING = "program | equations | show, s | page, s | page, kB\n--- | --- | --- | --- | ---"


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--docs", action="store_true", help="write the tables to docs/benchmarks.md"
    )
    add_argument(parser)
    given = parser.parse_args(arguments)
    shown = {name: showing(fun) for name, fun in {"flat": flat, "50 scans": nested}.items()}
    rows = [
        f"{name} | {size} | {took:.2f} | {page:.2f} | {length / 1000:.0f}"
        for name, (size, took, page, length) in shown.items()
    ]
    seen = "\n".join([SHOWING, *rows])
    print(seen, end="\n\n")
    names = size([*PROGRAMS], ["scan, 2000 steps of 6", "10 products of 1024"])
    stepped = "\n".join([STEPPING, *(row(n, stepping(*PROGRAMS[n])) for n in names)])
    print(stepped, end="\n\n")
    slowest = max(took + page for _, took, page, _ in shown.values())
    largest = max(length for *_, length in shown.values())
    gates = {f"shown in {slowest:.2f} s": slowest < MOST[0]}
    gates[f"a page of {largest / 1000:.0f} kB"] = largest < MOST[1]
    for text, passed in gates.items():
        print("PASS" if passed else "FAIL", text)
    if given.docs:
        put_table("inspection", "Looking into programs", f"{seen}\n\n{stepped}")
    return 0 if SMOKE or all(gates.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
