"""The random programs are what the laws take them for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from tests.generators.programs.constructs import CONSTRUCTS
from tests.generators.programs.programs import build, example_args, inputs, programs, random_program

SEEDS = range(300)
GROUPS = [range(start, start + 10) for start in range(0, 40, 10)]  # one compilation each

# Plain JAX has no leaks to find, and looking for them would compile each operation anew.
pytestmark = pytest.mark.caches


def assert_close(left, right):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), left, right)


def loss(program):
    return lambda *args: sum(out.sum() for out in program(*args))


def test_a_seed_gives_the_same_program():
    for seed in SEEDS:
        assert random_program(seed) == random_program(seed)
        assert hash(random_program(seed)) == hash(random_program(seed))
    assert len({random_program(seed) for seed in SEEDS}) > 0.9 * len(SEEDS)


def test_every_construct_appears():
    found = set().union(*(random_program(seed, keys=True).constructs for seed in SEEDS))
    assert found - {"unpack"} == CONSTRUCTS


def test_constructs_nest_to_the_depth_asked_for():
    def depth(function):
        inner = [f for step in function.steps for f in step.functions]
        return 1 + max(map(depth, inner)) if inner else 0

    for limit in (0, 1, 3):
        deepest = max(depth(random_program(seed, depth=limit).main) for seed in SEEDS)
        assert deepest == limit


def test_options_leave_out_what_they_say():
    for seed in SEEDS:
        assert not random_program(seed, tags=False).tags
        assert random_program(seed).tags
        assert "noise" not in random_program(seed).constructs
        assert "noise" in random_program(seed, keys=True).constructs
        assert not {"while", "fori_dynamic"} & random_program(seed, differentiable=True).constructs


@given(programs(), inputs())
@settings(max_examples=10)
def test_what_is_printed_is_what_runs(program, args):
    with jax.disable_jit():
        scope = {"jax": jax, "jnp": jnp, "lax": jax.lax, "tag": lambda value, name, mode: value}
        exec(str(program), scope)
        assert_close(scope["program"](*args), program(*args))


def test_tag_is_called_at_every_site_and_key_at_every_noise():
    for seed in SEEDS[:40]:
        program = random_program(seed, keys=True, differentiable=True)
        seen, drawn = [], []

        def tag(value, name, mode, seen=seen):
            seen.append((name, mode))
            return value

        def key(drawn=drawn):
            drawn.append(1)
            return jax.random.key(0)

        jax.eval_shape(build(program, tag, key), *example_args(seed))
        assert set(seen) == set(program.tags)
        assert drawn


@pytest.mark.in_turns
@pytest.mark.parametrize("seeds", GROUPS, ids=str)
def test_jit_gives_the_finite_values_that_python_gives(seeds):
    runs = [(random_program(seed), example_args(seed)) for seed in seeds]
    compiled = jax.jit(lambda args: [program(*a) for (program, _), a in zip(runs, args)])
    with jax.disable_jit():  # no compilation: several times faster
        plain = [program(*args) for program, args in runs]
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(plain))
    assert_close(compiled([args for _, args in runs]), plain)


@pytest.mark.in_turns
@pytest.mark.parametrize("seeds", GROUPS, ids=str)
def test_gradients_are_finite_and_not_all_zero(seeds):
    for seed in seeds:
        program = random_program(seed, differentiable=True)
        with jax.disable_jit():
            grads = jax.grad(loss(program), argnums=(0, 1, 2))(*example_args(seed))
        assert all(jnp.isfinite(grad).all() for grad in grads)
        assert any(jnp.any(grad != 0) for grad in grads)
