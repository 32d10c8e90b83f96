"""The shared cases, where they lie beside the checkout, are all right."""

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
CASES = ROOT.parent / "shared" / "cases" / "transforms.py"


@pytest.mark.skipif(not CASES.exists(), reason="no shared/cases beside the checkout")
def test_every_shared_case_is_right():
    command = [sys.executable, str(CASES), "--bind", "tests.bindings:Adapter"]
    env = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}  # the cases set their own
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=env)
    assert ran.returncode == 0, ran.stdout + ran.stderr
