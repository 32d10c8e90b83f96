"""A while loop that can be differentiated: values, derivatives in every mode, and its limits."""

import functools
import itertools

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

from malleable import compat
from malleable.errors import TransformError
from malleable.frontend.values.reverse import KEPT, while_loop


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


def close(a, b):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-12), a, b)


def prims(jaxpr):
    """Names of all primitives of a program, those inside of bodies included."""
    names = [eqn.primitive.name for eqn in jaxpr.eqns]
    return names + [n for e in jaxpr.eqns for body in compat.bodies(e.params) for n in prims(body)]


def program(fun, *args):
    return prims(jax.make_jaxpr(fun)(*args))


# s = sum of sqrt(c - k) for k < c: one step past the stop is sqrt(0), whose derivative is inf.


def root_cond(consts, carry):
    return carry[0] < consts[0]


def root_body(consts, carry):
    k, s = carry
    return [k + 1.0, s + jnp.sqrt(consts[0] - k)]


def roots(c, bound=7):
    return while_loop(root_cond, root_body, [jnp.zeros_like(c), 0 * c], [c], bound=bound)[1]


def root_derivative(c, order):
    factor = [1.0, 0.5, -0.25, 0.375][order]
    return sum((c - k) ** (0.5 - order) for k in range(int(c))) * factor


def along(fun):
    return lambda c: jax.jvp(fun, (c,), (jnp.ones_like(c),))[1]


def summed(fun):
    return jax.grad(lambda c: fun(c).sum())


def reversed_vector(fun):
    return lambda c: jax.vjp(fun, c)[1](jnp.ones_like(c))[0]


MODES = {"jvp": along, "grad": summed, "vjp": reversed_vector}
CALLS = {"plain": lambda f: f, "jit": jax.jit, "checkpoint": jax.checkpoint}
LANES = np.array([3.0, 0.0, 7.0, 1.0])  # one takes no step, one as many as the bound


@pytest.mark.parametrize(("order", "bound"), [(1, 7), (1, 100), (2, 7)])
def test_no_derivative_of_any_order_meets_the_step_past_the_stop(order, bound):
    want = np.array([root_derivative(c, order) for c in LANES])
    kinds = ["jvp", "grad"] if order > 1 else list(MODES)
    for modes in itertools.product(kinds, repeat=order):
        for inside in range(order + 1):
            fun = lambda c: roots(c, bound)
            for mode in modes[:inside]:
                fun = MODES[mode](fun)
            fun = jax.vmap(fun)
            for mode in modes[inside:]:
                fun = MODES[mode](fun)
            close(jax.jit(fun)(LANES), want)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("call", CALLS)
def test_each_lane_by_itself(mode, call):
    for c in LANES:
        close(CALLS[call](MODES[mode](CALLS[call](roots)))(c), root_derivative(c, 1))


def test_a_third_derivative_past_the_stop():
    want = np.array([root_derivative(c, 3) for c in LANES])
    inside = jax.vmap(jax.grad(along(jax.grad(roots))))
    outside = summed(along(summed(jax.vmap(roots))))
    both = summed(along(jax.vmap(jax.grad(roots))))
    for fun in (inside, outside, both):
        close(jax.jit(fun)(LANES), want)


def test_lanes_in_two_directions():
    square = LANES.reshape(2, 2)
    want = np.vectorize(lambda c: root_derivative(c, 1))(square)
    close(jax.jit(summed(jax.vmap(jax.vmap(roots))))(square), want)
    close(jax.jit(jax.vmap(summed(jax.vmap(roots)), in_axes=1, out_axes=1))(square), want)


