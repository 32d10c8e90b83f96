"""Random programs of jnp calls on arrays "n3 m n:i", written with no size in them."""

import random

import jax
from jax import lax
from jax import numpy as jnp


def _index(x, i):
    return i % x.shape[0]


UNARY = [
    jnp.sin,
    lambda x: jnp.log1p(jnp.abs(x)),
    lambda x: 1 / x,
    lambda x: x / x.shape[0],
    lambda x: x - x.mean(0),
    lambda x: (x - x.mean(0)) / (x.std(0) + 1.0),
    lambda x: jnp.where(x > x.mean(), x, 0),
    lambda x: jax.nn.softmax(x, 0),
    lambda x: jax.nn.gelu(x),
    lambda x: jnp.sort(x, 0),
    lambda x: jnp.argsort(x, 0) * 0.1,
    lambda x: jnp.cumsum(x, 0) / x.shape[0],
    lambda x: lax.cummax(x, reverse=True),
    lambda x: x[::-1],
    lambda x: jnp.roll(x, 1, 0),
    lambda x: x[1:],
    lambda x: x[:-1],
    lambda x: x[::2],
    lambda x: jnp.diff(x, axis=0),
    lambda x: x.T,
    lambda x: x.reshape(-1),
    lambda x: x.T.reshape(-1),
    lambda x: jnp.concatenate([x, x[:1]]),
    lambda x: jnp.concatenate([x[:1], x * 2, x]),
    lambda x: jnp.pad(x, [(1, 2)] * x.ndim),
    lambda x: jnp.repeat(x, 2, 0),
    lambda x: jnp.tile(x, 2),
    lambda x: x.at[0].set(3.0),
    lambda x: x.at[1:].add(1.0),
    lambda x: x[jnp.argmax(x.reshape(-1)) % x.shape[0]],
    lambda x: x.max(0),
    lambda x: x.sum(-1),
    lambda x: jnp.quantile(x, 0.3, axis=0),
    lambda x: x.min(-1, keepdims=True),
    lambda x: lax.scan(lambda c, v: (0.5 * c + v, c - v), jnp.zeros(x.shape[1:]), x)[1],
    lambda x: jax.grad(lambda v: (jnp.sort(v, 0) * jnp.cumsum(v, 0)).mean())(x),
    lambda x: jax.grad(lambda v: jnp.tanh(v - v.mean(0)).std())(x),
    lambda x: lax.cond(x.sum() > 0, lambda: x * 2, lambda: x[::-1]),
    lambda x: lax.fori_loop(0, 3, lambda i, c: jnp.tanh(c - c.mean()) + i, x),
]
INDEXED = [
    lambda x, i: x[_index(x, i)],
    lambda x, i: x[i],
    lambda x, i: x.at[i].get(mode="fill", fill_value=0),
    lambda x, i: x.at[i].set(2.0),
    lambda x, i: x.at[i].max(0.5, mode="drop"),
    lambda x, i: jax.ops.segment_sum(x[_index(x, i)], i % 4, 4),
    lambda x, i: jax.ops.segment_sum(x[i], i, x.shape[0]),
    lambda x, i: jnp.take(x, i, axis=-1, mode="clip"),
]
BINARY = [
    lambda x, y: x[:, None] - y.reshape(-1)[None, :5] if x.ndim == 1 else None,
    lambda x, y: jnp.outer(x, y),
    lambda x, y: x @ y,
    lambda x, y: x @ y.T,
    lambda x, y: x + y,
    lambda x, y: jnp.concatenate([x, y]),
    lambda x, y: jnp.where(x > 0, x, y),
    lambda x, y: jnp.stack([x, y]),
]


def program(seed: int, steps: int = 5):
    """A function of (n, 3) and (m,) floats and (n,) integers; the same calls at every size."""
    calls = _calls(seed, steps)

    def fun(x, y, i):
        values = [x, y]
        for call, a, b in calls:
            args = {"u": (values[a],), "i": (values[a], i), "b": (values[a], values[b])}[call[0]]
            values.append(call[1](*args))
        return values[2:]

    return fun


def _calls(seed, steps):
    """Drawn where they are right for n = 7 and m = 11, of which no call knows."""
    rng, calls = random.Random(seed), []
    shapes = [jax.ShapeDtypeStruct((7, 3), "float32"), jax.ShapeDtypeStruct((11,), "float32")]
    index = jax.ShapeDtypeStruct((7,), "int32")
    for _ in range(60):
        if len(calls) == steps:
            break
        kind = rng.choice("uuuib")
        call = (kind, rng.choice({"u": UNARY, "i": INDEXED, "b": BINARY}[kind]))
        a, b = rng.randrange(len(shapes)), rng.randrange(len(shapes))
        args = {"u": (shapes[a],), "i": (shapes[a], index), "b": (shapes[a], shapes[b])}[kind]
        try:
            out = jax.eval_shape(call[1], *args)
        except (TypeError, ValueError, IndexError, AttributeError):
            continue
        if hasattr(out, "shape") and 0 < out.size < 3000:
            calls.append((call, a, b))
            shapes.append(out)
    return calls
