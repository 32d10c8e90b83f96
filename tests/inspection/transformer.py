"""A small transformer: what the picture of the page shows."""

import jax
import jax.numpy as jnp
from jax import lax


def normalize(x, scale):
    x = x - x.mean(-1, keepdims=True)
    power = (x**2).mean(-1, keepdims=True)
    return scale * x * lax.rsqrt(power + 1e-6)


def attend(x, w):
    q, k, v = jnp.split(x @ w["qkv"], 3, -1)
    scores = q @ k.mT / q.shape[-1] ** 0.5
    here = jnp.tri(x.shape[-2], dtype=bool)
    scores = jnp.where(here, scores, -1e9)
    weights = jax.nn.softmax(scores)
    return weights @ v @ w["out"]


@jax.jit
def feed_forward(x, w):
    return jax.nn.gelu(x @ w["up"]) @ w["down"]


def block(x, w):
    y = normalize(x, w["scale"])
    x = x + attend(y, w)
    y = normalize(x, w["scale"])
    return x + feed_forward(y, w), None


def loss(params, tokens, keep):
    x = params["embed"][tokens[:, :-1]]
    x, _ = lax.scan(block, x, params["blocks"])
    half = lambda x: 0.5 * x
    x = lax.cond(keep > 0.5, lambda x: x, half, x)
    logits = x @ params["embed"].T
    logp = jax.nn.log_softmax(logits)
    words = jnp.arange(logits.shape[-1])
    hit = tokens[:, 1:, None] == words
    return -jnp.where(hit, logp, 0.0).sum()


def arguments(width=768, depth=12, words=50257, length=1025, batch=8):
    """Types are enough to see the program: of a model with 124 million parameters."""
    shapes = {
        "qkv": (depth, width, 3 * width),
        "out": (depth, width, width),
        "up": (depth, width, 4 * width),
        "down": (depth, 4 * width, width),
        "scale": (depth, width),
    }
    like = jax.ShapeDtypeStruct
    blocks = {name: like(shape, "float32") for name, shape in shapes.items()}
    params = {"embed": like((words, width), "float32"), "blocks": blocks}
    return params, like((batch, length), "int32"), like((), "float32")
