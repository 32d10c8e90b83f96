"""What looking into a program costs, in times of the compiled program.

python -m benchmarks.inspection [--json]

stepping: `step(fun)(*args)` to the end, every equation a step, against `jax.jit` and against
`jax.disable_jit`, which shows values too; and `first_nonfinite` where all is finite, which is what
one pays for asking. Cold is the first run in a process, with XLA compiling each kind of equation.
"""

import time

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.measure import report
from malleable.inspection.debugger import step
from malleable.inspection.nonfinite import first_nonfinite


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

    return lax.scan(body, x, None, length=2000)[0]


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
    "10 products of 1024": (products, (jnp.eye(1024) * 0.5,)),
}


def seconds(fun, rounds=5):
    """The best of some runs, after one."""
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


def spell(f):
    each = 1e6 * f["warm"] / f["equations"]
    times = ", ".join(
        f"{f[name] / f['jit']:.1f}x {name}" for name in ("first_nonfinite", "results only")
    )
    against = f"{f['warm'] / f['jit']:.0f}x jit, {f['warm'] / f['disable_jit']:.2f}x disable_jit"
    return (
        f"{f['equations']:6d} equations  jit {1e3 * f['jit']:.2f} ms  step {1e3 * f['warm']:.0f} ms"
        f" ({each:.0f} us each; cold {f['cold']:.1f} s; {against})  {times}"
    )


def main():
    figures = {name: stepping(*program) for name, program in PROGRAMS.items()}
    report("stepping", [(name, spell(f)) for name, f in figures.items()], figures)


if __name__ == "__main__":
    main()
