"""Random programs on longer sequences, with masks that slide: a scan of steps is the program."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from malleable import TransformError, as_scan

DEPTH = 3
WIDTHS = (1, 2, 4)
RIGHT, REFUSED = "right", "refused"


class Windows:
    """A random program of one to three layers: `f(x)` runs the same operations at each call."""

    def __init__(self, seed: int):
        self.seed = seed
        rng = np.random.default_rng((seed, 7))
        self.length = int(rng.choice(range(24, 49, 4)))

    def __call__(self, x):
        self.rng = np.random.default_rng(self.seed)
        for _ in range(self.rng.integers(1, DEPTH + 1)):
            x = self._layer(x)
        return x

    def example(self) -> np.ndarray:
        return np.random.default_rng((self.seed, 8)).normal(size=(self.length, 3))

    def _array(self, *shape):
        return self.rng.normal(size=shape) / 2

    def _layer(self, x):
        kinds = [self._attention] * 6 + [self._shift, self._convolution, self._total, self._stack]
        y = kinds[self.rng.integers(len(kinds))](x)
        return y if self.rng.random() < 0.5 else x + y

    def _mask(self, n=1):
        """Bands of random widths, one element of them now and then flipped."""
        i, j = np.arange(self.length)[:, None], np.arange(self.length)
        masks = []
        for _ in range(n):
            first = 0 if self.rng.random() < 0.7 else int(self.rng.integers(-1, 4))
            width = int(self.rng.integers(1, self.length // (2 if self.rng.random() < 0.8 else 1)))
            mask = (j <= i - first) & (i - first - j < width)
            if self.rng.random() < 0.15:
                mask[tuple(self.rng.integers(self.length, size=2))] ^= True
            if self.rng.random() < 0.1:
                mask &= (i // width == j // width) | (i == j)
            if self.rng.random() < 0.15:
                mask |= j == 0  # a row that all see
            if self.rng.random() < 0.9:  # a row of which all is masked by a number sees all
                mask |= i == j
            masks.append(mask)
        return masks[0] if n == 1 else np.stack(masks)

    def _attention(self, x):
        q, k, v = (x @ self._array(3, 3) for _ in range(3))
        if self.rng.random() < 0.2:
            q = self._behind(q)
        if self.rng.random() < 0.2:
            k, v = self._behind(k), self._behind(v)
        heads = int(self.rng.integers(1, 3))
        weight = self._array(heads, 1, 1)
        mask = self._mask(heads if self.rng.random() < 0.3 else 1)
        s = self._masked((q @ k.T) * weight, mask)
        if self.rng.random() < 0.15:
            s = self._masked(s, self._mask())
        return self._ended(s, mask, v).sum(0)

    def _masked(self, s, mask):
        low = float(self.rng.choice([-np.inf, -1e30, -1e9, -10.0], p=[0.4, 0.3, 0.25, 0.05]))
        how = self.rng.integers(4)
        if how == 0:
            return s + np.where(mask, 0.0, low)
        if how == 1:
            return jnp.where((mask & (s > -0.5)) | np.eye(self.length, dtype=bool), s, low)
        return jnp.where(mask, s, low)

    def _ended(self, s, mask, v):
        end = self.rng.integers(8)
        if end == 0:
            return jnp.where(mask, s, 0.0).clip(-9, 9) @ v
        if end == 1:
            return jnp.tanh(mask * s.clip(-9, 9)) @ v
        if end == 2:
            return jnp.tanh(s.max(-1, keepdims=True)) * v
        if end == 3:
            p = jax.nn.softmax(s, -1)
            return (p @ p) @ v
        if end == 4:
            return jnp.exp(s.clip(-1e30, 9)) @ v
        return jax.nn.softmax(s, -1) @ v

    def _behind(self, x):
        k = int(self.rng.integers(1, 6))
        return jnp.concatenate([self._array(k, 3), x[:-k]])

    def _shift(self, x):
        return x - self._behind(x)

    def _convolution(self, x):
        k, step = int(self.rng.integers(1, 5)), int(self.rng.integers(1, 4))
        numbers, pads = ("NWC", "WIO", "NWC"), [((k - 1) * step, 0)]
        w = self._array(k, 3, 3)
        return lax.conv_general_dilated(
            x[None], w, (1,), pads, rhs_dilation=(step,), dimension_numbers=numbers
        )[0]

    def _total(self, x):
        return jnp.tanh(jnp.cumsum(x, 0))

    def _stack(self, x):
        """Layers over stacked parameters, with one mask."""
        mask, ws = self._mask(), self._array(2, 3, 3)

        def layer(h, w):
            s = jnp.where(mask, h @ w @ h.T, -1e30)
            return h + jax.nn.softmax(s) @ h, h[:, 0]

        last, ys = lax.scan(layer, x, ws)
        return last + ys.sum(0)[:, None]


def try_windows(seed: int, width: int) -> str:
    """RIGHT or REFUSED; an AssertionError where a step gives another number."""
    f = Windows(seed)
    x = f.example()
    try:
        carry, step = as_scan(f, x, width=width)
    except TransformError:
        return REFUSED
    rows = x if width == 1 else x.reshape(-1, width, x.shape[1])
    ys = jax.jit(lambda c, r: lax.scan(step, c, r)[1])(carry, rows)
    np.testing.assert_allclose(np.reshape(ys, x.shape), f(x), 1e-8, 1e-8)
    return RIGHT


def try_all(seeds, widths=WIDTHS) -> dict[tuple[int, int], str]:
    """What came of each program, by its seed and the width of the step."""
    found = {}
    with jax.enable_x64(True):
        for seed in seeds:
            for width in widths:
                try:
                    found[seed, width] = try_windows(seed, width)
                except Exception as error:  # a program may fail in any way
                    found[seed, width] = f"{type(error).__name__}: {error}"
    return found
