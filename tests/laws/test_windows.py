"""Random programs with masks that slide: a scan of steps of any width is the program."""

import os

import jax
import pytest

from tests.flags import OTHER
from tests.laws.batches import batches
from tests.laws.window_laws import REFUSED, RIGHT, WIDTHS, try_all

PROGRAMS = int(os.environ.get("MALLEABLE_WINDOW_PROGRAMS", "100"))
FIRST = PROGRAMS * OTHER
QUICK = 4
BATCH = 4

# Leak checks would trace everything anew; tracing and compiling is what takes the time already.
pytestmark = pytest.mark.caches


@pytest.mark.parametrize("first", batches(FIRST, PROGRAMS, BATCH, QUICK))
def test_steps_of_any_width_compute_what_the_program_computes(first):
    found = try_all(range(first, first + BATCH), WIDTHS)
    jax.clear_caches()
    wrong = {of: text for of, text in found.items() if text not in (RIGHT, REFUSED)}
    assert not wrong
    assert first > FIRST or RIGHT in found.values()  # not all are refused
