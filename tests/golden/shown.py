"""What `show` prints."""

import io

import jax
import jax.numpy as jnp
from jax import lax

import malleable as mal
from benchmarks import pairwise_workloads, streaming_workloads
from benchmarks.workloads import gradient
from tests.golden.rewriting import on_any_machine, shapes
from tests.golden.said import said
from tests.inspection import transformer
from tests.inspection.ensemble import PARAMS
from tests.inspection.ensemble import gradient as ensemble

WIDTH = 240  # no note is wrapped, however long the path of this folder is


def smoothed(x):
    """A loop until a value is small, with a branch in it."""

    def step(x):
        return lax.cond(x.sum() > 1, lambda x: x / 2, jnp.sin, x)

    return lax.while_loop(lambda x: jnp.abs(x).max() > 1e-3, step, x)


@jax.custom_jvp
def softplus(x):
    return jnp.log1p(jnp.exp(x))


softplus.defjvp(lambda primals, tangents: (softplus(*primals), tangents[0]))


def sampled(key, x):
    """Keys, a derivative of its own, an indexed update."""
    return softplus(x).at[1:3].add(jax.random.normal(key, (2,)))


def programs():
    """{name: (function, arguments, options of show)}"""
    rewritten = {"passes": [mal.push_up_reductions, mal.stream]}
    named = lambda name, module: next(w for w in module.WORKLOADS if w.name.startswith(name))
    seed, windows, nearest = (
        named("seed with", streaming_workloads),
        named("windows", streaming_workloads),
        named("nearest", pairwise_workloads),
    )
    return {
        "transformer": (transformer.loss, transformer.arguments(depth=2), {}),
        "ensemble, gradient": (ensemble, (PARAMS, jnp.ones((2, 3))), {}),
        "while and cond": (smoothed, (jnp.ones(3),), {}),
        "keys and updates": (sampled, (jax.random.key(0), jnp.ones(4)), {}),
        "autograph of Newton": (mal.autograph(newton), (2.0, 1.0), {}),
        "seed, pushed": (seed.plain, seed.make(False), rewritten),
        "windows, gradient": (gradient(windows.plain, windows.wrt), windows.make(False), {}),
        "folded": (foldable, (jnp.ones(3),), {"passes": [mal.fold, mal.cse, mal.dce]}),
        "Runge-Kutta, rerolled": (steps, (jnp.ones(3),), {"passes": [mal.reroll]}),
        "nearest, streamed": (nearest.plain, nearest.make(False), rewritten),
    }


def newton(a, x):
    while abs(x * x - a) > 1e-6:
        x = (x + a / x) / 2
    return x


def foldable(x):
    y = x * 1.0 + 0.0
    return jnp.sin(y) + jnp.sin(x) + x.sum() * 0.0


def steps(y):
    for _ in range(4):
        k = jnp.tanh(y) * y - y[::-1]
        y = y + 0.1 * jnp.tanh(y + 0.05 * k)
    return y


@on_any_machine
def texts():
    """Ten programs, for each the tree that is printed."""
    for name, (fun, args, options) in programs().items():
        file = io.StringIO()
        mal.show(fun, file=file, width=WIDTH, **options)(*shapes(args))
        yield name, [said(file.getvalue())]
