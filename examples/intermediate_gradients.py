"""What a Flax model does inside, and how its loss depends on that: the model only has tags."""

import jax
import jax.numpy as jnp
from flax import nnx

import malleable as mal


class Net(nnx.Module):
    """Two hidden layers; `tag` changes nothing until a transformation asks."""

    def __init__(self, rngs):
        self.first = nnx.Linear(8, 32, rngs=rngs)
        self.second = nnx.Linear(32, 32, rngs=rngs)
        self.last = nnx.Linear(32, 1, rngs=rngs)

    def __call__(self, x):
        x = mal.tag(nnx.relu(self.first(x)), "first")
        x = mal.tag(nnx.relu(self.second(x)), "second")
        return self.last(x)


def main():
    x = jax.random.normal(jax.random.key(0), (64, 8))
    y = jnp.sin(x.sum(1, keepdims=True))
    net = Net(nnx.Rngs(0))

    def loss(x):
        return jnp.mean((net(x) - y) ** 2)

    _, values = mal.reap(loss)(x)
    value, slopes = mal.cotangents(jax.jit(loss))(x)
    print(f"loss {value:.3f}")
    for layer in values:
        dead = jnp.mean(jnp.all(values[layer] == 0, axis=0))
        reach = jnp.linalg.norm(slopes[layer])
        print(f"{layer:>7}: {dead:.0%} dead units, gradient norm {reach:.4f}")

    without = {"second": values["second"].at[:, 0].set(0.0)}
    guess = value - jnp.sum(slopes["second"][:, 0] * values["second"][:, 0])
    print(f"without unit 0: loss {mal.plant(loss)(without, x):.4f}, by its gradient {guess:.4f}")


if __name__ == "__main__":
    main()
