"""`show` prints the program under the lines of the file it comes from, bodies nested."""

import io
import re

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from malleable import MalleableError, show, stage
from malleable.inspection import text


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
    names = text.name_variables(stage(model)(0.5).jaxpr)
    assert len(set(names.values())) == len(names)
    assert all(len(name) == 1 for name in names.values())
    many = text.name_variables(stage(lambda *xs: xs)(*[1.0] * 30).jaxpr)
    assert [*many.values()][25:28] == ["z", "aa", "ab"]


def test_without_rich_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(text, "Console", None)
    with pytest.raises(
        MalleableError, match=r"needs rich.*\n  hint: pip install 'malleable\[show\]'"
    ):
        show(model)
