"""Fits that iterate until a value says stop: mixtures, clusters, planes, registered point sets.

    python -m benchmarks.selective_fits --bits [--calls 300] [--smoke]    # one input, one result

With `--bits` each is called that often on one input through `mal.jit`, other inputs between, and
the kinds of results and prints are counted, bit by bit. Exit status 0 means: one kind of each.
"""

import argparse
import contextlib
import io
import math
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import malleable as mal
from benchmarks.selective_form import Prog, bucket, programs, to_np
from benchmarks.smoke import add_argument, size

F = np.float32


# ---------------------------------------------------------------- a mixture of Gaussians


def em_inputs(seed):
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(5, 4)) * 4
    points = centers[rng.integers(0, 5, 3000)] + rng.normal(size=(3000, 4))
    means = centers + rng.normal(size=centers.shape)
    return jnp.asarray(points.astype(F)), jnp.asarray(means.astype(F))


def em_gmm(points, means):
    k, d = means.shape
    weights, covs = jnp.full(k, 1 / k), jnp.stack([jnp.eye(d)] * k)
    previous = -math.inf
    for _ in range(100):
        factors = jnp.linalg.cholesky(covs)
        diff = points[None] - means[:, None]
        scaled = jax.scipy.linalg.solve_triangular(factors, diff.transpose(0, 2, 1), lower=True)
        logdet = jnp.log(jnp.diagonal(factors, axis1=1, axis2=2)).sum(1)
        logp = jnp.log(weights)[:, None] - 0.5 * (scaled**2).sum(1) - logdet[:, None]
        total = jax.nn.logsumexp(logp, axis=0)
        resp = jnp.exp(logp - total)
        count = resp.sum(1)
        weights = count / points.shape[0]
        means = resp @ points / count[:, None]
        diff = points[None] - means[:, None]
        covs = jnp.einsum("kn,kni,knj->kij", resp, diff, diff) / count[:, None, None]
        covs = covs + 1e-3 * jnp.eye(d)
        likelihood = float(total.mean())
        if abs(likelihood - previous) < 1e-4:
            break
        previous = likelihood
    return weights, means, covs


def em_numpy(points, means):
    k, d = means.shape
    weights, covs = np.full(k, 1 / k, F), np.stack([np.eye(d, dtype=F)] * k)
    previous = -math.inf
    for _ in range(100):
        factors = np.linalg.cholesky(covs)
        diff = points[None] - means[:, None]
        scaled = np.linalg.solve(factors, diff.transpose(0, 2, 1))
        logdet = np.log(np.diagonal(factors, axis1=1, axis2=2)).sum(1)
        logp = np.log(weights)[:, None] - F(0.5) * (scaled**2).sum(1) - logdet[:, None]
        top = logp.max(0)
        total = top + np.log(np.exp(logp - top).sum(0))
        resp = np.exp(logp - total)
        count = resp.sum(1)
        weights, means = count / F(len(points)), resp @ points / count[:, None]
        diff = points[None] - means[:, None]
        covs = (resp[:, None] * diff.transpose(0, 2, 1)) @ diff / count[:, None, None]
        covs = covs + F(1e-3) * np.eye(d, dtype=F)
        if abs(float(total.mean()) - previous) < 1e-4:
            break
        previous = float(total.mean())
    return weights, means, covs


@jax.jit
def em_hand(points, means):
    k, d = means.shape

    def body(state):
        _, likelihood, weights, means, covs, step = state
        factors = jnp.linalg.cholesky(covs)
        diff = points[None] - means[:, None]
        scaled = jax.scipy.linalg.solve_triangular(factors, diff.transpose(0, 2, 1), lower=True)
        logdet = jnp.log(jnp.diagonal(factors, axis1=1, axis2=2)).sum(1)
        logp = jnp.log(weights)[:, None] - 0.5 * (scaled**2).sum(1) - logdet[:, None]
        total = jax.nn.logsumexp(logp, axis=0)
        resp = jnp.exp(logp - total)
        count = resp.sum(1)
        means = resp @ points / count[:, None]
        diff = points[None] - means[:, None]
        covs = jnp.einsum("kni,knj->kij", resp[:, :, None] * diff, diff) / count[:, None, None]
        covs = covs + 1e-3 * jnp.eye(d)
        return likelihood, total.mean(), count / points.shape[0], means, covs, step + 1

    start = (-jnp.inf, -1e30, jnp.full(k, 1 / k), means, jnp.stack([jnp.eye(d)] * k), 0)
    going = lambda state: (jnp.abs(state[1] - state[0]) >= 1e-4) & (state[5] < 100)
    return lax.while_loop(going, body, start)[2:5]


