"""Programs that stack what a scan makes and then reduce it: plain, and fused by hand."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.nn import logsumexp

from benchmarks.workloads import Gate, Workload, last, normal, recomputed, scanned, sized, uniform

F32 = jnp.float32


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


# ---------------------------------------------------------------- many maps, and loops in loops


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


# ---------------------------------------------------------------- all of them


wide = sized((50,), (10_000,), lambda n: (uniform(0, n, high=3.0),))

WORKLOADS = [
    Workload(
        "seed: scan of sin, mean; T 100, B 100,000",
        seed_mean,
        seed_mean_hand,
        sized((50,), (100_000,), lambda n: (uniform(0, n, high=2.0),)),
        (0,),
        gates=(Gate("forward", "speed", "plain", 2), Gate("forward", "memory", "plain", 100)),
        resident=True,
    ),
    Workload(
        "seed with targets: T 1000, B 10,000",
        seed_target,
        seed_target_hand,
        sized((12, 7), (1000, 10_000), lambda t, n: (uniform(0, n, high=2.0), uniform(1, t, n))),
        (0,),
        hand_gradient=recomputed(seed_target_hand),
        gates=(Gate("forward", "speed", "plain", 2), Gate("forward", "memory", "plain", 100)),
        resident=True,
    ),
    Workload(
        "Monte-Carlo statistics, 252 x 100,000",
        monte_carlo,
        monte_carlo_hand,
        sized((12, 9), (252, 100_000), lambda t, n: (normal(0, t, n),)),
        (0,),
        gates=(Gate("forward", "speed", "plain", 12), Gate("forward", "memory", "plain", 50)),
        resident=True,
    ),
    Workload(
        "GARCH likelihood, 2000 x 1000",
        garch,
        garch_hand,
        sized((20, 3), (2000, 1000), lambda t, n: (jnp.array([0.05, 0.1, 0.85]), normal(0, t, n))),
        (0,),
        hand_gradient=recomputed(garch_hand),
    ),
    Workload(
        "vmapped ensemble, standard deviation",
        ensemble,
        ensemble_hand,
        sized((3, 4), (64, 256), lambda e, n: (uniform(0, e, low=1.0, high=3.0), normal(1, e, n))),
        (0, 1),
        tolerance=1e-3,
    ),
    Workload(
        "nested scans, 100 x 50",
        nested,
        nested_hand,
        sized((10,), (1000,), lambda n: (normal(0, n),)),
        (0,),
        hand_gradient=nested_hand_gradient,
    ),
    Workload("ys[-1], 1000 x 10,000", last_state, last_state_hand, wide, (0,)),
    Workload(
        "windows: hs[:-1] against xs[1:]",
        next_step,
        next_step_hand,
        sized(
            (9, 3, 4),
            (1000, 256, 32),
            lambda t, b, n: (normal(0, n, n, scale=n**-0.5), normal(1, t, b, n)),
        ),
        (0, 1),
        hand_gradient=recomputed(next_step_hand),
    ),
    Workload(
        "logsumexp over time, 1000 x 10,000",
        logsumexp_over_time,
        logsumexp_over_time_hand,
        wide,
        (0,),
        hand_gradient=logsumexp_over_time_hand_gradient,
    ),
    Workload("argmax over time, 1000 x 10,000", peak_time, peak_time_hand, wide),
    Workload(
        "mean in bfloat16, 250 x 8192",
        half_mean,
        half_mean_hand,
        sized((50,), (8192,), lambda n: (uniform(0, n, high=3.0).astype(jnp.bfloat16),)),
        (0,),
        tolerance=1e-2,
    ),
]
