"""`diff` says what a transformation or a pass changed, with lines, counts and cost."""

import io
import re

import jax
import jax.numpy as jnp
import pytest

import malleable as mal
from malleable import MalleableError, cse, dce
from malleable.inspection.show import text
from malleable.inspection.show.diff import diff


def twice(x):
    return jnp.sin(x) * jnp.sin(x)


def once(x):
    y = jnp.sin(x)
    return y * y


def printed(*args, on=0.5, width=None, **options):
    file = io.StringIO()
    diff(*args, file=file, width=width, **options)(on)
    return file.getvalue()


def test_removed_changed_and_kept_equations_have_their_signs_and_lines():
    lines = printed(twice, once).splitlines()
    assert "- └── c:f32[] = sin a" in lines
    assert "~ └── d:f32[] = mul b b  # operands, was mul b c" in lines
    at = next(i for i, line in enumerate(lines) if "= sin a" in line and line[0] == " ")
    assert re.search(r"test_diff\.py:\d+$", lines[at - 2])
    assert lines[at - 1].endswith("y = jnp.sin(x)")


def test_added_equations_are_marked():
    assert re.search(r"^\+ .* = cos", printed(jnp.sin, jax.grad(jnp.sin)), flags=re.MULTILINE)


def test_equal_programs_say_so():
    assert "nothing changed" in printed(twice, lambda x: twice(x))
    assert diff(twice, twice, quiet=True)(0.5).marks == {"kept": 3}


def test_counts_and_costs_are_those_before_and_after():
    found = diff(twice, once, quiet=True)(jnp.ones(100))
    assert (found.before.equations, found.after.equations) == (3, 2)
    assert (found.before.flops, found.after.flops) == (300, 200)
    assert (found.before.bytes, found.after.bytes) == (2 * 800 + 1200, 800 + 1200)
    text = str(found)
    assert "3 equations, now 2" in text
    assert "work 300 flop, now 200 flop; moved 2.7 KiB, now 2.0 KiB" in text


@pytest.mark.parametrize(
    "found",
    [
        diff(twice, cse, quiet=True),
        diff(twice, (dce, cse), quiet=True),
        diff(twice, mal.pipeline(cse), quiet=True),
        diff(twice, passes=(cse,), quiet=True),
        diff(twice, mal.optimize(twice, cse), quiet=True),
    ],
    ids=["pass", "tuple", "pipeline", "keyword", "optimized function"],
)
def test_passes_are_told_from_functions(found):
    made = found(0.5)
    assert made.marks == {"kept": 1, "removed": 1, "changed": 1}


def test_a_pass_of_the_user_is_given_by_keyword():
    def own(jaxpr):
        return cse(jaxpr)

    made = diff(twice, passes=(own,), quiet=True)(0.5)
    assert made.names == ("twice", "own")
    assert made.after.equations == 2


@pytest.mark.parametrize(
    ("args", "options"),
    [
        ((twice,), {}),
        ((twice, cse), {"passes": (dce,)}),
        ((twice, once), {"passes": (dce,)}),
        ((3, once), {}),
    ],
)
def test_a_wrong_call_says_how_to_call(args, options):
    with pytest.raises(TypeError, match="diff takes"):
        diff(*args, quiet=True, **options)


def test_bodies_are_compared_inside_of_their_equations():
    def loop(step):
        return lambda x: jax.lax.fori_loop(0, 3, lambda i, c: step(c), x)

    text = printed(loop(jnp.sin), loop(lambda c: jnp.sin(c) + 1))
    assert re.search(r"^~ .*scan", text, flags=re.MULTILINE)
    assert re.search(r"^\+ .*add", text, flags=re.MULTILINE)
    assert re.search(r"^  .* = sin", text, flags=re.MULTILINE)


def test_long_stretches_that_are_kept_are_folded():
    def chain(n, end):
        def fun(x):
            for _ in range(n):
                x = jnp.sin(x)
            return end(x)

        return fun

    text = printed(chain(20, jnp.cos), chain(20, jnp.tan))
    assert "… 20 equations kept" in text
    assert " = sin" not in text


def test_the_result_says_it_in_one_line_and_writes_a_page(tmp_path):
    found = diff(twice, once, quiet=True)(0.5)
    assert repr(found) == "<difference of twice and once: 1 kept, 1 removed, 1 changed>"
    page = found.html(tmp_path / "diff.html")
    assert (tmp_path / "diff.html").read_text(encoding="utf-8") == page


def test_nothing_is_run_and_shapes_alone_will_do():
    def fun(x):
        jax.debug.callback(lambda: pytest.fail("it ran"))
        return x * 2

    assert (
        diff(fun, jax.jit(fun), quiet=True)(jax.ShapeDtypeStruct((3,), jnp.float32)).marks["added"]
        == 1
    )


def test_lines_are_no_wider_than_asked_for():
    assert max(map(len, printed(twice, once, width=60).splitlines())) <= 60


def test_without_rich_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(text, "Console", None)
    with pytest.raises(MalleableError, match=r"diff needs rich.*\n  at .*\n  hint: pip install"):
        diff(twice, once)
    assert diff(twice, once, quiet=True)(0.5).marks["removed"] == 1
