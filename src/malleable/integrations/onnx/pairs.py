"""Random keys and complex numbers for ONNX, which has neither: as numbers in a last axis.

What moves numbers about is done to each part alike. Keys make the same random numbers as in JAX,
by the integer arithmetic JAX defines them with.
"""

import functools

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from malleable import compat
from malleable.integrations.onnx.lowering import LACKING, PAIRS, is_pair, pair_type, rule
from malleable.programs.primitives import has, kind
from malleable.programs.types import is_key

# linear in real numbers, and no cast: the parts go each by itself
MOVES = has("linear") & (
    kind("elementwise", "dims", "rearrange", "cut", "join", "write") | {"reduce_sum", "cumsum"}
)


@rule(*MOVES, table=PAIRS)
def move(eqn):
    """What treats the parts of a pair alike, each by itself."""
    paired = [is_pair(v.aval) for v in eqn.invars]
    parts = pair_type(eqn.outvars[0].aval).shape[-1]

    def fun(*xs):
        each = [
            compat.bind(eqn, [x[..., k] if p else x for x, p in zip(xs, paired, strict=True)])
            for k in range(parts)
        ]
        return [jnp.stack(outs, -1) for outs in zip(*each, strict=True)]

    return fun


# ---------------------------------------------------------------- keys


@rule("random_wrap", "random_unwrap", "random_clone", table=PAIRS)
def as_it_is(eqn):
    return lambda x: x


def of_key(eqn, fun, count=1):
    """fun(functions of the kind of key, *args), for an array of keys."""
    aval = next(v.aval for v in (*eqn.invars, *eqn.outvars) if is_key(v.aval))
    each = functools.partial(fun, compat.key_functions(aval.dtype))
    for _ in eqn.invars[0].aval.shape:
        each = jax.vmap(each, in_axes=(0,) * count)
    return each


@rule("random_seed", table=PAIRS)
def seed(eqn):
    return of_key(eqn, lambda made, x: made.seed(x))


@rule("random_split", table=PAIRS)
def split(eqn):
    return of_key(eqn, lambda made, key: made.split(key, eqn.params["shape"]))


@rule("random_fold_in", table=PAIRS)
def fold_in(eqn):
    return of_key(eqn, lambda made, key, x: made.fold_in(key, x.astype(np.uint32)), 2)


@rule("random_bits", table=PAIRS)
def bits(eqn):
    width, shape = eqn.params["bit_width"], eqn.params["shape"]
    return of_key(eqn, lambda made, key: made.random_bits(key, width, shape))


@rule("iota_2x32_shape")
def counters(eqn):
    """The high and low words of 0, 1, 2, ... in an array."""
    shape = eqn.params["shape"]

    def fun():
        low = lax.iota(np.uint32, int(np.prod(shape))).reshape(shape)
        return jnp.zeros_like(low), low

    return fun if np.prod(shape) < 2**32 else None


LACKING["rng_bit_generator"] = LACKING["rng_uniform"] = "every machine has other random numbers"


# ---------------------------------------------------------------- complex numbers


def complex_rule(*names):
    """A decorator: a function of (real, imaginary) parts, or of an array where that is real."""

    def keep(fun):
        def made(eqn):
            paired = [is_pair(v.aval) for v in eqn.invars]
            if any(is_key(v.aval) for v in eqn.invars):
                return None

            def parts(*xs):
                given = [
                    (x[..., 0], x[..., 1]) if p else x for x, p in zip(xs, paired, strict=True)
                ]
                out = fun(eqn, *given)
                return jnp.stack(jnp.broadcast_arrays(*out), -1) if type(out) is tuple else out

            return parts

        for name in names:
            PAIRS[name] = made
        return fun

    return keep


def times(a, b):
    return a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]


def over(a, b):
    """a / b, with b scaled first, so that its square does not overflow. R. L. Smith, 1962."""
    scale = jnp.maximum(abs(b[0]), abs(b[1]))
    scale = jnp.where(scale > 0, scale, 1)
    c, d = b[0] / scale, b[1] / scale
    top, low = times(a, (c, -d)), (c * c + d * d) * scale
    return top[0] / low, top[1] / low


