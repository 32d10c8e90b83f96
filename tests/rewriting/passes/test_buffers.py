import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

from malleable import compat
from malleable.core.stage import stage
from malleable.programs.evaluate import evaluate
from malleable.rewriting.passes.buffers import unbuffer
from malleable.rewriting.passes.passes import optimize
from malleable.rewriting.passes.writes import written_rows

BUFFER = jnp.arange(15.0).reshape(5, 3)
ROW, COLUMN = jnp.ones(3), jnp.ones(5)


def assert_close(one, other):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def after(fun, *args):
    """The program of fun without buffers: well typed, with the same results, and final."""
    program = stage(fun)(*args).jaxpr
    new = unbuffer(program)
    compat.check(new)
    flat = list(map(compat.as_array, jax.tree.leaves(args)))
    assert_close(evaluate(new, flat), jax.tree.leaves(fun(*args)))
    assert [v.aval for v in new.jaxpr.outvars] == [v.aval for v in program.jaxpr.outvars]
    assert unbuffer(new) is new
    return new


def names(jaxpr):
    return [eqn.primitive.name for eqn in jaxpr.eqns]


def writes(jaxpr):
    """Whether any body of a program writes into an array."""
    here = {"scatter", "dynamic_update_slice"} & set(names(jaxpr))
    return bool(here) or any(writes(b) for eqn in jaxpr.eqns for b in compat.bodies(eqn.params))


def filled(low, high, body):
    return lambda buffer: lax.fori_loop(low, high, body, buffer)


@pytest.mark.parametrize(
    "fun",
    [
        filled(1, 5, lambda i, b: b.at[i].set(b[i - 1] / 2 + i)),
        filled(2, 5, lambda i, b: b.at[i].set(b[i - 1] - b[i - 2] * i)),
        filled(0, 4, lambda i, b: b.at[3 - i].set(b[4 - i] / 2)),
        filled(1, 3, lambda i, b: b.at[:, i].set(b[:, i - 1] * 2)),
    ],
)
def test_rows_that_were_written_before_are_carried(fun):
    assert not writes(after(fun, BUFFER))


@pytest.mark.parametrize(
    "fun",
    [
        filled(0, 4, lambda i, b: b.at[i].set(b[i + 1])),
        filled(1, 5, lambda i, b: b.at[i].set(b[0])),
        filled(1, 5, lambda i, b: b.at[i].set(b[4 - i])),
    ],
)
def test_a_buffer_that_is_read_elsewhere_stays(fun):
    assert writes(after(fun, BUFFER))


def test_rows_that_python_writes_are_stacked():
    def fun(x):
        y, z = jnp.zeros((3, 4)), jnp.zeros(4)
        for t in range(4):
            y = y.at[:, t].set(x[t] + (y[:, t - 1] if t else 0.0))
            z = z.at[t].set(y.sum()) if t < 3 else z
        return y, z

    program = stage(fun)(BUFFER).jaxpr
    new = written_rows(program)
    compat.check(new)
    assert names(new).count("scatter") < names(program).count("scatter")
    assert_close(evaluate(new, [BUFFER]), fun(BUFFER))


@pytest.mark.parametrize(
    "fun",
    [
        filled(0, 5, lambda i, b: b.at[i].set(i * ROW)),
        filled(1, 4, lambda i, b: b.at[i].set(i * ROW)),
        filled(0, 4, lambda i, b: b.at[i + 1].set(i * ROW)),
        filled(0, 5, lambda i, b: b.at[4 - i].set(i * ROW)),
        filled(0, 4, lambda i, b: b.at[-1 - i].set(i * ROW)),
        filled(0, 5, lambda i, b: b.at[i - 5].set(i * ROW)),
        filled(0, 3, lambda i, b: b.at[:, i].set(i * COLUMN)),
        filled(1, 3, lambda i, b: b.at[:, i].set(i * COLUMN)),
        filled(0, 5, lambda i, b: b.at[i, :].set(i * ROW)),
        filled(0, 5, lambda i, b: b.at[i].set(1.0)),
        filled(0, 5, lambda i, b: lax.dynamic_update_index_in_dim(b, i * ROW, i, 0)),
        filled(0, 5, lambda i, b: lax.dynamic_update_slice(b, i * ROW[None], (i, 0))),
        filled(0, 3, lambda i, b: lax.dynamic_update_slice(b, i * COLUMN[:, None], (0, i))),
        filled(0, 1, lambda i, b: b.at[i].set(i * ROW)),
        filled(0, 5, lambda i, b: b.at[jnp.clip(i, 0, 4)].set(i * ROW)),
    ],
)
def test_a_loop_that_fills_a_buffer_puts_rows_out(fun):
    new = after(fun, BUFFER)
    assert not writes(new)
    assert "scan" in names(new)


