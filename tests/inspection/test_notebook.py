"""`%load_ext malleable` explains errors in the cells of a notebook, and unloads without a trace."""

import jax
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
