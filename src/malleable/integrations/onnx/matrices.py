"""Matrix decompositions for ONNX, which has none: as loops over columns, of constant size.

Each works on one matrix; `vmap` does the stacks.
"""

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from malleable.integrations.onnx.lowering import LACKING, rule


def stacked(fun, eqn):
    """fun of matrices, for stacks of them."""
    for _ in eqn.invars[0].aval.shape[:-2]:
        fun = jax.vmap(fun)
    return fun


@rule("cholesky")
def cholesky(eqn):
    """Column by column, from the left. NaN where the matrix is not positive definite, as in JAX."""

    def one(a):
        n = a.shape[0]
        rows = jnp.arange(n)

        def column(j, low):
            here = (rows == j).astype(a.dtype)
            rest = a @ here - low @ (here @ low)  # what the columns so far leave of this one
            pivot = jnp.sqrt(jnp.sum(rest * here))
            new = jnp.where(rows >= j, rest / pivot, 0)
            return low + new[:, None] * here

        low = lax.fori_loop(0, n, column, jnp.zeros_like(a))
        return jnp.where(jnp.isfinite(jnp.sum(low)), low, jnp.tril(jnp.full_like(a, jnp.nan)))

    return stacked(one, eqn)


@rule("triangular_solve")
def triangular(eqn):
    """Row by row, forwards or backwards."""
    p = eqn.params
    swap = p["transpose_a"] == p["left_side"]  # to the form: lower or upper, x from the left
    lower = p["lower"] != swap

    def one(a, b):
        a = a.T if swap else a
        b = b if p["left_side"] else b.T
        n = a.shape[0]
        rows = jnp.arange(n)
        diagonal = jnp.sum(a * jnp.eye(n, dtype=a.dtype), 1)
        diagonal = jnp.ones(n, a.dtype) if p["unit_diagonal"] else diagonal
        rest = a * (rows[:, None] > rows if lower else rows[:, None] < rows).astype(a.dtype)

        def row(i, x):
            here = (rows == (i if lower else n - 1 - i)).astype(a.dtype)
            new = (here @ b - (here @ rest) @ x) / jnp.sum(here * diagonal)
            return x + here[:, None] * new

        x = lax.fori_loop(0, n, row, jnp.zeros_like(b))
        return x if p["left_side"] else x.T

    return stacked(one, eqn)


@rule("lu")
def lu(eqn):
    """With pivots from the rows below, the first of the largest."""

    def one(a):
        m, n = a.shape
        rows, columns = jnp.arange(m), jnp.arange(n)

        def column(j, state):
            a, pivots, order = state
            here = (columns == j).astype(a.dtype)
            size = jnp.where(rows >= j, abs(a @ here), -1)
            pivot = jnp.argmax(size).astype(np.int32)
            top, low = rows == j, rows == pivot
            swapped = lambda x: jnp.where(top, row_at(x, low), jnp.where(low, row_at(x, top), x))  # noqa: E731
            order = swapped(order)
            a = jnp.where(top[:, None], row_at(a, low), jnp.where(low[:, None], row_at(a, top), a))
            pivots = jnp.where(jnp.arange(pivots.shape[0]) == j, pivot, pivots)
            first = row_at(a, top)
            at = jnp.sum(first * here)
            factor = jnp.where(rows > j, (a @ here) / jnp.where(at == 0, 1, at), 0)
            a = a - factor[:, None] * jnp.where(columns > j, first, 0)
            a = jnp.where((rows > j)[:, None] & (columns == j), factor[:, None], a)
            return a, pivots, order

        k = min(m, n)
        start = a, jnp.zeros(k, np.int32), rows.astype(np.int32)
        return lax.fori_loop(0, k, column, start)

    return stacked(one, eqn)


def row_at(x, at):
    """The row of x where `at` holds."""
    at = at if x.ndim == 1 else at[:, None]
    return jnp.sum(jnp.where(at, x, jnp.zeros_like(x)), 0, dtype=x.dtype)


@rule("geqrf")
def reflections(eqn):
    """Householder's: R above the diagonal, the vectors below. LAPACK's geqr2, with its signs."""

    def one(a):
        m, n = a.shape
        rows, columns = jnp.arange(m), jnp.arange(n)

        def column(j, state):
            a, taus = state
            x = a @ (columns == j).astype(a.dtype)
            head = jnp.sum(jnp.where(rows == j, x, 0))
            tail = jnp.sum(jnp.where(rows > j, x * x, 0))
            size = jnp.sqrt(head * head + tail)
            beta = jnp.where(head >= 0, -size, size)
            flat = tail == 0
            tau = jnp.where(flat, 0, (beta - head) / jnp.where(flat, 1, beta))
            scale = jnp.where(flat, 1, head - beta)
            v = jnp.where(rows > j, jnp.where(flat, 0, x) / scale, (rows == j).astype(a.dtype))
            after = (columns > j).astype(a.dtype)
            a = a - tau * v[:, None] * ((v @ a) * after)
            new = jnp.where(rows > j, v, jnp.where(rows == j, jnp.where(flat, head, beta), x))
            a = jnp.where(columns == j, new[:, None], a)
            return a, jnp.where(jnp.arange(taus.shape[0]) == j, tau, taus)

        k = min(m, n)
        return lax.fori_loop(0, k, column, (a, jnp.zeros(k, a.dtype)))

    return stacked(one, eqn)


@rule("householder_product")
def product_of_reflections(eqn):
    """The matrix of the reflections, the last first."""

    def one(a, taus):
        m, n = a.shape
        rows, count = jnp.arange(m), taus.shape[0]

        def column(i, q):
            j = count - 1 - i
            x = a @ (jnp.arange(n) == j).astype(a.dtype)
            v = jnp.where(rows > j, x, (rows == j).astype(a.dtype))
            tau = jnp.sum(jnp.where(jnp.arange(count) == j, taus, 0))
            return q - tau * v[:, None] * (v @ q)

        return lax.fori_loop(0, count, column, jnp.eye(m, n, dtype=a.dtype))

    return stacked(one, eqn)


for _name in ("eig", "eigh", "svd", "schur", "hessenberg", "tridiagonal", "geqp3", "ormqr"):
    LACKING[_name] = "ONNX has no such decomposition; cholesky, lu and qr go"
