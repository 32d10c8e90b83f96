"""The random array programs are what the laws of rewriting take them for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.generators.arrays.programs import array_args, needed, parts, random_array_program

SEEDS = range(200)

# Plain JAX has no leaks to find, and looking for them would compile each operation anew.
pytestmark = pytest.mark.caches

CONSTRUCTS = {
    "unary", "binary", "integers", "test", "cast", "view", "window", "difference", "joined",
    "prefix", "sum", "mean", "max", "min", "prod", "any", "all", "logsumexp", "var", "std",
    "moments", "norm", "centred", "arg", "order", "softmax", "contraction", "labelled", "indexed",
    "scan", "vmapped_scan", "map", "fori", "nested_scan", "kernel", "kernel_sum", "masked",
    "nearest", "log_sums", "attention", "forces", "distances", "chain", "matrices", "duplicate",
    "wrapped", "blocks", "escape", "lagged", "row_sums", "row_statistics",
}  # fmt: skip


def test_a_seed_gives_the_same_program():
    for seed in SEEDS:
        assert str(random_array_program(seed)) == str(random_array_program(seed))
    assert len({str(random_array_program(seed)) for seed in SEEDS}) == len(SEEDS)


def test_every_construct_appears():
    found = set().union(*(random_array_program(seed).constructs for seed in range(1500)))
    assert found == CONSTRUCTS


def test_every_program_and_every_part_of_it_has_a_type():
    for seed in SEEDS[:60]:
        program = random_array_program(seed)
        args = array_args(program, seed)
        out = jax.eval_shape(program, *args)
        assert all(leaf.size <= 2000 for leaf in out)
        for part in list(parts(program))[:3]:
            jax.eval_shape(part, *array_args(part, seed))


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_values_are_finite_and_small(first):
    seeds = range(first, first + 10)
    programs = [random_array_program(seed) for seed in seeds]
    args = [array_args(program, seed) for program, seed in zip(programs, seeds)]
    outs = jax.jit(lambda args: [program(*a) for program, a in zip(programs, args)])(args)
    for leaf in jax.tree.leaves(outs):
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            assert np.abs(np.asarray(leaf, float)).max(initial=0) < 1e5


def test_a_part_keeps_only_what_it_needs():
    program = next(p for p in map(random_array_program, SEEDS) if len(p.steps) > 6)
    part = min(parts(program), key=lambda part: len(part.steps))
    assert part == needed(part) and len(part.steps) < len(program.steps)
