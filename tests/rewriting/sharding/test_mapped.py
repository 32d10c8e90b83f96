"""Programs that are mapped over devices by hand: sums of steps are made behind the loop."""

from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import malleable as mal

MESH = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
P = PartitionSpec
WHOLE = P()
checked_or_not = pytest.mark.parametrize("checked", [True, False])


def put(seed, *shape, spec=()):
    x = np.random.default_rng(seed).normal(size=shape).astype("float32")
    return jax.device_put(x, NamedSharding(MESH, P(*spec)))


def rnn(w, xs):
    def step(h, x):
        h = jnp.tanh(h @ w + x)
        return h, h

    return jnp.mean(lax.scan(step, xs[0] * 0, xs)[1] ** 2)


def on_devices(local, checked, outs: Any = WHOLE):
    ins = (P(), P(None, "data"))
    return jax.shard_map(local, mesh=MESH, in_specs=ins, out_specs=outs, check_vma=checked)


def deferred(fun):
    return mal.optimize(fun, mal.defer_collectives)


def accumulated(w, xs, mine=lambda w: w):
    """Gradients summed over the devices in each step, as one writes it."""

    def step(acc, x):
        value, grad = jax.value_and_grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(mine(w))
        return acc + lax.pmean(grad, "data"), lax.pmean(value, "data")

    return lax.scan(step, jnp.zeros_like(w), xs)


def accumulated_checked(w, xs):
    return accumulated(w, xs, lambda w: lax.pcast(w, "data", to="varying"))


def check(plain, ours, *args):
    a, b = jax.jit(plain)(*args), jax.jit(ours)(*args)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6)
        assert x.sharding.is_equivalent_to(y.sharding, x.ndim)
    return [mal.communication(f)(*args).times for f in (plain, ours)]


ARGS = put(0, 16, 16), put(1, 12, 8, 16, spec=(None, "data"))


def test_the_gradient_of_a_loop_in_a_map_is_summed_once():
    plain = on_devices(lambda w, xs: jax.grad(rnn)(w, xs) / 2, True)
    assert check(plain, deferred(plain), *ARGS) == [12, 1]


# JAX 0.12's leak check takes plain JAX's own gradient of a shard_map for a leak.
@pytest.mark.caches
def test_the_gradient_of_a_map_is_summed_once():
    plain = jax.grad(on_devices(lambda w, xs: lax.pmean(rnn(w, xs), "data"), True))
    before, after = check(plain, deferred(plain), *ARGS)
    assert before >= 12
    assert after <= 2


@checked_or_not
@pytest.mark.parametrize("where", ["around", "inside"])
def test_sums_of_steps_that_are_added_up_are_made_once(checked, where):
    local = accumulated_checked if checked else accumulated
    plain = on_devices(local, checked, (P(), P()))
    ours = deferred(plain)
    if where == "inside":
        ours = on_devices(deferred(local), checked, (P(), P()))
    assert check(plain, ours, *ARGS) == [24, 1]


@checked_or_not
def test_a_mean_is_a_mean_where_types_vary_along_another_axis(checked):
    def local(w, xs):
        mine = lambda w: lax.pcast(w, "data", to="varying") if checked else w
        return accumulated(w, xs, mine)[0]

    specs = (P(None, "model"), P(None, "data"))
    fun = jax.shard_map(local, mesh=MESH, in_specs=specs, out_specs=specs[0], check_vma=checked)
    args = put(0, 8, 8, spec=specs[0]), put(1, 12, 16, 8, spec=specs[1])
    check(fun, deferred(fun), *args)
    assert mal.communication(deferred(fun))(*args).times == 1


@checked_or_not
def test_a_sum_that_a_step_uses_stays_with_a_note(checked):
    def local(w, xs):
        def step(w, x):
            mine = lax.pcast(w, "data", to="varying") if checked else w
            grad = jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(mine)
            return w - 0.1 * lax.pmean(grad, "data"), None

        return lax.scan(step, w, xs)[0]

    plain = on_devices(local, checked)
    with mal.listen() as notes:
        times = check(plain, deferred(plain), *ARGS)
    assert times == [12, 12]
    assert any("collective" in n.what and "test_mapped.py" in n.where for n in notes)


