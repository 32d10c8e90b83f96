"""Every law on random programs: 14 each, or 60, of which some run eagerly, the rest compiled."""

import os
import random

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from tests.flags import OTHER
from tests.generators.programs.programs import inputs, programs
from tests.laws.laws import LAWS, check

TRIES = int(os.environ.get("MALLEABLE_LAWS", "60"))
QUICK = min(TRIES, 14)
SEED = OTHER
if "MALLEABLE_NEW_PROGRAMS" in os.environ:
    SEED = random.getrandbits(32)


@pytest.mark.caches  # leak checks make JAX forget what it compiled: eager programs take for ever
@pytest.mark.parametrize("tries", [QUICK, pytest.param(TRIES, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", LAWS)
def test_law(name, tries):
    law, options = LAWS[name]

    @seed(SEED)
    @settings(max_examples=tries)
    @given(programs(depth=2, **options), inputs(), st.sampled_from([True] * 15 + [False]))
    def holds(program, args, compiled):
        check(law, program, args, compiled=compiled)

    holds()
