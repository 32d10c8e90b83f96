"""Symbolic zeros: the part of a derivative that is zero is not computed."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

import malleable as mal


@mal.value(static="type")
class Zero:
    type: Any
    aval = property(lambda self: self.type)

    def materialise(self):
        return jnp.zeros(self.type.shape, self.type.dtype)


Some = Zero | jax.Array


def zero(shape):
    return Zero(jax.ShapeDtypeStruct(shape, jnp.float32))


def linear(frame, *xs: Some, **params):
    """Zero in, zero out: of products too, if one factor is zero."""
    types = [x.type if isinstance(x, Zero) else x for x in xs]
    out = jax.eval_shape(frame.bind, *types)
    return Zero(jax.ShapeDtypeStruct(out.shape, out.dtype))


def add(frame, x: Some, y: Some, **params):
    if isinstance(x, Zero):
        return y
    return x


def other(frame, *xs, **params):
    """What derivatives add with has no name in jax.lax; anything else is for arrays."""
    if frame.eqn.primitive.name == "add_any":
        return add(frame, *xs)
    return frame.bind(*(x.materialise() if isinstance(x, Zero) else x for x in xs))


LINEAR = ["mul", "neg", "dot_general", "reduce_sum", "broadcast_in_dim", "reshape", "transpose"]
RULES = dict.fromkeys([getattr(lax, f"{name}_p") for name in LINEAR], linear)
RULES |= {lax.add_p: add, Zero: other}


def network(w1, w2, x):
    return jnp.sum(jnp.tanh(x @ w1) @ w2)


def pushed(w1, w2, x, dw1, dw2, dx):
    return jax.jvp(network, (w1, w2, x), (dw1, dw2, dx))[1]


def products(fun, *args):
    return str(jax.make_jaxpr(fun)(*args)).count("dot_general")


def main():
    args = jnp.ones((4, 4)), jnp.ones((4, 2)), jnp.ones((3, 4))
    zeros = zero((4, 4)), zero((3, 4))
    sparse = lambda *args: mal.interpret(
        lambda *a: pushed(*args, a[0], jnp.ones((4, 2)), a[1]), RULES
    )(*zeros)[0]
    full = lambda *args: pushed(*args, jnp.zeros((4, 4)), jnp.ones((4, 2)), jnp.zeros((3, 4)))
    same = jnp.allclose(sparse(*args), full(*args))
    print(products(full, *args), "products, then", products(sparse, *args), bool(same))


if __name__ == "__main__":
    main()
