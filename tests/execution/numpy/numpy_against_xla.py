"""NumPy code of a program compared with XLA's results: values, types and shapes."""

import jax
import numpy as np

from malleable.execution.numpy.code import numpy_function


def assert_same(fun, *args):
    closed = jax.make_jaxpr(fun)(*args)
    run = numpy_function(closed)
    outs, due = run(*args), jax.tree.leaves(jax.jit(fun)(*args))
    assert len(outs) == len(due)
    for out, like in zip(outs, map(np.asarray, due)):
        assert isinstance(out, np.ndarray | np.generic)
        assert (out.dtype, out.shape) == (like.dtype, like.shape), run.source
        if like.dtype.kind in "iub":
            np.testing.assert_array_equal(out, like)
        else:
            wide = "c16" if like.dtype.kind == "c" else "f8"
            near = 2e-2 if like.dtype.itemsize == 2 else 1e-4
            np.testing.assert_allclose(out.astype(wide), like.astype(wide), near, near)
    return run


X = np.random.default_rng(0).normal(size=(4, 3)).astype("f")
EDGES = np.array([0, np.inf, -np.inf, np.nan, 1, -1, 0.5, -0.5, 2.5, 3e9, -3e9], "f")
I = np.array([1, -2, 9], "i")  # noqa: E741
INTS = np.array([-7, 0, 5, 2**31 - 1, -(2**31), 3, -1, 0], "i")
