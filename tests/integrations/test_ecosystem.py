"""Functions of other libraries go through every transformation; `make ecosystem` tries them all."""

import importlib.util
import os
import pathlib
import subprocess
import sys

import jax
import pytest

from benchmarks.ecosystem.__main__ import WAYS, Row, agree, report
from benchmarks.ecosystem.functions import CASES

SMALL = [
    ("equinox", "a checkpointed while"),
    ("flax.nnx", "Linear, LayerNorm"),
    ("numpyro", "draws from a model"),
    ("optax", "Lion, accumulated"),
]
REFUSED = {(SMALL[0], "transformable"): "it is none of the primitives that JAX lists"}


@pytest.fixture(scope="module", params=SMALL, ids=" ".join)
def made(request):
    """(which, function, arguments, what JAX makes of them)"""
    pytest.importorskip(request.param[0])
    fun, args = CASES[request.param]()
    return request.param, fun, args, jax.jit(fun)(*args)


@pytest.mark.in_turns
@pytest.mark.caches
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", WAYS)
def test_a_function_of_a_library_gives_what_jax_gives(made, way):
    which, fun, args, wanted = made
    if (which, way) in REFUSED:
        with pytest.raises(Exception, match=REFUSED[which, way]):
            WAYS[way](fun, args)
    elif (got := WAYS[way](fun, args)) is not None:
        agree(got, wanted)


def test_there_are_forty_functions():
    assert len(CASES) >= 40


def test_the_report_says_what_went_wrong_and_what_did_not_run():
    cells = dict.fromkeys(WAYS, "ok") | {"jit": "TypeError: no"}
    rows = [Row("numpy", "a", cells, "", 1.0), Row("no", "b", {}, "ImportError: no", 0.0)]
    text = report(rows)
    assert f"1 functions of 1 libraries, {len(WAYS) - 1} of {len(WAYS)} cells ok" in text
    assert "1. `TypeError: no`" in text and "2. `ImportError: no`" in text


def test_values_are_compared_with_quax_or_say_how_to_install_it(tmp_path):
    root = pathlib.Path(__file__).parent.parent.parent
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(root / "src"), str(root)])}
    words = [sys.executable, "-m", "benchmarks.ecosystem.values", "--smoke"]
    run = subprocess.run(words, capture_output=True, text=True, env=env, cwd=tmp_path, timeout=300)
    if importlib.util.find_spec("quax") is None:
        assert run.returncode == 1 and "pip install -e '.[ecosystem]'" in run.stderr
    else:
        assert run.returncode == 0 and "| scan, stacked | ok | ok |" in run.stdout, run.stderr
