"""Every example fits on a page, runs, and prints what is true."""

import importlib
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import malleable as mal
from examples import (
    adaptive_step,
    count_flops,
    explained,
    intermediate_gradients,
    metropolis,
    own_rewrite,
    probabilistic,
    pushed_loss,
    sampling,
    sharding_pass,
    spreadsheet,
    sudoku,
    units,
)

EXAMPLES = sorted((pathlib.Path(__file__).parent.parent / "examples").glob("*.py"))


@pytest.fixture
def printed(capsys):
    def run(example):
        example.main()
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_has_under_sixty_lines_and_a_main(path):
    assert len(path.read_text().splitlines()) < 60
    assert callable(importlib.import_module(f"examples.{path.stem}").main)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_uses_public_names_only(path):
    assert re.findall(r"import malleable\b.*|from malleable\b.*", path.read_text()) == [
        "import malleable as mal"
    ]


# ------------------------------------------------------------ count_flops


def test_flop_are_those_counted_by_hand(printed):
    found = re.findall(r"(\S.*): +([\d,]+) operations", printed(count_flops))
    found = {what: int(number.replace(",", "")) for what, number in found}
    step = 2 * 4 * 32 * 32 + 4 * 32 + 4 * 32
    assert found["rnn, one step"] == step
    assert found["rnn, ten steps"] == 10 * step
    assert 0 <= found["its gradient"] - 3 * 10 * 2 * 4 * 32 * 32 < 10 * step // 10

    def steps(a):
        x, n = a, 0
        while abs(x * x - a) > 1e-4 * a:
            x, n = 0.5 * (x + a / x), n + 1
        return n

    assert found["root of 2"] == 4 + 7 * steps(2.0)  # the test runs once more than the body
    assert found["root of 2e6"] == 4 + 7 * steps(2e6)


def test_flop_of_the_branch_taken_count():
    branch = lambda x: lax.cond(x.sum() > 0, lambda x: jnp.tanh(jnp.tanh(x)), lambda x: x, x)
    assert count_flops.count_flops(branch)(jnp.ones(3))[1] == 6
    assert count_flops.count_flops(branch)(-jnp.ones(3))[1] == 0


def test_flop_of_a_vmap_are_those_of_all_lanes():
    dot = jax.vmap(lambda a, b: a @ b)
    assert (
        count_flops.count_flops(dot)(jnp.ones((5, 2, 3)), jnp.ones((5, 3, 4)))[1]
        == 5 * 2 * 2 * 3 * 4
    )


# ------------------------------------------------------------ only what is new


def test_letters_are_sampled_as_the_whole_model_draws_them(printed):
    letters, same = printed(sampling).splitlines()
    assert len(letters) == len("letters: ") + sampling.LENGTH
    assert same == "as the whole model draws them: True"


def test_one_cell_of_a_sheet_changes_its_totals_at_little_work(printed):
    assert re.findall(": (.*)", printed(spreadsheet)) == ["True", "True"]


def test_metropolis_ends_where_the_posterior_is(printed):
    same, spread = re.findall(": (.*)", printed(metropolis))
    assert same == "True" and float(spread) == 0.5


# ------------------------------------------------------------ units


def test_units_clash_in_a_loop_and_the_line_is_named(printed):
    speed, clash, line = printed(units).splitlines()
    assert speed == "12.799999 m^1 s^-1"  # 3 m/s + 10 * 0.1 s * 9.8 m/s^2
    assert clash == "m^1 s^-1 meets m^1 s^-2"
    source = pathlib.Path(units.__file__).read_text().splitlines()
    at = int(re.search(r"units\.py:(\d+) in", line)[1])
    assert "v + dt * unit(9.8, m=1, s=-2)" in source[at - 1]


@pytest.mark.parametrize(
    ("program", "unit"),
    [
        (lambda m, s: m * m / s, "m^2 s^-1"),
        (lambda m, s: jnp.sqrt(m) + jnp.sqrt(m), "m^0.5"),
        (lambda m, s: jax.grad(lambda s: m / s)(s), "m^1 s^-2"),
        (lambda m, s: jax.jit(lambda m: jnp.maximum(m, 0.0))(m), "m^1"),
        (lambda m, s: lax.cond(m > 2 * m, lambda: m + m, lambda: m), "m^1"),
        (lambda m, s: lax.while_loop(lambda x: x < 9 * m, lambda x: x + m, m) / s, "m^1 s^-1"),
        (lambda m, s: jax.vmap(lambda x: x * s)(jnp.ones(3)) @ jnp.ones(3), "s^1"),
        (lambda m, s: m / m, "a number"),
    ],
)
def test_units_follow_programs(program, unit):
    assert units.check_units(lambda: program(units.unit(2.0, m=1), units.unit(3.0, s=1)))[1] == unit


