"""NumPy code for gathers and scatters equals XLA's, out of range too."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from tests.execution.numpy.numpy_against_xla import I, X, assert_same

INDEXING = {
    "rows": lambda x, i: (x[i], x[:, i], x[i, i], x[i[:, None], i], x[i, 1:], x[i[0]], x[1, i[1]]),
    "modes": lambda x, i: [x.at[i].get(mode=m) for m in ("clip", "fill", "drop")],
    "filled": lambda x, i: (x.at[i, i].get(mode="fill", fill_value=7), jnp.take(x, i, axis=1)),
    "along": lambda x, i: jnp.take_along_axis(x, jnp.argsort(x, 1), 1),
    "set": lambda x, i: (x.at[1].set(5), x.at[1:3, ::2].set(x[:2, :2]), x.at[i[:2]].set(5)),
    "combined": lambda x, i: (x.at[i].add(x[:3]), x.at[i].max(0), x.at[:, i].multiply(2)),
    "dropped": lambda x, i: (x.at[i[2]].add(1), x.at[i].min(0), x.at[i].add(1, mode="clip")),
    "segments": lambda x, i: jax.ops.segment_sum(x[:3], jnp.abs(i), num_segments=3),
    "blocks": lambda x, i: (
        lax.dynamic_slice(x, (i[0], i[2]), (2, 2)),
        lax.dynamic_update_slice(x, x[:2, :2], (i[2], i[0])),
    ),
    "mapped": lambda x, i: (
        jax.vmap(lambda a, k: lax.dynamic_slice(a, (k,), (2,)))(x[:3], i),
        jax.vmap(lambda a, k: a.at[k].add(1))(x[:3], i),
        jax.vmap(lambda a: a[i])(x),
    ),
}


@pytest.mark.parametrize("name", INDEXING)
def test_indexing_out_of_range_included(name):
    assert_same(INDEXING[name], X, I)
