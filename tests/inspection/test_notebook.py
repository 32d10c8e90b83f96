"""`%load_ext malleable` explains errors in the cells of a notebook, and unloads without a trace."""

import jax
import jax.numpy as jnp
import pytest

import malleable
from malleable.inspection import notebook

interactiveshell = pytest.importorskip("IPython.core.interactiveshell")


@pytest.fixture
def shell():
    shell = interactiveshell.InteractiveShell()
    shell.history_manager.enabled = False
    yield shell
    notebook.unload_ipython_extension(shell)


def output(shell, capsys, cell):
    capsys.readouterr()
    shell.run_cell(cell)
    return capsys.readouterr().out


FUNCTION = "import jax\ndef f(x):\n    if x > 0:\n        return x\n    return -x"


def test_a_cell_that_fails_shows_the_advice(shell, capsys):
    notebook.load_ipython_extension(shell)
    shell.run_cell(FUNCTION)
    shown = output(shell, capsys, "jax.jit(f)(1.0)")
    assert "TracerBoolConversionError" in shown
    assert "malleable: `if` needs True or False" in shown
    assert "ZeroDivisionError" in output(shell, capsys, "1 / 0")
    assert "SyntaxError" in output(shell, capsys, "x = )")


def test_what_an_earlier_cell_made_is_known(shell, capsys):
    notebook.load_ipython_extension(shell)
    shell.run_cell("import jax\ng = jax.vmap(lambda a, b: a, in_axes=(0,))")
    assert "in_axes=(0, None)" in output(shell, capsys, "g(jax.numpy.ones(3), 1.0)")


def test_unloading_leaves_nothing(shell, capsys):
    before = jax.vmap
    malleable.load_ipython_extension(shell)
    malleable.load_ipython_extension(shell)  # twice is as good as once
    assert jax.vmap is not before
    malleable.unload_ipython_extension(shell)
    assert jax.vmap is before
    shell.run_cell(FUNCTION)
    assert "malleable" not in output(shell, capsys, "jax.jit(f)(1.0)")


def test_lines_of_a_cell_are_named_by_its_number(shell, capsys, monkeypatch):
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    shell.run_cell("import malleable as mal\ndef g(x):\n    return jnp.log(x)", store_history=True)
    cell = "import jax.numpy as jnp\nprint(mal.first_nonfinite(g)(jnp.array([-1.0])))"
    assert "made by `log` at In [1]:3 in g" in output(shell, capsys, cell)


def test_every_result_has_a_page_for_notebooks():
    f, x = (lambda x: jnp.log(x)), -jnp.ones(3)
    results = [
        malleable.show(f, quiet=True)(x),
        malleable.diff(f, lambda x: jnp.exp(x), quiet=True)(x),
        malleable.cost(f)(x),
        malleable.trace_calls(f)(x),
        malleable.first_nonfinite(f)(x),
        malleable.explain(f)(x),
        malleable.step(f)(x),
    ]
    for result in results:
        page = result._repr_html_()
        assert page.startswith("<") and "<lambda>" not in page, type(result)
