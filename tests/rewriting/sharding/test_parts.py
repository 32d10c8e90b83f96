"""Programs on the parts of devices: the same numbers and shardings, and fewer collectives."""

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import malleable as mal

MESH = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


def put(x, *spec):
    return jax.device_put(np.asarray(x, np.float32), NamedSharding(MESH, PartitionSpec(*spec)))


def rand(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape)


def check(plain, ours, *args):
    """The same numbers and shardings."""
    a, b = jax.jit(plain)(*args), jax.jit(ours)(*args)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-4)
        assert x.sharding.is_equivalent_to(y.sharding, x.ndim)


def kernel_sum(x, y, b):
    return jnp.exp(-((x[:, None] - y[None]) ** 2).sum(-1)) @ b


def rnn(w, xs):
    states = lax.scan(lambda h, x: (jnp.tanh(h @ w + x),) * 2, jnp.zeros(xs.shape[1:]), xs)[1]
    return jnp.mean(states**2)


@pytest.mark.parametrize(("rows", "columns"), [("data", None), (None, "data"), ("model", None)])
def test_stream_walks_the_own_part_of_each_device(rows, columns):
    args = put(rand(0, 64, 3), rows), put(rand(1, 64, 3), columns), put(rand(2, 64, 2), columns)
    ours = mal.optimize(kernel_sum, mal.stream(threshold=64, block=4))
    check(kernel_sum, ours, *args)
    assert mal.communication(ours)(*args).bytes <= mal.communication(kernel_sum)(*args).bytes


def test_the_gradient_of_a_loop_is_summed_once():
    args = put(rand(0, 16, 16) / 4), put(rand(1, 12, 8, 16), None, "data")
    plain = jax.grad(rnn)
    ours = mal.optimize(plain, mal.defer_collectives)
    check(plain, ours, *args)
    assert mal.communication(plain)(*args).times == 12
    assert mal.communication(ours)(*args).times == 1


def test_without_shardings_deferring_leaves_a_note():
    with mal.listen() as notes:
        mal.optimize(rnn, mal.defer_collectives)(jnp.ones((4, 4)), jnp.ones((3, 2, 4)))
    assert any("collective" in note.what for note in notes)


def test_what_cannot_run_on_parts_is_declined_with_its_line():
    x = put(rand(0, 64, 4), "data")
    with mal.listen() as notes:
        check(*[f := lambda x: jnp.cumsum(x, 0).sum()], mal.optimize(f, mal.stream), x)
    assert any("cumsum" in note.why and "test_parts.py" in note.where for note in notes)


def test_a_rule_of_a_derivative_is_kept_on_parts():
    def loss(w, x):
        return jnp.mean(jax.nn.relu(x @ w) ** 2)

    args = put(rand(0, 8, 8)), put(rand(1, 16, 8), "data")
    check(jax.grad(loss), mal.optimize(jax.grad(loss), mal.microbatch(2)), *args)


# JAX 0.12's leak check takes plain JAX's own gradient of a relu in a shard_map for a leak.
@pytest.mark.caches
@pytest.mark.parametrize("spec", [(), ("data",)])
def test_a_rule_of_a_derivative_is_taken_in_steps_before_the_gradient(spec):
    def loss(w, x):
        return jnp.mean(jax.nn.relu(x @ w) ** 2)

    args = put(rand(0, 8, 8), *spec), put(rand(1, 16, 8), "data")
    ours = jax.grad(mal.optimize(loss, mal.microbatch(2)))
    for x, y in zip(jax.grad(loss)(*args), ours(*args), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6)


def test_a_product_with_a_constant_is_taken_in_steps():
    def loss(w, x):
        return jnp.mean(jnp.tanh(x @ w) @ jnp.ones((8, 2)))

    args = jnp.asarray(rand(0, 8, 8), "float32"), jnp.asarray(rand(1, 16, 8), "float32")
    ours = mal.optimize(jax.grad(loss), mal.microbatch(4))
    np.testing.assert_allclose(jax.grad(loss)(*args), ours(*args), rtol=1e-4, atol=1e-6)


