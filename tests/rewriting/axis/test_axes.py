"""What streams: for every primitive, slice by slice gives the slices of the whole."""

import functools

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

from malleable import compat
from malleable.rewriting.axis.axes import flow
from malleable.rewriting.axis.bodies import flow_program
from malleable.rewriting.graph.slices import Ax, Flow, restack, slice_shape, take, unstack


def numbers(*shape, dtype="float32", seed=0):
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return jnp.asarray(rng.random(shape) < 0.5)
    if np.dtype(dtype).kind in "iu":
        return jnp.asarray(rng.integers(0, 9, shape), dtype)
    return jnp.asarray(rng.normal(size=shape), dtype)


def equation(fun, *args):
    """The last equation of a function, and the values of its operands."""
    program = compat.trace(fun, *args)
    env = dict(zip(program.jaxpr.constvars, program.consts))
    env |= dict(zip(program.jaxpr.invars, map(jnp.asarray, args)))
    read = lambda v: v.val if isinstance(v, compat.Literal) else env[v]
    *first, eqn = program.jaxpr.eqns
    for one in first:
        env.update(zip(one.outvars, compat.bind(one, [read(v) for v in one.invars])))
    return eqn, [read(v) for v in eqn.invars]


def axes(given, count):
    given = (given,) if isinstance(given, Ax) else tuple(given or ())
    return given + (None,) * (count - len(given))


def check(fun, *args, n, ins=None, outs=None, close=0.0):
    """Assert that the equation streams: in a Python loop, under vmap, with the right types."""
    eqn, values = equation(fun, *args)
    ins, outs = axes(ins, len(values)), axes(outs, len(eqn.outvars))
    found = flow(eqn, ins, outs, n)
    assert isinstance(found, Flow), found
    for given, told in zip((*ins, *outs), (*found.ins, *found.outs)):
        assert given is None or given == told
    cut = lambda xs: [unstack(x, a, n) if a else x for x, a in zip(xs, found.ins)]
    row = lambda t, xs: [x[t] if a else x for x, a in zip(xs, found.ins)]
    one = compat.trace(lambda *xs: row(0, cut(xs)), *values).out_avals
    for v, a, made in zip(eqn.outvars, found.outs, compat.trace(found.run, 0, *one).out_avals):
        assert made.shape == (slice_shape(v.aval.shape, a, n) if a else v.aval.shape)
        assert (made.dtype, made.weak_type) == (v.aval.dtype, v.aval.weak_type)

    @jax.jit
    def everything(*values):
        stacks, steps = cut(values), jnp.arange(n)
        looped = lax.map(lambda t: found.run(t, *row(t, stacks)), steps)
        lanes = jax.vmap(found.run, in_axes=(0, *(0 if a else None for a in found.ins)))
        whole = compat.bind(eqn, values)
        pairs = list(zip(whole, found.outs))
        due = [unstack(x, a, n) if a else jnp.broadcast_to(x, (n, *x.shape)) for x, a in pairs]
        back = [restack(y, a, x.shape) if a else x for y, (x, a) in zip(due, pairs)]
        return [*zip(looped, lanes(steps, *stacks), due, back, whole)]

    same = functools.partial(np.testing.assert_allclose, rtol=close, atol=close)
    for looped, lanes, due, back, whole in everything(*values):
        same(looped, due)
        same(lanes, due)
        same(back, whole)
    return found


X = numbers(5, 4, 3)
SQUARES = jnp.eye(3) * 3 + numbers(2, 5, 3, 3) @ numbers(2, 5, 3, 3).swapaxes(-1, -2) * 0.1
AXES = [(Ax(0), 5), (Ax(1), 4), (Ax(2), 3), (Ax(1, 2), 2), (Ax(1, inner=2), 2), (Ax(0, 5), 1)]


@pytest.mark.parametrize("ax, n", [*AXES, (Ax(0, 5, 1), 1), (Ax(0, 1, 5), 1)])
def test_restacking_undoes_unstacking(ax, n):
    slices = unstack(X, ax, n)
    assert slices.shape == (n, *slice_shape(X.shape, ax, n))
    assert np.array_equal(restack(slices, ax, X.shape), X)


