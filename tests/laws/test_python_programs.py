"""`autograph` of random Python programs computes, changes and raises what plain Python does."""

import functools
import os
import re

import jax
import numpy as np
import pytest

from tests.flags import OTHER
from tests.generators.python.everyday import random_everyday_program
from tests.generators.python.guards import PARENTS
from tests.generators.python.programs import python_args, random_python_program
from tests.generators.python.views import random_view_program
from tests.laws.batches import batches
from tests.laws.python_laws import REFUSED, SAME, is_wrong, try_seeds

PROGRAMS = int(os.environ.get("MALLEABLE_PYTHON_PROGRAMS", "360"))
BATCH, QUICK = 15, 60
VIEWS = 200  # of parts of arrays

# Leak checks would trace everything anew; tracing and compiling is what takes the time already.
pytestmark = pytest.mark.caches


@pytest.mark.parametrize("first", batches(0, PROGRAMS, BATCH, QUICK))
def test_traced_programs_do_what_python_does(first):
    found = try_seeds(range(first, first + BATCH), shrink=True)
    wrong = [text for text in found.values() if is_wrong(text)]
    assert not wrong, "\n\n".join(wrong)
    assert sum(text.startswith(SAME) for text in found.values()) > BATCH / 2, found


@pytest.mark.parametrize("first", batches(VIEWS * OTHER, VIEWS, 40, 120))
def test_parts_of_arrays_are_written_and_read_as_in_numpy(first):
    found = try_seeds(range(first, first + 40), shrink=True, make=random_view_program)
    wrong = [text for text in found.values() if is_wrong(text)]
    assert not wrong, "\n\n".join(wrong)
    assert sum(text.startswith(REFUSED) for text in found.values()) <= 20, found


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")  # uint8 wraps
@pytest.mark.parametrize("first", [20, 40])
def test_statements_of_every_day_do_what_they_do_in_python(first):
    found = try_seeds(range(first, first + 20), shrink=True, make=random_everyday_program)
    wrong = [text for text in found.values() if is_wrong(text)]
    assert not wrong, "\n\n".join(wrong)
    assert sum(text.startswith(REFUSED) for text in found.values()) <= 10, found


def test_a_seed_gives_the_same_program():
    assert random_python_program(7) == random_python_program(7)
    assert len({random_python_program(seed) for seed in range(100)}) == 100


DRAWN = {  # of what is drawn from seed 300 on
    "lists of lists": r"nest\[.+\]\[",
    "objects in lists": r"crew\[.+\]\.",
    "names for what is picked": r"(l\d+|o\d+|v\d+) = (nest|crew|vecs)\[",
    "min and max with key": r"(min|max)\((nest|crew), key=",
    "sorted with key": r"sorted\((nest|crew), key=",
    "dicts of lists": r'bins\["p" if',
    "choices of containers": r"= \(\w+ if .* else (\w+|nest\[.*\]|crew\[.*\])\)",
    "sums that filter": r"sum\(\(?\[?.* for \w+ in .* if ",
    "any and all that filter": r"(any|all)\(\[?.* for \w+ in .* if ",
    "next that filters": r"next\(\(.* for \w+ in .* if ",
    "lists that filter": r"w\d+ = (\[|list\().* for \w+ in .* if ",
    **{f"except {name}": f"except .*{name}" for name in PARENTS},
    "an exception with a name": r"except .* as error",
    "else of a try": r"\n( *)except [^\n]*:(\n\1 [^\n]*)+\n\1else:",
    "finally": r"finally:",
    "assert": r"assert ",
    "del of a name": r"del f\d+",
}


@functools.cache
def sources():
    return [random_python_program(seed).source for seed in range(300, 700)]


@pytest.mark.parametrize("what", DRAWN)
def test_one_program_in_forty_at_least_has(what):
    assert sum(re.search(DRAWN[what], source) is not None for source in sources()) >= 10


@pytest.mark.parametrize("first", range(0, 300, 100))
def test_programs_run_and_their_numbers_are_exact(first):
    for seed in range(first, first + 100):
        for leaf in jax.tree.leaves(random_python_program(seed)(*python_args(seed))):
            eighths = 8 * np.asarray(leaf, float)
            assert np.all(eighths == np.floor(eighths)) and np.all(np.abs(eighths) < 2**40)
