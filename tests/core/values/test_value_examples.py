"""The examples of values fit on a page, run, and are true."""

import importlib
import pathlib
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import jet

import malleable as mal
from examples.values import flow, int8, intervals, lora, low_rank, matrices, taylor, units, zeros

FOLDER = pathlib.Path(intervals.__file__).parent


@pytest.fixture
def printed(capsys):
    def run(example):
        example.main()
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_has_under_eighty_lines_and_public_names_only(path):
    text = path.read_text()
    assert len(text.splitlines()) < 80
    assert callable(importlib.import_module(f"examples.values.{path.stem}").main)
    assert re.findall(r"import malleable\b.*|from malleable\b.*", text) == [
        "import malleable as mal"
    ]


def test_intervals_enclose_an_rnn_and_a_newton_loop():
    w, xs = 0.4 * jnp.eye(3), jnp.linspace(-1, 1, 15).reshape(5, 3)
    box = intervals.bounds(intervals.rnn)(w, intervals.Interval(xs - 0.01, xs + 0.01))
    noise = jax.random.uniform(jax.random.key(0), (100, 5, 3), minval=-0.01, maxval=0.01)
    inner = jax.jit(jax.vmap(lambda n: intervals.rnn(w, xs + n)))(noise)
    assert (box.lo <= inner + 1e-6).all() and (inner <= box.hi + 1e-6).all()
    root = intervals.bounds(intervals.newton)(
        intervals.Interval(jnp.float32(1.9), jnp.float32(2.1))
    )
    roots = jax.jit(jax.vmap(intervals.newton))(jnp.linspace(1.9, 2.1, 100))
    assert (root.lo <= roots).all() and (roots <= root.hi).all()


BOUNDED = {
    "choices": lambda x: jnp.where(x > 0, x**2, -x) + jnp.where(jnp.isnan(x), 0, jnp.sign(x)),
    "powers": lambda x: x**3 + x**4 - 1 / (x * x + 1) + jnp.sqrt(abs(x)),
    "quotient by zero": lambda x: 1 / x,
    "clamps": lambda x: jnp.clip(x, -0.3, 0.7) + jnp.minimum(x, 0.2) + jax.nn.relu(x),
    "sums": lambda x: jnp.cumsum(x) + x.max() - x.min() + jnp.var(x) + jnp.median(x),
    "softmax": lambda x: jnp.sort(jax.nn.softmax(x)),
    "conv": lambda x: jnp.convolve(x, jnp.array([1.0, -2.0, 0.5])),
    "places": lambda x: jnp.zeros(6).at[jnp.array([1, 2])].set(x[:2]).at[1].add(x[jnp.array(3)]),
    "derivative": jax.grad(lambda x: jnp.sum(jnp.tanh(x) * jnp.sin(x))),
}


@pytest.mark.in_turns
@pytest.mark.parametrize("name", BOUNDED)
def test_bounds_hold_of_what_a_user_may_write(name):
    f, x = BOUNDED[name], jnp.array([0.5, -1.0, 0.1, 2.0, -0.2, 0.0])
    box = jax.jit(intervals.bounds(f))(intervals.Interval(x - 0.3, x + 0.3))
    noise = jax.random.uniform(jax.random.key(0), (100, 6), minval=-0.3, maxval=0.3)
    inner = jax.jit(jax.vmap(f))(x + noise)
    assert (box.lo <= inner + 1e-4).all() and (inner <= box.hi + 1e-4).all()


@pytest.mark.parametrize("f", [jnp.argmax, jnp.argsort, lambda x: x[x.astype(int)[0]], jnp.prod])
def test_what_has_no_bounds_is_refused(f):
    with pytest.raises(mal.TransformError, match=r"no bounds of|a place depends on"):
        intervals.bounds(lambda x: f(x))(intervals.Interval(jnp.zeros(3), jnp.ones(3)))


def test_lora_trains_its_leaves_alone_and_is_merged(printed):
    before, after = map(float, re.findall(r"[\d.]+", printed(lora)))
    assert after < before / 2
    model = eqx.nn.MLP(4, 2, 16, 1, key=jax.random.key(0))
    tuned = lora.train(lora.adapt(model, 2, jax.random.key(2)), jnp.ones((4, 4)), jnp.ones((4, 2)))
    for old, new in zip(lora.weights(model), lora.weights(tuned), strict=True):
        assert (old == new.w).all() and not (new.a == 0).all()


def test_int8_takes_less_memory(printed):
    less, error = map(float, re.findall(r"[\d.]+", printed(int8)))
    assert less > 3.5 and error < 2


def test_units_clash_at_their_line(printed):
    speed, clash, line, _ = printed(units).splitlines()
    assert speed == "12.8 {'m': 1, 's': -1}" and "clash" in clash
    at = int(re.search(r"units\.py:(\d+) in", line)[1])
    source = pathlib.Path(units.__file__).read_text().splitlines()
    assert "v + g * dt" in source[at - 1]


