"""`malleable show|cost|explain|step|calls|source|save file.py:function --args ...`."""

import io
import subprocess

import jax.numpy as jnp
import pytest

import malleable as mal
from malleable.__main__ import argument, find_function, main

MODEL = """
import jax
import jax.numpy as jnp
from jax import lax

SIZE = 3

def step(c, x):
    return jnp.tanh(c * x), None

def model(x, n=2.0):
    return lax.scan(step, x[0] * n, x)[0].sum()

class Net:
    def forward(x):
        return x + 1

def positive(x):
    return x[x > 0].sum()
"""


@pytest.fixture
def model(tmp_path, monkeypatch):
    (tmp_path / "a_model.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    return "a_model.py:model"


def test_show_prints_the_program_under_its_lines(model, capsys):
    assert main(["show", model, "--args", "f32[4,3]"]) == 0
    told = capsys.readouterr().out
    assert "a_model.py:12" in told and "return jnp.tanh(c * x), None" in told


def test_show_runs_passes_and_writes_a_page(model, capsys, tmp_path):
    given = ["show", model, "--args", "f32[4,3]", "--passes", "dce,cse", "--html", "p.html"]
    assert main(given) == 0
    assert "wrote p.html" in capsys.readouterr().out
    assert "lax.scan(step" in (tmp_path / "p.html").read_text()


def test_cost_counts_and_draws(model, capsys, tmp_path):
    assert main(["cost", model, "--args", "f32[4,SIZE]"]) == 2  # a type has numbers
    assert main(["cost", model, "--args", "jnp.ones((4, SIZE))", "--html", "c.svg"]) == 0
    assert "a_model.py:9 in step" in capsys.readouterr().out
    assert (tmp_path / "c.svg").read_text().startswith("<svg")


def test_explain_says_what_is_compiled(model, capsys):
    assert main(["explain", "a_model.py:positive", "--args", "jnp.array([1.0, -2.0])"]) == 0
    told = capsys.readouterr().out
    assert "of operations" in told and "return x[x > 0].sum()" in told


def test_calls_are_a_tree(model, capsys):
    assert main(["calls", model, "--args", "f32[4,3]"]) == 0
    assert "└── scan of step" in capsys.readouterr().out


def test_source_runs(model, capsys):
    assert main(["source", model, "--args", "f32[4,3]"]) == 0
    names: dict = {}
    exec(capsys.readouterr().out, names)
    assert any(callable(x) for x in names.values())


def test_save_writes_what_load_reads(model, tmp_path):
    assert main(["save", model, "m.mal", "--args", "f32[4,3]", "--transformable"]) == 0
    x = argument("f32[4,3]", {})
    assert jnp.allclose(mal.load("m.mal")(x), find_function(model)[0](x))


def test_step_reads_commands(model, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO("step\nwhere\nquit\n"))
    assert main(["step", model, "--args", "f32[4,3]"]) == 0
    assert "a_model.py" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("nothing", "names no function"),
        ("a_model.py:absent", "there is no 'absent' in a_model.py\n  hint: there is: step, model"),
        ("a_model.py:SIZE", "is no function"),
        ("no_such_file.py:f", "there is no file"),
        ("no_such_module:f", "there is no module"),
    ],
)
def test_a_wrong_name_says_what_there_is(model, capsys, given, told):
    assert main(["show", given]) == 2
    assert told in capsys.readouterr().err


def test_a_wrong_argument_or_pass_is_named(model, capsys):
    assert main(["show", model, "--args", "f32[4,"]) == 2
    assert main(["show", model, "--args", "f32[4,3]", "--passes", "shrink"]) == 2
    assert main(["show", model, "--args", "f33[2]"]) == 2
    assert main(["show", model, "--args", "f32[4,3]", "--html", "absent/p.html"]) == 1
    told = capsys.readouterr().err
    assert "'f33[2]' is no type" in told and "absent/p.html" in told
    assert "'f32[4,' is no value" in told and "there is no pass 'shrink'" in told


