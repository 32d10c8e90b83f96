"""Block by block, a sink gives what its primitive gives of the whole array."""

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

from malleable import RuleError, compat, optimize, push_up_reductions
from malleable.rewriting.axis.axes import flow
from malleable.rewriting.graph.slices import Ax, Running, Sunk, restack, unstack
from malleable.rewriting.streaming.region.sinks import RUNNERS, SINKS, Spec, sink
from tests.rewriting.axis.test_axes import axes, equation, numbers

BY_NAME = {s.name: s for s in SINKS} | {r.name: r for r in RUNNERS}


def cuts(n, seed):
    """Random borders of blocks."""
    rng = np.random.default_rng(seed)
    inner = sorted({int(i) for i in rng.integers(1, max(n, 2), 2)} - {n}) if n > 1 else []
    return [0, *inner, n]


def spec_of(eqn, found, n, reverse):
    return Spec(found.how, tuple(v.aval for v in eqn.outvars), eqn.params, n, reverse)


def blocks_of(fun, args, ins, n):
    eqn, values = equation(fun, *args)
    found = flow(eqn, axes(ins, len(values)), axes(None, len(eqn.outvars)), n)
    assert isinstance(found, Sunk | Running), found
    return eqn, values, found, [unstack(x, a, n) for x, a in zip(values, found.ins)]


def sunk(fun, args, ins, n, reverse=False, seed=0, merged=False):
    """The results of an equation, computed by its sink, block by block."""
    eqn, _, found, stacks = blocks_of(fun, args, ins, n)
    spec, one = spec_of(eqn, found, n, reverse), BY_NAME[eqn.primitive.name]
    pieces = list(zip(cuts(n, seed), cuts(n, seed)[1:]))

    def start(stacks):
        return one.init(spec, *map(jax.typeof, stacks))

    @jax.jit
    def run(*stacks):
        parts = [(jnp.int32(a), [s[a:b] for s in stacks]) for a, b in pieces if b > a]
        acc = start(stacks)
        for at, part in parts[::-1] if reverse and not merged else parts:
            if merged:
                new = one.merge(spec, acc, one.step(spec, start(stacks), at, *part))
            else:
                new = one.step(spec, acc, at, *part)
            assert jax.tree.map(jax.typeof, new) == jax.tree.map(jax.typeof, acc)
            acc = new
        return one.final(spec, acc)

    outs = run(*stacks)
    for x, v in zip(outs, eqn.outvars):
        assert (x.shape, x.dtype) == (v.aval.shape, v.aval.dtype)
        assert jax.typeof(x).weak_type == v.aval.weak_type
    return outs


def whole(fun, *args):
    eqn, values = equation(fun, *args)
    return compat.bind(eqn, values)


def same(got, due, close=0.0):
    for x, y in zip(got, due, strict=True):
        half = x.dtype in (jnp.bfloat16, jnp.float16)
        x, y = (np.asarray(a, "float32") if half else np.asarray(a) for a in (x, y))
        np.testing.assert_allclose(x, y, rtol=close, atol=close)


X = numbers(6, 4, 3)
TIES = jnp.round(X * 2)
ODD = X.at[2, 1].set(jnp.nan).at[4].set(jnp.inf).at[1].set(-jnp.inf).at[5, 1].set(jnp.nan)
INTS = numbers(6, 4, 3, dtype="int32")
total = lambda *axes: lambda x: lax.reduce_sum(x, axes)
dot = lambda a, b: lax.dot_general(a, b, (((1,), (1,)), ((), ())))

