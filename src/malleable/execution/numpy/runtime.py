"""What the generated NumPy code calls where NumPy has no function of the same meaning."""

import math

import ml_dtypes
import numpy as np
from scipy import special


def floordiv(n, k):
    return n // k


def mod(n, k):
    return n % k


# ---------------------------------------------------------------- elementwise


def divide(x, y):
    """Integer division towards zero; by zero it is -1 (all bits set), as in XLA."""
    kind = (x if isinstance(x, np.ndarray | np.generic) else y).dtype
    x, y = np.asarray(x, kind), np.asarray(y, kind)
    zero = y == 0
    one = np.where(zero, kind.type(1), y)
    quotient = np.asarray(x // one)
    if kind.kind == "i":
        opposite = np.less(x, 0) != np.less(one, 0)
        quotient = quotient + ((quotient * one != x) & opposite)
    return np.where(zero, ~np.zeros_like(quotient), quotient)


def remainder(x, y):
    """What `divide` leaves: of the sign of x, and x itself for y = 0."""
    return np.where(y == 0, x, np.fmod(x, y))


def shift_right(x, y):
    """Logical shift: zeros come in from the left."""
    kind = x.dtype if isinstance(x, np.ndarray | np.generic) else y.dtype
    if kind.kind == "u":
        return x >> y
    bits = np.dtype(f"u{kind.itemsize}")
    return (np.asarray(x, kind).view(bits) >> np.asarray(y, kind).view(bits)).view(kind)


def shift_right_signed(x, y):
    """Arithmetic shift, of unsigned integers too: the first bit comes in from the left."""
    kind = x.dtype if isinstance(x, np.ndarray | np.generic) else y.dtype
    bits = np.dtype(f"i{kind.itemsize}")
    return (np.asarray(x, kind).view(bits) >> np.asarray(y, kind).view(bits)).view(kind)


def sign(x):
    """-1, 0 or 1; of -0.0 it is -0.0, as in XLA."""
    return np.copysign(np.sign(x), x)


def erf_inv(x):
    """The inverse of erf; -0.0 where x is."""
    return np.copysign(special.erfinv(x), x)


def leading_zeros(x):
    """Zero bits before the first one bit."""
    width = 8 * x.dtype.itemsize
    bits = np.asarray(x).view(f"u{x.dtype.itemsize}")
    for k in (1, 2, 4, 8, 16, 32):
        if k < width:
            bits = bits | (bits >> k)
    return (width - np.bitwise_count(bits).astype(np.int64)).astype(x.dtype)


def bit_count(x):
    """One bits, the sign's included."""
    return np.bitwise_count(np.asarray(x).view(f"u{x.dtype.itemsize}")).astype(x.dtype)


def make_complex(x, y):
    out = np.empty(np.broadcast_shapes(np.shape(x), np.shape(y)), np.result_type(x, y, 1j))
    out.real, out.imag = x, y
    return out


def round_away(x):
    """To the nearest integer; halves away from zero."""
    whole = np.trunc(x)
    return whole + np.copysign((np.abs(x - whole) >= 0.5).astype(x.dtype), x)


def power(x, n):
    """x to an integer power, by repeated squaring."""
    out, square, left = None, x, abs(n)
    while left:
        if left & 1:
            out = square if out is None else out * square
        left >>= 1
        if left:
            square = square * square
    if out is None:
        return np.ones_like(x)
    return out if n > 0 else (np.ones_like(x) / out if x.dtype.kind not in "iu" else out)


def to_integer(x, dtype):
    """Truncated; what is out of range goes to the nearest end, NaN to 0."""
    if x.dtype == ml_dtypes.bfloat16 or x.dtype == np.float16:
        x = x.astype(np.float32)
    limits = np.iinfo(dtype)
    x = np.asarray(x)
    inside = (x > limits.min - 1.0) & (x < limits.max + 1.0)
    if inside.all():
        return x.astype(dtype)
    out = np.where(inside, x, 0).astype(dtype)
    out = np.where(x >= limits.max + 1.0, dtype(limits.max), out)
    return np.where(x <= limits.min - 1.0, dtype(limits.min), out)


def total_order(x):
    """Integers in the order of floats: -NaN, -inf, ..., -0, 0, ..., inf, NaN."""
    bits = np.asarray(x).view(f"i{x.dtype.itemsize}")
    return np.where(bits < 0, bits ^ np.iinfo(bits.dtype).max, bits)


def digamma(x, zero=-np.inf):
    """Derivative of the logarithm of gamma; NaN at its poles, but `zero` at 0."""
    pole = np.where(x == 0, np.asarray(zero, x.dtype), np.asarray(np.nan, x.dtype))
    return np.where((x <= 0) & (x == np.floor(x)), pole, special.psi(x))


def polygamma(n, x):
    """Derivative of order n of digamma, by the zeta function, as JAX has it."""
    n = np.asarray(n, x.dtype)
    sign = np.where(n % 2 == 0, -1, 1).astype(x.dtype)
    higher = sign * np.exp(special.gammaln(n + 1)) * zeta(n + 1, x)
    return np.where(n == 0, special.digamma(x).astype(x.dtype), higher)


def igamma(a, x):
    """Lower regularized incomplete gamma function; NaN where XLA says so."""
    out = np.asarray(special.gammainc(a, x))
    outside = (a < 0) | (x < 0) | ((a == 0) & (x < 1))
    return np.where(outside, np.full_like(out, np.nan), out)


def igammac(a, x):
    """Upper regularized incomplete gamma function; NaN where XLA says so."""
    out = np.asarray(special.gammaincc(a, x))
    outside = (a < 0) | (x < 0) | ((a == 0) & (x == 0))
    return np.where(outside, np.full_like(out, np.nan), out)


def lgamma(x):
    """Logarithm of the absolute value of gamma; inf at both ends."""
    return np.where(np.isinf(x), np.abs(x), special.gammaln(x))


def zeta(x, q):
    """Hurwitz zeta function; at its poles in q inf for even x, else NaN, as in XLA."""
    pole = (q <= 0) & (q == np.floor(q)) & (x != 1)
    out = np.asarray(special.zeta(x, q))
    ends = np.where(np.fmod(x, 2) == 0, np.full_like(out, np.inf), np.full_like(out, np.nan))
    out = np.where((q == np.inf) | (x == np.inf), np.full_like(out, np.nan), out)
    return np.where(pole, ends, out)


# ---------------------------------------------------------------- random bits


def threefry2x32(k1, k2, x1, x2):
    """Two words of random bits per counter, by the cipher Threefry-2x32 with 20 rounds.

    Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
    """
    shape = np.broadcast_shapes(np.shape(k1), np.shape(x1))
    k3 = k1 ^ k2 ^ np.uint32(0x1BD11BDA)
    keys = k1, k2, k3
    x = np.array(np.broadcast_to(x1 + k1, shape))
    y = np.array(np.broadcast_to(x2 + k2, shape))
    for i in range(5):
        for r in ((13, 15, 26, 6), (17, 29, 16, 24))[i % 2]:
            x += y
            high = y << np.uint32(r)
            y >>= np.uint32(32 - r)
            y |= high
            y ^= x
        x += keys[(i + 1) % 3]
        y += keys[(i + 2) % 3] + np.uint32(i + 1)
    return x, y


def counts_2x32(shape):
    """The high and low words of 0, 1, 2, ... in an array of this shape."""
    counts = np.arange(math.prod(shape), dtype=np.uint64).reshape(shape)
    return (counts >> np.uint64(32)).astype(np.uint32), counts.astype(np.uint32)


# ---------------------------------------------------------------- shapes


def start(i, last):
    """Where a slice begins: an index within 0..last."""
    return min(max(int(i), 0), last)


def dynamic_update_slice(x, update, starts):
    """x with a block of another array from `starts` on, moved inside where it sticks out."""
    out = x.copy()
    ends = zip(starts, x.shape, update.shape, strict=True)
    where = [(start(i, n - k), k) for i, n, k in ends]
    out[tuple(slice(i, i + k) for i, k in where)] = update
    return out


def pad(x, value, low, high, interior):
    """With `low` and `high` more elements at the ends (or fewer), `interior` between."""
    spread = [n + max(n - 1, 0) * k for n, k in zip(x.shape, interior, strict=True)]
    sizes = [max(a + n + b, 0) for a, n, b in zip(low, spread, high, strict=True)]
    out = np.full(sizes, value, x.dtype)
    to, of = [], []
    for a, n, k, size in zip(low, x.shape, interior, sizes, strict=True):
        first = max(0, -(a // (k + 1))) if a < 0 else 0
        begin = a + first * (k + 1)
        count = min(n - first, (size - begin + k) // (k + 1) if size > begin else 0)
        count = max(count, 0)
        to.append(slice(begin, begin + (count - 1) * (k + 1) + 1 if count else begin, k + 1))
        of.append(slice(first, first + count))
    out[tuple(to)] = x[tuple(of)]
    return out


# ---------------------------------------------------------------- order


def ordered(x, axis):
    """Sorted; zeros of either sign in their order, which only a stable sort keeps."""
    zeros = x.size - np.count_nonzero(x)
    return np.sort(x, axis, kind="stable" if zeros > 1 else None)


def top_k(x, k, axis):
    """(values, indices) of the k largest, the first of equals first."""
    n = x.shape[axis]
    order = np.flip(np.argsort(np.flip(x, axis), axis, kind="stable"), axis)
    order = n - 1 - np.take(order, range(k), axis)
    return np.take_along_axis(x, order, axis), order


def accumulate(ufunc, x, axis, reverse):
    """Running results along an axis, from the end if `reverse`."""
    if reverse:
        return np.flip(ufunc.accumulate(np.flip(x, axis), axis, x.dtype), axis)
    return ufunc.accumulate(x, axis, x.dtype)


# ---------------------------------------------------------------- indexing


def inside(i, last):
    """Indices within 0..last."""
    return np.minimum(np.maximum(i, 0), last)


def is_inside(starts, lasts):
    """Where all indices are within 0..last, as an array."""
    ok = True
    for i, last in zip(starts, lasts, strict=True):
        ok = ok & (i >= 0) & (i <= last)
    return ok


def index_of(shape, starts, sizes, window, batch_rank):
    """The index arrays that read windows of `sizes` beginning at `starts`, one per dimension.

    starts: per dimension an array of the batch shape, or None for 0. window: the dimensions kept.
    """
    rank = batch_rank + len(window)
    index = []
    for d in range(len(shape)):
        at = np.zeros((), np.intp)
        if starts[d] is not None:
            at = np.asarray(starts[d], np.intp)
            at = at.reshape(at.shape + (1,) * len(window))
        if d in window:
            place = batch_rank + window.index(d)
            span = np.arange(int(sizes[d])).reshape((-1,) + (1,) * (rank - place - 1))
            at = at + span
        index.append(at)
    return tuple(index)


def gather(x, starts, sizes, window, lasts, batch, fill):
    """Windows of x: an array of the batch axes, then the window's. fill None: moved inside.

    starts: {dimension: indices of the batch shape}; lasts: {dimension: the last valid one};
    batch: {dimension: axis of the batch it goes along with}.
    """
    shape = np.broadcast_shapes(*(np.shape(i) for i in starts.values()))
    full = [None] * x.ndim
    for d, i in starts.items():
        full[d] = inside(i, lasts[d])
    for d, axis in batch.items():
        full[d] = np.arange(int(shape[axis])).reshape((-1,) + (1,) * (len(shape) - axis - 1))
        full[d] = np.broadcast_to(full[d], shape)
    out = np.asarray(x[index_of(x.shape, full, sizes, window, len(shape))])
    if fill is None:
        return out
    ok = is_inside(starts.values(), [lasts[d] for d in starts])
    if np.all(ok):
        return out
    return np.where(np.reshape(ok, shape + (1,) * len(window)), out, fill)


def take(x, i, axis, last, fill):
    """Elements along an axis; what is out of range is `fill`."""
    ok = (i >= 0) & (i <= last)
    if np.all(ok):
        return x.take(i, axis)
    if last < 0:
        shape = x.shape[:axis] + np.shape(i) + x.shape[axis + 1 :]
        return np.full(shape, fill, x.dtype)
    out = x.take(i, axis, mode="clip")
    ok = np.reshape(ok, np.shape(i) + (1,) * (x.ndim - axis - 1))
    return np.where(ok, out, fill)


def scatter(x, starts, updates, sizes, window, lasts, batch, clip, ufunc):
    """x with windows written or combined by ufunc; `updates`: batch axes, then the window's."""
    shape = updates.shape[: updates.ndim - len(window)]
    out = x.copy()
    full = [None] * x.ndim
    ok = True
    if not clip:
        ok = np.broadcast_to(is_inside(starts.values(), [lasts[d] for d in starts]), shape)
        if not np.any(ok):
            return out
    for d, i in starts.items():
        full[d] = np.broadcast_to(inside(i, lasts[d]), shape)
    for d, axis in batch.items():
        full[d] = np.arange(int(shape[axis])).reshape((-1,) + (1,) * (len(shape) - axis - 1))
        full[d] = np.broadcast_to(full[d], shape)
    if np.all(ok):
        index = index_of(x.shape, full, sizes, window, len(shape))
    else:
        full = [None if i is None else i[ok] for i in full]
        index = index_of(x.shape, full, sizes, window, 1)
        updates = updates[ok]
    if ufunc is None:
        out[index] = updates
    else:
        ufunc.at(out, index, updates)
    return out
