"""State crosses shard_map and pmap: one body per device, on eight virtual devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from malleable import Masked, TransformError, interpret, live
from tests.rules import assert_same, count, hand_out, twice

LINE = Mesh(np.array(jax.devices()[:4]), ("i",))
GRID = Mesh(np.array(jax.devices()).reshape(2, 4), ("i", "j"))
SIN = lax.sin_p
X = jnp.arange(8.0)
SPLIT = PartitionSpec("i")


def sharded(f, mesh=LINE, spec=SPLIT, **options):
    return jax.shard_map(f, mesh=mesh, in_specs=spec, out_specs=spec, **options)


def written(mode, program, *args):
    return interpret(program, {SIN: hand_out(mode)})(*args)[2]["x"]


def by_feed(frame, x, **params):
    return frame.read("w")


def adding(frame, x, **params):
    frame.carry = frame.carry + jnp.sum(x)
    return frame.bind(x)


partial = jax.jit(sharded(jnp.sin, GRID, axis_names={"i"}))  # `j` stays JAX's
maps = pytest.mark.parametrize(
    "program",
    [sharded(jnp.sin), sharded(jnp.sin, GRID), sharded(jnp.sin, check_vma=False), partial],
    ids=["one axis", "two axes", "unchecked", "partially manual"],
)


# ------------------------------------------------------------ writes and feeds


@maps
def test_what_differs_is_stacked_over_the_devices_and_fed_back(program):
    values = written("stack", program, X)
    assert values.ravel().tolist() == X.tolist()
    out, *_ = interpret(program, {SIN: by_feed}, feeds={"w": values})(X)
    assert_same(out, X)


@pytest.mark.parametrize(
    ("program", "shape"),
    [(sharded(jnp.sin), (4, 2)), (sharded(jnp.sin, GRID), (2, 4)), (partial, (2, 4))],
)
def test_the_axis_of_what_differs_is_in_front(program, shape):
    assert written("stack", program, X).shape == shape


def test_two_axes_are_one_in_front():
    spec = PartitionSpec("i", "j")
    program, x = sharded(jnp.sin, GRID, spec), jnp.arange(16.0).reshape(4, 4)
    values = written("stack", program, x)
    assert values.shape == (8, 2, 1)
    assert_same(interpret(program, {SIN: by_feed}, feeds={"w": values})(x)[0], x)


def test_what_is_the_same_on_every_device_comes_out_once_and_is_fed_back():
    program = sharded(lambda x: x * jnp.sin(lax.psum(jnp.sum(x), "i")))
    assert written("stack", program, X) == 28.0
    assert_same(interpret(program, {SIN: by_feed}, feeds={"w": 3.0})(X)[0], 3 * X)


def test_steps_of_a_scan_come_after_devices():
    body = lambda x: lax.scan(lambda c, _: (jnp.sin(c), None), x, length=3)[0]
    values = written("stack", sharded(body), X)
    assert values.shape == (4, 3, 2)
    out, *_ = interpret(sharded(body), {SIN: by_feed}, feeds={"w": values})(X)
    assert_same(out, values[:, -1].ravel())


def test_devices_that_part_ways_in_a_cond_write_for_themselves():
    body = lambda x: lax.cond(lax.axis_index("i") > 1, jnp.sin, lambda x: x, x)
    late = jnp.arange(4) > 1
    wanted = Masked(jnp.where(late[:, None], X.reshape(4, 2), 0.0), late)
    assert_same(written("masked", sharded(body), X), wanted)


def test_a_constant_written_by_some_devices_differs():
    def ones(frame, x, **params):
        frame.write("n", 1.0, "masked")
        return frame.bind(x)

    body = lambda x: lax.cond(jnp.sum(x) > 5, jnp.sin, lambda x: x, x)
    late = jnp.arange(4) > 1
    got = interpret(sharded(body), {SIN: ones})(X)[2]["n"]
    assert_same(got, Masked(jnp.where(late, 1.0, 0.0), late))


def test_devices_go_round_a_while_loop_each_as_often_as_it_needs():
    def ones(frame, x, **params):
        frame.write("n", 1.0, "sum")
        return frame.bind(x)

    body = lambda x: lax.while_loop(lambda c: jnp.sum(c) < 20, lambda c: c + 1 + 0 * jnp.sin(c), x)
    got = interpret(sharded(body), {SIN: ones})(X)
    assert_same(got[0], sharded(body)(X))
    assert got[2]["n"].value.tolist() == [10.0, 8.0, 6.0, 4.0]


# ------------------------------------------------------------ carry, shared, keys


@pytest.mark.parametrize("program", [sharded(jnp.sin), sharded(jnp.sin, GRID), partial])
@pytest.mark.parametrize("run", [interpret, live])
def test_a_carry_that_is_the_same_on_every_device_flows_through(program, run):
    out, n, _ = run(program, {SIN: count}, carry=0)(X)
    assert n == 1
    assert_same(out, jnp.sin(X))


@pytest.mark.parametrize("options", [{}, {"check_vma": False}])
def test_a_carry_that_differs_between_devices_is_refused(options):
    with pytest.raises(TransformError, match="the carry differs between the devices") as caught:
        interpret(sharded(jnp.sin, **options), {SIN: adding}, carry=0.0)(X)
    assert "psum" in caught.value.hint


@pytest.mark.parametrize("program", [sharded(jnp.sin, check_vma=False), jax.pmap(jnp.sin)])
def test_a_carry_that_no_rule_touches_crosses_any_map(program):
    assert interpret(program, {SIN: twice}, carry=1)(X)[1] == 1


def test_a_carry_that_is_summed_over_the_devices_flows_through():
    def rule(frame, x, **params):
        frame.carry += lax.psum(jnp.sum(x), "i")
        return frame.bind(x)

    assert interpret(sharded(jnp.sin), {SIN: rule}, carry=0.0)(X)[1] == 28.0


def test_what_is_shared_is_whole_on_every_device():
    rule = lambda frame, x, **_: frame.bind(x) * jnp.sum(frame.read("w"))
    out, *_ = interpret(sharded(jnp.sin), {SIN: rule}, shared={"w": jnp.ones(4)})(X)
    assert np.allclose(out, 4 * jnp.sin(X))


def test_each_device_has_keys_of_its_own():
    rule = lambda frame, x, **_: jax.random.uniform(frame.next_key(), x.shape)
    noise = interpret(sharded(jnp.sin), {SIN: rule}, key=jax.random.key(0))
    drawn = noise(X)[0]
    assert len(set(drawn.tolist())) == 8
    assert_same(jax.jit(noise)(X)[0], drawn)


# ------------------------------------------------------------ derivatives, jit, vmap, nesting


@pytest.mark.parametrize("options", [{}, {"check_vma": False}])
def test_the_gradient_goes_through(options):
    total = lambda f: lambda w: jnp.sum(f(w))
    program = lambda w: sharded(lambda x: jnp.sin(x * w), **options)(X)
    counted = lambda w: interpret(program, {SIN: hand_out("stack")})(w)[0]
    assert_same(jax.jit(jax.grad(total(counted)))(2.0), jax.grad(total(program))(2.0))


def test_what_is_written_has_a_gradient():
    program = lambda w: sharded(lambda x: jnp.sin(x * w))(X)
    square = lambda w: jnp.sum(written("stack", program, w) ** 2)
    assert np.allclose(jax.grad(square)(2.0), 4 * jnp.sum(X**2))


def test_a_vmap_of_a_shard_map_has_its_lanes_after_the_devices():
    values = written("stack", jax.vmap(sharded(jnp.sin)), jnp.ones((3, 8)))
    assert values.shape == (4, 3, 2)


def test_a_shard_map_in_a_shard_map_stacks_both():
    inner = lambda x: jax.shard_map(
        jnp.sin, in_specs=PartitionSpec("j"), out_specs=PartitionSpec("j"), axis_names={"j"}
    )(x)
    program = jax.jit(sharded(inner, GRID, axis_names={"i"}))
    values = written("stack", program, X)
    assert values.shape == (2, 4, 1)
    assert_same(interpret(program, {SIN: twice})(X)[0], 2 * jnp.sin(X))


def test_a_pmap_is_crossed_too():
    program = jax.pmap(lambda x: jnp.sin(x) + lax.psum(x, "i"), axis_name="i")
    assert_same(interpret(program, {SIN: twice})(X)[0], 2 * jnp.sin(X) + 28.0)
    values = written("stack", program, X)
    assert values.shape == (8,)
    fed, *_ = interpret(program, {SIN: by_feed}, feeds={"w": values})(X)
    assert_same(fed, X + 28.0)


# ------------------------------------------------------------ explicit meshes


def test_feeds_are_laid_out_as_an_explicit_mesh_asks():
    mesh = jax.make_mesh((8,), ("i",), axis_types=(jax.sharding.AxisType.Explicit,))
    with jax.set_mesh(mesh):
        program, x = sharded(jnp.sin, mesh), jax.device_put(X, SPLIT)
        values = written("stack", program, x)
        for fed in (values, jax.device_put(values, PartitionSpec()), np.asarray(values)):
            out, *_ = jax.jit(interpret(program, {SIN: by_feed}, feeds={"w": fed}))(x)
            assert_same(out, x)
            assert out.sharding.spec == SPLIT
