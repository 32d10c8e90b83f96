"""What jax2onnx replaces while it works is as it was afterwards."""

import importlib.util
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import malleable as mal
from malleable import MalleableError, compat

if importlib.util.find_spec("jax2onnx") is None:
    pytest.skip("needs the extra `onnx`", allow_module_level=True)

import equinox  # noqa: F401  it is replaced in, too
import flax.linen
import flax.nnx

from malleable.integrations.onnx.restoring import PACKAGES, is_foreign, owners_of, restored

X = np.linspace(-1.0, 1.0, 6, dtype=np.float32).reshape(2, 3)
CALLS = {
    "cumsum": lambda x: jnp.cumsum(x, 0),
    "concatenate": lambda x: jnp.concatenate([x, x + 1], -1),
    "nn": lambda x: jax.nn.softmax(jax.nn.gelu(x), -1) + jax.nn.relu(x) * jax.nn.sigmoid(x),
}
WAYS = {
    "eagerly": lambda fun: fun,
    "jit": lambda fun: jax.jit(lambda x: fun(x)),
    "grad": lambda fun: jax.grad(lambda x: jnp.sum(fun(x) ** 2)),
    "vmap": jax.vmap,
}


def softened(x):
    return jnp.cumsum(jax.nn.softmax(x), 1)


def names(x):
    return x if isinstance(x, dict) else vars(x)


def contents():
    """[(x, what is in x)] for each module, class, primitive and table of functions."""
    owners = owners_of(PACKAGES)
    values = [value for owner in owners for value in list(vars(owner).values())]
    inside = [x for x in values if isinstance(x, (dict, compat.Primitive))]
    return [(x, dict(names(x))) for x in [*owners, *inside]]


def changed(before):
    """The names whose function or class is another, and those that jax2onnx has added."""
    found = []
    for x, was in before:
        now = dict(names(x))
        found += [(x, k) for k, old in was.items() if callable(old) and now.get(k) is not old]
        if not isinstance(x, dict):
            new = {k: v for k, v in now.items() if k not in was}
            added = [k for k, v in new.items() if is_foreign(v) or isinstance(v, compat.Primitive)]
            found += [(x, k) for k in added]
    return found


def test_the_functions_of_jax_are_as_they_were():
    before = contents()
    want = {(c, w): WAYS[w](CALLS[c])(X) for c in CALLS for w in WAYS}
    programs = {c: str(jax.make_jaxpr(fun)(X)) for c, fun in CALLS.items()}
    mal.export.onnx(softened, X)
    assert changed(before) == []
    for c, w in want:
        assert np.array_equal(WAYS[w](CALLS[c])(X), want[c, w]), (c, w)
    assert {c: str(jax.make_jaxpr(fun)(X)) for c, fun in CALLS.items()} == programs
    left = [x for owner in owners_of(PACKAGES) for x in vars(owner).values() if is_foreign(x)]
    assert left == []  # nor from the import of jax2onnx, whoever was the first to export


def test_methods_of_classes_are_as_they_were():
    heads, conv = flax.linen.MultiHeadAttention, flax.linen.Conv
    before = dict(vars(heads)), dict(vars(conv))
    mal.export.onnx(softened, X)  # jax2onnx leaves __call__ of the first replaced
    assert (dict(vars(heads)), dict(vars(conv))) == before


def test_a_copy_of_a_replaced_function_is_put_back_too(monkeypatch):
    monkeypatch.setattr(flax.nnx, "cumsum_of_jax", None, raising=False)
    found = jnp.cumsum
    with restored():
        jnp.cumsum = flax.nnx.cumsum_of_jax = written_in_jax2onnx()
    assert jnp.cumsum is found and flax.nnx.cumsum_of_jax is found


def written_in_jax2onnx():
    space = {"__name__": "jax2onnx.plugins"}
    exec("def fun(): pass", space)
    return space["fun"]


def test_all_is_put_back_after_an_error(monkeypatch):
    found = jnp.cumsum
    with pytest.raises(ZeroDivisionError), restored():
        jnp.cumsum, jnp.cumsum_p = written_in_jax2onnx(), compat.Primitive("cumsum")
        raise ZeroDivisionError
    assert jnp.cumsum is found and not hasattr(jnp, "cumsum_p")


def test_an_export_prints_and_draws_nothing():
    handlers = list(logging.getLogger().handlers)
    np.random.seed(1)
    want = np.random.rand()
    np.random.seed(1)
    mal.export.onnx(softened, X)
    assert np.random.rand() == want
    assert logging.getLogger().handlers == handlers


@pytest.mark.parametrize("wide", [False, True])
def test_numbers_of_64_bits_stay_allowed_or_not(wide):
    was = jax.config.read("jax_enable_x64")
    with jax.enable_x64(wide):
        exported = mal.export.onnx(lambda x: x * 2, X)
        assert list(exported.errors) == ["out"]
    assert jax.config.read("jax_enable_x64") == was and jnp.arange(3.0).dtype == np.float32


def test_all_is_as_it_was_after_a_refusal():
    before = contents()
    with pytest.raises(MalleableError):
        mal.export.onnx(lambda x: jax.pure_callback(np.sin, x, x), X)
    assert changed(before) == []
