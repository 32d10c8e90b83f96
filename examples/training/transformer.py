"""A small transformer on the letters of NumPy's documentation, as one writes it for one device."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

HEADS, WIDTH, DEPTH, LENGTH, LETTERS = 8, 64, 3, 48, 128


def texts(count):
    """The first `count` passages of the text; (count, LENGTH + 1), letters as numbers."""
    named = (getattr(np, name) for name in sorted(np.__all__))
    whole = "\n".join(doc for x in named if (doc := inspect.getdoc(x)))
    letters = np.frombuffer(whole.encode("ascii", "replace"), "uint8").astype("int32")
    return letters[: count * (LENGTH + 1)].reshape(count, -1)


def parameters(key):
    """Random parameters; those of all layers are stacked."""
    sizes = {
        "embed": (LETTERS, WIDTH),
        "place": (LENGTH, WIDTH),
        "qkv": (DEPTH, WIDTH, 3, HEADS, WIDTH // HEADS),
        "out": (DEPTH, HEADS, WIDTH // HEADS, WIDTH),
        "up": (DEPTH, WIDTH, 4 * WIDTH),
        "down": (DEPTH, 4 * WIDTH, WIDTH),
    }
    keys = jax.random.split(key, len(sizes))
    rows = zip(keys, sizes.items(), strict=True)
    return {name: jax.random.normal(k, size) / 8 for k, (name, size) in rows}


def norm(x):
    return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)


def attention(p, x):
    q, k, v = jnp.moveaxis(jnp.einsum("btd,dche->btche", norm(x), p["qkv"]), 2, 0)
    scores = jnp.einsum("bthe,bshe->bhts", q, k) / q.shape[-1] ** 0.5
    scores = jnp.where(jnp.tri(x.shape[1], dtype=bool), scores, -1e9)
    mixed = jnp.einsum("bhts,bshe->bthe", jax.nn.softmax(scores), v)
    return jnp.einsum("bthe,hed->btd", mixed, p["out"])


def loss(params, text, new_key):
    """The mean surprise by the next letter; new_key() gives the key of the dropout."""
    x = params["embed"][text[:, :-1]] + params["place"]
    x = x * jax.random.bernoulli(new_key(), 0.9, x.shape) / 0.9

    def layer(x, p):
        x = x + attention(p, x)
        return x + jax.nn.gelu(norm(x) @ p["up"]) @ p["down"], None

    x, _ = lax.scan(layer, x, {name: params[name] for name in ("qkv", "out", "up", "down")})
    logits = jax.nn.log_softmax(norm(x) @ params["embed"].T)
    return -jnp.take_along_axis(logits, text[:, 1:, None], -1).mean()


def updated(params, slope, rate):
    return jax.tree.map(lambda p, g: p - rate * g, params, slope)
