"""Weights of int8 with float activations, in a model that does not know of them."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax

import malleable as mal


@mal.value
class Int8:
    q: jax.Array
    scale: jax.Array  # by row
    aval = property(lambda self: jax.ShapeDtypeStruct(self.q.shape, self.scale.dtype))

    def materialise(self):
        return self.q.astype(self.scale.dtype) * self.scale


def quantised(w):
    scale = jnp.max(jnp.abs(w), 1, keepdims=True) / 127
    return Int8(jnp.round(w / scale).astype(jnp.int8), scale)


def product(frame, w: Int8, x: jax.Array, *, dimension_numbers, **params):
    if dimension_numbers != (((1,), (0,)), ((), ())) or x.ndim != 1:
        return frame.bind(w.materialise(), x)
    return frame.bind(w.q.astype(x.dtype), x) * w.scale[:, 0]


def weights(model):
    return [layer.weight for layer in model.layers]


def bytes_of_arguments(fun, *args):
    return jax.jit(fun).lower(*args).compile().memory_analysis().argument_size_in_bytes


def main():
    model = eqx.nn.MLP(256, 8, 256, 2, key=jax.random.key(0))
    small = eqx.tree_at(weights, model, list(map(quantised, weights(model))))
    arrays, rest = eqx.partition(model, eqx.is_array)
    x = jax.random.normal(jax.random.key(1), (256,))

    def run(model, x):
        return mal.interpret(lambda m, x: m(x), {lax.dot_general_p: product})(model, x)[0]

    few, rest8 = eqx.partition(small, eqx.is_array)
    full = bytes_of_arguments(lambda a, x: eqx.combine(a, rest)(x), arrays, x)
    less = bytes_of_arguments(lambda a, x: run(eqx.combine(a, rest8), x), few, x)
    error = jnp.max(jnp.abs(run(small, x) - model(x))) / jnp.max(jnp.abs(model(x)))
    print(f"{full / less:.1f} times less memory for arguments, error {error:.1%}")


if __name__ == "__main__":
    main()
