"""Programs in which something that is not known yet could get into a result: right, or refused."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from malleable import TransformError, as_scan, incremental, listen

T, D = 8, 4
TRIL = np.tril(np.ones((T, T), bool))


def draw(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


X, POSITIVE = draw(T, D), jnp.abs(draw(T, D)) + 0.5


def assert_right(f, x, tolerance=1e-5):
    carry, step = as_scan(f, x)
    _, ys = jax.jit(lambda c, x: lax.scan(step, c, x))(carry, x)
    wanted = jax.jit(f)(x)
    assert ys.dtype == wanted.dtype
    ys, wanted = (jnp.asarray(y, jnp.promote_types(y.dtype, jnp.float32)) for y in (ys, wanted))
    np.testing.assert_allclose(ys, wanted, tolerance, tolerance)


def masked(x):
    return jnp.where(TRIL, x @ x.T, -1e30)


@pytest.mark.parametrize(
    "values",
    [jnp.log, lambda x: 1 / x, lambda x: x / jnp.linalg.norm(x, axis=-1, keepdims=True)],
)
def test_values_that_zeros_have_none_of_stay_numbers(values):
    assert_right(lambda x: jax.nn.softmax(masked(x)) @ values(x), POSITIVE)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: (TRIL * jnp.log(x @ x.T)) @ x,
        lambda x: (TRIL / (x @ x.T)) @ x,
        lambda x: jax.nn.softmax(1 / (x @ x.T) + np.where(TRIL, 0, -1e30)) @ x,
        lambda x: jnp.einsum("ts,ts,sd->td", jax.nn.softmax(masked(x)), jnp.log(x @ x.T), x),
    ],
)
def test_a_zero_does_not_mask_what_may_be_no_number(f):
    with pytest.raises(TransformError, match="not causal"):
        as_scan(f, POSITIVE)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: masked(x) + (-masked(x)),
        lambda x: masked(x) - 2 * masked(x),
        lambda x: masked(x) + masked(x) ** 2,
        lambda x: masked(x) + np.where(np.triu(np.ones((T, T)), 2), np.float32(1e30), 0),
        lambda x: masked(x) - np.where(np.triu(np.ones((T, T)), 2), np.float32(-1e30), 0),
    ],
)
def test_a_mask_that_is_undone_masks_nothing(f):
    with pytest.raises(TransformError, match="not causal"):
        as_scan(lambda x: jax.nn.softmax(f(x)) @ x, X)


def test_bits_of_integers_are_no_truth_values():
    def f(x):
        return ((jnp.where(TRIL, x[None] * 0, 1) | 4) * (x[:, None] + x[None])).sum(1)

    with pytest.raises(TransformError, match="not causal"):
        as_scan(f, jnp.arange(T))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_the_lowest_number_of_half_precision_masks(dtype):
    def f(x):
        return jax.nn.softmax(jnp.where(TRIL, x @ x.T, jnp.finfo(x.dtype).min)) @ x

    assert_right(f, X.astype(dtype), 5e-2)


def test_a_mask_of_a_billion_masks_in_bfloat16_as_well():
    bias = jnp.where(TRIL, 0, -1e9).astype(jnp.bfloat16)
    assert_right(lambda x: jax.nn.softmax(x @ x.T + bias) @ x, X.astype(jnp.bfloat16), 5e-2)


def test_a_mask_may_be_taken_away():
    assert_right(lambda x: jax.nn.softmax(x @ x.T - 1e9 * (1 - TRIL)) @ x, X)


def test_the_lowest_of_what_is_known():
    assert_right(lambda x: jnp.min(jnp.where(TRIL, x @ x.T, jnp.inf), -1), X)


def test_complex_numbers_under_a_triangle():
    assert_right(lambda x: (TRIL * (x @ x.conj().T)) @ x, X + 1j * X[::-1])


def test_an_axis_is_counted_from_the_end():
    x = draw(2, T)
    carry, step = as_scan(lambda x: jnp.cumsum(x, -1), x, axis=-1)
    np.testing.assert_allclose(lax.scan(step, carry, x.T)[1].T, jnp.cumsum(x, -1), 1e-5)


# ---------------------------------------------------------------- rows of which all is masked

STRICT = np.tril(TRIL, -1)


@pytest.mark.parametrize(
    "mask",
    [
        lambda x: STRICT & (x @ x.T > 0),
        lambda x: (x @ x.T > 0) & (STRICT & (x @ x.T < 1)),
        lambda x: ~(~STRICT | (x @ x.T > 0)),
    ],
)
def test_a_row_that_a_constant_masks_by_a_number_is_refused_whatever_else_masks(mask):
    with pytest.raises(TransformError, match="not causal"):
        as_scan(lambda x: jax.nn.softmax(jnp.where(mask(x), x @ x.T, -1e30)) @ x, X)
    assert_right(lambda x: jax.nn.softmax(jnp.where(mask(x), x @ x.T, -jnp.inf)) @ x, X)


@pytest.mark.parametrize(
    "scores",
    [
        lambda x: jnp.where(TRIL & (x @ x.T > 0), x @ x.T, -1e30),
        lambda x: x @ x.T + -1e30 * (1 - TRIL * (x @ x.T > 0)),
    ],
)
def test_that_data_leave_a_score_of_each_row_is_said_at_the_line(scores):
    with listen() as heard:
        as_scan(lambda x: jax.nn.softmax(scores(x)) @ x, X)
    lines = [n.where for n in heard if "that is not masked" in n.what]
    assert lines
    assert all("test_wrong_numbers.py" in line for line in lines)
    with listen() as heard:
        as_scan(lambda x: jax.nn.softmax(masked(x)) @ x, X)
    assert not any("that is not masked" in n.what for n in heard)


# ---------------------------------------------------------------- inf and NaN


BAND = np.tril(np.ones((32, 32), bool)) & ~np.tril(np.ones((32, 32), bool), -4)


def attend(scores, values):
    return jax.nn.softmax(jnp.where(BAND, scores, -jnp.inf)) @ values


def stepped(f, x):
    carry, step = as_scan(f, x)
    return jax.jit(lambda carry, x: lax.scan(step, carry, x)[1])(carry, x)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: attend(x @ x.T, x),
        lambda x: (BAND * (x @ x.T)).sum(1),
        lambda x: jax.nn.softmax(x @ x.T + np.where(BAND, 0, -np.inf)).max(1),
        lambda x: np.tril(np.ones((32, 32))) @ x,
        lambda x: lax.scan(lambda h, w: (attend(h @ h.T, h) * w, None), x, np.ones(2))[0],
    ],
)
def test_that_what_a_product_or_a_sum_masks_is_finite_is_said_at_its_line(f):
    with listen() as heard:
        as_scan(f, draw(32, D))
    lines = [n.where for n in heard if "taken to be finite" in n.what]
    assert lines
    assert all("test_wrong_numbers.py" in line for line in lines)
    assert len(lines) == len(set(lines))


@pytest.mark.parametrize(
    "f",
    [
        lambda x: jnp.where(BAND, x @ x.T, 0).sum(1),
        lambda x: jnp.cumsum(x, 0),
        lambda x: x + jnp.pad(x, ((1, 0), (0, 0)))[:-1],
    ],
)
def test_without_that_a_step_has_the_inf_and_nan_of_the_function(f):
    with listen() as heard:
        carry, step = as_scan(f, draw(32, D))
    assert not heard
    rows, whole = jax.jit(lambda x: lax.scan(step, carry, x)[1]), jax.jit(f)
    for row, number in itertools.product((0, 13, 31), (np.inf, np.nan)):
        x = np.array(draw(32, D))
        x[row] = number
        np.testing.assert_allclose(rows(x), whole(x), 1e-5, 1e-5)


@pytest.mark.parametrize("row", [0, 13, 31])
def test_a_step_has_a_number_where_a_row_out_of_reach_has_none(row):
    def clean(x):
        values = jnp.where(jnp.isfinite(x), x, 0)
        return attend(x @ x.T, values)

    whole = lambda x: attend(x @ x.T, x)
    x, reach = draw(32, D).at[row].set(jnp.inf), slice(row, row + 4)
    np.testing.assert_allclose(stepped(clean, x), jax.jit(clean)(x), 1e-5, 1e-5)
    ys = stepped(whole, x)
    assert np.isnan(jax.jit(whole)(x)).all()
    assert np.isnan(ys[reach]).all()
    assert np.isfinite(np.delete(ys, np.arange(32)[reach], 0)).all()


# ---------------------------------------------------------------- derivatives


def gradients(f, x):
    carry, step = as_scan(f, x)
    w = draw(T, D, seed=1)
    return [
        jax.jit(jax.grad(lambda x: (lax.scan(step, carry, x)[1] * w).sum()))(x),
        jax.jit(jax.grad(lambda x: (f(x) * w).sum()))(x),
    ]


@pytest.mark.parametrize(
    "f",
    [
        lambda x: jax.nn.softmax(masked(x)) @ jnp.log(x),
        lambda x: jax.nn.softplus(jnp.cumsum(x, 0)),
        lambda x: lax.associative_scan(lambda a, b: a * b / (a + b), x),
        lambda x: jnp.cumsum(jax.nn.relu(x - 1), 0) + jnp.maximum(x - 1, 0),
        lambda x: lax.scan(lambda c, row: (rounded(c + row, 0.5),) * 2, x[0] * 0, x)[1],
        lambda x: (
            jax.nn.softmax(masked(jax.nn.relu(x))) @ jax.vmap(lambda row: rounded(row, 3.0))(x)
        ),
        lambda x: unlike(x) + jnp.sin(x) + x * 2,
        lambda x: lax.map(lambda row: jax.nn.relu(unlike(row)), x),
        lambda x: jax.checkpoint(lambda x: jax.nn.relu(unlike(x)))(x),
    ],
)
def test_derivatives_through_steps(f):
    ours, wanted = gradients(
        f, POSITIVE.at[3].set(1)
    )  # where relu(x - 1) has a derivative of its own
    np.testing.assert_allclose(ours, wanted, 1e-4, 1e-4)


def test_derivatives_through_steps_of_merged_rows():
    x = draw(3, T, D).at[:, 2].set(0)
    f = lambda x: x + jax.nn.relu(jax.nn.relu(unlike(x.reshape(-1, D))) @ X[:D]).reshape(x.shape)
    carry, step = as_scan(f, x, axis=1)
    rows = lambda x: lax.scan(step, carry, jnp.moveaxis(x, 1, 0))[1]
    ours, wanted = (jax.jit(jax.grad(lambda x, f=f: (f(x) ** 2).sum()))(x) for f in (rows, f))
    np.testing.assert_allclose(ours, wanted, 1e-4, 1e-4)


@jax.custom_jvp
def rounded(x, slope):
    return jnp.round(x)


@rounded.defjvp
def through(xs, dots):
    return rounded(*xs), dots[0] * xs[1] + dots[1] * xs[0]


@jax.custom_jvp
def unlike(x):
    return x


unlike.defjvp(lambda xs, dots: (unlike(*xs), 7 * jnp.sin(xs[0]) * dots[0]))


@jax.custom_jvp
def once(x):
    return x


once.defjvp(lambda xs, dots: (xs[0], 7 * dots[0]))  # its second derivative is another


def test_derivatives_through_updates():
    f = lambda x: rounded(jax.nn.relu(x), 2.0).sum(1) + unlike(x * x).sum(1)
    init, update = incremental(f, change={0: (1, None)})
    new = lambda block: update(init(X)[1], {0: (block, (2, 0))})[0] ** 2
    whole = lambda block: f(X.at[2].set(block[0])) ** 2
    for derivative in (
        lambda f: jax.grad(lambda b: f(b).sum()),
        lambda f: jax.hessian(lambda b: f(b).sum()),
    ):
        ours, wanted = (jax.jit(derivative(f))(np.arange(D)[None] / 2) for f in (new, whole))
        np.testing.assert_allclose(ours, wanted, 1e-4, 1e-4)


@jax.custom_vjp
def twice(x):
    return x * 2


@jax.custom_jvp
def of_rows(x):
    return x * 2


of_rows.defjvp(lambda xs, dots: (of_rows(*xs), dots[0].sum(1, keepdims=True) + 0 * xs[0]))
twice.defvjp(lambda x: (x * 2, None), lambda _, g: (g * 100,))


@pytest.mark.parametrize(
    "f",
    [
        lambda x: jnp.cumsum(twice(x), 0),
        lambda x: jnp.cumsum(of_rows(x), 0),
        lambda x: jnp.cumsum(once(x), 0),
        lambda x: jax.nn.softmax(jnp.where(TRIL, jnp.sqrt(x @ x.T), -jnp.inf)) @ x,
    ],
)
def test_a_derivative_that_steps_do_not_have_is_refused(f):
    assert_right(f, POSITIVE)
    carry, step = as_scan(f, POSITIVE)
    with pytest.raises(TransformError, match=r"derivative(.|\n)*test_wrong_numbers\.py:\d+"):
        jax.grad(lambda row: step(carry, row)[1].sum())(POSITIVE[0])


def test_a_derivative_that_updates_do_not_have_is_refused():
    init, update = incremental(lambda x: twice(x).sum(), change={0: (1, None)})
    _, state = init(X)
    with pytest.raises(TransformError, match="derivative"):
        jax.grad(lambda block: update(state, {0: (block, (2, 0))})[0])(X[:1])


# ---------------------------------------------------------------- updates


@pytest.mark.parametrize("sizes", [(2, None), (None, 2), (1, 1)])
def test_updates_of_what_is_read_at_places_that_are_not_known(sizes):
    def f(x, i):
        loop = lax.fori_loop(0, T, lambda k, h: h.at[k].set(x[k] * 2), jnp.zeros((T, D)))
        return loop, lax.dynamic_slice(x, (i, 1), (3, 3))

    init, update = incremental(f, change={0: sizes, 1: ()})
    _, state = init(X, jnp.int32(3))
    block = draw(*(n if k is None else k for k, n in zip(sizes, X.shape, strict=True)), seed=1)
    ys, _ = update(state, {0: (block, (0, 1)), 1: (jnp.int32(4), ())})
    x = lax.dynamic_update_slice(X, block, (0, 1))
    for y, wanted in zip(ys, jax.jit(f)(x, jnp.int32(4)), strict=True):
        np.testing.assert_allclose(y, wanted, 1e-6)


def test_results_are_as_weakly_typed_as_those_of_the_function():
    weak, half = jnp.arange(12).reshape(6, 2) * 1.5, jnp.ones((6, 2), jnp.bfloat16)
    assert weak.weak_type

    def f(x):
        return x * 2, jnp.roll(x, 1, 0).at[0].set(0) + x, x * jnp.float32(2)

    kinds = [(y * half).dtype for y in f(weak)]
    assert len(set(kinds)) == 2
    carry, step = as_scan(f, weak)
    init, update = incremental(f, change={0: (1, 2)})
    ys, state = init(weak)
    for found in (lax.scan(step, carry, weak)[1], ys, update(state, {0: (weak[:1], (0, 0))})[0]):
        assert [(y * half).dtype for y in found] == kinds