def test_steps_that_may_each_sum_over_the_devices_leave_a_note():
    def loss(w, x):
        return jnp.mean(jnp.tanh(x @ w["a"]) @ w["b"])

    w = {"a": put(rand(0, 8, 8), "data"), "b": put(rand(1, 8, 8), "data")}
    with mal.listen() as notes:
        mal.optimize(jax.grad(loss), mal.microbatch(2))(w, put(rand(2, 16, 8), "data"))
    (found,) = [note for note in notes if "each step may sum" in note.what]
    assert "2 times as much" in found.why and "test_parts.py" in found.where


def test_shardings_of_another_tree_are_refused():
    sharding = NamedSharding(MESH, PartitionSpec("data"))
    with pytest.raises(mal.TransformError, match="no tree of the arguments"):
        mal.optimize(rnn, mal.stream, shardings=(sharding,))(jnp.ones((4, 4)), jnp.ones((3, 2, 4)))
    with pytest.raises(mal.TransformError, match="no sharding"):
        mal.optimize(rnn, mal.stream, shardings=("data", 1))(jnp.ones((4, 4)), jnp.ones((3, 2, 4)))


def test_a_sharding_that_does_not_fit_the_shape_is_refused():
    sharding = NamedSharding(MESH, PartitionSpec("model"))
    with pytest.raises(mal.TransformError, match="does not fit"):
        mal.optimize(jnp.sin, mal.stream, shardings=(sharding,))(jnp.ones(6))


def test_a_batch_in_steps_gives_the_same_gradient():
    def loss(w, x):
        return jnp.mean(jax.nn.logsumexp(jnp.tanh(x @ w), -1) ** 2)

    args = put(rand(0, 8, 8)), put(rand(1, 32, 8), "data")
    plain = jax.value_and_grad(loss)
    ours = mal.optimize(plain, mal.microbatch(4))
    check(plain, ours, *args)
    assert mal.communication(ours)(*args).times <= mal.communication(plain)(*args).times


@pytest.mark.parametrize(
    ("fun", "why"),
    [
        (lambda x: x / x.sum(0), "used in each of its steps"),
        (lambda x: x.max(0), "needs all parts"),
        (lambda x: x[::2], "needs the other parts"),
    ],
)
def test_a_result_that_is_no_sum_over_the_batch_is_refused(fun, why):
    with pytest.raises(mal.TransformError, match=why):
        mal.optimize(fun, mal.microbatch(4))(jnp.ones((16, 4)))


EXPLICIT = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Explicit,))
ROWS = PartitionSpec("data")


def on_automatic_axes(f, *spec):
    return jax.sharding.auto_axes(f, out_sharding=PartitionSpec(*spec))


def of_tokens(w, tokens):
    x = w.at[tokens].get(out_sharding=ROWS)
    return jnp.mean((x @ w) ** 2)


def of_sines(w, tokens):
    x = w.at[tokens].get(out_sharding=ROWS)
    return on_automatic_axes(lambda w, x: jnp.sin(x @ w), "data")(w, x).sum()


@pytest.mark.parametrize("loss", [of_tokens, of_sines])
def test_a_batch_in_steps_goes_through_a_part_on_automatic_axes(loss):
    w = jax.device_put(
        jnp.asarray(rand(0, 16, 16), "float32"), NamedSharding(EXPLICIT, PartitionSpec())
    )
    tokens = jax.device_put(np.arange(16) * 7 % 16, NamedSharding(EXPLICIT, ROWS))
    slope = jax.value_and_grad(loss)
    with jax.set_mesh(EXPLICIT):
        check(slope, mal.optimize(slope, mal.microbatch(2)), w, tokens)


def test_a_sum_on_automatic_axes_that_a_step_would_give_is_refused():
    squared = on_automatic_axes(lambda x: x.sum(0) ** 2)
    x = jax.device_put(jnp.ones((16, 4)), NamedSharding(EXPLICIT, ROWS))
    with jax.set_mesh(EXPLICIT), pytest.raises(mal.TransformError, match="of another kind"):
        mal.stage(mal.optimize(squared, mal.microbatch(2)))(x)


