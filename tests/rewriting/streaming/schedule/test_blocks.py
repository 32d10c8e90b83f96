"""A block of slices goes through equations in the dim where it is; nothing large is transposed."""

import jax
import jax.numpy as jnp
import pytest

from malleable import compat, stage
from malleable.rewriting.passes.passes import optimize
from malleable.rewriting.streaming.stream import stream
from tests.scans import same_everywhere

M, N, D = 12, 10, 3
X, Y = (
    jnp.sin(jnp.arange(M * D * 1.0)).reshape(M, D),
    jnp.cos(jnp.arange(N * D * 1.0)).reshape(N, D),
)
W = jnp.linspace(0.5, 1.5, M)


def masked_heads(x, y):
    """Attention of one head per feature: the mask's rows are in front, those of the scores not."""
    seen = jnp.arange(N) <= jnp.arange(M)[:, None]
    scores = jnp.where(seen, jnp.einsum("md,nd->dmn", x, y), -jnp.inf)
    return jnp.einsum("dmn,nd->dm", jax.nn.softmax(scores), y)


PAIRWISE = {
    "differences": lambda x, y: (jnp.abs(x[:, None] - y[None]) ** 1.5).sum((0, 2)),
    "a kernel": lambda x, y: jnp.exp(-((x[:, None] - y[None]) ** 2).sum(-1)) @ y,
    "columns": lambda x, y: jnp.exp(x @ y.T - 3.0).sum(0),
    "weights of the rows": lambda x, y: (W[:, None] * jnp.tanh(x @ y.T)).sum(1),
    "a mask": masked_heads,
    "turned": lambda x, y: jnp.tanh((x @ y.T).T * W).max(1),
}


def streamed(block):
    return stream(threshold=64, block=block)


def transposed(jaxpr):
    """The sizes of all that is transposed in a program, and not just spread: that is one kernel."""
    inner = [size for e in jaxpr.eqns for b in compat.bodies(e.params) for size in transposed(b)]
    spread = {e.outvars[0] for e in jaxpr.eqns if e.primitive.name == "broadcast_in_dim"}
    moved = [e.invars[0] for e in jaxpr.eqns if e.primitive.name == "transpose"]
    return inner + [v.aval.size for v in moved if v not in spread]


@pytest.mark.parametrize("name", PAIRWISE)
def test_blocks_give_what_the_whole_gave(name):
    same_everywhere(optimize(PAIRWISE[name], streamed(4)), PAIRWISE[name], X, Y)


@pytest.mark.parametrize("name", sorted({*PAIRWISE} - {"turned"}))
def test_no_value_as_large_as_a_block_is_transposed(name):
    program = streamed(4)(stage(PAIRWISE[name])(X, Y).jaxpr)
    assert all(size < 4 * N for size in transposed(program))
