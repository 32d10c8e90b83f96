"""Programs to debug: a scan in a vmap in a jit in a gradient, of plain JAX, Flax and Equinox."""

import inspect
import os

import equinox as eqx
import flax.linen as linen
import jax
import jax.numpy as jnp
from jax import lax

NAME = os.path.basename(__file__)


def line_of(fun, text):
    """The number of the first line of a function that holds a text."""
    lines, start = inspect.getsourcelines(fun)
    return start + next(i for i, line in enumerate(lines) if text in line)


def advance(c, x):
    r = c * x
    y = jnp.sqrt(r)
    return jnp.sin(r) + 1.0, y


def rollout(params, xs):
    out, ys = lax.scan(advance, params["w"], xs)
    total = jnp.sum(ys)
    return out + total


def loss(params, xs):
    each = jax.vmap(rollout, in_axes=(None, 0))(params, xs)
    mean = each.mean()
    return mean


gradient = jax.grad(jax.jit(loss))
PARAMS = {"w": jnp.float32(1.0)}
XS = jnp.ones((3, 4))
BAD = XS.at[2, 1].set(-1.0)  # makes a NaN in step 1 of example 2


class Cell(linen.Module):
    """A cell of Flax, to be scanned over."""

    @linen.compact
    def __call__(self, h, x):
        z = linen.Dense(3)(x)
        h = jnp.tanh(h + z)
        return h, jnp.log(x.sum())


def flax_loss(params, xs):
    cell = Cell()

    def one(xs):
        h, ys = lax.scan(lambda h, x: cell.apply(params, h, x), jnp.zeros(3), xs)
        return h.sum() + ys.sum()

    score = jax.jit(jax.vmap(one))(xs)
    return score.mean()


def of_flax():
    """(gradient of a loss, its arguments: parameters and four examples of five steps)."""
    params = Cell().init(jax.random.key(0), jnp.zeros(3), jnp.ones(3))
    return jax.grad(flax_loss), params, jnp.ones((4, 5, 3))


class Net(eqx.Module):
    """A cell of Equinox."""

    linear: eqx.nn.Linear
    scale: jax.Array

    def __call__(self, h, x):
        z = self.linear(x)
        h = jnp.tanh(h + z) * self.scale
        return h, jnp.log(x.sum())


@eqx.filter_jit
def scores(net, xs):
    def one(xs):
        h, ys = lax.scan(lambda h, x: net(h, x), jnp.zeros(3), xs)
        return h.sum() + ys.sum()

    return jax.vmap(one)(xs)


def equinox_loss(net, xs):
    score = scores(net, xs)
    return score.mean()


def of_equinox():
    net = Net(eqx.nn.Linear(3, 3, key=jax.random.key(0)), jnp.ones(3))
    return eqx.filter_grad(equinox_loss), net, jnp.ones((4, 5, 3))
