"""Whatever writes to parts of arrays, and whatever reads them then: as in NumPy, or refused."""

import pytest

from tests.generators.python.views import random_view_program
from tests.laws.python_laws import REFUSED, is_wrong, try_seeds

BATCH = 20

pytestmark = pytest.mark.caches


@pytest.mark.parametrize("first", range(0, 200, BATCH))
def test_parts_of_arrays_are_written_and_read_as_in_numpy(first):
    found = try_seeds(range(first, first + BATCH), shrink=True, make=random_view_program)
    wrong = [text for text in found.values() if is_wrong(text)]
    assert not wrong, "\n\n".join(wrong)
    assert sum(text.startswith(REFUSED) for text in found.values()) <= BATCH / 2, found
