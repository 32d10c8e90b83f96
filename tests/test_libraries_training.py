"""Train steps of Flax, Equinox and Haiku learn under each transformation as they do without."""

import jax
import jax.numpy as jnp
import pytest

from malleable import (
    TransformError,
    apply,
    autograph,
    cost,
    cotangents,
    diff,
    first_nonfinite,
    harvest,
    init,
    interpret,
    jit,
    live,
    mutable,
    optimize,
    param,
    plant,
    reap,
    save,
    seed,
    show,
    tag,
    trace_calls,
    unstage,
)
from malleable.execution.explain.explain import explain
from tests.rules import assert_same

linen = pytest.importorskip("flax.linen")
nnx = pytest.importorskip("flax.nnx")
eqx = pytest.importorskip("equinox")
hk = pytest.importorskip("haiku")
optax = pytest.importorskip("optax")

KEY = jax.random.key(0)
X = jax.random.normal(jax.random.key(1), (6, 3))

RUNS = {
    "optimize": optimize,
    "interpret": lambda f: lambda *a: interpret(f, {})(*a)[0],
    "reap": lambda f: lambda *a: reap(f)(*a)[0],
    "plant": lambda f: lambda *a: plant(f)({}, *a),
    "harvest": lambda f: lambda *a: harvest(f)({}, *a)[0],
    "seed": lambda f: lambda *a: seed(f)(KEY, *a),
    "apply": lambda f: lambda *a: apply(f)({}, *a),
    "live": lambda f: lambda *a: live(f, {})(*a)[0],
    "mutable": mutable,
    "unstage": unstage,
    "jit": jit,
    "autograph": autograph,
}
LOOKS = {
    "show": lambda f: show(f, quiet=True),
    "cost": cost,
    "diff": lambda f: diff(f, f, quiet=True),
    "first_nonfinite": first_nonfinite,
    "trace_calls": trace_calls,
    "init": lambda f: lambda *a: init(f)(KEY, *a),
}


def pairs(ones, others):
    """Each of some with each of others; slow, but for one pair at least with each of both."""
    ones, others = list(ones), list(others)
    few = min(len(ones), len(others))
    return [
        pytest.param(one, other, marks=[pytest.mark.slow] * ((i - j) % few > 0))
        for i, one in enumerate(ones)
        for j, other in enumerate(others)
    ]


# ---------------------------------------------------------------- Flax NNX, which writes in place