@pytest.mark.parametrize(
    "program",
    [
        lambda m, s: m + s,
        lambda m, s: m < s,
        lambda m, s: m + 1.0,
        lambda m, s: jnp.where(m > 0, m, s),
        lambda m, s: jax.jit(jnp.subtract)(m, s),
        lambda m, s: lax.cond(m > 0, lambda: m - s, lambda: m),
        lambda m, s: lax.while_loop(lambda x: x < 9.0, lambda x: 2 * x, m),
        lambda m, s: jax.vmap(lambda x: x * m + s)(jnp.ones(3)),
        lambda m, s: jax.grad(lambda m: (m * m + m * s) / s)(m),
    ],
)
def test_units_that_clash_are_refused(program):
    with pytest.raises(mal.TransformError, match=r"meets .*\n  at .*test_examples\.py:\d+"):
        units.check_units(lambda: program(units.unit(2.0, m=1), units.unit(3.0, s=1)))


def test_the_first_clash_is_the_one_reported():
    def twice():
        m, s = units.unit(2.0, m=1), units.unit(3.0, s=1)
        both = m + s
        return both + units.unit(1.0, kg=1)

    with pytest.raises(mal.TransformError, match=r"^m\^1 meets s\^1\n"):
        units.check_units(twice)


# ------------------------------------------------------------ probabilistic


def test_sampling_and_gradient_find_the_slope(printed):
    sampled, best = map(float, re.findall(r"\d\.\d+", printed(probabilistic)))
    exact = (0.9 + 2 * 2.4 + 3 * 2.8) / (1 + 4 + 9 + 0.5**2)
    assert best == pytest.approx(exact, abs=1e-3)
    assert sampled == pytest.approx(exact, abs=1e-2)


def normal(x, loc, scale):
    return -0.5 * ((x - loc) / scale) ** 2 - jnp.log(scale * jnp.sqrt(2 * jnp.pi))


def walk(start):
    step = lambda x, _: (probabilistic.sample("x", x, 2.0),) * 2
    return lax.scan(step, start, length=3)[1]


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit])
def test_log_prob_of_a_walk_is_the_sum_over_its_steps(wrap):
    x = jnp.array([1.0, -1.0, 2.0])
    expected = normal(x, jnp.array([0.5, 1.0, -1.0]), 2.0).sum()
    got = wrap(probabilistic.log_prob(walk))({"x": x}, 0.5)
    assert jnp.allclose(got, expected)


def test_a_trace_has_what_its_log_prob_is_asked_for():
    path, _, drawn = probabilistic.trace(walk)(jax.random.key(0), 0.5)
    assert jnp.allclose(drawn["x"], path)
    seen, weight, nothing = probabilistic.trace(probabilistic.condition(walk, drawn))(None, 0.5)
    assert jnp.allclose(seen, path)
    assert jnp.allclose(weight, probabilistic.log_prob(walk)(drawn, 0.5))
    assert nothing == {}


def test_the_lanes_of_a_vmap_are_drawn_one_by_one():
    plate = lambda xs: jax.vmap(lambda x: probabilistic.sample("y", x, 1.0))(xs)
    ys, _, _ = probabilistic.trace(plate)(jax.random.key(0), jnp.zeros(4))
    assert len(set(ys.tolist())) == 4
    density = probabilistic.log_prob(plate)({"y": ys}, jnp.zeros(4))
    assert jnp.allclose(density, normal(ys, 0.0, 1.0).sum())


def test_a_model_needs_a_trace():
    with pytest.raises(mal.UnhandledError, match="needs `trace`"):
        probabilistic.line(jnp.ones(3))


# ------------------------------------------------------------ intermediate_gradients


def test_gradients_inside_a_flax_model_are_those_of_its_second_half(printed):
    found = re.findall(
        r"(\w+): +(\d+)% dead units, gradient norm ([\d.]+)", printed(intermediate_gradients)
    )
    net = intermediate_gradients.Net(intermediate_gradients.nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(0), (64, 8))
    y = jnp.sin(x.sum(1, keepdims=True))
    second = jax.nn.relu(net.second(jax.nn.relu(net.first(x))))
    slope = jax.grad(lambda h: jnp.mean((net.last(h) - y) ** 2))(second)
    assert [layer for layer, _, _ in found] == ["first", "second"]
    assert float(found[1][2]) == pytest.approx(float(jnp.linalg.norm(slope)), abs=1e-4)
    assert int(found[1][1]) == round(100 * float(jnp.mean(jnp.all(second == 0, axis=0))))


