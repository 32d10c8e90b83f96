"""A way out is told as certain if it was tried, runs, and means the same; else with "perhaps"."""

import math
import os
import pathlib
import subprocess
import sys
import warnings

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from benchmarks import hints
from malleable.errors import AdviceWarning, explain
from malleable.inspection.advice.hint import Advice, Edit, Way

KEY = jax.random.key(0)
ROOT = pathlib.Path(__file__).parents[3]
SHARED = ROOT.parent / "shared/cases/errors.py"


def error_of(run, *args):
    with pytest.raises(Exception) as caught, explain(debug=True):
        run(*args)
    assert not [note for note in caught.value.__notes__ if "adviser failed" in note]
    return caught.value


def sure(run, *args):
    return [edit.new for way in error_of(run, *args).ways for edit in way.edits]


def hint_of(run, *args):
    return error_of(run, *args).__notes__[-1].partition("hint: ")[2]


def test_an_edit_puts_text_in_the_place_of_a_span_of_lines():
    edit = Edit("f.py", 1, 3, 2, 1, "new")
    assert edit.applied("é = 1\nabc\nend") == "é newbc\nend"


def test_a_way_that_fails_is_not_shown_and_one_that_was_not_tried_says_perhaps():
    edit = (Edit("f.py", 1, 0, 1, 1, "new"),)
    ways = [Way("wrong", edit, lambda: False), Way("open"), Way("right", edit, lambda: True)]
    assert str(Advice("what", "f.py:1", tuple(ways))).endswith("hint: right; or perhaps open")


def test_a_way_without_an_edit_is_never_certain():
    assert Advice("what", "", (Way("do it", (), lambda: True),)).ways == ()


@jax.jit
def between(x, start, stop):
    return x[start:stop].sum()


def test_a_slice_with_two_traced_bounds_keeps_both():
    (masked, static) = sure(between, jnp.arange(6.0), 1, 4)
    assert ">= start" in masked and "< stop" in masked
    assert "static_argnames=('start', 'stop')" in static


@jax.jit
def mean_of_positive(x):
    return x[x > 0].mean()


def test_the_mean_of_a_mask_leaves_the_others_out_of_the_count():
    assert sure(mean_of_positive, jnp.arange(5.0)) == ["jnp.mean(x, where=x > 0)"]
    assert "jnp.where(" not in hint_of(mean_of_positive, jnp.arange(5.0))


@jax.jit
def shape_of_product(x):
    size = np.prod(x.shape)
    return np.sqrt(x).reshape(size)


def test_only_the_call_that_failed_becomes_one_of_jax():
    assert sure(shape_of_product, jnp.ones((2, 3))) == ["jnp.sqrt"]


@jax.jit
def twice(x):
    y = math.exp(x)
    return math.log(y)


def test_a_way_after_which_the_next_line_fails_says_perhaps():
    assert sure(twice, 2.0) == []
    assert hint_of(twice, 2.0).startswith("perhaps write jnp.exp(x)")


history = []


@jax.jit
def logged(x):
    loss = x.sum()
    history.append(loss.item())
    return loss


def test_what_has_a_side_effect_is_not_tried_and_a_tracer_is_not_said_to_be_kept():
    assert "drop .item()" not in hint_of(logged, jnp.ones(3))
    assert hint_of(logged, jnp.ones(3)).startswith("perhaps return loss")
    assert not history


@jax.jit
def reversed_rows(x, i):
    rows = [x, x * 2]
    return rows[i]


def test_a_list_of_arrays_becomes_one_array():
    assert "jnp.stack(rows)" in sure(reversed_rows, jnp.ones(3), 1)


def test_a_key_that_a_library_uses_twice_within_one_call_is_its_own_affair():
    numpyro = pytest.importorskip("numpyro")
    dist = numpyro.distributions

    def model():
        numpyro.sample("x", dist.Normal(0, 1))

    def model_of_two():
        numpyro.sample("x", dist.Normal(0, 1), rng_key=KEY)
        numpyro.sample("y", dist.Normal(0, 1), rng_key=KEY)

    def heard(run):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            with explain():
                run()
        return [str(w.message) for w in said if w.category is AdviceWarning]

    def sum_of_two():
        return jax.random.normal(KEY) + jax.random.normal(KEY)

    kernel = numpyro.infer.NUTS(model)
    mcmc = numpyro.infer.MCMC(kernel, num_warmup=1, num_samples=1, progress_bar=False)
    assert not [text for text in heard(lambda: mcmc.run(KEY)) if "used twice" in text]
    assert [text for text in heard(model_of_two) if "used twice" in text]
    assert [text for text in heard(sum_of_two) if "used twice" in text]


@pytest.mark.caches
@pytest.mark.parametrize("path", [path for path in (SHARED,) if path.exists()], ids=str)
def test_no_hint_fails_or_changes_a_result(path):
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.hints", str(path)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])},
    )
    assert run.returncode == 0, run.stdout
    assert "same" in run.stdout and hints.MARKS
