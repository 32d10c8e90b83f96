"""A model says what it computes; where its loss is computed is another matter.

The example of jax#4968, as a recurrent network: all states are stacked, and only a loss uses them.
Pushed up, the loss is computed step by step, in value and in gradient, and a statistic of yours,
made of four functions, streams beside it. The model stays as it is.
"""

import jax
import jax.numpy as jnp
from jax import lax

import malleable as mal

STEPS, LANES, WIDTH = 400, 32, 64


def saturated(states):
    """Per unit, the share of steps in which it is nearly 1 or -1; (n, ...) -> (...)."""
    return jnp.mean(jnp.abs(states) > 0.9, axis=0)


saturated = mal.sink(
    saturated,
    init=lambda x: (jnp.zeros(x.shape[1:]), 0),
    step=lambda acc, start, x: (acc[0] + (jnp.abs(x) > 0.9).sum(0), acc[1] + len(x)),
    merge=lambda one, two: (one[0] + two[0], one[1] + two[1]),
    final=lambda acc: acc[0] / acc[1],
)


def loss(w, xs, targets):
    """(mean squared error, how many units are saturated most of the time)."""
    step = lambda h, x: (jnp.tanh(h @ w + x),) * 2
    _, states = lax.scan(step, jnp.zeros((LANES, WIDTH)), xs)
    return jnp.mean((states - targets) ** 2), jnp.sum(saturated(states) > 0.5)


def main():
    keys = jax.random.split(jax.random.key(0), 3)
    xs, targets = (jax.random.normal(k, (STEPS, LANES, WIDTH)) for k in keys[:2])
    args = jax.random.normal(keys[2], (WIDTH, WIDTH)) / 8, xs, targets
    push = mal.push_up_reductions(sinks=(*mal.SINKS, saturated))
    for name, of in (("loss", lambda f: f), ("gradient", lambda f: jax.grad(f, has_aux=True))):
        ways = of(loss), of(mal.optimize(loss, push))
        runs = [jax.jit(fun).lower(*args).compile() for fun in ways]
        plain, pushed = (run.memory_analysis().temp_size_in_bytes / 2**20 for run in runs)
        outs = [run(*args) for run in runs]
        off = max(jax.tree.leaves(jax.tree.map(lambda a, b: jnp.abs(a - b).max(), *outs)))
        print(f"{name}: {plain:.2f} MiB, pushed up {pushed:.2f} MiB; off by {off:.0e}")


if __name__ == "__main__":
    main()
