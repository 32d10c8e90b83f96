"""Twenty-five small graphs whose shapes depend on values: `python integrations/pytensor_graphs.py`.

Each is compiled with PyTensor's mode "JAX" and with "JAX_SELECTIVE", called with two inputs, and
compared with PyTensor's Python mode. A draw is compared by shape and dtype: the generators differ.
"""

import sys
import warnings

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.mode import Mode
from pytensor.raise_op import assert_op
from pytensor.tensor.extra_ops import Unique, bartlett, repeat

import malleable.integrations.pytensor  # noqa: F401  registers the mode

try:
    from pytensor.conditional.op import ifelse
except ImportError:  # PyTensor 3.0
    from pytensor.ifelse import ifelse

PY = Mode(linker="py", optimizer=None)

x = pt.vector("x", dtype="float64")
n, k = pt.lscalar("n"), pt.lscalar("k")
sizes = pt.vector("sizes", dtype="int64", shape=(2,))
counts = pt.vector("counts", dtype="int64")
V, W = np.array([3.0, -1.0, 2.0, -1.0, 5.0, -4.0]), np.array([-2.0, 7.0, 7.0, 0.0])


def steps():
    """A Scan of as many steps as n says."""
    return pytensor.scan(
        lambda y: y * 1.5 + 1.0, outputs_info=[pt.zeros(())], n_steps=n, return_updates=False
    )


def draw(size):
    """A fresh generator for each graph."""
    generator = pytensor.shared(np.random.default_rng(1))
    return pt.random.normal(1.0, 2.0, size=size, rng=generator, return_next_rng=True)[1]


GRAPHS = {  # what: (inputs, output, values of the two calls)
    "x[x < 0].sum()": ([x], x[x < 0].sum(), [[V], [W]]),
    "x.reshape((n, -1))": ([x, n], x.reshape((n, -1)), [[V, 2], [W, 4]]),
    "assert_op(x, x.sum() > 0)": ([x], assert_op(x, x.sum() > 0), [[V], [W]]),
    "x[x < 0]": ([x], x[x < 0], [[V], [W]]),
    "x[:n]": ([x, n], x[:n], [[V, 4], [W, 3]]),
    "x[n:k]": ([x, n, k], x[n:k], [[V, 1, 4], [W, 0, 3]]),
    "arange(n)": ([n], pt.arange(n), [[5], [8]]),
    "eye(n)": ([n], pt.eye(n), [[3], [4]]),
    "tri(n, k)": ([n, k], pt.tri(n, k), [[3, 4], [5, 2]]),
    "x.reshape(sizes)": ([x, sizes], x.reshape(sizes), [[V, [2, 3]], [W, [1, 4]]]),
    "zeros((n, k))": ([n, k], pt.zeros((n, k)), [[2, 3], [4, 1]]),
    "alloc(x.sum(), n)": ([x, n], pt.alloc(x.sum(), n), [[V, 2], [W, 5]]),
    "unique(x)": ([x], Unique()(x), [[V], [W]]),
    "nonzero(x > 0)": ([x], pt.nonzero(x > 0)[0], [[V], [W]]),
    "repeat(x, counts)": (
        [x, counts],
        repeat(x, counts),
        [[V, [1, 0, 2, 1, 3, 0]], [W, [2, 2, 0, 1]]],
    ),
    "split(x, [n, rest])": (
        [x, n],
        pt.split(x, [n, x.shape[0] - n], n_splits=2)[1],
        [[V, 2], [W, 3]],
    ),
    "normal(size=sizes)": ([sizes], draw(sizes), [[[2, 3]], [[4, 1]]]),
    "normal(size=(n, 2 * k))": ([n, k], draw((n, 2 * k)), [[3, 1], [2, 2]]),
    "bartlett(n)": ([n], bartlett(n), [[5], [8]]),
    "ifelse(x[0] > 0, x[x < 0], x)": ([x], ifelse(x[0] > 0, x[x < 0], x), [[V], [W]]),
    "x[unique(i)]": ([x, counts], x[Unique()(counts)], [[V, [4, 1, 1]], [W, [3, 3, 0]]]),
    "scan of n steps": ([n], steps(), [[4], [7]]),
    "cumsum(x[:n])": ([x, n], pt.cumsum(x[:n]), [[V, 4], [W, 3]]),
    "set_subtensor(x[:n], 0)": ([x, n], pt.set_subtensor(x[:n], 0.0), [[V, 4], [W, 3]]),
    "linspace(0, 1, n)": ([n], pt.linspace(0.0, 1.0, n), [[4], [9]]),
}


def outcome(mode, inputs, output, calls, *, by_shape):
    """ "right", or the first thing that went wrong."""
    found, wanted = [], []
    for results, which in ((wanted, PY), (found, mode)):
        try:
            function = pytensor.function(inputs, output, mode=which, on_unused_input="ignore")
            results += [function(*map(np.asarray, values)) for values in calls]
        except Exception as error:
            return f"{type(error).__name__}: {str(error).strip().splitlines()[0][:60]}"
    for got, want in zip(found, wanted, strict=True):
        if got.shape != want.shape or got.dtype != want.dtype:
            return f"{got.dtype}{list(got.shape)} for {want.dtype}{list(want.shape)}"
        if not by_shape and not np.allclose(got, want):
            return "other values"
    return "right"


def main():
    """Print a row for each graph and how many were right; fail if fewer than 23 are."""
    warnings.simplefilter("ignore")
    right = {"JAX": 0, "JAX_SELECTIVE": 0}
    for what, (inputs, output, calls) in GRAPHS.items():
        row = {}
        for mode in right:
            row[mode] = outcome(mode, inputs, output, calls, by_shape="normal" in what)
            right[mode] += row[mode] == "right"
        print(f"{what:32} JAX_SELECTIVE: {row['JAX_SELECTIVE']:12} JAX: {row['JAX']}", flush=True)
    for mode, count in right.items():
        print(f"{mode}: {count} of {len(GRAPHS)} right")
    return 0 if right["JAX_SELECTIVE"] >= 23 else 1


if __name__ == "__main__":
    sys.exit(main())
