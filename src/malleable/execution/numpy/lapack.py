"""What the generated NumPy code calls for matrices: the LAPACK routines that XLA calls on a CPU."""

import functools

import numpy as np
import scipy.linalg
from scipy.linalg import blas, lapack


def _on_stacks(rank):
    """Make fun(matrix, *more, **options) -> result(s) one of stacks of matrices.

    rank: of the arrays without the axes of the stack; one number per array.
    """

    def wrap(fun):
        @functools.wraps(fun)
        def run(*arrays, **options):
            batch = arrays[0].shape[: arrays[0].ndim - rank[0]]
            if not batch:
                return fun(*arrays, **options)
            if 0 in batch:
                ones = [
                    np.ones(x.shape[x.ndim - r :], x.dtype)
                    for x, r in zip(arrays, rank, strict=True)
                ]
                alike = fun(*ones, **options)
                if isinstance(alike, tuple):
                    return tuple(np.empty(batch + np.shape(x), x.dtype) for x in alike)
                return np.empty(batch + np.shape(alike), alike.dtype)
            rows = [fun(*(x[i] for x in arrays), **options) for i in np.ndindex(batch)]
            if isinstance(rows[0], tuple):
                parts = (np.stack(part) for part in zip(*rows, strict=True))
                return tuple(x.reshape(batch + x.shape[1:]) for x in parts)
            out = np.stack(rows)
            return out.reshape(batch + out.shape[1:])

        return run

    return wrap


def _routine(name, x, module=lapack):
    letter = {"f4": "s", "f8": "d", "c8": "c", "c16": "z"}[x.dtype.str[1:]]
    if letter in "cz":
        name = {"orgqr": "ungqr", "syevd": "heevd"}.get(name, name)
    return getattr(module, f"{letter}{name}")


def _nan_like(x):
    return np.full(x.shape, np.nan, x.dtype)


@_on_stacks([2])
def cholesky(a):
    """The lower factor, or NaN where the matrix is not positive definite."""
    if not a.size:
        return a
    factor, info = _routine("potrf", a)(a, lower=1, clean=1)
    return factor if info == 0 else _nan_like(a)


@_on_stacks([2])
def lu(a):
    """(both factors in one matrix, the rows exchanged, the permutation)."""
    if not a.size:
        none = np.arange(min(a.shape), dtype=np.int32)
        return a, none, np.arange(a.shape[0], dtype=np.int32)
    factors, pivots, _ = _routine("getrf", a)(a)
    pivots = pivots.astype(np.int32)
    return factors, pivots, permutation_of(pivots, a.shape[0])


@_on_stacks([1])
def _permutation(pivots, size):
    order = np.arange(size, dtype=np.int32)
    for i, k in enumerate(pivots.tolist()):
        order[i], order[k] = order[k], order[i]
    return order


def permutation_of(pivots, size):
    """The permutation that exchanging these rows one after the other makes."""
    return _permutation(pivots, size=size)


@_on_stacks([2, 2])
def triangular_solve(a, b, left, lower, transposed, conjugate, unit):
    """x of a x = b (left), or of x a = b."""
    if not b.size:
        return b
    if conjugate and not transposed:
        a = a.conj()
    how = 2 if conjugate and transposed else int(transposed)
    solve = _routine("trsm", a, blas)
    return solve(1.0, a, b, side=int(not left), lower=int(lower), trans_a=how, diag=int(unit))


@_on_stacks([2])
def eigh(a, lower):
    """(vectors, values) of a symmetric matrix."""
    if not a.size:
        return a, a.real.diagonal().copy()
    values, vectors, info = _routine("syevd", a)(a, lower=int(lower))
    if info:
        return _nan_like(vectors), _nan_like(values)
    return vectors, values


@_on_stacks([2])
def svd(a, full, vectors):
    """(values, u, v^T), or the values alone."""
    if not a.size:
        m, n = a.shape
        k = min(m, n)
        values = np.zeros(k, a.real.dtype)
        sizes = ((m, m), (n, n)) if full else ((m, k), (k, n))
        return (values, *(np.eye(*s, dtype=a.dtype) for s in sizes)) if vectors else (values,)
    u, s, vt, info = _routine("gesdd", a)(a, compute_uv=int(vectors), full_matrices=int(full))
    found = (s, u, vt) if vectors else (s,)
    return tuple(map(_nan_like, found)) if info else found


@_on_stacks([2])
def geqrf(a):
    """(r and the reflectors in one matrix, their scales)."""
    if not a.size:
        return a, np.zeros(min(a.shape), a.dtype)
    factors, scales, *_ = _routine("geqrf", a)(a)
    return factors, scales


@_on_stacks([2, 1])
def householder_product(a, scales):
    """The orthogonal matrix that reflectors make."""
    if not a.size:
        return a
    return _routine("orgqr", a)(a, scales)[0]


@_on_stacks([2])
def qr(a, full):
    m, n = a.shape
    k = m if full else min(m, n)
    factors, scales = geqrf(a)
    wide = np.zeros((m, k), a.dtype)
    wide[:, : min(n, k)] = factors[:, :k]
    if not a.size:
        return np.eye(m, k, dtype=a.dtype), np.triu(factors[:k])
    return householder_product(wide, scales), np.triu(factors[:k])


@_on_stacks([2])
def schur(a):
    """(triangular factor, unitary matrix)."""
    return scipy.linalg.schur(a, "complex" if a.dtype.kind == "c" else "real", check_finite=False)


@_on_stacks([2])
def eig(a, left, right):
    """(values, left vectors, right vectors), those asked for, complex."""
    kind = np.result_type(a.dtype, np.complex64)
    if not np.isfinite(a).all():
        found = (
            np.full(a.shape[0], np.nan, kind),
            *[np.full(a.shape, np.nan, kind)] * (left + right),
        )
        return found
    found = scipy.linalg.eig(a, left=left, right=right, check_finite=False)
    return tuple(x.astype(kind) for x in (found if isinstance(found, tuple) else (found,)))


@_on_stacks([1, 1, 1, 2])
def tridiagonal_solve(low, middle, high, b):
    """x of a tridiagonal system; the first of `low` and the last of `high` are not read."""
    *_, x, info = _routine("gtsv", b)(low[1:], middle, high[:-1], b)
    return x if info == 0 else _nan_like(b)
