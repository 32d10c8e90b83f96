"""Programs that take their rows in chunks, and loops told turn by turn, row by row."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from malleable import TransformError, as_scan
from tests.rewriting.incremental.test_as_scan import run, x

CHUNKS, C, D = 4, 3, 4
T = CHUNKS * C
CAUSAL, OWN = np.tril(np.ones((T, T), bool)), np.tril(np.ones((C, C), bool))
WEIGHTS = x(3, D, D, seed=1) / 2


def chunks(v):
    return v.reshape(CHUNKS, C, *v.shape[1:])


def queries(v):
    return (v @ w for w in WEIGHTS)


def behind(v):
    return jnp.concatenate([jnp.zeros_like(v[:1]), v[:-1]])


def local(v):
    """Attention to the row's own chunk, and the one before."""
    q, k, u = map(chunks, queries(v))
    k, u = (jnp.concatenate([behind(y), y], 1) for y in (k, u))
    scores = jnp.where(np.tril(np.ones((C, 2 * C), bool), C), q @ k.transpose(0, 2, 1), -jnp.inf)
    return (jax.nn.softmax(scores) @ u).reshape(T, D)


def blocks_of_keys(v, masked=-1e30, mask=CAUSAL):
    """Flash attention: the largest score so far, over blocks of keys."""
    q, k, u = queries(v)

    def block(state, rows):
        largest, total, out = state
        k, u, mask = rows
        scores = jnp.where(mask, q @ k.T, masked)
        new = jnp.maximum(largest, scores.max(-1))
        p, rest = jnp.exp(scores - new[:, None]), jnp.exp(largest - new)
        return (new, total * rest + p.sum(-1), out * rest[:, None] + p @ u), None

    begin = jnp.full(T, -1e30), jnp.zeros(T), jnp.zeros((T, D))
    masks = jnp.asarray(np.moveaxis(mask.reshape(T, CHUNKS, C), 1, 0))
    _, total, out = lax.scan(block, begin, (chunks(k), chunks(u), masks))[0]
    return out / total[:, None]


def blocks_of_queries(v):
    q, k, u = queries(v)
    mask = jnp.asarray(CAUSAL.reshape(CHUNKS, C, T))
    one = lambda b: jax.nn.softmax(jnp.where(b[1], b[0] @ k.T, -jnp.inf)) @ u
    return lax.map(one, (chunks(q), mask)).reshape(T, D)


def blocks_in_python(v):
    q, k, u = (chunks(y) for y in queries(v))
    rows = []
    for i in range(CHUNKS):
        s = [q[i] @ k[j].T for j in range(i)] + [jnp.where(OWN, q[i] @ k[i].T, -jnp.inf)]
        rows.append(jax.nn.softmax(jnp.concatenate(s, 1)) @ u[: i + 1].reshape(-1, D))
    return jnp.concatenate(rows)


def linear(v, late=False):
    """Linear attention: products within chunks, and a state from chunk to chunk."""

    def step(state, rows):
        q, k, u = rows
        new = state + k.T @ u
        return new, q @ (new if late else state) + (OWN * (q @ k.T)) @ u

    return lax.scan(step, jnp.zeros((D, D)), tuple(map(chunks, queries(v))))[1].reshape(T, D)


def state_space(v):
    """Mamba-2: states of whole chunks, with the decay to their ends, handed on by a loop."""
    q, k, u = map(chunks, queries(v))
    a = jnp.cumsum(chunks(-jax.nn.softplus(v[:, 0])), 1)
    decay = jnp.exp(jnp.where(OWN, a[:, :, None] - a[:, None], -jnp.inf))
    within = jnp.einsum("nid,njd,nij,nje->nie", q, k, decay, u)
    states = jnp.einsum("njd,nj,nje->nde", k, jnp.exp(a[:, -1:] - a), u)
    step = lambda h, r: (h * jnp.exp(r[1]) + r[0], h)
    _, before = lax.scan(step, jnp.zeros((D, D)), (states, a[:, -1]))
    return (within + jnp.einsum("nid,nde,ni->nie", q, before, jnp.exp(a))).reshape(T, D)


