"""Values of the user's, of eight classes, through every control flow."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import malleable as mal
from tests.core.values.value_classes import KINDS, WIDTH

W = jnp.linspace(-0.4, 0.5, WIDTH * WIDTH).reshape(WIDTH, WIDTH)
X = jnp.linspace(-1.0, 1.3, WIDTH * WIDTH).reshape(WIDTH, WIDTH)


MESH = Mesh(np.array(jax.devices()[:WIDTH]), ("i",))


def line(x):
    """Linear, so that every class can keep it: units their unit, zeros their zero."""
    return 0.5 * x + W @ x


def small(x):
    return 0.25 * x


@jax.custom_jvp
def own_jvp(x):
    return line(x)


own_jvp.defjvp(lambda xs, dxs: (line(*xs), line(*dxs)))


@jax.custom_vjp
def own_vjp(x):
    return line(x)


own_vjp.defvjp(lambda x: (line(x), None), lambda _, ct: (0.5 * ct + W.T @ ct,))


def becoming(x):
    """A carry that is an array at first."""
    return lax.scan(lambda h, _: (0.5 * h + x, None), 0 * W, None, length=4)[0]


def shifting(x):
    """Carries that become what the one before was."""
    step = lambda c, _: ((x, c[0], c[1]), c[2])
    (a, b, c), _ = lax.scan(step, (W * 0, W * 0, W * 0), None, length=4)
    return a + b + c


def over_rows(x):
    return lax.scan(lambda h, row: (h + row, row * 2.0), x[0] * 0.0, x)[1]


def counted(x):
    return lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, line(s[1])), (0, x))[1]


def in_vmap(x):
    return jax.vmap(lambda w: w @ x)(jnp.stack([W, 2 * W]))


def in_vmapped_loop(x):
    def each(n):
        return lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, 0.5 * s[1]), (0, x))[1]

    return jax.vmap(each)(jnp.arange(3))


def nested(x):
    def step(h, i):
        h = lax.cond(i % 2 == 0, jax.jit(line), jax.checkpoint(small), h)
        return lax.fori_loop(0, 2, lambda _, h: own_jvp(h), h), h

    return lax.scan(step, x, jnp.arange(3))[0]


def sharded(x):
    return jax.shard_map(line, mesh=MESH, in_specs=P(), out_specs=P())(x)


def split(x):
    return jax.shard_map(lambda x: 2.0 * x, mesh=MESH, in_specs=P("i"), out_specs=P("i"))(x)


PROGRAMS = {
    "flat": line,
    "jit": jax.jit(line),
    "checkpoint": jax.checkpoint(line),
    "custom_jvp": own_jvp,
    "custom_vjp": own_vjp,
    "cond": lambda x: lax.cond(W[0, 0] < 0, line, small, x),
    "cond one array": lambda x: lax.cond(W[0, 0] < 0, small, lambda x: x, x),
    "switch": lambda x: lax.switch(1, [line, small, jnp.negative], x),
    "scan": lambda x: lax.scan(lambda h, w: (w * h, None), x, jnp.arange(3.0))[0],
    "scan, stacked": lambda x: lax.scan(lambda h, w: (w * h, h), x, jnp.arange(3.0))[1],
    "scan, becoming": becoming,
    "scan, shifting": shifting,
    "scan over rows": over_rows,
    "while": counted,
    "fori": lambda x: lax.fori_loop(0, 3, lambda i, h: line(h), x),
    "vmap inside": in_vmap,
    "vmap of a while": in_vmapped_loop,
    "nested": nested,
}
MAPS = {"shard_map": sharded, "shard_map, split": split}
# no class of these says how it is lifted or materialised, and so these cannot be
REFUSED = {("unit", "scan, becoming"), ("unit", "scan, shifting")}
RUNS = {"interpret": mal.interpret, "live": mal.live}


@pytest.mark.in_turns
@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("programs", [PROGRAMS, MAPS], ids=["one device", "devices"])
def test_programs_of_values_mean_what_they_mean_of_arrays(kind, run, programs):
    rules, make, want, check = KINDS[kind]
    own = {name: f for name, f in programs.items() if (kind, name) not in REFUSED}

    @jax.jit  # all at once: compiling is what takes time
    def both(x):
        outs = {name: RUNS[run](f, rules)(make(x))[0] for name, f in own.items()}
        return outs, {name: want(f, make(x)) for name, f in own.items()}

    outs, wanted = both(X)
    for name in own:
        check(outs[name], wanted[name])