# ---------------------------------------------------------------- k-means, empty clusters removed


def kmeans_inputs(seed):
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(8, 6)) * 5
    points = centers[rng.integers(0, 8, 2500)] + rng.normal(size=(2500, 6))
    far = rng.normal(size=(int(rng.integers(2, 12)), 6)) * 40
    first = np.concatenate([centers + rng.normal(size=centers.shape), far])
    return jnp.asarray(points.astype(F)), jnp.asarray(first.astype(F))


def kmeans_empty(points, centers):
    while True:
        near = jnp.argmin(((points[:, None] - centers[None]) ** 2).sum(-1), axis=1)
        count = jnp.bincount(near, length=centers.shape[0])
        sums = jax.ops.segment_sum(points, near, centers.shape[0])
        kept = count > 0
        moved = sums[kept] / count[kept][:, None]
        if moved.shape == centers.shape and jnp.abs(moved - centers).max() < 1e-3:
            return moved, count[kept]
        centers = moved


def kmeans_numpy(points, centers):
    while True:
        near = ((points[:, None] - centers[None]) ** 2).sum(-1).argmin(1)
        count = np.bincount(near, minlength=len(centers))
        sums = np.stack([np.bincount(near, p, len(centers)) for p in points.T], 1).astype(F)
        kept = count > 0
        moved = sums[kept] / count[kept][:, None].astype(F)
        if moved.shape == centers.shape and np.abs(moved - centers).max() < 1e-3:
            return moved, count[kept]
        centers = moved


@jax.jit
def kmeans_compiled(points, centers, live):
    square = (points**2).sum(1)

    def body(state):
        centers, live, _, _ = state
        far = square[:, None] - 2 * points @ centers.T + (centers**2).sum(1)
        member = jax.nn.one_hot(jnp.argmin(jnp.where(live, far, jnp.inf), 1), live.shape[0])
        count = member.sum(0)
        moved = jnp.where((count > 0)[:, None], member.T @ points / count[:, None], centers)
        shift = jnp.where((count > 0)[:, None], jnp.abs(moved - centers), 0).max()
        return moved, count > 0, count, jnp.where(jnp.all((count > 0) == live), shift, jnp.inf)

    start = centers, live, jnp.zeros(live.shape[0]), jnp.inf
    return lax.while_loop(lambda state: state[3] >= 1e-3, body, start)


def kmeans_hand(points, centers):
    size = bucket(centers.shape[0])
    first = np.zeros((size, centers.shape[1]), F)
    first[: centers.shape[0]] = centers
    out, live, count, _ = kmeans_compiled(points, first, np.arange(size) < centers.shape[0])
    live = np.asarray(live)
    return np.asarray(out)[live], np.asarray(count)[live]


# ---------------------------------------------------------------- a plane among outliers


def ransac_inputs(seed):
    rng = np.random.default_rng(seed)
    n, share = 800, rng.uniform(0.4, 0.7)
    normal = rng.normal(size=3)
    normal /= np.linalg.norm(normal)
    points = rng.uniform(-5, 5, (n, 3))
    inside = rng.uniform(size=n) < share
    off = (points @ normal - 1.0)[:, None] * normal
    points = np.where(inside[:, None], points - off + rng.normal(size=(n, 3)) * 0.01, points)
    picks = np.stack([rng.choice(n, 3, replace=False) for _ in range(200)])
    return jnp.asarray(points.astype(F)), jnp.asarray(picks, jnp.int32)


