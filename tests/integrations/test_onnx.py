"""Programs as ONNX: named by line before the attempt, rewritten where that helps, checked after."""

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import malleable as mal
from malleable import MalleableError

if importlib.util.find_spec("jax2onnx") is None:
    pytest.skip("needs the extra `onnx`", allow_module_level=True)

from malleable.integrations.onnx import export as onnx_files
from malleable.integrations.onnx.preflight import preflight

X = jnp.linspace(-1.0, 1.0, 6).reshape(2, 3)


def rnn(x):
    return lax.scan(lambda h, v: (jnp.tanh(h + v), h), jnp.zeros(3), x, reverse=True)[1]


def shuffled(x):
    step = lambda h, v: (jnp.tanh(v + h[:, jnp.array([2, 0, 1])]), None)
    return lax.scan(step, x, jnp.ones(3))[0]


PROGRAMS = {
    "reverse scan": rnn,
    "gradient of a scan": jax.grad(lambda x: rnn(x).sum()),
    "indices in a scan, whose gradient scatters": jax.grad(lambda x: shuffled(x).sum()),
    "switch of three": lambda x: lax.switch(2, [jnp.sin, jnp.cos, jnp.tanh], x),
    "fori_loop that closes over": lambda x: lax.fori_loop(0, 3, lambda i, c: c * x, x),
    "while": lambda x: lax.while_loop(lambda c: c.sum() < 5, lambda c: c + 1.0, x),
    "pytrees": lambda x: {"a": x + 1, "b": (x.sum(), x > 0)},
}


@pytest.mark.in_turns
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_exported_is_right_in_onnxruntime(name, tmp_path):
    exported = mal.export.onnx(PROGRAMS[name], X, path=tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx").stat().st_size > 100
    assert max(exported.errors.values()) < 1e-5


def test_what_cannot_go_is_named_by_line_before_the_attempt():
    def model(x):
        return jnp.linalg.svd(x)[1]

    (problem, *_) = preflight(model, X)
    assert "svd" in str(problem)
    with pytest.raises(MalleableError, match=r"test_onnx\.py:\d+.*svd"):
        mal.export.onnx(model, X)


def test_a_wrong_model_is_not_written(tmp_path, monkeypatch):
    other = mal.export.onnx(lambda x: x + 2.0, X).model
    monkeypatch.setattr(onnx_files, "convert", lambda prepared, opset: other)
    path = tmp_path / "m.onnx"
    with pytest.raises(MalleableError, match="the ONNX model is wrong"):
        mal.export.onnx(lambda x: x + 1.0, X, path=path)
    assert not path.exists()


def test_static_arguments_are_no_inputs():
    scaled = jax.jit(lambda x, n, y: x * n + y, static_argnums=1)
    for options in ({}, {"polymorphic": ["b, 3", "", "b, 3"]}):
        model = mal.export.onnx(scaled, X, 2, X, **options).model
        assert [entry.name for entry in model.graph.input] == ["x", "y"]


def test_a_symbolic_size_holds_for_other_sizes():
    exported = mal.export.onnx(lambda x: jnp.tanh(x) @ x.T, X, polymorphic=["b, 3"])
    assert max(exported.errors.values()) < 1e-5
    assert np.isfinite(list(exported.errors.values())).all()
