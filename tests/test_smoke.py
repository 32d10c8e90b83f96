"""Every benchmark runs: `python -m benchmarks.NAME --smoke` goes its whole way on small sizes."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
FILES = sorted((ROOT / "benchmarks").glob("*.py"))
RUN = [path.stem for path in FILES if 'if __name__ == "__main__"' in path.read_text()]
MODES = {
    "cases": ["cases frontend --grad --baseline", "cases rewriting", "cases selective"],
    "rewriting": ["rewriting", "rewriting --engine"],
    "rewriting_cases": [],  # as `cases rewriting` and `cases selective`
    "selective_cases": [],
}


@pytest.mark.parametrize("command", [c for name in RUN for c in MODES.get(name, [name])])
def test_a_benchmark_runs(command, tmp_path):
    words = [sys.executable, "-m", f"benchmarks.{command}", "--smoke"]
    env = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"}
    env |= {"JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    words = " ".join(words).split()
    run = subprocess.run(words, capture_output=True, text=True, env=env, cwd=tmp_path, timeout=400)
    assert run.returncode == 0, f"{run.stdout}\n{run.stderr}"
    assert not re.search(r"\b(WRONG|NOT RIGHT|nan)\b", run.stdout), run.stdout
    assert list(tmp_path.iterdir()) == []


def test_every_benchmark_is_run():
    assert MODES.keys() <= set(RUN)
    assert {"staging", "frontend", "rewriting", "selective_soak", "errors", "gpu"} <= set(RUN)
