"""`explain` says what ran where, and its suggestions are true; breaks are said or refused."""

import io
import json
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

import malleable as mal

X = jnp.array([1.0, -2.0, 3.0, 0.5])


def positive(x):
    y = jnp.sin(x) * 2
    return y[y > 0].sum()


def by_numpy(x):
    y = np.cumsum(x * 2)
    return jnp.cos(y)


def averaged(x):
    y = x * 2
    kept = y[y > 0]
    return kept, y[y > 1].mean(), jnp.max(y[y < 1])


def host(f, **options):
    return mal.jit(f, control_flow="host", **options)


def suggestions(report):
    return [b.suggestion.after for b in report.breaks if b.suggestion]


def test_a_function_without_breaks_is_all_in_one_region():
    report = mal.explain(lambda x: jnp.sin(x) @ x)(X)
    assert (report.share, report.flop_share, report.breaks) == (1.0, 1.0, [])
    (region,) = report.regions
    assert (region.equations, region.flop) == (2, 4 + 2 * 4)
    assert jnp.allclose(report.out, jnp.sin(X) @ X)


def test_a_mask_is_a_break_with_its_line_its_type_and_the_arguments_behind_it():
    report = mal.explain(host(positive))(X)
    (found,) = report.breaks
    line = positive.__code__.co_firstlineno + 2
    assert found.where.endswith(f"test_report.py:{line} in positive")
    assert (found.kind, found.text) == ("mask", "return y[y > 0].sum()")
    assert set(found.avals) == {"bool[4]", "float32[4]"}
    assert (found.inputs, found.calls) == (("x",), 1)
    assert found.done == "NumPy" and found.bytes == 4 + 16 + 12
    assert 0 < report.share < 1
    assert jnp.allclose(report.out, positive(X))


def test_a_suggestion_was_tried():
    (found,) = mal.explain(host(positive))(X).breaks
    assert found.suggestion.after == "jnp.where(y > 0, y, 0).sum()"
    assert "equal" in found.suggestion.checked


def test_each_mask_of_a_function_has_its_own_suggestion():
    report = mal.explain(host(averaged))(X)
    first, second, third = suggestions(report)
    assert len({b.where for b in report.breaks}) == 2
    assert first.startswith("y[jnp.flatnonzero(y > 0, size=")
    assert "padding" in report.breaks[0].suggestion.checked
    assert second == "jnp.mean(y, where=y > 1)"
    assert third == "jnp.where(y < 1, y, -jnp.inf).max()"


@pytest.mark.parametrize(
    ("f", "after"),
    [
        (by_numpy, "jnp.cumsum(x * 2)"),
        (lambda x: len(x[x > 0]), "(x > 0).sum()"),
        (lambda x: jnp.exp(x[x > 0].prod()), "jnp.where(x > 0, x, 1).prod()"),
        (lambda x: jnp.unique(x), "jnp.unique(x, size=x.size)"),
        (lambda x: jnp.sin(float(x.sum())), "x.sum()"),
        (lambda x: x + 1 if x.sum() > 0 else x - 1, "jnp.where(x.sum() > 0, x + 1, x - 1)"),
    ],
)
def test_what_is_suggested_instead(f, after):
    report = mal.explain(host(f))(X)
    assert after in suggestions(report)


def test_what_differs_here_is_not_suggested():
    def f(x):
        return x[x > 9].max()

    def g(x):
        return np.random.default_rng(0).permutation(np.asarray(x))

    with pytest.raises(ValueError, match="zero-size"):
        mal.explain(host(f))(X)
    assert suggestions(mal.explain(g)(X)) == []


def test_lifting_is_suggested_where_it_was_turned_off():
    def f(x):
        while x.sum() < 9:
            x = x * 2
        return x

    report = mal.explain(host(f))(X)
    assert "control_flow='lift'" in suggestions(report)


def test_a_python_int_is_suggested_for_an_array():
    def f(x, n):
        return jnp.zeros(n) + x.sum()

    report = mal.explain(f)(X, jnp.array(3))
    assert suggestions(report) == ["int(n)"]
    assert report.breaks[0].inputs == ("n",)


def test_lines_are_marked():
    def f(x):
        y = jnp.sin(x)
        kept = y[y > 0]
        if kept.shape[0] > 99:
            y = y + 1
        return jnp.cos(kept)

    report = mal.explain(host(f))(X)
    (source,) = report.sources
    marks = {line.text.strip(): line.marks for line in source.lines}
    assert marks["y = jnp.sin(x)"] == ("R1",)
    assert set(marks["kept = y[y > 0]"]) == {"R1", "H"}
    assert marks["def f(x):"] == ()


def test_a_lifted_branch_is_marked():
    def f(x):
        if x.sum() > 0:
            x = x + 1
        return x

    report = mal.explain(f)(X)
    assert report.breaks == [] and report.regions[0].lifted
    assert report.sources[0].lines[1].marks == ("R1", "L")


def test_static_arguments_are_named():
    report = mal.explain(lambda x, n=3: jnp.zeros(n) + x.sum())(X)
    assert report.static == {"n": "3"}


def test_a_function_that_jax_made_is_one_region():
    report = mal.explain(mal.jit(jax.grad(lambda x: jnp.sin(x).sum())))(X)
    assert (len(report.regions), report.share, report.breaks) == (1, 1.0, [])


