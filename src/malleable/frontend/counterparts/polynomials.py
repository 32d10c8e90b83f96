"""numpy.polynomial on traced coefficients: those that are zero are known too late to be dropped.

Functions that are linear in the coefficients are applied as the matrix that they are.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.polynomial import (
    chebyshev,
    hermite,
    hermite_e,
    laguerre,
    legendre,
    polynomial,
    polyutils,
)

from malleable.arrays.box import any_traced, as_box, unbox
from malleable.arrays.protocols import rebox_numpy


def _trimmed(plain: Callable) -> Callable:
    """trimseq, trimcoef: all stays; np.trim_zeros leaves the note."""

    def trim(c, tol=0):
        if any_traced(c):
            return np.trim_zeros(as_box(c), "b")
        return rebox_numpy(plain(unbox(c)) if plain is polyutils.trimseq else plain(unbox(c), tol))

    return trim


def _columns(plain: Callable, *inputs) -> np.ndarray:
    """What `plain` makes of each input, side by side, as long as the longest of them."""
    outs = [np.atleast_1d(plain(*x)) for x in inputs]
    size = max(map(len, outs))
    return np.stack([np.pad(x, (0, size - len(x))) for x in outs], 1)


def _times_x(plain: Callable) -> Callable:
    def times_x(c):
        if not any_traced(c):
            return rebox_numpy(plain(unbox(c)))
        c = np.atleast_1d(as_box(c))
        n = len(c)
        unit = (np.concatenate([np.zeros(k), [1.0]]) for k in range(n))
        return _columns(plain, *((u,) for u in unit)) @ c

    return times_x


def _line(plain: Callable) -> Callable:
    def line(off, scl):
        if not any_traced((off, scl)):
            return rebox_numpy(plain(unbox(off), unbox(scl)))
        one, other = _columns(plain, (1, 0), (0, 1)).T
        return one * off + other * scl

    return line


def _as_complex(plain: Callable) -> Callable:
    """Complex roots stay complex: whether all are real is known too late."""
    return lambda w, t: w if any_traced(w) else rebox_numpy(plain(unbox(w), unbox(t)))


FUNCTIONS: dict[Any, Callable] = {
    **{f: _trimmed(f) for f in (polyutils.trimseq, polyutils.trimcoef)},
    polynomial.polymulx: _times_x(polynomial.polymulx),
    chebyshev.chebmulx: _times_x(chebyshev.chebmulx),
    legendre.legmulx: _times_x(legendre.legmulx),
    laguerre.lagmulx: _times_x(laguerre.lagmulx),
    hermite.hermmulx: _times_x(hermite.hermmulx),
    hermite_e.hermemulx: _times_x(hermite_e.hermemulx),
    polynomial.polyline: _line(polynomial.polyline),
    chebyshev.chebline: _line(chebyshev.chebline),
    legendre.legline: _line(legendre.legline),
    laguerre.lagline: _line(laguerre.lagline),
    hermite.hermline: _line(hermite.hermline),
    hermite_e.hermeline: _line(hermite_e.hermeline),
}
_to_real = getattr(np.linalg._linalg, "_to_real_if_imag_zero", None)
if _to_real is not None:  # NumPy 2.4 and later
    FUNCTIONS[_to_real] = _as_complex(_to_real)
