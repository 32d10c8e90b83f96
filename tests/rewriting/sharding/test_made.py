"""Random numbers, counts and constants are made on each device for its own part."""

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import malleable as mal
from malleable.programs.equations import every
from malleable.programs.evaluate import evaluate
from malleable.rewriting.sharding.local import localized
from malleable.rewriting.sharding.placement import Placement

MESHES = {
    kind.name: jax.make_mesh((2, 4), ("a", "b"), axis_types=(kind, kind))
    for kind in (AxisType.Auto, AxisType.Explicit)
}
KEY = jax.random.key(3)
DRAWS = {
    "normal": lambda x: x * jax.random.normal(KEY, x.shape),
    "bfloat16": lambda x: x * jax.random.uniform(KEY, x.shape, jnp.bfloat16).astype(x.dtype),
    "bernoulli": lambda x: jnp.where(jax.random.bernoulli(KEY, 0.3, x.shape), x / 0.3, 0),
    "randint": lambda x: x + jax.random.randint(KEY, x.shape, 0, 1000),
    "a key for each row": lambda x: (
        x * jax.vmap(lambda k: jax.random.normal(k, x.shape[1:]))(jax.random.split(KEY, len(x)))
    ),
    "turned": lambda x: x + jax.random.normal(KEY, x.shape[::-1]).T.reshape(x.shape),
    "counted": lambda x: x * (jnp.arange(x.size).reshape(x.shape) % 7),
}


def largest(program, spec, mesh):
    """The elements of the largest array of the program of a device."""
    x = jax.device_put(jnp.ones((64, 48)), NamedSharding(mesh, spec))
    local = localized(mal.stage(program)(x).jaxpr, Placement.of([x]))
    assert local is not None
    (body,) = [e.params["jaxpr"] for e in local.eqns if e.primitive.name == "shard_map"]
    return max(v.aval.size for eqn in every(body.eqns) for v in eqn.outvars)


@pytest.mark.in_turns
@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize("spec", [("a",), (None, ("a", "b")), ("b", "a")], ids=str)
def test_each_device_makes_the_numbers_of_its_part(name, spec):
    mesh, spec = MESHES["Auto"], PartitionSpec(*spec)
    x = jax.device_put(jnp.ones((64, 48)), NamedSharding(mesh, spec))
    program = DRAWS[name]
    local = localized(mal.stage(program)(x).jaxpr, Placement.of([x]))
    assert local is not None
    (got,) = jax.jit(lambda x: evaluate(local, [x]))(x)
    np.testing.assert_array_equal(got, jax.jit(program)(x))


@pytest.mark.parametrize("name", ["normal", "bernoulli", "a key for each row"])
def test_no_device_draws_for_others(name):
    assert largest(DRAWS[name], PartitionSpec("b", "a"), MESHES["Auto"]) <= 64 * 48 // 8


def test_numbers_that_somebody_needs_as_a_whole_are_drawn_as_a_whole():
    both = lambda x: (x * (z := jax.random.normal(KEY, x.shape)), jnp.sort(z, 0))
    assert largest(both, PartitionSpec("a"), MESHES["Auto"]) == 64 * 48


@pytest.mark.parametrize("kind", MESHES)
def test_paths_of_a_monte_carlo_simulation_are_pushed_on_each_device(kind):
    def price(s):
        def step(s, _):
            s = s * jnp.exp(0.2 * jax.random.normal(mal.next_key(), s.shape))
            return s, s

        return lax.scan(step, s, length=16)[1].max(0)

    with jax.set_mesh(MESHES[kind]):
        s = jax.device_put(jnp.ones(1 << 14), NamedSharding(MESHES[kind], PartitionSpec("b")))
        plain = lambda key, s: mal.seed(price)(key, s)
        ours = mal.optimize(plain, mal.push_up_reductions(threshold=0))
        a, b = (jax.jit(f).lower(KEY, s).compile() for f in (plain, ours))
        np.testing.assert_allclose(a(KEY, s), b(KEY, s), rtol=1e-6)
        used = [c.memory_analysis().temp_size_in_bytes for c in (a, b)]
        assert used[1] < used[0] / 2
