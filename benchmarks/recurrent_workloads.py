"""Networks and state spaces whose loss is taken of all steps: plain, and fused by hand."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.nn import log_softmax, logsumexp, sigmoid

from benchmarks.workloads import Gate, Workload, last, normal, recomputed, scanned

F32 = jnp.float32


# ---------------------------------------------------------------- networks


def network(seed, inputs, hidden, outputs, gates=1):
    return {
        "x": normal(seed, inputs, gates * hidden, scale=inputs**-0.5),
        "h": normal(seed + 1, hidden, gates * hidden, scale=hidden**-0.5),
        "b": jnp.zeros(gates * hidden),
        "out": normal(seed + 2, hidden, outputs, scale=hidden**-0.5),
        "bias": jnp.zeros(outputs),
    }


def gru(p, h, x):
    rx, zx, nx = jnp.split(x @ p["x"] + p["b"], 3, -1)
    rh, zh, nh = jnp.split(h @ p["h"], 3, -1)
    z = sigmoid(zx + zh)
    return (1 - z) * jnp.tanh(nx + sigmoid(rx + rh) * nh) + z * h


def rnn(p, h, x):
    return jnp.tanh(x @ p["x"] + h @ p["h"] + p["b"])


def gru_entropy(p, tokens):
    """Mean cross-entropy of the next token; tokens (B, T + 1)."""
    x, y = tokens[:, :-1], tokens[:, 1:]
    h = jnp.zeros((x.shape[0], p["h"].shape[0]))
    hs = scanned(lambda h, x: gru(p, h, x), h, jnp.swapaxes(p["embed"][x], 0, 1))
    logits = jnp.swapaxes(hs, 0, 1) @ p["out"] + p["bias"]
    picked = jnp.take_along_axis(log_softmax(logits), y[..., None], axis=-1)
    return -jnp.mean(picked[..., 0])


def gru_entropy_hand(p, tokens, chunk=16):
    """Chunks of steps, so that the matmul with the vocabulary has rows enough; tail recomputed."""
    x, y = tokens[:, :-1].T, tokens[:, 1:].T
    steps, batch = x.shape
    chunk = min(chunk, steps)
    chunks = lambda z: z.reshape((steps // chunk, chunk, batch))

    @jax.checkpoint
    def loss(h, y):
        logits = h @ p["out"] + p["bias"]
        picked = jnp.take_along_axis(logits, y[..., None], -1)[..., 0]
        return jnp.sum(logsumexp(logits, -1) - picked)

    def some(carry, xy):
        h, total = carry
        hs = scanned(lambda h, x: gru(p, h, p["embed"][x]), h, xy[0])
        return hs[-1], total + loss(hs, xy[1])

    h = jnp.zeros((batch, p["h"].shape[0]))
    return last(some, (h, F32(0)), (chunks(x), chunks(y)))[1] / (steps * batch)


def gru_args(quick):
    batch, steps, hidden, words = (3, 32, 8, 50) if quick else (16, 256, 128, 4000)
    p = network(0, hidden, hidden, words, gates=3) | {"embed": normal(9, words, hidden, scale=0.1)}
    return p, jax.random.randint(jax.random.key(0), (batch, steps + 1), 0, words)


def rnn_readout(p, xs, targets):
    h = jnp.zeros((xs.shape[1], p["h"].shape[0]))
    hs = scanned(lambda h, x: rnn(p, h, x), h, xs)
    return jnp.mean((hs @ p["out"] + p["bias"] - targets) ** 2)


def rnn_readout_hand(p, xs, targets, remat=lambda f: f):
    @remat
    def step(carry, x):
        h, total = carry
        h = rnn(p, h, x[0])
        return h, total + jnp.sum((h @ p["out"] + p["bias"] - x[1]) ** 2)

    h = jnp.zeros((xs.shape[1], p["h"].shape[0]))
    return last(step, (h, F32(0)), (xs, targets))[1] / targets.size


def rnn_args(quick):
    steps, batch, inputs, hidden, outputs = (9, 4, 3, 8, 2) if quick else (512, 64, 32, 128, 128)
    p = network(3, inputs, hidden, outputs)
    return p, normal(4, steps, batch, inputs), normal(5, steps, batch, outputs)


def dense(p, x):
    """Two layers on sequences (B, T, H)."""
    return jnp.mean((jax.nn.gelu(x @ p["inner"]) @ p["outer"]) ** 2)


def dense_hand(p, x):
    """Matrices instead of sequences, a quarter of the rows at a time, worked out again."""

    @jax.checkpoint
    def some(total, x):
        return total + jnp.sum((jax.nn.gelu(x @ p["inner"]) @ p["outer"]) ** 2)

    blocks = x.reshape((4, -1, x.shape[-1]))
    return last(some, F32(0), blocks) / (x.size // x.shape[-1] * p["outer"].shape[-1])


def dense_args(quick):
    batch, steps, width, hidden = (4, 3, 5, 6) if quick else (32, 128, 256, 1024)
    inner, outer = normal(30, width, hidden, scale=0.05), normal(31, hidden, width, scale=0.05)
    return {"inner": inner, "outer": outer}, normal(32, batch, steps, width)


# ---------------------------------------------------------------- state spaces


def hmm(transition, evidence):
    """Log-likelihood and expected occupancy of a filter; evidence (T, B, K), logs."""

    def step(carry, x):
        total, predicted = carry
        top = x.max(-1, keepdims=True)
        p = predicted * jnp.exp(x - top)
        z = p.sum(-1, keepdims=True)
        p = p / z
        return (total + (jnp.log(z) + top).sum(), p @ transition), p

    start = F32(0), jnp.full(evidence.shape[1:], 1.0 / transition.shape[0])
    (total, _), filtered = lax.scan(step, start, evidence)
    return total / evidence.shape[0], filtered.sum(0)


def hmm_hand(transition, evidence, remat=lambda f: f):
    @remat
    def step(carry, x):
        total, predicted, seen = carry
        top = x.max(-1, keepdims=True)
        p = predicted * jnp.exp(x - top)
        z = p.sum(-1, keepdims=True)
        p = p / z
        return total + (jnp.log(z) + top).sum(), p @ transition, seen + p

    shape = evidence.shape[1:]
    start = F32(0), jnp.full(shape, 1.0 / transition.shape[0]), jnp.zeros(shape)
    total, _, seen = last(step, start, evidence)
    return total / evidence.shape[0], seen


def decay(p):
    return jnp.exp(lax.complex(-jnp.exp(p["rate"]), p["turn"]))


def mixed(p, s):
    """Outputs (B, H) of states (B, H, N)."""
    return jnp.einsum("...hn,hn->...h", s, lax.complex(p["re"], p["im"])).real


def state_space(p, u, targets):
    """A diagonal complex state space as in S4D; u and targets (T, B, H)."""
    a = decay(p)
    start = jnp.zeros((*u.shape[1:], a.shape[-1]), a.dtype)
    states = scanned(lambda s, u: a * s + u[..., None], start, u)
    return jnp.mean((mixed(p, states) - targets) ** 2)


def state_space_hand(p, u, targets, remat=lambda f: f):
    a = decay(p)

    @remat
    def step(carry, x):
        s, total = carry
        s = a * s + x[0][..., None]
        return s, total + jnp.sum((mixed(p, s) - x[1]) ** 2)

    start = jnp.zeros((*u.shape[1:], a.shape[-1]), a.dtype)
    return last(step, (start, F32(0)), (u, targets))[1] / targets.size


def state_space_args(quick):
    steps, batch, width, modes = (9, 2, 3, 4) if quick else (1000, 8, 32, 16)
    names = ("rate", "turn", "re", "im")
    p = {name: normal(20 + i, width, modes, scale=0.5) for i, name in enumerate(names)}
    return p, normal(6, steps, batch, width), normal(7, steps, batch, width)


# ---------------------------------------------------------------- all of them


def matrix(quick):
    modes, steps, batch = (4, 9, 3) if quick else (32, 2000, 64)
    return jax.nn.softmax(normal(0, modes, modes)), normal(1, steps, batch, modes)


WORKLOADS = [
    Workload(
        "GRU, cross-entropy, V 4000",
        gru_entropy,
        gru_entropy_hand,
        gru_args,
        (0,),
        gates=(
            Gate("forward", "speed", "plain", 3.5),
            Gate("gradient", "speed", "plain", 2.3),
            Gate("gradient", "memory", "plain", 6),
        ),
        resident=True,
    ),
    Workload(
        "RNN, readout, squared error",
        rnn_readout,
        rnn_readout_hand,
        rnn_args,
        (0,),
        hand_gradient=recomputed(rnn_readout_hand),
    ),
    Workload(
        "two dense layers over sequences",
        dense,
        dense_hand,
        dense_args,
        (0,),
        gates=(Gate("gradient", "speed", "plain", 1.5),),
    ),
    Workload(
        "HMM filter: likelihood, occupancy",
        hmm,
        hmm_hand,
        matrix,
        (0, 1),
        hand_gradient=recomputed(hmm_hand),
    ),
    Workload(
        "complex state space, squared error",
        state_space,
        state_space_hand,
        state_space_args,
        (0,),
        hand_gradient=recomputed(state_space_hand),
    ),
]
