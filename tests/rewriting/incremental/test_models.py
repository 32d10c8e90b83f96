"""Models of others, unchanged: a scan of derived steps gives what a pass over all rows gives."""

import equinox as eqx
import flax.linen as nn
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax

from malleable import as_scan, listen

T, D, HEADS, VOCABULARY = 8, 8, 2, 11


def draw(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def slow(x):
    return pytest.param(x, marks=pytest.mark.slow)


TRIL = np.tril(np.ones((T, T), bool))
TOKENS = jnp.asarray(np.random.default_rng(3).integers(0, VOCABULARY, T))


def assert_row_by_row(f, xs, axis=0, width=1):
    """A scan of steps under jit gives f(xs), to rounding."""
    carry, step = as_scan(f, xs, axis=axis, width=width)

    def rows(x):
        x = jnp.moveaxis(x, axis, 0)
        x = x.reshape(x.shape[0] // width, width, *x.shape[1:])
        return x[:, 0] if width == 1 else jnp.moveaxis(x, 1, axis + 1)

    def joined(y):
        if width == 1:
            return jnp.moveaxis(y, 0, axis)
        y = jnp.moveaxis(y, axis + 1, 1)
        return jnp.moveaxis(y.reshape(-1, *y.shape[2:]), 0, axis)

    _, ys = jax.jit(lambda c, x: lax.scan(step, c, x))(carry, jax.tree.map(rows, xs))
    for y, wanted in zip(jax.tree.leaves(ys), jax.tree.leaves(jax.jit(f)(xs)), strict=True):
        np.testing.assert_allclose(joined(y), wanted, 2e-5, 2e-6)


# ---------------------------------------------------------------- flax


class LinenBlock(nn.Module):
    attention: type = nn.MultiHeadDotProductAttention

    @nn.compact
    def __call__(self, x):
        mask = nn.make_causal_mask(jnp.ones(x.shape[:-1]))
        h = nn.LayerNorm()(x)
        x = x + self.attention(num_heads=HEADS)(h, mask=mask)
        return x + nn.Dense(D)(nn.gelu(nn.Dense(2 * D)(nn.LayerNorm()(x))))


class LinenModel(nn.Module):
    attention: type = nn.MultiHeadDotProductAttention

    @nn.compact
    def __call__(self, tokens):
        x = nn.Embed(VOCABULARY, D)(tokens)
        x = x + self.param("positions", nn.initializers.normal(), (tokens.shape[-1], D))
        for _ in range(2):
            x = LinenBlock(self.attention)(x)
        return nn.Dense(VOCABULARY)(nn.RMSNorm()(x))


def linen(model, x, key=0):
    params = jax.jit(model.init)(jax.random.key(key), x)
    return lambda x: model.apply(params, x)


def test_a_transformer_of_flax_linen():
    assert_row_by_row(linen(LinenModel(), TOKENS), TOKENS)


@pytest.mark.slow  # as the next ones
@pytest.mark.filterwarnings("ignore:SelfAttention will be deprecated")
def test_self_attention_of_flax_linen():
    assert_row_by_row(linen(LinenBlock(nn.SelfAttention), draw(T, D)), draw(T, D))


@pytest.mark.parametrize("width", [2, slow(4)])
def test_a_transformer_of_flax_linen_some_rows_at_a_time(width):
    assert_row_by_row(linen(LinenModel(), TOKENS), TOKENS, width=width)


def test_a_batch_for_a_transformer_of_flax_linen():
    tokens = jnp.stack([TOKENS, TOKENS[::-1]])
    assert_row_by_row(linen(LinenModel(), tokens), tokens, axis=1)


def test_sequences_that_are_mapped_over_by_vmap():
    f, tokens = linen(LinenModel(), TOKENS), jnp.stack([TOKENS, TOKENS[::-1]])
    assert_row_by_row(jax.vmap(f), tokens, axis=1)


class LinenRecurrent(nn.Module):
    cell: type

    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(nn.RNN(self.cell(D))(x))


@pytest.mark.parametrize("cell", [slow(nn.LSTMCell), slow(nn.GRUCell), nn.OptimizedLSTMCell])
def test_recurrent_cells_of_flax_linen(cell):
    assert_row_by_row(linen(LinenRecurrent(cell), draw(T, 3)), draw(T, 3))


class LinenConvolutions(nn.Module):
    @nn.compact
    def __call__(self, x):
        for step in (1, 2):
            x = x + nn.tanh(nn.Conv(D, (3,), padding="CAUSAL", kernel_dilation=step)(x))
        return nn.LayerNorm()(x)


def test_causal_convolutions_of_flax_linen():
    x = draw(2, T, D)
    assert_row_by_row(linen(LinenConvolutions(), x), x, axis=1)


def test_a_scan_over_layers_of_flax_linen():
    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x, _):
            return LinenBlock()(x), None

    class Deep(nn.Module):
        @nn.compact
        def __call__(self, x):
            scan = nn.scan(Layer, {"params": 0}, split_rngs={"params": True}, length=2)
            return scan()(x, None)[0]

    assert_row_by_row(linen(Deep(), draw(T, D)), draw(T, D))


def test_a_transformer_of_flax_nnx():
    rngs = nnx.Rngs(0)
    attend = nnx.MultiHeadAttention(HEADS, D, rngs=rngs, decode=False)
    norm, dense = nnx.LayerNorm(D, rngs=rngs), nnx.Linear(D, D, rngs=rngs)

    def f(x):
        x = x + attend(norm(x), mask=TRIL[None])
        return x + jax.nn.silu(dense(norm(x)))

    assert_row_by_row(f, draw(T, D))


def test_a_recurrent_cell_of_flax_nnx():
    cell = nnx.GRUCell(D, D, rngs=nnx.Rngs(0))
    assert_row_by_row(lambda x: lax.scan(cell, jnp.zeros(D), x)[1], draw(T, D))


# ---------------------------------------------------------------- equinox, haiku


def test_a_transformer_of_equinox():
    attend = eqx.nn.MultiheadAttention(HEADS, D, key=jax.random.key(0))
    norm, mlp = eqx.nn.LayerNorm(D), eqx.nn.MLP(D, D, 2 * D, 1, key=jax.random.key(1))

    def f(x):
        h = jax.vmap(norm)(x)
        x = x + attend(h, h, h, mask=TRIL)
        return x + jax.vmap(mlp)(jax.vmap(norm)(x))

    assert_row_by_row(f, draw(T, D))


def test_rotary_positions_of_equinox():
    attend = eqx.nn.MultiheadAttention(HEADS, D, key=jax.random.key(0))
    rotary = eqx.nn.RotaryPositionalEmbedding(D // HEADS)

    def heads(q, k, v):
        return jax.vmap(rotary, 1, 1)(q), jax.vmap(rotary, 1, 1)(k), v

    def f(x):
        return attend(x, x, x, mask=TRIL, process_heads=heads)

    assert_row_by_row(f, draw(T, D))


@pytest.mark.parametrize("cell", [eqx.nn.GRUCell, slow(eqx.nn.LSTMCell)])
def test_recurrent_cells_of_equinox(cell):
    cell = cell(D, D, key=jax.random.key(0))
    begin = jnp.zeros(D) if isinstance(cell, eqx.nn.GRUCell) else (jnp.zeros(D), jnp.zeros(D))

    def step(state, x):
        state = cell(x, state)
        return state, jax.tree.leaves(state)[0]

    assert_row_by_row(lambda x: lax.scan(step, begin, x)[1], draw(T, D))


def test_a_transformer_of_haiku():
    def model(x):
        norm = hk.LayerNorm(-1, create_scale=True, create_offset=True)
        h = norm(x)
        init = hk.initializers.VarianceScaling(1.0)
        x = x + hk.MultiHeadAttention(HEADS, D // HEADS, w_init=init)(h, h, h, mask=TRIL[None])
        return x + hk.Linear(D)(jax.nn.relu(hk.Linear(2 * D)(norm(x))))

    pure = hk.without_apply_rng(hk.transform(model))
    params = pure.init(jax.random.key(0), draw(T, D))
    assert_row_by_row(lambda x: pure.apply(params, x), draw(T, D))


@pytest.mark.slow  # as the cells of flax
def test_recurrent_layers_of_haiku():
    def model(x):
        core = hk.LSTM(D)
        return hk.dynamic_unroll(core, x, core.initial_state(None))[0]

    pure = hk.without_apply_rng(hk.transform(model))
    params = pure.init(jax.random.key(0), draw(T, D))
    assert_row_by_row(lambda x: pure.apply(params, x), draw(T, D))


@pytest.mark.slow  # as those of flax
def test_causal_convolutions_of_haiku():
    def model(x):
        return hk.Conv1D(D, 3, rate=2, padding=hk.pad.causal)(x)

    pure = hk.without_apply_rng(hk.transform(model))
    params = pure.init(jax.random.key(0), draw(T, D))
    assert_row_by_row(lambda x: pure.apply(params, x), draw(T, D))


# ---------------------------------------------------------------- attention by hand, and of jax.nn


@pytest.mark.parametrize("options", [{}, {"local_window_size": 3}, {"local_window_size": (2, 0)}])
def test_dot_product_attention_of_jax(options):
    w = draw(D, 3 * D)

    def f(x):
        q, k, v = jnp.split((x @ w).reshape(T, 3 * HEADS, D // HEADS), 3, axis=1)
        return jax.nn.dot_product_attention(q, k, v, is_causal=True, **options).reshape(T, D)

    assert_row_by_row(f, draw(T, D))


@pytest.mark.slow  # as `test_keys_of_groups_of_heads`
def test_fewer_heads_of_keys_than_of_queries():
    wq, wk, wv = draw(D, 4 * 2, seed=1), draw(D, 2 * 2, seed=2), draw(D, 2 * 2, seed=3)

    def f(x):
        q, k, v = (x @ w for w in (wq, wk, wv))
        q, k, v = q.reshape(1, T, 4, 2), k.reshape(1, T, 2, 2), v.reshape(1, T, 2, 2)
        return jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(T, D)

    assert_row_by_row(f, draw(T, D))


@pytest.mark.slow  # as `test_keys_of_groups_of_heads`
def test_keys_that_are_repeated_for_groups_of_heads():
    wq, wk = draw(D, 4 * 2, seed=1), draw(D, 2 * 2, seed=2)

    def f(x):
        q, k = (x @ wq).reshape(T, 4, 2), jnp.repeat((x @ wk).reshape(T, 2, 2), 2, axis=1)
        s = jnp.where(TRIL, jnp.einsum("thd,shd->hts", q, k), -jnp.inf)
        return jnp.einsum("hts,shd->thd", jax.nn.softmax(s), k).reshape(T, D)

    assert_row_by_row(f, draw(T, D))


def attention(x, w, mask=TRIL, low=-jnp.inf):
    q, k, v = jnp.split(x @ w, 3, axis=-1)
    s = q @ jnp.swapaxes(k, -1, -2) / jnp.sqrt(1.0 * D)
    return jax.nn.softmax(jnp.where(mask, s, low)) @ v


def test_layers_in_a_scan_over_stacked_parameters():
    def f(x):
        return lax.scan(lambda h, w: (h + attention(h, w), None), x, draw(3, D, 3 * D) / 3)[0]

    assert_row_by_row(f, draw(T, D))


def test_layers_in_a_scan_that_are_computed_again_for_derivatives():
    @jax.checkpoint
    def layer(h, w):
        return h + attention(h, w), None

    assert_row_by_row(lambda x: lax.scan(layer, x, draw(3, D, 3 * D) / 3)[0], draw(T, D))


def test_rotary_positions():
    angles = jnp.arange(T)[:, None] * 0.3 ** jnp.arange(D // 2)

    def rotated(x):
        a, b = x[..., ::2], x[..., 1::2]
        c, s = jnp.cos(angles), jnp.sin(angles)
        return jnp.stack([a * c - b * s, a * s + b * c], -1).reshape(x.shape)

    def halves(x):
        a, b = jnp.split(x, 2, axis=-1)
        c, s = jnp.cos(angles), jnp.sin(angles)
        return jnp.concatenate([a * c - b * s, a * s + b * c], -1)

    def f(x):
        s = jnp.where(TRIL, rotated(x) @ rotated(x).T + halves(x) @ halves(x).T, -1e30)
        return jax.nn.softmax(s) @ x

    assert_row_by_row(f, draw(T, D))


def test_a_bias_that_grows_with_the_distance():
    bias = -0.5 * jnp.abs(jnp.arange(T)[:, None] - jnp.arange(T))

    def f(x):
        return jax.nn.softmax(jnp.where(TRIL, x @ x.T + bias, jnp.finfo(x.dtype).min)) @ x

    assert_row_by_row(f, draw(T, D))


def test_a_window_that_slides():
    window = TRIL & ~np.tril(np.ones((T, T), bool), -3)
    assert_row_by_row(lambda x: attention(x, draw(D, 3 * D), window), draw(T, D))


def test_documents_that_are_packed_into_a_sequence():
    def f(xs):
        x, segments = xs
        mask = TRIL & (segments[:, None] == segments[None, :])
        return attention(x, draw(D, 3 * D), mask, jnp.finfo(x.dtype).min)

    assert_row_by_row(f, (draw(T, D), jnp.array([0, 0, 0, 1, 1, 1, 2, 2])))


@pytest.mark.parametrize("repeated", [False, True])
def test_keys_of_groups_of_heads(repeated):
    def f(x):
        q, k, v = ((x @ draw(D, n * 2, seed=n)).reshape(1, T, n, 2) for n in (4, 2, 2))
        if repeated:
            k, v = jnp.repeat(k, 2, axis=2), jnp.repeat(v, 2, axis=2)
        return jax.nn.dot_product_attention(q, k, v, is_causal=True)[0].reshape(T, -1)

    assert_row_by_row(f, draw(T, D))


def test_a_batch_whose_rows_are_merged_for_a_dense_layer():
    w1, w2 = draw(D, 2 * D), draw(2 * D, D)

    def f(x):
        h = x.reshape(-1, D)
        h = jnp.tanh((h - h.mean(-1, keepdims=True)) @ w1) @ w2
        return x + jax.vmap(lambda x: attention(x, draw(D, 3 * D)))(h.reshape(x.shape))

    assert_row_by_row(f, draw(2, T, D), axis=1)


def test_a_batch_whose_tokens_are_merged_and_cut_by_columns():
    def f(x):
        tokens = jnp.tanh(x.reshape(-1, D))
        return jnp.cumsum(
            (tokens * tokens[:, :1] + jnp.pad(tokens, ((0, 0), (2, 1)))[:, 3:]).reshape(x.shape), 1
        )

    assert_row_by_row(f, draw(2, T, D), axis=1)


def test_a_batch_whose_tokens_are_merged_to_be_sent_to_experts():
    gate, experts = draw(D, 4), draw(4, D, D, seed=1)

    def f(x):
        tokens = x.reshape(-1, D)
        values, chosen = lax.top_k(tokens @ gate, 2)
        each = jnp.einsum("td,edf->tef", tokens, experts)
        each = jnp.take_along_axis(each, chosen[..., None], axis=1)
        return (each * jax.nn.softmax(values)[..., None]).sum(1).reshape(x.shape)

    assert_row_by_row(f, draw(2, T, D), axis=1)


# ---------------------------------------------------------------- without attention


def test_a_mixture_of_experts_that_are_chosen_for_each_token():
    gate, experts = draw(D, 4), draw(4, D, D, seed=1)

    def f(x):
        values, chosen = lax.top_k(x @ gate, 2)
        weights = jax.nn.softmax(values)
        each = jnp.einsum("td,edf->tef", x, experts)
        return (jnp.take_along_axis(each, chosen[..., None], axis=1) * weights[..., None]).sum(1)

    assert_row_by_row(f, draw(T, D))


def test_a_mixture_of_experts_by_one_hot_vectors():
    gate, experts = draw(D, 4), draw(4, D, D, seed=1)

    def f(x):
        values, chosen = lax.top_k(jax.nn.softmax(x @ gate), 2)
        weights = (jax.nn.one_hot(chosen, 4) * values[..., None]).sum(1)
        return jnp.einsum("te,td,edf->tf", weights, x, experts)

    assert_row_by_row(f, draw(T, D))


def test_linear_attention_by_a_running_sum():
    def f(x):
        q, k = jax.nn.elu(x @ draw(D, D)) + 1, jax.nn.elu(x @ draw(D, D, seed=1)) + 1
        state = jnp.cumsum(k[:, :, None] * x[:, None, :], axis=0)
        return jnp.einsum("td,tde->te", q, state) / (q * jnp.cumsum(k, 0)).sum(-1, keepdims=True)

    assert_row_by_row(f, draw(T, D))


def test_time_mixing_of_rwkv():
    decay, mix = -jnp.exp(draw(D) / 4), jax.nn.sigmoid(draw(D, seed=1))

    def f(x):
        before = jnp.pad(x, ((1, 0), (0, 0)))[:-1]
        h = x * mix + before * (1 - mix)
        k, v, r = jnp.tanh(h @ draw(D, D)), h @ draw(D, D, seed=1), jax.nn.sigmoid(h)

        def step(state, row):
            (a, b), (k, v) = state, row
            y = (a + jnp.exp(k) * v) / (b + jnp.exp(k))
            grown = jnp.exp(decay)
            return (grown * a + jnp.exp(k) * v, grown * b + jnp.exp(k)), y

        return r * lax.scan(step, (jnp.zeros(D), jnp.zeros(D)), (k, v))[1]

    assert_row_by_row(f, draw(T, D))


def selective(x):
    """A state space model: h_t = a_t h_{t-1} + b_t, for all rows at once."""
    a = jax.nn.sigmoid(x @ draw(D, D))

    def combine(one, other):
        return one[0] * other[0], other[0] * one[1] + other[1]

    _, h = lax.associative_scan(combine, (a, (1 - a) * x))
    return h * jax.nn.silu(x)


def test_a_state_space_model_by_an_associative_scan():
    assert_row_by_row(selective, draw(T, D))


def test_an_associative_scan_notes_what_its_function_must_be():
    with listen() as notes:
        as_scan(lambda x: lax.associative_scan(jnp.add, x), draw(T, D))
    (note,) = (n for n in notes if "associative_scan" in n.what)
    assert "must be associative" in note.why and "test_models.py:" in note.where


def test_an_associative_scan_of_an_odd_number_of_rows():
    assert_row_by_row(selective, draw(11, D))


def test_an_associative_scan_along_the_second_axis():
    assert_row_by_row(lambda x: lax.associative_scan(jnp.add, x, axis=1), draw(2, T, D), axis=1)


def test_an_associative_scan_over_a_batch():
    assert_row_by_row(jax.vmap(selective), draw(2, T, D), axis=1)


def test_associative_scans_some_rows_at_a_time():
    assert_row_by_row(selective, draw(T, D), width=4)
