"""The shared cases, where they lie beside the checkout, are all right."""

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
CASES = ROOT.parent / "shared" / "cases"
BOUND = {"transforms": "Adapter", "probabilistic": "Prob"}


@pytest.mark.skipif(not CASES.exists(), reason="no shared/cases beside the checkout")
@pytest.mark.parametrize("name", BOUND)
def test_every_shared_case_is_right(name):
    command = [sys.executable, f"{CASES / name}.py", "--bind", f"tests.bindings:{BOUND[name]}"]
    env = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}  # the cases set their own
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=env)
    assert ran.returncode == 0, ran.stdout + ran.stderr