@pytest.mark.parametrize("ax, n", AXES)
def test_one_slice_is_a_row_of_the_stack(ax, n):
    rows = jax.jit(lambda x: lax.map(lambda t: take(x, ax, n, t), jnp.arange(n)))(X)
    assert np.array_equal(rows, unstack(X, ax, n))


def test_a_slice_has_no_unit_dimension():
    assert slice_shape((4, 5), Ax(1), 5) == (4,)


def test_a_shared_dimension_stays_in_the_slice():
    assert slice_shape((4, 15), Ax(1, inner=3), 5) == (4, 3)


GATHER = lax.GatherDimensionNumbers
ROWS = functools.partial(
    lax.gather, dimension_numbers=GATHER((1, 2), (0,), (0,)), slice_sizes=(1, 4, 3), mode="clip"
)
EACH = functools.partial(
    lax.gather,
    dimension_numbers=GATHER((1,), (1,), (1,), (0,), (0,)),
    slice_sizes=(1, 1, 3),
    mode="clip",
)
INDEX = jnp.array([[1], [2], [0], [3], [1]])
conv = functools.partial(
    lax.conv_general_dilated,
    window_strides=(1,),
    padding="SAME",
    dimension_numbers=("NCH", "OIH", "NCH"),
)
pooled = lax.reduce_window
cholesky = lax.linalg.cholesky
first = Ax(0)

