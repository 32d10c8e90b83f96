"""Every benchmark runs: `python -m benchmarks.NAME --smoke` goes its whole way on small sizes."""

import importlib
import os
import pathlib
import re
import subprocess
import sys

import pytest

from tests.flags import FAST

ROOT = pathlib.Path(__file__).parent.parent
FILES = sorted((ROOT / "benchmarks").glob("*.py"))
RUN = [path.stem for path in FILES if 'if __name__ == "__main__"' in path.read_text()]
MODES = {
    "cases": ["cases frontend --grad --baseline", "cases rewriting", "cases selective"],
    "reroll": ["reroll", "reroll libraries"],
    "rewriting": ["rewriting", "rewriting --engine"],
    "rewriting_cases": [],  # as `cases rewriting` and `cases selective`
    "selective_cases": [],
}


SLOW = {  # what takes more than 8 s of a processor, or 2 s; others go through the same runners
    *(
        "cliffs",
        "dispatch",
        "frontend",
        "hints",
        "gpu",
        "growth",
        "incremental",
        "inspection",
        "onnx",
        "reroll",
        "reroll libraries",
        "rewriting",
        "rewriting --engine",
        "selective_fits",
        "walks",
    ),
    *("cases frontend --grad --baseline", "cases selective", "selective_soak"),
}
COMMANDS = [command for name in RUN for command in MODES.get(name, [name])]


@pytest.mark.parametrize("name", [path.stem for path in FILES])
def test_a_benchmark_finds_what_it_imports(name):
    importlib.import_module(f"benchmarks.{name}")


@pytest.mark.parametrize(
    "command", [pytest.param(c, marks=[pytest.mark.slow] * (c in SLOW)) for c in COMMANDS]
)
def test_a_benchmark_runs(command, tmp_path):
    words = [sys.executable, "-m", f"benchmarks.{command}", "--smoke"]
    env = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": FAST}
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    words = " ".join(words).split()
    run = subprocess.run(words, capture_output=True, text=True, env=env, cwd=tmp_path, timeout=400)
    assert run.returncode == 0, f"{run.stdout}\n{run.stderr}"
    assert not re.search(r"\b(WRONG|NOT RIGHT|nan)\b", run.stdout), run.stdout
    assert list(tmp_path.iterdir()) == []


def test_every_benchmark_is_run():
    assert MODES.keys() <= set(RUN) and set(COMMANDS) >= SLOW
    assert {"staging", "frontend", "rewriting", "selective_soak", "errors", "gpu"} <= set(RUN)
