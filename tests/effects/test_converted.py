"""Effects and transformations around converted functions, and within them."""

import functools

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

import malleable as mal

XS = jnp.arange(3.0)


def tagged(x):
    y = mal.tag(jnp.sin(x), "y")
    if y.sum() > 0:
        y = y * 2
    return y.sum()


def tagged_by_jax(x):
    y = mal.tag(jnp.sin(x), "y")
    return jnp.where(y.sum() > 0, 2 * y, y).sum()


def doubled_if_positive(x):
    return x * 2 if x > 0 else x


def test_effects_around_a_converted_function():
    fun, wanted = mal.autograph(tagged), 2 * jnp.sin(XS).sum()
    out, tags = mal.reap(fun)(XS)
    np.testing.assert_allclose(out, wanted)
    np.testing.assert_allclose(tags["y"], jnp.sin(XS))
    assert mal.plant(fun)({"y": jnp.ones(3)}, XS) == 6
    np.testing.assert_allclose(mal.cotangents(fun)(XS)[1]["y"], [2, 2, 2])
    np.testing.assert_allclose(jax.jit(jax.grad(fun))(XS), 2 * jnp.cos(XS))


def test_tags_of_a_loop_and_of_an_array_that_is_changed_after():
    def f(x):
        a, total = np.zeros(3), 0.0
        a[0] = x[1]
        with mal.scope("s"):
            kept = mal.tag(a, "a")
        a[1] = 5
        for i in range(3):
            total = mal.tag(total + x[i], f"t{i}")
        return total, a, kept

    (total, a, _), tags = mal.reap(mal.autograph(f))(XS)
    assert total == 3 and a.tolist() == [1, 5, 0] and tags["s"]["a"].tolist() == [1, 0, 0]
    assert [float(tags[f"t{i}"]) for i in range(3)] == [0, 1, 3]
    _, a, kept = jax.jit(mal.autograph(f))(XS)
    assert a.tolist() == kept.tolist() == [1, 5, 0]  # nobody asks for tags: one array


def test_parameters_and_keys_of_a_converted_function():
    def f(x):
        w, total = mal.param("w", lambda key, shape: jnp.ones(shape), (3,)), 0.0
        for i in range(3):
            if x[i] > 0:
                total += w[i] * x[i]
        return total + 0 * jax.random.normal(mal.next_key())

    fun = mal.seed(mal.autograph(f))
    params = mal.init(fun)(jax.random.key(0), jax.random.key(1), XS)
    assert mal.apply(fun)(params, jax.random.key(1), XS) == 3


def reaped(x, fun=tagged):
    out, tags = mal.reap(fun)(x)
    return doubled_if_positive(out) + tags["y"].sum()


def planted(x, fun=tagged):
    return doubled_if_positive(mal.plant(fun)({"y": x * 2}, x))


def optimized(x):
    kernel = lambda y: jnp.sum(jnp.exp(y[:, None] * y[None]))
    return doubled_if_positive(mal.optimize(kernel, mal.push_up_reductions, mal.stream)(x))


def interpreted(x):
    rules = {lax.tanh_p: lambda frame, x, **params: lax.sin(x)}
    return doubled_if_positive(mal.interpret(lambda y: jnp.tanh(y).sum(), rules)(x)[0])


def seeded(x):
    noisy = mal.seed(lambda y: y + jax.random.normal(mal.next_key(), y.shape))
    return doubled_if_positive(noisy(jax.random.key(1), x).sum())


def as_steps(x):
    carry, step = mal.as_scan(jnp.cumsum, x)
    ys = lax.scan(step, carry, x)[1]
    return doubled_if_positive(ys[-1])


@pytest.mark.parametrize(
    "fun",
    [reaped, planted, optimized, interpreted, seeded, as_steps],
    ids=lambda f: f.__name__,
)
def test_transformations_within_a_converted_function(fun):
    plain = functools.partial(fun, fun=tagged_by_jax) if fun in (reaped, planted) else fun
    wanted = plain(XS)
    np.testing.assert_allclose(jax.jit(mal.autograph(fun))(XS), wanted, rtol=1e-5)
    batch = jnp.stack([XS, XS + 1])
    np.testing.assert_allclose(
        jax.vmap(mal.autograph(fun))(batch), [plain(x) for x in batch], rtol=1e-5
    )
