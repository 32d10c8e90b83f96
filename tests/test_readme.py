"""The README keeps its promises: the quickstart runs, and CI runs the command it gives."""

import linecache
import pathlib
import re
import subprocess

import pytest

from tests.example_code import compiled

ROOT = pathlib.Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def fence(heading, language):
    """The first fenced block of a language after a heading or marker."""
    _, _, after = README.partition(heading)
    found = re.search(rf"```{language}\n(.*?)```", after, flags=re.DOTALL)
    assert found, f"no {language} block after {heading!r} in README.md"
    return found.group(1)


def test_quickstart_runs():
    code = fence("## Quickstart", "python")
    exec(compiled(code, "README.md"), {"__name__": "quickstart"})


@pytest.mark.parametrize("part", ["frontend", "rewriting", "jit", "inspection"])
def test_the_code_of_a_part_runs(part, monkeypatch):
    code, name = fence(f"<!-- {part} -->", "python"), f"README.{part}.py"
    monkeypatch.setitem(linecache.cache, name, (len(code), None, code.splitlines(True), name))
    exec(compiled(code, name), {"__name__": part})


def test_an_example_of_an_error_fails_where_none_is_raised():
    guarded = "try:\n    {}\nexcept ValueError:\n    pass\n"
    exec(compiled(guarded.format("int('x')"), "README.md"), {})
    with pytest.raises(AssertionError, match="line 1: no error"):
        exec(compiled(guarded.format("int('1')"), "README.md"), {})


def test_quickstart_fits_on_a_screen():
    assert len(fence("## Quickstart", "python").splitlines()) <= 40


def test_ci_runs_the_test_command_of_the_readme():
    ci = subprocess.run(
        ["bash", ROOT / ".ci" / "run", "--print"], capture_output=True, text=True, check=True
    )
    assert ci.stdout == fence("<!-- test-command -->", "bash")


def test_the_commands_use_extras_that_exist():
    commands = fence("<!-- tour-command -->", "bash") + fence("<!-- test-command -->", "bash")
    assert re.findall(r"'\.\[(\w+)\]'", commands) == ["tour", "test"]
