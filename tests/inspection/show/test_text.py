"""`show` prints the program under the lines of the file it comes from, bodies nested."""

import functools
import io
import re

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from malleable import MalleableError, cse, dce, show, stage
from malleable.inspection.show import text
from malleable.inspection.show.rows import outline
from tests.work import calls


def body(c, t):
    c = jnp.sin(c) * t
    return c, c


def model(x):
    y = jax.jit(jnp.cos)(x)
    y = lax.scan(body, y, jnp.arange(3.0))[0]
    return y + 1


def shown(fun, *args, width=200):
    """The lines that `show` prints, without the guides of the tree."""
    file = io.StringIO()
    show(fun, file=file, width=width)(*args)
    return [re.sub(r"^[│├└─ ]+", "", line) for line in file.getvalue().splitlines()]


def indents(fun, *args):
    """How far in each equation stands, by its primitive."""
    file = io.StringIO()
    show(fun, file=file, width=200)(*args)
    lines = re.findall(r"^([│├└─ ]*)\w+:.* = (\w+)", file.getvalue(), flags=re.MULTILINE)
    return {prim: len(guide) for guide, prim in lines}


def test_the_lines_of_the_file_appear_in_order():
    code = [line for line in shown(model, 0.5) if line.startswith(("y = ", "c = "))]
    assert code == [
        "y = jax.jit(jnp.cos)(x)",
        "y = lax.scan(body, y, jnp.arange(3.0))[0]",
        "c = jnp.sin(c) * t",
    ]


def test_each_line_has_its_file_and_number():
    lines = shown(model, 0.5)
    at = lines.index("c = jnp.sin(c) * t")
    assert re.fullmatch(rf"\S*test_text\.py:{body.__code__.co_firstlineno + 1}", lines[at - 1])


def test_every_equation_appears_with_its_type():
    lines = shown(lambda x: jnp.sin(x) @ x, jnp.ones(3))
    assert lines[0] == "program: a:f32[3] -> c:f32[]"
    assert "b:f32[3] = sin a" in lines
    assert any(re.match(r"c:f32\[\] = dot_general(\[.*\])? b a", line) for line in lines)


def test_bodies_are_nested_in_their_equations():
    depth = indents(model, 0.5)
    assert depth["jit"] < depth["cos"]
    assert depth["scan"] < depth["sin"] == depth["mul"]
    assert depth["add"] == depth["scan"] == depth["jit"]


@pytest.mark.parametrize(
    ("program", "roles"),
    [
        (lambda x: lax.cond(x > 0, jnp.sin, jnp.cos, x), ["if false", "if true"]),
        (lambda x: lax.while_loop(lambda c: c < 3, lambda c: c + 1, x), ["test", "body"]),
        (lambda x: lax.switch(1, [jnp.sin, jnp.cos, jnp.tan], x), ["body 0", "body 1", "body 2"]),
        (lambda x: lax.scan(body, x, jnp.ones(2)), ["body"]),
    ],
    ids=["cond", "while", "switch", "scan"],
)
def test_bodies_say_what_they_are_for(program, roles):
    lines = shown(program, 0.5)
    assert [role for line in lines for role in roles if line.startswith(f"{role}: ")] == roles


def test_what_an_equation_was_told_is_shown_and_the_rest_is_not():
    lines = shown(lambda x: jnp.sum(x, 1), jnp.ones((2, 3)))
    (line,) = [line for line in lines if "reduce_sum" in line]
    assert "axes=(1,)" in line
    assert "None" not in line


def test_nothing_is_run():
    show(lambda: jax.debug.callback(lambda: pytest.fail("it ran")), file=io.StringIO())()


def test_it_prints_where_it_is_told_or_to_the_terminal(capsys):
    shown(model, 0.5)
    assert capsys.readouterr().out == ""
    show(model)(0.5)
    assert "scan" in capsys.readouterr().out


def test_names_are_short_and_each_is_given_once():
    names = outline.name_variables(stage(model)(0.5).jaxpr)
    assert len(set(names.values())) == len(names)
    assert all(len(name) == 1 for name in names.values())
    many = outline.name_variables(stage(lambda *xs: xs)(*[1.0] * 30).jaxpr)
    assert [*many.values()][25:28] == ["z", "aa", "ab"]


def test_results_of_a_mebibyte_say_so_and_small_ones_do_not():
    lines = shown(jnp.sin, jnp.ones((1024, 1024)))
    (line,) = [x for x in lines if " = sin" in x]
    assert "  # 4.0 MiB, 1.0 Mflop 8.0 MiB moved (100%)" in line
    assert all("#" not in line for line in shown(model, 0.5))


