"""Functions of SciPy that jax.scipy lacks, or has with other arguments: formulas on plain arrays.

OWN[package][name] takes the arguments of SciPy's function that it knows of; IN_PLACE[name] gives
what a compiled function would write into its last argument.
"""

import functools
import itertools
import operator

import jax
import jax.numpy as jnp
import jax.scipy.linalg
import jax.scipy.special
import numpy as np

from malleable import compat
from malleable.errors import TransformError
from malleable.notes import note


def solve(a, b, lower=False, assume_a=None, transposed=False):
    a = jnp.asarray(a)
    positive = assume_a in ("pos", "positive definite")
    a = jnp.swapaxes(a, -1, -2) if transposed else a
    return jax.scipy.linalg.solve(a, b, lower=lower, assume_a="pos" if positive else "gen")


def pinv(a, atol=None, rtol=None, return_rank=False):
    a, s = jnp.asarray(a), jnp.linalg.svd(a, compute_uv=False)
    rtol = max(a.shape) * jnp.finfo(s.dtype).eps if rtol is None and atol is None else rtol
    bound = (0.0 if atol is None else atol) + (0.0 if rtol is None else rtol) * s[..., 0]
    result = jnp.linalg.pinv(a, rtol=bound / s[..., 0])
    return (result, jnp.sum(s > bound)) if return_rank else result


def lstsq(a, b, cond=None):
    x, residues, rank, s = jnp.linalg.lstsq(jnp.asarray(a), jnp.asarray(b), rcond=cond)
    tall = jnp.shape(a)[0] > jnp.shape(a)[1]
    return x, residues if tall else residues[:0], rank, s


def cho_solve(c_and_lower, b):
    c, lower = c_and_lower
    return jax.scipy.linalg.cho_solve((c, bool(lower)), b)


def solve_toeplitz(c_or_cr, b):
    column, row = c_or_cr if isinstance(c_or_cr, tuple) else (c_or_cr, None)
    return jnp.linalg.solve(jax.scipy.linalg.toeplitz(column, row), b)


def from_bands(bands, offsets):
    """The matrix whose element (i, j) on diagonal k = j - i is bands[k][j] for upper, else [i]."""
    n = len(bands[0])
    rows = zip(offsets, bands, strict=True)
    zero = jnp.zeros((n, n), bands.dtype)
    return sum((jnp.diag(band[max(k, 0) : n + min(k, 0)], k) for k, band in rows), zero)


def solve_banded(l_and_u, ab, b):
    low, up = l_and_u
    return jnp.linalg.solve(from_bands(jnp.asarray(ab), range(up, -low - 1, -1)), b)


def solveh_banded(ab, b, lower=False):
    ab = jnp.asarray(ab)
    count = len(ab)
    offsets = range(0, -count, -1) if lower else range(count - 1, -1, -1)
    half = from_bands(ab, offsets)
    diagonal = ab[0 if lower else -1]
    return jnp.linalg.solve(half + jnp.conj(half.T) - jnp.diag(diagonal), b)


def lfilter(b, a, x, axis=-1, zi=None):
    """Transposed direct form II, as scipy.signal.lfilter documents it."""
    b, a, x = jnp.atleast_1d(b), jnp.atleast_1d(a), jnp.moveaxis(jnp.asarray(x), axis, 0)
    order = max(len(a), len(b))
    b, a = (jnp.pad(c / a[0], (0, order - len(c))) for c in (b, a))
    x = x.astype(jnp.result_type(a, b, x))
    start = jnp.zeros((order - 1, *x.shape[1:]), x.dtype)
    start = start if zi is None else start + jnp.moveaxis(jnp.asarray(zi), axis, 0)

    def step(state, now):
        padded = jnp.concatenate([state, jnp.zeros((1, *now.shape), x.dtype)])
        out = b[0] * now + padded[0]
        return padded[1:] + jnp.multiply.outer(b[1:], now) - jnp.multiply.outer(a[1:], out), out

    state, out = jax.lax.scan(step, start, x)
    out = jnp.moveaxis(out, 0, axis)
    return out if zi is None else (out, jnp.moveaxis(state, 0, axis))