def test_units_of_what_a_user_may_write():
    x, y = jnp.array([1.0, -2.0, 3.0]), jnp.array([2.0, 2.0, -1.0])
    fs = {
        1: lambda x, y: jnp.where(x > y, x, abs(y)) + jnp.sqrt(x**2 + y**2) + jnp.sign(x) * y,
        2: lambda x, y: jnp.sum(jnp.cumsum(x) * jnp.clip(x, -abs(y), abs(y))) + x @ y,
        0: lambda x, y: jnp.exp((x - x.mean()) / x[jnp.array(0)]),
    }
    for power, f in fs.items():
        run = jax.jit(lambda *xs, f=f: mal.interpret(f, units.RULES)(*xs)[0])
        out = run(units.quantity(x, m=1), units.quantity(y, m=1))
        np.testing.assert_allclose(units.bare(out), jax.jit(f)(x, y), rtol=1e-5)
        assert units.powers(out) == ({"m": power} if power else {})
    for f in (lambda x: x > x * x, jnp.exp, lambda x: x + x**3):
        with pytest.raises(mal.TransformError, match=r"units clash|not known of units"):
            mal.interpret(f, units.RULES)(units.quantity(x, m=1))


def test_symbolic_zeros_are_not_computed(printed):
    full, less, same = re.fullmatch(r"(\d+) products, then (\d+) (\w+)\n", printed(zeros)).groups()
    assert int(less) <= int(full) - 3 and same == "True"


def test_a_matrix_of_two_parts_is_never_made(printed):
    assert "never made" in printed(low_rank)
    u, v = jnp.ones((3, 1)), jnp.arange(3.0)[None]
    m = low_rank.Split(jnp.arange(3.0), u, v)
    f = lambda m, x: (m @ x, m.T @ x, (m + m) @ x)
    got = mal.interpret(f, low_rank.RULES)(m, jnp.arange(3.0))[0]
    np.testing.assert_allclose(got, f(m.materialise(), jnp.arange(3.0)))


@pytest.mark.parametrize(
    "m",
    [
        matrices.Tridiagonal(jnp.ones(3), jnp.arange(4.0), jnp.full(3, 2.0)),
        matrices.Sparse(jnp.ones(3), jnp.array([[0, 1], [2, 0], [2, 2]]), (4, 4)),
    ],
)
def test_matrices_of_a_structure_mean_what_they_stand_for(m):
    def f(m, x):
        many = jax.vmap(lambda x: m @ x)(jnp.stack([x, 2 * x]))
        return matrices.smoothed(m, x + 1), m @ jnp.outer(x, x), m * 2.0 * many.sum(), many, x @ m

    x = jnp.arange(4.0)

    @jax.jit
    def both(m, x):
        out = mal.interpret(f, matrices.RULES)(m, x)[0]
        dense = [v.materialise() if hasattr(v, "materialise") else v for v in out]
        return dense, f(m.materialise(), x)

    for got, want in zip(*both(m, x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_a_tridiagonal_matrix_is_never_made(printed):
    got, want = re.findall(r"\d+\.\d+", printed(matrices))
    m = matrices.Tridiagonal(jnp.ones(99), jnp.ones(100), jnp.ones(99))
    run = lambda m, x: mal.interpret(matrices.smoothed, matrices.RULES)(m, x)[0]
    assert got == want and "100,100" not in str(jax.make_jaxpr(run)(m, jnp.ones(100)))


def bent(x):
    return lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, jnp.sin(s[1])), (0, x))[1]


TERMS = jnp.float32(0.5), jnp.float32(1.0), jnp.float32(0.3)
TAYLOR = [
    lambda x: jnp.sin(x) * x + jnp.exp(-x),
    lambda x: jnp.tanh(x) / (1 + x * x),
    lambda x: jax.nn.softmax(jnp.stack([x, x * x]))[0],
    lambda x: jax.nn.logsumexp(jnp.stack([x, 2 * x])) + jnp.sqrt(x) ** 3,
    lambda x: jnp.where(x > 0.2, x**3, x) * jax.nn.gelu(x),
]
BEYOND_JET = [
    taylor.swing,
    bent,
    lambda x: lax.cond(x > 0, lambda: x**2, lambda: x),
    lambda x: jnp.sort(jnp.stack([x, 1 - x]))[0] * x * jnp.argmax(jnp.stack([x, 2 * x])),
    lambda x: lax.top_k(jnp.stack([x, x * x]), 1)[0][0],
    lambda x: jnp.linalg.solve(jnp.array([[2.0, 1], [1, 3]]) * x, jnp.ones(2))[0],
    lambda x: jax.nn.relu(x) * x,
]


def test_taylor_series_are_those_of_jet():
    for f in TAYLOR:
        y, (dy, ddy) = jax.jit(lambda *terms, f=f: jet.jet(f, terms[:1], (terms[1:],)))(*TERMS)
        got = jax.jit(taylor.series(f))(*TERMS)
        np.testing.assert_allclose(got, [y, dy, ddy], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("f", BEYOND_JET)
def test_taylor_series_go_where_jet_does_not(f):
    x, dx, ddx = TERMS
    with pytest.raises((KeyError, jax.errors.UnexpectedTracerError)):
        jet.jet(f, (x,), ((dx, ddx),))
    at = lambda t: f(x + t * dx + t**2 / 2 * ddx)
    slope = lambda t: jax.jvp(at, (t,), (1.0,))[1]
    due = lambda t: [at(t), slope(t), jax.jvp(slope, (t,), (1.0,))[1]]
    got, want = jax.jit(lambda t, *terms: (taylor.series(f)(*terms), due(t)))(0.0, *TERMS)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


def test_a_flow_has_the_density_of_its_jacobian(printed):
    got, want = map(float, re.findall(r"-?\d+\.\d+", printed(flow)))
    assert abs(got - want) < 1e-2
