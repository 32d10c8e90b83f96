"""BLAS and LAPACK routines as functions of JAX, with the arguments of SciPy's wrappers.

`routine("dgesv")(a, b)` gives (lu, piv, x, info). What reports success always says 0: whether a
matrix is singular is not known while tracing.
"""

import jax.numpy as jnp
import jax.scipy.linalg as jsl


def routine(name):
    """The function for the routine called `name`, with its type letter; None if there is none."""
    return ROUTINES.get(name[2:] if name[:2] in ("dz", "sc") else name[1:])


OVERWRITE_SECOND = {"axpy", "scal"}  # the second argument becomes the result


def turned(a, trans):
    return a if not trans else a.T if trans == 1 else jnp.conj(a.T)


def gesv(a, b, **_):
    lu, piv = jsl.lu_factor(a)
    return lu, piv, jsl.lu_solve((lu, piv), b), 0


def getri(lu, piv, *_, **__):
    return jsl.lu_solve((lu, piv), jnp.eye(len(lu), dtype=lu.dtype)), 0


def potrf(a, lower=0, clean=1, **_):
    return jsl.cholesky(a, lower=bool(lower)), 0


def potrs(c, b, lower=0, **_):
    return jsl.cho_solve((c, bool(lower)), b), 0


def potri(c, lower=0, **_):
    return jsl.cho_solve((c, bool(lower)), jnp.eye(len(c), dtype=c.dtype)), 0


def posv(a, b, lower=0, **_):
    c = jsl.cholesky(a, lower=bool(lower))
    return c, potrs(c, b, lower)[0], 0


def trtrs(a, b, lower=0, trans=0, unitdiag=0, **_):
    return jsl.solve_triangular(a, b, trans, bool(lower), bool(unitdiag)), 0


def trsv(a, x, incx=1, offx=0, lower=0, trans=0, diag=0, **_):
    return trtrs(a, x, lower, trans, diag)[0].reshape(jnp.shape(x))


def trtri(c, lower=0, unitdiag=0, **_):
    return trtrs(c, jnp.eye(len(c), dtype=c.dtype), lower, 0, unitdiag)


def gtsv(dl, d, du, b, **_):
    matrix = jnp.diag(dl, -1) + jnp.diag(d) + jnp.diag(du, 1)
    return jnp.zeros_like(du), d, du, jnp.linalg.solve(matrix, b), 0


def ptsv(d, e, b, **_):
    matrix = jnp.diag(jnp.conj(e), 1) + jnp.diag(d) + jnp.diag(e, -1)
    return d, e, jnp.linalg.solve(matrix, b), 0


def gbsv(kl, ku, ab, b, **_):
    """ab has kl rows on top that LAPACK works in."""
    n, bands = ab.shape[1], ab[kl:]
    pairs = zip(range(ku, -kl - 1, -1), bands, strict=True)
    rows = (jnp.diag(band[max(k, 0) : n + min(k, 0)], k) for k, band in pairs)
    return ab, jnp.arange(n), jnp.linalg.solve(sum(rows), b), 0


def gesdd(a, compute_uv=1, full_matrices=1, *_, **__):
    return *jnp.linalg.svd(a, full_matrices=bool(full_matrices)), 0


def lange(norm, a):
    kinds = {"m": None, "1": 1, "o": 1, "i": jnp.inf, "f": "fro", "e": "fro"}
    kind = kinds[(norm.decode() if isinstance(norm, bytes) else str(norm)).lower()]
    return jnp.max(jnp.abs(a)) if kind is None else jnp.linalg.norm(a, kind)


def lartg(f, g):
    """A plane rotation (cos, sin, r) with the signs of LAPACK 3.10: r has the sign of f."""
    f, g = jnp.asarray(f), jnp.asarray(g)
    free = (f == 0) & (g == 0)
    length = jnp.where(free, 1.0, jnp.hypot(jnp.where(free, 1.0, f), g))
    r = jnp.where(f < 0, -length, length)
    r = jnp.where(f == 0, jnp.abs(jnp.where(g == 0, 0.0, g)), jnp.where(g == 0, f, r))
    cos = jnp.where(g == 0, 1.0, jnp.where(f == 0, 0.0, jnp.abs(f) / length))
    return cos, jnp.where(g == 0, 0.0, jnp.where(f == 0, jnp.sign(g), g * jnp.sign(f) / length)), r


def dot(x, y, *_, **__):
    return jnp.dot(x, y)


def axpy(x, y, n=None, a=1.0, **_):
    return y + a * x if n is None or n == len(x) else y.at[:n].add(a * x[:n])


def gemv(alpha, a, x, beta=0.0, y=None, offx=0, incx=1, offy=0, incy=1, trans=0, **_):
    out = alpha * (turned(a, trans) @ x)
    return out if y is None else out + beta * y


def gemm(alpha, a, b, beta=0.0, c=None, trans_a=0, trans_b=0, **_):
    out = alpha * (turned(a, trans_a) @ turned(b, trans_b))
    return out if c is None else out + beta * c


def ger(alpha, x, y, incx=1, incy=1, a=None, **_):
    out = alpha * jnp.outer(x, y)
    return out if a is None else a + out


def syrk(alpha, a, beta=0.0, c=None, trans=0, lower=0, **_):
    out = alpha * (turned(a, trans) @ turned(a, not trans))
    out = out if c is None else out + beta * c
    return jnp.tril(out) if lower else jnp.triu(out)


def trmm(alpha, a, b, side=0, lower=0, trans_a=0, diag=0, **_):
    a = jnp.tril(a) if lower else jnp.triu(a)
    a = turned(jnp.fill_diagonal(a, 1.0, inplace=False) if diag else a, trans_a)
    return alpha * (b @ a if side else a @ b)


def getrf(a, **_):
    return *jsl.lu_factor(a), 0


def getrs(lu, piv, b, trans=0, **_):
    return jsl.lu_solve((lu, piv), b, trans=trans), 0


ROUTINES = {
    **{
        "gesv": gesv,
        "getrf": getrf,
        "getrs": getrs,
        "getri": getri,
        "gesdd": gesdd,
        "gtsv": gtsv,
        "gbsv": gbsv,
    },
    **{"potrf": potrf, "potrs": potrs, "potri": potri, "posv": posv, "ptsv": ptsv, "lange": lange},
    **{"trtrs": trtrs, "trtri": trtri, "trsv": trsv, "lartg": lartg, "axpy": axpy, "dot": dot},
    **{"gemv": gemv, "gemm": gemm, "ger": ger, "geru": ger, "syrk": syrk, "trmm": trmm},
    "dotu": dot,
    "dotc": lambda x, y, *_, **__: jnp.vdot(x, y),
    "nrm2": lambda x, *_, **__: jnp.linalg.norm(x),
    "asum": lambda x, *_, **__: jnp.sum(jnp.abs(jnp.real(x)) + jnp.abs(jnp.imag(x))),
    "scal": lambda a, x, *_, **__: a * x,
    "copy": lambda x, *_, **__: jnp.asarray(x),
    "gerc": lambda alpha, x, y, *args, **kw: ger(alpha, x, jnp.conj(y), *args, **kw),
    "symv": lambda alpha, a, x, *_, lower=0, **__: alpha * (mirrored(a, lower) @ x),
}


def mirrored(a, lower):
    """The symmetric matrix of which only one triangle is meant."""
    half = jnp.tril(a) if lower else jnp.triu(a)
    return half + half.T - jnp.diag(jnp.diag(half))