# ------------------------------------------------------------ sudoku


def test_a_solved_sudoku_has_each_digit_once_and_keeps_what_was_given(printed):
    *boards, rest = printed(sudoku).split(" \n\n")
    assert rest == "" and boards.pop() == "no solution"
    every = set("123456789")
    for puzzle, board in zip(sudoku.PUZZLES, boards, strict=False):
        rows = np.array([list(line) for line in board.split()])
        parts = [*rows, *rows.T, *rows.reshape(3, 3, 3, 3).swapaxes(1, 2).reshape(9, 9)]
        assert all(set(part) == every for part in parts)
        assert all(a in (".", b) for a, b in zip(puzzle, "".join(rows.ravel())))


def test_the_solver_gives_the_same_without_jax_around_it():
    board = np.array([int(c) for c in sudoku.PUZZLES[0].replace(".", "0")]).reshape(9, 9)
    full, found = sudoku.solve(board)
    assert found is np.True_ or found is True
    assert type(full) is np.ndarray and np.array_equal(full, jax.jit(sudoku.solve)(board)[0])


# ------------------------------------------------------------ adaptive_step


def test_the_gradient_through_adaptive_steps_is_that_of_differences(printed):
    text = printed(adaptive_step)
    slope, apart = re.search(r"length (\S+), by differences (\S+)", text).groups()
    assert float(slope) == pytest.approx(float(apart), abs=0.01)
    angle, steps, rejected = re.search(r"angle (\S+) after (\d+) steps, (\d+) rej", text).groups()
    with jax.enable_x64(True):
        state, *counts = adaptive_step.integrate(np.array([1.0, 0.0]), 1.0, 1.5)
    assert counts == [int(steps), int(rejected)] and float(angle) == round(state[0], 4)


# ------------------------------------------------------------ own_rewrite


def test_the_rule_fires_where_there_are_many_dims_and_says_why_not_where_there_are_few(printed):
    many, few, checked = printed(own_rewrite).splitlines()
    assert many.startswith("64 dims") and "'distances_by_product' rewrote" in many
    assert few.startswith("3 dims") and few.endswith("as cheap, and keep their digits")
    assert all(float(re.search(r"off by (\S+):", line)[1]) < 1e-5 for line in (many, few))
    assert checked == "check_rule found nothing wrong"


def test_distances_become_a_matrix_product():
    x, y = jnp.ones((5, 16)), jnp.ones((4, 16))
    fast = mal.optimize(
        own_rewrite.nearest, mal.rewrite(own_rewrite.distances_by_product, level="fast")
    )
    names = [eqn.primitive.name for eqn in mal.stage(fast)(x, y).jaxpr.eqns]
    assert "dot_general" in names
    slow = mal.optimize(own_rewrite.nearest, mal.rewrite(own_rewrite.distances_by_product))
    assert "dot_general" not in [e.primitive.name for e in mal.stage(slow)(x, y).jaxpr.eqns]


# ------------------------------------------------------------ pushed_loss


def test_a_pushed_loss_needs_less_memory_and_is_the_same(printed):
    found = re.findall(
        r": ([\d.]+) MiB, pushed up ([\d.]+) MiB; off by (\S+)", printed(pushed_loss)
    )
    (plain, pushed, off), (plain_grad, pushed_grad, off_grad) = (map(float, row) for row in found)
    assert pushed < plain / 50 and pushed_grad < 0.7 * plain_grad
    assert off < 1e-5 and off_grad < 1e-5


def test_the_statistic_streams():
    mal.check_rule(pushed_loss.saturated, n=2, dtypes=["float32"])


# ------------------------------------------------------------ explained


def test_what_was_suggested_leaves_no_break(printed):
    text = printed(explained)
    assert "try jnp.where(x > least, x, 0).sum()" in text
    assert "try jnp.mean(x, where=x > least)" in text
    assert re.search(r"breaks: [1-9]\d*, then 0\n", text)
    assert "then 100%" in text and text.endswith("same results: True\n")


# ------------------------------------------------------------ sharding_pass


def test_a_sharding_pass_of_ones_own_halves_what_a_device_holds(printed):
    plain, cut = re.findall(r": ([\d.]+), (\d+) KiB", printed(sharding_pass))
    assert plain[0] == cut[0] and int(cut[1]) < int(plain[1]) / 2