@pytest.mark.parametrize(
    "fun",
    [
        filled(0, 5, lambda i, b: b.at[i // 2].set(i * ROW)),  # some rows twice
        filled(0, 2, lambda i, b: b.at[2 * i].set(i * ROW)),  # not every row
        filled(0, 5, lambda i, b: b.at[i].set(b[0] + i)),  # reads it
        filled(0, 7, lambda i, b: b.at[i].set(i * ROW)),  # runs over the end
        filled(0, 4, lambda i, b: b.at[i].set(ROW).at[i + 1].set(i * ROW)),
        filled(0, 5, lambda i, b: b.at[i].add(i * ROW)),
        filled(0, 3, lambda i, b: lax.dynamic_update_slice(b, i * jnp.ones((2, 3)), (i, 0))),
    ],
)
def test_other_writes_stay(fun):
    program = stage(fun)(BUFFER).jaxpr
    assert unbuffer(program) is program


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("steps", [jnp.arange(5), jnp.arange(1, 4), jnp.arange(3, 0, -1)])
def test_the_index_may_be_a_row_of_the_scan(steps, reverse):
    def fun(buffer, steps=None):
        steps = jnp.arange(5) if steps is None else steps

        def step(carry, i):
            buffer, x = carry
            return (buffer.at[i].set(x), jnp.sin(x)), x.sum()

        return lax.scan(step, (buffer, buffer[0]), steps, reverse=reverse)

    assert not writes(after(fun, BUFFER))
    assert not writes(after(lambda buffer: fun(buffer, steps), BUFFER))


@pytest.mark.parametrize(
    ("start", "test", "by"),
    [
        (1, lambda i: i < 5, 1),
        (0, lambda i: i <= 3, 1),
        (4, lambda i: i >= 2, -1),
        (4, lambda i: i > 0, -1),
        (0, lambda i: i < 4, 1),
        (0, lambda i: i != 4, 1),
    ],
)
def test_a_while_that_counts_between_known_numbers_becomes_a_scan(start, test, by):
    def fun(buffer):
        def step(carry):
            i, x, buffer = carry
            return i + by, jnp.sin(x), buffer.at[i].set(x)

        return lax.while_loop(lambda carry: test(carry[0]), step, (start, buffer[0], buffer))

    new = after(fun, BUFFER)
    assert not writes(new)
    assert "while" not in names(new)


def test_a_while_whose_end_is_not_known_stays():
    def fun(buffer, n):
        return lax.fori_loop(0, n, lambda i, b: b.at[i].set(i * ROW), buffer)

    program = stage(fun)(BUFFER, 4).jaxpr
    assert unbuffer(program) is program


def test_several_buffers_and_a_carry():
    def fun(a, b):
        def step(i, carry):
            a, b, x = carry
            return a.at[i].set(x), b.at[:, 2 - i].set(x.sum() * COLUMN), jnp.sin(x + i)

        return lax.fori_loop(0, 3, step, (a, b, a[0]))

    assert not writes(after(fun, BUFFER, BUFFER))


def test_buffers_in_a_loop_in_a_loop():
    def fun(buffer):
        inner = lambda x: filled(0, 5, lambda i, b: b.at[i].set(x * i))(buffer)
        return lax.scan(lambda c, x: (c, inner(x)), 0.0, BUFFER)

    assert not writes(after(fun, BUFFER))


@pytest.mark.parametrize("lanes", [0, None])
def test_the_gradient_and_the_mapped_function_stay_the_same(lanes):
    def fun(buffer, x):
        def step(i, carry):
            buffer, x = carry
            return buffer.at[i + 1].set(jnp.sin(x)), x * 1.1

        buffer, x = lax.fori_loop(0, 3, step, (buffer, x))
        return jnp.sum(buffer**2) + x.sum()

    args = BUFFER, jnp.linspace(0, 1, 3)
    new = optimize(fun, unbuffer)
    assert_close(jax.grad(new, (0, 1))(*args), jax.grad(fun, (0, 1))(*args))
    many = (jnp.stack([BUFFER, 2 * BUFFER]) if lanes == 0 else BUFFER), jnp.ones((2, 3))
    assert_close(jax.vmap(new, (lanes, 0))(*many), jax.vmap(fun, (lanes, 0))(*many))
    assert_close(unbuffered_after_vmap(fun, many, (lanes, 0)), jax.vmap(fun, (lanes, 0))(*many))


def unbuffered_after_vmap(fun, args, lanes):
    return optimize(jax.vmap(fun, lanes), unbuffer)(*args)


def filled_by_row(steps, start=None):
    """Fill a buffer at the rows `steps`, or where a carried counter is."""

    def fun(buffer):
        def step(carry, row):
            i, buffer = carry
            i = row if start is None else i
            return (i + 1, buffer.at[i].set(jnp.float32(i))), None

        first = jnp.zeros((), steps.dtype) if start is None else start
        return lax.scan(step, (first, buffer), steps)[0][1]

    return fun


WRAPPED = np.array([254, 255, 0, 1], np.uint8)


@pytest.mark.parametrize(
    "fun",
    [
        filled_by_row(jnp.arange(10), jnp.uint8(250)),
        filled_by_row(WRAPPED),
    ],
)
def test_a_counter_that_wraps_around_is_no_line(fun):
    program = stage(fun)(jnp.zeros(300)).jaxpr
    assert unbuffer(program) is program


@pytest.mark.parametrize(
    "test",
    [
        lambda i, j: i % 4 < j,  # seven steps; without the remainder it would be five
        lambda i, j: (i + 254).astype(jnp.uint8) > j + 200,  # two; without wrapping none
        lambda i, j: jnp.minimum(i, 2) < j,  # it is a line for some steps only
    ],
)
def test_a_test_of_a_while_that_is_no_line_all_the_way_is_not_counted(test):
    def fun(buffer):
        def step(carry):
            i, j, buffer = carry
            return i + 1, j - 1, buffer.at[i].set(1.0)

        return lax.while_loop(lambda c: test(*c[:2]), step, (0, 9, buffer))[2]

    after(fun, jnp.zeros(30))


def test_a_scan_over_numbers_of_its_own_is_staged():
    steps = jnp.arange(8)
    fun = lambda x: lax.scan(lambda c, t: (c + t * x,) * 2, 0.0, steps)[1].sum()
    assert jax.jit(optimize(fun, unbuffer))(2.0) == fun(2.0)
