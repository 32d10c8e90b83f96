"""Causal programs, step by step: what is kept is found, what is not causal is refused."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import malleable as mal
from malleable import TransformError, as_scan
from malleable.rewriting.incremental import causal

T, D = 12, 4
CAUSAL = np.tril(np.ones((T, T), bool))


def x(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def attend(scores, v):
    return jax.nn.softmax(scores, -1) @ v


def run(f, xs, width=1, axis=0, **options):
    carry, step = as_scan(f, xs, width=width, axis=axis, **options)
    rows = jnp.moveaxis(xs, axis, 0)
    if width > 1:
        rows = rows.reshape(-1, width, *rows.shape[1:])
        rows = jnp.moveaxis(rows, 1, 1 + axis)
    _, ys = jax.jit(lambda c, r: lax.scan(step, c, r))(carry, rows)
    return jnp.moveaxis(ys, 0, axis) if width == 1 else jnp.concatenate(list(ys), axis)


def shifted_and_recurrent(v):
    behind = jnp.concatenate([jnp.ones((2, D)), v[:-2]])
    return lax.scan(lambda h, r: (jnp.tanh(h + r), h * r), jnp.zeros(D), behind)[1]


def ahead_and_recurrent(v):
    ahead = jnp.concatenate([v[1:], jnp.ones((1, D))])
    ys = lax.scan(lambda h, r: (jnp.tanh(h + r), h), jnp.zeros(D), ahead)[1]
    return jnp.concatenate([jnp.zeros((1, D)), ys[:-1]])


def two_lags(v):
    """Scores of a query of before, and of now: what was kept of the first is older."""
    behind = jnp.concatenate([jnp.zeros((1, D)), v[:-1]])
    return attend(jnp.where(CAUSAL, behind @ v.T + v @ v.T, -jnp.inf), v)


def halved(state):
    return state[0] / 2, state[1] + 1


def unrolled(v):
    rows, h = [], jnp.zeros(D)
    for t in range(T):
        h = jnp.tanh(h / 2 + v[t])
        rows.append(h)
    return jnp.stack(rows)


def written(v):
    y = jnp.zeros((T, D)).at[0].set(v[0])
    for t in range(1, T):
        y = y.at[t].set(jnp.tanh(y[t - 1] / 2 + v[t]))
    return y


PROGRAMS = {
    "attention": lambda v: attend(jnp.where(CAUSAL, v @ v.T, -jnp.inf), v),
    "a bias for a mask": lambda v: attend(v @ v.T + np.where(CAUSAL, 0, -1e30), v),
    "linear attention": lambda v: (CAUSAL * (v @ v.T)) @ v,
    "segments": lambda v: attend(
        jnp.where(CAUSAL & ((v[:, 0] > 0)[:, None] == (v[:, 0] > 0)[None]), v @ v.T, -1e30), v
    ),
    "window": lambda v: attend(
        jnp.where(CAUSAL & ~np.tril(np.ones((T, T), bool), -3), v @ v.T, -jnp.inf), v
    ),
    "two lags": two_lags,
    "recurrent, of rows of before": shifted_and_recurrent,
    "recurrent, of rows ahead, read behind": ahead_and_recurrent,
    "cumulative maximum": lambda v: lax.cummax(v, 0) - jnp.cumsum(v, 0),
    "a bias on scores that were divided": lambda v: attend(
        v @ v.T / 2 + jnp.where(CAUSAL, 0, -1e9), v
    ),
    "squares under a bias": lambda v: attend((v @ v.T) ** 2 + jnp.where(CAUSAL, 0, -1e9), v),
    "rows written behind": lambda v: jnp.zeros_like(v).at[1:].set(v[:-1]) + v,
    "a block written behind": lambda v: lax.dynamic_update_slice(v * 0, v[:-2], (2, 0)) * v,
    "a column written": lambda v: jnp.asarray(v).at[:, 0].add(v.sum(1)).at[:, 2].set(1.0),
    "the first row set": lambda v: jnp.cumsum(jnp.asarray(v).at[0].set(0.0), 0),
    "rows added to those behind": lambda v: jnp.asarray(v).at[1:].add(v[:-1]).at[0].multiply(2.0),
    "rolled, and the first row set": lambda v: jnp.roll(v, 1, 0).at[0].set(0.0) + v,
    "rolled, and the first rows chosen": lambda v: (
        jnp.where(np.arange(T)[:, None] < 2, 1.0, jnp.roll(v, 2, 0)) * v
    ),
    "a kernel that is masked": lambda v: jnp.convolve(
        v.sum(1), np.float32([0, 0, 1, 2, 3]) * x(5), "same"
    ),
    "a loop over queries": lambda v: lax.map(
        lambda row: attend(jnp.where(np.arange(T) <= row[1], v @ row[0], -jnp.inf), v),
        (v, np.arange(T)),
    ),
    "a loop in which each row decides for itself": lambda v: jax.vmap(
        lambda r: lax.while_loop(lambda c: (c[0] ** 2).sum() > c[1], halved, (r * 9, 0.5))[0]
    )(v),
    "turns that are counted for each row": lambda v: jax.vmap(
        lambda r: lax.while_loop(lambda c: c[1] < 3, halved, (r, 0))[0]
    )(v),
    "turns that never end for rows of zeros": lambda v: jnp.cumsum(
        jax.vmap(lambda r: lax.while_loop(lambda c: (c**2).sum() < 5, lambda c: c * 2, r))(v), 0
    ),
    "keys that are left out": lambda v: attend(
        jnp.where(CAUSAL & (v[:, 0] > 0)[None] | np.eye(T, dtype=bool), v @ v.T, -jnp.inf), v
    ),
    "a bias of keys": lambda v: attend(
        v @ v.T + jnp.where(CAUSAL & (v[:, 0] > 0)[None] | np.eye(T, dtype=bool), 0, -1e9), v
    ),
    "rows looked up at places before": lambda v: jnp.asarray(v)[np.arange(T) // 2 * 2] * v,
    "rows of several places before": lambda v: jnp.take(
        v, np.maximum(np.arange(T)[:, None] - np.arange(3), 0), axis=0
    ).sum(1),
    "columns convolved one by one": lambda v: jax.vmap(lambda a, w: jnp.convolve(a, w)[:T], 1, 1)(
        v, x(5, D)
    ),
    "the first row is taken away": lambda v: jnp.tanh(v - v[0]) * jnp.linalg.norm(v[:1]),
    "a mean that begins with the first row": lambda v: lax.scan(
        lambda h, r: (0.9 * h + 0.1 * r,) * 2, v[0], v
    )[1],
    "bins": lambda v: jnp.cumsum(jnp.digitize(v, np.linspace(-2, 2, 9)), 0) / 2.0,
    "a score that no row has, before the others": lambda v: (
        jax.nn.softmax(jnp.concatenate([np.ones((T, 1)), jnp.where(CAUSAL, v @ v.T, -jnp.inf)], 1))[
            :, 1:
        ]
        @ v
    ),
    "weights by relu": lambda v: jax.nn.relu(jnp.where(CAUSAL, v @ v.T, -jnp.inf)) @ v,
    "rolled, and the first rows times 0": lambda v: (
        v + jnp.roll(v, 2, 0) * (np.arange(T) >= 2)[:, None]
    ),
    "a kernel for each column, as a table": lambda v: jnp.einsum(
        "tsd,sd->td", x(T, T, D) * CAUSAL[..., None], v
    ),
    "a window at each place": lambda v: jax.vmap(
        lambda t: lax.dynamic_slice_in_dim(jnp.pad(v, ((2, 0), (0, 0))), t, 3).max(0)
    )(np.arange(T)),
    "a loop over the places of windows": lambda v: lax.map(
        lambda t: lax.dynamic_slice_in_dim(jnp.pad(v, ((2, 0), (0, 0))), t, 3).max(0), np.arange(T)
    ),
    "reversed, and run backwards": lambda v: lax.scan(
        lambda h, r: (jnp.tanh(h + r),) * 2, jnp.zeros(D), v[::-1], reverse=True
    )[1][::-1],
    "a loop over time in Python": unrolled,
    "a loop in Python that reads what it wrote": written,
    "a loop that reads what it wrote": lambda v: lax.fori_loop(
        0,
        T,
        lambda t, y: y.at[t + 2].set(jnp.asarray(v)[t] + y[t + 1] / 2 - y[t] / 4),
        jnp.zeros((T + 2, D)),
    )[2:],
    "rows read and written by index": lambda v: lax.fori_loop(
        0,
        T,
        lambda t, c: (c[0] / 2 + jnp.asarray(v)[t], c[1].at[t].set(c[0])),
        (jnp.zeros(D), v * 0),
    )[1],
    "keys of before, and values of now": lambda v: attend(
        jnp.where(CAUSAL, v @ jnp.pad(v, ((1, 0), (0, 0)))[:-1].T, -jnp.inf), v
    ),
    "values of the next row, below the diagonal": lambda v: (
        (np.tril(CAUSAL, -1) * (v @ v.T)) @ jnp.pad(v, ((0, 1), (0, 0)))[1:]
    ),
    "a state that begins with the first row, joined to it": lambda v: jnp.concatenate(
        [v[:1], lax.scan(lambda h, r: (h / 2 + r,) * 2, v[0], v[1:])[1]]
    ),
    "a median of rows that are repeated at the edge": lambda v: jnp.median(
        jnp.stack([jnp.pad(v, ((2, 0), (0, 0)), mode="edge")[k : T + k] for k in range(3)]), 0
    ),
    "turns that each row decides by a part of what it multiplies": lambda v: jax.vmap(
        lambda r: lax.while_loop(lambda c: c[0] < 2, lambda c: c @ x(D, D) + 1, r)
    )(v),
    "strictly causal": lambda v: jnp.cumsum(jnp.concatenate([jnp.ones((1, D)), v[:-1]]), 0),
}


@pytest.mark.in_turns
@pytest.mark.parametrize("name", PROGRAMS)
def test_steps_give_the_rows_of_the_function(name):
    """One by one and by threes, poisoned or not; all are compiled at once."""
    f, xs = PROGRAMS[name], x(T, D)
    ways = {(n, bad): as_scan(f, xs, width=n, poison=bad) for n in (1, 3) for bad in (False, True)}
    rows = {1: xs, 3: xs.reshape(-1, 3, D)}

    @jax.jit
    def everything(carries, xs, rows):
        steps = {way: step for way, (_, step) in ways.items()}
        return f(xs), {k: lax.scan(step, carries[k], rows[k[0]])[1] for k, step in steps.items()}

    due, found = everything({way: carry for way, (carry, _) in ways.items()}, xs, rows)
    for got in found.values():
        np.testing.assert_allclose(got.reshape(due.shape), due, 1e-4, 1e-5)


def test_poison_shows_a_row_that_is_read_too_early(monkeypatch):
    monkeypatch.setattr(causal, "check_gone", lambda *_: None)  # as if the proof had a hole
    wrong = lambda v: attend(jnp.where(np.tri(T, k=1, dtype=bool), v @ v.T, -jnp.inf), v)
    assert np.isfinite(run(wrong, x(T, D))).all()
    assert np.isnan(run(wrong, x(T, D), poison=True)[:-1]).all()


def test_what_is_kept_is_shown_with_the_program_of_a_step():
    f, v = PROGRAMS["attention"], x(T, D)
    carry, step = as_scan(f, v)
    text = str(mal.show(step)(carry, v[0]))
    assert "float32[12,4] is kept from step to step" in text and "192 bytes" in text


def test_a_carry_is_donated():
    f, v = PROGRAMS["attention"], jnp.asarray(x(T, D))
    carry, step = as_scan(f, v)
    compiled = jax.jit(step, donate_argnums=0)
    first = carry
    for row, wanted in zip(v, jax.jit(f)(v), strict=True):
        carry, y = compiled(carry, row)
        np.testing.assert_allclose(y, wanted, 1e-5, 1e-6)
    assert all(x.is_deleted() for x in jax.tree.leaves(first) if x.ndim)


@pytest.mark.parametrize("cut", ["sequences", "heads"])
def test_a_cache_that_is_cut_over_devices_stays_so_without_a_collective(cut):
    auto = (jax.sharding.AxisType.Auto,)
    mesh, (q, k, u) = jax.make_mesh((8,), ("devices",), axis_types=auto), x(3, 8, D, D)
    place = lambda *spec: jax.sharding.NamedSharding(mesh, jax.P(*spec))

    def f(v):  # (sequences, rows, heads, D): each head has products of its own
        queries, keys, values = (jnp.einsum("bthd,hde->bhte", v, w) for w in (q, k, u))
        scores = jnp.where(CAUSAL, queries @ keys.swapaxes(-1, -2), -jnp.inf)
        return jnp.swapaxes(attend(scores, values), 1, 2)

    v = jnp.asarray(x(8, T, 8, D))
    carry, step = as_scan(f, v, axis=1)
    at = 0 if cut == "sequences" else 1
    of_cache = lambda c: place(*["devices" if d == at else None for d in range(c.ndim)])
    carry = jax.tree.map(lambda c: jax.device_put(c, of_cache(c) if c.ndim else place()), carry)
    rows = jax.device_put(v, place("devices") if at == 0 else place(None, None, "devices"))
    compiled = jax.jit(step).lower(carry, rows[:, 0]).compile()
    assert not re.search("all-|collective-|reduce-scatter", compiled.as_text())
    after, y = compiled(carry, rows[:, 0])
    for old, new in zip(jax.tree.leaves(carry), jax.tree.leaves(after), strict=True):
        assert new.sharding.is_equivalent_to(old.sharding, new.ndim)
    np.testing.assert_allclose(y, jax.jit(f)(v)[:, 0], 1e-5, 1e-6)


@pytest.mark.parametrize("width", [1, 4])
def test_the_axis_may_be_another(width):
    f, xs = (lambda v: jax.vmap(PROGRAMS["attention"])(v)), x(3, T, D)
    np.testing.assert_allclose(run(f, xs, width, axis=1), jax.jit(f)(xs), 1e-4, 1e-5)


REFUSED = {
    "reversed": lambda v: v[::-1] * 1.0,
    "the mean of all rows": lambda v: v - v.mean(0),
    "no mask": lambda v: attend(v @ v.T, v),
    "a mask off by one": lambda v: attend(
        jnp.where(np.tril(np.ones((T, T), bool), 1), v @ v.T, -jnp.inf), v
    ),
    "a mask of -10": lambda v: attend(jnp.where(CAUSAL, v @ v.T, -10.0), v),
    "a bias of -1e9 that is added up": lambda v: (
        v * (v @ v.T + np.where(CAUSAL, 0, -1e9)).sum(1, keepdims=True)
    ),
    "rows that are masked as a whole": lambda v: attend(
        jnp.where(np.tril(np.ones((T, T), bool), -1), v @ v.T, -1e30), v
    ),
    "sorted": lambda v: jnp.sort(v, 0),
    "the last state of a loop": lambda v: v + lax.scan(lambda c, r: (c + r, r), v[0] * 0, v)[0],
    "every other row": lambda v: v[::2],
    "a number": lambda v: v.sum(),
    "rows that do not change": lambda v: jnp.ones((T, D)),
    "rows looked up at places behind": lambda v: jnp.asarray(v)[
        np.minimum(np.arange(T) + 1, T - 1)
    ],
    "keys that are left out, and no mask": lambda v: attend(
        jnp.where((v[:, 0] > 0)[None] | np.eye(T, dtype=bool), v @ v.T, -jnp.inf), v
    ),
    "the second row is taken away": lambda v: v - v[1],
    "the first row only": lambda v: jnp.broadcast_to(v[0], v.shape),
    "the first row of those behind": lambda v: v - jnp.concatenate([v[1:], v[:1]])[0],
    "a mean that begins with the first row, of others": lambda v: lax.scan(
        lambda h, r: (0.9 * h + 0.1 * r,) * 2, v[0], jnp.roll(v, 1, 0).at[0].set(0.0)
    )[1],
    "a score that no row has, before the others, which is not left out": lambda v: (
        jax.nn.softmax(jnp.concatenate([np.ones((T, 1)), jnp.where(CAUSAL, v @ v.T, -jnp.inf)], 1))[
            :, :-1
        ]
        @ v
    ),
    "scores of no row that come in late": lambda v: (
        v * jnp.concatenate([jnp.where(CAUSAL, v @ v.T, 0.0), v @ v.T], 1).sum(1, keepdims=True)
    ),
    "weights by relu, and no mask": lambda v: jax.nn.relu(v @ v.T) @ v,
    "rolled, and too few rows times 0": lambda v: (
        v + jnp.roll(v, 2, 0) * (np.arange(T) >= 1)[:, None]
    ),
    "a kernel for each column, one of which looks ahead": lambda v: jnp.einsum(
        "tsd,sd->td", np.ones((T, T, D)) * np.stack([CAUSAL] * (D - 1) + [CAUSAL.T], -1), v
    ),
    "a window around each place": lambda v: jax.vmap(
        lambda t: lax.dynamic_slice_in_dim(jnp.pad(v, ((1, 1), (0, 0))), t, 3).max(0)
    )(np.arange(T)),
    "rows read by index from behind": lambda v: lax.fori_loop(
        0,
        T,
        lambda t, c: (c[0] / 2 + jnp.asarray(v)[T - 1 - t], c[1].at[t].set(c[0])),
        (jnp.zeros(D), v * 0),
    )[1],
    "a later row": lambda v: jnp.concatenate([v[1:], v[:1] * 0]),
    "pairs of rows": lambda v: v @ v.T,
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_causal_is_refused_with_a_reason(name):
    with pytest.raises(TransformError, match="not causal along the axis: ") as caught:
        as_scan(REFUSED[name], x(T, D))
    assert "hint: " in str(caught.value)
    if name != "rows that do not change":
        assert "test_as_scan.py" in str(caught.value)


@pytest.mark.parametrize(
    ("f", "way_out"),
    [
        (lambda v: jnp.fft.irfft(jnp.fft.rfft(v, 2 * T, 0) * 2, axis=0)[:T], "jnp.convolve"),
        (lambda v: v.at[jnp.argmax(v, 1)].set(v), "at places that are known"),
        (
            lambda v: lax.scan(
                lambda h, r: (h + lax.cond(v[3, 0] > 0, jnp.sin, jnp.cos, r),) * 2, v[0], v
            )[1],
            "mask what lies in the future",
        ),
    ],
)
def test_the_way_out_is_that_of_the_cause(f, way_out):
    with pytest.raises(TransformError, match=way_out):
        as_scan(f, x(T, D))


@pytest.mark.parametrize("flip", [(0, 5), (3, 4), (0, 11)])
def test_one_element_of_a_mask_decides(flip):
    mask = CAUSAL.copy()
    mask[flip] = True
    with pytest.raises(TransformError, match="not causal"):
        as_scan(lambda v: attend(jnp.where(mask, v @ v.T, -jnp.inf), v), x(T, D))


@pytest.mark.parametrize("way", [0, 1])
def test_a_branch_that_is_chosen_when_steps_run_keeps_what_it_needs(way):
    def f(v, way):
        masked = lambda v: jnp.where(CAUSAL, v @ v.T, -jnp.inf)
        return v + lax.cond(way > 0, lambda v: attend(masked(v), v), lambda v: jnp.sin(v), v)

    @jax.jit
    def stepped(v, way):
        carry, step = as_scan(lambda v: f(v, way), v)
        return lax.scan(step, carry, v)[1]

    @jax.jit
    def counted(v, n):
        def g(v):
            return lax.fori_loop(0, n, lambda _, v: jnp.tanh(v * 2), v)

        carry, step = as_scan(g, v)
        return lax.scan(step, carry, v)[1] - g(v)

    v = x(T, D)
    np.testing.assert_allclose(stepped(v, way), jax.jit(f)(v, way), 1e-5, 1e-6)
    np.testing.assert_allclose(counted(v, way + 1), 0 * v, atol=1e-6)


UNDECIDED = {
    "all rows decide": lambda v: lax.while_loop(lambda v: jnp.abs(v).sum() > 1, lambda v: v / 2, v),
    "a turn reads rows of before": lambda v: lax.while_loop(
        lambda c: c[0] < FEW[0],
        lambda c: (c[0] + 1, c[1] + jnp.pad(c[1], ((1, 0), (0, 0)))[:-1]),
        (0, v),
    )[1],
    "a turn reads later rows": lambda v: lax.fori_loop(0, 2, lambda _, v: v[::-1] * 2, v),
    "one branch is not causal": lambda v: lax.cond(FEW[1] > 1, jnp.sin, lambda v: v[::-1] * 1, v),
}
FEW = jnp.arange(2)


@pytest.mark.parametrize("name", UNDECIDED)
def test_loops_and_branches_that_are_not_causal_are_refused_at_their_line(name):
    def late(v, few):
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(globals(), "FEW", few)
            as_scan(UNDECIDED[name], v)
        return v

    with pytest.raises(TransformError, match=r"not causal(.|\n)*test_as_scan\.py"):
        jax.eval_shape(late, x(T, D), FEW)


def test_keys_and_values_are_kept_and_nothing_else():
    w = x(3, D, D)

    def f(v):
        q, k, u = (v @ a for a in w)
        return attend(jnp.where(CAUSAL, q @ k.T, -jnp.inf), u)

    _, step = as_scan(f, x(T, D))
    kept = list(step.kept.values())
    assert len(kept) == 2
    assert [size for _, size, _ in kept] == [4 * T * D] * 2
    assert all("test_as_scan.py" in line for _, _, line in kept)


def test_a_mask_of_keys_is_no_matrix_in_the_carry():
    def f(v):
        keys = CAUSAL & (v[:, 0] > 0)[None] | np.eye(T, dtype=bool)
        return attend(jnp.where(keys, v @ v.T, -jnp.inf), v)

    _, step = as_scan(f, x(T, D))
    assert sorted(text for text, _, _ in step.kept.values()) == [
        "bool[1,12]",
        "float32[12,4]",
        "float32[4,12]",
    ]


def test_of_a_window_that_slides_the_rows_within_it_are_kept():
    i, j = np.arange(64)[:, None], np.arange(64)
    window = (j <= i) & (i - j < 5)

    def f(v):
        return attend(jnp.where(window, v @ v.T / 2, -jnp.inf), v)

    _, step = as_scan(f, x(64, D))
    assert [text for text, _, _ in step.kept.values()] == ["float32[5,4]", "float32[4,5]"]
    _, shift = as_scan(lambda v: v + jnp.pad(v, ((1, 0), (0, 0)))[:-1], x(64, D))
    assert {text for text, _, _ in shift.kept.values()} == {"float32[1,4]"}
    _, total = as_scan(lambda v: jnp.cumsum(v, 0), x(64, D))
    assert [text for text, _, _ in total.kept.values()] == ["float32[1,4]"]


FLAGS = jnp.array([True, False])


@pytest.mark.parametrize("which", [-1, 0, 1, 7])
def test_a_branch_that_a_constant_chooses_is_gone_through(which):
    def inner(v):
        return lax.cond(FLAGS[0], lambda v: jax.nn.relu(jnp.cumsum(v, 0)), lambda v: v[::-1], v)

    def f(v):
        return lax.switch(which, [jnp.sin, inner], v)

    np.testing.assert_allclose(run(f, x(T, D)), jax.jit(f)(x(T, D)), 1e-6, 1e-6)
    with pytest.raises(TransformError, match=r"later|another order"):
        as_scan(lambda v: lax.cond(FLAGS[1], jnp.sin, lambda v: v[::-1], v), x(T, D))


def test_a_branch_that_a_row_chooses_is_refused():
    with pytest.raises(TransformError, match=r"not causal(.|\n)*test_as_scan\.py"):
        as_scan(lambda v: lax.cond(v[0, 0] > 0, jnp.sin, jnp.cos, v), x(T, D))


@pytest.mark.parametrize("name", ["window", "two lags", "windows of layers", "convolutions"])
def test_a_prompt_in_chunks_and_rows_one_by_one_share_a_carry(name):
    n = 32
    i, j = np.arange(n)[:, None], np.arange(n)
    window = (j <= i) & (i - j < 5)

    def attention(v):
        return v + attend(jnp.where(window, v @ v.T, -jnp.inf), v)

    def convolution(v):
        w, numbers = jnp.ones((3, D, D)) / D, ("NWC", "WIO", "NWC")
        return lax.conv_general_dilated(
            v[None], w, (1,), [(4, 0)], rhs_dilation=(2,), dimension_numbers=numbers
        )[0]

    f = {
        "window": lambda v: attention(attention(v)),
        "two lags": lambda v: jnp.cumsum(attention(jnp.pad(v, ((2, 0), (0, 0)))[:-2]), 0),
        "windows of layers": lambda v: lax.scan(
            lambda h, w: (attention(h * w), None), v, jnp.ones((3, D)) / 2
        )[0],
        "convolutions": lambda v: jnp.tanh(convolution(convolution(v))),
    }[name]
    xs = jnp.asarray(x(n, D))
    (carry, chunk), (other, step) = as_scan(f, xs, width=8), as_scan(f, xs)
    chunk = jax.jit(chunk)
    assert jax.tree.map(jnp.shape, carry) == jax.tree.map(jnp.shape, other)
    ys, decode = [], jax.jit(step)
    for k in (0, 8):
        carry, y = chunk(carry, xs[k : k + 8])
        ys += list(y)
    for row in xs[16:]:
        carry, y = decode(carry, row)
        ys.append(y)
    np.testing.assert_allclose(np.stack(ys), jax.jit(f)(xs), 1e-4, 1e-5)


def test_sampling_feeds_what_comes_out_back_in():
    table, out = x(7, D), x(D, 7, seed=1)
    f = jax.jit(lambda tokens: PROGRAMS["attention"](jnp.asarray(table)[tokens]) @ out)
    tokens = np.zeros(T, np.int32)
    for t in range(T - 1):
        tokens[t + 1] = int(np.argmax(f(tokens)[t]))
    carry, step = as_scan(f, tokens)

    def sample(state, _):
        carry, token = state
        carry, y = step(carry, token)
        return (carry, jnp.argmax(y).astype(jnp.int32)), token

    _, found = jax.jit(lambda c: lax.scan(sample, (c, jnp.int32(0)), None, length=T))(carry)
    np.testing.assert_array_equal(found, tokens)


def test_a_strictly_causal_function_gives_a_row_before_it_takes_one():
    def f(v):
        behind = jnp.concatenate([jnp.ones((1, D)), v[:-1]])
        return attend(jnp.where(CAUSAL, behind @ behind.T, -jnp.inf), behind)

    carry, step = as_scan(f, x(T, D))

    def sample(carry, _):
        row = jnp.tanh(3 * step(carry)[1])
        return step(carry, row)[0], row

    _, rows = jax.jit(lambda c: lax.scan(sample, c, length=T))(carry)
    np.testing.assert_allclose(rows, np.tanh(3 * jax.jit(f)(rows)), 1e-5, 1e-6)


def test_a_row_that_depends_on_its_own_input_is_not_given_without_it():
    carry, step = as_scan(lambda v: jnp.cumsum(v, 0), x(T, D))
    with pytest.raises(TransformError, match=r"needs its rows(.|\n)*test_as_scan\.py:\d+"):
        step(carry)


def test_gradients_of_the_steps_are_those_of_the_function():
    xs, w = x(T, D), x(D, D, seed=1)

    def whole(w):
        return (PROGRAMS["attention"](xs @ w) ** 2).sum()

    def stepped(w):
        carry, step = as_scan(lambda v: PROGRAMS["attention"](v @ w), xs)
        return (lax.scan(step, carry, xs)[1] ** 2).sum()

    ours, wanted = (jax.jit(jax.grad(f))(w) for f in (stepped, whole))
    np.testing.assert_allclose(ours, wanted, 1e-3, 1e-3)


def test_sequences_at_places_of_their_own_under_vmap():
    f, xs = PROGRAMS["attention"], x(2, T, D)
    carry, step = as_scan(f, xs[0])
    ahead, _ = lax.scan(step, carry, xs[1][:5])
    carries = jax.tree.map(lambda a, b: jnp.stack([a, b]), carry, ahead)
    _, ys = jax.vmap(step)(carries, jnp.stack([xs[0][0], xs[1][5]]))
    f = jax.jit(f)
    np.testing.assert_allclose(ys, [f(xs[0])[0], f(xs[1])[5]], 1e-4, 1e-5)


def test_layers_in_a_scan_have_their_caches_stacked():
    ws = x(3, D, D)

    def f(v):
        def layer(h, w):
            return h + PROGRAMS["attention"](h @ w), None

        return lax.scan(layer, v, ws)[0]

    np.testing.assert_allclose(run(f, x(T, D)), jax.jit(f)(x(T, D)), 1e-3, 1e-4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: as_scan(lambda v: v, x(T, D), width=5), "does not divide"),
        (lambda: as_scan(lambda v: v[0], (x(T, D), x(T + 1, D))), "one length along axis 0"),
        (lambda: as_scan(lambda v: v, x(T), axis=1), "one length along axis 1"),
        (lambda: as_scan(lambda v: v, "text"), "one length along axis 0"),
    ],
)
def test_what_is_no_sequence_is_an_error(call, message):
    with pytest.raises(TransformError, match=message):
        call()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (np.ones(D + 1, np.float32), "rows of shape"),
        (np.ones((1, D), np.float32), "rows of shape"),
        (np.ones(D, np.complex64), "complex64 do not fit"),
        ((np.ones(D, np.float32),) * 2, "takes 1 arrays"),
    ],
)
def test_rows_that_do_not_fit_are_an_error(rows, message):
    carry, step = as_scan(jnp.sin, x(T, D))
    with pytest.raises(TransformError, match=message):
        step(carry, rows)


def test_many_layers_are_no_deep_recursion():
    f = functools.reduce(lambda f, _: lambda v: jnp.tanh(f(v)) + v, range(400), lambda v: v)
    assert len(as_scan(f, x(T, D))[1].kept) == 0


def test_a_step_is_shown_as_the_function_it_is_a_step_of():
    def running(x):
        return jnp.cumsum(jnp.sin(x))

    carry, step = as_scan(running, jnp.zeros(4))
    assert "step of" in repr(step) and "running" in repr(step)
    text = str(mal.show(step, quiet=True)(carry, 1.0))
    assert "return jnp.cumsum(jnp.sin(x))" in text and "= rows" in text


def test_rows_of_a_batch_in_front_are_told_the_axis():
    xs = jnp.ones((3, 5))
    carry, step = as_scan(lambda xs: jnp.cumsum(xs, 1), xs)
    with pytest.raises(TransformError, match=r"axis=1\) takes such rows"):
        step(carry, xs[:, 0])
    carry, step = as_scan(lambda xs: jnp.cumsum(xs, 1), xs, axis=1)
    assert lax.scan(step, carry, xs.T)[1][-1].tolist() == [5.0] * 3


def test_a_step_is_made_inside_of_a_map_over_devices():
    mesh = jax.make_mesh((8,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec(None, "d")
    model = lambda xs: jnp.cumsum(jnp.tanh(xs), 0)

    def local(xs):
        carry, step = as_scan(model, xs)
        return lax.scan(step, carry, xs)[1]

    xs = x(5, 16)
    for check_vma in (True, False):
        mapped = jax.shard_map(local, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=check_vma)
        assert np.allclose(mapped(xs), model(xs), atol=1e-6)