def ransac_plane(points, picks):
    best, inliers, needed = 0, None, picks.shape[0]
    for tried, pick in enumerate(picks):
        if tried >= needed:
            break
        a, b, c = points[pick]
        normal = jnp.cross(b - a, c - a)
        length = jnp.linalg.norm(normal)
        if length < 1e-2:
            continue
        close = jnp.abs((points - a) @ (normal / length)) < 0.08
        count = int(close.sum())
        if count > best:
            best, inliers = count, close
            share = count / points.shape[0]
            needed = math.log(1e-3) / math.log(max(1 - share**3, 1e-9))
    chosen = points[inliers]
    middle = chosen.mean(0)
    _, _, axes = jnp.linalg.svd(chosen - middle, full_matrices=False)
    normal = axes[2] * jnp.sign(axes[2][jnp.argmax(jnp.abs(axes[2]))])
    return normal, normal @ middle


def ransac_numpy(points, picks):
    best, inliers, needed = 0, None, len(picks)
    for tried, pick in enumerate(picks):
        if tried >= needed:
            break
        a, b, c = points[pick]
        normal = np.cross(b - a, c - a)
        length = np.linalg.norm(normal)
        if length < 1e-2:
            continue
        close = np.abs((points - a) @ (normal / length)) < 0.08
        count = int(close.sum())
        if count > best:
            best, inliers = count, close
            needed = math.log(1e-3) / math.log(max(1 - (count / len(points)) ** 3, 1e-9))
    chosen = points[inliers]
    middle = chosen.mean(0)
    axis = np.linalg.svd(chosen - middle, full_matrices=False)[2][2]
    normal = axis * np.sign(axis[np.abs(axis).argmax()])
    return normal, normal @ middle


@jax.jit
def ransac_hand(points, picks):
    n = points.shape[0]

    def body(state):
        tried, best, inliers, needed = state
        a, b, c = points[picks[tried]]
        normal = jnp.cross(b - a, c - a)
        length = jnp.linalg.norm(normal)
        close = jnp.abs((points - a) @ (normal / length)) < 0.08
        count = close.sum()
        better = (count > best) & (length >= 1e-2)
        enough = math.log(1e-3) / jnp.log(jnp.maximum(1 - (count / n) ** 3, 1e-9))
        return (
            tried + 1,
            jnp.where(better, count, best),
            jnp.where(better, close, inliers),
            jnp.where(better, enough, needed),
        )

    start = 0, 0, jnp.zeros(n, bool), float(picks.shape[0])
    going = lambda state: (state[0] < state[3]) & (state[0] < picks.shape[0])
    inliers = lax.while_loop(going, body, start)[2]
    middle = jnp.where(inliers[:, None], points, 0).sum(0) / inliers.sum()
    centered = jnp.where(inliers[:, None], points - middle, 0)
    axis = jnp.linalg.eigh(centered.T @ centered)[1][:, 0]
    normal = axis * jnp.sign(axis[jnp.argmax(jnp.abs(axis))])
    return normal, normal @ middle


# ---------------------------------------------------------------- iterative closest point


