"""What devices send to each other: as XLA made it, and as the program asks for it."""

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import malleable as mal

MESH = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


def put(shape, *spec):
    return jax.device_put(np.ones(shape, np.float32), NamedSharding(MESH, PartitionSpec(*spec)))


def summed(x):
    return jax.shard_map(
        lambda part: lax.psum(part, "data"),
        mesh=MESH,
        in_specs=PartitionSpec("data"),
        out_specs=PartitionSpec(),
    )(x)


def loop(x):
    return lax.scan(lambda c, _: (c + summed(x).sum(), None), jnp.zeros(()), None, length=5)[0]


def test_a_program_of_one_device_sends_nothing():
    told = mal.communication(lambda x: x @ x)(jnp.ones((4, 4)))
    assert (told.rows, told.bytes, told.times, told.saved) == ([], 0, 0, 0)


def test_a_collective_in_a_loop_counts_its_steps():
    def step(x):
        add = lambda c, _: (jnp.sin(c + (x * c).sum()), None)
        return lax.scan(add, jnp.ones(()), None, length=7)[0]

    told = mal.communication(step)(put((8,), "data"))
    assert [(row.kind, row.times, row.bytes) for row in told.rows] == [("all-reduce", 7, 28)]


def test_a_value_used_whole_is_gathered_along_its_axis():
    whole = NamedSharding(MESH, PartitionSpec())
    told = mal.communication(lambda x: lax.with_sharding_constraint(x * 2, whole))(
        put((8, 4), None, "model")
    )
    (row,) = told.rows
    assert (row.kind, row.axis, row.bytes) == ("all-gather", "model", 128)
    assert "used whole" in row.why and "test_communication.py" in row.line


@pytest.mark.parametrize(
    ("send", "kind"),
    [
        (lambda x: lax.all_to_all(x, "model", 0, 0, tiled=True), "all-to-all"),
        (lambda x: lax.ppermute(x, "model", [(0, 1), (1, 0)]), "collective-permute"),
    ],
)
def test_a_collective_of_several_arrays_or_some_devices_is_one_along_its_axis(send, kind):
    spec = PartitionSpec("model")
    mapped = jax.shard_map(send, mesh=MESH, in_specs=spec, out_specs=spec)
    told = mal.communication(mapped)(put((16, 2), "model"))
    assert [(r.kind, r.axis, r.times, r.bytes) for r in told.rows] == [(kind, "model", 1, 32)]


def test_gradients_that_are_summed_together_count_once_for_a_line():
    def loss(ws, x):
        for w in ws:
            x = jnp.tanh(x @ w)
        return jnp.sum(x**2)

    told = mal.communication(jax.grad(loss))([put((4, 4)) for _ in range(5)], put((8, 4), "data"))
    assert [(row.times, row.bytes) for row in told.rows] == [(1, 5 * 64)]


def test_a_derivative_is_marked_as_backward():
    told = mal.communication(jax.grad(lambda w, x: jnp.sum(jnp.sin(x @ w))))(
        put((4, 4)), put((8, 4), "data")
    )
    assert [row.backward for row in told.rows] == [True]
    assert "(backward)" in str(told)


def test_a_pass_shows_what_it_saves():
    def loss(w, xs):
        return lax.scan(lambda h, x: (jnp.tanh(h @ w + x), None), xs[0], xs)[0].sum()

    args = put((4, 4)), put((6, 8, 4), None, "data")
    told = mal.communication(jax.grad(loss), passes=[mal.defer_collectives])(*args)
    assert told.before is not None and told.before.times > told.times
    assert told.saved == told.before.bytes - told.bytes > 0
    assert "before the passes" in str(told)


def test_a_program_compiled_before_for_other_lines_has_its_own():
    here, there = (mal.communication(fun)(put((8,), "data")) for fun in TWINS)
    places = [row.line.partition("  ")[0] for told in (here, there) for row in told.rows]
    assert [int(place.split(":")[1].split()[0]) for place in places] == LINES


TWINS = (
    lambda x: x.sum(),
    lambda x: x.sum(),
)
LINES = [fun.__code__.co_firstlineno for fun in TWINS]


@pytest.mark.parametrize("passes", [mal.cse, "cse", 3])
def test_passes_that_are_no_list_are_refused(passes):
    with pytest.raises(TypeError, match="passes is a list or tuple, not"):
        mal.communication(jnp.sin, passes=passes)


def test_cost_counts_the_bytes_of_collectives_on_a_device():
    assert mal.cost(summed)(jnp.ones((8, 4))).sent == {name(): 4 * 4 * 4}
    assert mal.cost(loop)(jnp.ones((8, 4))).sent == {name(): 5 * 4 * 4 * 4}
    assert f"collective {name()}: 64 B on a device" in str(mal.cost(summed)(jnp.ones((8, 4))))


def name():
    """What JAX calls a sum over the devices here."""
    jaxpr = jax.make_jaxpr(summed)(jnp.ones((8, 4))).jaxpr
    (body,) = (e.params["jaxpr"] for e in jaxpr.eqns if e.primitive.name == "shard_map")
    return next(e.primitive.name for e in body.eqns if e.primitive.name.startswith("psum"))


def test_cost_says_where_the_collectives_of_xla_are():
    told = mal.cost(lambda x: x.sum())(put((8,), "data"))
    assert told.sent == {} and told.partitioned
    assert "communication(" in str(told)


def test_cost_of_whole_arrays_says_nothing_of_collectives():
    told = mal.cost(lambda x: x.sum())(jnp.ones(8))
    assert not told.partitioned and "collective" not in str(told)


@pytest.mark.parametrize("count", [mal.cost, mal.communication])
def test_what_counts_takes_a_function_and_gives_one(count):
    with pytest.raises(TypeError, match=rf"second call: {count.__name__}\(fun"):
        count(abs, 1.0)
    with pytest.raises(TypeError, match="takes a function, not 5"):
        count(5)