def recurrent(v):
    cell = lambda h, r: (jnp.tanh(h / 2 + r),) * 2
    loop = jax.checkpoint(lambda h, rows: lax.scan(cell, h, rows))
    return lax.scan(loop, jnp.zeros(D), chunks(v))[1].reshape(T, D)


def layers_with_masks(v):
    masks = jnp.asarray(np.stack([CAUSAL, CAUSAL & ~np.tril(CAUSAL, -3)]))

    def layer(h, p):
        w, mask = p
        return h + jax.nn.softmax(jnp.where(mask, h @ w @ h.T, -jnp.inf)) @ h, None

    return lax.scan(layer, v, (WEIGHTS[:2], masks))[0]


PROGRAMS = {
    "attention to chunks": local,
    "blocks of keys": blocks_of_keys,
    "blocks of keys, masked by -inf": lambda v: blocks_of_keys(v, -jnp.inf),
    "blocks of queries": blocks_of_queries,
    "blocks in Python": blocks_in_python,
    "linear attention in chunks": linear,
    "a state space in chunks": state_space,
    "a recurrence in chunks": recurrent,
    "means of the chunks before, repeated": lambda v: (
        v + jnp.repeat(behind(chunks(v).mean(1)), C, 0)
    ),
    "the first row of each chunk": lambda v: v * jnp.repeat(chunks(v)[:, 0], C, 0),
    "running sums within chunks": lambda v: jnp.cumsum(chunks(v), 1).reshape(T, D),
    "after attention": lambda v: linear(jax.nn.softmax(jnp.where(CAUSAL, v @ v.T, -jnp.inf)) @ v),
    "layers that have masks of their own": layers_with_masks,
}


@pytest.mark.in_turns
@pytest.mark.parametrize("name", PROGRAMS)
def test_steps_give_the_rows_of_a_program_in_chunks(name):
    f, v = PROGRAMS[name], x(T, D)
    np.testing.assert_allclose(run(f, v), f(v), 1e-4, 1e-5)
    np.testing.assert_allclose(run(f, v, poison=True), f(v), 1e-4, 1e-5)


@pytest.mark.parametrize("width", [2, 6])
def test_some_rows_at_a_time_and_one_by_one_share_a_carry(width):
    v = x(T, D)
    np.testing.assert_allclose(run(state_space, v, width), state_space(v), 1e-4, 1e-5)
    (carry, step), (_, one) = as_scan(state_space, v, width=width), as_scan(state_space, v)
    carry, first = one(carry, v[0])
    _, rows = step(carry, v[1 : 1 + width])
    got = jnp.concatenate([first[None], rows])
    np.testing.assert_allclose(got, state_space(v)[: 1 + width], 1e-4, 1e-5)


def test_sequences_at_other_places_of_a_chunk_under_vmap():
    v = x(2, T, D)
    carry, step = as_scan(local, v[0])
    later, _ = step(carry, v[1, 0])
    carries = jax.tree.map(lambda *c: jnp.stack(c), carry, later)
    rows = jnp.stack([v[0, :-1], v[1, 1:]], 1)
    _, ys = lax.scan(jax.vmap(step), carries, rows)
    np.testing.assert_allclose(ys[:, 0], local(v[0])[:-1], 1e-4, 1e-5)
    np.testing.assert_allclose(ys[:, 1], local(v[1])[1:], 1e-4, 1e-5)


def flipped():
    mask = CAUSAL.copy()
    mask[4, 5] = True
    return mask


@pytest.mark.parametrize(
    "f",
    [
        lambda v: linear(v, late=True),
        lambda v: v + jnp.repeat(chunks(v).mean(1), C, 0),
        lambda v: jnp.cumsum(chunks(v), 1)[:, ::-1].reshape(T, D),
        lambda v: blocks_of_keys(v, mask=flipped()),
        lambda v: blocks_of_keys(v, mask=CAUSAL & (np.arange(T) != 5)[:, None]),  # row 5 has none
        lambda v: (chunks(v) @ chunks(v).transpose(0, 2, 1) @ chunks(v)).reshape(T, D),
    ],
)
def test_what_needs_later_rows_of_its_chunk_is_refused(f):
    with pytest.raises(TransformError, match=r"not causal along the axis(.|\n)*test_chunks\.py"):
        as_scan(f, x(T, D))
