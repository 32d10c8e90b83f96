"""A train step of flax.nnx: `explain` says that `nnx.jit` compiles it, and that is so."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import malleable as mal
from malleable.errors import TransformError


class Model(nnx.Module):
    def __init__(self, rngs):
        self.layer, self.dropout = nnx.Linear(3, 3, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        return self.dropout(self.layer(x))


def step(model, optimizer, x):
    loss, grads = nnx.value_and_grad(lambda m: (m(x) ** 2).mean())(model)
    optimizer.update(model, grads)
    return loss


def made():
    model = Model(nnx.Rngs(0))
    return model, nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param), jnp.ones((2, 3))


def test_a_step_that_changes_a_model_has_nnx_jit_for_a_suggestion():
    args = made()
    report = mal.explain(mal.jit(step))(*args)
    found = [b.suggestion.after for b in report.breaks if b.suggestion]
    assert found == ["nnx.jit"]
    assert np.array_equal(args[0].layer.kernel[...], made()[0].layer.kernel[...])


def test_the_step_trains_as_in_python_under_either():
    ends = []
    for run in (step, mal.jit(step), nnx.jit(step)):
        args = made()
        losses = [run(*args) for _ in range(3)]
        ends.append((losses, args[0].layer.kernel[...]))
    for end in ends[1:]:
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), ends[0], end)


def test_the_error_of_a_break_names_it_too():
    with pytest.raises(TransformError, match=r"may change its state\n.*\n *hint: nnx.jit"):
        mal.jit(step, on_break="error")(*made())
