"""Random programs on a sequence, causal or not: a scan of steps is the program, or it is refused.

And random updates of them: what an update gives is what the program gives on the new input.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from malleable import TransformError, as_scan, incremental

LENGTH, WIDTH = 8, 3
RIGHT, REFUSED, MISSED = "right", "refused", "refused though causal"


class Sequences:
    """A random program: `f(x)` runs the same operations each time it is called."""

    def __init__(self, seed: int, causal: float = 0.85):
        self.seed, self.causal = seed, causal

    def __call__(self, x):
        self.rng = np.random.default_rng(self.seed)
        values = [x]
        for _ in range(self.rng.integers(2, 7)):
            values.append(self._next(values))
        return values[-1] if self.rng.random() < 0.7 else values[-1] + values[0]

    def _array(self, *shape):
        return self.rng.normal(size=shape)

    def _pick(self, values):
        # one that was made lately, so that programs are deep
        k = len(values) - 1 - min(self.rng.geometric(0.6) - 1, len(values) - 1)
        return values[k]

    def _next(self, values):
        a, b = self._pick(values), self._pick(values)
        if self.rng.random() > self.causal:
            return self._choose(self._any(a, b))
        return self._choose(self._causal(a, b))

    def _choose(self, options):
        names = list(options)
        return options[names[self.rng.integers(len(names))]]()

    def _any(self, a, b):
        """Operations that mix rows in any way."""
        return {
            "reverse": lambda: a[::-1],
            "center": lambda: a - a.mean(0),
            "shift": lambda: jnp.concatenate([a[1:], self._array(1, WIDTH)]),
            "there and back": lambda: jnp.pad(jnp.pad(a, ((1, 0), (0, 0)))[2:], ((1, 0), (0, 0))),
            "ahead and behind": lambda: self._ahead(a),
            "sort": lambda: jnp.sort(a, 0),
            "running from behind": lambda: lax.cumsum(a, 0, reverse=True),
            "roll": lambda: jnp.roll(a, int(self.rng.integers(-1, 2)), 0),
            "attention": lambda: self._attention(a, b, strict=False),
            "last": lambda: a + a[-1],
            "first": lambda: a + a[0],
            "scan and its state": lambda: (lambda c, y: y + c)(*self._recur(a)),
            "every other row": lambda: jnp.repeat(a[::2], 2, 0),
            "branch": lambda: lax.cond(a[0, 0] > 0, jnp.sin, lambda a: self._behind(a, 1), a),
            "turns": lambda: lax.while_loop(_is_large, lambda c: c / 2, a),
        }

    def _causal(self, a, b):
        return {
            "elementwise": lambda: jnp.sin(a) + 0.5 * jnp.tanh(b),
            "product": lambda: jnp.tanh(a) * jnp.cos(b),
            "positions": lambda: a + self._array(LENGTH, 1),
            "matmul": lambda: a @ self._array(WIDTH, WIDTH),
            "normalise": lambda: (a - a.mean(-1, keepdims=True)) / (1 + a.var(-1, keepdims=True)),
            "shift": lambda: self._behind(a, int(self.rng.integers(1, 3))),
            "cumsum": lambda: jnp.cumsum(a, 0),
            "cummax": lambda: lax.cummax(a, 0),
            "convolution": lambda: self._convolution(a),
            "window": lambda: lax.reduce_window(
                a, -np.inf, lax.max, (2, 1), (1, 1), ((1, 0), (0, 0))
            ),
            "scan": lambda: self._recur(a)[1],
            "attention": lambda: self._attention(a, b, strict=True),
            "linear attention": lambda: self._linear(a, b),
            "triangle": lambda: self._flipped(np.tril(self._array(LENGTH, LENGTH))) @ a,
            "layers": lambda: self._layers(a),
            "where": lambda: jnp.where(a > 0, a, jnp.where(b > 0, 1.0, b)),
            "transposed": lambda: jnp.cumsum(a.T, 1).T,
            "merged": lambda: jnp.tanh(a).reshape(LENGTH, WIDTH, 1).reshape(LENGTH, WIDTH),
            "ahead and behind": lambda: self._ahead(a),
            "looked up": lambda: self._looked_up(a),
            "a state of the first rows": lambda: self._from_first(a),
            "otherwise at first": lambda: self._otherwise(a),
            "sink": lambda: self._sink(a, b),
            "turns of each row": lambda: jax.vmap(_halved)(a),
            "turns": lambda: lax.fori_loop(0, jnp.int32(2), lambda i, c: jnp.sin(c) * b, a),
        }

    def _looked_up(self, a):
        places = np.arange(LENGTH) - self.rng.integers(0, 3, LENGTH)
        if self.rng.random() < 0.2:
            places[self.rng.integers(LENGTH)] += 1
        return a[np.clip(places, 0, LENGTH - 1)]

    def _behind(self, a, k):
        return jnp.concatenate([self._array(k, WIDTH), a[:-k]])

    def _ahead(self, a):
        return self._behind(jnp.concatenate([a[1:], self._array(1, WIDTH)]), 1)

    def _convolution(self, a):
        k, step = int(self.rng.integers(1, 4)), int(self.rng.integers(1, 3))
        w, reach = self._array(k, WIDTH, WIDTH) / k, (k - 1) * step
        off = int(self.rng.random() < 0.1)
        pads = [(reach - off, off)] if reach else [(0, 0)]
        numbers = ("NWC", "WIO", "NWC")
        out = lax.conv_general_dilated(
            a[None], w, (1,), pads, rhs_dilation=(step,), dimension_numbers=numbers
        )
        return out[0]

    def _recur(self, a):
        w = self._array(WIDTH, WIDTH) / 2

        def cell(h, x):
            h = jnp.tanh(w @ h + x)
            return h, h * x

        return lax.scan(cell, jnp.zeros(WIDTH), a)

    def _from_first(self, a):
        """A recurrence that begins with some rows, now and then with a later one."""
        k = int(self.rng.integers(1, 4))
        w, begin = self._array(k, WIDTH), list(a[:k])
        if self.rng.random() < 0.2:
            begin[0] = begin[0] + a[int(self.rng.integers(LENGTH))]

        def cell(h, x):
            y = jnp.tanh(x + sum(r * c for r, c in zip(h, w, strict=True)))
            return [*h[1:], y], y

        if self.rng.random() < 0.5:
            return jnp.concatenate([a[:k], lax.scan(cell, begin, a[k:])[1]])
        rows = begin
        for t in range(k, LENGTH):
            rows.append(cell(rows[-k:], a[t])[1])
        return jnp.stack(rows)

    def _otherwise(self, a):
        """A loop that reads what is not there yet at its first steps, or rows that come later."""
        k, by = int(self.rng.integers(1, 3)), int(self.rng.choice([0, 0, 0, 1]))
        own, first = self.rng.random() < 0.7, self._array(WIDTH)

        def step(t, y):
            there = jnp.where(t >= k, (y if own else jnp.asarray(a))[t - k + by], first)
            return y.at[t].set(jnp.sin(jnp.asarray(a)[t] + there))

        return lax.fori_loop(0, LENGTH, step, jnp.zeros_like(a))

    def _sink(self, a, b):
        low = float(self.rng.choice([-np.inf, -1e9, -10.0]))
        s = jnp.where(self._flipped(np.tril(np.ones((LENGTH, LENGTH), bool))), a @ b.T, low)
        p = jax.nn.softmax(jnp.concatenate([s, b[:, :2]], 1))
        return p[:, :LENGTH] @ b + p[:, LENGTH:] @ self._array(2, WIDTH)

    def _layers(self, a):
        ws = self._array(2, WIDTH, WIDTH)
        kind = self.rng.integers(3)

        def layer(h, w):
            y = jnp.tanh(h @ w)
            if kind == 0:
                y = jnp.cumsum(y, 0)
            elif kind == 1:
                s = jnp.where(np.tril(np.ones((LENGTH, LENGTH), bool)), y @ h.T, -np.inf)
                y = jax.nn.softmax(s) @ y
            return h + y, y

        last, ys = lax.scan(layer, a, ws)
        return last if self.rng.random() < 0.7 else ys.sum(0)

    def _flipped(self, mask):
        """Now and then one element more or less."""
        mask = np.array(mask)
        if self.rng.random() < 0.25:
            i, j = self.rng.integers(LENGTH, size=2)
            mask[i, j] = 1 - mask[i, j] if mask.dtype != bool else not mask[i, j]
        return mask

    def _attention(self, a, b, strict):
        q, k, v = a @ self._array(WIDTH, WIDTH), b @ self._array(WIDTH, WIDTH), b
        if self.rng.random() < 0.2:
            q = self._behind(q, 1)
        if self.rng.random() < 0.2:
            v = a
        s = q @ k.T if self.rng.random() < 0.7 else jnp.sin(q[:, None] - k[None]).sum(-1)
        off = int(self.rng.choice([0, 0, 0, 0, -1, 1]))
        mask = self._flipped(np.tril(np.ones((LENGTH, LENGTH), bool), off))
        low = float(
            self.rng.choice([-np.inf, -1e30, -1e9, -10.0, 0.0], p=[0.4, 0.2, 0.2, 0.1, 0.1])
        )
        how = self.rng.integers(7) if strict else 7
        if how == 0:
            s = s + np.where(mask, 0.0, low)
        elif how == 1:
            s = jnp.where(mask & ((a[:, None, 0] > 0) | np.eye(LENGTH, dtype=bool)), s, low)
        elif how == 2:
            same = jnp.floor(a[:, 0])[:, None] == jnp.floor(a[:, 0])[None]
            s = jnp.where(same & mask, s, low)
        elif how == 3:  # keys that are left out
            s = jnp.where((mask & (b[:, 0] > 0)) | np.eye(LENGTH, dtype=bool), s, low)
        elif how <= 6:
            s = jnp.where(mask, s, low)
        if self.rng.random() < 0.2:
            s = self._behind_rows(s)
        end = self.rng.integers(5)
        if end == 0:
            return jnp.where(mask, s, 0.0) @ v
        if end == 1:
            return jnp.tanh(v * s.max(-1, keepdims=True))
        p = jax.nn.softmax(s, -1)
        if end == 2:
            return p.T @ v
        if end == 3:
            return (p @ p) @ v
        return p @ v

    def _behind_rows(self, s):
        return s + jnp.concatenate([jnp.zeros((1, LENGTH)), s[:-1]])

    def _linear(self, a, b):
        s = self._flipped(np.tril(np.ones((LENGTH, LENGTH)))) * (a @ b.T)
        return s @ b if self.rng.random() < 0.7 else jnp.einsum("ts,ts,sd->td", s, s, a)


def _halved(row):
    return lax.while_loop(_is_large, lambda c: c / 2, row)


def _is_large(c):
    """Whether to go on halving, which ends for each number but inf."""
    return ((c**2).sum() > 1) & jnp.isfinite(c).all()


def assert_same(ys, f, x):
    """ys is f(x), but for rounding, and what f makes of a rounding of x."""
    y = np.asarray(f(x))
    with np.errstate(all="ignore"):
        slack = 100 * np.abs(np.asarray(f(x * (1 + 2.0**-52))) - y)
    tolerance = 1e-9 + 1e-9 * np.abs(y) + np.where(np.isfinite(slack), slack, 0)
    close = (np.abs(ys - y) <= tolerance) | (ys == y) | (np.isnan(ys) & np.isnan(y))
    assert close.all(), f"{ys[~close]} is not {y[~close]}"


def example(seed: int) -> np.ndarray:
    return np.random.default_rng(seed + 1).normal(size=(LENGTH, WIDTH))


def is_causal(f, x) -> bool:
    """Whether no row of the result changes with a later one, as far as examples tell."""
    y = np.asarray(f(x))
    for s in range(LENGTH - 1):
        later = np.array(x)
        later[s + 1 :] = np.random.default_rng(s).normal(size=later[s + 1 :].shape)
        if not np.allclose(np.asarray(f(later))[: s + 1], y[: s + 1], 1e-9, 1e-9, equal_nan=True):
            return False
    return True


def try_scan(seed: int, width: int = 1) -> str:
    """RIGHT, REFUSED, or MISSED: refused though causal; an AssertionError where it is wrong."""
    f, x = Sequences(seed), example(seed)
    try:
        carry, step = as_scan(f, x, width=width)
    except TransformError:
        return MISSED if is_causal(f, x) else REFUSED
    rows = x if width == 1 else x.reshape(LENGTH // width, width, WIDTH)
    ys = jax.jit(lambda c, r: lax.scan(step, c, r)[1])(carry, rows)
    assert_same(np.reshape(ys, (LENGTH, WIDTH)), f, x)
    return RIGHT


def try_update(seed: int) -> str:
    """update(init(x), dx) = init(x + dx), in the result and in the state."""
    f, x = Sequences(seed, causal=0.6), example(seed)
    rng = np.random.default_rng(seed)
    sizes = (int(rng.integers(1, 4)), None if rng.random() < 0.5 else 1)
    init, update = incremental(f, change={0: sizes})
    y, state = init(x)
    np.testing.assert_allclose(y, f(x), 1e-9, 1e-9)
    shape = tuple(n if k is None else k for k, n in zip(sizes, x.shape, strict=True))
    for turn in range(2):
        starts = [int(rng.integers(0, n - k + 1)) for k, n in zip(shape, x.shape, strict=True)]
        block = np.random.default_rng(turn).normal(size=shape)
        x = np.asarray(lax.dynamic_update_slice(jnp.asarray(x), jnp.asarray(block), starts))
        y, state = update(state, {0: (block, starts)})
        np.testing.assert_allclose(y, f(x), 1e-9, 1e-9)
    for one, other in zip(jax.tree.leaves(state), jax.tree.leaves(init(x)[1]), strict=True):
        np.testing.assert_allclose(one, other, 1e-9, 1e-9)
    return RIGHT


KINDS = (try_scan, lambda seed: try_scan(seed, width=2), try_update)


def try_seeds(seeds) -> dict[int, str]:
    """What came of each program, as a scan, as one of two rows at a time, or updated."""
    found = {}
    with jax.enable_x64(True):
        for seed in seeds:
            try:
                found[seed] = KINDS[seed % 3](seed)
            except Exception as error:  # a program may fail in any way
                found[seed] = f"{type(error).__name__}: {error}"
    return found
