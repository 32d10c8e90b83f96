"""Steps in time whose size, number or kind depends on values: an ODE, a filter, sequences, text."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.selective_form import Prog, bucket, padded, programs

F = np.float32


# ---------------------------------------------------------------- an ODE with adaptive steps


def ode_inputs(seed):
    rng = np.random.default_rng(seed)
    start = rng.normal(size=(2, 64)).astype(F)
    return jnp.asarray(start), jnp.asarray(rng.uniform(0.5, 3.0, 64).astype(F)), 6.0


def van_der_pol(y, mu, xp=jnp):
    return xp.stack([y[1], mu * (1 - y[0] ** 2) * y[1] - y[0]])


def adaptive_ode(y, mu, end):
    """Bogacki and Shampine, "A 3(2) pair of Runge-Kutta formulas", 1989."""
    t, h, times = 0.0, 0.05, [0.0]
    k1 = van_der_pol(y, mu)
    while t < end:
        h = min(h, end - t)
        k2 = van_der_pol(y + 0.5 * h * k1, mu)
        k3 = van_der_pol(y + 0.75 * h * k2, mu)
        new = y + h * (2 / 9 * k1 + 1 / 3 * k2 + 4 / 9 * k3)
        k4 = van_der_pol(new, mu)
        wrong = h * (-5 / 72 * k1 + 1 / 12 * k2 + 1 / 9 * k3 - 1 / 8 * k4)
        scale = 1e-3 + 1e-3 * jnp.maximum(jnp.abs(y), jnp.abs(new))
        err = float(jnp.sqrt(jnp.mean((wrong / scale) ** 2)))
        if err <= 1.0:
            t, y, k1 = t + h, new, k4
            times.append(t)
        h = h * min(4.0, max(0.2, 0.9 * err ** (-1 / 3) if err > 0 else 4.0))
    return y, times[-1]


def ode_numpy(y, mu, end):
    t, h, times = 0.0, 0.05, [0.0]
    k1 = van_der_pol(y, mu, np)
    while t < end:
        h = min(h, end - t)
        k2 = van_der_pol(y + F(0.5 * h) * k1, mu, np)
        k3 = van_der_pol(y + F(0.75 * h) * k2, mu, np)
        new = y + F(h) * (F(2 / 9) * k1 + F(1 / 3) * k2 + F(4 / 9) * k3)
        k4 = van_der_pol(new, mu, np)
        wrong = F(h) * (F(-5 / 72) * k1 + F(1 / 12) * k2 + F(1 / 9) * k3 - F(1 / 8) * k4)
        scale = F(1e-3) + F(1e-3) * np.maximum(np.abs(y), np.abs(new))
        err = float(np.sqrt(np.mean((wrong / scale) ** 2)))
        if err <= 1.0:
            t, y, k1 = t + h, new, k4
            times.append(t)
        h = h * min(4.0, max(0.2, 0.9 * err ** (-1 / 3) if err > 0 else 4.0))
    return y, times[-1]


@jax.jit
def ode_compiled(y, mu, end):
    def body(state):
        t, h, y, k1 = state
        h = jnp.minimum(h, end - t)
        k2 = van_der_pol(y + 0.5 * h * k1, mu)
        k3 = van_der_pol(y + 0.75 * h * k2, mu)
        new = y + h * (2 / 9 * k1 + 1 / 3 * k2 + 4 / 9 * k3)
        k4 = van_der_pol(new, mu)
        wrong = h * (-5 / 72 * k1 + 1 / 12 * k2 + 1 / 9 * k3 - 1 / 8 * k4)
        scale = 1e-3 + 1e-3 * jnp.maximum(jnp.abs(y), jnp.abs(new))
        err = jnp.sqrt(jnp.mean((wrong / scale) ** 2))
        good = err <= 1.0
        t, y, k1 = jax.tree.map(partial(jnp.where, good), (t + h, new, k4), (t, y, k1))
        return t, h * jnp.clip(0.9 * err ** (-1 / 3), 0.2, 4.0), y, k1

    start = jnp.float32(0), jnp.float32(0.05), y, van_der_pol(y, mu)
    t, _, y, _ = lax.while_loop(lambda state: state[0] < end - 1e-6, body, start)
    return y, t


def ode_hand(y, mu, end):
    y, t = ode_compiled(y, mu, end)
    return y, float(t)


# ---------------------------------------------------------------- a particle filter


def particle_inputs(seed):
    rng = np.random.default_rng(seed)
    steps, n = 40, 2000
    states = np.cumsum(rng.normal(size=steps) * 0.5)
    seen = states + rng.normal(size=steps) * rng.uniform(0.3, 1.0)
    noise, offsets = rng.normal(size=(steps, n)), rng.uniform(size=steps)
    return tuple(jnp.asarray(v.astype(F)) for v in (seen, noise, offsets))


def particle_filter(seen, noise, offsets):
    n = noise.shape[1]
    x, logw, means, resampled = jnp.zeros(n), jnp.zeros(n), [], 0
    for t in range(seen.shape[0]):
        x = x + 0.5 * noise[t]
        logw = logw - 0.5 * ((seen[t] - x) / 0.6) ** 2
        w = jax.nn.softmax(logw)
        means.append(w @ x)
        if 1 / (w @ w) < n / 2:
            at = (jnp.arange(n) + offsets[t]) / n
            x = x[jnp.clip(jnp.searchsorted(jnp.cumsum(w), at), 0, n - 1)]
            logw = jnp.zeros(n)
            resampled += 1
    return jnp.stack(means), float(x.mean()), resampled > 0


def particle_numpy(seen, noise, offsets):
    n = noise.shape[1]
    x, logw, means, resampled = np.zeros(n, F), np.zeros(n, F), [], 0
    for t in range(len(seen)):
        x = x + F(0.5) * noise[t]
        logw = logw - F(0.5) * ((seen[t] - x) / F(0.6)) ** 2
        w = np.exp(logw - logw.max())
        w /= w.sum()
        means.append(w @ x)
        if 1 / (w @ w) < n / 2:
            at = (np.arange(n, dtype=F) + offsets[t]) / F(n)
            x = x[np.clip(np.searchsorted(np.cumsum(w), at), 0, n - 1)]
            logw = np.zeros(n, F)
            resampled += 1
    return np.stack(means), float(x.mean()), resampled > 0


@jax.jit
def particle_compiled(seen, noise, offsets):
    n = noise.shape[1]

    def resample(x, w, offset):
        at = (jnp.arange(n) + offset) / n
        return x[jnp.clip(jnp.searchsorted(jnp.cumsum(w), at), 0, n - 1)], jnp.zeros(n)

    def step(state, now):
        (x, logw, resampled), (y, e, offset) = state, now
        x = x + 0.5 * e
        logw = logw - 0.5 * ((y - x) / 0.6) ** 2
        w = jax.nn.softmax(logw)
        small = 1 / (w @ w) < n / 2
        mean = w @ x
        x, logw = lax.cond(small, resample, lambda x, w, offset: (x, logw), x, w, offset)
        return (x, logw, resampled | small), mean

    start = jnp.zeros(n), jnp.zeros(n), False
    (x, _, resampled), means = lax.scan(step, start, (seen, noise, offsets))
    return means, x.mean(), resampled


def particle_hand(seen, noise, offsets):
    means, last, resampled = particle_compiled(seen, noise, offsets)
    return means, float(last), bool(resampled)


# ---------------------------------------------------------------- ragged sequences, appended


def ragged_inputs(seed):
    rng, fixed = np.random.default_rng(seed), np.random.default_rng(5)
    lengths = rng.integers(3, 60, 12)
    weights = fixed.normal(size=(32, 32)) / 6, fixed.normal(size=(16, 32)) / 4
    parts = rng.normal(size=(int(lengths.sum()), 16)), *weights
    flat, inner, outer = (jnp.asarray(p.astype(F)) for p in parts)
    return flat, jnp.asarray(lengths, jnp.int32), inner, outer


def ragged_append(flat, lengths, inner, outer):
    ends, loud, start = [], [], 0
    for number, n in enumerate(lengths.tolist()):
        rows = flat[start : start + n] @ outer
        start += n
        last, states = lax.scan(
            lambda h, row: (jnp.tanh(h @ inner + row),) * 2, jnp.zeros(inner.shape[0]), rows
        )
        ends.append(jnp.concatenate([last, states.mean(0)]))
        if jnp.abs(states).mean() > 0.5:
            loud.append(number)
    return jnp.stack(ends), len(loud) >= 0, len(ends)


def ragged_numpy(flat, lengths, inner, outer):
    ends, start = [], 0
    for n in lengths.tolist():
        rows = flat[start : start + n] @ outer
        start += n
        h, states = np.zeros(len(inner), F), []
        for row in rows:
            h = np.tanh(h @ inner + row)
            states.append(h)
        ends.append(np.concatenate([h, np.mean(states, 0)]))
    return np.stack(ends), True, len(ends)


@partial(jax.jit, static_argnames="most")
def ragged_compiled(flat, lengths, inner, outer, most):
    starts = jnp.cumsum(lengths) - lengths

    def one(start, n):
        rows = flat[jnp.clip(start + jnp.arange(most), 0, flat.shape[0] - 1)] @ outer

        def step(state, now):
            (h, total), (row, live) = state, now
            new = jnp.where(live, jnp.tanh(h @ inner + row), h)
            return (new, total + jnp.where(live, new, 0)), None

        zero = jnp.zeros(inner.shape[0])
        (last, total), _ = lax.scan(step, (zero, zero), (rows, jnp.arange(most) < n))
        return jnp.concatenate([last, total / n])

    return jax.vmap(one)(starts, lengths)


def ragged_hand(flat, lengths, inner, outer):
    most = bucket(np.asarray(lengths).max())
    flat = padded(flat, bucket(flat.shape[0], 256))
    return ragged_compiled(flat, lengths, inner, outer, most=most), True, lengths.shape[0]


# ---------------------------------------------------------------- top-k, k known by value


def nucleus_inputs(seed):
    rng, fixed = np.random.default_rng(seed), np.random.default_rng(6)
    logits = rng.normal(size=(6, 4000)) * rng.uniform(1.5, 3.0, (6, 1))
    return (
        jnp.asarray(logits.astype(F)),
        jnp.asarray(fixed.normal(size=(4000, 32)).astype(F)),
        jnp.float32(rng.uniform(0.7, 0.9)),
    )


def nucleus_top_k(logits, table, p):
    """The fewest words of probability p together, their mean vector and entropy."""
    vectors, entropies = [], []
    for row in logits:
        ordered = -jnp.sort(-jax.nn.softmax(row))
        k = (jnp.cumsum(ordered) < p).sum() + 1
        best, words = lax.top_k(row, int(k))
        q = jax.nn.softmax(best)
        vectors.append(q @ table[words])
        entropies.append(-(q * jnp.log(q)).sum() / math.log(words.shape[0] + 1))
    return jnp.stack(vectors), jnp.stack(entropies)


def nucleus_numpy(logits, table, p):
    vectors, entropies = [], []
    for row in logits:
        words = np.argsort(-row)
        best = row[words]
        e = np.exp(best - best[0])
        k = int((np.cumsum(e / e.sum()) < p).sum()) + 1
        q = e[:k] / e[:k].sum()
        vectors.append(q @ table[words[:k]])
        entropies.append(-(q * np.log(q)).sum() / math.log(k + 1))
    return np.stack(vectors), np.stack(entropies).astype(F)


@jax.jit
def nucleus_hand(logits, table, p):
    best, words = lax.top_k(logits, logits.shape[1])
    q = jax.nn.softmax(best)
    k = (jnp.cumsum(q, axis=1) < p).sum(1) + 1
    live = jnp.arange(logits.shape[1]) < k[:, None]
    q = jnp.where(live, q, 0)
    q = q / q.sum(1, keepdims=True)
    spread = jnp.zeros_like(q).at[jnp.arange(q.shape[0])[:, None], words].set(q)
    entropy = -jnp.where(q > 0, q * jnp.log(jnp.where(q > 0, q, 1)), 0).sum(1)
    return spread @ table, entropy / jnp.log(k + 1)


STEPS = programs(
    Prog(ode_inputs, adaptive_ode, ode_numpy, ode_hand, "steps accepted by float(err)", 2e-2),
    Prog(particle_inputs, particle_filter, particle_numpy, particle_hand, "if ESS is small", 5e-2),
    Prog(ragged_inputs, ragged_append, ragged_numpy, ragged_hand, "a scan per length, append"),
    Prog(nucleus_inputs, nucleus_top_k, nucleus_numpy, nucleus_hand, "top_k with k a value", 1e-2),
)