def normalize(b, a):
    """A transfer function with a leading 1 below; leading zeros above are kept."""
    num, den = jnp.asarray(b), jnp.atleast_1d(a)
    if den.ndim != 1:
        raise ValueError("Denominator polynomial must be rank-1 array.")
    if num.ndim > 2:
        raise ValueError("Numerator polynomial must be rank-1 or rank-2 array.")
    note("leading zeros of a transfer function are kept", compat.where(), "they are known too late")
    num = jnp.atleast_1d(num) / den[0]
    return num[0] if num.ndim == 2 and len(num) == 1 else num, den / den[0]


PADDINGS = {
    **{"reflect": "symmetric", "grid-mirror": "symmetric", "mirror": "reflect", "nearest": "edge"},
    **{"constant": "constant", "grid-constant": "constant", "wrap": "wrap", "grid-wrap": "wrap"},
}


def correlate1d(input, weights, axis=-1, mode="reflect", cval=0.0, origin=0):
    x, size = jnp.moveaxis(jnp.asarray(input), axis, -1), len(weights)
    before = size // 2 + origin
    widths = [(0, 0)] * (x.ndim - 1) + [(before, size - 1 - before)]
    filled = {"constant_values": cval} if PADDINGS[mode] == "constant" else {}
    padded = jnp.pad(x, widths, mode=PADDINGS[mode], **filled)
    shifted = [padded[..., i : i + x.shape[-1]] for i in range(size)]
    return jnp.moveaxis(sum(w * part for w, part in zip(weights, shifted, strict=True)), -1, axis)


def convolve1d(input, weights, axis=-1, mode="reflect", cval=0.0, origin=0):
    turned = -origin - (1 if len(weights) % 2 == 0 else 0)
    return correlate1d(input, weights[::-1], axis, mode, cval, turned)


