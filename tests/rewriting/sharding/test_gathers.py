"""Parameters in parts along the axis of the batch (FSDP): gathered once, summed once."""

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import malleable as mal

MESH = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,))


def put(seed, shape, *spec):
    x = np.random.default_rng(seed).normal(size=shape).astype("f") / 4
    return jax.device_put(x, NamedSharding(MESH, PartitionSpec(*spec)))


def loss(params, x):
    a, b = params
    return jnp.mean((jnp.tanh(x @ a) @ b) ** 2)


def trained(params, x):
    value, slope = jax.value_and_grad(loss)(params, x)
    return value, jax.tree.map(lambda p, g: p - 0.1 * g, params, slope)


def sharded():
    return (put(0, (16, 32), "d"), put(1, (32, 16), None, "d")), put(2, (64, 16), "d")


def check(plain, ours, *args):
    """The same numbers and shardings; gives what both send."""
    a, b = jax.jit(plain)(*args), jax.jit(ours)(*args)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)
        assert x.sharding.is_equivalent_to(y.sharding, x.ndim)
    return mal.communication(plain)(*args), mal.communication(ours)(*args)


@pytest.mark.parametrize("program", [jax.value_and_grad(loss), trained], ids=["slope", "step"])
def test_a_batch_in_steps_gathers_parameters_once(program):
    before, after = check(program, mal.optimize(program, mal.microbatch(4)), *sharded())
    assert after.times <= before.times and after.bytes <= before.bytes


def test_gradients_that_update_parameters_in_parts_are_scattered():
    _, after = check(trained, mal.optimize(trained, mal.microbatch(4)), *sharded())
    scattered = [row for row in after.rows if row.kind == "reduce-scatter"]
    assert sum(row.times for row in scattered) == 2


def test_gradients_that_come_back_whole_are_told_at_their_line():
    """XLA leaves a gradient in parts where that sends less; a sum behind the steps is whole."""
    for program, told in ((jax.grad(loss), True), (trained, False)):
        with mal.listen() as heard:
            mal.stage(mal.optimize(program, mal.microbatch(4)))(*sharded())
        lines = [n.where for n in heard if "comes back whole" in n.what]
        assert bool(lines) is told and all("in loss" in where for where in lines)


def test_a_deferred_program_is_taken_in_steps():
    passes = mal.defer_collectives, mal.microbatch(4)
    check(trained, mal.optimize(trained, *passes), *sharded())
    inner = lambda params, x: mal.optimize(loss, mal.defer_collectives)(params, x)
    slope = jax.value_and_grad(inner)
    check(jax.value_and_grad(loss), mal.optimize(slope, mal.microbatch(4)), *sharded())


def test_accumulated_gradients_of_parameters_in_parts_are_summed_once():
    def accumulated(params, xs):
        add = lambda total, x: (jax.tree.map(jnp.add, total, jax.grad(loss)(params, x)), None)
        return lax.scan(add, jax.tree.map(jnp.zeros_like, params), xs)[0]

    params, x = sharded()
    xs = jax.device_put(
        x[None] * np.ones((6, 1, 1), "f"), NamedSharding(MESH, PartitionSpec(None, "d"))
    )
    before, after = check(accumulated, mal.optimize(accumulated, mal.defer_collectives), params, xs)
    sums = [sum(r.times for r in told.rows if r.kind == "all-reduce") for told in (before, after)]
    assert sums[1] <= 2 < sums[0]


def test_products_summed_over_the_features_are_taken_in_steps():
    params, x = (put(0, (16, 32), None, "d"), put(1, (32, 16), "d")), put(2, (64, 16))
    slope = jax.value_and_grad(loss)
    before, after = check(slope, mal.optimize(slope, mal.microbatch(4)), params, x)
    assert after.bytes <= before.bytes


def test_a_sum_that_two_users_need_is_made_once():
    def fun(w, x):
        h = x @ w  # a sum over the devices
        return jnp.tanh(h), h.T, h.sum()

    args = put(0, (16, 8), "d"), put(1, (64, 16), None, "d")
    before, after = check(fun, mal.optimize(fun, mal.stream(threshold=1, block=4)), *args)
    assert after.times <= before.times


