"""Tags are read out and replaced, whatever JAX does around them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from malleable import (
    Masked,
    harvest,
    next_key,
    plant,
    reap,
    scope,
    seed,
    stage,
    tag,
)
from tests.rules import assert_same, prims_deep

XS = jnp.array([0.1, 0.2, 0.3])


def step(c, t):
    return tag(jnp.sin(c), "y") * t, None


def scan(x):
    return lax.scan(step, x, jnp.arange(1.0, 4.0))[0]


def choose(x):
    return lax.cond(x > 0, lambda x: tag(3 * x, "y", mode="masked"), lambda x: x, x)


def until(x):
    return lax.while_loop(lambda c: c < 5, lambda c: tag(c + 1, "y", mode="last"), x)


PROGRAMS = {
    "plain": lambda x: tag(jnp.sin(x), "y") ** 2,
    "unused": lambda x: (tag(jnp.sin(x), "y"), x)[1],
    "jit": jax.jit(lambda x: tag(jnp.sin(x), "y") ** 2),
    "checkpoint": jax.checkpoint(lambda x: jnp.sin(tag(jnp.sin(x), "y"))),
    "scan": scan,
    "invariant": lambda x: lax.scan(lambda c, _: (c + x * tag(2 * x, "y"), None), 0.0, length=3)[0],
    "branches": lambda x: lax.cond(x > 0, lambda: tag(jnp.sin(x), "y"), lambda: tag(-x, "y")),
    "masked": choose,
    "pytree": lambda x: tag({"a": x, "b": (2 * x, None)}, "y")["b"][0] ** 2,
}
programs = pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)


# ------------------------------------------------------------ laws


@programs
def test_reaping_keeps_the_value(program):
    assert_same(reap(program)(0.5)[0], jnp.asarray(program(0.5)))


@programs
def test_planting_what_was_reaped_changes_nothing(program):
    out, tags = reap(program)(0.5)
    assert_same(plant(program)(tags, 0.5), out)


@programs
def test_reaping_under_jit_gives_the_same(program):
    assert_same(jax.jit(reap(program))(0.5), reap(program)(0.5))


@pytest.mark.parametrize("name", [n for n in PROGRAMS if n not in ("branches", "masked")])
def test_a_reaped_vmap_is_a_vmap_of_a_reap(name):
    xs = jnp.array([0.5, 0.7])
    out, tags = reap(jax.vmap(PROGRAMS[name]))(xs)
    axis = 1 if name in ("scan", "invariant") else 0  # steps come before lanes
    alone = jax.vmap(reap(PROGRAMS[name]), out_axes=(0, axis))(xs)
    assert_same((out, tags), alone)


@pytest.mark.caches  # JAX's leak check takes any effect in a differentiated scan for a leak
@programs
def test_tags_survive_a_gradient(program):
    slope, tags = reap(jax.grad(program))(0.5)
    assert_same((slope, tags), (jax.grad(program)(0.5), reap(program)(0.5)[1]))
    assert_same(plant(jax.grad(program))(tags, 0.5), slope)


@programs
def test_a_gradient_goes_through_a_reap(program):
    assert_same(jax.grad(lambda x: reap(program)(x)[0])(0.5), jax.grad(program)(0.5))


@pytest.mark.parametrize("around", [jax.jacfwd, jax.hessian])
def test_tags_survive_forward_derivatives(around):
    assert reap(around(PROGRAMS["plain"]))(0.5)[1] == {"y": jnp.sin(0.5)}


def test_a_reaped_value_has_a_gradient():
    assert jax.grad(lambda x: reap(PROGRAMS["plain"])(x)[1]["y"])(0.5) == jnp.cos(0.5)
    total = lambda x: jnp.sum(reap(scan)(x)[1]["y"])
    numeric = (total(0.51) - total(0.49)) / 0.02
    assert np.allclose(jax.grad(total)(0.5), numeric, rtol=1e-2)


def test_a_planted_value_has_a_gradient_and_cuts_that_of_what_it_replaces():
    fun = lambda v, x: plant(lambda x: tag(2 * x, "y") ** 2 + x)({"y": v}, x)
    assert jax.grad(fun, (0, 1))(3.0, 1.0) == (6.0, 1.0)


def test_without_a_transformation_tags_are_not_in_the_program():
    program = jax.jit(lambda x: tag(jnp.sin(x), "y") + 1)
    assert prims_deep(stage(program)(0.5).jaxpr) == [("jit", [("sin",), ("add",)])]


# ------------------------------------------------------------ values


@pytest.mark.parametrize("value", [(), None, {}, {"a": None}])
def test_a_pytree_without_arrays_is_a_value(value):
    program = lambda x: (tag(value, "y"), x)
    out, tags = reap(program)(1.0)
    assert (out, tags) == ((value, 1.0), {"y": value})
    assert plant(program)(tags, 1.0) == out


@pytest.mark.parametrize("value", [1, True, 1j, np.arange(3), jnp.bfloat16(1)])
def test_a_value_keeps_its_type(value):
    _, tags = reap(lambda: tag(value, "y"))()
    assert_same(tags, {"y": jnp.asarray(value)})


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.int8, jnp.complex64, jnp.bool_, jnp.uint32])
def test_a_value_keeps_its_type_through_control_flow(dtype):
    def program(x):
        x = lax.scan(lambda c, t: (tag(c, "scan"), tag(t, "row")), x[0], x)[1]
        loop = lambda s: (s[0] + 1, tag(s[1], "while", mode="last"))
        x = lax.while_loop(lambda s: s[0] < 2, loop, (0, x))[1]
        return lax.cond(True, lambda x: tag(x, "cond", mode="masked"), lambda x: x, x)

    x = jnp.ones(3, dtype)
    out, tags = jax.jit(reap(program))(x)
    values = [tags["scan"], tags["row"], tags["while"].value, tags["cond"].value]
    assert {v.dtype for v in (out, *values)} == {x.dtype}


def test_a_key_is_a_value():
    program = lambda key: tag(key, "y")
    _, tags = reap(program)(jax.random.key(1))
    assert plant(program)(tags, jax.random.key(0)) == jax.random.key(1)


def test_a_key_in_a_loop_is_a_value():
    program = lambda k: lax.scan(
        lambda k, _: (tag(jax.random.split(k)[0], "y"), None), k, length=2
    )[0]
    out, tags = reap(program)(jax.random.key(0))
    assert plant(program)(tags, jax.random.key(0)) == out


@pytest.mark.parametrize("given", [5, True, jnp.bfloat16(5)])
def test_a_planted_number_takes_the_type_it_finds(given):
    out = plant(lambda x: tag(x, "y") + 1)({"y": given}, 1.0)
    assert out.dtype == jnp.float32


def test_what_was_not_written_is_not_planted():
    program = lambda x: tag(2 * x, "y") + 1
    assert plant(program)({"y": Masked(9.0, False)}, 1.0) == 3.0
    assert plant(program)({"y": Masked(9.0, True)}, 1.0) == 10.0
    mask = jnp.array([True, False])
    assert plant(program)({"y": Masked(jnp.full(2, 9.0), mask)}, jnp.ones(2)).tolist() == [
        10.0,
        3.0,
    ]


def of_loop_in_branch(x, runs):
    step = lambda i, c: tag(jnp.tanh(c + c), "y", mode="masked")
    return lax.cond(runs, lambda x: lax.fori_loop(0, 3, step, x), lambda x: x, x)


def of_loops_and_branches(x, runs):
    outer = lambda c, t: (of_loop_in_branch(c + t, t > 0), t)
    return lax.cond(runs, lambda x: lax.scan(outer, x, jnp.arange(2.0))[0], lambda x: x, x)


@pytest.mark.parametrize("program", [of_loop_in_branch, of_loops_and_branches])
@pytest.mark.parametrize("runs", [True, False])
def test_what_a_branch_around_a_loop_wrote_is_planted_in_each_step(program, runs):
    out, tags = reap(program)(XS, runs)
    assert plant(program)(tags, XS, runs).tolist() == out.tolist()
    value, written = tags["y"]
    planted = plant(program)({"y": Masked(value + 1, written)}, XS, runs)
    assert (planted.tolist() == out.tolist()) is not runs


def test_what_a_branch_around_devices_wrote_is_planted_on_each():
    mesh = jax.make_mesh((4,), ("i",), axis_types=(AxisType.Auto,))
    split = jax.shard_map(
        lambda x: tag(2 * x, "y", mode="masked"), mesh=mesh, in_specs=P("i"), out_specs=P("i")
    )
    program = lambda x, runs: lax.cond(runs, split, lambda x: x, x)
    for runs in (True, False):
        out, tags = reap(program)(jnp.arange(8.0), runs)
        assert plant(program)(tags, jnp.arange(8.0), runs).tolist() == out.tolist()


def test_a_value_the_lanes_of_a_vmap_share_comes_back_once():
    program = jax.vmap(lambda x: tag(jnp.float32(2.0), "y") * x)
    assert reap(program)(XS)[1] == {"y": 2.0}
    assert_same(plant(program)({"y": 10.0}, XS), 10 * XS)


@pytest.mark.parametrize("axes", [{"in_axes": 1}, {"in_axes": -1, "out_axes": 1}])
def test_the_lane_axis_of_a_vmap_comes_to_the_front(axes):
    _, tags = reap(jax.vmap(lambda x: tag(x, "y"), **axes))(jnp.ones((3, 4)))
    assert tags["y"].shape == (4, 3)


# ------------------------------------------------------------ names, kinds, several transformations


def test_the_same_name_in_two_scopes_is_two_tags():
    layer = lambda x: tag(2 * x, "h")
    net = lambda x: scope("b")(layer)(scope("a")(layer)(x))
    assert reap(net)(1.0)[1] == {"a": {"h": 2.0}, "b": {"h": 4.0}}
    assert plant(net)({"a": {"h": 5.0}}, 1.0) == 10.0


def test_only_some_names_are_taken():
    program = lambda x: tag(tag(x, "a") + 1, "ab")
    assert reap(program, only=["a"])(1.0)[1] == {"a": 1.0}
    assert reap(program, only="ab")(1.0)[1] == {"ab": 2.0}


def test_what_one_reap_leaves_the_next_one_takes():
    program = lambda x: tag(tag(x, "a") + 1, "b")
    inner = lambda x: reap(program, only="a")(x)
    assert reap(inner)(1.0) == ((2.0, {"a": 1.0}), {"b": 2.0})


def test_a_reap_hides_its_tags_from_those_around_it():
    program = lambda x: tag(x, "a")
    assert reap(reap(program))(1.0) == ((1.0, {"a": 1.0}), {})


def test_a_plant_leaves_other_tags_to_a_reap_around_it():
    program = lambda x: tag(tag(x, "a") + 1, "b")
    assert reap(lambda x: plant(program)({"a": 10.0}, x))(1.0) == (11.0, {"b": 11.0})


def test_harvest_plants_and_reaps_at_once():
    program = lambda x: tag(tag(x, "a") + 1, "b")
    assert harvest(program)({"a": 10.0}, 1.0) == (11.0, {"b": 11.0})
    assert harvest(program)({}, 1.0) == reap(program)(1.0)


def test_kinds_do_not_see_each_other():
    program = lambda x: tag(tag(x, "a", kind="one") + 1, "a", kind="two")
    assert reap(program)(1.0)[1] == {}
    assert reap(program, kind="one")(1.0)[1] == {"a": 1.0}
    both = reap(reap(program, kind="one"), kind="two")
    assert both(1.0) == ((2.0, {"a": 1.0}), {"a": 2.0})
    assert plant(program, kind="two")({"a": 7.0}, 1.0) == 7.0


def test_tags_and_keys_go_through_each_other():
    program = lambda x: tag(x + jax.random.uniform(next_key()), "y")
    key = jax.random.key(0)
    assert_same(reap(seed(program))(key, 0.5), seed(reap(program))(key, 0.5))


@pytest.mark.caches  # a jitted function that was traced before
def test_a_jitted_function_gives_its_tags_each_time():
    jitted = jax.jit(lambda x: tag(jnp.sin(x), "y"))
    for x in (0.5, 0.6):
        assert jitted(x) == jnp.sin(x)
        assert reap(jitted)(x)[1]["y"] == jnp.sin(x)
        assert plant(jitted)({"y": x}, x) == x
