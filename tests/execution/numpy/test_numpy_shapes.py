"""NumPy code that moves, cuts, joins, reduces and orders arrays equals XLA's."""

import jax.numpy as jnp
import pytest
from jax import lax, nn

from tests.execution.numpy.numpy_against_xla import X, assert_same

SHAPES = {
    "axes": lambda x: (x.T, x[:, None] * x[None], jnp.moveaxis(x, 0, 1), x[None].squeeze(0)),
    "joined": lambda x: (jnp.concatenate([x, x + 1], 1), jnp.stack([x, x]), jnp.tile(x, (2, 2))),
    "cut": lambda x: (x[1:3], x[::-1], x[:, ::2], x[-1], jnp.split(x, 2), jnp.roll(x, 1, 0)),
    "padded": lambda x: (jnp.pad(x, 2), lax.pad(x, 5.0, ((-1, -1, 1), (2, 1, 2)))),
    "made": lambda x: (jnp.eye(3), jnp.arange(4), jnp.zeros((2, 2)), jnp.linspace(0, 1, 5), 3.0),
    "sums": lambda x: (x.sum(), x.mean(0), x.std(1), x.max(), x.min(1), jnp.prod(x, 0)),
    "tests": lambda x: (jnp.any(x > 1), jnp.all(x > -9, 0), jnp.argmax(x, 0), jnp.argmin(x)),
    "running": lambda x: (jnp.cumsum(x, 0), jnp.cumprod(x, 1), lax.cummax(x, 1, reverse=True)),
    "ordered": lambda x: (jnp.sort(x, 0), jnp.argsort(x), lax.top_k(x, 2), jnp.median(x)),
    "products": lambda x: (x @ x.T, x @ x[0], x[:, 0] @ x, jnp.outer(x[0], x[1]), jnp.vdot(x, x)),
    "stacks": lambda x: (jnp.stack([x, x]) @ x.T, jnp.einsum("ij,kj,kl->il", x, x, x)),
    "windows": lambda x: (
        lax.reduce_window(x, -jnp.inf, lax.max, (2, 2), (1, 2), "SAME"),
        jnp.convolve(x[:, 0], x[0]),
    ),
    "fft": lambda x: (jnp.fft.fft(x), jnp.fft.irfft(jnp.fft.rfft(x)), jnp.fft.fft2(x)),
    "softmax": lambda x: (nn.softmax(x), nn.logsumexp(x, 0), nn.standardize(x)),
    "searches": lambda x: (
        jnp.searchsorted(jnp.sort(x[:, 0]), x),
        jnp.interp(x, jnp.array([-1.0, 0, 1]), jnp.array([1.0, 5, 2])),
    ),
}


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_and_reductions(name):
    assert_same(SHAPES[name], X)
