"""Every pass leaves random programs the results they had: alone, under grad, vmap, jit."""

import os

import jax
import pytest

from tests.flags import OTHER
from tests.generators.arrays.programs import random_array_program
from tests.laws.batches import batches
from tests.laws.rewriting_laws import PASSES, compare, drawn, try_seed

PROGRAMS = int(os.environ.get("MALLEABLE_REWRITING_PROGRAMS", "150"))
QUICK = 30
FIRST = PROGRAMS * OTHER
BATCH = 15

# Leak checks would trace everything anew; tracing and compiling is what takes the time already.
pytestmark = pytest.mark.caches


@pytest.mark.parametrize("first", batches(FIRST, PROGRAMS, BATCH, QUICK))
def test_optimized_programs_compute_what_they_computed(first):
    wrong = []
    for seed in range(first, first + BATCH):
        wrong += try_seed(seed, shrink=not wrong)
    jax.clear_caches()
    assert not wrong, "\n\n".join(f"{names}: {text}" for names, text in wrong)


def test_every_pass_is_tried_on_many_programs():
    tried = [drawn(seed, random_array_program(seed))[1] for seed in range(300)]
    names = [name for variants in tried for names in variants for name in names]
    assert all(names.count(name) > 40 for name in PASSES)


def test_a_difference_is_found():
    ones = jax.numpy.ones(3)
    assert compare(ones, ones, 1e-6) == ""
    assert "not" in compare(ones + 1e-3, ones, 1e-4)
    assert "not" in compare([ones, ones], [ones], 1)
    assert "not" in compare(ones > 0, ones, 1)