def test_a_loop_says_its_steps_and_costs_all_of_them():
    loop = lambda x: lax.scan(lambda c, _: (c @ c, None), x, None, length=10)[0]
    lines = shown(loop, jnp.ones((64, 64)))
    (scan,), (dot,) = ([x for x in lines if f" = {name}" in x] for name in ("scan", "dot_general"))
    assert "length=10" in scan
    assert f"{2 * 64**3 * 10 / 1e6:.1f} Mflop" in dot


def test_where_values_are_laid_out_is_shown():
    mesh = jax.make_mesh((1,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = jax.NamedSharding(mesh, jax.P("rows"))
    lines = shown(lambda x: lax.with_sharding_constraint(x, rows), jnp.ones(4))
    assert any("sharding=P('rows',)" in line for line in lines)


def test_a_call_says_its_name():
    assert any("jit[name=cos" in line for line in shown(model, 0.5))


def deep(x):
    for _ in range(3):
        x = lax.fori_loop(0, 4, lambda _, c: jnp.sin(jnp.cos(jnp.tan(c))), x)
    return x


@pytest.mark.parametrize("limit", [4, 12, 1000, None])
def test_more_equations_than_the_limit_are_folded_and_counted(limit):
    file = io.StringIO()
    size = show(deep, file=file, limit=limit)(0.5).stages[-1].size
    lines = [re.sub(r"^[│├└─ ]+", "", line) for line in file.getvalue().splitlines()]
    printed = sum(bool(re.match(r"\w+:\S+ .*= \w+", line)) for line in lines)
    folded = [int(n) for line in lines for n in re.findall(r"^… (\d+) of", line)]
    assert printed == (size if limit is None else min(size, printed)) <= (limit or size)
    assert sum(folded) == size - printed
    assert bool(folded) == (printed < size)


def test_a_flat_program_is_cut_at_the_limit():
    def flat(x):
        for _ in range(30):
            x = lax.sin(x)
        return x

    file = io.StringIO()
    show(flat, file=file, limit=10)(0.5)
    assert file.getvalue().count(" = sin") == 10
    assert "… 20 more equations" in file.getvalue()
    assert "20 of 30 equations folded: all with limit=None, or .html(path)" in file.getvalue()


def test_the_limit_opens_the_body_of_a_call_around_everything():
    def flat(x):
        for _ in range(30):
            x = lax.sin(x)
        return x

    file = io.StringIO()
    show(jax.jit(flat), file=file, limit=20)(0.5)
    assert file.getvalue().count(" = sin") == 19


def test_lines_are_no_wider_than_asked_for():
    wide = lambda *xs: jnp.concatenate(xs)
    file = io.StringIO()
    show(wide, file=file, width=70)(*[jnp.ones(2)] * 40)
    lines = file.getvalue().splitlines()
    assert max(map(len, lines)) <= 70
    together = " ".join(line.strip("│ ") for line in lines)
    names = outline.name_variables(stage(wide)(*[jnp.ones(2)] * 40).jaxpr)
    assert " ".join([*names.values()][:40]) in together.rpartition("concatenate")[2]


@pytest.mark.caches
def test_the_work_grows_with_the_program_and_not_faster():
    def work(n):
        def flat(x):
            for _ in range(n // 2):
                x = lax.mul(lax.sin(x), x)
            return x

        return calls(lambda: show(flat, file=io.StringIO())(jnp.ones(4)))

    work(20)  # what is done once
    assert work(400) < 4 * 1.1 * work(100)


def test_a_quiet_call_prints_nothing_and_needs_no_rich(monkeypatch, capsys):
    monkeypatch.setattr(text, "Console", None)
    found = show(model, quiet=True)(0.5)
    assert capsys.readouterr().out == ""
    assert "scan[length=3" in str(found)


def test_a_notebook_shows_the_result_itself(monkeypatch, capsys):
    notebook = functools.partial(text.Console, force_jupyter=True)
    monkeypatch.setattr(text, "Console", notebook)
    found = show(model)(0.5)
    assert capsys.readouterr().out == ""
    assert "scan" in found._repr_html_()


def test_passes_are_printed_as_what_they_changed():
    file = io.StringIO()
    show(lambda x: jnp.sin(x) * jnp.sin(x), passes=(dce, cse), file=file)(0.5)
    text = file.getvalue()
    assert "── jaxpr, 3 equations" in text
    assert "── pass dce: 3 equations, nothing to do" in text
    assert "── pass cse: 3 equations, now 2: -1 sin, 1 changed" in text
    assert re.search(r"^- .*c:f32\[\] = sin a$", text, flags=re.MULTILINE)
    assert re.search(
        r"^~ .*d:f32\[\] = mul b b  # operands, was mul b c$", text, flags=re.MULTILINE
    )
    assert text.count("d:f32[] = mul b b") == 2  # once more in the program that is left


def test_without_rich_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(text, "Console", None)
    with pytest.raises(
        MalleableError, match=r"needs rich.*\n  at .*\n  hint: pip install 'malleable\[show\]'"
    ):
        show(model)
