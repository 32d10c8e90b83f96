"""A chapter: a transformer that writes letter by letter, with a step derived from it."""

import functools
import pydoc_data.topics

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

import malleable as mal
from malleable.tour.rows import Row, close, equal, faster, seconds
from malleable.tour.training import adam

LENGTH, WIDTH, HEADS, LAYERS, BATCH = 128, 64, 4, 2, 8


def letters():
    """Python's own reference: the numbers of its letters, in order, and the letters."""
    text = "\n".join(pydoc_data.topics.topics.values())
    known, numbers = np.unique(list(text), return_inverse=True)
    return jnp.asarray(numbers, jnp.int32), known


def normal(name, *shape):
    return mal.param(name, jax.nn.initializers.normal(shape[0] ** -0.5), shape)


def centered(x):
    return jax.nn.standardize(x, axis=-1)


def layer(x):
    """Causal attention and a perceptron; x: (rows, WIDTH)."""
    q, k, v = (
        (centered(x) @ normal(n, WIDTH, WIDTH)).reshape(-1, HEADS, WIDTH // HEADS) for n in "qkv"
    )
    x += jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(x.shape) @ normal(
        "o", WIDTH, WIDTH
    )
    return x + jax.nn.gelu(centered(x) @ normal("up", WIDTH, 4 * WIDTH)) @ normal(
        "down", 4 * WIDTH, WIDTH
    )


def logits(text, known):
    """Of each next letter, given those up to it; text: numbers of letters. Nothing is cached."""
    table = normal("letters", known, WIDTH)
    x = table[text] + normal("places", len(text), WIDTH)
    for k in range(LAYERS):
        with mal.scope(f"layer {k}"):
            x = layer(x)
    return centered(x) @ normal("out", WIDTH, known)


def guesses_of(known):
    """`logits` for so many letters, a function of the parameters and of a text."""
    return mal.apply(functools.partial(logits, known=known))


def surprise(params, text, known):
    """Mean cross-entropy of each next letter, in nats; text: (lanes, LENGTH + 1)."""
    guess = jax.vmap(functools.partial(guesses_of(known), params))(text[:, :-1])
    return -jnp.take_along_axis(jax.nn.log_softmax(guess), text[:, 1:, None], axis=-1).mean()


def trained(text, known, steps):
    """Parameters after some steps of Adam, on parts of the text."""

    def step(state, t):
        params, mean, square = state
        at = jax.random.randint(jax.random.fold_in(root, t), (BATCH,), 0, len(text) - LENGTH - 1)
        rows = text[at[:, None] + jnp.arange(LENGTH + 1)]
        error, slopes = jax.value_and_grad(surprise)(params, rows, known)
        return adam(params, slopes, mean, square, t), error

    root = jax.random.key(0)
    params = mal.init(functools.partial(logits, known=known))(root, text[:LENGTH])
    zeros = jax.tree.map(jnp.zeros_like, params)
    (params, *_), errors = jax.jit(lambda s: lax.scan(step, s, jnp.arange(1, steps + 1)))(
        (params, zeros, zeros)
    )
    return params, errors


def drawn(key, t, scores):
    return jax.random.categorical(jax.random.fold_in(key, t), 1.5 * scores).astype(jnp.int32)


def from_all(model, key, first):
    """Letter by letter; each time, of all that there is so far."""

    def turn(text, t):
        letter = drawn(key, t, model(text)[t])
        return text.at[t + 1].set(letter, mode="drop"), letter

    return lax.scan(turn, jnp.zeros(LENGTH, jnp.int32).at[0].set(first), jnp.arange(LENGTH))[1]


def from_steps(model, key, first):
    """The same, by steps derived from the model."""
    carry, step = mal.as_scan(model, jax.ShapeDtypeStruct((LENGTH,), jnp.int32))

    def turn(state, t):
        carry, letter = state
        carry, scores = step(carry, letter)
        letter = drawn(key, t, scores)
        return (carry, letter), letter

    return lax.scan(turn, (carry, first), jnp.arange(LENGTH))[1]


def sampled(steps, console):
    """A transformer as it is written, sampled by a step derived from it"""
    text, letter_of = letters()
    with console.status("training a transformer on Python's reference"):
        params, errors = trained(text, len(letter_of), steps)
    model = functools.partial(guesses_of(len(letter_of)), params)
    ways = [jax.jit(functools.partial(way, model)) for way in (from_steps, from_all)]
    args = jax.random.key(1), text[0]
    with console.status("sampling"):
        ours, plain = (np.asarray(way(*args)) for way in ways)
        times = [min(seconds(way, *args) for _ in range(3)) for way in ways]
        carry, step = mal.as_scan(model, text[:LENGTH])
        rows = jax.jit(lambda c, x: lax.scan(step, c, x)[1])(carry, text[:LENGTH])
    console.print("it writes: " + ascii("".join(letter_of[ours])))
    first, last = float(errors[0]), float(errors[-10:].mean())
    return [
        Row("nats a letter, trained", f"{last:.2f}", f"below {first:.2f}", last < first),
        close("logits, step by step (as_scan)", rows, model(text[:LENGTH])),
        equal(f"{LENGTH} letters that are drawn", ours, plain),
        faster("their time", *times, whose="all again, each time"),
        equal("values kept, two a layer", np.array(len(step.kept)), np.array(2 * LAYERS)),
    ]