def correlate(input, weights, mode="reflect", cval=0.0, origin=0):
    x, weights = jnp.asarray(input), jnp.asarray(weights)
    origins = np.broadcast_to(origin, x.ndim)
    before = [n // 2 + int(o) for n, o in zip(weights.shape, origins, strict=True)]
    widths = [(b, n - 1 - b) for b, n in zip(before, weights.shape, strict=True)]
    filled = {"constant_values": cval} if PADDINGS[mode] == "constant" else {}
    padded, total = jnp.pad(x, widths, mode=PADDINGS[mode], **filled), jnp.zeros_like(x)
    for at in np.ndindex(weights.shape):
        part = tuple(slice(a, a + n) for a, n in zip(at, x.shape, strict=True))
        total = total + weights[at] * padded[part]
    return total


def convolve(input, weights, mode="reflect", cval=0.0, origin=0):
    weights = jnp.asarray(weights)
    turned = [
        -int(o) - (n % 2 == 0)
        for o, n in zip(np.broadcast_to(origin, weights.ndim), weights.shape, strict=True)
    ]
    return correlate(input, jnp.flip(weights), mode, cval, turned)


def qr_insert(Q, R, u, k, which="row"):
    matrix = jnp.insert(jnp.asarray(Q) @ R, k, u, axis=0 if which == "row" else 1)
    return jnp.linalg.qr(matrix, "complete" if Q.shape[0] == Q.shape[1] else "reduced")


def evaluate_pieces(c, x, at, derivative, extrapolate):
    """A piecewise polynomial of c (order, pieces, n), highest power first: (len(at), n).

    Piece i lies between the breakpoints x[i] < x[i + 1].
    """
    c, x, at = jnp.asarray(c), jnp.asarray(x), jnp.asarray(at)
    derivative = operator.index(derivative)
    piece = jnp.clip(jnp.searchsorted(x, at, side="right") - 1, 0, c.shape[1] - 1)
    step, total = (at - x[piece])[:, None], jnp.zeros((len(at), c.shape[2]), c.dtype)
    for row in range(len(c) - derivative):
        power = len(c) - 1 - row
        factor = np.prod(np.arange(power - derivative + 1, power + 1, dtype=float))
        total = total * step + factor * c[row][piece]
    inside = ((at >= x[0]) & (at <= x[-1]))[:, None]
    return total if extrapolate else jnp.where(inside, total, jnp.nan)


def sosfilt(sos, x, axis=-1, zi=None):
    """Second-order sections, one after the other."""
    sos, out, states = jnp.atleast_2d(sos), jnp.asarray(x), []
    for i, section in enumerate(sos):
        start = None if zi is None else jnp.asarray(zi)[i]
        found = lfilter(section[:3], section[3:], out, axis, start)
        out = found if zi is None else found[0]
        states += [] if zi is None else [found[1]]
    return out if zi is None else (out, jnp.stack(states))


def upfirdn(h, x, up=1, down=1, axis=-1):
    """Zeros put in between, filtered, and every `down`-th kept."""
    h, x = jnp.asarray(h), jnp.moveaxis(jnp.asarray(x), axis, -1)
    count = x.shape[-1]
    spread = jnp.zeros((*x.shape[:-1], count, up), x.dtype).at[..., 0].set(x)
    spread = spread.reshape((*x.shape[:-1], -1))[..., : (count - 1) * up + 1]
    flat = spread.reshape((-1, spread.shape[-1]))
    out = jax.vmap(lambda row: jnp.convolve(row, h))(flat)[:, ::down]
    return jnp.moveaxis(out.reshape((*x.shape[:-1], -1)), -1, axis)


def uniform_filter1d(input, size, axis=-1, mode="reflect", cval=0.0, origin=0):
    return correlate1d(input, np.full(size, 1 / size), axis, mode, cval, origin)


def solve_sylvester(a, b, q):
    """a x + x b = q, as one linear system."""
    a, b, q = map(jnp.asarray, (a, b, q))
    whole = jnp.kron(a, jnp.eye(len(b))) + jnp.kron(jnp.eye(len(a)), b.T)
    return jnp.linalg.solve(whole, q.ravel()).reshape(q.shape)


def issymmetric(a, atol=None, rtol=None):
    a = jnp.asarray(a)
    if atol is None and rtol is None:
        return jnp.all(a == a.T)
    return jnp.all(jnp.isclose(a, a.T, rtol or 0.0, atol or 0.0))


def ishermitian(a, atol=None, rtol=None):
    a, turned = jnp.asarray(a), jnp.conj(jnp.asarray(a).T)
    if atol is None and rtol is None:
        return jnp.all(a == turned)
    return jnp.all(jnp.isclose(a, turned, rtol or 0.0, atol or 0.0))


def evaluate_bernstein(c, x, at, derivative, extrapolate):
    """As `evaluate_pieces`, of a polynomial in Bernstein's basis."""
    c, x, at = jnp.asarray(c), jnp.asarray(x), jnp.asarray(at)
    piece = jnp.clip(jnp.searchsorted(x, at, side="right") - 1, 0, c.shape[1] - 1)
    width = (x[piece + 1] - x[piece])[:, None]
    u, rows = (at - x[piece])[:, None] / width, [row[piece] for row in c]
    for _ in range(operator.index(derivative)):
        degree = len(rows) - 1
        rows = [degree * (b - a) / width for a, b in itertools.pairwise(rows)]
    while len(rows) > 1:  # de Casteljau
        rows = [(1 - u) * a + u * b for a, b in itertools.pairwise(rows)]
    total = rows[0] if rows else jnp.zeros((len(at), c.shape[2]), c.dtype)
    inside = ((at >= x[0]) & (at <= x[-1]))[:, None]
    return total if extrapolate else jnp.where(inside, total, jnp.nan)


def squareform(X, force="no"):
    x = jnp.asarray(X)
    if x.ndim == 2:
        return x[np.triu_indices(len(x), 1)]
    n = round((1 + (1 + 8 * len(x)) ** 0.5) / 2)
    upper = jnp.zeros((n, n), x.dtype).at[np.triu_indices(n, 1)].set(x)
    return upper + upper.T


DISTANCES = {
    "euclidean": lambda u, v: jnp.linalg.norm(u - v),
    "sqeuclidean": lambda u, v: jnp.sum((u - v) ** 2),
    "cityblock": lambda u, v: jnp.sum(jnp.abs(u - v)),
    "chebyshev": lambda u, v: jnp.max(jnp.abs(u - v)),
    "canberra": lambda u, v: jnp.nansum(jnp.abs(u - v) / (jnp.abs(u) + jnp.abs(v))),
    "braycurtis": lambda u, v: jnp.sum(jnp.abs(u - v)) / jnp.sum(jnp.abs(u + v)),
    "cosine": lambda u, v: 1 - u @ v / (jnp.linalg.norm(u) * jnp.linalg.norm(v)),
    "correlation": lambda u, v: DISTANCES["cosine"](u - jnp.mean(u), v - jnp.mean(v)),
}


def cdist(XA, XB, metric="euclidean"):
    if metric not in DISTANCES:
        raise TransformError(f"cdist(metric={metric!r}) has no counterpart in JAX", compat.where())
    row = jax.vmap(DISTANCES[metric], (None, 0))
    return jax.vmap(row, (0, None))(jnp.asarray(XA) * 1.0, jnp.asarray(XB) * 1.0)


def pdist(X, metric="euclidean"):
    return cdist(X, X, metric)[np.triu_indices(len(X), 1)]


def ranked(x, method, return_sorted=False, return_ties=False, xp=None):
    """scipy.stats' _rankdata: (ranks along the last axis, sorted x, how often each occurs)."""
    rows = jnp.asarray(x).reshape(-1, x.shape[-1])
    order = jnp.argsort(rows, axis=-1, stable=True)
    ascending = jnp.take_along_axis(rows, order, -1)
    new = jnp.concatenate(
        [jnp.ones_like(ascending[:, :1], bool), ascending[:, 1:] != ascending[:, :-1]], -1
    )
    start, stop = (
        jax.vmap(functools.partial(jnp.searchsorted, side=side))(ascending, rows)
        for side in ("left", "right")
    )
    dense = jnp.cumsum(new, -1)
    ranks = {
        "ordinal": lambda: jnp.argsort(order, axis=-1) + 1,
        "min": lambda: start + 1,
        "max": lambda: stop,
        "average": lambda: (start + 1 + stop) / 2,
        "dense": lambda: jnp.take_along_axis(dense, start, -1),
    }[method]().reshape(x.shape)
    if not (return_ties or return_sorted):
        return ranks, None, None
    lengths = jax.vmap(lambda k: jnp.bincount(k - 1, length=k.size))(dense)
    ties = jnp.where(new, jnp.take_along_axis(lengths, dense - 1, -1), 0)
    return ranks, ascending.reshape(x.shape), ties.astype(float).reshape(x.shape)


def ranked_before(x, method, return_ties=False, xp=None):
    """The same before SciPy 1.18: the ranks, with how often each occurs if that is asked for."""
    ranks, _, ties = ranked(x, method, return_ties=return_ties)
    return (ranks, ties) if return_ties else ranks


IN_PLACE = {"evaluate": evaluate_pieces, "evaluate_bernstein": evaluate_bernstein}
OWN = {
    "scipy.special": {"zeta": lambda x, q=None: jax.scipy.special.zeta(x, 1.0 if q is None else q)},
    "scipy.linalg": {
        **{"solve": solve, "pinv": pinv, "pinvh": pinv, "lstsq": lstsq, "cho_solve": cho_solve},
        **{"solve_toeplitz": solve_toeplitz, "qr_insert": qr_insert, "ishermitian": ishermitian},
        **{"solve_banded": solve_banded, "solveh_banded": solveh_banded},
        **{"solve_sylvester": solve_sylvester, "issymmetric": issymmetric},
        "solve_continuous_lyapunov": lambda a, q: solve_sylvester(a, jnp.conj(jnp.asarray(a).T), q),
        "eigvalsh": lambda a, b=None, lower=True: jax.scipy.linalg.eigh(a, b, lower, True),
        "eig": lambda a: jnp.linalg.eig(a),
        "inv": lambda a: jnp.linalg.inv(a),
        "norm": lambda a, ord=None, axis=None, keepdims=False: jnp.linalg.norm(
            jnp.asarray(a), ord, axis, keepdims
        ),
        "svdvals": lambda a: jnp.linalg.svd(a, compute_uv=False),
        "eigvals": lambda a: jnp.linalg.eigvals(a),
    },
    "scipy.signal": {
        **{"lfilter": lfilter, "normalize": normalize, "sosfilt": sosfilt, "upfirdn": upfirdn},
    },
    "scipy.ndimage": {
        **{"correlate1d": correlate1d, "convolve1d": convolve1d},
        **{"uniform_filter1d": uniform_filter1d, "correlate": correlate, "convolve": convolve},
    },
    "scipy.spatial": {"cdist": cdist, "pdist": pdist, "squareform": squareform},
}