def magnitude(z):
    scale = jnp.maximum(abs(z[0]), abs(z[1]))
    safe = jnp.where(scale > 0, scale, 1)
    return scale * jnp.sqrt((z[0] / safe) ** 2 + (z[1] / safe) ** 2)


def root(z):
    """The root with a positive real part."""
    big = jnp.sqrt((magnitude(z) + abs(z[0])) / 2)
    small = jnp.where(big > 0, abs(z[1]) / (2 * jnp.where(big > 0, big, 1)), 0)
    re, im = jnp.where(z[0] >= 0, big, small), jnp.where(z[0] >= 0, small, big)
    return re, jnp.where(z[1] < 0, -im, im)


def exp(z):
    return jnp.exp(z[0]) * jnp.cos(z[1]), jnp.exp(z[0]) * jnp.sin(z[1])


def log(z):
    return jnp.log(magnitude(z)), jnp.arctan2(z[1], z[0])


def sinh(z):
    return jnp.sinh(z[0]) * jnp.cos(z[1]), jnp.cosh(z[0]) * jnp.sin(z[1])


def cosh(z):
    return jnp.cosh(z[0]) * jnp.cos(z[1]), jnp.sinh(z[0]) * jnp.sin(z[1])


def nonzero(x):
    return jnp.where(x == 0, jnp.ones_like(x), x)


def add_one(z):
    return z[0] + 1, z[1]


def power(eqn, z):
    n = eqn.params["y"]
    if n == 0:
        return jnp.ones_like(z[0]), jnp.zeros_like(z[0])
    product = functools.reduce(times, [z] * abs(n))
    return product if n > 0 else over((jnp.ones_like(z[0]), jnp.zeros_like(z[0])), product)


def product(eqn, a, b):
    p = eqn.params | {"preferred_element_type": None}
    dot = lambda x, y: eqn.primitive.bind(x, y, **p)  # noqa: E731
    return dot(a[0], b[0]) - dot(a[1], b[1]), dot(a[0], b[1]) + dot(a[1], b[0])


def converted(eqn, x):
    to = eqn.params["new_dtype"]
    if not jnp.issubdtype(to, jnp.complexfloating):
        return x[0].astype(to)
    part = pair_type(eqn.outvars[0].aval).dtype
    re, im = x if type(x) is tuple else (x, jnp.zeros(x.shape, part))
    return re.astype(part), im.astype(part)


SIMPLE = {
    "complex": lambda _, re, im: (re, im),
    "real": lambda _, z: z[0],
    "imag": lambda _, z: z[1],
    "conj": lambda _, z: (z[0], -z[1]) if type(z) is tuple else (z, jnp.zeros_like(z)),
    "mul": lambda _, a, b: times(a, b),
    "square": lambda _, z: times(z, z),
    "div": lambda _, a, b: over(a, b),
    "abs": lambda _, z: magnitude(z),
    "sqrt": lambda _, z: root(z),
    "rsqrt": lambda _, z: over((jnp.ones_like(z[0]), jnp.zeros_like(z[0])), root(z)),
    "exp": lambda _, z: exp(z),
    "log": lambda _, z: log(z),
    "pow": lambda _, a, b: exp(times(log(a), b if type(b) is tuple else (b, jnp.zeros_like(b)))),
    "sin": lambda _, z: (jnp.sin(z[0]) * jnp.cosh(z[1]), jnp.cos(z[0]) * jnp.sinh(z[1])),
    "cos": lambda _, z: (jnp.cos(z[0]) * jnp.cosh(z[1]), -jnp.sin(z[0]) * jnp.sinh(z[1])),
    "sinh": lambda _, z: sinh(z),
    "cosh": lambda _, z: cosh(z),
    "tanh": lambda _, z: over(sinh(z), cosh(z)),
    "sign": lambda _, z: (z[0] / nonzero(magnitude(z)), z[1] / nonzero(magnitude(z))),
    "log1p": lambda _, z: log(add_one(z)),
    "expm1": lambda _, z: (exp(z)[0] - 1, exp(z)[1]),
    "logistic": lambda _, z: over((jnp.ones_like(z[0]), 0 * z[0]), add_one(exp((-z[0], -z[1])))),
    "eq": lambda _, a, b: (a[0] == b[0]) & (a[1] == b[1]),
    "ne": lambda _, a, b: (a[0] != b[0]) | (a[1] != b[1]),
    "is_finite": lambda _, z: jnp.isfinite(z[0]) & jnp.isfinite(z[1]),
    "integer_pow": power,
    "dot_general": product,
    "convert_element_type": converted,
}
for _name, _fun in SIMPLE.items():
    complex_rule(_name)(_fun)