class Plain(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Linear(3, 4, rngs=rngs)
        self.last = nnx.Linear(4, 1, rngs=rngs)

    def __call__(self, x):
        return self.last(tag(nnx.tanh(self.first(x)), "hidden"))


class Noisy(Plain):
    """Statistics, random keys that several layers share, and a counter."""

    def __init__(self, rngs):
        super().__init__(rngs)
        self.norm = nnx.BatchNorm(3, rngs=rngs)
        self.one, self.two = (nnx.Dropout(0.4, rngs=rngs) for _ in range(2))
        self.calls = nnx.Variable(jnp.zeros(()))

    def __call__(self, x):
        self.calls[...] += 1
        return super().__call__(self.two(self.one(self.norm(x))))


class Tied(Plain):
    def __init__(self, rngs):
        super().__init__(rngs)
        self.layers = nnx.List([nnx.Linear(3, 3, rngs=rngs) for _ in range(2)])
        self.layers[1].kernel = self.layers[0].kernel

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return super().__call__(x)


class Deep(Plain):
    def __init__(self, rngs):
        super().__init__(rngs)
        make = nnx.vmap(lambda rngs: nnx.Linear(3, 3, rngs=rngs), in_axes=(0,), out_axes=0)
        self.layers = nnx.split_rngs(splits=3)(make)(rngs)

    def __call__(self, x):
        walk = nnx.scan(lambda layer, x: layer(x), in_axes=(0, nnx.Carry), out_axes=nnx.Carry)
        return super().__call__(walk(self.layers, x))


def in_place(make):
    model = make(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.sgd(0.1, momentum=0.9), wrt=nnx.Param)
    average = nnx.metrics.Average("loss")

    def step(model, optimizer, average, x):
        loss, grads = nnx.value_and_grad(lambda model: jnp.mean((model(x) - 1) ** 2))(model)
        optimizer.update(model, grads)
        average.update(loss=loss)
        return loss

    return step, (model, optimizer, average, X)


def nnx_jitted(make=Plain):
    step, given = in_place(make)
    return nnx.jit(step), given


def nnx_with_its_optimizer():
    model = Plain(nnx.Rngs(0))

    @nnx.jit
    def step(model, optimizer, x):
        loss, grads = nnx.value_and_grad(lambda model: jnp.mean(model(x) ** 2))(model)
        optimizer.update(grads)
        return loss

    return step, (model, nnx.ModelAndOptimizer(model, optax.sgd(0.1)), X)


NNX = {
    "jitted": nnx_jitted,
    "eager": lambda: in_place(Plain),
    "noisy": lambda: nnx_jitted(Noisy),
    "tied": lambda: in_place(Tied),
    "deep": lambda: nnx_jitted(Deep),
    "model in the optimizer": nnx_with_its_optimizer,
}


def state_of(given):
    leaves = jax.tree.leaves([nnx.state(model) for model in given[:-1]])
    keys = lambda x: jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    return [jax.random.key_data(x) if keys(x) else x for x in leaves]


def trained(make, transform):
    step, given = make()
    run = transform(step)
    return [run(*given) for _ in range(2)], state_of(given)


@pytest.fixture(scope="module")
def plainly():
    return {name: trained(make, lambda f: f) for name, make in NNX.items()}


@pytest.mark.parametrize("name", RUNS)
def test_a_step_of_nnx_trains(name, plainly):
    assert_same(trained(NNX["jitted"], RUNS[name]), plainly["jitted"])


@pytest.mark.parametrize(("model", "name"), pairs(list(NNX)[1:], ["optimize", "reap", "live"]))
def test_models_of_nnx_of_all_sorts_train(model, name, plainly):
    assert_same(trained(NNX[model], RUNS[name]), plainly[model])


@pytest.mark.parametrize("name", LOOKS)
def test_who_looks_at_a_step_of_nnx_leaves_the_model_alone(name):
    step, given = nnx_jitted(Noisy)
    before = state_of(given)
    LOOKS[name](step)(*given)
    assert_same(state_of(given), before)


def test_the_cotangents_of_a_step_come_with_its_update(plainly):
    def run(step):
        return lambda *given: cotangents(lambda *g: tag(step(*g), "loss"))(*given)[0]

    assert_same(trained(NNX["jitted"], run), plainly["jitted"])


def test_cost_counts_the_update_of_a_step_of_nnx():
    step, given = nnx_jitted()
    loss = lambda model, x: jnp.mean((model(x) - 1) ** 2)
    assert cost(step)(*given).flops > 2 * cost(loss)(given[0], X).flops


@pytest.mark.parametrize("transformable", [True, False])
def test_a_step_of_nnx_does_not_go_into_a_file(tmp_path, transformable):
    step, given = nnx_jitted()
    with pytest.raises(TransformError, match="is changed in place") as caught:
        save(tmp_path / "step.mal", step, *given, transformable=transformable)
    assert "nnx.split" in caught.value.hint


def test_a_model_that_is_no_argument_is_refused_with_a_way_out():
    step, given = in_place(Plain)
    for run in (RUNS["optimize"], RUNS["interpret"], RUNS["live"]):
        with pytest.raises(
            TransformError, match=r"is no argument.*\n.*_training\.py:\d+"
        ) as caught:
            run(lambda x: step(*given[:-1], x))(X)
        assert "nnx.merge" in caught.value.hint
    assert_same(state_of(given), state_of(in_place(Plain)[1]))


def test_updates_go_through_transformations_of_nnx_around(plainly):
    for run in (RUNS["optimize"], RUNS["interpret"]):
        around = lambda step, run=run: nnx.jit(run(step))
        assert_same(trained(NNX["noisy"], around), plainly["noisy"])


# ---------------------------------------------------------------- the others, which are pure


class LinenNet(linen.Module):
    @linen.compact
    def __call__(self, x):
        x = linen.BatchNorm(use_running_average=False)(linen.Dense(4)(x))
        return linen.Dense(1)(linen.Dropout(0.4, deterministic=False)(x))


def linen_step():
    net = LinenNet()
    known = net.init({"params": KEY, "dropout": KEY}, X)

    def step(known, x):
        def loss(params):
            given = {**known, "params": params}
            out, new = net.apply(given, x, mutable=["batch_stats"], rngs={"dropout": KEY})
            return jnp.mean((out - 1) ** 2), new

        (value, new), grads = jax.value_and_grad(loss, has_aux=True)(known["params"])
        params = jax.tree.map(lambda p, g: p - 0.1 * g, known["params"], grads)
        return value, {**new, "params": params}

    return jax.jit(step), known


def haiku_step():
    def net(x):
        count = hk.get_state("count", (), init=jnp.zeros)
        hk.set_state("count", count + 1)
        x = hk.dropout(hk.next_rng_key(), 0.4, hk.Linear(4)(x))
        return hk.Linear(1)(hk.BatchNorm(True, True, 0.9)(x, is_training=True))

    made = hk.transform_with_state(net)
    params, state = made.init(KEY, X)

    def step(known, x):
        def loss(params):
            out, new = made.apply(params, known[1], KEY, x)
            return jnp.mean((out - 1) ** 2), new

        (value, new), grads = jax.value_and_grad(loss, has_aux=True)(known[0])
        return value, (jax.tree.map(lambda p, g: p - 0.1 * g, known[0], grads), new)

    return step, (params, state)


def equinox_step():
    known = eqx.nn.MLP(3, 1, 4, 1, key=KEY)

    @eqx.filter_jit
    def step(known, x):
        def loss(model):
            return jnp.mean((jax.vmap(model)(x) - 1) ** 2)

        value, grads = eqx.filter_value_and_grad(loss)(known)
        return value, eqx.apply_updates(known, jax.tree.map(lambda g: -0.1 * g, grads))

    return step, known


class EqxNet(eqx.Module):
    net: eqx.nn.Linear
    norm: eqx.nn.BatchNorm

    def __init__(self):
        self.net = eqx.nn.Linear(3, 1, key=KEY)
        self.norm = eqx.nn.BatchNorm(3, axis_name="batch", mode="batch")

    def __call__(self, x, state):
        x, state = self.norm(x, state)
        return self.net(x), state


def equinox_step_with_state():
    known, rest = eqx.partition(eqx.nn.make_with_state(EqxNet)(), eqx.is_array)

    def step(known, x):
        def loss(model):
            model = eqx.combine(model, rest[0])
            run = jax.vmap(model, axis_name="batch", in_axes=(0, None), out_axes=(0, None))
            out, new = run(x, eqx.combine(known[1], rest[1]))
            return jnp.mean((out - 1) ** 2), eqx.filter(new, eqx.is_array)

        (value, new), grads = jax.value_and_grad(loss, has_aux=True)(known[0])
        return value, (jax.tree.map(lambda p, g: p - 0.1 * g, known[0], grads), new)

    return step, known


PURE = {"linen": linen_step, "haiku": haiku_step, "equinox": equinox_step}
PURE["equinox with state"] = equinox_step_with_state


def curve(make, transform):
    step, known = make()
    run, losses = transform(step), []
    for _ in range(2):
        loss, known = run(known, X)
        losses.append(loss)
    return losses


@pytest.fixture(scope="module")
def curves():
    return {name: curve(make, lambda f: f) for name, make in PURE.items()}


@pytest.mark.parametrize(("library", "name"), pairs(PURE, RUNS))
def test_a_pure_step_trains(library, name, curves):
    assert_same(curve(PURE[library], RUNS[name]), curves[library])


@pytest.mark.parametrize("library", PURE)
def test_a_pure_step_is_looked_at(library):
    step, known = PURE[library]()
    for look in LOOKS.values():
        look(step)(known, X)


# ---------------------------------------------------------------- loops of libraries


class Cell(linen.Module):
    @linen.compact
    def __call__(self, carry, x):
        carry = tag(linen.tanh(linen.Dense(2)(jnp.concatenate([carry, x]))), "carry")
        return carry, carry


class Recurrent(linen.Module):
    @linen.compact
    def __call__(self, x):
        scan = linen.scan(Cell, variable_broadcast="params", split_rngs={"params": False})
        return scan()(jnp.zeros(2), x)[1]


def test_tags_in_a_scan_of_linen_with_broadcast_parameters():
    net = Recurrent()
    params = net.init(KEY, X)
    out, tags = reap(net.apply)(params, X)
    assert_same(tags["carry"], net.apply(params, X))
    assert_same(out, net.apply(params, X))
    assert_same(plant(net.apply)({"carry": 0 * out}, params, X), 0 * out)
    bars = cotangents(lambda p: net.apply(p, X)[-1].sum())(params)[1]
    assert_same(bars["carry"][-1], jnp.ones(2))


def grow(x, kind):
    step = lambda c: tag(c * 1.5, "c", mode="last")
    loop = eqx.internal.while_loop
    return loop(lambda c: c < 10.0, step, x, max_steps=8, kind=kind)


@pytest.mark.parametrize("kind", ["checkpointed", "bounded"])
def test_the_gradient_of_a_reaped_loop_of_equinox(kind):
    pytest.importorskip("equinox.internal")
    of = lambda f: jax.jit(jax.grad(f))(1.0)
    assert_same(of(lambda x: reap(grow)(x, kind)[0]), of(lambda x: grow(x, kind)))
    assert float(plant(grow)({"c": 20.0}, 1.0, kind)) == 20


def test_a_derivative_by_what_is_inside_a_checkpointed_loop_is_refused():
    """Its rules would say that it is zero."""
    with pytest.raises(TransformError, match="knows only derivatives by its arguments"):
        cotangents(grow)(1.0, "checkpointed")
    assert float(cotangents(grow)(1.0, "bounded")[1]["c"]) > 1


def test_a_derivative_by_a_parameter_made_inside_a_checkpointed_loop_is_refused():
    made = lambda: param("w", jax.nn.initializers.ones, ())

    def inside(x):
        step = lambda c: c * (1.5 + made())
        loop = eqx.internal.while_loop
        return loop(lambda c: c < 10.0, step, x, max_steps=8, kind="checkpointed")

    params = init(inside)(KEY, 1.0)
    assert float(apply(inside)(params, 1.0)) == 2.5**3
    with pytest.raises(TransformError, match="knows only derivatives by its arguments"):
        jax.grad(apply(inside))(params, 1.0)


def test_explain_shows_a_step_that_compiles_itself():
    step, known = equinox_step()
    (region,) = explain(step)(known, X).regions
    assert region.equations > 5


def test_explain_shows_a_pure_step_that_merges_a_model():
    graph, state = nnx.split(Plain(nnx.Rngs(0)))

    @jax.jit
    def step(state, x):
        return jax.value_and_grad(lambda state: nnx.merge(graph, state)(x).sum())(state)

    (region,) = explain(step)(state, X).regions
    assert region.equations > 5


def test_explain_of_a_function_that_raises_says_what_broke_before():
    def f(x):
        y = jnp.sin(x).sum()
        print(end="" if float(y) > -9 else "low")
        raise KeyError("no")

    with pytest.raises(KeyError) as caught:
        explain(f)(X)
    (note,) = [n for n in caught.value.__notes__ if "until it was raised" in n]
    assert "break 1" in note and "float(y)" in note
