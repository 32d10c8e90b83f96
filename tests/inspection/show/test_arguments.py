"""Inputs of a program are named by their path in what the function is called with."""

import jax
import jax.numpy as jnp
import pytest

from malleable import show
from malleable.inspection.show.arguments import argument_names

PARAMS = {"blocks": [{"kernel": jnp.ones((2, 2)), "bias": jnp.ones(2)}]}


def net(params, x):
    block = params["blocks"][0]
    return jnp.tanh(x @ block["kernel"] + block["bias"])


def test_inputs_from_trees_are_told_above_the_program():
    text = str(show(net, quiet=True)(PARAMS, jnp.ones(2)))
    first = text[text.index("a = ") :].splitlines()
    assert first[:3] == [
        "a = params['blocks'][0]['bias']",
        "b = params['blocks'][0]['kernel']",
        "c = x",
    ]
    assert first[3].startswith("program: a:f32[2] b:f32[2,2] c:f32[2]")


def test_inputs_that_are_arguments_need_no_more_names():
    text = str(show(lambda x, y: x + y, quiet=True)(1.0, 2.0))
    assert "x\nprogram" not in text and "y\nprogram" not in text


@pytest.mark.parametrize("library", ["flax.nnx", "equinox"])
def test_inputs_of_libraries_have_their_paths(library):
    module = pytest.importorskip(library)
    if library == "equinox":
        tree, _ = module.partition(
            module.nn.MLP(2, 1, 4, 1, key=jax.random.key(0)), module.is_array
        )
        wanted = "params.layers[0].weight"
    else:
        tree = module.state(module.Linear(2, 3, rngs=module.Rngs(0)))
        wanted = "params['kernel']"
    names = argument_names(lambda params: params, (tree,), {})
    assert any(name.startswith(wanted) for name in names)
