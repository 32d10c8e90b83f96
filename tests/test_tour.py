"""The tour agrees with the code written by hand, says so, and notices where it does not."""

import subprocess
import sys

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp
from rich.console import Console

from malleable import __main__ as command
from malleable import tour
from malleable.tour import sampling

WRONG = tour.Row("the answer", "41", "42", False)


@pytest.fixture(scope="module")
def rows():
    return tour.digits(5, Console(quiet=True))


def test_all_that_does_not_need_training_agrees(rows):
    accuracy, *others = rows
    assert [row.what for row in others if not row.ok] == []
    assert not accuracy.ok  # five steps are not enough


def test_flop_are_printed_in_full(rows):
    assert (rows[-2].got, rows[-1].got) == ("19,038,208", "57,114,624")


def test_another_key_is_noticed():
    data = np.random.default_rng(0).uniform(size=(3, 8, 8)), np.array([1, 2, 3])
    params = tour.mal.init(tour.loss)(jax.random.key(0), *data)
    ours = jax.jit(tour.observe)(jax.random.key(1), params, *data)
    theirs = jax.jit(tour.observe_by_hand)(jax.random.key(2), params, *data)
    hidden, kept, slopes, grads = zip(ours, theirs)
    assert not any(tour.close("", *pair).ok for pair in (hidden, slopes, grads))
    assert not tour.equal("", *kept).ok


def test_the_routines_of_scipy_agree_with_scipy(monkeypatch):
    monkeypatch.setattr(tour, "STARTS", 5)
    rows = tour.routines(0, Console(quiet=True))
    roots, _, slopes, swings, _ = rows  # of so few starts the times say nothing
    assert [row.ok for row in (roots, slopes, swings)] == [True] * 3


def test_slower_than_scipy_is_noticed():
    row = tour.faster("", 0.001, 0.1, "SciPy")
    assert row == ("", "1.0 ms, 100 x as fast", "SciPy: 100.0 ms", True)
    assert not tour.faster("", 2.0, 1.0, "SciPy").ok


def test_little_slower_than_plain_is_noise():
    assert tour.faster("", 1.1, 1.0, "plain", most=1.5).ok
    assert not tour.faster("", 1.6, 1.0, "plain", most=1.5).ok


def test_letters_that_steps_draw_are_those_that_the_whole_model_draws(monkeypatch):
    for name, small in {"LENGTH": 12, "WIDTH": 8, "BATCH": 2}.items():
        monkeypatch.setattr(sampling, name, small)
    rows = {row.what: row.ok for row in sampling.sampled(2, Console(quiet=True))}
    del rows["nats a letter, trained"], rows["their time"]  # of so few steps they say nothing
    assert len(rows) == 3 and all(rows.values())


@pytest.fixture(scope="module")
def pushed(tmp_path_factory):
    """The rows of a short third chapter, and where it was run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place := tmp_path_factory.mktemp("tour"))
        for name, small in {"FLOATS": 400, "LENGTH": 64, "LANES": 16, "WIDTH": 8}.items():
            patch.setattr(tour, name, small)
        return tour.reductions(0, Console(quiet=True)), place


def test_pushed_up_the_results_are_the_same(pushed):
    rows, _ = pushed
    assert [row.ok for row in rows if row.what == "its result"] == [True] * 4


def test_pushed_up_a_scan_of_sines_needs_no_memory_for_its_steps(pushed):
    memory, *_ = (row for row in pushed[0] if row.what.endswith("memory"))
    ours, plain = (float(text.split()[-2]) for text in (memory.got, memory.expected))
    assert memory.ok and ours < plain / 100


def test_pushed_up_a_model_needs_less_memory_forward_and_for_its_gradient(pushed):
    rows = {row.what: row for row in pushed[0]}
    for what in ("GRU: memory", "GRU, gradient: memory"):
        ours, plain = (float(text.split()[-2]) for text in (rows[what].got, rows[what].expected))
        assert ours < 0.7 * plain


def test_the_picture_lies_where_the_tour_is_run(pushed):
    picture = (pushed[1] / tour.PICTURE).read_bytes()
    assert picture.startswith(b"\x89PNG") and len(picture) > 10_000


def test_loops_in_plain_style_agree_with_numpy_and_are_explained(monkeypatch, capsys):
    for name, small in {"BOXES": 20, "FEW": 3, "POINTS": 200}.items():
        monkeypatch.setattr(tour.loops, name, small)
    rows = {row.what: row for row in tour.plain_loops(0, Console(width=200))}
    named = ("boxes kept", "mixture of two (EM)", "EM: operations in regions")
    assert [what for what in named if not rows[what].ok] == []  # of so few the times say nothing
    assert "a size that depends on values" in capsys.readouterr().out


def test_nothing_is_hidden_of_a_gradient_that_is_nan(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tour.insight, "IMAGES", 4)
    rows = tour.nothing_hidden(0, Console(width=200))
    assert [row.what for row in rows if not row.ok] == []
    assert "in what differentiation makes of that line" in capsys.readouterr().out
    assert "jnp.sqrt" in (tmp_path / tour.insight.PAGE).read_text()


def test_more_memory_than_plain_is_noticed():
    small, large = (lambda x: x.sum()), (lambda x: lax.sort(x @ x).sum())
    memory, *_ = tour.versus("", large, small, (jnp.ones((64, 64)),), 1)
    assert not memory.ok


@pytest.mark.parametrize("got", [[1.0, 2.001], [1.0, np.nan]])
def test_a_figure_that_is_off_is_noticed(got):
    assert not tour.close("", [np.ones(1), np.array(got)], [np.ones(1), np.array([1.0, 2.0])]).ok


def test_a_wrong_figure_ends_the_tour_with_one(monkeypatch, capsys):
    monkeypatch.setattr(tour, "CHAPTERS", [lambda *_: [WRONG]])
    assert command.main(["tour", "--steps", "1"]) == 1
    assert "differs" in capsys.readouterr().out


def test_right_figures_end_the_tour_with_zero(monkeypatch, capsys):
    monkeypatch.setattr(tour, "CHAPTERS", [lambda *_: [WRONG._replace(got="42", ok=True)]])
    assert command.main(["tour"]) == 0
    assert "Every figure is as expected." in capsys.readouterr().out


def test_an_unknown_command_prints_the_usage():
    ran = subprocess.run(
        [sys.executable, "-m", "malleable", "nonsense"], capture_output=True, text=True
    )
    assert ran.returncode == 2
    assert ran.stderr.startswith("usage: malleable")


def test_without_the_extra_the_tour_names_it():
    code = "import sys; sys.modules['sklearn'] = None; import malleable.__main__ as m; m.main()"
    ran = subprocess.run([sys.executable, "-c", code, "tour"], capture_output=True, text=True)
    assert ran.returncode == 1
    assert "pip install 'malleable[tour]'" in ran.stderr