def test_names_with_dots_and_types_of_every_kind(model):
    assert find_function("a_model.py:Net.forward")[0](1) == 2
    assert find_function("jax.numpy:sin")[0] is jnp.sin
    kinds = {text: argument(text, {}) for text in ("bool[3]", "i32[2,2]", "bf16[]", "u8[300]")}
    assert {k: str(x.dtype) for k, x in kinds.items()} == {
        "bool[3]": "bool", "i32[2,2]": "int32", "bf16[]": "bfloat16", "u8[300]": "uint8",
    }  # fmt: skip


@pytest.mark.parametrize(
    "text, shape, dtype",
    [
        ("float32[8,4]", (8, 4), "float32"),
        ("bfloat16[2]", (2,), "bfloat16"),
        ("bf16[2]", (2,), "bfloat16"),
        ("int8[]", (), "int8"),
        ("uint32[3]", (3,), "uint32"),
        ("complex64[3]", (3,), "complex64"),
        ("bool[2, 2]", (2, 2), "bool"),
    ],
)
def test_types_are_spelled_as_by_numpy_and_as_in_programs(text, shape, dtype):
    made = argument(text, {})
    assert made.shape == shape and made.dtype == dtype


def test_a_key_is_a_type_unless_the_module_has_one():
    assert str(argument("key", {}).dtype).startswith("key")
    assert argument("key[3]", {}).shape == (3,)
    assert argument("key", {"key": 7}) == 7


def test_a_function_may_be_an_expression(model, capsys):
    assert main(["show", "a_model.py:jax.grad(model)", "--args", "float32[4,3]"]) == 0
    assert main(["show", "lambda x: jnp.sin(x)", "--args", "float32[3]"]) == 0
    assert "sin" in capsys.readouterr().out


def test_forgotten_arguments_are_explained(model, capsys):
    assert main(["show", model]) == 2
    told = capsys.readouterr().err
    assert "takes (x, n=2.0), and 0 are given" in told and "--args 'float32[8,3]'" in told
    assert "Traceback" not in told


def test_what_the_function_raises_is_shown_at_its_line(model, capsys):
    assert main(["show", model, "--args", "'text'"]) == 1
    told = capsys.readouterr().err
    assert "a_model.py:12 in model" in told and "Traceback" not in told
    with pytest.raises(TypeError):
        main(["show", model, "--args", "'text'", "--traceback"])


def test_help_has_examples_and_says_what_the_exit_status_means(capsys):
    with pytest.raises(SystemExit):
        main(["show", "--help"])
    told = capsys.readouterr().out
    assert "examples:" in told and "exit status: 0" in told


def test_the_version_is_printed(capsys):
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"malleable {mal.__version__}\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_every_command(shell, capsys):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(word in script for word in ("show", "cost", "explain", "transformable"))


def test_bash_completes_commands_and_options(capsys):
    main(["completion", "bash"])
    script = capsys.readouterr().out
    ask = 'COMP_WORDS=({}); COMP_CWORD={}; _malleable; echo "${{COMPREPLY[@]}}"'
    run = lambda words, at: subprocess.run(
        ["bash", "-c", f"{script}\n{ask.format(words, at)}"], capture_output=True, text=True
    ).stdout.split()
    assert run("malleable so", 1) == ["source"]
    assert run("malleable show f.py:f --pa", 3) == ["--passes"]


def test_a_module_that_fails_is_told_by_its_line(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a_broken_module.py").write_text("def f(x): return x\n\n\nhalf = 1 / 0\n")
    assert main(["show", "a_broken_module.py:f", "--args", "1.0"]) == 1
    told = capsys.readouterr().err
    assert "ZeroDivisionError" in told and "a_broken_module.py:4" in told
    with pytest.raises(ZeroDivisionError):
        main(["show", "a_broken_module.py:f", "--args", "1.0", "--traceback"])


def test_what_jax_says_of_its_frames_is_left_out(capsys):
    assert main(["show", "jax.numpy:dot", "--args", "f32[3]", "f32[4]"]) == 1
    told = capsys.readouterr().err
    assert "same shape" in told and "For simplicity" not in told