CASES = {
    "sum": (total(0), [X], Ax(0), 6, 1e-6),
    "sum of all": (total(0, 1, 2), [X], Ax(1), 4, 1e-6),
    "sum, merged": (total(0, 1), [X], Ax(1, 2), 2, 1e-6),
    "sum of integers": (total(0), [INTS], Ax(0), 6, 0),
    "sum of halves": (total(0), [X.astype("float16")], Ax(0), 6, 1e-2),
    "sum of bfloat16": (total(0), [X.astype("bfloat16")], Ax(0), 6, 1e-1),
    "sum of complex": (total(0), [lax.complex(X, -X)], Ax(0), 6, 1e-6),
    "prod": (lambda x: lax.reduce_prod(x, (0,)), [X], Ax(0), 6, 1e-5),
    "max": (lambda x: lax.reduce_max(x, (0,)), [TIES], Ax(0), 6, 0),
    "max of odd": (lambda x: lax.reduce_max(x, (0, 2)), [ODD], Ax(0), 6, 0),
    "min of odd": (lambda x: lax.reduce_min(x, (0, 2)), [ODD], Ax(0), 6, 0),
    "max of integers": (lambda x: lax.reduce_max(x, (1,)), [INTS], Ax(1), 4, 0),
    "min of bytes": (lambda x: lax.reduce_min(x, (1,)), [INTS.astype("uint8")], Ax(1), 4, 0),
    "min of halves": (lambda x: lax.reduce_min(x, (1,)), [X.astype("float16")], Ax(1), 4, 0),
    "and": (lambda x: lax.reduce_and(x, (1,)), [X > -1], Ax(1), 4, 0),
    "or": (lambda x: lax.reduce_or(x, (1,)), [X > 1], Ax(1), 4, 0),
    "xor": (lambda x: lax.reduce_xor(x, (1,)), [X > 1], Ax(1), 4, 0),
    "and of integers": (lambda x: lax.reduce_and(x, (1,)), [INTS], Ax(1), 4, 0),
    "or of bytes": (lambda x: lax.reduce_or(x, (1,)), [INTS.astype("uint8")], Ax(1), 4, 0),
    "argmax": (lambda x: lax.argmax(x, 0, "int32"), [TIES], Ax(0), 6, 0),
    "argmin": (lambda x: lax.argmin(x, 1, "int32"), [TIES], Ax(1), 4, 0),
    "argmax of odd": (lambda x: lax.argmax(x, 0, "int32"), [ODD], Ax(0), 6, 0),
    "argmin of odd": (lambda x: lax.argmin(x, 0, "int8"), [ODD], Ax(0), 6, 0),
    "argmin, merged": (lambda x: lax.argmin(x, 1, "int32"), [TIES], Ax(1, 2), 2, 0),
    "argmin, merged inner": (lambda x: lax.argmin(x, 1, "int32"), [TIES], Ax(1, 1, 2), 2, 0),
    "argmax of booleans": (lambda x: lax.argmax(x, 1, "int32"), [X > 1], Ax(1), 4, 0),
    "argmax of integers": (lambda x: lax.argmax(x, 1, "uint32"), [INTS], Ax(1), 4, 0),
    "argmax of minus infinity": (
        lambda x: lax.argmax(x, 0, "int32"), [X * 0 - jnp.inf], Ax(0), 6, 0,
    ),
    "dot": (dot, [X[0], X[1, :2]], [Ax(1)], 3, 1e-6),
    "dot, merged": (dot, [X[..., 0], X[..., 1]], [None, Ax(1, 2)], 2, 1e-6),
    "dot of halves": (dot, [X[0].astype("bfloat16"), X[1].astype("bfloat16")], [Ax(1)], 3, 5e-2),
    "dot of integers": (dot, [INTS[0], INTS[1]], [Ax(1)], 3, 0),
    "batched dot": (
        lambda a, b: lax.dot_general(a, b, (((0, 2), (0, 2)), ((1,), (1,)))),
        [X, X + 1], [Ax(0)], 6, 1e-5,
    ),
    "sum of one": (total(0), [X[:1]], Ax(0), 1, 0),
    "argmax of one": (lambda x: lax.argmax(x, 0, "int32"), [X[:1]], Ax(0), 1, 0),
}  # fmt: skip


@pytest.mark.in_turns
@pytest.mark.parametrize("name", CASES)
def test_blocks_give_what_the_whole_gives(name):
    fun, args, ins, n, close = CASES[name]
    due = whole(fun, *args)
    same(sunk(fun, args, ins, n, seed=0), due, close)
    same(sunk(fun, args, ins, n, reverse=True, seed=3), due, close)
    same(sunk(fun, args, ins, n, merged=True, seed=4), due, close)


EMPTY = ["sum", "sum of integers", "prod", "max", "min of bytes", "and", "or", "xor"]


@pytest.mark.parametrize("name", EMPTY)
def test_no_blocks_give_what_nothing_gives(name):
    fun, (x,), ax, _, _ = CASES[name]
    x = lax.slice_in_dim(x, 0, 0, axis=ax.dim)
    same(sunk(fun, [x], ax, 0), whole(fun, x))


