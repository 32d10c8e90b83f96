"""A change is tested by the tests of its folders."""

import itertools

import pytest

from tests.house.changed import EVERYTHING, FILES, FOLDERS, arguments, exists, touched_by


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("src/malleable/rewriting/streaming/region/grow.py", "tests/rewriting/streaming/region"),
        ("src/malleable/rewriting/check.py", "tests/rewriting"),
        ("src/malleable/notes.py", "tests/test_notes.py"),
        ("tests/core/test_live.py", "tests/core/test_live.py"),
        ("tests/laws/python_laws.py", "tests/laws/test_python_programs.py"),
        ("tests/frontend/place_programs.py", "tests/frontend/test_places.py"),
        ("benchmarks/ratios.py", "tests/test_smoke.py"),
        ("docs/decisions/001-core.md", "tests/test_docs.py"),
    ],
)
def test_a_file_has_its_tests(path, wanted):
    assert wanted in touched_by(path)


def test_what_all_tests_use_runs_all():
    assert {tuple(touched_by(path)) for path in EVERYTHING} == {("tests", "src")}


def test_nothing_runs_twice():
    paths = ["src/malleable/core/frame.py", "tests/core/test_frame.py", "tests/conftest.py"]
    assert arguments(paths) == ["tests", "src"]
    assert arguments(paths[:2]) == [
        "tests/test_layers.py",
        "tests/core",
        "src/malleable/core/frame.py",
    ]


def test_a_file_that_is_gone_is_not_asked_for():
    assert arguments(["tests/core/test_gone.py"]) == ["tests/test_layers.py"]


def test_what_the_tables_name_is_there():
    tests = itertools.chain(*FILES.values(), *FOLDERS.values())
    named = {*EVERYTHING, *FILES, *FOLDERS, *tests}
    assert [path for path in named if not exists(path)] == []
