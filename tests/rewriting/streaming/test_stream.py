"""A large value worked through in blocks: what comes of it stays, the value itself is nowhere."""

import math

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from malleable import compat, listen, stage
from malleable.rewriting.machine import Machine
from malleable.rewriting.passes.fold import fold
from malleable.rewriting.passes.loops import scan_trim
from malleable.rewriting.passes.passes import optimize
from malleable.rewriting.streaming.region.sinks import SINKS, sink
from malleable.rewriting.streaming.stream import stream
from tests.rules import assert_same
from tests.scans import same_everywhere, same_on_eight_devices, temporary

M, N, D = 21, 18, 3
LEAST = 4 * M * D * 2  # bytes: twice the largest operand

streamed = stream(threshold=LEAST)
X = jnp.sin(jnp.arange(1.0 * M * D)).reshape(M, D)
Y = jnp.cos(0.7 * jnp.arange(1.0 * N * D)).reshape(N, D)
Q = jnp.sin(jnp.arange(512.0)).reshape(2, 64, 4)
K, V = (jnp.sin(jnp.arange(128.0) * i).reshape(2, 16, 4) for i in (1.7, 2.3))
CAUSAL = jnp.tril(jnp.ones((64, 16), bool))


def distances(x, y):
    return ((x[:, None] - y[None]) ** 2).sum(-1)


def sizes(jaxpr):
    """How many elements the values of a program have, those of its bodies too."""
    for eqn in jaxpr.eqns:
        yield from (math.prod(v.aval.shape) for v in eqn.outvars)
        for body in compat.bodies(eqn.params):
            yield from sizes(body)


def program(fun, *args, **options):
    return stream(stage(fun)(*args).jaxpr, **{"threshold": LEAST, **options})


def reasons(fun, *args, **options):
    """Why the pass leaves the large values of a program as they are."""
    with listen() as notes:
        program(fun, *args, **options)
    return [note.why for note in notes]


# ---------------------------------------------------------------- the value, its gradient, vmap

KERNELS = {
    "smoothing": lambda x, y: jnp.exp(-distances(x, y)) @ y,
    "logsumexp": lambda x, y: jax.nn.logsumexp(-distances(x, y), axis=1),
    "nearest": lambda x, y: jnp.argmin(distances(x, y), axis=1),
    "chamfer": lambda x, y: (lambda d: d.min(0).mean() + d.min(1).mean())(distances(x, y)),
    "hausdorff": lambda x, y: (lambda d: jnp.maximum(d.min(0).max(), d.min(1).max()))(
        distances(x, y)
    ),
    "discrepancy": lambda x, y: (lambda k: k(x, x) + k(y, y) - 2 * k(x, y))(
        lambda a, b: jnp.exp(-distances(a, b)).mean()
    ),
    "forces": lambda x, y: (lambda r: (r * ((r * r).sum(-1, keepdims=True) + 0.1) ** -1.5).sum(1))(
        x[None] - x[:, None]
    ),
    "matern, by vmap": lambda x, y: jax.vmap(
        lambda a: jax.vmap(
            lambda b: (lambda d: (1 + d) * jnp.exp(-d))(jnp.sqrt(3 * ((a - b) ** 2).sum() + 1e-3))
        )(y)
    )(x).sum(1),
    "mean shift": lambda x, y: (lambda w: (w @ y) / w.sum(1, keepdims=True))(
        jnp.exp(-distances(x, y))
    ),
    "rows, then columns": lambda x, y: (lambda k: (k / k.sum(1, keepdims=True)).sum(0))(
        jnp.exp(-distances(x, y))
    ),
    "contrastive": lambda x, y: (
        lambda s: jax.nn.logsumexp(s, 0) + jax.nn.logsumexp(s, 1) - 2 * jnp.diagonal(s)
    )(-distances(x, jnp.concatenate([y, x[N:]]))),
    "in a scan": lambda x, y: lax.scan(
        lambda c, t: (c + jnp.exp(-distances(x + t, y)).sum(1), None), x[:, 0], jnp.arange(3.0)
    )[0],
}


ROW_BY_ROW = [(name, 1) for name in ("nearest", "logsumexp", "chamfer", "rows, then columns")]


@pytest.mark.in_turns
@pytest.mark.parametrize(("name", "block"), [*((name, 8) for name in KERNELS), *ROW_BY_ROW])
def test_block_by_block_gives_what_the_whole_gave(name, block):
    fun = KERNELS[name]
    same_everywhere(optimize(fun, streamed(block=block)), fun, X, Y)