@pytest.mark.parametrize("trap", [jnp.log, lambda x: 1 / x, jnp.sqrt, lambda x: x / x])
def test_traps_in_the_carry(trap):
    def body(consts, carry):
        x, s = carry
        return [x - 1.0, s + trap(x) * consts[0]]

    def fun(x, k, bound=9):
        return while_loop(lambda _, c: c[0] > 0, body, [x, 0.0 * x], [k], bound=bound)[1]

    def unrolled(x, k, steps):
        carry = [x, 0.0 * x]
        for _ in range(steps):
            carry = body([k], carry)
        return carry[1]

    xs = np.array([3.0, 0.0, 1.0])
    slope = jax.jit(jax.grad(unrolled, (0, 1)), static_argnums=2)
    want = [slope(x, 2.0, int(x)) for x in xs]
    want = np.array([w[0] for w in want]), np.array([w[1] for w in want])
    close(jax.jit(jax.vmap(jax.grad(fun, (0, 1)), (0, None)))(xs, 2.0), want)
    total = jax.grad(lambda xs, k: jax.vmap(fun, (0, None))(xs, k).sum(), (0, 1))
    close(jax.jit(total)(xs, 2.0), (want[0], want[1].sum()))
    close(jax.jit(total)(xs, 2.0), total(xs, 2.0))


# a fixed point: x = tanh(w x + b), until it moves no more


def fixed_cond(consts, carry):
    return jnp.abs(carry[0] - carry[1]).max() > 1e-6


def fixed_body(consts, carry):
    (w, b), (x, _, n) = consts, carry
    return [jnp.tanh(w @ x + b), x, n + 1]


def fixed_init(b):
    return [jnp.zeros_like(b), jnp.ones_like(b), jnp.int32(0)]


def fixed(w, b, bound=40):
    return while_loop(fixed_cond, fixed_body, fixed_init(b), [w, b], bound=bound)


def unrolled_fixed(w, b):
    return unrolled_fixed_steps(w, b, STEPS)


def unrolled_fixed_steps(w, b, steps):
    carry = fixed_init(b)
    for _ in range(steps):
        carry = fixed_body([w, b], carry)
    return carry


STEPS = 13
W = np.array([[0.3, 0.1, 0.0], [0.0, 0.2, 0.3], [0.1, 0.1, 0.1]])
B = np.array([0.5, -0.2, 0.1])


def loss(run):
    return lambda w, b: jnp.sin(run(w, b)[0]).sum()


@pytest.mark.parametrize("bound", [None, 0, 40, 1000])
def test_values_are_those_of_a_plain_loop(bound):
    test, step = lambda c: fixed_cond([W, B], c), lambda c: fixed_body([W, B], c)
    assert fixed(W, B, bound)[2] == STEPS
    close(fixed(W, B, bound), lax.while_loop(test, step, fixed_init(B)))


@pytest.mark.parametrize("bound", [None, 40])
def test_forwards_it_is_one_while_also_in_lanes(bound):
    fun = lambda b: fixed(W, b, bound)
    lanes = np.stack([B, 2 * B])
    for names in (program(fun, B), program(jax.vmap(fun), lanes)):
        assert names.count("while") == 1
        assert not {"scan", "cond"} & {*names}


def test_forwards_it_compiles_to_what_one_writes_by_hand():
    def by_hand(w, b):
        test, step = lambda c: fixed_cond([w, b], c), lambda c: fixed_body([w, b], c)
        return lax.while_loop(test, step, fixed_init(b))

    texts = [jax.jit(f).lower(W, B).compile().cost_analysis() for f in (fixed, by_hand)]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("bound", [22, 40, 1000, 10**6, 2**40])
def test_gradients_are_those_of_the_unrolled_loop(bound):
    run = lambda w, b: fixed(w, b, bound)
    want = jax.jit(jax.grad(loss(unrolled_fixed), (0, 1)))(W, B)
    close(jax.jit(jax.grad(loss(run), (0, 1)))(W, B), want)


@pytest.mark.parametrize("bound", [None, 40])
def test_forward_mode_with_and_without_a_bound(bound):
    run = lambda w, b: fixed(w, b, bound)
    want = jax.jit(jax.jacfwd(loss(unrolled_fixed), (0, 1)))(W, B)
    close(jax.jit(jax.jacfwd(loss(run), (0, 1)))(W, B), want)
    twice = jax.jacfwd(jax.jacfwd(loss(run), 1), 0)
    want = jax.jit(jax.jacfwd(jax.jacfwd(loss(unrolled_fixed), 1), 0))(W, B)
    close(jax.jit(twice)(W, B), want)


