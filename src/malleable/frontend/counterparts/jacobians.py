"""The Jacobian by differences that SciPy's implicit integrators take, without a traced selection.

SciPy takes another difference only for the columns whose change is too small to be trusted; which
these are is known at run time. Here every column is computed with both steps, and one is chosen.
"""

import numpy as np

EPS = float(np.finfo(float).eps)
REJECT, SMALL, BIG = EPS**0.875, EPS**0.75, EPS**0.25  # of the change, relative to the value
LEAST, MORE, LESS = 1e3 * EPS, 10, 0.1  # the factors of the steps, and how they change


def num_jac(fun, t, y, f, threshold, factor, sparsity=None):
    """As scipy.integrate._ivp.common.num_jac: (the matrix, the factors for the next time)."""
    n = y.shape[0]
    factor = np.full(n, EPS**0.5) if factor is None else factor
    sign = 2 * (np.real(f) >= 0).astype(float) - 1
    y_scale = sign * np.maximum(threshold, np.abs(y))
    first, second = (_differences(fun, t, y, f, k * factor, y_scale) for k in (1, MORE))
    size, scale = first[2:]
    again = (size < REJECT * scale) & (size * second[3] < second[2] * scale)
    factor = np.where(again, MORE * factor, factor)
    h, diff, size, scale = (np.where(again, b, a) for a, b in zip(first, second, strict=True))
    factor = np.where(size < SMALL * scale, factor * MORE, factor)
    factor = np.where(size > BIG * scale, factor * LESS, factor)
    return diff / h, np.maximum(factor, LEAST)


def _differences(fun, t, y, f, factor, y_scale):
    """(steps, change of f for each, the largest change of each column, the size of f there)"""
    h = (y + factor * y_scale) - y
    f_new = fun(t, y[:, None] + np.diag(h))
    diff = f_new - f[:, None]
    at = np.argmax(np.abs(diff), axis=0)
    columns = np.arange(y.shape[0])
    scale = np.maximum(np.abs(f[at]), np.abs(f_new[at, columns]))
    return h, diff, np.abs(diff[at, columns]), scale
