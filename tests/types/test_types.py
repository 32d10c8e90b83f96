"""Type checkers know the public names, and refuse wrong calls of them."""

import json
import os
import pathlib
import subprocess
import sys

from tests.types.public import SRC, copy_public

CALLS = pathlib.Path(__file__).with_name("calls.py")
LEAST = 0.95  # of the public names have a type that is known


def pyright(*args, site):
    """What pyright finds, as JSON, with the packages of this interpreter and `site`."""
    here = pathlib.Path(sys.executable).parent
    env = os.environ | {"PYTHONPATH": str(site), "PATH": f"{here}{os.pathsep}{os.environ['PATH']}"}
    command = [sys.executable, "-m", "pyright", "--outputjson", *args]
    run = subprocess.run(command, capture_output=True, text=True, env=env, timeout=300, cwd=site)
    return json.loads(run.stdout)


def test_the_package_says_that_it_is_typed():
    assert (SRC / "py.typed").exists()


def test_the_types_of_public_names_are_known(tmp_path, record_property):
    copy_public(tmp_path)
    found = pyright("--verifytypes", "malleable", "--ignoreexternal", site=tmp_path)
    complete = found["typeCompleteness"]
    score = complete["completenessScore"]
    record_property("figure", f"types known of public names: {score:.1%}")
    unknown = [s["name"] for s in complete["symbols"] if s["isExported"] and not s["isTypeKnown"]]
    assert score >= LEAST, unknown


def test_wrong_calls_are_refused_and_right_ones_taken():
    found = pyright(str(CALLS), site=SRC.parent)["generalDiagnostics"]
    refused = {d["range"]["start"]["line"] for d in found if d["severity"] == "error"}
    lines = CALLS.read_text().splitlines()
    wrong = {i for i, line in enumerate(lines) if line.endswith("# wrong")}
    assert len(wrong) >= 50
    assert {lines[i] for i in wrong - refused} == set()
    assert {lines[i] for i in refused - wrong} == set()
