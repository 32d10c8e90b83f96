"""Which way a region runs, and that the way changes nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import malleable as mal
from benchmarks.selective_fits import FITS, bits, kinds_of_bits
from malleable.execution.cutting import partition


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


@pytest.mark.parametrize("name", ["kmeans_empty", "early_stop_descent"])
def test_one_input_has_one_result(name):
    assert kinds_of_bits(FITS[name], calls=5) == 1


def selected(x):
    kept = x[x > 0.5]
    scaled = jnp.tanh(kept[:, None] * jnp.arange(32.0)).mean(1) * kept.mean()
    print(end="")
    return jnp.cumsum(scaled), (scaled @ scaled) / kept.shape[0], jnp.sort(jnp.exp(scaled))[:3]


def test_what_was_called_before_does_not_change_a_result():
    """Sizes from small work, that NumPy does, to work for XLA, in either order."""
    inputs = [jax.random.uniform(jax.random.key(n), (n,)) for n in (30, 31, 3000, 60_000, 61_000)]
    one, other = mal.jit(selected), mal.jit(selected)
    there = [bits(one, (x,)) for x in inputs]
    back = [bits(other, (x,)) for x in reversed(inputs)]
    assert there == back[::-1]
    assert there == [bits(one, (x,)) for x in inputs]


def test_larger_work_of_sizes_that_depend_on_values_shares_a_program():
    jitted = mal.jit(selected)
    for n in (60_000, 60_500, 61_000):
        jitted(jax.random.uniform(jax.random.key(n), (n,)))
    buckets = {
        id(variant.buckets): variant.buckets.compiled
        for state in states(jitted)
        for variant in state.sized.values()
        if variant.buckets
    }
    assert buckets and max(buckets.values()) == 1
