"""`math`, `cmath` and the number types on traced scalars: the same functions, in jax.numpy.

What Python answers with a float, int or complex is one here too: a weakly typed scalar, so that
`isinstance(math.sqrt(x), float)` holds and `math.sqrt(x) * array` keeps the dtype of the array.
Where `math` raises for a value outside of the domain, a traced value becomes nan or inf.
"""

import bisect
import cmath
import functools
import math
import operator
import statistics
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp
from jax.scipy import special
from jax.scipy.stats import rankdata as rank

from malleable import compat
from malleable.arrays.box import Box, is_traced, unbox
from malleable.arrays.numbers import python_bool
from malleable.frontend.common.session import session
from malleable.frontend.values.conditions import truth_of_array
from malleable.frontend.values.raises import fail_where, in_domain, refuse_floats


def python_scalar(x, kind: type) -> Box:
    """A scalar of JAX as the traced counterpart of a Python bool, int, float or complex."""
    x = jnp.asarray(x)
    if kind is not complex and jnp.issubdtype(x.dtype, jnp.complexfloating):
        raise TypeError(f"{kind.__name__}() argument must be a real number, not 'complex'")
    if kind is bool:
        return Box(python_bool(x if x.dtype == bool else x != 0), True)
    return Box(compat.convert(x, jnp.result_type(kind), True), True)


def content(x):
    """The one number in a value, unboxed: of shape ()."""
    raw = unbox(x)
    if np.ndim(raw) and np.size(raw) == 1:
        return raw.reshape(())
    if np.ndim(raw):
        raise TypeError("only arrays of one element can be converted to Python scalars")
    return raw


def truth(x):
    """Whether a traced scalar counts as true, as a boolean of JAX."""
    return truth_of_array(jnp.asarray(unbox(x)))


def to_float(x) -> Any:
    """`float(x)`, unboxed."""
    return python_scalar(content(x), float).value


def when_traced(plain: Callable, traced: Callable) -> Callable:
    """`plain`, and `traced` where one of the arguments is a traced value."""

    def either(*args, **kwargs):
        return (traced if any(map(is_traced, args)) else plain)(*args, **kwargs)

    either.__name__ = plain.__name__
    return either


def over_items(plain: Callable, traced: Callable) -> Callable:
    """As `when_traced`, for functions of collections: looks at their items."""

    def either(*args, **kwargs):
        args = [_listed(a) for a in args]
        some = any(is_traced(x) for a in args for x in (a, *(a if type(a) is list else ())))
        return (traced if some else plain)(*args, **kwargs)

    either.__name__ = plain.__name__
    return either


def _listed(x):
    """The items of an iterable, to be looked at more than once; anything else as it is."""
    scalar = isinstance(x, Box) and x.ndim == 0
    return list(x) if isinstance(x, Iterable) and not scalar else x


def _between(number: Callable, kind: type) -> Callable:
    """A function of numbers of Python's, from one of JAX's numbers."""
    return lambda fun, out=kind: lambda *args: python_scalar(fun(*map(number, args)), out)


def _integer(fun: Callable) -> Callable:
    return lambda *args: refuse_floats(*args) or python_scalar(fun(*map(content, args)), int)


_real = _between(to_float, float)
_complex = _between(lambda x: python_scalar(content(x), complex).value, complex)


def _log(x, base=None):
    return jnp.log(x) if base is None else jnp.log(x) / jnp.log(base)


def _hypot(*xs):
    return jnp.hypot(*xs) if len(xs) == 2 else jnp.sqrt(sum(x * x for x in xs))


def _dist(p, q):
    if len(p) != len(q):
        raise ValueError("both points must have the same number of dimensions")
    return _real(_hypot)(*(a - b for a, b in zip(p, q, strict=True)))


def _times(x, y):
    return session().call(operator.mul, x, y)


def _factorial(n):
    most = 20 if jnp.result_type(int) == np.int64 else 12
    fail_where(n > most, OverflowError("factorial() result is too large"))
    return jnp.asarray([math.factorial(k) for k in range(most + 1)])[n]


def _combinatorial(fun: Callable) -> Callable:
    """A whole number of ways, where it has room."""

    def count(*args):
        ways = fun(*args)
        most = float(jnp.iinfo(jnp.result_type(int)).max)
        fail_where(ways >= most, OverflowError("the number of ways is too large"))
        return ways

    return _integer(count)


def _comb(n, k):
    n, k = to_float(n), to_float(k)
    ways = jnp.exp(special.gammaln(n + 1) - special.gammaln(k + 1) - special.gammaln(n - k + 1))
    return jnp.where(k > n, 0, jnp.round(ways))