@pytest.mark.parametrize("name", KERNELS)
def test_the_large_value_is_nowhere(name):
    fun = KERNELS[name]
    assert max(sizes(stage(fun)(X, Y).jaxpr)) >= M * N
    assert max(sizes(program(fun, X, Y, block=4))) < M * N


def attention(q, k, v):
    return jax.nn.softmax(jnp.einsum("hqd,hkd->hqk", q, k) / 2, axis=-1) @ v


def causal(q, k, v):
    scores = jnp.where(CAUSAL, jnp.einsum("hqd,hkd->hqk", q, k) / 2, -jnp.inf)
    return jax.nn.softmax(scores, axis=-1) @ v


@pytest.mark.parametrize("fun", [attention, causal])
def test_attention_is_streamed(fun):
    assert max(sizes(program(fun, Q, K, V, threshold=4096, block=4))) < 2 * 64 * 16
    same_everywhere(optimize(fun, stream(threshold=4096, block=4)), fun, Q, K, V)


@pytest.mark.parametrize("options", [{"threshold": 0}, {"block": 7}])
def test_what_comes_of_rows_and_of_their_mean_is_no_part_of_the_loop_that_makes_them(options):
    fun = lambda x, y: jnp.var(jnp.exp(-distances(x, y)).sum(1))
    x, y = jnp.sin(jnp.arange(180.0)).reshape(60, 3), jnp.cos(jnp.arange(150.0)).reshape(50, 3)
    same_everywhere(optimize(fun, stream(**{"threshold": 1} | options)), fun, x, y)


def test_a_maximum_of_no_axis_is_cut_where_its_tangent_is():
    def fun(q, k, v):
        scores = jnp.where(jnp.tril(jnp.ones((3, 3), bool)), q @ k.mT, -jnp.inf)
        return (jax.nn.softmax(scores, axis=-1) @ v)[:-1]

    heads = jnp.sin(jnp.arange(18.0)).reshape(3, 2, 3, 1)
    same_everywhere(optimize(fun, stream(threshold=0)), fun, *heads)


@pytest.mark.parametrize("remat", [True, False])
def test_a_block_may_be_kept_for_the_gradient(remat):
    fun = KERNELS["smoothing"]
    same_everywhere(optimize(fun, streamed(block=8, remat=remat)), fun, X, Y)


def test_rows_padded_on_the_left_do_no_harm():
    mask = jnp.arange(N)[None] >= (jnp.arange(M) % N)[:, None]
    fun = lambda x, y: jax.nn.softmax(jnp.where(mask, -distances(x, y), -jnp.inf), 1) @ y
    same_everywhere(optimize(fun, streamed(block=4)), fun, X, Y)


def test_the_gradient_finds_a_minimum_though_xla_rounds_it_in_two_ways():
    fun = lambda x: (distances(x, x) + 1e9 * jnp.eye(M)).min(1)
    same_everywhere(optimize(fun, streamed(block=3)), fun, X)


def test_the_nearest_of_equals_is_the_first():
    x, y = jnp.round(2 * X).at[0].set(jnp.nan), jnp.round(2 * Y).at[2].set(jnp.nan)
    fun = lambda x, y: (jnp.argmin(distances(x, y), 1), jnp.argmax(distances(x, y), 0))
    assert_same(jax.jit(optimize(fun, streamed(block=4)))(x, y), fun(x, y))


def test_a_sink_of_yours_ends_the_axis():
    largest = sink(
        lambda k: k.max(0) + k.sum(0),
        init=lambda k: (jnp.full(k.shape[1:], -jnp.inf), jnp.zeros(k.shape[1:])),
        step=lambda acc, start, k: (jnp.maximum(acc[0], k.max(0)), acc[1] + k.sum(0)),
        merge=lambda a, b: (jnp.maximum(a[0], b[0]), a[1] + b[1]),
        final=lambda acc: acc[0] + acc[1],
    )
    fun, options = (
        lambda x, y: largest(jnp.exp(-distances(x, y))),
        {"sinks": (*SINKS, largest), "block": 4},
    )
    assert max(sizes(program(fun, X, Y, **options))) < M * N
    same_everywhere(optimize(fun, streamed(**options)), fun, X, Y)


