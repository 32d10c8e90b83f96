"""What a step of a scan is given back is worked out once, where its derivative has many uses."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from malleable import compat
from malleable.rewriting.machine import BACKENDS, CPU, Machine
from malleable.rewriting.passes.passes import optimize
from tests.scans import push, same_everywhere, same_on_eight_devices

N = CPU.short_slice // 4 + 1
U = jnp.sin(0.1 * jnp.arange(N))
SMALL = U[1:7]


def wave(u, reverse=False):
    def step(u, x):
        u = u + 0.1 * (jnp.roll(u, 1) - u) * x
        return u, u

    return lax.scan(step, u, jnp.linspace(0.5, 1.0, 9), reverse=reverse)[1]


def growth(u):
    return lax.scan(lambda u, _: (jnp.sin(1.1 * u),) * 2, u, length=9)[1]


def layers(u):
    step = lambda u, w: (jnp.tanh(w * u), (u + w, (100 * u).astype(jnp.int32)))
    ys, zs = lax.scan(step, u, jnp.linspace(0.5, 1.0, 9))[1]
    return ys * (zs > 3)


LOSSES = {
    "squares": lambda ys: jnp.mean(ys**2),
    "two of them": lambda ys: jnp.abs(ys).mean(0).sum() + ys.max(),
    "some steps": lambda ys: (ys[2:] * ys[:-2]).sum() + ys[3].sum(),
}


def choices(jaxpr):
    """How many choices there are in a program, in all its bodies."""
    inside = (body for e in jaxpr.eqns for body in compat.bodies(e.params))
    return sum(e.primitive.name == "cond" for e in jaxpr.eqns) + sum(map(choices, inside))


def gradient(loss, u):
    return jax.make_jaxpr(jax.grad(optimize(loss, push())))(u)


@pytest.mark.in_turns
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("scan", [wave, lambda u: wave(u, reverse=True), layers])
def test_derivatives_are_what_they_were(monkeypatch, scan, loss):
    monkeypatch.setitem(BACKENDS, "cpu", Machine(short_slice=0))
    fun = lambda u: LOSSES[loss](scan(u))
    ours = optimize(fun, push(chunk=1))
    same_everywhere(ours, fun, SMALL)
    assert choices(jax.make_jaxpr(jax.grad(ours))(SMALL))
    for twice in (jax.hessian, lambda f: jax.jacrev(jax.jacfwd(f))):
        one, other = (jax.jit(twice(f))(SMALL) for f in (ours, fun))
        assert jnp.allclose(one, other, rtol=1e-4, atol=1e-6)


def test_it_composes_with_shard_map_on_eight_devices_in_both_orders(monkeypatch):
    monkeypatch.setitem(BACKENDS, "cpu", Machine(short_slice=0))

    def local(x):
        ys = wave(x)
        return lax.psum((ys**2).mean(), "d") + ys.max() * x

    x = jnp.linspace(0.1, 0.9, 32)
    same_on_eight_devices(local, [push(chunk=1)], (P("d"),), x)


def test_only_where_there_are_many_uses_and_it_takes_long():
    loss = lambda scan: lambda u: jnp.mean(scan(u) ** 2)
    assert choices(gradient(loss(wave), U).jaxpr) == 1
    assert choices(gradient(loss(wave), U[1:]).jaxpr) == 0  # too small
    assert choices(gradient(loss(growth), U).jaxpr) == 0  # one use


def test_the_value_has_no_choice():
    fun = optimize(lambda u: jnp.mean(wave(u) ** 2), push())
    assert choices(jax.make_jaxpr(fun)(U)) == 0
