"""Budgets of memory: the gradient is the same, holds less, and works parts out again."""

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import malleable as mal


def scan_loss(w, x):
    def step(h, _):
        return jnp.sin(jnp.sin(jnp.sin(h @ w))), None

    return jnp.sum(lax.scan(step, x, None, length=32)[0] ** 2)


ARGS = jnp.full((16, 16), 0.1), jnp.ones((256, 16))


def update(loss):
    def run(w, x):
        value, (a, b) = jax.value_and_grad(loss, (0, 1))(w, x)
        return value, w - a, x - b

    return jax.jit(run)


def temp(loss):
    return update(loss).lower(*ARGS).compile().memory_analysis().temp_size_in_bytes


def test_a_scan_keeps_its_carries_only():
    budget = int(0.6 * temp(scan_loss))
    with mal.listen() as notes:
        ours = mal.optimize(scan_loss, mal.remat(budget=budget))
        held = temp(ours)
    assert held <= budget
    assert any("worked out again" in n.what and "test_remat.py" in n.where for n in notes)
    for a, b in zip(update(scan_loss)(*ARGS), update(ours)(*ARGS), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def layers(w, x):
    for _ in range(8):
        y = jnp.sin(jnp.sin(jnp.sin(x @ w)))
        y = (y - y.mean(-1, keepdims=True)) / jnp.sqrt(y.var(-1, keepdims=True) + 1)
        x = x + y
    return jnp.sum(x**2)


def test_layers_that_repeat_fit_where_a_compiler_works_out_early_what_is_asked_for_late():
    budget = int(0.55 * temp(layers))
    ours = mal.optimize(layers, mal.remat(budget=budget))
    assert temp(ours) <= budget
    for a, b in zip(update(layers)(*ARGS), update(ours)(*ARGS), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_a_budget_that_is_met_changes_nothing():
    ours = mal.optimize(scan_loss, mal.remat(budget=1 << 40))
    assert "checkpoint" not in str(jax.make_jaxpr(ours)(*ARGS))


def test_plans_are_the_same_each_time():
    budget = int(0.6 * temp(scan_loss))
    one, two = (
        str(jax.make_jaxpr(mal.optimize(scan_loss, mal.remat(budget=budget)))(*ARGS))
        for _ in range(2)
    )
    assert one == two


def test_a_program_without_a_gradient_leaves_a_note():
    with mal.listen() as notes:
        mal.optimize(lambda n: n * 2, mal.remat(budget=1))(jnp.arange(4))
    assert any("no gradient" in note.why for note in notes)


@pytest.mark.parametrize("budget", [0, -1, True, "8 GiB", None])
def test_a_budget_is_a_number_of_bytes(budget):
    with pytest.raises(mal.TransformError, match=r"number of bytes[^$]*8 << 30"):
        mal.remat(budget=budget)


def test_shardings_of_another_tree_are_refused():
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
    one = (NamedSharding(mesh, PartitionSpec("data")),)
    with pytest.raises(mal.TransformError, match="1 leaves, and the program 2 arguments"):
        mal.optimize(scan_loss, mal.remat(budget=1 << 20, shardings=one))(*ARGS)


def test_a_budget_too_small_names_the_least_and_the_line():
    with pytest.raises(mal.TransformError, match=r"the least is \d+ bytes") as error:
        mal.optimize(scan_loss, mal.remat(budget=1))(*ARGS)
    assert "test_remat.py" in str(error.value) and "remat(budget=" in str(error.value)


def test_a_budget_for_what_is_a_gradient_already_is_told_to_go_around_the_loss():
    with pytest.raises(mal.TransformError, match="around a loss, not around its gradient"):
        mal.optimize(jax.grad(scan_loss), mal.remat(budget=1))(*ARGS)


def test_a_hint_names_no_budget_that_gains_nothing():
    with pytest.raises(mal.TransformError, match="bytes") as error:
        mal.optimize(lambda x: jnp.sum(x @ x), mal.remat(budget=1))(jnp.ones((30, 30)))
    assert "remat(budget=" not in str(error.value)


@pytest.mark.caches  # JAX keeps the values of a shard_map whose trace an exception ends
@pytest.mark.parametrize("check_vma", [True, False])
def test_what_is_in_a_shard_map_is_refused_with_a_way_out(check_vma):
    mesh = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,))
    specs = {"in_specs": (PartitionSpec(), PartitionSpec("d")), "out_specs": PartitionSpec()}
    mapped = lambda f: jax.shard_map(f, mesh=mesh, check_vma=check_vma, **specs)
    local = lambda w, x: lax.pmean(scan_loss(w, x), "d")
    with pytest.raises(mal.TransformError, match=r"test_remat\.py(.|\n)*jax\.checkpoint"):
        mapped(mal.optimize(local, mal.remat(budget=1000)))(*ARGS)
    with pytest.raises(mal.TransformError, match=r"jax\.checkpoint there"):
        mal.optimize(mapped(local), mal.remat(budget=1000))(*ARGS)


def test_remat_of_a_function_or_without_a_budget_says_how_it_is_used():
    with pytest.raises(mal.TransformError, match="remat with its budget is a pass") as error:
        mal.remat(abs, budget=8)  # type: ignore[call-arg]
    assert "mal.optimize(loss, mal.remat(budget=8 << 30))" in str(error.value)
    with pytest.raises(TypeError, match=r"remat makes a pass: write optimize\(fun, remat\(...\)\)"):
        mal.optimize(abs, mal.remat)(1.0)