def test_the_same_pass_again_changes_nothing():
    for fun in (KERNELS["smoothing"], KERNELS["chamfer"]):
        once = program(fun, X, Y, block=4)
        assert streamed(once) is once


# ---------------------------------------------------------------- memory


@pytest.mark.parametrize("transform", [lambda fun: fun, jax.grad], ids=["value", "gradient"])
def test_memory_falls(transform):
    x, y = (jnp.linspace(0.0, 1.0, 2 * n).reshape(n, 2) for n in (1000, 900))
    fun = lambda x, y: jnp.sin(jax.nn.softmax(-distances(x, y), 1) @ y).sum()
    fast = transform(optimize(fun, stream(threshold=1 << 20, block=10)))
    assert temporary(fast, x, y) * 8 < temporary(transform(fun), x, y)


# ---------------------------------------------------------------- options, and what is left alone


@pytest.mark.parametrize(
    ("options", "words"),
    [({"block": 0}, "not 0"), ({"level": "?"}, "not '.'"), ({"remat": "tail"}, "not 'tail'")],
)
def test_an_option_that_is_none_is_an_error(options, words):
    with pytest.raises(ValueError, match=words):
        program(KERNELS["smoothing"], X, Y, **options)


def test_a_value_that_is_not_large_is_left_alone():
    (why,) = reasons(KERNELS["smoothing"], X, Y, threshold=None)
    assert why.startswith("its largest value, at ") and "less than stream(threshold=" in why


def test_a_large_value_in_a_function_of_jax_has_the_line_that_calls_it():
    def masked(x, y):
        scores = jnp.where(x[:, 0] > 0, x @ y.T, -1.0)
        return jnp.sort(scores, axis=-1)

    square = jnp.ones((16, 2)), jnp.ones((16, 2))
    with listen() as notes:
        jax.make_jaxpr(optimize(masked, streamed(threshold=16)))(*square)
    assert notes and all("test_stream.py" in n.where for n in notes)


def test_at_level_exact_the_result_is_equal_to_the_last_bit():
    fun = lambda x, y: jnp.exp(-jnp.abs(x[:, None, 0] - y[None, :, 0])).sum(1)
    exact = optimize(fun, streamed(level="exact", block=4))
    assert bool((jax.jit(exact)(X, Y) == jax.jit(fun)(X, Y)).all())


def test_at_level_exact_a_sum_over_both_axes_stays():
    fun = lambda x, y: jnp.exp(-jnp.abs(x[:, None, 0] - y[None, :, 0])).sum()
    assert reasons(fun, X, Y, level="exact") != []


DECLINED = {
    "returned": (lambda x, y: jnp.exp(-distances(x, y)), "used as a whole"),
    "returned as well": (
        lambda x, y: (lambda k: (k, k.sum(1)))(jnp.exp(-distances(x, y))),
        "used as a whole",
    ),
    "sorted both ways": (
        lambda x, y: (lambda d: jnp.sort(d, 0)[0].sum() + jnp.sort(d, 1)[:, 0].sum())(
            distances(x, y)
        ),
        "used as a whole",
    ),
    "its diagonal": (
        lambda x, y: (
            lambda s: jax.nn.logsumexp(s, 0).sum() + jax.nn.logsumexp(s, 1).sum() - jnp.trace(s)
        )(distances(x, x)),
        "parts of the axis",
    ),
}


@pytest.mark.parametrize("name", DECLINED)
def test_a_note_says_why_a_large_value_is_made(name):
    fun, words = DECLINED[name]
    why = reasons(fun, X, Y)
    assert any(words in w for w in why), why


# ---------------------------------------------------------------- on several devices


def test_it_composes_with_shard_map_on_eight_devices_in_both_orders():
    def local(x, y):
        d = distances(x, y)
        w = jax.nn.softmax(-d + lax.axis_index("d"), 1) @ y
        return w + lax.psum(jnp.exp(-d).sum(), "d") + d.min(1)[:, None]

    x, y = (jnp.linspace(0.0, 1.0, 2 * n).reshape(n, 2) for n in (128, 21))
    same_on_eight_devices(local, [stream(threshold=512, block=4)], (P("d"), P()), x, y)


# ---------------------------------------------------------------- layers of a network


def layers(x, inner, outer):
    """Of (batch, time, features)."""
    return jnp.mean((jax.nn.gelu(x @ inner) @ outer) ** 2)


def loops(jaxpr):
    return [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "scan"]


