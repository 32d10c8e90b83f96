"""Any program: an update gives what the function gives on the new arguments, for less work."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from malleable import TransformError, as_scan, cost, incremental, listen


def x(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def put(array, block, starts):
    return lax.dynamic_update_slice(jnp.asarray(array), jnp.asarray(block), starts)


def flop(f, *args):
    found = jax.jit(f).lower(*args).compile().cost_analysis()
    return (found[0] if isinstance(found, list) else found)["flops"]


def blur(image):
    kernel = jnp.ones((3, 3, 1, 1)) / 9
    numbers = ("NHWC", "HWIO", "NHWC")
    for _ in range(2):
        padded = image[None, :, :, None]
        image = jnp.tanh(
            lax.conv_general_dilated(padded, kernel, (1, 1), "SAME", dimension_numbers=numbers)
        )[0, :, :, 0]
    return image


@pytest.mark.parametrize("at", [(0, 0), (39, 29), (20, 11)])
def test_a_pixel_changes_what_is_around_it(at):
    image = x(40, 30)
    init, update = incremental(blur, change={0: (1, 1)})
    y, state = init(image)
    np.testing.assert_allclose(y, blur(image), 1e-6, 1e-6)
    y, state = update(state, {0: (np.ones((1, 1), np.float32), at)})
    image = put(image, np.ones((1, 1), np.float32), at)
    np.testing.assert_allclose(y, blur(image), 1e-6, 1e-6)
    work = flop(lambda s: update(s, {0: (jnp.ones((1, 1)), at)}), state)
    assert work < flop(blur, image) / 20


def test_states_are_pytrees_in_loops_under_vmap_and_on_disk():
    values = x(50)
    init, update = incremental(lambda v: jnp.cumsum(jnp.sin(v))[::2].sum(), change={0: (1,)})
    _, state = jax.jit(init)(values)

    def move(state, t):
        y, state = update(state, {0: (jnp.ones(1) * t, (t,))})
        return state, y

    _, ys = jax.jit(lambda s: lax.scan(move, s, jnp.arange(0, 40, 10)))(state)
    now = values
    for y, t in zip(ys, range(0, 40, 10), strict=True):
        now = put(now, np.float32([t]), (t,))
        np.testing.assert_allclose(y, jnp.cumsum(jnp.sin(now))[::2].sum(), 1e-5)

    places = jnp.array([3, 30])
    many = jax.vmap(lambda t: update(state, {0: (jnp.zeros(1), (t,))})[0])(places)
    for y, t in zip(many, places, strict=True):
        now = put(values, np.zeros(1, np.float32), (t,))
        np.testing.assert_allclose(y, jnp.cumsum(jnp.sin(now))[::2].sum(), 1e-5)

    again = pickle.loads(pickle.dumps(jax.device_get(state)))
    _, fresh = incremental(lambda v: jnp.cumsum(jnp.sin(v))[::2].sum(), change={0: (1,)})
    np.testing.assert_allclose(fresh(again, {0: (jnp.zeros(1), (3,))})[0], many[0], 1e-6)


def test_the_gradient_goes_through_an_update():
    values, f = x(20), lambda v: jnp.tanh(v).sum() ** 2
    init, update = incremental(f, change={0: (2,)})
    _, state = init(values)
    ours = jax.grad(lambda b: update(state, {0: (b, (5,))})[0])(jnp.ones(2))
    plain = jax.grad(lambda b: f(put(values, b, (5,))))(jnp.ones(2))
    np.testing.assert_allclose(ours, plain, 1e-5)


def test_starts_are_clipped_as_those_of_dynamic_update_slice():
    values = x(10)
    init, update = incremental(jnp.sin, change={0: (3,)})
    _, state = init(values)
    for start in (-2, 9, 100, -100):
        y, _ = update(state, {0: (jnp.ones(3), (start,))})
        np.testing.assert_array_equal(y, jnp.sin(put(values, np.ones(3, np.float32), (start,))))


def test_what_was_infinite_or_large_leaves_nothing_behind():
    values = x(3000)
    values[7], values[8], values[9] = np.inf, np.nan, 1e30
    init, update = incremental(jnp.sum, change={0: (3,)})
    _, state = init(values)
    y, _ = update(state, {0: (jnp.zeros(3), (7,))})
    values[7:10] = 0
    np.testing.assert_allclose(y, values.sum(), 1e-5, 1e-4)


def test_arguments_are_trees_and_have_names():
    def f(scores, *, rates):
        return {"total": (scores["a"] * rates).sum() + scores["b"].sum(), "a": scores["a"] + 1}

    scores, rates = {"a": x(30), "b": x(30, seed=1)}, x(30, seed=2)
    init, update = incremental(f, change={0: {"a": (1,)}, "rates": (2,)})
    _, state = init(scores, rates=rates)
    changes = {0: ({"a": jnp.ones(1)}, {"a": (4,)}), "rates": (jnp.ones(2), (7,))}
    y, state = update(state, changes)
    scores = scores | {"a": put(scores["a"], np.ones(1, np.float32), (4,))}
    rates = put(rates, np.ones(2, np.float32), (7,))
    want = f(scores, rates=rates)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-5), y, want)
    y, _ = update(state, {"rates": (jnp.zeros(2), (0,))})  # the other stays as it is
    want = f(scores, rates=put(rates, np.zeros(2, np.float32), (0,)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-5), y, want)


def test_layers_in_a_scan_keep_their_boxes():
    ws = x(4, 8, 8)

    def f(h):
        return lax.scan(lambda h, w: (jnp.tanh(h @ w), h.sum()), h, ws)

    rows = x(200, 8)
    init, update = incremental(f, change={0: (1, None)})
    _, state = init(rows)
    y, state = update(state, {0: (np.ones((1, 8), np.float32), (17, 0))})
    want = f(put(rows, np.ones((1, 8), np.float32), (17, 0)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-4, 1e-4), y, want)
    work = flop(lambda s: update(s, {0: (jnp.ones((1, 8)), (17, 0))}), state)
    assert work < flop(f, rows) / 10


def test_rows_of_a_map_are_computed_one_by_one():
    rows = x(100, 6)
    f = lambda rows: lax.map(lambda r: jnp.sort(r) @ jnp.ones(6), rows)
    init, update = incremental(f, change={0: (1, None)})
    _, state = init(rows)
    y, _ = update(state, {0: (np.ones((1, 6), np.float32), (3, 0))})
    np.testing.assert_allclose(y, f(put(rows, np.ones((1, 6), np.float32), (3, 0))), 1e-5)


@pytest.mark.parametrize("at", [0, 1, 57, 98, 99])
def test_a_chain_forgets_after_some_steps(at):
    """Each term of a density needs the value before, and the one before that."""

    def f(z):
        def term(before, z):
            last, older = before
            return (z, last), -((z - 2 * last + jnp.sin(older)) ** 2)

        (last, _), terms = lax.scan(term, (jnp.zeros(3), jnp.ones(3)), z)
        return terms.sum() + last.sum()

    z, block = x(100, 3), np.ones((1, 3), np.float32)
    init, update = incremental(f, change={0: (1, None)})
    _, state = init(z)
    y, state = update(state, {0: (block, (at, 0))})
    z = put(z, block, (at, 0))
    np.testing.assert_allclose(y, f(z), 1e-5)
    y, state = update(state, {0: (2 * block, (min(at + 1, 99), 0))})
    z = put(z, 2 * block, (min(at + 1, 99), 0))
    np.testing.assert_allclose(y, f(z), 1e-5)
    for one, other in zip(jax.tree.leaves(state), jax.tree.leaves(init(z)[1]), strict=True):
        np.testing.assert_allclose(one, other, 1e-5, 1e-5)
    program = jax.make_jaxpr(lambda s: update(s, {0: (block, (at, 0))})[0])(state)
    lengths = [e.params["length"] for e in program.jaxpr.eqns if e.primitive.name == "scan"]
    assert lengths == [3]


def test_what_is_computed_whole_is_said():
    with listen() as heard:
        init, _ = incremental(lambda v: jnp.linalg.inv(jnp.diag(v) + 1), change={0: (1,)})
        init(x(4))
    assert any("computed whole" in n.what and "test_incremental.py" in n.where for n in heard)


@pytest.mark.parametrize(
    "f",
    [
        lambda a: a / a.sum(),
        lambda a: jnp.sort(jnp.tanh(a)),
        lambda a: jnp.convolve(a, jnp.ones(9), "same")[::-1].reshape(2, 10).T + a.sum(),
    ],
)
def test_an_update_never_costs_more_than_the_function(f):
    init, update = incremental(f, change={0: (7,)})
    a, block = jnp.arange(20.0), jnp.ones(7)
    y, state = init(a)
    again = cost(lambda state, block: update(state, {0: (block, (9,))}))(state, block)
    assert again.flops <= cost(f)(a).flops + a.size + y.size
    np.testing.assert_allclose(update(state, {0: (block, (9,))})[0], f(a.at[9:16].set(1)), 1e-6)


def test_an_empty_part_of_what_is_joined_makes_nothing_dirty():
    f = lambda v: jnp.repeat(jnp.roll(v, 0, 0)[::2], 2, 0)
    init, update = incremental(f, change={0: (1, None)})
    _, state = init(x(8, 3))
    y, _ = update(state, {0: (np.ones((1, 3), np.float32), (4, 0))})
    np.testing.assert_array_equal(y, f(put(x(8, 3), np.ones((1, 3), np.float32), (4, 0))))


def test_integers_are_equal_bit_by_bit():
    values = np.arange(600) % 7
    init, update = incremental(lambda v: (jnp.cumsum(v), v.sum(), v.max()), change={0: (1,)})
    _, state = init(values)
    y, state = update(state, {0: (jnp.array([9]), (300,))})
    values[300] = 9
    want, fresh = init(values)
    for one, other in zip(jax.tree.leaves((y, state)), jax.tree.leaves((want, fresh)), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({0: (1, 1)}, "does not fit into argument 0"),
        ({0: (11,)}, "does not fit into argument 0"),
        ({1: (1,)}, "no array among the arguments"),
        ({"y": (1,)}, "no array among the arguments"),
        ({0: 3}, "no sizes"),
    ],
)
def test_a_change_that_fits_no_argument_is_an_error(change, message):
    init, _ = incremental(jnp.sin, change=change)
    with pytest.raises(TransformError, match=message) as caught:
        init(x(10))
    assert "test_incremental.py" in str(caught.value).splitlines()[1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({0: (np.ones(2, np.float32), (0,))}, r"takes blocks of shape \(1,\)"),
        ({0: (np.ones(1, np.float32), (0, 0))}, "at 1 indices, not"),
        ({0: (np.ones(1, np.complex64), (0,))}, "a block of complex64 does not fit"),
        ({0: np.ones(1, np.float32)}, "an update of argument 0"),
        ({1: (np.ones(1, np.float32), (0,))}, "an update of argument 1"),
    ],
)
def test_a_block_that_does_not_fit_is_an_error(changes, message):
    init, update = incremental(jnp.sin, change={0: (1,)})
    _, state = init(x(10))
    with pytest.raises(TransformError, match=message) as caught:
        update(state, changes)
    assert "test_incremental.py" in str(caught.value).splitlines()[1]


@pytest.mark.parametrize(
    "f",
    [
        lambda v: jnp.pad(v, (2, 3)),
        lambda v: jnp.concatenate([v[::-1], v]).reshape(2, -1),
        lambda v: jnp.tile(v, 3),
    ],
)
def test_what_only_moves_numbers_moves_those_that_are_new(f):
    init, update = incremental(f, change={0: (1,)})
    given, block = x(100), jnp.ones(1)
    _, state = init(given)
    given[7] = 1
    np.testing.assert_array_equal(update(state, {0: (block, (7,))})[0], f(given))
    copied = jax.make_jaxpr(lambda s: update(s, {0: (block, (7,))}))(state)
    moved = [e for e in copied.jaxpr.eqns if e.primitive.name in ("pad", "concatenate", "gather")]
    assert all(v.aval.size < 10 for e in moved for v in e.outvars)


def test_side_effects_are_refused_at_their_line():
    def prints(v):
        jax.debug.print("{}", v)
        return v * 2

    def keeps(v, seen=[]):  # noqa: B006
        seen.append(v)
        return v

    for f in (prints, keeps):
        init, _ = incremental(f, change={0: (1,)})
        with pytest.raises(TransformError, match=r"test_incremental\.py"):
            init(x(3))


def test_a_state_of_something_else_is_an_error():
    _, update = incremental(jnp.sin, change={0: (1,)})
    with pytest.raises(TypeError, match="takes a state"):
        update(3.0, {0: (jnp.ones(1), (0,))})


def test_what_is_of_another_function_is_refused():
    init, update = incremental(lambda x: jnp.tanh(x).sum(), change={0: (2,)})
    other, _ = incremental(lambda x: jnp.sin(x) * 2, change={0: (2,)})
    x, block = jnp.arange(8.0), jnp.ones(2)
    state, not_its_own = init(x)[1], other(x)[1]
    carry, step = as_scan(jnp.cumsum, x)
    further, _ = as_scan(lambda x: jnp.cumsum(jnp.cumsum(x)), x)
    for call, text in (
        (lambda: update(not_its_own, {0: (block, (3,))}), "is not of this function"),
        (lambda: update(state, {0: (block, (0.5,))}), "a start of argument 0 is 0.5"),
        (lambda: update(state, {0: (block, "3")}), "the starts of argument 0 are '3'"),
        (lambda: update(state, [1]), r"takes what changes, not \[1\]"),
        (lambda: incremental(jnp.sin, change=[1]), "which names no arguments"),
        (lambda: step(further, x[0]), "of the same function"),
        (lambda: step(None, x[0]), "of the same function"),
        (lambda: as_scan(jnp.cumsum, x, width=1.0), "is no number of rows"),
    ):
        with pytest.raises(TransformError, match=text):
            call()
    assert np.allclose(step(carry, x[0])[1], 0.0)


@pytest.mark.parametrize("mode", [jax.jit, lambda f: f])
def test_bfloat16_is_rounded_as_the_function_rounds_it_in_the_same_mode(mode):
    def f(v):
        return (v * 3).astype(jnp.float32), jax.nn.softmax(v)

    v, block = jnp.asarray(x(30), jnp.bfloat16), jnp.ones(1, jnp.bfloat16)
    init, update = incremental(f, change={0: (1,)})
    made, _ = mode(update)(mode(init)(v)[1], {0: (block, (2,))})
    for got, wanted in zip(made, mode(f)(v.at[2].set(1)), strict=True):
        np.testing.assert_array_equal(got, wanted)
