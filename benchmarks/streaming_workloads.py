"""Programs that stack what a scan makes and then reduce it: plain, and fused by hand."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.nn import log_softmax, logsumexp, sigmoid

from benchmarks.workloads import Workload, gates, normal, uniform

F32 = jnp.float32


def scanned(step, carry, xs=None, length=None):
    """What step(carry, x) -> carry makes of each element, stacked."""

    def both(carry, x):
        carry = step(carry, x)
        return carry, carry

    return lax.scan(both, carry, xs, length=length)[1]


def last(step, carry, xs=None, length=None):
    """The carry at the end."""
    return lax.scan(lambda c, x: (step(c, x), None), carry, xs, length=length)[0]


# ---------------------------------------------------------------- the example of jax#4968


def seed_mean(x):
    return scanned(lambda c, _: jnp.sin(c), x, length=100).mean()


def seed_mean_hand(x):
    def step(carry, _):
        c, total = carry
        y = jnp.sin(c)
        return y, total + y.sum()

    return last(step, (x, F32(0)), length=100)[1] / (100 * x.size)


def seed_target(x, targets):
    ys = scanned(lambda c, _: jnp.sin(c), x, length=targets.shape[0])
    return jnp.mean((ys - targets) ** 2)


def seed_target_hand(x, targets, remat=lambda f: f):
    @remat
    def step(carry, target):
        c, total = carry
        y = jnp.sin(c)
        return y, total + jnp.sum((y - target) ** 2)

    return last(step, (x, F32(0)), targets)[1] / targets.size


# ---------------------------------------------------------------- statistics of paths


def price(s, z, steps):
    return s * jnp.exp(0.03 / steps + 0.2 * steps**-0.5 * z)


def monte_carlo(z):
    """Asian and lookback payoffs, the chance to hit a barrier, the mean minimum; z (T, P)."""
    steps = z.shape[0]
    s = scanned(lambda s, z: price(s, z, steps), jnp.full(z.shape[1], 100.0), z)
    asian = jnp.maximum(s.mean(0) - 100, 0).mean()
    lookback = (s.max(0) - s[-1]).mean()
    return asian, lookback, jnp.mean(jnp.any(s > 120, 0)), s.min(0).mean()


def monte_carlo_hand(z):
    steps, paths = z.shape
    full = lambda x: jnp.full(paths, x, F32)

    def step(carry, z):
        s, total, high, hit, low = carry
        s = price(s, z, steps)
        return s, total + s, jnp.maximum(high, s), hit | (s > 120), jnp.minimum(low, s)

    start = full(100), full(0), full(-jnp.inf), jnp.zeros(paths, bool), full(jnp.inf)
    s, total, high, hit, low = last(step, start, z)
    asian = jnp.maximum(total / steps - 100, 0).mean()
    return asian, (high - s).mean(), jnp.mean(hit), low.mean()


def garch(theta, returns):
    w, a, b = theta
    first = jnp.full(returns.shape[1:], w / (1 - a - b))
    _, s = lax.scan(lambda s, r: (w + a * r**2 + b * s, s), first, returns)
    return 0.5 * jnp.mean(jnp.log(s) + returns**2 / s)


def garch_hand(theta, returns, remat=lambda f: f):
    w, a, b = theta

    @remat
    def step(carry, r):
        s, total = carry
        return w + a * r * r + b * s, total + jnp.log(s) + r * r / s

    first = jnp.full(returns.shape[1:], w / (1 - a - b))
    return 0.5 * last(step, (first, jnp.zeros(first.shape)), returns)[1].sum() / returns.size


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


def turn(rate, x, t):
    return x + 0.3 * jnp.sin(rate * t + x)


def ensemble(rates, x):
    """The standard deviation over time of each of many maps; rates (E,), x (E, B)."""

    def member(rate, x):
        return scanned(lambda x, t: turn(rate, x, t), x, jnp.arange(500.0)).std(0)

    return jax.vmap(member)(rates, x).mean(1)


def ensemble_hand(rates, x):
    """Sums of the distance from the first state and of its square.

    What is summed is the state a step begins with: it is in memory already, while the new one
    would be computed again for each sum (XLA:CPU has no fusion of several results).
    """
    rates = rates[:, None]

    def step(carry, t):
        x, first, total, squares = carry
        away = x - first
        return turn(rates, x, t), first, total + away, squares + away**2

    zeros = jnp.zeros(x.shape)
    first = turn(rates, x, 0.0)
    x, _, total, squares = last(step, (first, first, zeros, zeros), jnp.arange(1, 500.0))
    mean, square = (total + x - first) / 500, (squares + (x - first) ** 2) / 500
    return jnp.sqrt(square - mean**2).mean(1)


def nested(x):
    """A scan of scans: the mean square of all 100 * 50 inner states."""

    def outer(x, _):
        ys = scanned(lambda x, _: jnp.tanh(1.1 * x), x, length=50)
        return ys[-1] + 0.1, ys

    return jnp.mean(lax.scan(outer, x, None, length=100)[1] ** 2)


def nested_hand(x):
    def inner(carry, _):
        x, total = carry
        return jnp.tanh(1.1 * x), total + x**2  # as in `ensemble_hand`

    def outer(carry, _):
        x, total = carry
        x, total = last(inner, (jnp.tanh(1.1 * x), total), length=49)
        return x + 0.1, total + x**2

    return last(outer, (x, jnp.zeros(x.shape)), length=100)[1].sum() / (5000 * x.size)


def nested_hand_gradient(x):
    def inner(carry, _):
        x, total = carry
        x = jnp.tanh(1.1 * x)
        return x, total + jnp.sum(x**2)

    def outer(carry, _):
        x, total = last(inner, carry, length=50)
        return x + 0.1, total

    return last(outer, (x, F32(0)), length=100)[1] / (5000 * x.size)


# ---------------------------------------------------------------- state spaces


def hmm(transition, evidence):
    """Log-likelihood and expected occupancy of a filter; evidence (T, B, K), logs."""

    def step(carry, l):
        total, predicted = carry
        top = l.max(-1, keepdims=True)
        p = predicted * jnp.exp(l - top)
        z = p.sum(-1, keepdims=True)
        p = p / z
        return (total + (jnp.log(z) + top).sum(), p @ transition), p

    start = F32(0), jnp.full(evidence.shape[1:], 1.0 / transition.shape[0])
    (total, _), filtered = lax.scan(step, start, evidence)
    return total / evidence.shape[0], filtered.sum(0)


def hmm_hand(transition, evidence, remat=lambda f: f):
    @remat
    def step(carry, l):
        total, predicted, seen = carry
        top = l.max(-1, keepdims=True)
        p = predicted * jnp.exp(l - top)
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


# ---------------------------------------------------------------- other reductions over time


def wave(x, _):
    return jnp.sin(1.3 * x) + 0.1


def last_state(x):
    return scanned(wave, x, length=1000)[-1]


def last_state_hand(x):
    return last(wave, x, length=1000)


def next_step(w, xs):
    """A window: each state predicts what comes next."""
    hs = scanned(lambda h, x: jnp.tanh(h @ w + x), jnp.zeros(xs.shape[1:]), xs)
    return jnp.mean((hs[:-1] - xs[1:]) ** 2)


def next_step_hand(w, xs, remat=lambda f: f):
    @remat
    def step(carry, x):
        h, total, some = carry
        miss = jnp.where(some, jnp.sum((h - x) ** 2), 0.0)
        return jnp.tanh(h @ w + x), total + miss, True

    start = jnp.zeros(xs.shape[1:]), F32(0), False
    return last(step, start, xs)[1] / xs[1:].size


def logsumexp_over_time(x):
    return logsumexp(scanned(wave, x, length=1000), axis=0)


def logsumexp_over_time_hand(x):
    """As in `ensemble_hand`; Milakov, Gimelshein, arXiv:1805.02867, for the running maximum."""

    def add(x, top, total):
        new = jnp.maximum(top, x)
        return new, total * jnp.exp(top - new) + jnp.exp(x - new)

    def step(carry, _):
        x, top, total = carry
        return wave(x, None), *add(x, top, total)

    x = wave(x, None)
    top, total = add(*last(step, (x, x, jnp.zeros(x.shape)), length=999))
    return top + jnp.log(total)


def logsumexp_over_time_hand_gradient(x, chunk=50):
    @jax.checkpoint
    def some(carry, _):
        x, top, total = carry
        ys = scanned(wave, x, length=chunk)
        new = lax.stop_gradient(jnp.maximum(top, ys.max(0)))
        return ys[-1], new, total * jnp.exp(top - new) + jnp.exp(ys - new).sum(0)

    start = x, jnp.full(x.shape, -jnp.inf), jnp.zeros(x.shape)
    _, top, total = last(some, start, length=1000 // chunk)
    return top + jnp.log(total)


def peak_time(x):
    """When each state is largest: the first of equals."""
    return jnp.argmax(scanned(wave, x, length=1000), axis=0)


def peak_time_hand(x):
    def better(x, top, when, t):
        return jnp.where(x > top, x, top), jnp.where(x > top, t, when)

    def step(carry, t):
        x, top, when = carry
        return wave(x, None), *better(x, top, when, t)  # as in `ensemble_hand`

    x = wave(x, None)
    start = x, jnp.full(x.shape, -jnp.inf), jnp.zeros(x.shape, jnp.int32)
    return better(*last(step, start, jnp.arange(999, dtype=jnp.int32)), 999)[1]


def half_mean(x):
    """bfloat16: XLA:CPU copies the stack at every step."""
    return scanned(wave, x, length=250).mean()


def half_mean_hand(x):
    def step(carry, _):
        x, total = carry
        x = wave(x, None)
        return x, total + x.astype(F32).sum()

    return (last(step, (x, F32(0)), length=250)[1] / (250 * x.size)).astype(x.dtype)
