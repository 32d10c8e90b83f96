"""Models of Flax and Equinox, and a step of Optax, are programs like any other."""

import gc
import io

import jax
import jax.numpy as jnp
import pytest

from malleable import (
    TransformError,
    autograph,
    cotangents,
    interpret,
    live,
    plant,
    reap,
    show,
    tag,
)
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
        self.rest = eqx.nn.MLP(8, 1, width_size=8, depth=1, key=key)

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


@pytest.fixture(scope="module")
def found(model):
    """What every transformation makes of the loss, and JAX of its gradient, compiled at once."""
    loss, params = model

    def every(params):
        out, tags = reap(loss)(params, X)
        hidden = tags["hidden"]
        units = jnp.broadcast_to(jnp.eye(8)[:, None], (8, *hidden.shape))
        under = lambda values: plant(loss)({"hidden": values}, params, X)
        kept = lambda params: interpret(loss, {}, default=again)(params, X)[0]
        return {
            "loss": loss(params, X),
            "reaped": out,
            "hidden": hidden,
            "planted": under(hidden),
            "units": jax.vmap(under)(units),
            "cotangents": cotangents(loss)(params, X)[1]["hidden"],
            "slope of planted": jax.grad(under)(hidden),
            "gradient": jax.grad(loss)(params, X),
            "gradient of reap": jax.grad(lambda params: reap(loss)(params, X)[0])(params),
            "gradient of interpret": jax.grad(kept)(params),
            "interpret": interpret(loss, {}, default=count, carry=0)(params, X)[:2],
            "live": live(loss, {}, default=count, carry=0)(params, X)[:2],
        }

    gc.freeze()  # the check collects garbage for each trace that a cycle keeps: of this one only
    with jax.checking_leaks():
        return jax.jit(every)(params)


def test_a_reap_takes_the_hidden_values_and_keeps_the_loss(found):
    assert_same(found["reaped"], found["loss"])
    assert found["hidden"].shape == (4, 8)
    assert jnp.all(found["hidden"] >= 0) and jnp.any(found["hidden"] > 0)


def test_planting_what_was_reaped_changes_nothing(found):
    assert_same(found["planted"], found["loss"])


def test_planting_something_else_changes_the_loss(found):
    assert len(set(found["units"].tolist())) == 8


def test_a_cotangent_is_the_gradient_of_a_planted_value(found):
    assert_same(found["cotangents"], found["slope of planted"])


@pytest.mark.parametrize("name", ["gradient of reap", "gradient of interpret"])
def test_gradients_are_the_same_with_and_without(found, name):
    assert_same(found[name], found["gradient"])


@pytest.mark.parametrize("name", ["interpret", "live"])
def test_a_default_rule_sees_every_equation_and_changes_nothing(found, name):
    out, n = found[name]
    assert_same(out, found["loss"])
    assert n > 10


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

    def step(params):
        state = optimizer.init(params)
        value, grads = jax.value_and_grad(loss)(params, X)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, tag(value, "loss")

    counted = interpret(step, {}, default=count, carry=0)
    (reaped, tags), kept, wanted = jax.jit(lambda p: (reap(step)(p), counted(p)[0], step(p)))(
        params
    )
    assert tags.keys() == {"hidden", "loss"}
    assert_same(reaped, wanted)
    assert_same(kept, wanted)


class Counter(nnx.Module):
    def __init__(self):
        self.steps = nnx.Variable(jnp.array(0))

    def late(self, x):
        steps = self.steps[...] + 1 if x > 0 else self.steps[...] - 1
        self.steps[...] = steps

    def early(self, x):
        if x > 0:
            self.steps[...] += 1


def test_a_state_of_nnx_is_written_after_a_traced_test_and_not_under_it():
    counter = Counter()
    nnx.jit(autograph(lambda counter, x: counter.late(x)))(counter, 1.0)
    assert counter.steps[...] == 1
    line = Counter.early.__code__.co_firstlineno + 2
    with pytest.raises(TransformError, match=rf"nnx is written(.|\n)*py:{line} in early"):
        nnx.jit(autograph(lambda counter, x: counter.early(x)))(counter, 1.0)
    assert counter.steps[...] == 1
