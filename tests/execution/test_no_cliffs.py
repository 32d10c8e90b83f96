"""What compiles under `jax.jit` compiles here, and new sizes and numbers cost no compilation."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import malleable as mal

X = jnp.linspace(0.1, 2.0, 64)
LOG = []


@contextlib.contextmanager
def silent(factor):
    with jax.named_scope("inner"):
        yield factor * 2


@contextlib.contextmanager
def closing():
    try:
        yield
    finally:
        jnp.zeros(())


@contextlib.contextmanager
def logged():
    LOG.append("in")
    try:
        yield
    finally:
        LOG.append("out")


@contextlib.contextmanager
def twice():
    for _ in range(1):
        yield


def in_scope(x):
    with jax.named_scope("a"):
        return jnp.tanh(x).sum()


def in_precision(x):
    with jax.default_matmul_precision("float32"):
        return (x @ x) * 2


def in_silent(x):
    with silent(2.0) as factor:
        y = x * factor
    return y.sum()


def in_closing(x):
    with closing(), contextlib.nullcontext():
        y = x * 2
    return y.sum()


def in_logged(x):
    with logged():
        y = x * 2
    return y.sum()


def in_loop(x):
    with twice():
        y = x * 2
    return y.sum()


def in_suppress(x):
    with contextlib.suppress(ValueError):
        y = x * 2
    return y.sum()


@pytest.mark.parametrize("fun", [in_scope, in_precision, in_silent, in_closing])
def test_contexts_that_change_only_how_jax_traces_are_compiled_through(fun):
    made = mal.jit(fun)
    for _ in range(3):
        assert np.allclose(made(X), fun(X), rtol=1e-5)
    assert list(made.regions) == ["_r1"]
    assert mal.explain(made)(X).breaks == []


@pytest.mark.parametrize("fun", [in_logged, in_loop, in_suppress])
def test_contexts_that_do_more_are_pythons(fun):
    made = mal.jit(fun)
    LOG.clear()
    for _ in range(3):
        assert np.allclose(made(X), fun(X), rtol=1e-5)
    assert len(LOG) == (12 if fun is in_logged else 0)
    assert "with " in made.source


def whole(x):
    return (jnp.tanh(x) * 2).sum()


def test_new_sizes_of_a_whole_function_run_in_one_program():
    made = mal.jit(whole)
    first = {}
    with mal.listen() as notes:
        for n in range(2, 30):
            first[n] = np.asarray(made(X[:n])).tobytes()
            assert np.allclose(made(X[:n]), whole(X[:n]), rtol=1e-5)
    assert sum("sizes keep changing" in note.what for note in notes) == 1
    part = made._partition()
    assert len(part.shapes) == 8 and part.is_sized()
    for n in reversed(range(2, 30)):  # each with the program that it had
        assert np.asarray(made(X[:n])).tobytes() == first[n]


def test_exact_sizes_stay_programs_of_their_own():
    made = mal.jit(whole, dynamic_sizes="exact")
    for n in range(2, 14):
        assert np.allclose(made(X[:n]), whole(X[:n]), rtol=1e-5)
    assert len(made._partition().shapes) == 12


def test_what_has_no_program_for_all_sizes_is_compiled_for_each():
    made = mal.jit(lambda x: jax.lax.fori_loop(0, 3, lambda i, y: jnp.linalg.inv(y), x))
    eye = jnp.eye(12) * 2
    for n in range(2, 13):
        assert np.allclose(made(eye[:n, :n]), np.eye(n) / 2, rtol=1e-5)


def test_gradients_of_many_sizes_are_those_of_the_function():
    made = mal.jit(whole)
    for n in range(2, 14):
        assert np.allclose(jax.grad(made)(X[:n]), jax.grad(whole)(X[:n]), rtol=1e-4)


def test_a_log_that_grows_is_no_new_function():
    @mal.jit
    def step(x, log):
        log.append(float(x.sum()))
        return jnp.sin(x) * 2

    log = []
    for k in range(24):
        step(X * k, log)
    assert len(log) == 24 and len(step.engines) == 2  # of an empty list, and of one with numbers


def test_lists_of_arrays_that_grow_are_one_kind_in_the_end():
    @mal.jit
    def keep(x, seen):
        seen.append(x)
        return float(x.sum())

    seen = []
    for k in range(30):
        keep(X * k, seen)
    assert len(keep.engines) < 20


def test_a_list_of_numbers_that_keeps_changing_makes_no_more_programs():
    def centred(x, log):
        log.append(float(x.sum()))
        return jnp.tanh(x - jnp.asarray(log).mean()) * 2

    fast, ours, theirs = mal.jit(centred), [], []
    with mal.listen() as said:
        for k in range(14):
            np.testing.assert_allclose(
                fast(X * k, ours), centred(X * k, theirs), rtol=1e-5, atol=1e-5
            )
    assert "asarray" in fast.source  # by Python, and what is behind it compiled
    assert any("keeps changing" in str(note) for note in said)


@pytest.mark.parametrize("dtype", ["float32", "int32", "bfloat16"])
def test_text_has_the_digits_that_jax_writes(dtype):
    def text(x):
        total = x.max()
        return f"{total} {total:>12} {total!r} {x[:2]}", x * 2

    x = jnp.asarray([0.1, 0.2, 3.7]).astype(dtype)
    assert mal.jit(text)(x)[0] == text(x)[0]


def test_an_error_that_is_caught_comes_again_and_again():
    def pick(x, k):
        try:
            return [x, x * 2][k].sum()
        except IndexError:
            return x.max()

    fast = mal.jit(pick)
    for k in (0, 1, 2, 2, 1, 2, 0):
        assert np.isclose(fast(X, k), pick(X, k))
    with pytest.raises(TypeError):
        fast(X, "a")