def test_new_sizes_of_another_argument_are_seen():
    def f(x, y):
        return (x[:, None] + y).sum(axis=0) * x.shape[0]

    run = mal.jit(f)
    for n in range(3, 14):
        run(jnp.ones(n), jnp.ones(4))
    assert jnp.allclose(run(jnp.ones(5), jnp.ones(9)), f(jnp.ones(5), jnp.ones(9)))


def test_a_function_that_is_called_has_its_own_source():
    report = mal.explain(host(lambda x: positive(x) + 1))(X)
    assert [s.name for s in report.sources][1:] == ["positive"]
    assert any(b.function == "positive" and b.kind == "mask" for b in report.breaks)
    numbers = [r.number for r in report.regions]
    assert numbers == sorted(set(numbers))


def test_a_function_without_source_is_reported_by_its_demands():
    space = {}
    exec("def f(x):\n    return x + 1 if x.sum() > 0 else x", space)
    report = mal.explain(space["f"])(X)
    assert [(b.kind, b.inputs) for b in report.breaks] == [("bool", ("x",))]
    assert report.share == 0.0 and jnp.allclose(report.out, X + 1)


def test_side_effects_happen_at_each_call(capsys):
    mal.explain(lambda x: print(x.shape) or x + 1)(X)
    assert capsys.readouterr().out.count("(4,)") >= 2


def test_an_exception_goes_through():
    def f(x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        mal.explain(f)(X)


def test_the_report_is_text_and_data_and_colours():
    report = mal.explain(host(positive))(X)
    text = str(report)
    assert "jnp.where(y > 0, y, 0).sum()" in text and "R1" in text and "depends on: x" in text
    data = json.loads(json.dumps(report.to_dict()))
    assert data["breaks"][0]["kind"] == "mask" and data["share"] == report.share
    out = io.StringIO()
    Console(file=out, width=200).print(report)
    assert "jnp.where(y > 0, y, 0).sum()" in out.getvalue()


def test_a_diff_names_breaks_that_went_and_came():
    before, after = mal.explain(host(positive))(X), mal.explain(positive)(X)
    assert before.diff(before) == ""
    text = before.diff(after)
    assert "breaks: 1 -> 0" in text and "- " in text


def test_a_method_is_explained():
    class Model:
        @mal.jit
        def step(self, x):
            return x * 2

    assert jnp.allclose(mal.explain(Model().step)(X).out, X * 2)


# ------------------------------------------------------------ on_break, and programs on and on


def test_a_break_is_warned_about_once():
    f = host(positive, on_break="warn")
    with pytest.warns(mal.BreakWarning, match=r"test_report\.py:\d+ in positive .*mask") as heard:
        f(X)
    assert len(heard) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        f(X + 1)


def test_a_break_is_refused_before_it_runs():
    ran = []

    def f(x):
        y = x + 1
        ran.append(1)
        return y

    with pytest.raises(mal.TransformError, match=r"breaks the graph.*\n  at .*test_report\.py:\d+"):
        mal.jit(f, on_break="error")(X)
    assert ran == []


def test_an_error_names_three_rewrites():
    with pytest.raises(mal.TransformError) as error:
        host(positive, on_break="error")(X)
    assert error.value.hint.count(";") == 2 and "jnp.where" in error.value.hint


def test_a_function_without_breaks_is_not_refused():
    f = mal.jit(lambda x: jnp.sin(x).sum(), on_break="error")
    assert jnp.allclose(f(X), jnp.sin(X).sum())


def test_a_function_without_source_is_refused():
    space = {}
    exec("def f(x):\n    return x + 1", space)
    with pytest.raises(mal.TransformError, match="is not compiled"):
        mal.jit(space["f"], on_break="error")(X)


def test_a_static_argument_that_keeps_changing_is_named_once():
    f = mal.jit(lambda x, n: jnp.zeros(n).sum() + x, on_break="warn", max_compiles=50)
    with warnings.catch_warnings(record=True) as heard, mal.listen() as notes:
        warnings.simplefilter("always")
        for n in range(1, 14):
            f(1.0, n)
    (said,) = [w for w in heard if w.category is mal.BreakWarning]
    assert "`n` had 9 values: 1, 2, 3, 4, 5, 6, 7, 8, 9" in str(said.message)
    assert sum("one program after the other" in n.what for n in notes) == 1


def test_sizes_that_keep_changing_are_named():
    f = mal.jit(lambda x: x.sum(), dynamic_sizes="exact", max_compiles=3)
    with mal.listen() as notes:
        for n in range(1, 7):
            f(jnp.zeros(n))
    (said,) = [n for n in notes if "one program after the other" in n.what]
    assert said.why.startswith("axis 0 of `x` was 1, 2, 3")


def test_a_report_of_sizes_names_those_seen():
    f = host(positive)
    for n in (4, 5, 6):
        f(jax.random.normal(jax.random.key(n), (n,)))
    report = mal.explain(f)(X)
    assert any(sizes[:2] == (4, 5) for r in report.regions for sizes in r.sizes.values())


def test_a_report_says_how_often_side_effects_happened(capsys):
    def f(x):
        print("called")
        return jnp.sin(x).sum()

    report = mal.explain(f)(jnp.ones(3))
    times = capsys.readouterr().out.count("called")
    assert f"called {times} times to see this, each time with its side effects" in str(report)
    pure = mal.explain(jnp.sin)(jnp.ones(3))
    assert "side effects" not in str(pure)