def test_layers_stream_over_examples():
    """Over what they have inside, sums as large as the result would go through memory."""
    weights = jnp.ones((8, 32)) / 8, jnp.ones((32, 8)) / 8
    x = jnp.sin(jnp.arange(16.0 * 32 * 8)).reshape(16, 32, 8)
    fun = stream(threshold=4 * 16 * 32 * 32, block=4)
    (loop,) = loops(fun(stage(layers)(x, *weights).jaxpr))
    assert loop.params["length"] == 4
    assert [v.aval.shape for v in loop.outvars] == [()]
    same_everywhere(optimize(layers, fun), layers, x, *weights)


@pytest.mark.parametrize("rows, width, streams", [(9, 16, 0), (9, 1, 1), (20, 16, 1)])
def test_what_products_make_is_streamed_if_it_is_very_large(rows, width, streams):
    fun = lambda x, w: jnp.abs(jnp.sin(x @ w) @ w.T).sum()
    x, w = jnp.ones((1024 * rows, width)), jnp.ones((width, 256))
    assert len(loops(program(fun, x, w, threshold=None))) == streams
    if not streams:
        (why,) = reasons(fun, x, w, threshold=None)
        assert "its products take longer" in why
        advised = int(why.rpartition("threshold=")[2].rstrip(")"))
        assert loops(program(fun, x, w, threshold=advised))


def test_a_number_all_over_is_not_said_to_be_made_as_a_whole():
    fun = lambda x: jnp.where(x[:, None] > x, -jnp.inf, jnp.full((4096, 4096), 2.0))
    assert all("where" in why or "whole" in why for why in reasons(fun, jnp.ones(4096)))
    (why,) = reasons(lambda x: x + jnp.full((4096, 4096), -jnp.inf), jnp.ones((4096, 4096)))
    assert why == "no large value is spread out from small ones and reduced again"


def test_a_convolution_is_left_whole():
    same = lambda x, w: jax.lax.conv(x, w, (1, 1), "SAME")
    fun = lambda x, w: jnp.abs(same(x, w)).sum((1, 2, 3))
    x, w = jnp.ones((16, 1, 64, 64)), jnp.ones((32, 1, 3, 3))
    assert not loops(program(fun, x, w, threshold=None))
    assert "a convolution of all examples" in reasons(fun, x, w, threshold=None)[0]


def test_blocks_divide_the_rows_if_they_can():
    fun = lambda x: jnp.sin(x[:, None] * x).sum(1)
    (loop,) = loops(program(fun, jnp.ones(3000), threshold=None))
    steps, rows = loop.outvars[0].aval.shape
    assert steps > 1 and steps * rows == 3000


@pytest.mark.parametrize("transform", [jax.jit, jax.grad])
def test_what_rows_come_to_does_not_make_blocks_longer(transform):
    def fun(x, y):
        near = abs(jnp.arange(x.size)[:, None] - jnp.arange(y.size)) < 50
        rows = jnp.where(near, jnp.exp(-abs(x[:, None] - y)), 0).sum(1)
        return (rows / rows.max()).mean()

    x, y = (jnp.linspace(0.1, 1.0, n) for n in (3000, 1000))  # 12 MB
    assert temporary(transform(optimize(fun, stream)), x, y) < 5e6


def test_what_is_given_as_large_as_that_is_not_transposed():
    fun = lambda x, y, w: (w * jnp.exp(-abs(x[:, None] - y))).sum(0)
    x, y = (jnp.linspace(0.1, 1.0, n) for n in (3000, 1100))
    w = jnp.ones((3000, 1100))
    assert temporary(optimize(fun, stream), x, y, w) < 5e6
    same_everywhere(optimize(fun, stream(threshold=1)), fun, x[:9], y[:70], w[:9, :70])


@pytest.mark.parametrize(("most", "steps"), [(math.inf, N), (N, M)])
def test_blocks_are_not_summed_to_what_xla_sums_badly(most, steps):
    """Cut into columns, which sums nothing up, it is, in the gradient, to as many as x has."""
    fun = lambda x, y: jnp.cos(jnp.sin(x[:, None] * y).sum(0))
    machine = Machine(summed_columns=most)
    (loop,) = loops(program(fun, X[:, 0], Y[:, 0], block=1, machine=machine))
    assert loop.params["length"] == steps