def _perm(n, k=None):
    n = to_float(n)
    ways = special.gammaln(n + 1) - (0 if k is None else special.gammaln(n - to_float(k) + 1))
    return jnp.round(jnp.exp(ways))


def _isqrt(n):
    root = jnp.floor(jnp.sqrt(to_float(n))).astype(jnp.result_type(int))
    root = jnp.where(root * root > n, root - 1, root)
    return jnp.where((root + 1) * (root + 1) <= n, root + 1, root)


def _isclose(a, b, *, rel_tol=1e-09, abs_tol=0.0):
    a, b, rel_tol, abs_tol = map(content, (a, b, rel_tol, abs_tol))
    bound = jnp.maximum(rel_tol * jnp.maximum(abs(a), abs(b)), abs_tol)
    near = (abs(a - b) <= bound) & jnp.isfinite(a) & jnp.isfinite(b)
    return python_scalar(near | (a == b), bool)


def _frexp(x):
    mantissa, exponent = jnp.frexp(to_float(x))
    return python_scalar(mantissa, float), python_scalar(exponent, int)


def _rect(r, phi):
    r, phi = to_float(r), to_float(phi)
    return python_scalar(jax.lax.complex(r * jnp.cos(phi), r * jnp.sin(phi)), complex)


def _mean(data, weights=None):
    if weights is None:
        return python_scalar(sum(map(content, data)) / len(data), float)
    return _mean([a * w for a, w in zip(data, weights, strict=True)]) * len(data) / sum(weights)


def _column(data, number: Callable = content) -> Any:
    return jnp.stack([jnp.asarray(number(x)) for x in data])


def _spread(own: Callable) -> Callable:
    sample, root = not own.__name__.startswith("p"), own.__name__.endswith("stdev")

    def spread(data, center=None):
        column, n = _column(data), len(data)
        own([0.0] * min(n, 2))  # which refuses too few points
        center = column.sum() / n if center is None else content(center)
        variance = ((column - center) ** 2).sum() / (n - sample)
        return python_scalar(jnp.sqrt(variance) if root else variance, float)

    return spread