def test_a_checkpoint_with_sums_over_other_devices_is_taken_in_steps():
    held = jax.checkpoint(loss)
    params, x = (put(0, (16, 32), None, "d"), put(1, (32, 16), "d")), put(2, (64, 16))
    slope = jax.value_and_grad(lambda params, x: held(params, x) * 2)
    passes = mal.defer_collectives, mal.microbatch(4)
    check(slope, mal.optimize(slope, *passes), params, x)


def test_the_batch_is_told_from_a_parameter_of_the_same_length():
    params, x = (put(0, (16, 64)), put(1, (64, 16))), put(2, (64, 16), "d")
    check(trained, mal.optimize(trained, mal.microbatch(4)), params, x)
    host = jax.tree.map(np.asarray, (params, x))
    ours = mal.optimize(trained, mal.microbatch(4))(*host)
    np.testing.assert_allclose(ours[0], trained(*host)[0], rtol=1e-5)


@pytest.mark.parametrize("program", [jax.value_and_grad(loss), trained], ids=["slope", "step"])
@pytest.mark.parametrize("p", [mal.microbatch(4), mal.defer_collectives], ids=["steps", "deferred"])
def test_results_of_explicit_meshes_keep_their_types(program, p):
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
    there = NamedSharding(mesh, PartitionSpec("data"))
    args = jax.device_put(
        ((np.ones((16, 32), "f"), np.ones((32, 16), "f")), np.ones((64, 16), "f")), there
    )
    with jax.set_mesh(mesh):
        check(program, mal.optimize(program, p), *args)


def test_parameters_are_not_gathered_along_an_axis_without_the_batch():
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    on = lambda *spec: NamedSharding(mesh, PartitionSpec(*spec))
    params = jax.device_put((np.ones((16, 32), "f"), np.ones((32, 16), "f")), on("model"))
    x = jax.device_put(np.ones((64, 16), "f"), on("data"))
    check(jax.grad(loss), mal.optimize(jax.grad(loss), mal.defer_collectives), params, x)


def test_an_accumulator_that_starts_at_a_value_is_summed_once():
    def accumulated(start, w, xs):
        def step(total, x):
            value, slope = jax.value_and_grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)
            return (total[0] + value, 0.9 * total[1] + slope), None

        return lax.scan(step, (jnp.float32(3), start), xs)[0]

    args = put(0, (16, 16)), put(1, (16, 16)), put(2, (12, 64, 16), None, "d")
    before, after = check(accumulated, mal.optimize(accumulated, mal.defer_collectives), *args)
    assert before.times >= 12 and after.times <= 2


def test_weights_that_a_loop_trains_are_not_summed_more_often():
    def descended(w, xs):
        def step(w, x):
            return w - 0.1 * jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w), None

        return lax.scan(step, w, xs)[0]

    args = put(0, (16, 16)), put(2, (12, 64, 16), None, "d")
    before, after = check(descended, mal.optimize(descended, mal.defer_collectives), *args)
    assert after.times <= before.times


def summed_slopes(w, xs):
    slope = jax.grad(lambda w, x: jnp.mean(jnp.tanh(x @ w) ** 2))
    return lax.scan(lambda total, x: (total + slope(w, x), None), jnp.zeros_like(w), xs)[0]


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_sums_that_are_said_to_be_in_parts_are_scattered(kind):
    mesh = jax.make_mesh((8,), ("d",), axis_types=(kind,))
    there = NamedSharding(mesh, PartitionSpec("d"))
    say = lax.with_sharding_constraint if kind == AxisType.Auto else jax.sharding.reshard
    args = put(1, (16, 16)), put(2, (12, 64, 16), None, "d")
    with jax.set_mesh(mesh):
        args = [jax.device_put(x, NamedSharding(mesh, x.sharding.spec)) for x in args]
        program = lambda w, xs: say(summed_slopes(w, xs), there)
        _, after = check(program, mal.optimize(program, mal.defer_collectives), *args)
    assert [row.kind for row in after.rows] == ["reduce-scatter"] and after.times == 1


def test_constants_that_are_said_to_be_in_parts_are_made_there():
    def program(w, xs):
        zeros = lax.with_sharding_constraint(w * 0, NamedSharding(MESH, PartitionSpec("d")))
        return summed_slopes(w, xs) + zeros

    args = put(1, (16, 16)), put(2, (12, 64, 16), None, "d")
    check(program, mal.optimize(program, mal.defer_collectives), *args)