@pytest.mark.parametrize(
    ("fun", "stays"),
    [
        (lambda d: d.max(1), False),
        (lambda d: (d.max(1), jnp.sort(d, 0).sum(1), jnp.sort(d, 1).sum(0)), True),
        (lambda d: (jax.nn.softmax(d, 1), jnp.sort(d, 0), jnp.sort(d, 1)), False),  # not derived
    ],
    ids=["streamed", "left", "of constants"],
)
def test_a_sum_is_written_out_only_if_an_extremum_of_it_is_streamed(fun, stays):
    """Where JAX derives the extremum, XLA may round the terms in two ways, and find none equal."""
    of_both = lambda x, y: fun(distances(x, y))
    names = [eqn.primitive.name for eqn in program(of_both, X, Y).eqns]
    assert ("split" in names) != stays


def test_functions_with_a_derivative_of_their_own_are_pulled():
    """relu is one; its operand is worked out in blocks with all else."""
    weighed = lambda x, y: (x[:, None] * y * jax.nn.relu(x[:, None] - y)).sum() / (x.sum() + 9)
    x, y = X[:, 0], Y[:, 0]
    assert max(sizes(program(weighed, x, y, block=1))) < M * N
    same_everywhere(optimize(weighed, streamed(block=4)), weighed, x, y)


def test_blocks_are_not_cut_into_blocks():
    """With a product for each head, and a bias that is large too."""
    i = jnp.arange(64)
    slopes = jnp.array([0.5, 0.25])[:, None, None]

    def alibi(q, k, v):
        bias = jnp.abs(i[:, None] - i) * slopes
        return (jax.nn.softmax(q @ k.mT - bias, -1) @ v).sum((1, 2))

    q, k, v = (jnp.sin(jnp.arange(2.0 * 64 * 4) * f).reshape(2, 64, 4) for f in (1.0, 1.7, 2.3))
    done = program(alibi, q, k, v, threshold=64 * 64, block=1)
    (loop,) = loops(done)
    assert not loops(loop.params["jaxpr"])
    same_everywhere(optimize(alibi, stream(threshold=64 * 64)), alibi, q, k, v)


def test_what_a_result_is_made_of_may_be_streamed_too():
    """The zeros a scan begins with are those that logsumexp puts in the place of -inf."""

    def fun(x, y):
        near = jnp.abs(y[:, None] - y[None]).sum(-1)
        start = jnp.zeros(len(y))
        rows = jax.lax.scan(lambda c, r: (c * 0.5 + r, c + r), start, near)[1]
        z = jnp.cos(x[:, None] + 2 * x[None])
        return jax.nn.logsumexp(z.T * rows + 0.1 * z, 1)

    same_everywhere(optimize(fun, stream(threshold=64)), fun, X[:N, 0], Y)


def test_values_that_devices_share_by_their_type_stay():
    mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Explicit,))
    fun = lambda x: jax.nn.relu((x[:, None] - jnp.ones((12, 8))) ** 2).sum(1)
    with jax.set_mesh(mesh):
        x = jax.device_put(jnp.arange(128.0).reshape(16, 8), NamedSharding(mesh, P("d")))
        assert_same(jax.jit(optimize(fun, stream(threshold=256)))(x), fun(x))
        assert "on which devices" in reasons(fun, x, threshold=256)[0]


def test_an_array_that_is_folded_into_a_body_is_cut_there():
    at, x, y = jnp.array([2, 0, 1]), jnp.arange(3.0) ** 2, jnp.arange(3.0)
    starts = jnp.ones((2, 1))

    def program(x, y):
        d = (x[:, None] - y) ** 2

        def some(c):
            picked = lambda: jax.nn.log_softmax(d / 9, -1)[jnp.arange(3), at]
            return lax.scan(lambda c, _: (jnp.sin(c), picked()), c, length=5)[1]

        return jax.vmap(some, out_axes=1)(starts).sum(0)

    small = [stream(threshold=0, block=2), scan_trim, fold, stream(threshold=0, block=3)]
    assert_same(optimize(program, *small)(x, y), program(x, y))


def test_where_a_place_is_looked_for_blocks_are_equal_and_a_note_says_so():
    x = jnp.linspace(0.0, 3.0, 30)
    nearest = lambda x: ((x[:, None] - x) ** 2 + jnp.eye(30)).argmin(1)
    with listen() as heard:
        ours = optimize(nearest, stream(threshold=0, block=16))
        assert_same(ours(x), nearest(x))
    assert "15 steps at a time, not 16" in [n.what for n in heard]