@functools.cache
def unrolled_hessian():
    return jax.jit(jax.hessian(loss(unrolled_fixed), (0, 1)))(W, B)


@pytest.mark.parametrize("outer", [jax.jacfwd, jax.jacrev])
@pytest.mark.parametrize("inner", [jax.jacfwd, jax.jacrev])
def test_hessians(outer, inner):
    close(jax.jit(outer(inner(loss(fixed), (0, 1)), (0, 1)))(W, B), unrolled_hessian())


def test_a_derivative_in_one_operand_of_that_in_another():
    mixed = lambda run: jax.grad(lambda w: jax.grad(loss(run), 1)(w, B).sum())
    close(jax.jit(mixed(fixed))(W), jax.jit(mixed(unrolled_fixed))(W))
    lanes = np.stack([B, 3 * B])
    got = jax.grad(lambda w: jax.vmap(jax.grad(loss(fixed), 1), (None, 0))(w, lanes).sum())
    each = jax.grad(lambda w, b: jax.grad(loss(fixed), 1)(w, b).sum())
    close(jax.jit(got)(W), sum(map(jax.jit(each), [W, W], lanes)))


def test_a_jvp_of_a_vjp():
    def pull(run):
        return lambda b: jax.vjp(lambda b: run(W, b)[0], b)[1](jnp.arange(3.0))[0]

    push = lambda run: jax.jit(lambda b: jax.jvp(pull(run), (b,), (b,)))(B)
    close(push(fixed), push(unrolled_fixed))


def test_linearize():
    for bound in (None, 40):
        _, push = jax.linearize(lambda b, n=bound: fixed(W, b, n)[0], B)
        along_b = lambda b: jax.jvp(lambda b: unrolled_fixed(W, b)[0], (b,), (b,))[1]
        close(push(B), jax.jit(along_b)(B))


def test_a_loop_in_a_scan_and_a_scan_in_a_loop():
    def rows(run):
        def fun(b):
            return lax.scan(lambda b, _: (run(W, b)[0] * 2, None), b, None, length=3)[0].sum()

        return fun

    run = lambda w, b: unrolled_fixed_steps(w, b, 60)
    got = jax.jit(jax.grad(rows(lambda w, b: fixed(w, b, 60))))(B)
    want = jax.jit(jax.grad(rows(run)))(B)
    np.testing.assert_allclose(got, want, rtol=1e-4)  # another number of steps

    def body(consts, carry):
        x = lax.scan(lambda x, _: (jnp.sin(x) * consts[0], None), carry[0], None, length=3)[0]
        return [x, carry[1] + 1]

    loop = lambda x, k: while_loop(lambda _, c: c[1] < 4, body, [x, jnp.int32(0)], [k], bound=5)[0]
    plain = lambda x, k: lax.fori_loop(0, 12, lambda _, x: jnp.sin(x) * k, x)
    close(jax.jit(jax.grad(loop, (0, 1)))(0.5, 1.3), jax.grad(plain, (0, 1))(0.5, 1.3))


def test_a_loop_in_a_loop():
    def inner(x, k):
        body = lambda consts, c: [c[0] + jnp.sqrt(c[1]) * consts[0], c[1] - 1]
        return while_loop(lambda _, c: c[1] > 0, body, [0 * x, x], [k], bound=6)[0]

    def outer(x, k):
        body = lambda consts, c: [c[0] - 1, c[1] + inner(c[0], consts[0]) ** 2]
        return while_loop(lambda _, c: c[0] > 0, body, [x, 0 * x], [k], bound=40)[1]

    def by_hand(x, k):
        x = [x - i for i in range(5) if i < x]
        return sum(sum(k * (a - j) ** 0.5 for j in range(int(a))) ** 2 for a in x)

    xs = np.array([4.0, 0.0, 2.0])
    want = [jax.grad(by_hand, (0, 1))(x, 1.5) if x else (0.0, 0.0) for x in xs]
    total = lambda xs, k: jax.vmap(outer, (0, None))(xs, k).sum()
    got = jax.jit(jax.grad(total, (0, 1)))(xs, 1.5)
    close(got, (np.array([w[0] for w in want]), sum(w[1] for w in want)))


