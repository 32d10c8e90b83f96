"""Derivative rules of users where values meet them: used, or an error where they cannot be."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import malleable as mal
from malleable import compat
from malleable.errors import TransformError, UnhandledError
from tests.core.values.value_classes import (
    INTERVALS,
    LORAS,
    Box,
    Interval,
    LoRA,
    Quantity,
    boxed,
    close,
    dense,
)

LOW = LoRA(*jax.random.normal(jax.random.key(0), (3, 3, 3)))
X = jax.random.normal(jax.random.key(1), (2, 3))


@jax.custom_jvp
def forward(x, w):
    return x @ w


@forward.defjvp
def _(xs, dxs):
    (x, w), (dx, dw) = xs, dxs
    return x @ w, 10 * (dx @ w) + 3 * (x @ dw)


@jax.custom_vjp
def backward(x, w):
    return x @ w


backward.defvjp(
    lambda x, w: (x @ w, (x, w)), lambda res, ct: (10 * ct @ res[1].T, 3 * res[0].T @ ct)
)


@jax.custom_vjp
def straight_through(x):
    return jnp.sign(x)


straight_through.defvjp(lambda x: (jnp.sign(x), None), lambda _, ct: (ct,))


def turned(frame, w: LoRA, **_):
    return LoRA(w.w.T, w.b.T, w.a.T)


def run(f, rules=LORAS | {lax.transpose_p: turned}):
    return lambda *args: mal.interpret(f, rules)(*args)[0]


WAYS = {
    "flat": lambda f: f,
    "jit": jax.jit,
    "checkpoint": jax.checkpoint,
    "cond": lambda f: lambda x, w: lax.cond(x[0, 0] < 9, f, lambda x, w: x, x, w),
    "scan": lambda f: lambda x, w: lax.scan(lambda h, _: (f(h, w), None), x, None, length=2)[0],
    "vmap": lambda f: lambda x, w: jax.vmap(f, in_axes=(0, None))(x[:, None], w),
}


@pytest.mark.in_turns
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("f", [forward, backward])
def test_the_rule_is_used_for_the_array_that_a_value_stands_for(f, way):
    f = WAYS[way](f)
    loss = lambda x, w: jnp.sum(run(f)(x, w) ** 2)
    want = lambda x, w: jnp.sum(f(x, dense(w)) ** 2)
    got, wanted = (jax.grad(g, argnums=(0, 1))(X, LOW) for g in (loss, want))
    jax.tree.map(lambda a, b: close(a / 100, b / 100), got, wanted)


def test_the_rule_is_used_under_jvp_and_vmap_around():
    f = lambda x: run(forward)(x, LOW)
    close(jax.jvp(f, (X,), (X,))[1], 10 * X @ dense(LOW))
    close(jax.vmap(jax.grad(lambda x: f(x).sum()))(X), 10 * jnp.ones((2, 3)) @ dense(LOW).T)


@pytest.mark.parametrize("f", [straight_through, jax.nn.relu, jax.nn.silu])
def test_a_class_that_wraps_an_array_keeps_every_rule(f):
    loss = lambda f: lambda x: jnp.sum(jnp.sin(f(x)) * x)
    box = jnp.array([-1.0, 0.0, 2.0])
    got = jax.grad(lambda b: run(loss(f), {Box: boxed})(b).x)(Box(box))
    assert type(got) is Box
    close(got.x, jax.grad(loss(f))(box))


def test_state_in_a_derivative_rule_has_the_derivative_of_its_fields():
    def dot(frame, x, w: LoRA, **_):
        frame.carry = frame.carry + w.a.sum()
        return frame.bind(x, dense(w))

    def carried(w):
        return mal.interpret(backward, {lax.dot_general_p: dot}, carry=0.0)(X, w)[1]

    close(jax.grad(carried)(LOW).a, jnp.ones((3, 3)))


def test_without_a_derivative_asked_for_nothing_is_refused():
    out = run(jax.nn.relu, INTERVALS)(Interval(jnp.float32(-1), jnp.float32(2)))
    assert (float(out.lo), float(out.hi)) == (0, 2)


@pytest.mark.caches  # JAX takes what an error of a loop's body holds for a leak
@pytest.mark.parametrize("loop", [False, True])
def test_the_derivative_of_a_body_is_not_taken_for_that_of_the_rule(loop):
    own = jax.custom_jvp(lambda x: jnp.maximum(x, 0.0))
    own.defjvp(lambda xs, dxs: (own(*xs), 5 * dxs[0]))
    f = lambda x: lax.fori_loop(0, 2, lambda i, x: own(x), x) if loop else own(x)
    loss = lambda x: run(f, INTERVALS)(x).hi
    with pytest.raises(TransformError, match="arrays, not Interval") as caught:
        jax.grad(loss)(Interval(jnp.float32(-1), jnp.float32(2)))
    assert "test_value_derivatives.py" in caught.value.where
    assert "primitives.custom_jvp_call_p a rule for Interval" in caught.value.hint


@pytest.mark.parametrize("loop", [False, True])
def test_ends_of_an_interval_have_their_derivatives_through_functions_of_jax(loop):
    f = lambda x: lax.fori_loop(0, 2, lambda i, x: jax.nn.relu(x), x) if loop else jax.nn.relu(x)
    loss = lambda x: (lambda out: 3 * out.lo + out.hi)(run(f, INTERVALS)(x))
    got = jax.grad(loss)(Interval(jnp.float32(-1), jnp.float32(2)))
    assert (float(got.lo), float(got.hi)) == (0, 1)


@pytest.mark.caches
@pytest.mark.parametrize("of", [lax.neg, jax.nn.relu, jax.jit(jax.nn.relu)])
def test_a_rule_of_the_users_for_a_function_of_jax_is_the_users(of):
    f = jax.custom_jvp(of)
    f.defjvp(lambda xs, dxs: (of(*xs), 5 * dxs[0]))
    with pytest.raises(TransformError, match="arrays, not Interval"):
        jax.grad(lambda x: run(f, INTERVALS)(x).hi)(Interval(jnp.float32(-1), jnp.float32(2)))


def test_a_rule_for_the_call_itself_has_the_derivative():
    (call,) = compat.trace(jax.nn.relu, 1.0).eqns[0:1]
    ends = lambda frame, x: [Interval(*pair) for pair in zip(frame.bind(x.lo), frame.bind(x.hi))]
    rules = INTERVALS | {call.primitive: lambda frame, x, **_: ends(frame, x)}
    got = jax.grad(lambda x: run(jax.nn.relu, rules)(x).hi)(
        Interval(jnp.float32(0), jnp.float32(0))
    )
    assert (float(got.lo), float(got.hi)) == (0, 0)  # that of max is 0.5 here


def test_no_derivative_is_by_a_value_that_no_array_is_made_of():
    f = jax.custom_jvp(lambda x, q: 2 * x)
    f.defjvp(lambda xs, dxs: (2 * xs[0], 5 * dxs[0]))
    value = lambda x, q: run(f, {})(x, Quantity(q, "m"))
    assert float(jax.grad(value)(1.0, 2.0)) == 5
    with pytest.raises(TransformError, match="arrays, not Quantity"):
        jax.grad(value, argnums=1)(1.0, 2.0)


def test_what_a_derivative_rule_makes_of_values_is_an_array():
    f = jax.custom_jvp(lambda x, w: x.sum())
    f.defjvp(lambda xs, dxs: (xs[0].sum(), dxs[0].sum() * xs[1]))
    with pytest.raises(UnhandledError, match="a derivative rule meets a Quantity"):
        rules = {lax.mul_p: lambda frame, x, y, **_: Quantity(frame.bind(x, y.x), y.unit)}
        jax.grad(lambda x: run(f, rules)(x, Quantity(jnp.float32(2), "m")))(X)