def test_devices_that_branch_for_themselves_keep_their_sums():
    def local(w, xs):
        def step(acc, x):
            total = lax.psum(x.sum(0), "data")
            mine = lax.cond(lax.axis_index("data") == 0, lambda t: t, lambda t: -t, total)
            return acc + mine, None

        return lax.scan(step, xs[0, 0] * 0, xs)[0][None] + w[:1, :1]

    plain = on_devices(local, False, P("data"))
    check(plain, deferred(plain), *ARGS)


def test_the_choice_of_a_device_between_sums_is_kept():
    def local(w, xs):
        def step(acc, x):
            total = lax.psum(x.sum(0), "data")
            own = lax.axis_index("data") == 0
            return acc + jnp.where(own, total, 2 * total), None

        return lax.scan(step, xs[0, 0] * 0, xs)[0][None] + w[:1, :1]

    plain = on_devices(local, False, P("data"))
    check(plain, deferred(plain), *ARGS)


@checked_or_not
def test_sums_over_several_axes_are_made_once(checked):
    def local(w, xs):
        def step(acc, x):
            both = lax.psum(x @ w, ("data", "model")) if not checked else lax.psum(x @ w, "data")
            return acc + both.sum(0), None

        return lax.scan(step, jnp.zeros(16), xs)[0]

    plain = on_devices(local, checked)
    before, after = check(plain, deferred(plain), *ARGS)
    assert (before, after) == (12, 1)


@checked_or_not
def test_an_accumulator_that_starts_at_a_value_is_summed_once(checked):
    def local(w, xs):
        def step(acc, x):
            mine = lax.pcast(w, "data", to="varying") if checked else w
            grad = jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(mine)
            return 0.5 * acc + lax.pmean(grad, "data"), None

        return lax.scan(step, w, xs)[0]

    plain = on_devices(local, checked)
    assert check(plain, deferred(plain), *ARGS) == [12, 1]


def scattered(w, xs, scale=lambda g: g):
    """Gradients of which each device keeps a part, scattered in each step."""

    def step(total, x):
        slope = jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)
        part = lax.psum_scatter(slope, "data", scatter_dimension=0, tiled=True)
        return total + scale(part), None

    return lax.scan(step, w[:8], xs)[0]


@pytest.mark.parametrize("scale", [lambda g: g, lambda g: -g * 3 / 4], ids=["plain", "scaled"])
@pytest.mark.parametrize("where", ["around", "inside"])
def test_sums_of_steps_are_scattered_once(scale, where):
    local = lambda w, xs: scattered(lax.pcast(w, "data", to="varying"), xs, scale)
    plain = on_devices(local, True, P("data"))
    ours = deferred(plain) if where == "around" else on_devices(deferred(local), True, P("data"))
    assert check(plain, ours, *ARGS) == [12, 1]


def test_a_scattered_sum_that_takes_memory_behind_the_loop_leaves_a_note():
    plain = on_devices(
        lambda w, xs: scattered(lax.pcast(w, "data", to="varying"), xs), True, P("data")
    )
    with mal.listen() as notes:
        check(plain, deferred(plain), *ARGS)
    (found,) = [note for note in notes if "takes memory" in note.what]
    assert "1,024 bytes, not 512" in found.why and "test_mapped.py" in found.where


def test_rows_that_steps_add_up_are_gathered_once():
    def local(w, xs):
        start = lax.pcast(jnp.ones((8, 16)), "data", to="varying")
        add = lambda total, x: (total + lax.all_gather(x, "data", tiled=True), None)
        return lax.scan(add, start, xs)[0]

    plain = on_devices(local, True, P("data"))
    assert check(plain, deferred(plain), *ARGS) == [12, 1]


def test_what_each_step_gathers_and_uses_leaves_a_note():
    def local(w, xs):
        step = lambda total, x: (jnp.sin(total + lax.all_gather(x, "data", tiled=True)), None)
        return lax.scan(step, lax.pcast(jnp.ones((8, 16)), "data", to="varying"), xs)[0]

    plain = on_devices(local, True, P("data"))
    with mal.listen() as notes:
        assert check(plain, deferred(plain), *ARGS) == [12, 12]
    assert any("collective" in n.what and "test_mapped.py" in n.where for n in notes)
