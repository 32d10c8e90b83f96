"""`autograph` of random Python programs computes, changes and raises what plain Python does."""

import os

import pytest

from tests.laws.python_laws import SAME, is_wrong, try_seeds

PROGRAMS = int(os.environ.get("MALLEABLE_PYTHON_PROGRAMS", "300"))
BATCH = 15

# Leak checks would trace everything anew; tracing and compiling is what takes the time already.
pytestmark = pytest.mark.caches


@pytest.mark.parametrize("first", range(0, PROGRAMS, BATCH))
def test_traced_programs_do_what_python_does(first):
    found = try_seeds(range(first, first + BATCH), shrink=True)
    wrong = [text for text in found.values() if is_wrong(text)]
    assert not wrong, "\n\n".join(wrong)
    assert list(found.values()).count(SAME) > BATCH / 2, found