RUNS = {
    "cumsum": (lax.cumsum, X, 1e-5),
    "cumsum of integers": (lax.cumsum, INTS, 0),
    "cumsum of halves": (lax.cumsum, X.astype("float16"), 2e-2),
    "cumprod": (lax.cumprod, X, 1e-5),
    "cummax": (lax.cummax, ODD, 0),
    "cummin": (lax.cummin, ODD, 0),
    "cumlogsumexp": (lax.cumlogsumexp, X.at[0].set(-jnp.inf), 1e-5),
}


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", RUNS)
def test_a_running_result_comes_block_by_block(name, reverse):
    fun, x, close = RUNS[name]
    op = lambda x: fun(x, axis=1, reverse=reverse)
    eqn, _, found, (stack,) = blocks_of(op, [x], Ax(1), 4)
    spec, one = spec_of(eqn, found, 4, reverse), BY_NAME[eqn.primitive.name]
    assert one.fits(spec) and not one.fits(spec._replace(reverse=not reverse))
    acc, outs = one.init(spec, jax.typeof(stack)), {}
    for a, b in ((1, 4), (0, 1)) if reverse else ((0, 1), (1, 4)):
        acc, outs[a] = one.step(spec, acc, jnp.int32(a), stack[a:b])
    got = jnp.concatenate([outs[0], outs[1]])
    same([restack(got, found.outs[0], x.shape)], [op(x)], close)


def by_blocks(fun, x, ax, n, size=2, order=1):
    """The result of an equation by its sink: a function to differentiate."""
    eqn, _, found, _ = blocks_of(fun, [x], ax, n)
    spec, one = spec_of(eqn, found, n, order < 0), BY_NAME[eqn.primitive.name]

    def run(x):
        stack = unstack(x, found.ins[0], n)
        acc = one.init(spec, jax.typeof(stack))
        for a in range(0, n, size)[::order]:
            acc = one.step(spec, acc, jnp.int32(a), stack[a : a + size])
        return one.final(spec, acc)[0]

    return run


@pytest.mark.parametrize("op", [lax.reduce_max, lax.reduce_min])
def test_ties_share_a_gradient_evenly_as_in_jax(op):
    x = jnp.array([[1.0, 2.0], [3.0, 2.0], [3.0, 2.0], [0.0, 2.0], [3.0, 1.0]])
    fun = lambda x: op(x, (0,))
    due = jax.jacobian(fun)(x)
    assert jnp.array_equal(jax.jit(jax.jacrev(by_blocks(fun, x, Ax(0), 5)))(x), due)
    assert jnp.array_equal(jax.jit(jax.jacfwd(by_blocks(fun, x, Ax(0), 5, order=-1)))(x), due)


def test_a_product_has_the_gradient_of_a_product_with_zeros():
    x = jnp.array([[2.0, 0.0], [0.0, 0.0], [3.0, 5.0]])
    fun = lambda x: lax.reduce_prod(x, (0,))
    got = jax.jit(jax.jacrev(by_blocks(fun, x, Ax(0), 3)))(x)
    assert jnp.allclose(got, jax.jacrev(fun)(x))


def test_an_infinite_maximum_keeps_its_value_under_grad():
    x = jnp.array([1.0, jnp.inf, 2.0])
    fun = by_blocks(lambda x: lax.reduce_max(x, (0,)), x, Ax(0), 3)
    value, grad = jax.jit(jax.value_and_grad(fun))(x)
    assert value == jnp.inf and jnp.array_equal(grad, jnp.array([0.0, 1.0, 0.0]))


def streamed_sum(x, size):
    spec = Spec((0,), (jax.typeof(x[0]),), {}, x.shape[0], False)
    one, blocks = BY_NAME["reduce_sum"], x.reshape(-1, size, *x.shape[1:])
    start = one.init(spec, jax.typeof(blocks[0]))
    step = lambda acc, block: (one.step(spec, acc, jnp.int32(0), block), None)
    return one.final(spec, lax.scan(step, start, blocks)[0])[0]


def test_a_long_sum_loses_no_more_than_the_plain_one():
    x = np.random.default_rng(0).uniform(0.5, 1.5, (100_000, 4)).astype("float32")
    error = np.abs(
        np.asarray(jax.jit(streamed_sum, static_argnums=1)(x, 1)) / x.sum(0, dtype="f8") - 1
    )
    assert error.max() < 1e-7


def test_a_long_sum_that_overflows_is_infinite():
    x = jnp.full((5000, 1), 3e38)
    assert streamed_sum(x, 10)[0] == jnp.inf


def test_the_gradient_of_a_long_sum_is_one():
    grad = jax.jit(jax.grad(lambda x: streamed_sum(x, 10)[0]))(jnp.ones((5000, 1)))
    assert jnp.array_equal(grad, jnp.ones((5000, 1)))


