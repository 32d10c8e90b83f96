"""Layers with parameters in parts over a mesh: rolled when asked for, else left with a note."""

import jax
import numpy as np
import pytest
from jax import numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import malleable as mal

KINDS = {"auto": AxisType.Auto, "explicit": AxisType.Explicit}


def layers(ws, x):
    for w in ws:
        x = x + jnp.sin(jnp.sin(jnp.sin(jnp.tanh(x @ w)))) / 2
    return jnp.mean(x**2)


def arguments(mesh, *spec):
    put = lambda x, *spec: jax.device_put(x, NamedSharding(mesh, PartitionSpec(*spec)))
    draw = np.random.default_rng(0).normal
    ws = [put(draw(size=(8, 8)).astype("f"), *spec) for _ in range(6)]
    return ws, put(draw(size=(16, 8)).astype("f"), "data")


def mesh_of(kind):
    return jax.make_mesh((2, 4), ("data", "model"), axis_types=(KINDS[kind],) * 2)


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_that_take_what_is_in_parts_are_left_with_a_note(kind):
    mesh = mesh_of(kind)
    args = arguments(mesh, "data" if kind == "auto" else None, "model" if kind == "auto" else None)
    with jax.set_mesh(mesh), mal.listen() as notes:
        program = jax.make_jaxpr(mal.optimize(layers, mal.reroll))(*args)
        assert ("scan" in str(program)) == (kind == "explicit")  # whole there, so it is rolled
    assert any("sharded=True" in n.why for n in notes) == (kind == "auto")


def test_blocks_in_parts_are_rolled_when_asked_for():
    mesh = mesh_of("auto")
    args = arguments(mesh, None, "model")
    ours = mal.optimize(layers, mal.reroll(sharded=True))
    assert "scan" in str(jax.make_jaxpr(ours)(*args))
    np.testing.assert_allclose(layers(*args), ours(*args), rtol=1e-5)


def test_blocks_whose_layouts_are_unknown_are_left_with_a_note():
    mesh = mesh_of("auto")
    put = lambda x, *spec: jax.device_put(x, NamedSharding(mesh, PartitionSpec(*spec)))
    ws, x = [put(np.ones((8, 8), "f"))] * 6, put(np.ones((16, 8), "f"), None, "model")
    with mal.listen() as notes:
        assert "scan" not in str(jax.make_jaxpr(mal.optimize(layers, mal.reroll))(ws, x))
    assert any("not known where values are" in n.why for n in notes)