# name: function, arguments, length, axes of operands, axes of results
CASES = {
    "add": (lax.add, [X, X], 5, first, None),
    "add, backwards": (lax.add, [X, X], 4, None, Ax(1)),
    "add, merged": (lax.add, [X, X], 2, Ax(1, 2), None),
    "add, one row": (lax.add, [X, X[:1]], 5, first, None),
    "add, one row, other axis": (lax.add, [X, X[:1]], 4, Ax(1), None),
    "add, one row, merged": (lax.add, [X, X[:, :1]], 2, Ax(1, 2), None),
    "add, outer": (lax.add, [X[:, :1], X[:1]], 5, first, None),
    "add, outer, second": (lax.add, [X[:, :1], X[:1]], 4, [None, Ax(1)], None),
    "mul by a number": (lambda x: x * 2.0, [X], 5, first, None),
    "integer_pow": (lambda x: lax.integer_pow(x, 3), [X], 4, Ax(1), None),
    "convert": (lambda x: lax.convert_element_type(x, "int32"), [X], 4, Ax(1), None),
    "reduce_precision": (lambda x: lax.reduce_precision(x, 5, 7), [X], 4, Ax(1), None),
    "stop_gradient": (lambda x: lax.stop_gradient(x), [X], 4, Ax(1), None),
    "select": (lambda p, x: lax.select(p, x, -x), [X > 0, X], 4, Ax(1), None),
    "select, one for all": (lambda p, x: lax.select_n(p, x, x), [True, X], 4, [None, Ax(1)], None),
    "clamp": (lambda x: lax.clamp(0.0, x, 1.0), [X], 4, [None, Ax(1)], None),
    "comparison": (lax.lt, [X, X[:, :1]], 3, [Ax(2)], None),
    "complex": (lax.complex, [X, X], 3, [Ax(2)], None),
    "copy": (jnp.copy, [X], 3, [Ax(2)], None),
    "barrier": (lambda x, y: lax.optimization_barrier((x, y)), [X, X[0]], 5, first, None),
    "new axis before": (lambda x: lax.broadcast_in_dim(x, (7, 5, 4, 3), (1, 2, 3)),
        [X], 4, Ax(1), None),
    "new axis itself": (lambda x: lax.broadcast_in_dim(x, (7, 5, 4, 3), (1, 2, 3)),
        [X], 7, None, first),
    "unit to axis": (lambda x: lax.broadcast_in_dim(x, (5, 4, 3), (0, 1, 2)),
        [X[:1]], 5, None, first),
    "unit to merged": (lambda x: lax.broadcast_in_dim(x, (6, 4), (0, 1)),
        [X[:1, :, 0]], 3, None, Ax(0, 2)),
    "scalar to axis": (lambda x: lax.broadcast(x, (5, 4)), [2.0], 4, None, Ax(1)),
    "scalar to merged": (lambda x: lax.broadcast(x, (5, 4)), [2.0], 2, None, Ax(1, 2)),
    "unit after": (lambda x: x[..., None], [X], 3, Ax(2), None),
    "reshape, joined": (lambda x: lax.reshape(x, (20, 3)), [X], 4, Ax(1), None),
    "reshape, joined first": (lambda x: lax.reshape(x, (20, 3)), [X], 5, Ax(0), None),
    "reshape, joined both": (lambda x: lax.reshape(x, (60,)), [X], 4, Ax(1), None),
    "reshape, backwards": (lambda x: lax.reshape(x, (60,)), [X], 4, None, Ax(0, 5, 3)),
    "reshape, parted": (lambda x: lax.reshape(x, (5, 4, 3)), [X.ravel()], 4, Ax(0, 5, 3), None),
    "reshape, others": (lambda x: lax.reshape(x, (5, 2, 6)), [X], 5, Ax(0), None),
    "squeeze": (lambda x: lax.squeeze(x, (1,)), [X[:, :1]], 3, Ax(2), None),
    "squeeze, backwards": (lambda x: lax.squeeze(x, (1,)), [X[:, :1]], 3, None, Ax(1)),
    "squeeze, merged": (lambda x: lax.squeeze(x, (0,)), [X[:1]], 2, Ax(1, 2), None),
    "transpose": (lambda x: lax.transpose(x, (2, 0, 1)), [X], 4, Ax(1), None),
    "transpose, backwards": (lambda x: lax.transpose(x, (2, 0, 1)), [X], 3, None, Ax(0)),
    "transpose, merged": (lambda x: lax.transpose(x, (2, 0, 1)), [X], 2, Ax(1, 2), None),
    "sum of others": (lambda x: lax.reduce_sum(x, (0,)), [X], 4, Ax(1), None),
    "sum of few": (lambda x: lax.reduce_sum(x, (2,)), [X], 4, Ax(1), None),
    "sum, merged": (lambda x: lax.reduce_sum(x, (0, 2)), [X], 2, None, Ax(0, 2)),
    "max of few": (lambda x: lax.reduce_max(x, (2,)), [X], 4, Ax(1), None),
    "min, backwards": (lambda x: lax.reduce_min(x, (0,)), [X], 3, None, Ax(1)),
    "prod": (lambda x: lax.reduce_prod(x, (0,)), [X], 3, None, Ax(1)),
    "any": (lambda x: lax.reduce_or(x, (0,)), [X > 0], 3, None, Ax(1)),
    "xor": (lambda x: lax.reduce_xor(x, (0,)), [X > 0], 3, None, Ax(1)),
    "reduce": (lambda x: lax.reduce(x, 0.0, lambda a, b: a + 2 * b, (0,)), [X], 4, Ax(1), None),
    "argmax": (lambda x: lax.argmax(x, 0, "int32"), [X], 4, Ax(1), None),
    "argmin of many": (lambda x: lax.argmin(x, 0, "int32"), [numbers(20, 4)], 4, Ax(1), None),
    "argmin, backwards": (lambda x: lax.argmin(x, 1, "int32"), [X], 3, None, Ax(1)),
    "iota": (lambda: lax.broadcasted_iota("int32", (5, 4), 1), [], 4, None, Ax(1)),
    "iota of others": (lambda: lax.broadcasted_iota("int32", (5, 4), 1), [], 5, None, Ax(0)),
    "iota, merged": (lambda: lax.iota("float32", 12), [], 2, None, Ax(0, 2, 3)),
    "iota of others, merged": (
        lambda: lax.broadcasted_iota("int8", (6, 4), 1), [], 3, None, Ax(0, 2),
    ),
    "cumsum": (lambda x: lax.cumsum(x, 0), [X], 4, Ax(1), None),
    "cumlogsumexp": (lambda x: lax.cumlogsumexp(x, 2, reverse=True), [X], 4, Ax(1), None),
    "concatenate": (lambda x, y: lax.concatenate([x, y, x], 0), [X, X[:2]], 4, Ax(1), None),
    "concatenate, merged": (lambda x: lax.concatenate([x, x], 0), [X], 2, Ax(1, 2), None),
    "pad": (lambda x: lax.pad(x, 0.0, ((1, 1, 0), (0, 0, 0), (0, 1, 1))), [X], 4, Ax(1), None),
    "slice": (lambda x: lax.slice(x, (1, 0, 0), (5, 4, 3), (2, 1, 1)), [X], 4, Ax(1), None),
    "slice, merged": (lambda x: lax.slice(x, (1, 0, 0), (3, 4, 3)), [X], 2, Ax(1, 2), None),
    "rev": (lambda x: lax.rev(x, (0, 2)), [X], 4, Ax(1), None),
    "sort": (lambda x: lax.sort(x, dimension=0), [X], 4, Ax(1), None),
    "sort by key": (lambda x: lax.sort((x, -x), dimension=0), [X], 4, Ax(1), None),
    "top_k": (lambda x: lax.top_k(x, 2), [X], 4, Ax(1), None),
    "split": (lambda x: lax.split(x, (2, 3), 0), [X], 4, Ax(1), None),
    "dynamic_slice": (lambda x: lax.dynamic_slice(x, (2, 0, 0), (2, 4, 3)), [X], 4, Ax(1), None),
    "dynamic_update": (
        lambda x: lax.dynamic_update_slice(x, x[:2], (1, 0, 0)), [X], 4, Ax(1), None,
    ),
    "matmul, rows": (lambda a, b: lax.dot(a, b), [X[0], X[1].T], 4, Ax(0), None),
    "matmul, columns": (lambda a, b: lax.dot(a, b), [X[0], X[1].T], 4, [None, Ax(1)], None),
    "matmul, backwards": (lambda a, b: lax.dot(a, b), [X[0], X[:, 0].T], 5, None, Ax(1)),
    "matmul, merged": (lambda a, b: lax.dot(a, b), [X[0], X[1].T], 2, Ax(0, 2), None),
    "batched matmul": (
        lambda a, b: lax.dot_general(a, b, (((2,), (1,)), ((0,), (0,)))),
        [X, numbers(5, 3, 2)], 5, Ax(0), None,
    ),
    "batched matmul, backwards": (
        lambda a, b: lax.dot_general(a, b, (((2,), (1,)), ((0,), (0,)))),
        [X, numbers(5, 3, 2)], 5, None, Ax(0),
    ),
    "batched matmul, rows": (
        lambda a, b: lax.dot_general(a, b, (((2,), (1,)), ((0,), (0,)))),
        [X, numbers(5, 3, 2)], 4, Ax(1), None,
    ),
    "convolution": (lambda x: conv(x, numbers(2, 4, 2)), [X], 5, Ax(0), None),
    "convolution, merged": (
        lambda x: conv(x, numbers(2, 3, 2)), [numbers(6, 3, 4)], 3, Ax(0, 2), None,
    ),
    "rows of a table": (ROWS, [X, INDEX], 5, [None, Ax(0)], None),
    "table of slices": (ROWS, [X, INDEX], 3, [Ax(2)], None),
    "table, backwards": (ROWS, [X, INDEX], 4, None, Ax(1)),
    "rows, backwards": (ROWS, [X, INDEX], 5, None, Ax(0)),
    "table of merged slices": (ROWS, [X, INDEX], 2, [Ax(1, 2)], None),
    "one of each": (EACH, [X, INDEX], 5, [None, Ax(0)], None),
    "one of each, from the table": (EACH, [X, INDEX], 5, [Ax(0)], None),
    "one of each, backwards": (EACH, [X, INDEX], 5, None, Ax(0)),
    "one of each, other": (EACH, [X, INDEX], 3, [Ax(2)], None),
    "pool": (lambda x: pooled(x, 0.0, lax.add, (2, 1, 2), (1, 1, 1), "SAME"),
        [X], 4, Ax(1), None),
    "pool, merged": (lambda x: pooled(x, -jnp.inf, lax.max, (2, 1, 2), (1, 1, 1), "VALID"),
        [X], 2, Ax(1, 2), None),
    "scatter": (lambda x, y: x.at[1].set(y), [X, X[0]], 4, Ax(1), None),
    "scatter, from the update": (lambda x, y: x.at[jnp.array([3, 1])].add(y),
        [X, X[:2]], 4, [None, None, Ax(1)], None),
    "scatter, merged": (lambda x, y: x.at[1].mul(y), [X, X[0]], 2, Ax(1, 2), None),
    "cholesky": (lambda a: cholesky(a, symmetrize_input=False), [SQUARES], 5, Ax(1), None),
    "solve": (lax.linalg.triangular_solve, [SQUARES, SQUARES], 5, [Ax(1), None], None),
    "lu": (lax.linalg.lu, [SQUARES], 5, Ax(1), None),
    "qr": (lambda x: lax.linalg.householder_product(x, x[..., 0, :]), [SQUARES], 2, Ax(0), None),
}  # fmt: skip