def test_sums_that_a_while_loop_adds_up_are_made_behind_it():
    def total(w, x, n):
        slope = jax.grad(lambda w, i: jnp.tanh(x @ w * i).sum())
        step = lambda c: (c[0] + 1, c[1] + slope(w, c[0]))
        return lax.while_loop(lambda c: c[0] < n, step, (0.0, jnp.zeros_like(w)))[1]

    args = put(rand(0, 4, 4)), put(rand(1, 16, 4), "data"), put(3.0)
    ours = mal.optimize(total, mal.defer_collectives)
    check(total, ours, *args)
    (mapped,) = (e for e in mal.stage(ours)(*args).jaxpr.eqns if e.primitive.name == "shard_map")
    names = [e.primitive.name for e in mapped.params["jaxpr"].eqns]
    assert [name.startswith("psum") for name in names[names.index("while") + 1 :]] == [True]
    assert str(mapped.params["jaxpr"]).count("psum") == 1


@pytest.mark.parametrize("argnums", ["x", 1.5, True, (0, "x")])
def test_arguments_with_the_batch_are_numbers(argnums):
    with pytest.raises(mal.TransformError, match="argnums"):
        mal.microbatch(2, argnums=argnums)


@pytest.mark.parametrize("argnums", [2, -1, (2,)])
def test_arguments_with_the_batch_are_those_of_the_function(argnums):
    def loss(params, how, batch):
        h = jnp.tanh(batch["x"] @ params["a"]) @ params["b"]
        return jnp.mean((h - batch["y"]) ** 2) if how == "square" else 0.0

    params = {"a": rand(0, 4, 4), "b": rand(1, 4, 2)}
    batch = {"x": rand(2, 16, 4), "y": rand(3, 16, 2)}
    plain = lambda params, how, batch: jax.grad(lambda p: loss(p, how, batch))(params)
    ours = mal.optimize(plain, mal.microbatch(4, argnums=argnums))
    want, got = (f(params, "square", batch) for f in (plain, ours))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4), want, got)
    eqns = mal.stage(ours)(params, "square", batch).jaxpr.eqns
    assert [e.params["length"] for e in eqns if e.primitive.name == "scan"] == [4]


@pytest.mark.parametrize("argnums", [3, -4, 0, 1, (0, 2)])
def test_an_argument_without_the_axis_is_refused(argnums):
    loss = lambda params, how, batch: (batch @ params["w"] + params["b"]).sum()
    ours = mal.optimize(loss, mal.microbatch(4, argnums=argnums))
    with pytest.raises(mal.TransformError, match="has no axis 0: there are 3 arguments"):
        ours({"w": rand(0, 4, 4), "b": 1.0}, "fast", rand(1, 8, 4))