def _median(low: int, high: int) -> Callable:
    """The middle of sorted data; of an even number, the mean of two, or one of them."""

    def median(data):
        column, n = jnp.sort(_column(data)), len(data)
        if n % 2 or low == high:
            return Box(column[n // 2 if n % 2 else n // 2 - 1 + low], True)
        return Box((column[n // 2 - 1] + column[n // 2]) / 2, True)

    return median


def _harmonic_mean(data, weights=None):
    weights = [1] * len(data) if weights is None else weights
    shares = (content(w) / jnp.asarray(content(x)) for x, w in zip(data, weights, strict=True))
    return python_scalar(sum(map(content, weights)) / sum(shares), float)


def _quantiles(data, *, n=4, method="exclusive"):
    column, size = jnp.sort(_column(data)), len(data)
    inside = method == "inclusive"
    found = []
    for i in range(1, n):
        j, rest = divmod(i * (size - 1 if inside else size + 1), n)
        if not inside:
            j = min(max(j, 1), size - 1)
            j, rest = j - 1, i * (size + 1) - j * n
        found.append(Box((column[j] * (n - rest) + column[j + 1] * rest) / n, True))
    return found


def _products(x, y):
    """The sums of (x - mean x)(y - mean y), (x - mean x)^2 and (y - mean y)^2, and the means."""
    xs, ys = (_column(data, to_float) for data in (x, y))
    if len(xs) != len(ys) or len(xs) < 2:
        raise statistics.StatisticsError("two samples of one size, of at least two points, please")
    dx, dy = xs - jnp.mean(xs), ys - jnp.mean(ys)
    return (dx * dy).sum(), (dx * dx).sum(), (dy * dy).sum(), jnp.mean(xs), jnp.mean(ys)


def _correlation(x, y, /, *, method="linear"):
    if method == "ranked":
        x, y = (list(rank(_column(z))) for z in (x, y))
    xy, xx, yy, *_ = _products(x, y)
    return python_scalar(xy / jnp.sqrt(xx * yy), float)


def _linear_regression(x, y, /, *, proportional=False):
    if proportional:
        pairs = [(to_float(a), to_float(b)) for a, b in zip(x, y, strict=True)]
        slope = sum(a * b for a, b in pairs) / sum(a * a for a, _ in pairs)
        return statistics.LinearRegression(python_scalar(slope, float), 0.0)
    xy, xx, _, mean_x, mean_y = _products(x, y)
    slope = xy / xx
    parts = slope, mean_y - slope * mean_x
    return statistics.LinearRegression(*(python_scalar(part, float) for part in parts))


_NAMED = (_harmonic_mean, _quantiles, _correlation, _mean)
_STATISTICS = {
    **{f.__name__[1:]: f for f in (*_NAMED, _linear_regression)},
    "fmean": _mean,
    "geometric_mean": lambda data: python_scalar(
        jnp.exp(sum(jnp.log(to_float(x)) for x in data) / len(data)), float
    ),
    "covariance": lambda x, y, /: python_scalar(_products(x, y)[0] / (len(x) - 1), float),
    **{f: _spread(getattr(statistics, f)) for f in ("variance", "pvariance", "stdev", "pstdev")},
    **{"median": _median(0, 1), "median_low": _median(0, 0), "median_high": _median(1, 1)},
}


def _searchsorted(side: str) -> Callable:
    def search(a, x, lo=0, hi=None, *, key=None):
        if key is not None:
            a = list(map(key, a))
        if not len(a[lo:hi]):
            return lo
        return python_scalar(lo + jnp.searchsorted(_column(a[lo:hi]), content(x), side=side), int)

    return search


_SAME = (  # functions of floats with one name in both
    "sin cos tan sinh cosh tanh exp exp2 expm1 log1p log2 log10 sqrt cbrt fabs copysign fmod "
    "degrees radians asin acos atan atan2 asinh acosh atanh nextafter"
)
_SAME_COMPLEX = "sin cos tan sinh cosh tanh exp sqrt log10 asin acos atan asinh acosh atanh"
_MATH = {
    **{name: _real(getattr(jnp, name)) for name in _SAME.split()},
    **{name: _real(getattr(jnp, name), int) for name in ("floor", "ceil", "trunc")},
    **{name: _real(getattr(jnp, name), bool) for name in ("isnan", "isinf", "isfinite")},
    **{name: _real(getattr(special, name)) for name in ("erf", "erfc", "gamma")},
    "lgamma": _real(special.gammaln),
    **{f.__name__[1:]: _real(f) for f in (_log, _hypot)},
    "pow": _real(jnp.power),
    "remainder": _real(lambda x, y: x - y * jnp.round(x / y)),
    "ldexp": lambda x, i: python_scalar(jnp.ldexp(to_float(x), content(i)), float),
    "modf": lambda x: tuple(python_scalar(part, float) for part in jnp.modf(to_float(x))),
    "fma": _real(lambda x, y, z: x * y + z),
    "gcd": _integer(lambda *xs: functools.reduce(jnp.gcd, xs, 0)),
    "lcm": _integer(lambda *xs: functools.reduce(jnp.lcm, xs, 1)),
    **{f.__name__[1:]: _integer(f) for f in (_factorial, _isqrt)},
    **{f.__name__[1:]: _combinatorial(f) for f in (_comb, _perm)},
    **{f.__name__[1:]: f for f in (_isclose, _frexp)},
}
_CMATH = {
    **{name: _complex(getattr(jnp, name)) for name in _SAME_COMPLEX.split()},
    **{name: _complex(getattr(jnp, name), bool) for name in ("isnan", "isinf", "isfinite")},
    "log": _complex(_log),
    "phase": _complex(jnp.angle, float),
    "polar": lambda z: tuple(_complex(f, float)(z) for f in (jnp.abs, jnp.angle)),
    **{f.__name__[1:]: f for f in (_rect, _isclose)},
}
_ITEMS = {
    "dist": _dist,
    "prod": lambda xs, *, start=1: functools.reduce(_times, xs, start),
    "fsum": lambda xs: python_scalar(sum(map(to_float, xs)), float),
    "sumprod": lambda p, q, /: sum(a * b for a, b in zip(p, q, strict=True)),
}


def _table(module, replace, functions: dict) -> dict:
    """From the functions of a module that this Python has to their replacements."""
    names = (name for name in functions if hasattr(module, name))
    return {(f := getattr(module, name)): replace(f, functions[name]) for name in names}


SCALARS: dict[Any, Callable] = {
    **_table(math, in_domain, _MATH),
    **_table(cmath, when_traced, _CMATH),
    **_table(math, over_items, _ITEMS),
    **_table(statistics, over_items, _STATISTICS),
    bisect.bisect_left: over_items(bisect.bisect_left, _searchsorted("left")),
    bisect.bisect_right: over_items(bisect.bisect_right, _searchsorted("right")),
}