def icp_inputs(seed):
    rng = np.random.default_rng(seed)
    n, angle = int(rng.integers(250, 400)), rng.uniform(0.1, 0.3)
    target = rng.normal(size=(500, 3)) * [3, 2, 1]
    turn = np.array(
        [[math.cos(angle), -math.sin(angle), 0], [math.sin(angle), math.cos(angle), 0], [0, 0, 1]]
    )
    source = target[rng.choice(500, n, replace=False)] + rng.normal(size=(n, 3)) * 0.01
    source[: n // 20] += rng.normal(size=(n // 20, 3)) * 5
    return jnp.asarray((source @ turn.T + 0.2).astype(F)), jnp.asarray(target.astype(F))


def icp(source, target):
    previous, error = math.inf, math.inf
    for _ in range(60):
        squares = ((source[:, None] - target[None]) ** 2).sum(-1)
        nearest = jnp.argmin(squares, axis=1)
        distance = jnp.sqrt(squares[jnp.arange(source.shape[0]), nearest])
        kept = distance < 3 * jnp.median(distance) + 1e-3
        p, q = source[kept], target[nearest[kept]]
        pm, qm = p.mean(0), q.mean(0)
        u, _, vt = jnp.linalg.svd((p - pm).T @ (q - qm))
        if jnp.linalg.det(u @ vt) < 0:
            u = u.at[:, 2].multiply(-1)
        source = (source - pm) @ (u @ vt) + qm
        error = float(distance[kept].mean())
        if abs(previous - error) < 1e-5:
            break
        previous = error
    return source, error


def icp_numpy(source, target):
    previous, error = math.inf, math.inf
    for _ in range(60):
        squares = ((source[:, None] - target[None]) ** 2).sum(-1)
        nearest = squares.argmin(1)
        distance = np.sqrt(squares[np.arange(len(source)), nearest])
        kept = distance < 3 * np.median(distance) + 1e-3
        p, q = source[kept], target[nearest[kept]]
        pm, qm = p.mean(0), q.mean(0)
        u, _, vt = np.linalg.svd((p - pm).T @ (q - qm))
        if np.linalg.det(u @ vt) < 0:
            u[:, 2] *= -1
        source = (source - pm) @ (u @ vt) + qm
        error = float(distance[kept].mean())
        if abs(previous - error) < 1e-5:
            break
        previous = error
    return source, error


@jax.jit
def icp_compiled(source, target, n):
    live = jnp.arange(source.shape[0]) < n
    norms = (target**2).sum(1)

    def body(state):
        source, _, previous, step = state
        squares = (source**2).sum(1)[:, None] - 2 * source @ target.T + norms
        nearest = jnp.argmin(squares, axis=1)
        q = target[nearest]
        distance = jnp.linalg.norm(source - q, axis=1)
        ordered = jnp.sort(jnp.where(live, distance, jnp.inf))
        median = 0.5 * (ordered[(n - 1) // 2] + ordered[n // 2])
        kept = (live & (distance < 3 * median + 1e-3)).astype(F)[:, None]
        pm, qm = (source * kept).sum(0) / kept.sum(), (q * kept).sum(0) / kept.sum()
        u, _, vt = jnp.linalg.svd(((source - pm) * kept).T @ (q - qm))
        flip = jnp.where(jnp.linalg.det(u @ vt) < 0, -1.0, 1.0)
        u = u * jnp.array([1.0, 1.0, flip])
        error = (distance * kept[:, 0]).sum() / kept.sum()
        return (source - pm) @ (u @ vt) + qm, previous, error, step + 1

    def going(state):
        return (jnp.abs(state[1] - state[2]) >= 1e-5) & (state[3] < 60)

    def with_previous(state):
        _, _, error, step = state
        moved, _, new, _ = body(state)
        return moved, error, new, step + 1

    out = lax.while_loop(going, with_previous, (source, jnp.inf, 1e30, 0))
    return out[0], out[2]


def icp_hand(source, target):
    n = source.shape[0]
    first = np.zeros((bucket(n), 3), F)
    first[:n] = source
    moved, error = icp_compiled(first, target, n)
    return np.asarray(moved)[:n], float(error)


# ---------------------------------------------------------------- gradient descent, stopped early


def descent_inputs(seed):
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=40) * (rng.uniform(size=40) < 0.3)
    x = rng.normal(size=(1200, 40))
    y = x @ truth + rng.normal(size=1200) * rng.uniform(0.5, 2.0)
    parts = x[:900], y[:900], x[900:], y[900:]
    return tuple(jnp.asarray(part.astype(F)) for part in parts)


def squared(w, x, y):
    return jnp.mean((x @ w - y) ** 2)


def early_stop_descent(x, y, x_test, y_test):
    w = jnp.zeros(x.shape[1])
    best, best_w, bad, step = math.inf, w, 0, 0
    while bad < 5 and step < 300:
        w = w - 0.02 * jax.grad(squared)(w, x, y)
        loss = squared(w, x_test, y_test)
        if loss < best - 1e-3:
            best, best_w, bad = float(loss), w, 0
        else:
            bad += 1
        step += 1
        if step % 10 == 0:
            print(f"step {step} loss {float(loss):.3f}")
    return best_w, best


def descent_numpy(x, y, x_test, y_test):
    w = np.zeros(x.shape[1], F)
    best, best_w, bad, step = math.inf, w, 0, 0
    while bad < 5 and step < 300:
        w = w - F(0.02) * (2 / F(len(y)) * (x.T @ (x @ w - y)))
        loss = np.mean((x_test @ w - y_test) ** 2)
        if loss < best - 1e-3:
            best, best_w, bad = float(loss), w, 0
        else:
            bad += 1
        step += 1
        if step % 10 == 0:
            print(f"step {step} loss {float(loss):.3f}")
    return best_w, best


@jax.jit
def descent_ten(state, x, y, x_test, y_test):
    """Up to ten steps: what lies between two prints."""

    def body(state):
        w, best, best_w, bad, step, _ = state
        w = w - 0.02 * jax.grad(squared)(w, x, y)
        loss = squared(w, x_test, y_test)
        better = loss < best - 1e-3
        best_w = jnp.where(better, w, best_w)
        return (
            w,
            jnp.where(better, loss, best),
            best_w,
            jnp.where(better, 0, bad + 1),
            step + 1,
            loss,
        )

    last = state[4] + 10
    going = lambda s: (s[3] < 5) & (s[4] < jnp.minimum(last, 300))
    return lax.while_loop(going, body, state)


def descent_hand(x, y, x_test, y_test):
    w = jnp.zeros(x.shape[1])
    state = w, jnp.float32(jnp.inf), w, 0, 0, jnp.float32(0)
    while True:
        state = descent_ten(state, x, y, x_test, y_test)
        bad, step = int(state[3]), int(state[4])
        if step % 10 == 0:
            print(f"step {step} loss {float(state[5]):.3f}")
        if bad >= 5 or step >= 300:
            return state[2], float(state[1])


FITS = programs(
    Prog(em_inputs, em_gmm, em_numpy, em_hand, "until float(log likelihood) settles", 2e-2),
    Prog(kmeans_inputs, kmeans_empty, kmeans_numpy, kmeans_hand, "clusters masked away", 2e-2),
    Prog(ransac_inputs, ransac_plane, ransac_numpy, ransac_hand, "best and limit in Python", 2e-2),
    Prog(icp_inputs, icp, icp_numpy, icp_hand, "pairs masked, until the error settles", 2e-2),
    Prog(
        descent_inputs,
        early_stop_descent,
        descent_numpy,
        descent_hand,
        "patience in Python, a print per 10 steps",
        2e-2,
    ),
)


# ---------------------------------------------------------------- one input, one result


def bits(fun, args):
    """What a call returns and prints, bit by bit."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        out = fun(*args)
    leaves = [np.asarray(x) for x in jax.tree.leaves(to_np(out))]
    return printed.getvalue(), *[(str(x.dtype), x.shape, x.tobytes()) for x in leaves]


def kinds_of_bits(program, calls: int) -> int:
    """How many different results there are among so many calls of one input."""
    fun, args = mal.jit(program.eager), program.make(0)
    found = set()
    for number in range(calls):
        found.add(bits(fun, args))
        if number in (1, calls // 2):  # sizes and branches that were not seen
            bits(fun, program.make(1000 + number))
    return len(found)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--bits", action="store_true", help="count the kinds of results")
    parser.add_argument("--calls", type=int, default=size(300, 3))
    add_argument(parser)
    options = parser.parse_args(argv)
    calls, found = options.calls, {}
    for name in size([*FITS], ["ransac_plane"]):
        found[name] = kinds_of_bits(FITS[name], calls)
        print(f"{name:22} {calls} calls of one input: {found[name]} kind(s) of bits", flush=True)
    return 0 if set(found.values()) == {1} else 1


if __name__ == "__main__":
    sys.exit(main())