def test_carries_of_integers_booleans_and_keys():
    def body(consts, carry):
        key, n, flag, x = carry
        key, sub = jax.random.split(key)
        return [key, n + 1, ~flag, x * (1 + jax.random.uniform(sub, x.shape)) + consts[0][n]]

    def fun(x, table, n, bound=5):
        init = [jax.random.key(0), jnp.int32(0), jnp.array(False), x]
        return while_loop(lambda c, s: s[1] < c[1], body, init, [table, n], bound=bound)

    def by_hand(x, table, n):
        carry = [jax.random.key(0), jnp.int32(0), jnp.array(False), x]
        for _ in range(n):
            carry = body([table], carry)
        return carry

    x, table = jnp.ones(2), jnp.arange(10.0).reshape(5, 2)
    got, want = fun(x, table, 3), by_hand(x, table, 3)
    assert (got[0], int(got[1]), bool(got[2])) == (want[0], 3, True)
    scalar = lambda f: lambda x, t, n: jnp.sin(f(x, t, n)[3]).sum()
    want = jax.jit(jax.grad(scalar(by_hand), (0, 1)), static_argnums=2)
    close(jax.jit(jax.grad(scalar(fun), (0, 1)))(x, table, 3), want(x, table, 3))
    each = jax.jit(jax.vmap(jax.grad(scalar(fun), (0, 1)), (None, None, 0)))
    lanes = each(x, table, jnp.array([0, 2]))
    close(jax.tree.map(lambda g: g[1], lanes), want(x, table, 2))
    close(jax.tree.map(lambda g: g[0], lanes), want(x, table, 0))
    total = lambda x: jax.vmap(lambda n: scalar(fun)(x, table, n))(np.arange(3)).sum()
    close(jax.jit(jax.grad(total))(x), sum(want(x, table, n)[0] for n in range(3)))


def test_complex_and_empty_carries():
    body = lambda k, c: [c[0] * k[0], c[1], c[2] + 1]
    fun = lambda z, k, n: while_loop(
        lambda k, c: c[2] < k[1], body, [z, jnp.zeros((0, 2)), jnp.int32(0)], [k, n], bound=3
    )[0]
    size = lambda z, k, n: jnp.abs(fun(z, k, n)) ** 2
    want = jax.grad(lambda z, k: jnp.abs(z * k**3) ** 2, (0, 1))(1 + 2j, 0.5 - 1j)
    close(jax.grad(size, (0, 1))(1 + 2j, 0.5 - 1j, 3), want)
    assert np.isnan(jax.grad(size)(1 + 2j, 0.5 - 1j, 4))


@pytest.mark.parametrize("mode", ["grad", "vjp"])
def test_more_steps_than_the_bound_give_nan_in_reverse_and_the_same_value(mode):
    lanes = np.array([3.0, 4.0, 0.0, 9.0])
    short = lambda c: roots(c, 3)
    close(jax.vmap(short)(lanes), jax.vmap(lambda c: roots(c, 9))(lanes))
    for derivative in (MODES[mode](jax.vmap(short)), jax.vmap(MODES[mode](short))):
        got = np.asarray(jax.jit(derivative)(lanes))
        close(got[[0, 2]], np.array([root_derivative(c, 1) for c in (3.0, 0.0)]))
        assert np.isnan(got[[1, 3]]).all()
    value, got = jax.value_and_grad(short)(4.0)
    assert np.isnan(got) and value == roots(4.0, 4)
    assert np.isnan(jax.grad(jax.grad(short))(4.0))


