"""A scan to push a tail into, and what the tests look at."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from malleable import compat, listen, stage
from malleable.rewriting.passes.passes import optimize
from malleable.rewriting.streaming.push import push_up_reductions
from tests.flags import OTHER
from tests.rules import assert_same

push = push_up_reductions(threshold=0)

N, B = 10, 3
X = jnp.linspace(0.2, 1.0, B)
W = jnp.cos(jnp.arange(N * B * 1.0)).reshape(N, B)


def in_turns(names, ways):
    """Each name with each way; in every run with one of them, taken in turns.

    The others are slow. CI runs two Pythons: each begins with another way.
    """
    return [
        pytest.param(name, *way, marks=[pytest.mark.slow] * ((i - k) % len(ways) != 0))
        for i, name in enumerate(names, OTHER)
        for k, way in enumerate(ways)
    ]


def rollout(x, reverse=False, length=N):
    """What a scan stacks that is not its carry: (b,) -> (length, b)."""

    def step(c, t):
        c = jnp.sin(1.3 * c + 0.2 * t)
        return c, 1.1 * c

    return lax.scan(step, x, jnp.arange(1.0 * length), reverse=reverse)[1]


def both_ways(tail):
    """What follows a scan, after one that runs forwards and one that runs backwards."""
    return lambda x, w: [tail(rollout(x, reverse), x, w) for reverse in (False, True)]


def value_and_grad(fun, *args):
    """Result and gradient of a function, under vmap over its first argument and under jit."""

    def total(x, *rest):
        out = fun(x, *rest)
        floats = [y for y in jax.tree.leaves(out) if jnp.issubdtype(y.dtype, jnp.inexact)]
        return sum((jnp.sum(jnp.sin(y)) for y in floats), start=0.0), out

    x, *rest = args
    axes = (0, *(None for _ in rest))
    batch = jnp.stack([x, 0.7 * x])
    return jax.jit(jax.vmap(jax.value_and_grad(total, has_aux=True), axes))(batch, *rest)


def temporary(fun, *args):
    """Bytes that a compiled function needs beside its arguments and results."""
    return jax.jit(fun).lower(*args).compile().memory_analysis().temp_size_in_bytes


def same_everywhere(passed, fun, *args):
    """Raise AssertionError unless both have one result and one gradient, under jit and vmap."""
    assert_same(value_and_grad(passed, *args), value_and_grad(fun, *args), rtol=2e-4)


def same_on_eight_devices(local, passes, specs, *args):
    """Raise AssertionError unless passes keep what a function gives in a shard_map over axis d.

    Result, its sharding, which is that of the first argument, and gradient; optimized inside of the
    shard_map and around it, with axes that XLA places and with explicit ones.
    """

    def run(fun, x, *rest):
        total = lambda x: (lambda y: (y.sum(), y))(fun(x, *rest))
        grad, out = jax.jit(jax.grad(total, has_aux=True))(x)
        assert out.sharding.is_equivalent_to(x.sharding, x.ndim), out.sharding
        return grad, out

    for kind in (AxisType.Auto, AxisType.Explicit):
        mesh = jax.make_mesh((8,), ("d",), axis_types=(kind,))
        with jax.set_mesh(mesh), jax.check_tracer_leaks(False):  # JAX's shard_map leaks under grad
            spread = lambda fun: jax.shard_map(fun, in_specs=specs, out_specs=P("d"))
            placed = [
                jax.device_put(x, NamedSharding(mesh, spec))
                for x, spec in zip(args, specs, strict=True)
            ]
            want = run(spread(local), *placed)
            for fun in (spread(optimize(local, *passes)), optimize(spread(local), *passes)):
                assert_same(run(fun, *placed), want, rtol=1e-3)


def stacked(jaxpr):
    """The shapes of what the scans of a program give, those in bodies too."""
    found = []
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "scan":
            found += [v.aval.shape for v in eqn.outvars]
        for body in compat.bodies(eqn.params):
            found += stacked(body)
    return found


def pushed(fun, *args, **options):
    """The program of a function with its reductions pushed up, step by step."""
    options = {"threshold": 0, "chunk": 1, **options}
    return push_up_reductions(stage(fun)(*args).jaxpr, **options)


def reasons(fun, *args, **options):
    """Why the pass leaves a program alone, which it does."""
    before = stage(fun)(*args).jaxpr
    with listen() as notes:
        after = push_up_reductions(before, **{"threshold": 0, **options})
    assert after is before
    return [note.why for note in notes]


def turned(carry, _):
    y = jnp.sin(carry)
    return y, y


def waves(x, length=6, **options):
    """What a scan stacks that is its carry: (b,) -> (length, b)."""
    return lax.scan(turned, x, length=length, **options)[1]