# ---------------------------------------------------------------- Fourier transforms

DIRECT = 64  # sizes up to this, and primes, by a matrix; others are split


@complex_rule("fft")
def fourier(eqn, x):
    """By matrices of cosines and sines, exact to rounding."""
    kind, sizes = lax.FftType(eqn.params["fft_type"]).name, eqn.params["fft_lengths"]
    rank = len(eqn.invars[0].aval.shape)
    axes = [rank - 1 - i for i in range(len(sizes))]  # the last first
    if kind == "IRFFT":
        for axis in reversed(axes[1:]):
            x = along(axis, x, inverse=True)
        return to_real(x, sizes[-1])
    inverse = kind == "IFFT"
    x = x if type(x) is tuple else (x, jnp.zeros_like(x))
    for axis in axes:
        x = along(axis, x, inverse)
        if axis == rank - 1 and kind == "RFFT":
            x = tuple(part[..., : sizes[-1] // 2 + 1] for part in x)
    return x


def along(axis, z, inverse):
    re, im = (jnp.moveaxis(part, axis, -1) for part in z)
    n = re.shape[-1]
    re, im = transform(re, im, -1 if not inverse else 1)
    scale = 1 / n if inverse else 1.0
    return tuple(jnp.moveaxis(part * np.asarray(scale, part.dtype), -1, axis) for part in (re, im))


def waves(rows, columns, n, sign, dtype):
    """cos and sin of 2 pi j k / n, j and k reduced before they meet a rounding."""
    angle = 2 * np.pi * ((np.arange(rows)[:, None] * np.arange(columns)) % n) / n
    return np.cos(angle).astype(dtype), (sign * np.sin(angle)).astype(dtype)


def transform(re, im, sign):
    """Sum x[j] exp(sign 2 pi i j k / n) over the last axis. Cooley and Tukey, 1965."""
    n = re.shape[-1]
    first = next((d for d in range(int(n**0.5), 1, -1) if n % d == 0), 1)
    if n <= DIRECT or first == 1:
        cos, sin = waves(n, n, n, sign, re.dtype)
        return re @ cos - im @ sin, re @ sin + im @ cos
    second = n // first
    parts = (x.reshape(*x.shape[:-1], first, second).swapaxes(-1, -2) for x in (re, im))
    parts = transform(*parts, sign)  # (..., second, first)
    re, im = times(parts, waves(second, first, n, sign, re.dtype))
    re, im = transform(re.swapaxes(-1, -2), im.swapaxes(-1, -2), sign)  # (..., first, second)
    return tuple(x.swapaxes(-1, -2).reshape(*x.shape[:-2], n) for x in (re, im))


def to_real(z, n):
    """The real numbers whose transform begins with z; the rest mirrors it."""
    re, im = z
    if n <= 16 * DIRECT:
        cos, sin = waves(n // 2 + 1, n, n, 1, re.dtype)
        twice = np.full(n // 2 + 1, 2.0)
        twice[n // 2] = 1 if n % 2 == 0 else 2
        twice[0] = 1
        weight = (twice / n).astype(re.dtype)[:, None]
        return re @ (weight * cos) - im @ (weight * sin)
    full = [
        jnp.concatenate([x, sign * lax.rev(x[..., 1 : (n + 1) // 2], (x.ndim - 1,))], -1)
        for x, sign in ((re, 1), (im, -1))
    ]
    return along(re.ndim - 1, full, inverse=True)[0]