@pytest.mark.in_turns
@pytest.mark.parametrize("name", CASES)
def test_slice_by_slice_gives_the_slices_of_the_whole(name):
    fun, args, n, ins, outs = CASES[name]
    check(fun, *args, n=n, ins=ins, outs=outs, close=1e-5)


def loop(x, w):
    return lax.scan(lambda c, row: (jnp.tanh(c @ w + row), c.sum(-1)), x[0], x)


def rounds(x, w):
    return lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, jnp.tanh(s[1] @ w)), (0, x))


def rounds_each(i, x):
    """A loop of each row, with its own number of rounds."""
    more = lambda s: (s[0] + 1, jnp.sin(s[1]) + 1)
    return jax.vmap(lambda i, x: lax.while_loop(lambda s: s[0] < 3, more, (i, x)))(i, x)


def choice(i, x, w):
    return lax.switch(i, [lambda x: x @ w, lambda x: jnp.ones_like(x), lambda x: -x], x)


@jax.custom_jvp
def kink(x, y):
    return jnp.where(x > 0, x * y, 0.0)


@kink.defjvp
def _kink_jvp(primals, tangents):
    (x, y), (dx, dy) = primals, tangents
    return kink(x, y), jnp.where(x >= 0, 2 * dx * y + dy * x, 0.0)