def test_only_floats_that_add_up_are_reassociated():
    levels = {s.name: s.level(Spec((0,), (jax.typeof(X),), {}, 6)) for s in SINKS}
    assert {name for name, level in levels.items() if level == "reassoc"} == {
        "reduce_sum", "reduce_prod", "dot_general", "scatter-add",
    }  # fmt: skip


mean_square = sink(
    lambda x: (x**2).mean(0),
    init=lambda x: (jnp.zeros(x.shape[1:]), 0),
    step=lambda acc, start, x: (acc[0] + (x**2).sum(0), acc[1] + x.shape[0]),
    merge=lambda a, b: (a[0] + b[0], a[1] + b[1]),
    final=lambda acc: acc[0] / acc[1],
)


def test_a_sink_of_yours_is_one_equation_under_its_name():
    (eqn,) = compat.trace(mean_square, X).jaxpr.eqns
    assert eqn.params["name"] == mean_square.name


def test_a_sink_of_yours_streams():
    spec = Spec(None, (jax.typeof(mean_square(X)),), {}, 6)
    acc = mean_square.init(spec, jax.typeof(X))
    for a, b in ((0, 2), (2, 6)):
        new = mean_square.step(spec, acc, jnp.int32(a), X[a:b])
        assert jax.tree.map(jax.typeof, new) == jax.tree.map(jax.typeof, acc)
        acc = new
    same(mean_square.final(spec, acc), [mean_square(X)], 1e-6)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"init": lambda x: jnp.zeros((2, 3))}, r"final of .* gives f32\[2,3\] where f32\[3\]"),
        ({"init": lambda x: jnp.zeros(3, int)}, r"step of .* gives f32\[3\] where i32\[3\]"),
        ({"step": lambda acc, start, x: (acc, acc)}, r"step of .* gives f32\[3\], f32\[3\] where"),
        ({"step": lambda acc, start, x: None}, r"step of .* gives nothing where f32\[3\]"),
        ({"merge": lambda a, b: a.sum()}, r"merge of .* gives f32\[\] where f32\[3\]"),
        ({"final": lambda acc: acc.sum()}, r"final of .* gives f32\[\] where f32\[3\]"),
        ({"final": lambda acc: (acc, acc)}, r"final of .* gives f32\[3\], f32\[3\] where"),
        ({"final": lambda acc: acc.astype(int)}, r"final of .* gives i32\[3\] where f32\[3\]"),
    ],
)
def test_a_sink_of_other_types_is_named_with_its_line(wrong, words):
    parts = {
        "init": lambda x: jnp.zeros(x.shape[1:]),
        "step": lambda acc, start, x: acc + x.sum(0),
        "merge": lambda a, b: a + b,
        "final": lambda acc: acc,
    }
    one = sink(lambda x: x.sum(0), **(parts | wrong))
    x, spec = jnp.ones((4, 3)), Spec(None, (jax.typeof(jnp.ones(3)),), {}, 4)
    with pytest.raises(RuleError, match=words + r"(.|\n)*test_sinks\.py:\d+"):
        acc = one.step(spec, one.init(spec, jax.typeof(x)), jnp.int32(0), x)
        one.final(spec, one.merge(spec, acc, acc))


def test_an_error_in_a_sink_of_yours_names_it_and_its_line():
    parts = {
        "init": lambda x: jnp.zeros(x.shape[1:]),
        "merge": lambda a, b: a + b,
        "final": lambda acc: acc,
        "step": lambda acc, start, x: acc + x.sum(0),
    }

    def run(**changed):
        mine = sink(lambda x: x.sum(0), **(parts | changed))
        path = lambda x: lax.scan(lambda c, _: (jnp.sin(c),) * 2, x, length=9)[1]
        pushed = push_up_reductions(sinks=(*SINKS, mine), threshold=0, chunk=4)
        return optimize(lambda x: mine(path(x)), pushed)(jnp.ones(3))

    with pytest.raises(ZeroDivisionError) as caught:
        run(step=lambda acc, start, x: 1 / 0)
    assert any("step of sink" in n and "test_sinks.py" in n for n in caught.value.__notes__)
    assert any("push_up_reductions" in n for n in caught.value.__notes__)

    def say(acc, start, x):
        jax.debug.print("{}", start)
        return acc + x.sum(0)

    with pytest.raises(RuleError, match=r"(?s)has an effect.*test_sinks") as caught:
        run(step=say)
