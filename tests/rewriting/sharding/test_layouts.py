"""`layouts(program).layout(var)`: where values are on a mesh, and a pass that reads it."""

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import malleable as mal

MESH = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


def on(*spec):
    return NamedSharding(MESH, PartitionSpec(*spec))


def results(fun, shapes, *specs):
    """The specs of the results of a function, of arguments of these shapes there."""
    program = jax.make_jaxpr(fun)(*(jax.ShapeDtypeStruct(s, "float32") for s in shapes))
    known = mal.layouts(program, [on(*spec) for spec in specs])
    return [known.layout(v) for v in program.jaxpr.outvars]


ROWS, SQUARE = (8, 16), (16, 16)


@pytest.mark.parametrize(
    ("fun", "ws", "want"),
    [
        (lambda x, w: jnp.tanh(x @ w), (None, "model"), ("data", "model")),
        (lambda x, w: (x @ w) @ w.T, (None, "model"), ("data", None)),
        (lambda x, w: x.T, (), (None, "data")),
        (lambda x, w: x.sum(0), (), (None,)),
        (lambda x, w: jax.nn.relu(x), (), ("data", None)),
        (lambda x, w: jax.jit(jnp.sin)(x), (), ("data", None)),
        (lambda x, w: x.reshape(8, 4, 4), (), ("data", None, None)),
        (lambda x, w: lax.with_sharding_constraint(x, on(None, "model")), (), (None, "model")),
        (lambda x, w: lax.scan(lambda c, u: (c, c * u), w[0], x.T[:, :, None])[1], (),
         (None, "data", None)),
        (lambda x, w: lax.fori_loop(0, 3, lambda i, h: h @ w, x), (), ("data", None)),
        (lambda x, w: lax.cond(w[0, 0] > 0, jnp.sin, lambda h: h, x), (), ("data", None)),
        (lambda x, w: jnp.zeros((8, 16)) + x, (), ("data", None)),
    ],
)  # fmt: skip
def test_the_layout_of_a_result_follows_from_those_of_the_arguments(fun, ws, want):
    assert results(fun, (ROWS, SQUARE), ("data",), ws) == [PartitionSpec(*want)]


@pytest.mark.parametrize(
    "fun",
    [
        lambda x, w: jnp.sort(x, 0),
        lambda x, w: x[::-1],
        lambda x, w: x @ x.T,
        lambda x, w: lax.scan(lambda c, u: (c + u, u * 2), w[0], x)[1],
        lambda x, w: jnp.sin(jnp.cumsum(x, 0)),
    ],
)
def test_what_xla_decides_for_itself_is_not_known(fun):
    assert results(fun, (ROWS, SQUARE), ("data",), ()) == [None]


def test_an_argument_of_which_nothing_is_known_leaves_its_results_unknown():
    program = jax.make_jaxpr(lambda x, y: (x + y, x * 2))(np.ones(8), np.ones(8))
    known = mal.layouts(program, [on("data"), None])
    assert list(map(known.layout, program.jaxpr.outvars)) == [None, PartitionSpec("data")]


def test_values_in_the_body_of_a_loop_have_layouts():
    program = jax.make_jaxpr(lambda x: lax.scan(lambda c, u: (c + u, c), x[0], x)[0])(np.ones(ROWS))
    known = mal.layouts(program, [on(None, "data")])
    (loop,) = [eqn for eqn in program.eqns if eqn.primitive.name == "scan"]
    (body,) = [p for name, p in loop.params.items() if name == "jaxpr"]
    assert known.layout(body.eqns[0].outvars[0]) == PartitionSpec("data")


def test_explicit_types_are_layouts():
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
    x = jax.device_put(np.ones(ROWS, "f"), NamedSharding(mesh, PartitionSpec("data", "model")))
    with jax.set_mesh(mesh):
        program = jax.make_jaxpr(lambda x: jnp.sin(x).sum(0))(x)
    known = mal.layouts(program)
    assert known.layout(program.eqns[0].outvars[0]) == PartitionSpec("data", "model")
    assert known.layout(program.jaxpr.outvars[0]) == PartitionSpec("model")


def test_without_a_mesh_nothing_is_known():
    program = jax.make_jaxpr(jnp.sin)(1.0)
    known = mal.layouts(program)
    assert known.mesh is None and known.layout(program.jaxpr.outvars[0]) is None


def test_shardings_are_one_for_each_argument():
    program = jax.make_jaxpr(jnp.sin)(np.ones(8))
    with pytest.raises(mal.TransformError, match="2 shardings are given for 1 arguments"):
        mal.layouts(program, [on(), on()])


def test_what_is_said_of_a_gradient_is_what_xla_does():
    loss = lambda w, x: jnp.mean(jnp.tanh(x @ w) ** 2)
    args = jax.device_put((np.ones(SQUARE), np.ones(ROWS)), (on(None, "model"), on("data")))
    gradient = jax.grad(loss, (0, 1))
    program = jax.make_jaxpr(gradient)(*args)
    known = mal.layouts(program, [x.sharding for x in args])
    for v, out in zip(program.jaxpr.outvars, jax.jit(gradient)(*args), strict=True):
        assert out.sharding.is_equivalent_to(NamedSharding(MESH, known.layout(v)), out.ndim)


def test_what_xla_decides_for_itself_can_be_asked_also_in_the_backward_sweep_of_a_loop():
    layer = lambda h, w: (jnp.tanh(h @ w[0]) @ w[1] + h, None)
    loss = lambda w, x: jnp.mean(lax.scan(layer, x, w)[0] ** 2)
    fsdp = on(None, "data")  # as the batch: products contract what is in parts there
    w = jax.device_put((np.ones((3, 16, 32), "f"), np.ones((3, 32, 16), "f")), (fsdp, fsdp))
    args = (*w, jax.device_put(np.ones((32, 16), "f"), on("data")))
    gradient = jax.grad(lambda a, b, x: loss((a, b), x), (0, 1))
    program, there = jax.make_jaxpr(gradient)(*args), [x.sharding for x in args]
    known, asked = (mal.layouts(program, there, compiled=c) for c in (False, True))
    outs = program.jaxpr.outvars
    assert list(map(known.layout, outs)) == [None, None]
    for v, out in zip(outs, jax.jit(gradient)(*args), strict=True):
        assert out.sharding.is_equivalent_to(NamedSharding(MESH, asked.layout(v)), out.ndim)
    backward = [eqn for eqn in program.eqns if eqn.primitive.name == "scan"][-1]
    made = [v for eqn in backward.params["jaxpr"].eqns for v in eqn.outvars if v.aval.shape]
    assert made and all(asked.layout(v) is not None for v in made)


def test_a_pass_that_reads_layouts_writes_constraints_in_loops_too():
    def pinned(jaxpr):
        program = mal.layouts(jaxpr)
        return program.constrained(
            lambda eqn: program.layout(eqn.outvars[0]) if eqn.primitive is lax.tanh_p else None
        )

    fun = lambda x, w: lax.scan(lambda h, u: (jnp.tanh(h @ w + u),) * 2, x[0], x)[1]
    args = jax.device_put(
        (np.ones((4, 8, 16), "f"), np.ones(SQUARE, "f")), (on(None, "data"), on())
    )
    ours = mal.optimize(fun, pinned)
    assert "sharding_constraint" in str(jax.make_jaxpr(ours)(*args))
    np.testing.assert_allclose(fun(*args), ours(*args), rtol=1e-6)


def test_without_a_mesh_nothing_is_constrained():
    program = jax.make_jaxpr(jnp.sin)(1.0)
    assert mal.layouts(program).constrained(lambda eqn: PartitionSpec()) is program
