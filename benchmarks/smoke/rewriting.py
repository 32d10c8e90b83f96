"""A case in the form of ../shared/cases/rewriting.py, for `benchmarks.cases --smoke`."""

import types

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


def make(size):
    return (jnp.linspace(0.0, 1.0, 8 if size == "small" else 64),)


def mean_of_states(x):
    return lax.scan(lambda c, _: (jnp.sin(c),) * 2, x, None, length=9)[1].mean()


def by_hand(x):
    def step(carry, _):
        x, total = carry
        return (jnp.sin(x), total + jnp.sin(x).sum()), None

    return lax.scan(step, (x, 0.0), None, length=9)[0][1] / (9 * x.size)


CASES = {
    "mean_of_states": types.SimpleNamespace(
        name="mean_of_states",
        fn=mean_of_states,
        make=make,
        tags=("push",),
        grad=(0,),
        hand=by_hand,
        tol=1e-5,
    )
}
REFERENCE = {}


def summary(out):
    return [np.asarray(x) for x in jax.tree.leaves(out)]


def close(got, expected, tolerance):
    return all(np.allclose(a, b, tolerance, tolerance) for a, b in zip(got, expected))


def scal(fun):
    return lambda *args: sum(jnp.sum(x) for x in jax.tree.leaves(fun(*args)))
