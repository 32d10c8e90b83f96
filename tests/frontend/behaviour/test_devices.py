"""Python in a `shard_map`: branches and loops that devices leave at different steps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec

import malleable as mal

LINE = jax.make_mesh((8,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
CUT, SAME = PartitionSpec("d"), PartitionSpec()
ROWS = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")


def halvings(x):
    n = 0
    while jnp.abs(x).max() > 0.1:
        x = x * 0.5
        n += 1
    return n


def before_a_break(x):
    n = 0
    for i in range(4):
        if x.sum() * i > 1:
            break
        n += 1
    return n


def which(x):
    if x.sum() > 0:
        n = jnp.sin(jnp.arange(99.0)).sum()
    else:
        n = jnp.cos(jnp.arange(99.0)).sum()
    return n


def three_steps_later(x):
    a = b = c = 0.0
    for _ in range(5):
        a, b, c = b, c, x.sum()
    return a


def three_steps_later_in_a_while(x):
    a = b = c = 0.0
    i = 0
    while i < lax.psum(1, "d") - 2:
        a, b, c = b, c, x.sum()
        i += 1
    return a


PROGRAMS = [halvings, before_a_break, which, three_steps_later, three_steps_later_in_a_while]


def on_devices(fun, out_specs, *, in_specs=CUT, **options):
    return jax.shard_map(fun, mesh=LINE, in_specs=in_specs, out_specs=out_specs, **options)


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("program", PROGRAMS)
def test_each_device_takes_its_own_way(program, check_vma):
    fun = mal.autograph(program)
    mapped = on_devices(lambda x: jnp.asarray(fun(x[0]))[None], CUT, check_vma=check_vma)
    rows = jax.vmap(fun, axis_name="d")(ROWS)
    assert np.allclose(jax.jit(mapped)(ROWS), rows)


@pytest.mark.parametrize("program", PROGRAMS)
def test_what_differs_between_devices_is_not_said_to_be_the_same(program):
    with pytest.raises(ValueError, match="require replication"):
        on_devices(lambda x: mal.autograph(program)(x[0]), SAME)(ROWS)


def decayed(w, x):
    for _ in range(30):
        x = x * w
        if jnp.abs(x).max() < 0.1:
            break
    return x


@pytest.mark.parametrize("check_vma", [True, False])
def test_a_gradient_of_loops_of_different_lengths_sums_over_the_devices_behind_them(check_vma):
    fun, w = mal.autograph(decayed), jnp.float32(0.7)
    mapped = on_devices(fun, CUT, in_specs=(SAME, CUT), check_vma=check_vma)
    slopes = jax.jit(jax.grad(lambda w, x: (mapped(w, x) ** 2).sum(), (0, 1)))
    rows = jax.grad(lambda w, x: (jax.vmap(fun, (None, 0))(w, x) ** 2).sum(), (0, 1))
    for ours, want in zip(slopes(w, ROWS), rows(w, ROWS), strict=True):
        assert np.allclose(ours, want, rtol=1e-4, atol=1e-5)
    rows = jax.device_put(ROWS, jax.NamedSharding(LINE, CUT))
    assert mal.communication(slopes)(w, rows).times == 1 + check_vma  # of a step before the loop
