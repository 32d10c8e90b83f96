"""A plain causal model, sampled in one loop: `as_scan` derives the step and what it keeps."""

import jax
import jax.numpy as jnp
from jax import lax

import malleable as mal

LENGTH, WIDTH, LETTERS = 32, 16, 27
table, query, key, value = jax.random.normal(jax.random.key(0), (4, LETTERS, WIDTH))[:, :LETTERS]
places = jax.random.normal(jax.random.key(1), (LENGTH, WIDTH))


def model(text):
    """(LENGTH,) letters to (LENGTH, LETTERS) scores of each next one. Nothing is cached."""
    x = table[text] + places
    q, k, v = query[text] + x, key[text] + x, value[text] + x
    scores = jnp.where(jnp.tril(jnp.ones((LENGTH, LENGTH), bool)), q @ k.T / WIDTH, -jnp.inf)
    return (x + jax.nn.softmax(scores) @ v) @ table.T / WIDTH


def sample(root, first):
    """The letters that follow the first one, each drawn from what the model says of it."""
    carry, step = mal.as_scan(model, jax.ShapeDtypeStruct((LENGTH,), jnp.int32))

    def turn(state, t):
        carry, letter = state
        carry, scores = step(carry, letter)
        letter = jax.random.categorical(jax.random.fold_in(root, t), scores).astype(jnp.int32)
        return (carry, letter), letter

    return lax.scan(turn, (carry, first), jnp.arange(LENGTH))[1]


def main():
    letters = jax.jit(sample)(jax.random.key(2), jnp.int32(0))
    text = jnp.concatenate([jnp.zeros(1, jnp.int32), letters[:-1]])
    scores = jax.jit(model)(text)  # the whole model, on what was drawn
    again = [
        jax.random.categorical(jax.random.fold_in(jax.random.key(2), t), scores[t])
        for t in range(LENGTH)
    ]
    print("letters:", "".join(" abcdefghijklmnopqrstuvwxyz"[k] for k in letters))
    print("as the whole model draws them:", bool((letters == jnp.stack(again)).all()))


if __name__ == "__main__":
    main()