@jax.custom_vjp
def doubled(x, k):
    return x * jnp.sum(x, -1, keepdims=True) * k, jnp.argmax(x, -1)


def _doubled_fwd(x, k):
    return doubled(x, k), (x, k, jnp.sum(x, -1, keepdims=True))


def _doubled_bwd(res, cts):
    x, _, s = res
    return cts[0] * s * 3.0 + x * 0, None


doubled.defvjp(_doubled_fwd, _doubled_bwd)
W = numbers(3, 3, seed=1)

# as above; the function is one equation
NESTED = {
    "jit": (jax.jit(lambda x, w: jnp.tanh(x @ w)[..., :2]), [X, W], 4, Ax(1), None),
    "jit that makes more": (jax.jit(lambda x: x + jnp.arange(4.0)[:, None]), [X], 4, Ax(1), None),
    "jit with two": (jax.jit(lambda x, y: (x + y, x * 2)), [X, X], 5, first, None),
    "fft": (lambda x: jnp.fft.rfft(x), [X], 4, Ax(1), None),
    "remat": (jax.checkpoint(lambda x, w: jnp.sin(x @ w)), [X, W], 4, Ax(1), None),
    "cond": (choice, [1, X, W], 5, None, [first]),
    "cond, other": (choice, [2, X, W], 4, None, [Ax(1)]),
    "scan": (loop, [X, W], 4, [None, Ax(0), Ax(1)], None),
    "scan, rows only": (loop, [X, W], 4, [None, None, Ax(1)], None),
    "scan, backwards": (loop, [X, W], 4, None, [None, Ax(1)]),
    "while": (rounds, [X, W], 5, [None, None, first], None),
    "while, of a vmap": (rounds_each, [jnp.arange(5), X], 4, [None, Ax(1)], None),
    "fori": (lambda x: lax.fori_loop(0, 3, lambda i, c: c * i + 1, x), [X], 4, [None, Ax(1)], None),
    "custom_jvp": (kink, [X, X], 4, Ax(1), None),
    "custom_jvp of one whole": (kink, [X, X[:1]], 4, Ax(1), None),
    "relu": (jax.nn.relu, [X], 4, Ax(1), None),
    "custom_vjp": (lambda x: doubled(x, 2), [X], 4, Ax(1), None),
}


