"""Passes on a mesh of (2, 4): the same numbers and shardings, and no more bytes to send."""

import os

import jax
import pytest

from tests.flags import OTHER
from tests.laws.batches import batches
from tests.laws.sharding.sharding_laws import MESHES, PASSES, drawn, try_many

PROGRAMS = int(os.environ.get("MALLEABLE_SHARDED_PROGRAMS", "24"))
FIRST = PROGRAMS * OTHER
BATCH = 6

pytestmark = pytest.mark.caches  # tracing and compiling is what takes the time already


@pytest.mark.parametrize("first", batches(FIRST, PROGRAMS, BATCH, PROGRAMS))
def test_passes_keep_numbers_shardings_and_what_is_sent(first):
    _, wrong = try_many(first, BATCH)
    jax.clear_caches()
    assert not wrong, "\n".join(wrong)


def test_programs_are_of_both_kinds_of_axes():
    told = [drawn(seed)[0] for seed in range(100)]
    for kind in MESHES:
        assert sum(text.startswith(kind) for text in told) > 30
    assert len(PASSES) > 12
