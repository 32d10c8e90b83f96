"""Matrices in NumPy equal XLA's."""

import jax.numpy as jnp
import jax.scipy as jsp
import numpy as np
import pytest

from tests.execution.numpy.numpy_against_xla import X, assert_same

SQUARE = X.T @ X + np.eye(3, dtype="f")
MATRICES = {
    "solve": lambda a: (jnp.linalg.solve(a, a[:2].T), jnp.linalg.inv(a), jnp.linalg.slogdet(a)),
    "cholesky": lambda a: (jnp.linalg.cholesky(a), jnp.linalg.cholesky(-a)),
    "eigh": lambda a: jnp.linalg.eigvalsh(jnp.stack([a, 2 * a])),
    "svd": lambda a: jnp.linalg.svd(a[:2], full_matrices=False),
    "qr": lambda a: (jnp.linalg.qr(a), jnp.linalg.qr(a[:2], mode="complete")),
    "triangular": lambda a: jsp.linalg.solve_triangular(a, a, trans=1, lower=True),
}


@pytest.mark.parametrize("name", MATRICES)
def test_linear_algebra(name):
    assert_same(MATRICES[name], SQUARE)