def test_forward_mode_needs_no_bound_and_heeds_none():
    close(along(lambda c: roots(c, 3))(4.0), root_derivative(4.0, 1))


def test_the_bound_is_exact_where_stretches_are_larger():
    bound = KEPT + 1  # stretches of 2 steps
    close(jax.grad(lambda c: roots(c, bound))(float(bound)), root_derivative(float(bound), 1))
    assert np.isnan(jax.grad(lambda c: roots(c, bound))(bound + 1.0))


def test_no_step_allowed_and_none_taken():
    fun = lambda c, x: while_loop(
        lambda k, c: c[0] < k[0], lambda k, c: [c[0] + k[0]], [x], [c], bound=0
    )[0]
    assert jax.grad(fun, (0, 1))(1.0, 2.0) == (0.0, 1.0)
    assert np.isnan(jax.grad(fun, (0, 1))(3.0, 2.0)).all()


def test_a_constant_that_only_steps_past_the_bound_use_gets_nan_too():
    body = lambda k, c: [c[0] + 1, jnp.where(c[0] >= 2, k[0], c[1])]
    fun = lambda k: while_loop(lambda _, c: c[0] < 4, body, [0, 0 * k], [k], bound=2)[1]
    assert np.isnan(jax.grad(fun)(1.0))


def test_memory_grows_slowly_with_the_bound():
    x, w = np.ones(1000), np.eye(1000)

    def fun(x, w, bound):
        body = lambda k, c: [jnp.sin(k[0] @ c[0])]
        return while_loop(lambda _, c: c[0].max() > 0.5, body, [x], [w], bound=bound)[0].sum()

    def temp(bound):
        compiled = jax.jit(jax.grad(fun), static_argnums=2).lower(x, w, bound).compile()
        return compiled.memory_analysis().temp_size_in_bytes - 8 * w.size * 6

    assert temp(1000) < 100 * 8 * x.size
    assert temp(10**6) < 300 * 8 * x.size


# ---------------------------------------------------------------- without a bound


def test_reverse_mode_without_a_bound_names_the_loop():
    def fun(x):
        body = lambda _, c: [c[0] ** 2 / 8]
        return while_loop(lambda _, c: c[0] > 1, body, [x], [], where="model.py:12 in f")[0]

    slope = 8 * 6**7 / 8**7  # three steps
    close(jax.jvp(fun, (6.0,), (1.0,)), (6**8 / 8**7, slope))
    close(jax.jit(jax.vmap(jax.jacfwd(fun)))(np.array([6.0, 0.5])), np.array([slope, 1.0]))
    lanes = lambda x: jax.vmap(fun)(x * jnp.array([1.0, 0.5]))
    twice = lambda x: lax.scan(lambda x, _: (fun(x), None), x, None, length=2)[0]
    for inner in (fun, jax.jit(fun), jax.checkpoint(fun), lanes, twice, along(fun)):
        for derivative in (summed(inner), jax.jit(summed(inner)), jax.jacrev(inner)):
            with pytest.raises(TransformError, match=r"\n  at model\.py:12 in f\n  hint: give the"):
                derivative(6.0)
    with pytest.raises(TransformError, match=r"model\.py:12"):
        jax.vmap(jax.grad(fun))(np.array([6.0, 3.0]))


def test_what_does_not_depend_on_the_input_needs_no_bound():
    def fun(x):
        body = lambda _, c: [c[0] / 2, c[1] + 1.0, c[2] + 1]
        _, steps, n = while_loop(lambda _, c: c[0] > 1, body, [x, 0.0, 0], [])
        return x * steps + n

    assert jax.grad(fun)(6.0) == 3.0


def test_forward_mode_in_a_body_whose_constants_alone_move():
    body = lambda k, c: [c[0] + 1, c[1] + k[0], c[2] + c[1]]
    fun = lambda k: while_loop(lambda _, c: c[0] < 3, body, [0, 1.0, 0.0], [k])[2]
    close(jax.jvp(fun, (2.0,), (1.0,)), (9.0, 3.0))
