"""Models of Flax and Equinox, and a step of Optax, are programs like any other."""

import io

import jax
import jax.numpy as jnp
import pytest

from malleable import cotangents, interpret, live, plant, reap, show, tag
from tests.rules import again, assert_same, count

linen = pytest.importorskip("flax.linen")
nnx = pytest.importorskip("flax.nnx")
eqx = pytest.importorskip("equinox")

X = jax.random.normal(jax.random.key(0), (4, 3))


class LinenNet(linen.Module):
    @linen.compact
    def __call__(self, x):
        x = tag(linen.relu(linen.Dense(8)(x)), "hidden")
        return linen.Dense(1)(linen.LayerNorm()(x))


class NnxNet(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Linear(3, 8, rngs=rngs)
        self.norm = nnx.LayerNorm(8, rngs=rngs)
        self.last = nnx.Linear(8, 1, rngs=rngs)

    def __call__(self, x):
        return self.last(self.norm(tag(nnx.relu(self.first(x)), "hidden")))


class EqxNet(eqx.Module):
    first: eqx.nn.Linear
    rest: eqx.nn.MLP

    def __init__(self, key):
        self.first = eqx.nn.Linear(3, 8, key=key)
        self.rest = eqx.nn.MLP(8, 1, width_size=8, depth=2, key=key)

    def __call__(self, x):
        return self.rest(tag(jax.nn.relu(self.first(x)), "hidden"))


def of_linen():
    net = LinenNet()
    return net.apply, net.init(jax.random.key(1), X)


def of_nnx():
    graph, state = nnx.split(NnxNet(nnx.Rngs(1)))
    return lambda state, x: nnx.merge(graph, state)(x), state


def of_equinox():
    arrays, rest = eqx.partition(EqxNet(jax.random.key(1)), eqx.is_array)
    return lambda arrays, x: jax.vmap(eqx.combine(arrays, rest))(x), arrays


@pytest.fixture(scope="module", params=[of_linen, of_nnx, of_equinox], ids=lambda of: of.__name__)
def model(request):
    """(loss(params, x), params) of a small network with a tag."""
    apply, params = request.param()
    return lambda params, x: jnp.mean((apply(params, x) - 1.0) ** 2), params


def assert_equal(model, got, wanted):
    """Raise AssertionError unless two functions of (params, x) agree, each compiled."""
    _, params = model
    assert_same(*jax.jit(lambda params, x: (got(params, x), wanted(params, x)))(params, X))


def test_a_reap_takes_the_hidden_values_and_keeps_the_loss(model):
    loss, params = model
    assert_equal(model, lambda *args: reap(loss)(*args)[0], loss)
    _, tags = jax.jit(reap(loss))(params, X)
    assert tags["hidden"].shape == (4, 8)
    assert bool(jnp.all(tags["hidden"] >= 0))


def test_planting_what_was_reaped_changes_nothing(model):
    loss, _ = model
    assert_equal(model, lambda *args: plant(loss)(reap(loss)(*args)[1], *args), loss)


def test_planting_something_else_changes_the_loss(model):
    loss, params = model
    units = jax.vmap(jax.jit(plant(loss)), (0, None, None))
    losses = units({"hidden": jnp.broadcast_to(jnp.eye(8)[:, None], (8, 4, 8))}, params, X)
    assert len(set(losses.tolist())) == 8


def test_gradients_are_the_same_with_and_without_a_reap(model):
    loss, _ = model
    assert_equal(model, jax.grad(lambda *args: reap(loss)(*args)[0]), jax.grad(loss))


def test_a_cotangent_is_the_gradient_of_a_planted_value(model):
    loss, _ = model

    def by_plant(*args):
        hidden = reap(loss)(*args)[1]["hidden"]
        return jax.grad(lambda hidden: plant(loss)({"hidden": hidden}, *args))(hidden)

    assert_equal(model, lambda *args: cotangents(loss)(*args)[1]["hidden"], by_plant)


@pytest.mark.parametrize("run", [interpret, live])
def test_a_default_rule_sees_every_equation_and_changes_nothing(model, run):
    loss, params = model
    counted = run(loss, {}, default=count, carry=0)
    assert_equal(model, lambda *args: counted(*args)[0], loss)
    assert jax.jit(counted)(params, X)[1] > 10


def test_gradients_are_the_same_under_a_default_rule(model):
    loss, _ = model
    kept = lambda *args: interpret(loss, {}, default=again)(*args)[0]
    assert_equal(model, jax.grad(kept), jax.grad(loss))


def test_the_program_is_shown_under_the_lines_of_the_model(model):
    loss, params = model
    file = io.StringIO()
    show(loss, file=file, width=200)(params, X)
    assert "test_libraries.py:" in file.getvalue()
    assert "dot_general" in file.getvalue()


def test_a_step_of_an_optimizer_is_the_same_with_and_without(model):
    optax = pytest.importorskip("optax")
    loss, params = model
    optimizer = optax.adam(1e-2)

    def step(params, x):
        state = optimizer.init(params)
        value, grads = jax.value_and_grad(loss)(params, x)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, tag(value, "loss")

    assert jax.eval_shape(reap(step), params, X)[1].keys() == {"hidden", "loss"}
    assert_equal(model, lambda *args: reap(step)(*args)[0], step)
    counted = interpret(step, {}, default=count, carry=0)
    assert_equal(model, lambda *args: counted(*args)[0], step)
