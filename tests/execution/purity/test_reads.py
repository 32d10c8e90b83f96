"""What helpers read beside their arguments is read in each call of a function under `mal.jit`."""

import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import malleable as mal

X = jnp.array([1.0, -2.0, 4.0])
W = np.array([1.0, 2.0, 3.0], np.float32)
PAIR = (W, 2.0)


def scaled(x, by=2.0):
    return x * by


def weighted(x, w=W):
    return x * w


def weighed(x):
    return x * W


def paired(x):
    return x * PAIR[0]


def held(x):
    return paired(x) + 1


HELD = functools.partial(weighted, w=W)


class Model:
    @staticmethod
    def shifted(x, by=1.0):
        return x + by

    @classmethod
    def moved(cls, x, by=1.0):
        return x - by


def agree(*pairs):
    """Each (jitted, function) gives the same, the second time too."""
    for jitted, fun in pairs:
        for _ in range(2):
            np.testing.assert_allclose(jitted(X), fun(X), rtol=1e-6)


def jitted(*functions):
    return [(mal.jit(f), f) for f in functions]


def test_defaults_of_what_a_closure_holds_may_be_assigned():
    def local(x, by=2.0, *, and_=1.0):
        return x * by + and_

    pairs = jitted(
        lambda x: jnp.sin(local(x)).sum(),
        lambda x: local(x[x > 0]).sum(),
        lambda x: jax.vmap(local)(x).sum(),
    )
    agree(*pairs)
    local.__defaults__ = (5.0,)
    agree(*pairs)
    local.__kwdefaults__["and_"] = 7.0  # pyright: ignore[reportOptionalSubscript]
    agree(*pairs)
    local.__kwdefaults__ = {"and_": 11.0}
    agree(*pairs)
    local.__defaults__ = (jnp.arange(3.0),)
    agree(pairs[0])


def test_defaults_of_what_is_found_by_attribute_may_be_assigned(monkeypatch):
    pairs = jitted(
        lambda x: Model.shifted(x).sum(),
        lambda x: Model.shifted(x[x > 0]).sum() + Model.moved(x).sum(),
    )
    for by in (1.0, 4.0, 9.0):
        monkeypatch.setattr(Model.shifted, "__defaults__", (by,))
        monkeypatch.setattr(Model.moved.__func__, "__defaults__", (2 * by,))
        agree(*pairs)


def test_the_code_of_a_helper_may_be_replaced():
    def local(x):
        return x * 2

    pairs = jitted(lambda x: jnp.sin(local(x)))
    agree(*pairs)
    local.__code__ = (lambda x: x * 3).__code__
    agree(*pairs)


def test_arrays_that_helpers_read_may_be_written_in_place():
    table = np.ones(3, np.float32)

    def local(x):
        return x * table

    def own(x, w=W):
        return (x * w).sum()

    def named(x, *, w=(W, 1.0)):
        return (x * w[0]).sum()

    pairs = jitted(
        *(own, named, weighed),
        lambda x: weighted(x).sum(),
        lambda x: weighted(x[x > 0][:1]).sum(),
        lambda x: weighed(x).sum() + local(x).sum(),
        lambda x: held(x).sum(),
        lambda x: HELD(x).sum(),
        lambda x: jax.vmap(lambda v: weighed(v).sum())(jnp.stack([x, x])),
        lambda x: jax.grad(lambda v: local(v).sum())(x),
    )
    before = W.copy()
    for _ in range(3):
        agree(*pairs)
        W[1] += 3
        table[0] += 2
    W[:] = before


def test_variables_that_helpers_close_over_may_be_bound_again():
    def around(k):
        def local(x):
            return x * k

        pairs = jitted(lambda x: jnp.sin(local(x)))
        agree(*pairs)
        k = jnp.arange(3.0)
        agree(*pairs)
        k = 7
        agree(*pairs)

    around(2.0)


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module of the user's with a class, whose method calls a helper that reads a variable."""
    lines = (
        *("K = 2.0", "def helper(x):", "    return x * K"),
        *("class C:", "    def method(self, x):", "        return helper(x).sum() + 1"),
    )
    (tmp_path / "of_user.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)
    yield __import__("of_user")
    del sys.modules["of_user"]


def test_what_helpers_of_methods_in_other_modules_read_may_change(module):
    c = module.C()
    pairs = jitted(lambda x: c.method(x) + x[x > 0].sum())
    agree(*pairs)
    module.K = 5.0
    agree(*pairs)
    module.helper = lambda x: x * 100
    agree(*pairs)


def test_functions_of_one_code_are_each_looked_at(capsys):
    def doubled(fun):
        return lambda x: fun(x) * 2

    def noisy(x):
        print("here")
        return x + 1

    quiet, loud = doubled(jnp.sin), doubled(noisy)
    agree(*jitted(lambda x: quiet(x)))
    capsys.readouterr()
    shown = mal.jit(lambda x: loud(x).sum())
    for _ in range(3):
        shown(X)
    assert capsys.readouterr().out == "here\n" * 3


def test_what_jax_makes_of_a_function_is_made_again_where_that_reads_another():
    def loss(x, by=1.0):
        return ((x * W) ** 2).sum() * by

    gradient, each, before = mal.jit(jax.grad(loss)), mal.jit(jax.vmap(loss)), W.copy()
    for by in (1.0, 2.0, 3.0):
        loss.__defaults__ = (by,)
        W[0] += 1
        for _ in range(2):
            np.testing.assert_allclose(gradient(X), jax.grad(loss)(X), rtol=1e-6)
            np.testing.assert_allclose(each(X[None]), jax.vmap(loss)(X[None]), rtol=1e-6)
    W[:] = before


def test_what_jax_makes_of_a_function_that_acts_is_left_to_python(capsys):
    def loss(x):
        print("here")
        return (x**2).sum()

    gradient = mal.jit(jax.grad(loss))
    for _ in range(3):
        np.testing.assert_allclose(gradient(X), 2 * X)
    assert capsys.readouterr().out == "here\n" * 3


def test_a_function_is_the_same_though_somebody_read_its_annotations():
    def scaled(x, factor=2.0):
        return x * factor

    @mal.jit
    def f(x, log):
        y = scaled(x)
        log.append(1)
        return y + 1

    f(jnp.ones(3), [])
    due = f.source
    assert scaled.__annotations__ == {} and vars(scaled) == {}  # both are made when asked for
    f(jnp.ones(3), [])
    assert f.source == due and "scaled" not in due
