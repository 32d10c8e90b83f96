"""Whatever takes items of an iterator, and whatever each changes: as in Python, or refused."""

import pytest

from tests.flags import OTHER
from tests.generators.python.iterators import random_iterator_program
from tests.laws.batches import batches
from tests.laws.python_laws import REFUSED, is_wrong, try_seeds

PROGRAMS, BATCH = 200, 20
FIRST = PROGRAMS * OTHER

pytestmark = pytest.mark.caches


@pytest.mark.parametrize("first", batches(FIRST, PROGRAMS, BATCH, PROGRAMS))
def test_items_are_taken_as_python_takes_them(first):
    found = try_seeds(range(first, first + BATCH), shrink=True, make=random_iterator_program)
    wrong = [text for text in found.values() if is_wrong(text)]
    assert not wrong, "\n\n".join(wrong)
    assert sum(text.startswith(REFUSED) for text in found.values()) <= BATCH / 2, found