@pytest.mark.parametrize("name", NESTED)
def test_programs_inside_stream(name):
    fun, args, n, ins, outs = NESTED[name]
    _, values = equation(fun, *args)
    if ins and not isinstance(ins, Ax) and len(ins) > len(values):
        ins = ins[: len(values)]
    check(fun, *args, n=n, ins=ins, outs=outs, close=1e-5)


def program_check(fun, *args, n, ins, close=1e-5):
    """Assert that a whole program streams, and return its flow."""
    program = compat.trace(fun, *args)
    found = flow_program(flow, program, axes(ins, len(args)), n)
    assert isinstance(found, Flow), found
    stacks = [unstack(x, a, n) if a else x for x, a in zip(args, found.ins)]
    lanes = [0 if a else None for a in found.ins]
    got = jax.jit(jax.vmap(found.run, in_axes=(0, *lanes)))(jnp.arange(n), *stacks)
    for x, a, due in zip(got, found.outs, jax.tree.leaves(jax.jit(fun)(*args))):
        assert a is not None
        np.testing.assert_allclose(restack(x, a, due.shape), due, rtol=close, atol=close)
    return found


def test_a_label_of_each_row_is_looked_up_in_that_row():
    logits, labels = X[..., 0], jnp.array([1, 3, 0, 2, 1])
    pick = lambda logits, labels: logits[jnp.arange(5), labels]
    found = program_check(pick, logits, labels, n=5, ins=[Ax(0), None])
    assert found.ins == (Ax(0), Ax(0))


def test_a_label_before_its_row_is_looked_up_too():
    pick = lambda logits, labels: logits[labels, :, jnp.arange(3)]
    program_check(pick, X, jnp.array([1, 3, 0]), n=3, ins=[Ax(2), Ax(0)])


def test_labels_of_each_row_are_found_along_it():
    take = lambda logits, labels: jnp.take_along_axis(logits, labels[..., None], -1)
    program_check(take, X, jnp.array([[1, 2, 0, 1]] * 5), n=4, ins=[Ax(1), Ax(1)])


def test_indices_that_do_not_count_are_refused():
    logits, labels = X[..., 0], jnp.array([1, 3, 0, 2, 1])
    program = compat.trace(lambda a, i: a[jnp.arange(5)[::-1], i], logits, labels)
    assert "in order" in flow_program(flow, program, [Ax(0), Ax(0)], 5)


def test_a_row_that_is_the_same_for_all_is_made_once():
    found = program_check(lambda x, w: x + jnp.tanh(w), X, X[0], n=5, ins=Ax(0))
    assert found.ins == (Ax(0), None)


def test_what_grows_along_the_axis_is_made_row_by_row():
    fun = lambda x: x + jnp.broadcast_to(jnp.arange(4.0)[:, None] * 2, (4, 3))
    found = program_check(fun, X, n=4, ins=Ax(1))
    eqns = compat.trace(found.run, 0, X[:, 0]).jaxpr.eqns
    assert (4,) not in [v.aval.shape for e in eqns for v in e.outvars]


