"""Which way a region runs, and that the way changes nothing."""

import jax
import jax.numpy as jnp
import numpy as np

import malleable as mal
from malleable.execution import families, partition, regions


def states(selective):
    """What is known of every region of a function and of those it calls."""
    return [
        state
        for part in selective.engine.known.values()
        for region in partition.regions(part.tree.body)
        for state in region.states.values()
    ]


def test_items_of_an_array_stay_arrays_of_jax():
    def f(x, y):
        kept, seen = [], []
        for i, v in enumerate(x):
            seen.append(type(v).__name__)
            if v > i:
                kept.append(v)
        for a, b in zip(x, y):
            print(float(a), b.shape)
            kept.append(b)
        return kept, seen

    x, y = jnp.array([1.0, -2.0, 3.0]), jnp.ones((3, 2))
    expected, made = f(x, y), mal.jit(f)
    for _ in range(3):
        found = made(x, y)
        assert [type(a) for a in found[0]] == [type(a) for a in expected[0]]
        assert found[1] == expected[1]
        jax.tree.map(np.testing.assert_array_equal, found[0], expected[0])


def test_a_branch_not_taken_at_first_is_compiled_too():
    def f(x):
        size = float(x.sum())
        if abs(size) > 10 and x.min() > 0:
            return jnp.log(x[x > 0.5]), "log"
        return x[x > 0.5], "plain"

    made = mal.jit(f)
    for x in (jnp.ones(3), 20 * jnp.ones(3), -20 * jnp.ones(4), 20 * jnp.ones(5)):
        found, expected = made(x), f(x)
        np.testing.assert_allclose(found[0], expected[0])
        assert found[1] == expected[1]


def test_an_array_of_ours_needs_no_program_of_its_own():
    def f(x):
        kept = x[x > 0]
        return jnp.sin(kept).sum()

    made, x = mal.jit(f), jnp.array([1.0, -2.0, 3.0])
    for _ in range(4):
        np.testing.assert_allclose(made(x), f(x), rtol=1e-6)
    assert all(len(state.variants) <= 1 for state in states(made))


def test_sizes_of_one_have_a_family_too():
    def f(x, y):
        kept = x[x > 0]
        return jnp.tanh(kept[:, None] + y).sum(0)

    made = mal.jit(f)
    for count in range(2, 8):
        for positive in (0, 1, 2):
            x = np.where(np.arange(4) < positive, 1, -1).astype("f")
            y = np.arange(count, dtype="f")
            expected = np.tanh(x[x > 0][:, None] + y).sum(0)
            np.testing.assert_allclose(made(*map(jnp.asarray, (x, y))), expected, rtol=1e-5)
    assert all(len(state.variants) <= 6 for state in states(made))


def test_a_size_that_comes_on_and_on_has_its_own_program(monkeypatch):
    monkeypatch.setattr(regions, "DISPATCH", 0.0)
    monkeypatch.setattr(families, "DISPATCH", 0.0)
    monkeypatch.setattr(families, "BASE", 1e-5)
    monkeypatch.setattr(families, "PER_EQN", 0.0)

    def f(x):
        kept = x[x > 0]
        while jnp.abs(kept).max() > 0.01:
            kept = kept * 0.5
        return kept

    made = mal.jit(f)
    for count in (5, 6, *[8] * 12, 5):
        x = np.where(np.arange(10) < count, 1, -1).astype("f")
        np.testing.assert_allclose(made(jnp.asarray(x)), np.full(count, 2.0**-7))
    assert any(len(state.variants) >= 2 for state in states(made))


def test_a_function_that_is_called_hands_on_arrays_of_ours():
    def inner(x):
        kept = x[x > 0]
        return kept * 2, [kept.sum()]

    def f(x):
        kept, total = inner(x)
        print(type(total[0]).__name__, type(kept).__name__)
        more, _ = inner(kept - 1.0)
        return more, total, kept

    made, x = mal.jit(f), jnp.array([1.0, -2.0, 3.0])
    for _ in range(3):
        found, expected = made(x), f(x)
        assert jax.tree.map(type, found) == jax.tree.map(type, expected)
        jax.tree.map(np.testing.assert_allclose, found, expected)


def test_a_variable_without_a_value_leaves_a_region_without_one():
    def late(x, n):
        if n > 3:
            y = x * 2
        total = x.sum() * 2
        print(end="")
        return y if n > 3 else total

    jitted = mal.jit(late)
    for n in (2, 5, 2):
        assert jnp.allclose(jitted(jnp.ones(3), n), late(jnp.ones(3), n))
    (region,) = jitted.regions.values()
    assert "y = x * 2" in region and "x.sum()" in region  # one, though `y` may have no value


def test_what_is_one_region_is_one_jit_to_others():
    fun = lambda x: jnp.sin(x) + 1
    selected, x = mal.jit(fun), jnp.ones(3)
    due = str(jax.make_jaxpr(jax.jit(fun))(x))
    assert str(jax.make_jaxpr(selected)(x)) == due
    for _ in range(3):
        selected(x)
    assert str(jax.make_jaxpr(selected)(x)) == due
