"""AutoGraph's 90 behaviours: rows 1 to 90, `test_row_05_...` in one of `test_behaviour_*.py`."""

import pathlib
import re

# where we do something else than the table says, and why
DIFFERENT = {
    5: "a variable that one path leaves undefined is zero there, as SciPy needs it",
    8: "None-or-float is NaN at the boundary where it is None; None-or-integer is refused",
    18: "floats are NaN where a dropped `raise` would have happened: a wrong number looks right",
    23: "as row 5, for a key or an attribute: zero where it is missing",
    32: "as row 5, for a loop that never ran",
    41: "as row 8, for a loop that never ran: falling off the end returns None",
    55: "a lambda may leave a compiled loop: it is carried by what it closes over",
    61: "a long loop in Python leaves a note, not a warning: warnings are for mistakes",
    71: "as row 8, for a path without return",
    79: "a list whose length is known only at run time is its items and their number",
    87: "traced control flow in a generator is converted, unless the block itself yields",
}


def test_every_row_has_a_test():
    files = pathlib.Path(__file__).parent.glob("test_behaviour_*.py")
    rows = {int(n) for f in files for n in re.findall(r"def test_row_(\d+)_", f.read_text())}
    assert rows == set(range(1, 91))
    assert set(DIFFERENT) <= rows
