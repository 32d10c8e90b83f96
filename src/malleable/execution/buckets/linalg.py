"""Mask rules of linear algebra: a matrix of changing size becomes the block of a larger one.

    [[A, 0], [0, I]]

Its Cholesky and LU factors and its triangular solutions are those of A, then those of I.
"""

from jax import lax
from jax import numpy as jnp

from malleable import compat
from malleable.execution.buckets.values import Padded, evaluate_padded, filled, mask_rule, valid
from malleable.execution.common.breaks import Unsupported
from malleable.execution.common.sizes import is_symbolic


def _bordered(sizes, p: Padded):
    """A square matrix with the identity after it; zero for the padding of a batch."""
    rank = len(p.dims)
    rows, columns = p.dims[-2:]
    x = filled(sizes, p, 0)
    if not is_symbolic(rows) and not is_symbolic(columns):
        return x
    if is_symbolic(rows) != is_symbolic(columns) or rows != columns:
        raise Unsupported("a matrix that is not square, of a size that changes")
    beyond = ~valid(sizes, p.dims, [rank - 1])
    return jnp.where(beyond, jnp.eye(x.shape[-1], dtype=x.dtype), x)


@mask_rule("cholesky")
def cholesky(sizes, eqn, p):
    return compat.bind(eqn, [_bordered(sizes, p)])


@mask_rule("lu")
def lu(sizes, eqn, p):
    """Infinite or NaN in the matrix may end in a pivot of the border: then all is NaN."""
    x = _bordered(sizes, p)
    factors, pivots, permutation = compat.bind(eqn, [x])
    finite = jnp.isfinite(x).all((-2, -1), keepdims=True)
    return [jnp.where(finite, factors, jnp.nan), pivots, permutation]


@mask_rule("lu_pivots_to_permutation")
def lu_pivots_to_permutation(sizes, eqn, p):
    if not is_symbolic(p.dims[-1]):
        return compat.bind(eqn, [p.x])
    axis = len(p.dims) - 1
    place = lax.broadcasted_iota(p.x.dtype, p.x.shape, axis)
    x = jnp.where(valid(sizes, p.dims, [axis]), p.x, place)
    size = sizes.room(eqn.params["permutation_size"])
    if size < p.x.shape[axis]:
        raise Unsupported("a permutation of a size of its own")
    return eqn.primitive.bind(x, permutation_size=size)


@mask_rule("triangular_solve")
def triangular_solve(sizes, eqn, a, b):
    side = len(b.dims) - (2 if eqn.params["left_side"] else 1)
    return compat.bind(eqn, [_bordered(sizes, a), filled(sizes, b, 0, [side])])


@mask_rule("custom_linear_solve")
def linear_solve(sizes, eqn, *ins):
    """The solution; the rest of the operands is for derivatives."""
    lengths, bodies = eqn.params["const_lengths"], eqn.params["jaxprs"]
    start = lengths.matvec + lengths.vecmat
    consts, rhs = ins[start : start + lengths.solve], ins[sum(lengths) :]
    return evaluate_padded(sizes, compat.close(bodies.solve), [*consts, *rhs])


@mask_rule("eigh", "svd", "geqrf", "qr", "householder_product")
def one_matrix_at_a_time(sizes, eqn, *ins):
    """Only batches may be padded."""
    for p in ins:
        if any(map(is_symbolic, p.dims[-2:])):
            raise Unsupported(f"{eqn.primitive.name} of a size that changes")
    return compat.bind(eqn, [filled(sizes, p, 0) for p in ins])