@pytest.mark.parametrize(("spec", "groups"), [((), 1), ((), 2), (("data",), 1)])
def test_gradients_of_convolutions_and_pooling_are_taken_in_steps(spec, groups):
    def loss(kernel, x):
        y = lax.conv_general_dilated(x, kernel, (1, 2), "SAME", feature_group_count=groups)
        window = (1, 1, 2, 2)
        y = lax.reduce_window(jnp.tanh(y), -jnp.inf, lax.max, window, window, "VALID")
        return jnp.mean(y**2)

    args = put(rand(0, 6, 4 // groups, 3, 3)), put(rand(1, 16, 4, 8, 8), *spec)
    plain = jax.value_and_grad(loss)
    ours = mal.optimize(plain, mal.microbatch(2))
    check(plain, ours, *args)
    lengths = [
        e.params["length"] for e in mal.stage(ours)(*args).jaxpr.eqns if "length" in e.params
    ]
    assert spec or lengths == [2]
    assert mal.communication(ours)(*args).times <= mal.communication(plain)(*args).times


def test_a_batch_that_does_not_divide_is_refused():
    with pytest.raises(mal.TransformError, match="does not divide"):
        mal.optimize(lambda x: x.sum(0), mal.microbatch(3))(jnp.ones((16, 4)))
    with pytest.raises(mal.TransformError, match="number of steps"):
        mal.microbatch(0)


def test_a_budget_that_cannot_be_met_names_the_least():
    def loss(w, x):
        return jnp.sum(jnp.sin(jnp.sin(jnp.sin(x @ w) @ w) @ w))

    with pytest.raises(mal.TransformError, match=r"the least is \d+ bytes"):
        mal.optimize(loss, mal.remat(budget=1))(jnp.ones((64, 64)), jnp.ones((256, 64)))
    with pytest.raises(mal.TransformError, match="number of bytes"):
        mal.remat(budget=-1)


def test_communication_names_the_line_the_kind_and_the_axis():
    args = put(rand(0, 16, 8), "data"), put(rand(1, 8, 8))
    told = mal.communication(lambda x, w: (x @ w).sum())(*args)
    (row,) = told.rows
    assert (row.kind, row.axis, row.bytes) == ("all-reduce", "data", 4)
    assert "test_parts.py" in row.line
    assert "all-reduce" in str(told)


def test_a_key_and_a_number_of_one_device_are_whole_on_all():
    def noisy(w, x, key, scale):
        step = lambda h, x: (jnp.tanh(h @ w + x * scale + jax.random.normal(key, (16,))),) * 2
        return jnp.mean(lax.scan(step, jnp.zeros(x.shape[1:]), x)[1] ** 2)

    args = put(rand(0, 16, 16) / 4), put(rand(1, 12, 8, 16), None, "data"), jax.random.key(0), 2.0
    plain = jax.grad(noisy)
    ours = mal.optimize(plain, mal.defer_collectives)
    check(plain, ours, *args)
    assert mal.communication(ours)(*args).times <= 2


def test_the_loss_of_labels_is_taken_in_steps():
    def loss(e, labels):
        logits = jax.nn.log_softmax(e[labels] @ e.T)
        return -jnp.take_along_axis(logits, labels[..., None], -1).mean()

    labels = jax.device_put(
        np.arange(64).reshape(16, 4) % 8, NamedSharding(MESH, PartitionSpec("data"))
    )
    args = put(rand(0, 8, 8)), labels
    ours = mal.optimize(jax.grad(loss), mal.microbatch(2))
    check(jax.grad(loss), ours, *args)
    assert mal.communication(ours)(*args).times <= mal.communication(jax.grad(loss))(*args).times


@pytest.mark.parametrize("p", [mal.push_up_reductions, mal.microbatch(2, argnums=0)])
def test_constants_and_layouts_of_an_explicit_mesh_fit_inside(p):
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
    x = jax.device_put(
        rand(0, 8, 16, 32).astype("f"), NamedSharding(mesh, PartitionSpec(None, "data"))
    )
    loss = lambda x: jnp.mean((jnp.sin(x) / 3 * 2) ** 2)
    with jax.set_mesh(mesh):
        check(jax.grad(loss), mal.optimize(jax.grad(loss), p), x)


@pytest.mark.parametrize("spec", [(), ("data",)])
def test_masks_that_a_loop_over_layers_draws_are_taken_in_steps(spec):
    def loss(ws, x, key):
        def layer(x, drawn):
            w, key = drawn
            kept = jax.random.bernoulli(key, 0.7, x.shape)
            return x + jnp.where(kept, jnp.tanh(x @ w), 0), (kept, key)

        x, drawn = lax.scan(layer, x, (ws, jax.random.split(key, 3)))
        return jnp.mean(x**2), drawn

    args = put(rand(0, 3, 8, 8) / 3), put(rand(1, 16, 8), *spec), jax.random.key(3)
    plain = jax.value_and_grad(loss, has_aux=True)
    ours = mal.optimize(plain, mal.microbatch(2, argnums=1))
    (a, (masks, keys)), slope = plain(*args)
    (b, (our_masks, our_keys)), our_slope = ours(*args)
    assert (masks == our_masks).all() and (keys == our_keys).all()
    np.testing.assert_allclose(a, b, rtol=1e-5)
    np.testing.assert_allclose(slope, our_slope, rtol=1e-4, atol=1e-6)
