"""LoRA: low-rank updates of the weights of a model that does not know of them."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax

import malleable as mal


@mal.value
class LoRA:
    w: jax.Array
    a: jax.Array
    b: jax.Array
    aval = property(lambda self: jax.typeof(self.w))

    def materialise(self):
        return self.w + self.a @ self.b


def product(frame, w: LoRA, x: jax.Array, *, dimension_numbers, **params):
    if dimension_numbers != (((1,), (0,)), ((), ())):
        return frame.bind(w.materialise(), x)
    return frame.bind(w.w, x) + frame.bind(w.a, frame.bind(w.b, x))


RULES = {lax.dot_general_p: product}


def weights(model):
    return [layer.weight for layer in model.layers]


def adapt(model, rank, key):
    """The model, its weights with updates of a rank, zero at first."""
    keys = jax.random.split(key, len(model.layers))
    new = [
        LoRA(w, jnp.zeros((w.shape[0], rank)), jax.random.normal(k, (rank, w.shape[1])))
        for w, k in zip(weights(model), keys, strict=True)
    ]
    return eqx.tree_at(weights, model, new)


def merged(model):
    return eqx.tree_at(weights, model, [w.materialise() for w in weights(model)])


def loss(model, xs, ys):
    return jnp.mean((jax.vmap(model)(xs) - ys) ** 2)


def train(model, xs, ys, steps=200, rate=0.02):
    """Gradient descent on the low-rank leaves alone."""
    updates = [(w.a, w.b) for w in weights(model)]

    def run(updates, model):
        new = [LoRA(w.w, a, b) for w, (a, b) in zip(weights(model), updates, strict=True)]
        return eqx.tree_at(weights, model, new)

    def step(updates, _):
        ruled = lambda m: mal.interpret(loss, RULES)(m, xs, ys)[0]
        grads = jax.grad(lambda u: ruled(run(u, model)))(updates)
        return jax.tree.map(lambda u, g: u - rate * g, updates, grads), None

    return run(lax.scan(step, updates, None, length=steps)[0], model)


def main():
    model = eqx.nn.MLP(4, 2, 16, 1, key=jax.random.key(0))
    xs = jax.random.normal(jax.random.key(1), (32, 4))
    tuned = train(adapt(model, 2, jax.random.key(2)), xs, jnp.sin(xs[:, :2]))
    whole = merged(tuned)
    print(f"loss {loss(model, xs, jnp.sin(xs[:, :2])):.2f}, then", end=" ")
    print(f"{loss(whole, xs, jnp.sin(xs[:, :2])):.2f}")


if __name__ == "__main__":
    main()
