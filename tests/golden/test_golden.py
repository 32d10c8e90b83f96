"""What the library decides and says about many programs is what is on record: see README.md."""

import pathlib
import subprocess
import sys

import pytest

from tests.golden.records import FOLDER, SIGNS, difference, expected, merged, other, selected

ROOT = pathlib.Path(__file__).parents[2]
SECTIONS = sorted(path.stem for path in FOLDER.glob("*.txt"))
PROCESSES = [
    ["rewriting", "rewriting_laws"],
    ["selective", "selective_laws"],
    ["errors", "frontend", "frontend_laws", "frontend_small", "show"],
]


@pytest.mark.parametrize("sections", PROCESSES, ids=" ".join)
def test_what_is_decided_and_said_is_what_is_on_record(sections):
    """In a process of its own: what other tests did to JAX and to our caches is none of it."""
    command = [sys.executable, "-m", "tests.golden", *sections]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if run.returncode:
        accept = "if it is meant: python -m tests.golden --write; see tests/golden/README.md"
        pytest.fail(f"{run.stdout}{run.stderr[-4000:]}\n{accept}", pytrace=False)


def test_every_record_is_compared():
    assert sorted(name for some in PROCESSES for name in some) == SECTIONS


@pytest.mark.parametrize("section", SECTIONS)
@pytest.mark.parametrize("sign", SIGNS)
def test_a_record_is_taken_apart_and_put_together_again(section, sign):
    mine, theirs = expected(section, sign), expected(section, other(sign))
    both = merged(mine, theirs, sign)
    assert selected(both, sign) == mine and selected(both, other(sign)) == theirs


def test_records_name_no_place_of_ours():
    text = "".join(path.read_text() for path in FOLDER.glob("*.txt"))
    assert not [word for word in ("/src/", "0x7", "malleable/", str(ROOT)) if word in text]
    assert len(text) < 400_000


def test_a_difference_is_shown_under_the_title_of_its_program():
    lines = list(expected("rewriting_laws"))
    lines[1] += ", more"
    shown = difference("rewriting_laws", lines).split("\n")
    assert shown[0] == lines[0] and f"+{lines[1]}" in shown
