"""Forms in which programs hide which rows they need: steps give the rows of the function."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from malleable import TransformError, as_scan, cost, incremental

T, D = 12, 4
CAUSAL = np.tri(T, dtype=bool)
X = jnp.asarray(np.random.default_rng(0).normal(size=(T, D)), jnp.float32)


def assert_right(f, xs=X, widths=(1, 3)):
    ways = {width: as_scan(f, xs, width=width, poison=True) for width in widths}

    @jax.jit
    def everything(carries, xs):
        rows = lambda n: xs.reshape(-1, *([n] if n > 1 else []), *xs.shape[1:])
        found = [lax.scan(ways[n][1], carry, rows(n))[1] for n, carry in carries.items()]
        return f(xs), found

    wanted, found = everything({width: carry for width, (carry, _) in ways.items()}, xs)
    for ys in found:
        np.testing.assert_allclose(ys.reshape(wanted.shape), wanted, 1e-4, 1e-5)


# ---------------------------------------------------------------- what is joined behind


def scores(v):
    return jnp.where(CAUSAL, v @ v.T, -jnp.inf)


BEHIND = {
    "a sink that each row knows": lambda v: (
        jax.nn.softmax(jnp.concatenate([scores(v), v[:, :1]], 1))[:, :-1] @ v
    ),
    "the weight of a sink": lambda v: jax.nn.softmax(
        jnp.concatenate([scores(v), jnp.ones((T, 1))], 1)
    )[:, T:],
    "a mask that leaves two sinks": lambda v: (
        jax.nn.softmax(
            jnp.where(
                np.pad(CAUSAL, ((0, 0), (0, 2)), constant_values=True),
                jnp.concatenate([v @ v.T, v[:, :2]], 1),
                -jnp.inf,
            )
        )[:, :T]
        @ v
    ),
    "a key and a value of no row": lambda v: (
        jax.nn.softmax(
            jnp.where(
                np.pad(CAUSAL, ((0, 0), (0, 1)), constant_values=True),
                v @ jnp.concatenate([v, jnp.ones((1, D))]).T,
                -jnp.inf,
            )
        )
        @ jnp.concatenate([v, jnp.ones((1, D))])
    ),
}


@pytest.mark.parametrize("name", BEHIND)
def test_what_is_joined_behind_is_no_later_row(name):
    assert_right(BEHIND[name])


@pytest.mark.parametrize(
    "f",
    [
        lambda v: jax.nn.softmax(jnp.concatenate([v @ v.T, v[:, :1]], 1))[:, :-1] @ v,
        lambda v: jax.nn.softmax(jnp.concatenate([scores(v), v[:, :1]], 1))[:, 1:] @ v,
        lambda v: (
            jax.nn.softmax(jnp.concatenate([scores(v), jnp.roll(v, -1, 0)[:, :1]], 1))[:, :-1] @ v
        ),
    ],
)
def test_what_is_joined_behind_does_not_make_later_rows_known(f):
    with pytest.raises(TransformError, match="not causal along the axis: "):
        as_scan(f, X)


# ---------------------------------------------------------------- states that begin with rows


def unrolled(v):
    """Each row needs two of before; the first two begin."""
    rows = [v[0], v[1] + v[0] / 2]
    for t in range(2, T):
        rows.append(jnp.tanh(v[t] + rows[t - 1] / 2 - rows[t - 2] / 4))
    return jnp.stack(rows)


def begins_with_three(v):
    step = lambda h, r: ((h[1], h[2], jnp.tanh(h[0] + r)), h[0] * r)
    rows = lax.scan(step, (v[0], v[1], v[0] * v[2]), v[3:])[1]
    return jnp.concatenate([v[:3], rows])


BEGUN = {
    "unrolled": unrolled,
    "rows that are written one by one": lambda v: functools.reduce(
        lambda y, t: y.at[t].set(v[t] + (y[t - 1] if t else 0) - (y[t - 2] if t > 1 else 0) / 3),
        range(T),
        jnp.zeros((T, D)),
    ),
    "three rows": begins_with_three,
    "a mean that begins with that of three": lambda v: jnp.concatenate(
        [v[:3], lax.scan(lambda h, r: (0.9 * h + r,) * 2, (v[0] + v[1] + v[2]) / 3, v[3:])[1]]
    ),
    "a row of its own input is where the loop begins": lambda v: lax.fori_loop(
        1, T, lambda t, y: y.at[t].set(v[t] + y[jnp.maximum(t - 1, 0)] / 2), v
    ),
    "rows that are stacked": lambda v: jnp.concatenate(
        [
            jnp.stack([v[0], v[1] + v[0]]),
            lax.scan(lambda h, r: ((h[1], h[0] / 2 + r),) * 2, (v[1], v[0]), v[2:])[1][0],
        ]
    ),
    "rows of two times": lambda v: jnp.concatenate(
        [
            v[:1],
            lax.scan(lambda h, r: (jnp.tanh(h + r[0] - r[1]),) * 2, v[0], (v[1:], v[:-1]))[1],
        ]
    ),
    "and attention to what comes of it": lambda v: jax.nn.softmax(scores(unrolled(v))) @ v,
}


@pytest.mark.in_turns
@pytest.mark.parametrize("name", BEGUN)
def test_a_state_may_begin_with_a_few_rows(name):
    assert_right(BEGUN[name])


OTHERWISE_AT_FIRST = {
    "what it wrote, where it has written": lambda t, y, v: v[t] + jnp.where(t > 0, y[t - 1], 0) / 2,
    "two rows of before": lambda t, y, v: (
        v[t] + jnp.where(t >= 1, y[t - 1], 0) / 2 - jnp.where(t > 1, y[t - 2], 0) / 3
    ),
    "a place that is not below 0": lambda t, y, v: (
        v[t] * 2 + jnp.where(t > 0, y[jnp.maximum(t - 1, 0)], 1)
    ),
    "a slice that is moved into the array": lambda t, y, v: (
        v[t] + lax.dynamic_slice(y, (t - 1, 0), (1, D))[0] * (t > 0)
    ),
    "a branch": lambda t, y, v: (
        v[t] + lax.cond(t > 0, lambda: y[t - 1] / 2, lambda: jnp.ones_like(v[0]))
    ),
    "rows of the input": lambda t, y, v: v[t] - jnp.where(t > 0, v[t - 1], 0),
}


@pytest.mark.in_turns
@pytest.mark.parametrize("name", OTHERWISE_AT_FIRST)
def test_a_loop_may_do_otherwise_at_its_first_steps(name):
    step = OTHERWISE_AT_FIRST[name]

    def by_fori(v):
        return lax.fori_loop(0, T, lambda t, y: y.at[t].set(step(t, y, v)), jnp.zeros_like(v))

    def by_scan(v):
        write = lambda y, t: (y.at[t].set(step(t, y, v)), t)
        return lax.scan(write, jnp.zeros_like(v), np.arange(T))[0]

    assert_right(by_fori)
    assert_right(by_scan)


def test_a_loop_that_looks_ahead_at_all_but_its_last_step_is_refused():
    def f(v):
        later = lambda t: jnp.where(t < T - 1, v[jnp.minimum(t + 1, T - 1)], 0)
        return lax.fori_loop(0, T, lambda t, y: y.at[t].set(v[t] + later(t)), jnp.zeros_like(v))

    with pytest.raises(TransformError, match="not causal along the axis: "):
        as_scan(f, X)


@pytest.mark.parametrize(
    "f",
    [
        lambda v: jnp.concatenate(
            [v[:1], lax.scan(lambda h, r: (h / 2 + r,) * 2, v[1] + v[2], v[1:])[1]]
        ),
        lambda v: jnp.concatenate([v[1:2], v[:1], v[2:]]),
        lambda v: v - (v[0] + v[1]) / 2,
        lambda v: lax.scan(lambda h, r: (h / 2 + r,) * 2, v[-1], v)[1],
    ],
)
def test_a_state_may_not_begin_with_later_rows(f):
    with pytest.raises(TransformError, match="not causal along the axis: "):
        as_scan(f, X)


# ---------------------------------------------------------------- what is not chosen, and groups


def chosen(v, lowest=0):
    at = lambda t: jnp.where(t > lowest, jnp.tanh(v[t - 1] * 2) + v[t], 0)
    return jax.vmap(at)(jnp.arange(T))


def routed(v):
    """Places in the buffers of two experts each, counted over tokens and choices in one."""
    weights, experts = lax.top_k(v, 2)
    hot = jax.nn.one_hot(experts, D)
    places = jnp.cumsum(hot.reshape(2 * T, D), 0).reshape(T, 2, D)
    return jnp.einsum("tkd,tk->td", hot * (places <= 4), weights)


@pytest.mark.parametrize("f", [chosen, lambda v: chosen(v[:, 0]), routed])
def test_rows_that_are_never_looked_at(f):
    assert_right(f)


def by_tiled_heads(v):
    keys = jnp.tile(v.reshape(T, 2, 2), (1, 2, 1))
    weights = jnp.einsum("qhd,khd->hqk", v.reshape(T, 4, 1) * keys, keys)
    return jnp.einsum("hqk,khd->qhd", jax.nn.softmax(jnp.where(CAUSAL, weights, -jnp.inf)), keys)


@pytest.mark.parametrize(
    "f",
    [
        by_tiled_heads,
        lambda v: v + jnp.tile(jnp.arange(4.0)[:, None], (T // 4, 1)),
        lambda v: sum(lax.optimization_barrier((jnp.cumsum(v, 0), v))),
        lambda v: jax.device_put(jnp.cumsum(v, 0)) * 2,
        lambda v: lax.reduce(jnp.cumsum(v, 0), 0.0, lambda a, b: jnp.hypot(a, b), (1,)),
        lambda v: lax.reduce(scores(v), -jnp.inf, lambda a, b: jnp.logaddexp(a, b), (1,)),
        lambda v: lax.approx_max_k(jnp.cumsum(v, 0), 2)[0],
    ],
)
def test_what_repeats_moves_or_folds_each_row_for_itself(f):
    assert_right(f)


@pytest.mark.parametrize(
    "f",
    [
        lambda v: jnp.tile(v[: T // 2], (2, 1)),
        lambda v: v + lax.reduce(v, 0.0, lambda a, b: jnp.hypot(a, b), (0,)),
        lambda v: lax.reduce(v @ v.T, -jnp.inf, lambda a, b: jnp.logaddexp(a, b), (1,)),
        lambda v: lax.approx_max_k(v, T, reduction_dimension=0)[0],
    ],
)
def test_what_repeats_or_folds_later_rows_is_refused(f):
    with pytest.raises(TransformError, match=r"test_forms\.py"):
        as_scan(f, X)


def sums_of_chunks(v, last=3):
    inner = jnp.cumsum(v.reshape(-1, 4, D), 1)
    before = jnp.cumsum(inner[:, last], 0) - inner[:, 3]
    return (inner + before[:, None]).reshape(v.shape)


def by_gates_behind(v):
    gates = jax.nn.sigmoid(scores(v))
    places = jnp.flip(jnp.cumsum(jnp.flip(gates, 1), 1), 1)
    return jax.nn.softmax(scores(v) + jnp.sin(places)) @ v


@pytest.mark.parametrize(
    "f",
    [
        lambda v: lax.cumsum(v[::-1], axis=0, reverse=True)[::-1],
        lambda v: lax.cummax(v[::-1], axis=0, reverse=True)[::-1] * v,
        lambda v: jnp.cumsum(v, 0) - v,
        sums_of_chunks,
        by_gates_behind,
    ],
)
def test_sums_of_reversed_rows_and_of_the_rows_before(f):
    assert_right(f)


@pytest.mark.parametrize(
    "f",
    [
        lambda v: jnp.cumsum(v[::-1], 0)[::-1],
        lambda v: lax.cumsum(v, axis=0, reverse=True) - v,
        lambda v: sums_of_chunks(v, last=2),
    ],
)
def test_sums_of_later_rows_are_refused(f):
    with pytest.raises(TransformError, match="not causal"):
        as_scan(f, X)


@pytest.mark.parametrize("operation", [lax.cumsum, lax.cummax, lax.cumprod])
def test_a_cumulative_operation_over_groups_of_each_row(operation):
    assert_right(lambda v: operation(v.reshape(T * D), 0).reshape(T, D))


@pytest.mark.parametrize(
    "f",
    [
        lambda v: chosen(v, lowest=-1),
        lambda v: jnp.cumsum(v.T.reshape(-1)).reshape(D, T).T,
        lambda v: lax.cumsum(v.reshape(-1), reverse=True).reshape(T, D),
    ],
)
def test_later_rows_that_are_looked_at_are_refused(f):
    with pytest.raises(TransformError, match="not causal"):
        as_scan(f, X)


# ---------------------------------------------------------------- what is moved


def shifted(v, mask=CAUSAL):
    """Scores by distance, of which row i is moved to the left by T - 1 - i; Transformer-XL."""
    far = v @ jnp.sin(jnp.arange(T * D)).reshape(D, T)
    far = jnp.pad(far, ((0, 0), (1, 0))).reshape(T + 1, T)[1:]
    return jax.nn.softmax(jnp.where(mask, v @ v.T + far, -jnp.inf)) @ v


def shifted_both_ways(v):
    far = v @ jnp.sin(jnp.arange(D * (2 * T - 1.0))).reshape(D, -1)
    far = jnp.pad(jnp.pad(far, ((0, 0), (0, 1))).ravel(), (0, T - 1))
    far = far.reshape(T + 1, 2 * T - 1)[:T, T - 1 :]
    return jax.nn.softmax(jnp.where(CAUSAL, v @ v.T + far, -jnp.inf)) @ v


def stacked_shifted(v):
    far = jnp.einsum("td,dhs->hts", v, jnp.cos(jnp.arange(2.0 * T * D)).reshape(D, 2, T))
    far = jnp.concatenate([jnp.ones((2, T, 1)), far], 2).reshape(2, T + 1, T)[:, 1:]
    weights = jnp.exp(far) * CAUSAL
    return ((weights / weights.sum(-1, keepdims=True)) @ v).sum(0)


def dense(v, mask=CAUSAL):
    """Weights that each row makes of itself alone; Synthesizer."""
    weights = jnp.tanh(v) @ jnp.cos(jnp.arange(1.0 * T * D)).reshape(D, T)
    return jax.nn.softmax(jnp.where(mask, weights, -jnp.inf)) @ v + (mask * weights) @ v


def rolled(v, after=0):
    same = (jnp.sign(v[:, :1]) == jnp.roll(jnp.sign(v[:, 0]), 1)) & CAUSAL
    return (same & (np.arange(T) > after)) @ v


MOVED = {
    "a relative shift": shifted,
    "a relative shift of all distances": shifted_both_ways,
    "a relative shift of heads, masked by a product": stacked_shifted,
    "weights that do not come from keys": dense,
    "columns that are rolled": rolled,
}


@pytest.mark.parametrize("name", MOVED)
def test_what_is_moved_out_of_a_row_and_masked_does_not_count(name):
    assert_right(MOVED[name])


def test_of_scores_that_are_shifted_only_rows_are_kept():
    _, step = as_scan(shifted, X)
    assert {text for text, _, _ in step.kept.values()} == {"float32[12,4]", "float32[4,12]"}


@pytest.mark.parametrize(
    "f",
    [
        functools.partial(shifted, mask=True),
        functools.partial(shifted, mask=np.tri(T, k=2, dtype=bool)),
        functools.partial(dense, mask=np.tri(T, k=1, dtype=bool)),
        functools.partial(dense, mask=CAUSAL | (np.arange(T * T) == 3).reshape(T, T)),
        functools.partial(rolled, after=-1),
    ],
)
def test_what_is_moved_out_of_a_row_and_is_not_masked_is_refused(f):
    with pytest.raises(TransformError, match="not causal") as caught:
        as_scan(f, X)
    assert "test_forms.py" in caught.value.where


# ---------------------------------------------------------------- convolutions in other words

KERNEL = jnp.cos(jnp.arange(T * D)).reshape(T, D)


def by_spectra(v, n=2 * T, first=0, **options):
    spectra = jnp.fft.rfft(v, n, axis=0) * jnp.fft.rfft(KERNEL, n, axis=0)
    return jnp.fft.irfft(spectra, n, axis=0, **options)[first : T + first]


def by_channels(v):
    x = jnp.stack([v.T, 2 * v.T])
    spectrum = jnp.fft.rfft(KERNEL[:5].T, 2 * T) / 3.0
    y = jnp.fft.irfft(jnp.fft.rfft(x, 2 * T) * spectrum, 2 * T)[..., :T]
    return jnp.tanh(y[1]).T + y[0].T


def masked_taps(taps):
    """Of a kernel of (3, 3), as many places as come first."""
    return (np.arange(9) < taps).reshape(3, 3, 1, 1) * jnp.sin(jnp.arange(9.0 * D * D)).reshape(
        3, 3, D, D
    )


def raster(v, first=4, then=5):
    """PixelCNN: an image of (3, 4) in the order of its rows, of which later places are masked."""
    x, numbers = v.reshape(1, 3, 4, D), ("NHWC", "HWIO", "NHWC")
    for taps in (first, then):
        y = lax.conv_general_dilated(
            x, masked_taps(taps), (1, 1), "SAME", dimension_numbers=numbers
        )
        x = jnp.tanh(y + 0.1) + (x if taps > 4 else 0)
    return x.reshape(T, D)


def raster_of_channels_first(v):
    x, kernel = v.T.reshape(1, D, 3, 4), jnp.transpose(masked_taps(4), (3, 2, 0, 1))
    return lax.conv(x, kernel, (1, 1), "SAME")[0].reshape(D, T).T


@pytest.mark.parametrize(
    "f",
    [
        raster_of_channels_first,
        by_spectra,
        functools.partial(by_spectra, n=2 * T - 1, norm="ortho"),
        by_channels,
        lambda v: jax.scipy.signal.fftconvolve(v[:, 0], KERNEL[:4, 0])[:T],
        raster,
    ],
)
def test_convolutions_in_other_words(f):
    assert_right(f)


@pytest.mark.parametrize(
    "f",
    [
        functools.partial(by_spectra, n=2 * T - 2),
        functools.partial(by_spectra, first=1),
        functools.partial(raster, then=6),
        lambda v: jnp.fft.irfft(jnp.fft.rfft(v, axis=0) * (1 + 2j), T, axis=0),
    ],
)
def test_convolutions_that_look_ahead_are_refused(f):
    with pytest.raises(TransformError, match="not causal") as caught:
        as_scan(f, X)
    assert "test_forms.py" in caught.value.where


def layered(layer):
    return lambda v: lax.scan(lambda x, p: (x + layer(x) * p, None), v, jnp.array([0.5, 2.0]))[0]


@pytest.mark.parametrize("f", [shifted, dense, rolled, by_spectra, raster])
def test_other_words_in_layers(f):
    assert_right(layered(f))


def test_kernels_may_be_parameters_of_layers():
    def layer(x, kernel):
        spectra = jnp.fft.rfft(x, 2 * T, axis=0) * jnp.fft.rfft(kernel, 2 * T, axis=0)
        return jnp.tanh(jnp.fft.irfft(spectra, 2 * T, axis=0)[:T]), None

    assert_right(lambda v: lax.scan(layer, v, jnp.stack([KERNEL, KERNEL[::-1]]))[0])


# ---------------------------------------------------------------- places of each row's own

ROWS = np.arange(T)


def without_the_best(v):
    return v.at[ROWS, jnp.argmax(v, 1)].set(-jnp.inf).max(1)


@pytest.mark.parametrize(
    "f",
    [
        lambda v: jnp.zeros((T, D)).at[ROWS[:, None], lax.top_k(v, 2)[1]].add(v[:, :2]),
        without_the_best,
        lambda v: jnp.cumsum(v, 0)[ROWS, jnp.argmax(v, 1)],
        lambda v: v.at[ROWS, 1].mul(3.0),
        lambda v: v.T[jnp.argmin(v, 1), ROWS],
        lambda v: v.T.at[jnp.argmin(v, 1), ROWS].set(7.0).T,
        lambda v: v.reshape(T, 2, 2)[ROWS[:, None], np.arange(2), (v[:, :2] > 0).astype(int)],
    ],
)
def test_a_row_writes_and_looks_up_in_itself(f):
    assert_right(f)


@pytest.mark.parametrize(
    "f",
    [
        lambda v: v.at[ROWS[::-1], jnp.argmax(v, 1)].set(0.0),
        lambda v: v[np.minimum(ROWS + 1, T - 1), jnp.argmax(v, 1)],
        lambda v: jnp.zeros((T, D)).at[jnp.argmax(v, 1), 0].add(v[:, 0]),
    ],
)
def test_writes_and_lookups_in_other_rows_are_refused(f):
    with pytest.raises(TransformError, match="not causal"):
        as_scan(f, X)


def test_an_update_of_what_a_row_writes_in_itself_is_of_that_row():
    n = 4 * T
    f = lambda x: jnp.tanh(x).at[np.arange(n), jnp.argmax(x, 1)].set(0.0)
    init, update = incremental(f, change={0: (1, None)})
    x, row = jnp.sin(jnp.arange(n * D * 1.0)).reshape(n, D), jnp.ones((1, D))
    _, state = init(x)
    y, _ = jax.jit(update)(state, {0: (row, (5, 0))})
    np.testing.assert_array_equal(y, jax.jit(f)(x.at[5].set(1.0)))
    changed = lambda s: update(s, {0: (row, (5, 0))})
    assert cost(changed)(state).flops < 0.1 * cost(f)(x).flops
