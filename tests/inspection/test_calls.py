"""`trace_calls` gives the transformations in the order they call each other, wherever made."""

import functools
import sys

import equinox
import flax.linen
import jax
import jax.numpy as jnp
import pytest
from jax import lax

import malleable as mal
from malleable import MalleableError
from malleable.inspection.calls import trace_calls

W, X = jnp.ones((4, 4)), jnp.ones((3, 5, 4))


def cell(w, c, x):
    return jnp.tanh(c @ w + x), None


def predict(w, x):
    return lax.scan(functools.partial(cell, w), x[0], x)[0].sum()


def loss(w, xs):
    return jax.vmap(predict, in_axes=(None, 0))(w, xs).mean()


@jax.jit
def train(w, xs):
    value, slope = jax.value_and_grad(loss)(w, xs)
    return w - 0.1 * slope, value


def kinds(fun, *args):
    return [call.kind for call in trace_calls(fun)(*args).walk()]


def test_each_calls_the_next():
    calls = list(trace_calls(train)(W, X).walk())
    assert [c.kind for c in calls] == ["program", "jit", "value_and_grad", "vmap", "scan"]
    assert [c.fun for c in calls] == ["train", "train", "loss", "predict", "cell"]
    assert calls[3].said == {"in_axes": (None, 0)}
    at = calls[4].at
    assert at and at.file == __file__ and at.function == "predict"
    assert calls[4].defined and calls[4].defined.line == cell.__code__.co_firstlineno


def test_transformations_made_elsewhere_are_seen():
    made = jax.jit(jax.vmap(jax.grad(lambda w, x: (w * x).sum()), in_axes=(None, 0)))
    assert kinds(made, W[0], X[0]) == ["program", "jit", "vmap", "grad"]


@pytest.mark.parametrize(
    ("fun", "wanted"),
    [
        (lambda x: lax.fori_loop(0, 3, lambda i, c: c + i, x), ["fori_loop"]),
        (lambda x: lax.while_loop(lambda c: c < 3, lambda c: c + 1, x), ["while_loop"]),
        (lambda x: lax.cond(x > 0, lambda v: v, lambda v: -v, x), ["cond"]),
        (lambda x: jax.checkpoint(lambda v: v + 1)(x), ["checkpoint"]),
        (lambda x: jax.jvp(lambda v: v * 2, (x,), (x,)), ["jvp"]),
        (lambda x: jax.hessian(lambda v: v**3)(x), ["jacobian"]),
        (lambda x: mal.optimize(lambda v: v + 1)(x), ["malleable: optimize"]),
    ],
)
def test_one_of_each(fun, wanted):
    assert [k for k in kinds(fun, 1.0)[1:] if k not in ("vmap", "jit")][: len(wanted)] == wanted


def test_custom_derivatives_are_seen():
    @jax.custom_jvp
    def soft(x):
        return jnp.log1p(jnp.exp(x))

    soft.defjvp(lambda x, t: (soft(x[0]), t[0]))
    assert kinds(lambda x: soft(x), 1.0) == ["program", "custom_jvp"]


def test_the_wrappers_of_libraries_are_seen():
    mlp = equinox.nn.MLP(4, 1, 8, 2, key=jax.random.key(0))
    seen = kinds(
        equinox.filter_jit(equinox.filter_grad(lambda m, x: jax.vmap(m)(x).sum())), mlp, X[0]
    )
    outer = [seen.index(kind) for kind in ("equinox: jit", "jit", "equinox: grad", "vmap")]
    assert outer == sorted(outer)
    net = flax.linen.Dense(3)
    variables = net.init(jax.random.key(0), W)
    assert "flax: apply" in kinds(jax.jit(net.apply), variables, W)


def test_each_level_has_its_program():
    calls = {c.kind: c for c in trace_calls(train)(W, X).walk()}
    names = {kind: str(c.program.eqns[-1].primitive) for kind, c in calls.items()}
    assert names["program"] == "jit" and names["scan"] == "scan"
    assert calls["vmap"].program.jaxpr.outvars[0].aval.shape == (3,)
    assert calls["scan"].program.jaxpr.outvars[0].aval.shape == (4,)
    assert calls["vmap"].outline.size < calls["value_and_grad"].outline.size


def test_a_level_that_needs_those_around_it_says_so():
    summed = jax.vmap(lambda x: jax.jit(lambda v: lax.psum(v, "i"))(x), axis_name="i")
    inner = list(trace_calls(summed)(W).walk())[-1]
    assert inner.kind == "jit"
    with pytest.raises(MalleableError, match=r"no program on its own\n  at .*\n  hint"):
        inner.program  # noqa: B018


def test_equal_calls_are_counted():
    calls = list(trace_calls(lambda x: [jax.vmap(abs)(x) for _ in range(3)])(W).walk())
    assert [(c.kind, c.times) for c in calls] == [("program", 1), ("vmap", 3)]
    assert "3 times" in str(calls[0])


def test_nothing_is_run_and_profiling_is_given_back():
    hear = lambda *event: None
    before = sys.getprofile()
    sys.setprofile(hear)
    try:
        trace_calls(lambda: jax.debug.callback(lambda: pytest.fail("it ran")))()
        assert sys.getprofile() is hear
    finally:
        sys.setprofile(before)
    with pytest.raises(ZeroDivisionError):
        trace_calls(lambda x: 1 / 0)(1.0)
    assert sys.getprofile() is before
