"""`autograph` of random Python programs computes, changes and raises what plain Python does."""

import os

import jax
import pytest

from tests.laws.python_laws import REFUSED, SAME, outcomes
from tests.python_programs import python_args, random_python_program

PROGRAMS = int(os.environ.get("MALLEABLE_PYTHON_PROGRAMS", "300"))
BATCH = 15
LANES = 4  # one batch in four runs under vmap

# Leak checks would trace everything twice; compiling is what takes the time here already.
pytestmark = pytest.mark.caches


@pytest.mark.parametrize("first", range(0, PROGRAMS, BATCH))
def test_traced_programs_do_what_python_does(first):
    seeds = range(first, first + BATCH)
    with jax.enable_x64(True):
        found = law(seeds)
    wrong = {seed: text for seed, text in found.items() if not text.startswith((SAME, REFUSED))}
    assert not wrong, report(wrong)
    refused = [text for text in found.values() if text.startswith(REFUSED)]
    assert len(refused) <= BATCH // 2, "\n".join(refused)


def law(seeds):
    programs = [random_python_program(seed) for seed in seeds]
    inputs = [several_args(seed) for seed in seeds]
    return dict(zip(seeds, outcomes(programs, inputs, lanes=seeds[0] // BATCH % LANES == 0)))
