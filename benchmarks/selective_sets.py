"""Sets found by value: boxes kept, keys, bins, neighbours, columns; results of unknown size."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.selective_form import Prog, bucket, padded, programs

F = np.float32


# ---------------------------------------------------------------- non-maximum suppression


def boxes_inputs(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(150, 300))
    middle = rng.uniform(0, 100, (10, 2))[rng.integers(0, 10, n)] + rng.normal(size=(n, 2))
    half = rng.uniform(6, 9, (n, 2))
    boxes = np.concatenate([middle - half, middle + half], 1)
    return jnp.asarray(boxes.astype(F)), jnp.asarray(rng.uniform(size=n).astype(F))


def overlap(box, boxes, xp=jnp):
    """Intersection over union of one box (4,) with boxes (n, 4)."""
    low, high = xp.maximum(box[:2], boxes[:, :2]), xp.minimum(box[2:], boxes[:, 2:])
    inside = xp.clip(high - low, 0, None).prod(1)
    area = lambda b: (b[..., 2] - b[..., 0]) * (b[..., 3] - b[..., 1])
    return inside / (area(box) + area(boxes) - inside)


def suppression(boxes, scores):
    strong = scores > 0.2
    boxes, scores = boxes[strong], scores[strong]
    order = jnp.argsort(-scores)
    kept = []
    while order.shape[0] > 0:
        first = order[0]
        kept.append(int(first))
        rest = order[1:]
        order = rest[overlap(boxes[first], boxes[rest]) < 0.4]
    return boxes[jnp.array(kept)], scores[jnp.array(kept)]


def suppression_numpy(boxes, scores):
    strong = scores > 0.2
    boxes, scores = boxes[strong], scores[strong]
    order, kept = np.argsort(-scores), []
    while len(order):
        first, rest = order[0], order[1:]
        kept.append(int(first))
        order = rest[overlap(boxes[first], boxes[rest], np) < 0.4]
    return boxes[kept], scores[kept]


@jax.jit
def suppression_compiled(boxes, scores):
    order = jnp.argsort(-scores)
    boxes, scores = boxes[order], scores[order]
    touching = jax.vmap(overlap, (0, None))(boxes, boxes) >= 0.4
    later = jnp.arange(boxes.shape[0])

    def step(i, kept):
        return kept & ~(kept[i] & touching[i] & (later > i))

    return boxes, scores, lax.fori_loop(0, boxes.shape[0], step, scores > 0.2)


def suppression_hand(boxes, scores):
    size = bucket(boxes.shape[0])
    boxes, scores, kept = suppression_compiled(padded(boxes, size), padded(scores, size, -1.0))
    kept = np.asarray(kept)
    return np.asarray(boxes)[kept], np.asarray(scores)[kept]


# ---------------------------------------------------------------- unique keys and segments


def segments_inputs(seed):
    rng = np.random.default_rng(seed)
    words = rng.choice(100_000, int(rng.integers(300, 900)), replace=False)
    keys = words[rng.integers(0, len(words), 20_000)]
    return jnp.asarray(keys, jnp.int32), jnp.asarray(rng.normal(size=(20_000, 8)).astype(F))


def unique_segment(keys, values):
    found, inverse, count = jnp.unique(keys, return_inverse=True, return_counts=True)
    sums = jax.ops.segment_sum(values, inverse, found.shape[0])
    means = sums / count[:, None]
    tops = jax.ops.segment_max(values, inverse, found.shape[0])
    often = count >= count.mean()
    means, tops = means[often], tops[often]
    return found[often], jnp.tanh(means - means.mean(0)) + tops, found.shape[0]


def segments_numpy(keys, values):
    found, inverse, count = np.unique(keys, return_inverse=True, return_counts=True)
    sums = np.stack([np.bincount(inverse, v, len(found)) for v in values.T], 1).astype(F)
    tops = np.full(sums.shape, -np.inf, F)
    np.maximum.at(tops, inverse, values)
    often = count >= count.mean()
    means, tops = (sums / count[:, None].astype(F))[often], tops[often]
    return found[often], np.tanh(means - means.mean(0)) + tops, len(found)


@partial(jax.jit, static_argnames="size")
def segments_compiled(inverse, count, values, n, size):
    sums = jax.ops.segment_sum(values, inverse, size)
    tops = jax.ops.segment_max(values, inverse, size)
    often = count * n >= count.sum()
    means = jnp.where(often[:, None], sums / count[:, None], 0)
    return jnp.tanh(means - means.sum(0) / often.sum()) + tops


def segments_hand(keys, values):
    found, inverse, count = np.unique(np.asarray(keys), return_inverse=True, return_counts=True)
    n, often = len(found), count >= count.mean()
    counts = padded(count, bucket(n)).astype(F)
    out = segments_compiled(inverse.astype(np.int32), counts, values, F(n), size=bucket(n))
    return found[often], np.asarray(out)[:n][often], n


# ---------------------------------------------------------------- a histogram that finds its bins


def histogram_inputs(seed):
    rng = np.random.default_rng(seed)
    x = np.concatenate([rng.normal(size=6000), rng.normal(3, rng.uniform(0.3, 1), 6000)])
    return (jnp.asarray(rng.permutation(x).astype(F)),)


def data_histogram(x):
    """Freedman and Diaconis, "On the histogram as a density estimator", 1981."""
    low, high = jnp.quantile(x, 0.25), jnp.quantile(x, 0.75)
    width = 2 * (high - low) / x.shape[0] ** (1 / 3)
    bins = int(jnp.ceil((x.max() - x.min()) / width))
    edges = jnp.linspace(x.min(), x.max(), bins + 1)
    at = jnp.clip(jnp.searchsorted(edges, x, side="right") - 1, 0, bins - 1)
    density = jnp.bincount(at, length=bins) / x.shape[0]
    filled = density[density > 0]
    middle = 0.5 * (edges[1:] + edges[:-1])
    return bins, density, -(filled * jnp.log(filled)).sum(), (middle * density).sum()


def histogram_numpy(x):
    low, high = np.quantile(x, [0.25, 0.75])
    width = 2 * (high - low) / len(x) ** (1 / 3)
    bins = math.ceil((x.max() - x.min()) / width)
    edges = np.linspace(x.min(), x.max(), bins + 1, dtype=F)
    at = np.clip(np.searchsorted(edges, x, side="right") - 1, 0, bins - 1)
    density = np.bincount(at, minlength=bins) / F(len(x))
    filled = density[density > 0]
    middle = 0.5 * (edges[1:] + edges[:-1])
    return bins, density, -(filled * np.log(filled)).sum(), (middle * density).sum()


@jax.jit
def histogram_width(x):
    low, high = jnp.quantile(x, jnp.array([0.25, 0.75]))
    least, most = x.min(), x.max()
    return jnp.ceil((most - least) * x.shape[0] ** (1 / 3) / (2 * (high - low))), least, most


@partial(jax.jit, static_argnames="size")
def histogram_compiled(x, bins, least, most, size):
    step = (most - least) / bins
    at = jnp.clip(jnp.floor((x - least) / step).astype(jnp.int32), 0, bins.astype(jnp.int32) - 1)
    density = jnp.bincount(at, length=size) / x.shape[0]
    entropy = -jnp.where(density > 0, density * jnp.log(density), 0).sum()
    return density, entropy, ((least + (jnp.arange(size) + 0.5) * step) * density).sum()


def histogram_hand(x):
    bins, least, most = histogram_width(x)
    n = int(bins)
    density, entropy, mean = histogram_compiled(x, bins, least, most, size=bucket(n))
    return n, np.asarray(density)[:n], entropy, mean


# ---------------------------------------------------------------- a graph, level by level


def graph_inputs(seed):
    rng = np.random.default_rng(seed)
    n = 600
    at = rng.uniform(size=(n, 2))
    near = ((at[:, None] - at[None]) ** 2).sum(-1) < rng.uniform(0.09, 0.14) ** 2
    return jnp.asarray(near), jnp.int32(rng.integers(n))


def breadth_first(near, source):
    n = near.shape[0]
    seen = jnp.zeros(n, bool).at[source].set(True)
    depth = jnp.full(n, -1).at[source].set(0)
    frontier, level = source[None], 0
    while frontier.size:
        level += 1
        reached = jnp.any(near[frontier], axis=0) & ~seen
        frontier = jnp.nonzero(reached)[0]
        seen = seen | reached
        depth = depth.at[frontier].set(level)
    return depth, level


def breadth_numpy(near, source):
    n = len(near)
    seen, depth = np.zeros(n, bool), np.full(n, -1)
    seen[source], depth[source] = True, 0
    frontier, level = np.array([source]), 0
    while frontier.size:
        level += 1
        reached = near[frontier].any(0) & ~seen
        frontier = np.nonzero(reached)[0]
        seen |= reached
        depth[frontier] = level
    return depth, level


@jax.jit
def breadth_compiled(near, source):
    n = near.shape[0]
    edges = near.astype(F)

    def body(state):
        frontier, depth, level = state
        reached = (frontier @ edges > 0) & (depth < 0)
        return reached.astype(F), jnp.where(reached, level + 1, depth), level + 1

    start = jnp.zeros(n).at[source].set(1.0), jnp.full(n, -1).at[source].set(0), 0
    return lax.while_loop(lambda state: state[0].any(), body, start)[1:]


def breadth_hand(near, source):
    depth, level = breadth_compiled(near, source)
    return depth, int(level)


# ---------------------------------------------------------------- a dict of results per column


def columns_inputs(seed):
    rng = np.random.default_rng(seed)
    table = rng.normal(size=(4000, 6))
    table[:, ::3] = np.exp(table[:, ::3])
    table[rng.uniform(size=table.shape) < rng.uniform(0, 0.3, 6)] = np.nan
    table[rng.uniform(size=4000) < 0.999, 5] = np.nan
    return jnp.asarray(table.astype(F)), tuple("abcdef")


def column_report(table, names):
    report, order = {}, []
    for name, column in zip(names, table.T):
        clean = column[~jnp.isnan(column)]
        if clean.shape[0] < 100:
            report[name] = {"few": clean.shape[0]}
            continue
        z = (clean - clean.mean()) / clean.std()
        skew = float((z**3).mean())
        if abs(skew) > 1 and clean.min() > 0:
            clean, kind = jnp.log(clean), "log"
        else:
            kind = "plain"
        inner = clean[jnp.abs(clean - jnp.median(clean)) < 3 * clean.std()]
        report[name] = {
            "kind": kind,
            "mean": inner.mean(),
            "std": inner.std(),
            "median": float(jnp.median(inner)),
            "share": inner.shape[0] / clean.shape[0],
        }
        order.append((float(inner.std()), name))
    report["narrow"] = min(order)[1]
    return report


def columns_numpy(table, names):
    report, order = {}, []
    for name, column in zip(names, table.T):
        clean = column[~np.isnan(column)]
        if len(clean) < 100:
            report[name] = {"few": len(clean)}
            continue
        z = (clean - clean.mean()) / clean.std()
        kind = "log" if abs(float((z**3).mean())) > 1 and clean.min() > 0 else "plain"
        clean = np.log(clean) if kind == "log" else clean
        inner = clean[np.abs(clean - np.median(clean)) < 3 * clean.std()]
        report[name] = {
            "kind": kind,
            "mean": inner.mean(),
            "std": inner.std(),
            "median": float(np.median(inner)),
            "share": len(inner) / len(clean),
        }
        order.append((float(inner.std()), name))
    report["narrow"] = min(order)[1]
    return report


@jax.jit
def columns_compiled(table):
    def moments(x, live):
        n = live.sum()
        mean = jnp.where(live, x, 0).sum() / n
        return n, mean, jnp.sqrt(jnp.where(live, (x - mean) ** 2, 0).sum() / n)

    def median(x, live):
        ordered, n = jnp.sort(jnp.where(live, x, jnp.inf)), live.sum()
        return 0.5 * (ordered[(n - 1) // 2] + ordered[n // 2])

    def one(column):
        live = ~jnp.isnan(column)
        n, mean, std = moments(column, live)
        skew = jnp.where(live, ((column - mean) / std) ** 3, 0).sum() / n
        log = (jnp.abs(skew) > 1) & (jnp.where(live, column, jnp.inf).min() > 0)
        x = jnp.where(log, jnp.log(column), column)
        _, _, std = moments(x, live)
        inner = live & (jnp.abs(x - median(x, live)) < 3 * std)
        count, mean, std = moments(x, inner)
        return n, log, mean, std, median(x, inner), count / n

    return lax.map(one, table.T)


def columns_hand(table, names):
    report, order = {}, []
    for name, *row in zip(names, *map(np.asarray, columns_compiled(table))):
        n, log, mean, std, median, share = row
        if n < 100:
            report[name] = {"few": int(n)}
            continue
        kind = "log" if log else "plain"
        report[name] = {"kind": kind, "mean": mean, "std": std}
        report[name] |= {"median": median, "share": share}
        order.append((std, name))
    report["narrow"] = min(order)[1]
    return report


SETS = programs(
    Prog(boxes_inputs, suppression, suppression_numpy, suppression_hand, "boxes masked in a loop"),
    Prog(segments_inputs, unique_segment, segments_numpy, segments_hand, "unique, then segments"),
    Prog(histogram_inputs, data_histogram, histogram_numpy, histogram_hand, "bins known by value"),
    Prog(graph_inputs, breadth_first, breadth_numpy, breadth_hand, "a frontier of nonzero"),
    Prog(columns_inputs, column_report, columns_numpy, columns_hand, "masks, a dict of results"),
)