REFUSED = {
    "cumsum inside": (jax.jit(lambda x: jnp.cumsum(x, 0)), [X], 5, first, "inside of another"),
    "sorted": (lambda x: lax.sort(x, dimension=0), [X], 5, first, "sorted"),
    "reversed": (lambda x: lax.rev(x, (0,)), [X], 5, first, "reversed"),
    "padded": (lambda x: lax.pad(x, 0.0, ((1, 0, 0), *[(0, 0, 0)] * 2)), [X], 5, first, "padded"),
    "window": (lambda x: lax.slice(x, (1, 0, 0), (5, 4, 3)), [X], 5, first, "window"),
    "concatenated": (lambda x: lax.concatenate([x, x], 0), [X], 5, first, "concatenation"),
    "split axis": (lambda x: lax.reshape(x, (15, 4)), [X], 5, Ax(1, 2), "splits"),
    "both sides": (lambda a: lax.dot(a, a), [X[:4, :, 0]], 4, [Ax(0), Ax(1)], "two places"),
    "its own loop": (
        lambda x: lax.scan(lambda c, r: (c, r), 0.0, x), [X], 5, [None, first], "loop",
    ),
    "looked up": (lambda x: x[jnp.array([2, 0])], [X], 5, first, "lookup"),
    "rounds": (
        lambda x: lax.while_loop(lambda s: s.sum() < 3, lambda s: s + 1, x),
        [X], 5, first, "how often",
    ),
    "rounds of a vmap": (rounds_each, [jnp.arange(5), X], 5, [None, first], "how often"),
    "side effect": (lambda x: jax.debug.print("{}", x), [X], 5, first, "side effect"),
    "merged running": (lambda x: lax.cumsum(x, 1), [X], 2, Ax(1, 2), "as one"),
    "kernel": (lambda k: conv(X, k), [numbers(2, 4, 2)], 2, [None, Ax(0)], "convolution"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_stream_says_why(name):
    fun, args, n, ins, why = REFUSED[name]
    eqn, values = equation(fun, *args)
    assert why in flow(eqn, axes(ins, len(values)), axes(None, len(eqn.outvars)), n)


def slicewise(fun, n, ins, *args):
    """fun, slice by slice and put together: something to differentiate."""
    program = compat.trace(fun, *args)
    found = flow_program(flow, program, axes(ins, len(args)), n)
    assert isinstance(found, Flow), found

    def run(*args):
        stacks = [unstack(x, a, n) if a else x for x, a in zip(args, found.ins)]
        lanes = [0 if a else None for a in found.ins]
        got = jax.vmap(found.run, in_axes=(0, *lanes))(jnp.arange(n), *stacks)
        return restack(got[0], found.outs[0], program.out_avals[0].shape)

    return run


RULED = {
    "custom_jvp": (kink, [X.at[0].set(0.0), X], Ax(1)),
    "custom_jvp, one whole": (kink, [X.at[0].set(0.0), X[:, :1]], Ax(1)),
    "custom_vjp": (lambda x: doubled(x, 2), [X], Ax(1)),
    "relu": (jax.nn.relu, [X.at[0].set(0.0)], Ax(1)),
    "sum of few": (lambda x: lax.reduce_sum(x, (2,)), [X], Ax(1)),
    "max of few": (lambda x: lax.reduce_max(x, (2,)), [jnp.round(X)], Ax(1)),
}


@pytest.mark.parametrize("name", RULED)
def test_a_slice_has_the_derivative_of_its_function(name):
    fun, args, ins = RULED[name]
    value = lambda f: lambda *args: jnp.sum(jnp.sin(jax.tree.leaves(f(*args))[0]))
    which = tuple(range(len(args)))
    got = jax.jit(jax.grad(value(slicewise(fun, 4, ins, *args)), which))(*args)
    for x, y in zip(got, jax.jit(jax.grad(value(fun), which))(*args)):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


def test_a_slice_of_a_custom_rule_can_be_differentiated_twice():
    fun = lambda f: lambda x: jnp.sum(jax.jvp(lambda x: f(x, x), (x,), (x,))[1] ** 2)
    got = jax.jit(jax.grad(fun(slicewise(kink, 4, Ax(1), X, X))))(X)
    np.testing.assert_allclose(got, jax.jit(jax.grad(fun(kink)))(X), rtol=1e-5)


@pytest.mark.parametrize("op", [lax.argmax, lax.argmin])
def test_the_first_extremum_in_two_passes_is_that_of_jax(op):
    x = jnp.round(numbers(40, 30)).at[3, 4:6].set(jnp.nan).at[7].set(jnp.inf).at[8].set(-jnp.inf)
    check(lambda x: op(x, 1, "int32"), x, n=40, ins=Ax(0))
    late = x.at[5, -1].set(jnp.nan).at[6, -2:].set(jnp.nan)  # wins, wherever it is
    check(lambda x: op(x, 1, "int32"), late, n=40, ins=Ax(0))
    check(lambda x: op(x, 1, "int8"), jnp.tile(late, (1, 4)), n=40, ins=Ax(0))


def test_an_axis_of_length_one_streams():
    check(lax.add, X[:1], X[:1], n=1, ins=Ax(0))
    check(lambda x: lax.reshape(x, (4, 3)), X[:1], n=1, ins=Ax(0))


def test_an_axis_beside_an_empty_one_streams():
    check(lambda x: lax.reduce_sum(x, (0,)), X[:0], n=4, ins=Ax(1))
