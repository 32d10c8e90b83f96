"""Programs that reduce an array of all pairs of points: plain, and blocked by hand."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.nn import logsumexp, softmax

from benchmarks.workloads import Gate, Workload, normal


def rows(fun, x, block=128):
    """fun of some rows of x at a time, put together; nothing is kept for the gradient."""
    block = min(block, x.shape[0])
    blocks = x.reshape((-1, block, *x.shape[1:]))
    out = lax.map(jax.checkpoint(fun), blocks)
    return jax.tree.map(lambda y: y.reshape((-1, *y.shape[2:])), out)


def squares(x, columns):
    """Squared distances (M, N) of x (M, D) from columns (D, N).

    Coordinate by coordinate: XLA:CPU reduces a short last axis one number at a time.
    """
    return sum((x[:, d, None] - y) ** 2 for d, y in enumerate(columns))


def distances(x, y):
    return ((x[:, None] - y[None]) ** 2).sum(-1)


def rounded(x, y):
    return jnp.floor(x[:, None] - y[None]).sum(-1)


def rounded_hand(x, y, block=128):
    columns = y.T
    steps = lambda x: sum(jnp.floor(x[:, d, None] - c) for d, c in enumerate(columns))
    return rows(steps, x, block)


def gaussian(x, y, b):
    """sum_j exp(-|x_i - y_j|^2) b_j: x (M, D), y (N, D), b (N, 1)."""
    return jnp.exp(-distances(x, y)) @ b


def gaussian_hand(x, y, b, block=128):
    columns = y.T
    return rows(lambda x: jnp.exp(-squares(x, columns)) @ b, x, block)


def pairwise_logsumexp(x, y):
    return logsumexp(-distances(x, y), axis=1)


def pairwise_logsumexp_hand(x, y, block=128):
    columns = y.T
    return rows(lambda x: logsumexp(-squares(x, columns), axis=1), x, block)


def nearest(x, y):
    """The index of the point of y nearest to each of x: the first of equals."""
    return jnp.argmin(distances(x, y), axis=1)


def nearest_hand(x, y):
    columns = x.T

    def step(carry, point):
        best, index, j = carry
        d = sum((p - c) ** 2 for p, c in zip(point, columns))
        return (jnp.minimum(best, d), jnp.where(d < best, j, index), j + 1), None

    start = jnp.full(len(x), jnp.inf), jnp.zeros(len(x), jnp.int32), jnp.int32(0)
    return lax.scan(step, start, y, unroll=8)[0][1]


def chamfer(x, y):
    d = distances(x, y)
    return d.min(1).mean() + d.min(0).mean()


def chamfer_hand(x, y, block=32):
    columns = y.T

    def step(best, x):
        d = squares(x, columns)
        return jnp.minimum(best, d.min(0)), d.min(1)

    start = jnp.full(len(y), jnp.inf)
    to_x, to_y = lax.scan(step, start, x.reshape(-1, min(block, len(x)), x.shape[1]))
    return to_y.mean() + to_x.mean()


def chamfer_hand_gradient(x, y, block=128):
    """Each side by itself, so that a block needs no minimum of another."""

    def side(x, y):
        columns = y.T
        return rows(lambda x: squares(x, columns).min(1), x, block).mean()

    return side(x, y) + side(y, x)


def attention(q, k, v):
    """Softmax attention; each (heads, S, d)."""
    scores = jnp.einsum("hqd,hkd->hqk", q, k) / q.shape[-1] ** 0.5
    return softmax(scores, axis=-1) @ v


def attention_hand(q, k, v, block=128):
    def some(q):
        scores = jnp.einsum("qhd,hkd->hqk", q, k) / q.shape[-1] ** 0.5
        top = scores.max(-1, keepdims=True)
        weights = jnp.exp(scores - lax.stop_gradient(top))
        out = jnp.einsum("hqk,hkd->hqd", weights, v) / weights.sum(-1, keepdims=True)
        return out.swapaxes(0, 1)

    return rows(some, q.swapaxes(0, 1), block).swapaxes(0, 1)


def discrepancy(x, y):
    """The maximum mean discrepancy of two samples under a Gaussian kernel."""
    k = lambda a, b: jnp.exp(-distances(a, b)).mean()
    return k(x, x) + k(y, y) - 2 * k(x, y)


def discrepancy_hand(x, y, block=128):
    def k(a, b):
        columns = b.T
        return rows(lambda a: jnp.exp(-squares(a, columns)).sum(1), a, block).mean() / len(b)

    return k(x, x) + k(y, y) - 2 * k(x, y)


def forces(positions, masses):
    """Gravity on each of n bodies, softened."""
    r = positions[None] - positions[:, None]
    inverse = (jnp.sum(r**2, -1, keepdims=True) + 1e-2) ** -1.5
    return jnp.sum(masses[None, :, None] * r * inverse, axis=1)


def forces_hand(positions, masses, block=128):
    columns = positions.T

    def some(x):
        weights = masses * (squares(x, columns) + 1e-2) ** -1.5
        return jnp.stack([(weights * (y - x[:, d, None])).sum(1) for d, y in enumerate(columns)], 1)

    return rows(some, positions, block)


def matern(x, y):
    """Two nested maps, as a kernel is written for two points."""

    def k(a, b):
        d = jnp.sqrt(3 * jnp.sum((a - b) ** 2) + 1e-9)
        return (1 + d) * jnp.exp(-d)

    return jax.vmap(lambda a: jax.vmap(lambda b: k(a, b))(y))(x).sum(1)


def matern_hand(x, y, block=128):
    columns = y.T

    def some(x):
        d = jnp.sqrt(3 * squares(x, columns) + 1e-9)
        return ((1 + d) * jnp.exp(-d)).sum(1)

    return rows(some, x, block)


def mean_shift(x, y):
    """Each point goes to the mean of all, weighted by how near they are."""
    weights = jnp.exp(-0.5 * distances(x, y))
    return weights @ y / weights.sum(1, keepdims=True)


def mean_shift_hand(x, y, block=128):
    columns = y.T

    def some(x):
        weights = jnp.exp(-0.5 * squares(x, columns))
        return weights @ y / weights.sum(1, keepdims=True)

    return rows(some, x, block)


def quantization(x, y):
    """How far, squared, each point of x is from the center nearest to it: the loss of k-means."""
    return distances(x, y).min(1).mean()


def quantization_hand(x, y, block=1024):
    columns = y.T
    return rows(lambda x: squares(x, columns).min(1), x, block).mean()


def density(x, y):
    """How many points of x there are around each of a few places y."""
    return jnp.exp(-distances(x, y)).sum(0)


def density_hand(x, y):
    return jnp.exp(-squares(x, y.T)).sum(0)


def density_hand_gradient(x, y, block=1 << 15):
    columns = y.T
    return rows(lambda x: jnp.exp(-squares(x, columns)).sum(0, keepdims=True), x, block).sum(0)


def ranking(x, y):
    """The hinge loss of all pairs, of which x is to be 1 above y. XLA fuses it as it is."""
    return jnp.maximum(0, 1 - (x[:, None] - y)).mean()


def ranking_hand_gradient(x, y, block=64):
    return rows(lambda x: jnp.maximum(0, 1 - (x[:, None] - y)).mean(1), x, block).mean()


# ---------------------------------------------------------------- all of them


def points(big, dims=3, weights=False):
    """make(quick): two sets of points, and a number for each of the second set."""

    def make(quick):
        n = 128 if quick else big
        x, y = normal(0, n, dims), normal(1, n, dims)
        return (x, y, normal(2, n, 1)) if weights else (x, y)

    return make


def heads(quick):
    shape = (2, 128, 8) if quick else (4, 2048, 64)
    return tuple(normal(seed, *shape) for seed in range(3))


def clusters(quick):
    return normal(0, 256 if quick else 32_768, 16), normal(1, 8 if quick else 64, 16)


def places(quick):
    return normal(0, 256 if quick else 1 << 18, 2), normal(1, 16, 2)


def scores(quick):
    n = 128 if quick else 8192
    return normal(0, n), normal(1, n)


def bodies(quick):
    n = 128 if quick else 4096
    return normal(0, n, 3), jnp.abs(normal(1, n))


FASTER = Gate("forward", "speed", "plain", 10)
FASTER_BACK = Gate("gradient", "speed", "plain", 10)
SMALL = Gate("forward", "memory", "plain", 50)
SMALL_BACK = Gate("gradient", "memory", "plain", 50)
BEFORE_KEOPS = Gate("forward", "speed", "pykeops", 5)
KERNEL = (FASTER, FASTER_BACK, SMALL, SMALL_BACK, BEFORE_KEOPS)

WORKLOADS = [
    Workload(
        "Gaussian kernel sum, 8192 x 8192",
        gaussian,
        gaussian_hand,
        points(8192, weights=True),
        (0, 1, 2),
        gates=KERNEL,
        resident=True,
    ),
    Workload(
        "rounded differences, 3072 x 3072",
        rounded,
        rounded_hand,
        points(3072),
        gates=(Gate("forward", "speed", "plain", 2),),
    ),
    Workload(
        "pairwise logsumexp, 8192 x 8192",
        pairwise_logsumexp,
        pairwise_logsumexp_hand,
        points(8192),
        (0, 1),
        gates=KERNEL,
        resident=True,
    ),
    Workload(
        "nearest neighbour, 8192 x 8192", nearest, nearest_hand, points(8192), gates=(FASTER, SMALL)
    ),
    Workload(
        "chamfer distance, 4096 x 4096",
        chamfer,
        chamfer_hand,
        points(4096),
        (0, 1),
        hand_gradient=chamfer_hand_gradient,
    ),
    Workload(
        "attention, 4 heads, S 2048",
        attention,
        attention_hand,
        heads,
        (0, 1, 2),
        hand_gradient=lambda *qkv: attention_hand(*qkv, block=32),
    ),
    Workload(
        "maximum mean discrepancy, 4096",
        discrepancy,
        discrepancy_hand,
        points(4096),
        (0, 1),
        tolerance=1e-3,
    ),
    Workload("forces of 4096 bodies", forces, forces_hand, bodies, (0,)),
    Workload("Matern kernel, vmap of vmap, 4096", matern, matern_hand, points(4096, 8), (0, 1)),
    Workload("k-means loss, 32,768 x 64", quantization, quantization_hand, clusters, (0, 1)),
    Workload(
        "density at places, 262,144 x 16",
        density,
        density_hand,
        places,
        (0, 1),
        hand_gradient=density_hand_gradient,
    ),
    Workload(
        "ranking loss, 8192 x 8192",
        ranking,
        ranking,
        scores,
        (0, 1),
        hand_gradient=ranking_hand_gradient,
    ),
    Workload("mean shift, 4096", mean_shift, mean_shift_hand, points(4096), (0, 1)),
]
